"""Write the progress that jobs report: at most once a second, with one statement for all jobs.

Only the last report of a job is kept until then. A worker whose jobs report nothing executes no statement.
The completer writes the last report of an attempt before its outcome. A job that completes in a transaction
of its own code holds the connection of that transaction, so its last report is written there. If the report
took a second connection of the pool, jobs that hold all connections would wait for one another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock
from typing import ClassVar, Final

from pg_scheduler.database.statements import Transaction
from pg_scheduler.events import JobProgressed
from pg_scheduler.jobs.progress import JobProgress
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.service import NEVER, Service

GAP_S: Final = 1.0
"""Seconds between two statements."""


class ProgressWriter(Service):
    """Collect and write the progress of running attempts."""

    name: ClassVar[str] = "progress_writer"

    def __init__(self, node: Node) -> None:
        super().__init__(node.events)
        self._progress = node.store.progress
        self._in_flight = node.in_flight
        self._worker_id = node.worker_id
        self.reports: Final[dict[str, tuple[Claim, JobProgress]]] = {}
        """The last report of each job that is not yet written, with its attempt."""
        self._changing = Lock()
        self._writing = asyncio.Lock()
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._next_write = 0.0

    async def prepare(self) -> None:
        """Note the event loop, which reports of other threads wake."""
        self._event_loop = asyncio.get_running_loop()

    async def run_once(self) -> float:
        """Write all reports, at the earliest one second after the previous ones.

        Return the seconds until the next pass.
        """
        wait = self._next_write - time.monotonic()
        if self.reports and wait <= 0:
            self._next_write = time.monotonic() + GAP_S
            await self._write(list(self.reports))
            wait = GAP_S
        return wait if self.reports else NEVER

    async def drain(self) -> None:
        """Let reports wake this service no more, because the event loop may end."""
        self._event_loop = None

    def report(self, claim: Claim, progress: JobProgress) -> None:
        """Accept a report of progress from the code of an attempt, in any thread."""
        with self._changing:
            # With earlier reports, the service is awake, or sleeps until it may write again.
            is_first = not self.reports
            previous_claim, _ = self.reports.get(claim.job_id, (claim, progress))
            # An attempt that was lost may run on, and must not replace the report of a later one.
            if previous_claim.attempt <= claim.attempt:
                self.reports[claim.job_id] = (claim, progress)
        # drain() may remove the event loop at any moment, so it is read once.
        loop = self._event_loop
        if is_first and loop is not None:
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(self.wake)

    def has(self, claim: Claim) -> bool:
        """Return whether the last report of an attempt is not yet written."""
        report = self.reports.get(claim.job_id)
        if report is None:
            return False
        reporting_claim, _ = report
        return reporting_claim.attempt == claim.attempt

    async def write_last(self, claims: Iterable[Claim]) -> None:
        """Write the last reports of attempts that have ended, before their outcomes are written."""
        if not self.reports:
            return
        job_ids = [claim.job_id for claim in claims if self.has(claim)]
        if job_ids:
            await self._write(job_ids)

    async def write_within(self, claim: Claim, transaction: Transaction) -> None:
        """Write the last report of an attempt in the transaction that completes its job.

        It stays here until ``drop()``, because the transaction may be rolled back.
        """
        if self.reports and self.has(claim):
            _, progress = self.reports[claim.job_id]
            await self._progress.write_own_progress(self._worker_id, claim, progress, transaction)
            if self._events.wants(JobProgressed):
                transaction.events.append(_event(claim, progress))

    def drop(self, claim: Claim) -> None:
        """Drop the report of an attempt whose completion is committed."""
        with self._changing:
            if self.has(claim):
                del self.reports[claim.job_id]

    async def _write(self, job_ids: Iterable[str]) -> None:
        """Write the reports of jobs that have one, and publish those that were written."""
        async with self._writing:  # a statement in progress may hold the rows
            batch: dict[str, tuple[Claim, JobProgress]] = {}
            for job_id in job_ids:
                report = self.reports.get(job_id)
                if report is not None:
                    batch[job_id] = report
            if not batch:
                return
            written = await self._progress.write_progress(self._worker_id, batch)
            self._forget(batch, written)
        if self._events.wants(JobProgressed):
            for job_id, (claim, progress) in batch.items():
                if job_id in written:
                    self._events.publish(_event(claim, progress))

    def _forget(self, batch: dict[str, tuple[Claim, JobProgress]], written: set[str]) -> None:
        """Drop the reports of a batch that are written, and those of attempts that do not run any more.

        ``written`` has the ids of the jobs whose reports the statement has written. A report that came
        meanwhile is kept, and so is the report of an attempt whose row was locked.
        """
        held = self._in_flight.held()
        with self._changing:
            for job_id, report in batch.items():
                claim, _ = report
                is_over = job_id in written or held.get(job_id) != claim.attempt
                if is_over and self.reports.get(job_id) is report:
                    del self.reports[job_id]


def _event(claim: Claim, progress: JobProgress) -> JobProgressed:
    """Return the event about a report of progress that is written."""
    return JobProgressed(
        claim.job_id,
        claim.job_name,
        claim.attempt,
        done=progress.done,
        total=progress.total,
        note=progress.note,
    )
