"""Apply the consequences of jobs that have ended, in the transaction that ends them.

The column ``on_end`` lists them. The fast completion refuses a job with ``on_end``, so every such end passes
here; a job that expires in a claim follows a moment later, and a scan finds what a crash in between left
behind. ``on_end`` is cleared with the consequences, so each is applied once.

A running job that is cancelled ends in its row at once, and its attempt a moment later, or much later in a
thread. If another job or a schedule depends on it, its consequences wait for that: ``on_end`` has the key
``alive`` until the worker reports the end, or a scan finds that the worker is gone.

A consequence is a handler for one key of ``on_end``. It may end further jobs, whose consequences follow.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from pg_scheduler.base.messages import ENDED
from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.faults import REFUSED_PAUSE_S, SuppressedChangeError, is_refusal
from pg_scheduler.database.session import Record
from pg_scheduler.database.statements import CallersTransaction, Statements, Transaction
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.outcome import describe
from pg_scheduler.jobs.payload import object_from

FIRST_PAUSE_S: Final = 0.25
"""Seconds until a scan attends to a job of whose consequences a row was locked when it ended."""

LOCKED_PAUSE_S: Final = 4.0
"""Seconds for which a scan leaves out a job of whose consequences a row is still locked."""

ORDER: Final = ("result", "child", "schedule", "fixed_delay", "on_failure")
"""The keys of ``on_end`` in the order in which their consequences are applied.

