"""Recognise a copy of a database, so that no worker runs the jobs of the original a second time.

A row has the database in which workers run these tables. A restored dump has the same row in a database of
another system identifier or oid. Files that were copied, as by a standby, have the same identity.

The first start of a worker writes the row. So does a start on a copy without unfinished jobs and schedules,
such as one of a template for tests: nothing there can run twice.

The tables may also be exchanged while a worker runs. A worker that registers again therefore reads the record
again. If the record names the database in which this worker started, but the tables are in another one now,
the database of the worker has moved to another server. Any other difference is treated as at a start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.base.text.numbers import counted
from pg_scheduler.database.audit import AuditRepository
from pg_scheduler.database.session import Connection
from pg_scheduler.database.statements import Statements, Transaction
from pg_scheduler.errors import DatabaseCopyError, SchemaForbiddenError
from pg_scheduler.events.log import logger, record_fields

OnCopy = Literal["refuse", "adopt", "hold"]
"""What a worker does in a copy of the database of its rows."""

HELD: Final = "held by pg-scheduler adopt --hold"
"""The note of the tasks and schedules that were paused because the database is a copy."""

HELD_INSTEAD: Final = f"{HELD}, in place of this pause: "
"""How their note begins if they had a pause with an end. That pause follows as JSON: its end, its note, and
the actor of a task, or what becomes of the fire times of a schedule."""

ADOPT: Final = "adopt_database"


class Identity(NamedTuple):
    """A database: the system identifier of its server, its oid, its origin and its name.

    ``system`` is None if this role may not read it. ``origin`` is the transaction that created the tables.
    """

    system: str | None
    database: int
    origin: str | None
    name: str

    def is_same(self, other: Identity) -> bool:
        """Return whether both are one database, by what could be read of both."""
        # A system identifier is unique. Where a role may not read it, the origin has to suffice.
        if self.system is not None and other.system is not None:
            return (self.system, self.database) == (other.system, other.database)
        return (self.origin, self.database) == (other.origin, other.database)


class Identities(NamedTuple):
    """This database, and the one in which workers run these tables; None if no worker has started yet."""

    here: Identity
    recorded: Identity | None


class Held(NamedTuple):
    """The numbers of the tasks and of the schedules that were paused."""

    tasks: int
    schedules: int


class Hold(NamedTuple):
    """A task or a schedule that a copy holds.

    ``former_pause`` is the pause with an end that the hold has replaced; None if there was none.
    """

    name: str
    note: str
    former_pause: Mapping[str, Any] | None

    def former(self, key: str) -> Any:
        """Return a value of the former pause; None if there was none."""
        return None if self.former_pause is None else self.former_pause[key]


class Released(NamedTuple):
    """The tasks and schedules whose hold has ended.

    ``schedules`` still are to be resumed. The numbers are those of the tasks and schedules that are paused as
    they were before the hold.
    """

    tasks: Sequence[str]
    schedules: Sequence[Hold]
    paused_tasks: int
    paused_schedules: int


class IdentityRepository:
    """The statements about the database that the tables belong to."""

    def __init__(self, statements: Statements, audit: AuditRepository) -> None:
        self._statements = statements
        self._audit = audit
        self.started_in: Identity | None = None
        """The database in which a worker has started; None if it has not, or does not look for copies."""

    async def read(self, *, on: Connection | None = None, reads_system: bool | None = None) -> Identities:
        """Return this database, and the recorded one; None if no worker has started yet.

        ``reads_system`` is whether the role may read the system identifier of the server; None to query that
        first.
        """
        if reads_system:
            (row,) = await self._statements.fetch("read_identity_with_system", on=on)
            system = row["system"]
        else:
            (row,) = await self._statements.fetch("read_identity", on=on)
            # Not every role may read the system identifier of the server.
            system = await self._statements.value("read_system", on=on) if row["has_system"] else None
        identity = Identity(system, row["database"], row["origin"], row["name"])
        if row["recorded_database"] is None:
            return Identities(identity, None)
        recorded = (
            row["recorded_system"],
            row["recorded_database"],
            row["recorded_origin"],
            row["recorded_name"],
        )
        return Identities(identity, Identity(*recorded))

    async def guard(self, on_copy: OnCopy, identities: Identities | None = None) -> None:
        """Record the database at the first start, and refuse, adopt or hold a copy.

        A copy, such as a restored dump, has jobs that the workers of the original run. To adopt a copy is to
        record it as a database of its own. To hold it is to pause all of its tasks and schedules, too.

        Args:
            on_copy: What to do in a copy.
            identities: This database and the recorded one; None to read them.

        Raises:
            DatabaseCopyError: It is a copy with unfinished jobs or schedules, and ``on_copy`` is "refuse".
        """
        try:
            identity, recorded = identities or await self.read()
            is_copy = recorded is not None and not identity.is_same(recorded)
            # In a copy without unfinished jobs and schedules, nothing can run twice.
            is_harmless_copy = is_copy and not await self._statements.value("has_work")
            if recorded is None or is_harmless_copy:
                await self._record(identity)
                self.started_in = identity
                return
        except SchemaForbiddenError as error:
            logger.warning("copies of this database are not recognised: %s", error, extra=record_fields())
            return
        if identity.is_same(recorded):
            self.started_in = identity
            return
        if on_copy == "refuse":
            raise DatabaseCopyError(identity.name, recorded.name)
        held = await self.adopt(hold=on_copy == "hold")
        self.started_in = identity
        logger.warning(
            "adopted database %r, which is a copy of %r; paused %s and %s",
            identity.name,
            recorded.name,
            counted(held.tasks, "task"),
            counted(held.schedules, "schedule"),
            extra=record_fields(),
        )

    async def guard_again(self, on_copy: OnCopy) -> None:
        """Check the database again for a worker that runs, and whose row is missing.

        The tables may have been exchanged, for example by those of a restored dump.

        Raises:
            DatabaseCopyError: Its tables are now a copy of those of another database, as for `guard()`.
        """
        if self.started_in is None:
            return
        identity, recorded = await self.read()
        # The record still names the database in which this worker has started, but this is another one. So
        # these are the tables of the worker, with its jobs: they have moved, and are no copy to refuse.
        has_moved = (
            recorded is not None and recorded.is_same(self.started_in) and not identity.is_same(recorded)
        )
        if not has_moved:
            await self.guard(on_copy)
            return
        logger.warning(
            "database %r has moved to another server; execute pg-scheduler adopt there before the next start "
            "of a worker",
            identity.name,
            extra=record_fields(),
        )

    async def adopt(self, *, hold: bool) -> Held:
        """Record this database as the one of its tables; pause all tasks and schedules first if ``hold``."""
        now = self._statements.now

        async def adopt(transaction: Transaction) -> Held:
            connection, held = transaction.connection, Held(0, 0)
            identity, recorded = await self.read(on=connection)
            if hold:
                notes, actor = (HELD, HELD_INSTEAD), self._statements.author.actor
                held = Held(
                    await self._statements.number("hold_tasks", *notes, actor, now, on=connection),
                    await self._statements.number("hold_schedules", *notes, now, on=connection),
                )
            await self._record(identity, on=connection)
            details = {"copy_of": None if recorded is None else recorded.name, **held._asdict()}
            await self._audit.record(ADOPT, identity.name, on=connection, **details)
            return held

        return await self._statements.run_retrying(adopt)

    async def held(self, *, on: Connection | None = None) -> tuple[list[Hold], list[Hold]]:
        """Return the tasks and the schedules that were paused because the database is a copy."""
        tasks = await self._statements.fetch("held_tasks", HELD, HELD_INSTEAD, on=on)
        schedules = await self._statements.fetch("held_schedules", HELD, HELD_INSTEAD, on=on)
        return _holds(tasks), _holds(schedules)

    async def release(self) -> Released:
        """End the pauses of tasks and schedules that `adopt()` has made.

        Those that were paused until a time before are paused until that time again. The caller resumes the
        other schedules, which the result names.
        """

        async def release(transaction: Transaction) -> Released:
            """Restore the pauses in one transaction with their audit records."""
            connection, now = transaction.connection, self._statements.now
            tasks, schedules = await self.held(on=connection)
            rows = await self._statements.fetch("resume_held_tasks", _as_json(tasks), now, on=connection)
            paused_tasks = {row["name"] for row in rows if row["is_paused"]}
            rows = await self._statements.fetch("restore_schedules", _as_json(schedules), now, on=connection)
            paused_schedules = {row["schedule_id"] for row in rows}
            for hold in tasks:
                action = "pause_task" if hold.name in paused_tasks else "resume_task"
                await self._record_release(action, hold, on=connection)
            # The caller resumes the other schedules.
            for hold in schedules:
                if hold.name in paused_schedules:
                    await self._record_release("pause_schedule", hold, on=connection)
            return Released(
                [hold.name for hold in tasks if hold.name not in paused_tasks],
                [hold for hold in schedules if hold.name not in paused_schedules],
                len(paused_tasks),
                len(paused_schedules),
            )

        return await self._statements.run_retrying(release)

    async def _record_release(self, action: str, hold: Hold, *, on: Connection) -> None:
        """Write the audit record of a task or schedule whose hold ends, with the pause that it has again."""
        details = {}
        if action != "resume_task":
            details = {"until": hold.former("until"), "note": hold.former("note")}
        await self._audit.record(action, hold.name, on=on, **details)

    async def _record(self, identity: Identity, *, on: Connection | None = None) -> None:
        """Record a database as the one in which workers run these tables."""
        values = *identity, self._statements.author.actor, self._statements.now
        await self._statements.fetch("record_database", *values, on=on)


def _as_json(holds: Sequence[Hold]) -> str:
    """Return held tasks or schedules as JSON, for the statement that ends their holds."""
    values = [{"name": hold.name, "note": hold.note, "pause": hold.former_pause} for hold in holds]
    return json.dumps(values)


def _holds(rows: Sequence[Iterable[Any]]) -> list[Hold]:
    """Return the holds of rows with a name and a note, without rows whose note is not that of a hold.

    The note of a hold is ``HELD``, or begins with ``HELD_INSTEAD``, and the former pause follows as JSON.
    """
    holds = []
    for name, note in rows:
        former_pause = None
        if note != HELD:
            try:
                former_pause = load_json(note.removeprefix(HELD_INSTEAD))
            except ValueError:
                continue
            # A person may have written a note that begins like that of a hold.
            if not (isinstance(former_pause, dict) and former_pause.keys() >= {"until", "note"}):
                continue
        holds.append(Hold(name, note, former_pause))
    return holds
