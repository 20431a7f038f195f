"""Claim jobs when they are due, as many as there are free slots.

It sleeps until the next job is due by the database's clock, until a signal wakes it (a job was scheduled, a
slot became free, a notification arrived), or until the fallback poll, whichever comes first.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import ClassVar

from pg_scheduler.events import EventBus, JobExpired, JobFailed, JobsReclaimed
from pg_scheduler.jobs.outcome import ReleaseOutcome
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.settings import PollingConfig
from pg_scheduler.store.claims import ClaimRepository
from pg_scheduler.store.faults import ROW_ERRORS
from pg_scheduler.store.types import FROM_THE_START
from pg_scheduler.worker.in_flight import InFlight
from pg_scheduler.worker.lease.lease import Lease
from pg_scheduler.worker.pipeline.cursor import MAX_AGE_S, ClaimCursor
from pg_scheduler.worker.pipeline.executor import Executor
from pg_scheduler.worker.pipeline.pacing import Pacing
from pg_scheduler.worker.pipeline.result_buffer import ResultBuffer
from pg_scheduler.worker.service import NEVER, Service
from pg_scheduler.worker.signals import Signals

__all__ = ["Claimer", "ClaimerOptions"]


@dataclass(frozen=True, slots=True)
class ClaimerOptions:
    """The maximum age of the claim cursor."""

    cursor_max_age_s: float = MAX_AGE_S
    """Seconds for which a job without a notification may be overlooked under load."""
    max_failed_claims: int = 5
    """Claims in succession that may fail by an error that no row was found to cause. Another worker may have
    locked that row to quarantine it."""


class Claimer(Service):
    """Claim due jobs for free slots.

    Args:
        batch: Jobs per claim.
    """

    name: ClassVar[str] = "claimer"
    yields_between_passes: ClassVar[bool] = False
    """The next claim is sent before the jobs of this one run: the database works while they do."""

    def __init__(  # noqa: PLR0917 - each is another collaborator, wired once
        self,
        claims: ClaimRepository,
        events: EventBus,
        executor: Executor,
        results: ResultBuffer,
        in_flight: InFlight,
        lease: Lease,
        tasks: TaskRegistry,
        worker_id: str,
        signals: Signals,
        *,
        batch: int,
        polling: PollingConfig,
        options: ClaimerOptions = ClaimerOptions(),
    ) -> None:
        super().__init__(events)
        self._claims = claims
        self._executor = executor
        self._results = results
        self._in_flight = in_flight
        self._lease = lease
        self._tasks = tasks
        self._worker_id = worker_id
        self._signals = signals
        self._batch = batch
        self._polling = polling
        self._pacing = Pacing(polling)
        self._cursor = ClaimCursor(polling.max_interval, options.cursor_max_age_s)
        self._has_stopped = False
        self._may_have_unacknowledged = False
        self._failed_claims = 0
        self._max_failed_claims = options.max_failed_claims
        self._claiming = asyncio.Lock()

    async def prepare(self) -> None:
        """Allow claims."""
        self._has_stopped = False

    async def run_once(self) -> float:
        """Claim due jobs once; return the seconds until the next claim."""
        async with self._claiming:  # two passes at once would count the same free slots
            if self._has_stopped:
                return NEVER
            try:
                delay = await self._claim()
            except ROW_ERRORS:
                self._failed_claims += 1
                if self._failed_claims > self._max_failed_claims:
                    raise
                await self._quarantine_unreadable()
                return self._polling.min_interval
            self._failed_claims = 0
            return delay

    async def drain(self) -> None:
        """Refuse all further claims, and make the completer write results without waiting for one."""
        async with self._claiming:
            self._has_stopped = True
            self._results.claims_follow = False
            self._results.request_write()

    def rescan(self) -> None:
        """Claim from the start of the index, since a due job may precede the cursor."""
        self._cursor.reset()
        self.wake()

    def reconcile_claims(self) -> None:
        """Before the next claim, release the rows claimed for this worker that it never received."""
        self._may_have_unacknowledged = True
        self.wake()

    async def _claim(self) -> float:
        limit = min(self._executor.free, self._batch)
        if limit == 0:
            if self._results.has_results:  # more jobs run than there are slots: no claim follows
                self._results.request_write()
            return self._polling.semaphore_full_interval
        if self._may_have_unacknowledged:
            await self._release_unacknowledged()
        await self._pacing.reach_due_time()
        since = self._cursor.since()
        sent_at, trusted_until = time.monotonic(), self._lease.trusted_until
        try:
            with self._results.completions() as completions:
                answer = await self._claims.exchange(
                    self._worker_id,
                    self._tasks.names(),
                    limit,
                    completed=completions.claims,
                    keep=self._results.keeps_completed,
                    since=since,
                    after=self._cursor.after,
                )
                completions.refused = answer.refused
        except BaseException:  # whatever it was: results do not wait for the next claim
            self._may_have_unacknowledged = True
            self._results.claims_follow = False
            raise
        if answer.silence:
            self._signals.worker_silent()
        for expired in answer.expired:
            self._events.publish(JobExpired(expired.job_id, expired.job_name, expired.attempt))
        found = [*answer.jobs, *answer.expired] if answer.expired else answer.jobs
        is_full = len(found) == limit
        if sent_at < trusted_until < time.monotonic():
            # The event loop was blocked while the answer waited: other workers may have the jobs by now.
            for job in answer.jobs:
                self._results.put(job, ReleaseOutcome())
        elif answer.jobs:
            self._execute(answer.jobs, claims_follow=is_full)
        self._results.claims_follow = is_full and self.is_running  # as soon as a slot is free
        if found:
            self._pacing.reset_polls()
        if is_full:
            self._cursor.advance(found)
            return 0
        self._results.request_write()  # no claim follows that would take results along
        if since is not FROM_THE_START:
            self._cursor.reset()
            return 0  # jobs may lie before the cursor: scan for them before sleeping
        return self._next_delay(sent_at, answer.due_in)

    async def _release_unacknowledged(self) -> None:
        """Release jobs of a claim whose response was lost, before their lease expires."""
        known = self._in_flight.unwritten() | self._in_flight.held()
        self._may_have_unacknowledged = False  # before: an attempt that is lost meanwhile sets it again
        try:
            job_ids = await self._claims.release_unacknowledged(self._worker_id, known)
        except BaseException:  # whatever it was, they may not be released
            self._may_have_unacknowledged = True
            raise
        if job_ids:
            self._events.publish(JobsReclaimed(tuple(job_ids), ()))
            self._cursor.reset()

    async def _quarantine_unreadable(self) -> None:
        """Fail the due jobs whose rows cannot be read: each would end every claim."""
        self._cursor.reset()
        await self._release_unacknowledged()
        limit = min(self._executor.free, self._batch)
        for job in await self._claims.quarantine_unreadable(self._tasks.names(), limit):
            self._failed_claims = 0
            self._events.publish(JobFailed(*job))

    def _execute(self, jobs: list[Claim], *, claims_follow: bool) -> None:
        if claims_follow:
            self._executor.submit_all(jobs)  # once the next claim has been sent
        else:
            for job in jobs:
                self._executor.submit(job)
        self._signals.jobs_claimed()

    def _next_delay(self, sent_at: float, due_in: float | None) -> float:
        poll = self._pacing.next_poll()
        if due_in is None:
            return poll
        if due_in <= 0:  # another session has locked the row, or this worker's lease is over
            self._signals.lease_suspect()
            return self._polling.min_interval
        return self._pacing.seconds_until(sent_at + due_in, poll)