The result of a job is kept first, since the jobs that wait for it get a copy. The alert of a failure is last,
since nothing waits for it.
"""

MAX_GENERATIONS: Final = 100
"""Jobs that end because another one ended, in a row. The commit wakes the scan, which continues."""


class EndedJob(NamedTuple):
    """A job that has ended.

    Attributes:
        error: The error message of its row.
        on_end: The consequences, by key.
        options: The options in its row.
    """

    job_id: str
    job_name: str
    status: JobStatus
    attempt: int
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
        self.on_left: Callable[[], None] = _wake_no_one
        """Called when consequences are left to a scan, which a worker makes soon then."""

    def set_handlers(self, **handlers: Handler) -> None:
        """Set what applies the consequences of these keys. The rooms that have them are joined one by one."""
        all_handlers = self._handlers | handlers
        self._handlers = {key: all_handlers[key] for key in ORDER if key in all_handlers}

    async def run(self, job_ids: Collection[str], transaction: Transaction) -> None:
        """Apply the consequences of those jobs that have ended.

        Raises:
            SuppressedChangeError: It could not be recorded that they are applied.
        """
        connection = transaction.connection
        generations = 0
        while job_ids and generations < MAX_GENERATIONS:
            generations += 1
            rows = await self._statements.fetch("lock_ended", list(job_ids), on=connection)
            jobs = [_ended_job(row) for row in rows]
            ended: list[str] = []
            if jobs:
                ids = [job.job_id for job in jobs]
                cleared = await self._statements.fetch("clear_consequences", ids, on=connection)
                # If a trigger keeps them in the row, every scan would apply them again.
                if len(cleared) < len(ids):
                    raise SuppressedChangeError
            for key, handler in self._handlers.items():
                if affected := [job for job in jobs if key in job.on_end]:
                    ended += await handler(affected, transaction)
            job_ids = ended
        if job_ids:
            await self._statements.fetch("notify", [ENDED], on=connection)

    async def follow(self, job_ids: Collection[str], transaction: Transaction) -> None:
        """Apply the consequences of those jobs that a call has ended, or leave them to a service.

        A transaction of the application may have a snapshot, in which it does not see what others have
        committed since. So a service applies them as soon as it commits.
        """
        if isinstance(transaction, CallersTransaction) and await self._statements.fetch(
            "leave_consequences", on=transaction.connection
        ):
            return
        await self.run(job_ids, transaction)

    async def apply(self, job_ids: Collection[str]) -> None:
        """Apply the consequences of jobs that have ended before, and publish the events.

        Those that meet a lock of another transaction, or that the table refuses, are left for a later scan.
        """
        if await self._apply(job_ids, locked_pause_s=FIRST_PAUSE_S):
            self.on_left()

    async def _apply(self, job_ids: Collection[str], *, locked_pause_s: float) -> bool:
        """Apply consequences; return whether some are left, which a scan leaves out for some seconds."""
        locked: set[str] = set()

        async def run_unlocked(part: Sequence[str], transaction: Transaction) -> None:
            """Apply the consequences of those jobs of which no row is locked.

            No statement of the transaction then waits for a row. Otherwise thousands of locked jobs could
            keep a scan from one that is free.
            """
            rows = await self._statements.fetch("lock_settled", part, part, on=transaction.connection)
            locked.update(row["job_id"] for row in rows)
            await self.run([job_id for job_id in part if job_id not in locked], transaction)

        errors = await self._statements.run_divided(job_ids, run_unlocked)
        now = time.monotonic()
        self._pause_ends |= dict.fromkeys(locked, now + locked_pause_s)
        for job_id, error in errors.items():
            is_refused = is_refusal(error)
            self._pause_ends[job_id] = now + (REFUSED_PAUSE_S if is_refused else locked_pause_s)
            if is_refused:
                logger.error(
                    "consequences of the end of job %s refused by the table, next attempt in %s s: %s",
                    job_id,
                    round(REFUSED_PAUSE_S),
                    describe(error),
                    extra=record_fields(job_id=job_id),
                )
        return bool(locked or errors)

    async def report_ends(
        self,
        attempts: Mapping[str, int],
        worker_id: str,
        transaction: Transaction,
        *,
        with_consequences: bool = True,
    ) -> None:
        """Apply consequences that wait for the real end of attempts, which are given by job id.

        Where ``with_consequences`` is False, they no longer wait for it, and a scan applies them later.
        """
        args = list(attempts), list(attempts.values()), worker_id
        rows = await self._statements.fetch("report_ends", *args, on=transaction.connection)
        if with_consequences:
            await self.run([row["job_id"] for row in rows], transaction)

    async def report_gone(self, worker_id: str, attempts: Mapping[str, int], limit: int) -> int:
        """Let the consequences follow that wait for attempts of workers that are gone; return their number.

        ``apply_lost()`` applies them.

        Args:
            worker_id: This worker, whose attempts end without a report if it lost its lease.
            attempts: Those that it runs or has not reported, by job id.
            limit: The maximum number of jobs.
        """
        args = worker_id, json.dumps(attempts), self._statements.now, limit
        return len(await self._statements.fetch("report_gone", *args))

    def next_attempt_in(self) -> float | None:
        """Return the seconds until the first job is due that ``apply()`` left; None if it left none."""
        if not self._pause_ends:
            return None
        return max(min(self._pause_ends.values()) - time.monotonic(), 0.0)

    async def apply_lost(self, limit: int) -> int:
        """Apply consequences that a crash, a lock or a change by hand left; return the number of jobs.

        Each of them is either done then, or left out of the next calls for some seconds.
        """
        now = time.monotonic()
        self._pause_ends = {job_id: until for job_id, until in self._pause_ends.items() if until > now}
        lost = [row[0] for row in await self._statements.fetch("find_ended", limit, list(self._pause_ends))]
        await self._apply(lost, locked_pause_s=LOCKED_PAUSE_S)
        return len(lost)


def _wake_no_one() -> None:
    """Leave the consequences to the next scan, where no worker has set what wakes it."""


def _ended_job(row: Record) -> EndedJob:
    return EndedJob(
        row["job_id"],
        row["job_name"],
        JobStatus(row["status"]),
        row["attempt"],
        row["error_message"],
        object_from(row["on_end"]),
        object_from(row["options"]),
    )
