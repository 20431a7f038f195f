"""Pause and resume tasks."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, NamedTuple

from pg_scheduler.database.refused_rows import RefusedRows
from pg_scheduler.database.statements import Repository, Statements
from pg_scheduler.jobs.model import JobPriority
from pg_scheduler.jobs.pause import Pause


class PauseRepository(Repository):
    """The statements that read and write the pauses of tasks."""

    has_gaps: ClassVar[bool] = True
    """Whether a `Renewal` waits between two statements, so that other sessions come to their turn."""

    def __init__(self, statements: Statements) -> None:
        super().__init__(statements)
        self.refused_ends: Final = RefusedRows("pause of task {!r} not ended", are_jobs=False)
        """The names of pauses that services leave out, since the application refuses to delete their rows."""

    async def pause(
        self,
        name: str,
        until: datetime | None,
        note: str | None,
        actor: str,
        *,
        suspends_expiry: bool = False,
        exact_names: Collection[str] = (),
        seen_pauses: Collection[Pause] | None = None,
    ) -> bool:
        """Pause a task, and notify all nodes; return False if it is paused already with the same values.

        ``exact_names`` are its name, its aliases and the default name of its function, as far as the caller
        knows them. They stop its jobs on every worker. With ``seen_pauses``, the result is also False if the
        pause that is stored under the name is none of these now.
        """
        until_text = None if until is None else until.isoformat()
        details = {"suspends_expiry": "true"} if suspends_expiry else {}
        # The caller passes the actor, so the actor among the values is not used.
        _, *author_values = self._statements.author.values(until=until_text, note=note, **details)
        now = self._statements.now
        return bool(
            await self._statements.fetch(
                "pause_task",
                name,
                until,
                note,
                actor,
                now,
                *author_values,
                suspends_expiry,
                list(exact_names),
                _values_of([pause for pause in seen_pauses if pause.name == name])
                if seen_pauses is not None
                else None,
            )
        )

    async def add_names(self, name: str, names: Collection[str], exact_names: Collection[str] = ()) -> bool:
        """Add names of its task to a pause, some of them exact; return whether they were written.

        They are not if another session has locked the row of the pause, or has added them before.
        """
        args = sorted(names), sorted(exact_names)
        return bool(await self._statements.fetch("add_names", name, *args))

    async def resume(
        self,
        names: Collection[str],
        declared_names: Collection[str] = (),
        *,
        seen_pauses: Collection[Pause] | None = None,
    ) -> bool:
        """End the pauses of a task, and notify all nodes; return whether one was in effect.

        Args:
            names: The names under which its pauses may be stored.
            declared_names: Those of these names that are declared, so that no other task has them.
            seen_pauses: Only those of these pauses end that are unchanged; None for all of the task.
        """
        args = list(names), self._statements.now, *self._statements.author.values(), list(declared_names)
        seen = None if seen_pauses is None else _values_of(seen_pauses)
        rows = await self._statements.fetch("resume_tasks", *args, seen)
        return any(row["was_in_effect"] for row in rows)

    async def end_pauses(self) -> list[str]:
        """Delete the pauses whose time has ended; return the names of the tasks that this call resumed.

        A pause that suspends expiry is not deleted here, but by its `Renewal`.
        """
        rows = await self.refused_ends.fetch("end_pauses", self._statements.now, statements=self._statements)
        return [row["name"] for row in rows]

    async def paused(self) -> list[Pause]:
        """Return every pause in the order of the names, including pauses that have just ended."""
        return await self._rows(Pause, "paused_tasks", self._statements.now)

    async def renew_due(
        self,
        names: Sequence[str],
        ended_at: datetime,
        priority: int,
        position: Sequence[str],
        limit: int,
        *,
        refused: RefusedRows | None = None,
    ) -> Sequence[str] | None:
        """Give due jobs of a priority their misfire grace time again after a pause, one batch of them.

        Return the position at which to continue; None at the end.

        Args:
            names: The names of the jobs.
            ended_at: When their pause ended.
            priority: The priority of the jobs.
            position: The due time and the id after which to read.
            limit: The number of due jobs of any name to read.
            refused: Leaves out the jobs whose change the application refuses; None to begin without any.
        """
        args = list(names), ended_at, self._statements.now, priority, *position, limit
        refused = refused or unrenewable_jobs()
        rows = await refused.fetch("renew_due", *args, statements=self._statements)
        return tuple(rows[-1]) if rows else None

    async def renew_blocked(
        self,
        names: Sequence[str],
        ended_at: datetime,
        position: Sequence[Any],
        limit: int,
        *,
        refused: RefusedRows | None = None,
    ) -> Sequence[Any] | None:
        """Give jobs that wait for limits or shares their misfire grace time again, one batch of them.

        The position begins with the limit or the tenant. For the rest, see ``renew_due()``.
        """
        args = list(names), ended_at, self._statements.now, *position, limit
        refused = refused or unrenewable_jobs()
        rows = await refused.fetch("renew_blocked", *args, statements=self._statements)
        return tuple(rows[-1]) if rows else None

    async def delete_renewed(
        self, names: Sequence[str], pause: Pause, *, is_late: bool = False
    ) -> DeletedPause:
        """Delete an ended pause that suspends expiry if all of its jobs have their grace time again.

        If ``is_late``, because that takes too long, delete it in any case.
        """
        args = list(names), pause.paused_until, self._statements.now, pause.name, is_late
        (row,) = await self._statements.fetch("delete_renewed", *args)
        return DeletedPause(*row)


def _values_of(pauses: Collection[Pause]) -> str:
    """Return the values by which statements recognise pauses that a person has seen, as JSON."""
    return json.dumps(
        [
            {
                "name": pause.name,
                "paused_at": pause.paused_at.isoformat(),
                "paused_until": None if pause.paused_until is None else pause.paused_until.isoformat(),
                "note": pause.note,
                "actor": pause.actor,
                "suspends_expiry": pause.suspends_expiry,
            }
            for pause in pauses
        ]
    )


class DeletedPause(NamedTuple):
    """The result of the attempt to delete a pause.

    Attributes:
        is_deleted: Whether this call has deleted it.
        was_there: Whether it was there before.
        names: The names in its row.
    """

    is_deleted: bool
    was_there: bool
    names: Sequence[str]


def unrenewable_jobs() -> RefusedRows:
    """Return a new, empty set for the jobs of one renewal whose change the application refuses."""
    return RefusedRows("job {} keeps the misfire grace time from before the pause", is_retried=False)


class Renewal:
    """Gives the jobs of a pause that suspended expiry their misfire grace time again, then ends the pause.

    The jobs that have waited for longer than their grace time would expire as soon as a worker claims them.
    So the row of the pause stays until all of them have a new time, and as long as it exists, no worker
    claims or expires them. Several processes may do this at once. If this one ends, the others continue.

    Why no job can expire in between: a worker claims or expires jobs of these names only after it has read
    that the row is gone, so after the commit of ``delete_renewed``. This statement deletes the row only if
    its snapshot has no due job without a new time. A job that became due later has its own whole time, and
    one that a transaction adds later was added after the pause.
    """

    batch_size: ClassVar[int] = 5000
    """Rows that one statement reads."""
    gap_s: ClassVar[float] = 0.005
    """Seconds between two statements."""
    patience_s: ClassVar[float] = 5.0
    """Seconds after which the pause ends in any case, since a transaction of the application may hold a lock
    on a job for hours, or a trigger may refuse its change. That job then keeps its former time."""

    is_ended_here = False
    """Whether this object has ended the pause, and not another process."""

    def __init__(self, pauses: PauseRepository, pause: Pause, names: Collection[str]) -> None:
        if pause.paused_until is None:
            raise ValueError(f"the pause of {pause.name} has not ended")
        self._ended_at = pause.paused_until
        self._pauses = pauses
        self.pause = pause
        self._names = sorted(names)
        # When this object began, by the monotonic clock of this process.
        self._began_at = time.monotonic()
        self._refused = unrenewable_jobs()
        self._restart()

    def _restart(self) -> None:
        """Begin again with the first batch."""
        # None stands for the blocked jobs. They come first, because a job that is unblocked meanwhile is then
        # found among the due ones.
        self._priorities: list[int | None] = [None, *(priority.db_value for priority in JobPriority)]
        self._position: Sequence[Any] | None = None

    async def run_once(self) -> bool:
        """Renew one batch of jobs, or, after the last batch, end the pause.

        Return True if the pause has ended, here or elsewhere, or if a new one has taken its place.
        """
        if self._priorities:
            await self._renew(self._priorities[0])
            return False
        # The statement finds out whether all jobs have their time. If not, all of them are read once more.
        is_late = time.monotonic() > self._began_at + self.patience_s
        pause = await self._pauses.delete_renewed(self._names, self.pause, is_late=is_late)
        self.is_ended_here = pause.is_deleted
        # Another process may have added names, whose jobs are renewed before the pause is deleted.
        self._names = sorted({*self._names, *pause.names})
        self._restart()
        return pause.is_deleted or not pause.was_there

    async def run(self) -> None:
        """Renew all batches of jobs, and return when the pause has ended."""
        while not await self.run_once():
            # A test kit that blocks has no event loop, and no other session waits for it.
            if self._pauses.has_gaps:
                await asyncio.sleep(self.gap_s)

    async def _renew(self, priority: int | None) -> None:
        """Give one batch of jobs their grace time again: due jobs of a priority, or blocked jobs for None.

        Blocked jobs are those that wait for limits or shares. After the last batch, drop the priority.
        """
        ended_at, size, refused = self._ended_at, self.batch_size, self._refused
        if priority is None:
            # The limit or the tenant, the priority, the due time and the id before the first job.
            start_of_blocked: Sequence[Any] = ("", 0, "-infinity", "")
            position = await self._pauses.renew_blocked(
                self._names, ended_at, self._position or start_of_blocked, size, refused=refused
            )
        else:
            # The due time and the id before the first job.
            start_of_due = ("-infinity", "")
            position = await self._pauses.renew_due(
                self._names, ended_at, priority, self._position or start_of_due, size, refused=refused
            )
        self._position = position
        if position is None:
            del self._priorities[0]
