"""Takes due jobs, as many as there are free slots, at their time.

It sleeps until the next job is due by the database's clock, until it is woken (a job was scheduled, a
slot became free, another node sent word), or until the fallback poll, whichever comes first.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import ClassVar, Final

from pg_scheduler.events import EventBus, JobExpired, JobsReclaimed
from pg_scheduler.jobs.outcome import ReleaseOutcome
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.settings import PollingConfig
from pg_scheduler.store.claims import ClaimRepository
from pg_scheduler.store.types import FROM_THE_START
from pg_scheduler.worker.in_flight import InFlight
from pg_scheduler.worker.lease.lease import Lease
from pg_scheduler.worker.pipeline.cursor import ClaimCursor
from pg_scheduler.worker.pipeline.executor import Executor
from pg_scheduler.worker.pipeline.result_buffer import ResultBuffer
from pg_scheduler.worker.service import NEVER, Service
from pg_scheduler.worker.signals import Signals

__all__ = ["Claimer"]

JITTER: Final = 0.1

COARSE: Final = 0.001
"""Seconds by which timers are late or early: what is left before a due time is waited for turn by turn."""

LONG: Final = 0.02
"""Seconds of a sleep after which that is worth its processor time."""

APPROACH: Final = 0.004
"""Seconds before a due time at which a long sleep ends with a question: its answer is fresh, by the server's
clock, and everything on the way is awake when it counts."""

GUARD: Final = 0.00025
"""Seconds by which one message may reach the server faster than another; who asks too early asks twice."""


class Claimer(Service):
    """Keep the slots full.

    Args:
        batch: Jobs per claim.
    """

    name: ClassVar[str] = "claimer"
    gives_way: ClassVar[bool] = False
    """The next exchange is sent before the jobs of this one run: the database works while they do."""

    def __init__(  # noqa: PLR0917 - each is another thing, wired once
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
    ) -> None:
        super().__init__(events)
        self._claims = claims
        self._executor = executor
        self._results = results
        self._in_flight = in_flight
        self._lease = lease
        self._tasks = tasks
        self._worker_id = worker_id
        self._batch = batch
        self._polling = polling
        self._signals = signals
        self._idle = polling.idle_start_interval
        self._due_at = 0.0
        self._approaches = False
        self._stopped = False
        self._is_unheard = False
        self._cursor = ClaimCursor(polling.max_interval)
        self._claiming = asyncio.Lock()

    async def prepare(self) -> None:
        """Claims may be made again."""
        self._stopped = False

    async def run_once(self) -> float:
        """Claim once."""
        async with self._claiming:  # two passes at once would count the same free slots
            return NEVER if self._stopped else await self._claim()

    async def drain(self) -> None:
        """No claim comes after this, not even a caller's own: results are written without one."""
        async with self._claiming:
            self._stopped = True
            self._results.claims_follow = False
            self._results.request_write()

    def rescan(self) -> None:
        """Something may be due that lies before what was claimed: look from the start."""
        self._cursor.reset()
        self.wake()

    def reconcile_claims(self) -> None:
        """Jobs may run under our name that nobody has here."""
        self._is_unheard = True
        self.wake()

    async def _claim(self) -> float:
        limit = min(self._executor.free, self._batch)
        if limit == 0:
            if self._results.has_results:  # of more jobs than there are slots: they wait for none
                self._results.request_write()
            return self._polling.semaphore_full_interval
        if self._is_unheard:
            await self._give_back_unheard()
        await self._reach_due_time()
        since = self._cursor.since()
        asked, until = time.monotonic(), self._lease.trusted_until
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
            self._is_unheard = True
            self._results.claims_follow = False
            raise
        if answer.silence:
            self._signals.worker_silent()
        for gone in answer.expired:
            self._events.publish(JobExpired(gone.job_id, gone.job_name, gone.attempt))
        found = [*answer.jobs, *answer.expired] if answer.expired else answer.jobs
        full = len(found) == limit
        if asked < until < time.monotonic():  # read late, by a blocked loop: they may be another's by now
            for job in answer.jobs:
                self._results.put(job, ReleaseOutcome())
        elif answer.jobs:
            self._begin(answer.jobs, full=full)
        self._results.claims_follow = full and self.is_running  # as soon as a slot is free
        if full:
            self._cursor.advance(found)
            self._idle = self._polling.idle_start_interval
            return 0
        self._results.request_write()  # nothing follows that would take results along
        if since is not FROM_THE_START:
            self._cursor.reset()
            return 0  # less than asked for: what lies before the marks is looked at before a sleep
        return self._until_next(asked, answer.due_in, found=bool(found))

    async def _give_back_unheard(self) -> None:
        """The last claim may have been made all the same. What it took would wait until its lease is over."""
        known = self._in_flight.unwritten() | self._in_flight.held()
        self._is_unheard = False  # before: a try that ends meanwhile sets it again
        try:
            job_ids = await self._claims.release_unacknowledged(self._worker_id, known)
        except BaseException:  # whatever it was, the question is open
            self._is_unheard = True
            raise
        if job_ids:
            self._events.publish(JobsReclaimed(tuple(job_ids), ()))
            self._cursor.reset()

    def _begin(self, jobs: list[Claim], *, full: bool) -> None:
        if full:
            self._executor.submit_all(jobs)  # when the next exchange is under way
        else:
            for job in jobs:
                self._executor.submit(job)
        self._signals.jobs_claimed()

    async def _reach_due_time(self) -> None:
        while 0 < self._due_at - time.monotonic() < 2 * COARSE:  # noqa: ASYNC110 - nothing will tell
            await asyncio.sleep(0)

    def _until_next(self, asked: float, due_in: float | None, *, found: bool) -> float:
        polling = self._polling
        if found:
            self._idle = polling.idle_start_interval
        poll = min(max(self._idle, polling.min_interval), polling.max_interval)
        self._idle = min(self._idle * polling.backoff_multiplier, polling.max_interval)
        if polling.jitter:  # of polls only: a due time is no matter of chance
            moved = poll * (1 + random.uniform(-JITTER, JITTER))  # noqa: S311 - jitter, no secret
            poll = min(moved, polling.max_interval)
        if due_in is None:
            return poll
        if due_in <= 0:
            self._signals.lease_suspect()
            return polling.min_interval
        # By the server's clock, when it began; and the next question will take as long to get there.
        due_at = asked + due_in + GUARD
        left = due_at - time.monotonic()
        if left > LONG:
            self._approaches = True
            return min(left - APPROACH, poll)
        if not self._approaches:
            return max(left, 0)
        self._approaches, self._due_at = False, due_at
        return max(left - COARSE, 0)
