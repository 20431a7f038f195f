"""Apply the consequences of jobs that have ended, in the transaction that ends them.

The column ``on_end`` lists them. The fast completion refuses a job with ``on_end``, so every such end passes
here. The consequences of a job that expires in a claim are applied a moment later, and a scan applies those
that a crash in between left behind. ``on_end`` is cleared with the consequences, so each is applied once.

A running job that is cancelled ends in its row at once. Its attempt ends a moment later, or much later if it
runs in a thread. If another job or a schedule depends on the job, the consequences wait for the end of the
attempt: ``on_end`` has the key ``alive`` until the worker reports that end, or a scan finds that the worker
is gone.

A consequence is a handler for one key of ``on_end``. It may end further jobs, whose consequences follow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pg_scheduler.base.lazy_imports import LazyModule
from pg_scheduler.base.messages import ENDED
from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.faults import REFUSED_PAUSE_S, SuppressedChangeError, is_refusal
from pg_scheduler.database.refused_rows import RefusedRows
from pg_scheduler.database.session import Record
from pg_scheduler.database.statements import CallersTransaction, Statements, Transaction
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.payload import object_from

if TYPE_CHECKING:
    from pg_scheduler.jobs import outcome as outcomes
else:
    outcomes = LazyModule("pg_scheduler.jobs.outcome")


FIRST_PAUSE_S: Final = 0.25
"""Seconds until a scan attends to a job that ended while a row that its consequences change was locked."""

LOCKED_PAUSE_S: Final = 4.0
"""Seconds for which a scan leaves out a job if a row that its consequences change is still locked."""

ORDER: Final = ("result", "child", "schedule", "fixed_delay", "sequence", "on_failure", "on_cancel")
"""The keys of ``on_end`` in the order in which their consequences are applied.

The result of a job is kept first, since the jobs that wait for it get a copy. The alert of a failure and the
clean-up of a cancellation are last, since nothing waits for them.
"""

MAX_GENERATIONS: Final = 100
"""The longest chain of jobs, each of which ends because the job before it has ended, in one transaction. If a
chain is longer, the commit wakes a scan, which continues."""


class EndedJob(NamedTuple):
    """A job that has ended.

    Attributes:
        failed_attempts: The attempts that failed, of this definition and since its last step.
        error: The error message of its row.
        on_end: The consequences, by key.
        options: The options in its row.
    """

    job_id: str
    job_name: str
    status: JobStatus
    failed_attempts: int
    error: str | None
    on_end: Mapping[str, Any]
    options: Mapping[str, Any]


Handler: TypeAlias = Callable[[Sequence[EndedJob], Transaction], Awaitable[Collection[str]]]
"""Applies one consequence of jobs that have ended, within their transaction.

