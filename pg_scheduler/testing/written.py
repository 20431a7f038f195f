"""What a test kit sees: the rows that the transaction of the test has written, and no others.

All other rows are committed, so workers see them, too. If a kit ran such a job, the rollback of the test
would make it pending again, and a worker would run it a second time. Until then, each change of such a row
would wait for the end of the test. So every statement by which a kit chooses rows by itself is limited to
what the transaction has written.

A connection with autocommit has no such transaction: what a kit does there is committed at once, as with a
worker. There the kit sees all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, cast

from pg_scheduler.admission.pause_watcher import PauseWatcher
from pg_scheduler.admission.pauses import DeletedPause, PauseRepository
from pg_scheduler.admission.sequences import END, Moved, SequenceRepository
from pg_scheduler.database.refused_rows import RefusedRows
from pg_scheduler.database.statements import Repository, Statements, Transaction
from pg_scheduler.jobs.pause import Pause
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.sequences import BLOCKED_BY_SEQUENCE
from pg_scheduler.queue.consequences import Consequences
from pg_scheduler.scheduler.store import Store
from pg_scheduler.testing.connections import OwnConnection
from pg_scheduler.worker.node import Node


class WrittenJobs(Repository):
    """The statements by which a test kit finds jobs, and claims them one by one."""

    def __init__(self, statements: Statements, consequences: Consequences) -> None:
        super().__init__(statements)
        self._consequences = consequences

    async def ids(self, *, due_at: datetime | None = None) -> set[str]:
        """Return the ids of the jobs, or of those that are due at this time and can start."""
        rows = await self._statements.fetch("job_ids", due_at, _is_limited(self._statements))
        return {row["job_id"] for row in rows}

    async def ready_names(self) -> set[str]:
        """Return the names of pending jobs that wait for nothing but their time."""
        rows = await self._statements.fetch("ready_names", _is_limited(self._statements))
        return {row[0] for row in rows}

    async def claim_next(
        self, worker_id: str, names: Sequence[str], only: Collection[str] | None
    ) -> tuple[Claim, bool] | None:
        """Claim or expire the first due job.

        Args:
            worker_id: Written into the row.
            names: The names of jobs that can run.
            only: The ids of the jobs that may be claimed; None for all.

        Returns:
            The job, and whether it has expired; None if no such job is due.
        """
        now, is_limited = self._statements.now, _is_limited(self._statements)
        rows = await self._statements.fetch("claim_next", worker_id, names, only, now, is_limited)
        if not rows:
            return None
        # The columns of the row are those of a claim, and one more.
        *claim_values, has_expired = rows[0]
        return Claim._make(claim_values), has_expired

    async def mark_uncommitted(self) -> None:
        """Do what the commit does with the jobs that others wait for, in a test that never commits.

        This marks the parents, and applies the consequences of those that have ended already.
        """
        rows = await self._statements.fetch("mark_uncommitted", _is_limited(self._statements))
        await self._consequences.apply([row["job_id"] for row in rows if row["has_ended"]])


class WrittenSequences(SequenceRepository):
    """The sequences of a test kit: a job that others have written never becomes the head of one."""

    async def move_waiting(self) -> None:
        """Move the heads of all sequences with due jobs, since no sequencer runs."""
        idle = await self.find_idle(await self._movable())
        await self.move([key for key, due_in in idle.items() if due_in <= 0])

    async def _movable(self) -> list[str]:
        """Return the sequences whose next head is a job that the transaction has written."""
        args = _is_limited(self._statements), BLOCKED_BY_SEQUENCE, END
        return [row["key"] for row in await self._statements.fetch("movable_sequences", *args)]

    async def _move(self, keys: Sequence[str], transaction: Transaction) -> Moved:
        """Move the heads of sequences that the transaction has locked."""
        if _is_limited(self._statements):
            keys = sorted({*keys} & {*await self._movable()})
        return await super()._move(keys, transaction)


class WrittenPauses(PauseRepository):
    """The pauses of a test kit: it ends only those that it sees, and renews only jobs that it sees."""

    has_gaps = False

    async def names(self) -> set[str]:
        """Return the names of the pauses that the kit sees."""
        rows = await self._statements.fetch("kit_pauses", _is_limited(self._statements))
        return {row["name"] for row in rows}

    async def end_pauses(self) -> list[str]:
        """Delete the pauses whose time has ended; return the names of the tasks that this call resumed."""
        names = await self.names()
        # Without any names, the statement would end the pauses of others as well.
        if not names:
            return []
        rows = await self._statements.fetch("end_pauses", self._statements.now, only=names)
        return [row["name"] for row in rows]

    async def renew_due(
        self,
        names: Sequence[str],
        ended_at: datetime,
        priority: int,
        position: Sequence[str],
        limit: int,
        *,
        refused: RefusedRows | None = None,  # noqa: ARG002 - the test gets the error of a refusal
    ) -> Sequence[str] | None:
        """Give due jobs their misfire grace time again after a pause, one batch of them."""
        args = list(names), ended_at, self._statements.now, priority, *position, limit
        return await self._renew("renew_due", *args)

    async def renew_blocked(
        self,
        names: Sequence[str],
        ended_at: datetime,
        position: Sequence[Any],
        limit: int,
        *,
        refused: RefusedRows | None = None,  # noqa: ARG002 - the test gets the error of a refusal
    ) -> Sequence[Any] | None:
        """Give jobs that wait for limits or shares their misfire grace time again, one batch of them."""
        return await self._renew(
            "renew_blocked", list(names), ended_at, self._statements.now, *position, limit
        )

    async def _renew(self, name: str, *args: Any) -> Sequence[Any] | None:
        """Run a statement that gives jobs their grace time again, for the jobs that the kit sees."""
        # A call that resumes a task begins here, and the kit may not have used the connection yet.
        await cast("OwnConnection", self._statements.connections).look()
        rows = await self._statements.fetch("job_ids", None, _is_limited(self._statements))
        # Without any ids, the statement would change the jobs of others as well.
        if not rows:
            return None
        rows = await self._statements.fetch(name, *args, only=[row["job_id"] for row in rows])
        return tuple(rows[-1]) if rows else None

    async def delete_renewed(
        self,
        names: Sequence[str],
        pause: Pause,
        *,
        is_late: bool = False,  # noqa: ARG002
    ) -> DeletedPause:
        """Delete an ended pause that suspends expiry: its jobs have their grace time again.

        Jobs of others may wait under the same name, which this transaction leaves as they are.
        """
        return await super().delete_renewed(names, pause, is_late=True)


class PausesOfWatcher(WrittenPauses):
    """The pauses that a kit applies."""

    async def paused(self) -> list[Pause]:
        """Return the pauses without those of others that have ended by the clock of the kit.

        No worker ends these before their time, and the kit does not change them.
        """
        names = await self.names()
        return [pause for pause in await super().paused() if pause.name in names or not pause.has_ended]


class KitPauseWatcher(PauseWatcher):
    """Applies all pauses, but changes only those that the kit sees."""

    def __init__(self, node: Node) -> None:
        self._written = PausesOfWatcher(node.store.statements)
        super().__init__(node, self._written)

    async def _read(self) -> None:
        """Read the pauses, and apply them to what the kit claims and expires."""
        await super()._read()
        names = await self._written.names()
        self._read_pauses = [pause for pause in self._read_pauses if pause.name in names]


class KitStore(Store):
    """The tables of a test kit."""

    _pauses_class = WrittenPauses
    _sequences_class = WrittenSequences


def _is_limited(statements: Statements) -> bool:
    """Return whether a statement of the kit is limited to the rows that the transaction has written."""
    connections = statements.connections
    return isinstance(connections, OwnConnection) and connections.is_in_transaction