It returns the ids of the jobs that it ended and that have consequences themselves.
"""


class Consequences:
    """The consequences of jobs that have ended."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._handlers: dict[str, Handler] = {}
        # Until when a scan leaves out a job, by the monotonic clock.
        self._pause_ends: dict[str, float] = {}
        self._refused_reports = RefusedRows("end of the last attempt of job {} not recorded")
        self.on_left: Callable[[], None] = _wake_no_one
        """Called when consequences are left to a scan, so that a worker scans soon."""

    def set_handlers(self, **handlers: Handler) -> None:
        """Set the handlers of some keys of ``on_end``, the column that lists what follows the end of a job.

        Other keys keep the handlers that were set before.
        """
        all_handlers = self._handlers | handlers
        self._handlers = {key: all_handlers[key] for key in ORDER if key in all_handlers}

    async def run(self, job_ids: Collection[str], transaction: Transaction) -> None:
        """Apply the consequences of those jobs that have ended, such as that jobs which wait for them start.

        Raises:
            SuppressedChangeError: A trigger keeps the consequences in a row although they are applied.
        """
        connection = transaction.connection
        # The jobs of a generation end because those of the generation before have ended.
        generations = 0
        while job_ids and generations < MAX_GENERATIONS:
            generations += 1
            rows = await self._statements.fetch("lock_ended", list(job_ids), on=connection)
            jobs = [_ended_job(row) for row in rows]
            ended_ids: list[str] = []
            if jobs:
                ids = [job.job_id for job in jobs]
                cleared = await self._statements.fetch("clear_consequences", ids, on=connection)
                # If a trigger keeps the consequences in the row, every scan would apply them again.
                if len(cleared) < len(ids):
                    raise SuppressedChangeError
            for key, handler in self._handlers.items():
                if affected := [job for job in jobs if key in job.on_end]:
                    ended_ids += await handler(affected, transaction)
            job_ids = ended_ids
        # The chain is longer than one transaction may follow. A message of the commit wakes a scan, which
        # continues.
        if job_ids:
            await self._statements.fetch("notify", [ENDED], on=connection)

    async def follow(self, job_ids: Collection[str], transaction: Transaction) -> None:
        """Apply the consequences of those jobs that a call has ended, or leave them to a scan of a worker.

        A transaction of the application at another isolation level than READ COMMITTED does not see what
        others have committed since its begin. So a worker applies the consequences after its commit.
        """
        if isinstance(transaction, CallersTransaction):
            # At READ COMMITTED, the statement does nothing and returns no row.
            are_left = await self._statements.fetch("leave_consequences", on=transaction.connection)
            if are_left:
                return
        await self.run(job_ids, transaction)

    async def apply(self, job_ids: Collection[str]) -> None:
        """Apply the consequences of jobs whose ends are committed, and publish the events.

        Consequences that meet a lock, or that the table refuses, are left for a later scan.
        """
        # If some are left, a worker of this process scans soon.
        if await self._apply(job_ids, locked_pause_s=FIRST_PAUSE_S):
            self.on_left()

    async def _apply(self, job_ids: Collection[str], *, locked_pause_s: float) -> bool:
        """Apply the consequences of jobs that have ended; return whether some are left.

        A scan leaves out the jobs whose consequences are left: for ``locked_pause_s`` seconds if a lock is
        the reason, and for ``REFUSED_PAUSE_S`` if the table has refused a change.
        """
        locked_ids: set[str] = set()

        async def run_unlocked(part: Sequence[str], transaction: Transaction) -> None:
            """Apply the consequences of those jobs of which no row is locked.

            For these jobs, no statement of the transaction waits for a row. If each locked job made a scan
            wait, thousands of them could keep it from a job that is free.
            """
            # The first parameter is the jobs whose rows change, the second one those of them that have ended:
            # all. The statement returns the jobs of which another transaction has locked a row.
            rows = await self._statements.fetch("lock_settled", part, part, on=transaction.connection)
            locked_ids.update(row["job_id"] for row in rows)
            await self.run([job_id for job_id in part if job_id not in locked_ids], transaction)

        errors = await self._statements.run_divided(job_ids, run_unlocked)
        now = time.monotonic()
        self._pause_ends |= dict.fromkeys(locked_ids, now + locked_pause_s)
        for job_id, error in errors.items():
            is_refused = is_refusal(error)
            self._pause_ends[job_id] = now + (REFUSED_PAUSE_S if is_refused else locked_pause_s)
            if is_refused:
                logger.error(
                    "consequences of the end of job %s refused by the table, next attempt in %s s: %s",
                    job_id,
                    round(REFUSED_PAUSE_S),
                    outcomes.describe(error),
                    extra=record_fields(job_id=job_id),
                )
        return bool(locked_ids or errors)

    async def report_ends(
        self,
        attempts: Mapping[str, int],
        worker_id: str,
        transaction: Transaction,
        *,
        with_consequences: bool = True,
    ) -> None:
        """Record that attempts have ended, and apply the consequences of their jobs that waited for that.

        A job may end while its attempt still runs, as by a cancellation. Then the consequences wait for the
        end of the attempt. ``attempts`` has the numbers of the attempts by job id.

        If ``with_consequences`` is False, only record that the attempts have ended, so that a scan applies
        the consequences later.
        """
        args = list(attempts), list(attempts.values()), worker_id
        # It returns the jobs whose consequences need not wait any more.
        rows = await self._statements.fetch("report_ends", *args, on=transaction.connection)
        if with_consequences:
            await self.run([row["job_id"] for row in rows], transaction)

    async def report_gone(self, worker_id: str, attempts: Mapping[str, int], limit: int) -> int:
        """Record the end of attempts whose workers are gone, if consequences wait for it; return how many.

        ``apply_lost()`` applies the consequences afterwards.

        Args:
            worker_id: This worker. Its own attempts end without a report if it lost its lease.
            attempts: The attempts that it runs or has not reported, by job id.
            limit: The maximum number of jobs.
        """
        args = worker_id, json.dumps(attempts), self._statements.now, limit
        rows = await self._refused_reports.fetch("report_gone", *args, statements=self._statements)
        return len(rows)

    def next_attempt_in(self) -> float | None:
        """Return the seconds until a scan reads the first job that was left out; None if none was."""
        if not self._pause_ends:
            return None
        return max(min(self._pause_ends.values()) - time.monotonic(), 0.0)

    async def apply_lost(self, limit: int) -> int:
        """Apply consequences that a crash, a lock or a change by hand left; return the number of jobs.

        Afterwards each of these jobs is done, or is left out of the next calls for some seconds.
        """
        now = time.monotonic()
        self._pause_ends = {job_id: until for job_id, until in self._pause_ends.items() if until > now}
        rows = await self._statements.fetch("find_ended", limit, list(self._pause_ends))
        job_ids = [row["job_id"] for row in rows]
        await self._apply(job_ids, locked_pause_s=LOCKED_PAUSE_S)
        return len(job_ids)


def _wake_no_one() -> None:
    """Leave the consequences to the next scan: no worker runs in this process that could scan sooner."""


def _ended_job(row: Record) -> EndedJob:
    """Return the job of a row of ``lock_ended``."""
    return EndedJob(
        row["job_id"],
        row["job_name"],
        JobStatus(row["status"]),
        row["failed_attempts"],
        row["error_message"],
        object_from(row["on_end"]),
        object_from(row["options"]),
    )
