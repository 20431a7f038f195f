"""Claim jobs when they are due, as many as there are free slots.

The claimer sleeps until the next job is due by the database's clock, until a signal wakes it (a job was
scheduled, a slot became free, a notification arrived), or until the fallback poll, whichever comes first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar, Final, Protocol

from pg_scheduler.database.faults import REFUSALS, ROW_ERRORS, is_lock_timeout, is_refusal, is_timeout
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import JobExpired, JobFailed, JobsReclaimed
from pg_scheduler.events.types import EXPIRED
from pg_scheduler.jobs.outcome import RELEASE
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.worker.claims import FROM_THE_START, ClaimPosition, ExchangeResult
from pg_scheduler.worker.cursor import ClaimCursor
from pg_scheduler.worker.executor import Executor
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.pacing import ClaimSize, Pacing
from pg_scheduler.worker.service import NEVER, Service

ISOLATED_FROM: Final = 2
"""The number of crashes from which a job counts as crashed, unless ``max_crashes`` requires 1. After one
crash, jobs may still run together, because the machine may have been the cause."""

COUNT_INTERVAL_S: Final = 1.0
"""Seconds between two claims that count the index entries that they read: a count costs a 20th of a claim."""


class LimitedClaims(Protocol):
    """What starts the claims of limited tasks; see ``admission/admission.py``."""

    def keep_limited(self, claims: list[Claim]) -> list[Claim]:
        """Reserve slots for the claims of limited tasks, and return the others."""


class Claimer(Service):
    """Claim due jobs for free slots."""

    name: ClassVar[str] = "claimer"
    yields_between_passes: ClassVar[bool] = False
    """After a full claim, if as many slots are free again, the next claim is sent before the jobs of this one
    start. So the database and the jobs work at the same time."""
    max_failed_claims = 5
    """How many claims in succession may fail although no row is found that causes the error. Another worker
    may have locked such a row in order to quarantine it."""

    def __init__(self, node: Node, executor: Executor, admission: LimitedClaims) -> None:
        super().__init__(node.events)
        max_crashes, polling = node.config.max_crashes, node.config.polling
        self._claims = node.store.claims
        self._executor = executor
        self._admission = admission
        self._result_buffer = node.result_buffer
        self._in_flight = node.in_flight
        self._lease = node.lease
        self._names = node.routing.names
        self._known_pauses = node.known_pauses
        self._tasks = node.tasks
        self._worker_id = node.worker_id
        self._signals = node.signals
        self._clock = node.clock
        self._size = ClaimSize(node.config.batch_claim_limit, node.config.max_concurrent_jobs)
        self._polling = polling
        # Crash number ``max_crashes`` fails a job. So a job runs alone after the crash before, or earlier.
        self.isolated_from: Final = (
            ISOLATED_FROM if max_crashes is None else min(max(max_crashes - 1, 1), ISOLATED_FROM)
        )
        """The number of crashes from which jobs run one at a time."""
        self._pacing = Pacing(polling)
        self.cursor: Final = ClaimCursor(polling.max_interval)
        """Where claims begin."""
        # The names that the last claim could claim.
        self._searched_names: Sequence[str] = ()
        # Whether the last claim left crashed jobs, because one ran.
        self._left_crashed_jobs = False
        self._has_stopped = False
        # Whether rows may be claimed for this worker by a claim whose answer it never received.
        self._may_have_unacknowledged = False
        # How many claims in succession have failed although no row was found that causes the error.
        self._failed_claims = 0
        # Whether a claim timed out, so that a due job may be too large to be read in time.
        self._has_timed_out = False
        self._refused_claims = node.refused_claims
        self._lock_looks = node.lock_looks
        self._meter = node.meter
        self._claiming = asyncio.Lock()
        # Whether a notification came, or the next job is due.
        self._expects_job = False
        # Whether the last claim was one by ``claim_jobs``.
        self._claimed_cheaply = False
        # From when on the next claim has to be an exchange, by the monotonic clock.
        self._exchange_at = 0.0
        # When a claim from the start next counts the index entries that it reads.
        self._count_at = 0.0
        self.next_due_at: float | None = None
        """When the next job is due, by the monotonic clock, as the last claim found; None if none is."""

    async def prepare(self) -> None:
        """Allow claims."""
        self._has_stopped = False

    async def run_once(self) -> float:
        """Claim due jobs once; return the seconds until the next claim."""
        async with self._claiming:  # two passes at once would count the same free slots
            if self._has_stopped:
                return NEVER
            if not self._lease.is_trusted:  # other workers could get the jobs while they run here
                # No claim takes the completions along now, so the completer has to write them.
                self._result_buffer.claims_follow = False
                self._signals.results_waiting()
                self._signals.lease_suspect()
                return self._polling.min_interval
            await self._known_pauses.refresh()
            try:
                if self._has_timed_out:
                    # A due job may be too large to be read before the time limit of a statement.
                    await self._quarantine_oversized()
                delay = await self._claim()
            except (*ROW_ERRORS, *REFUSALS) as error:
                # The row of one job may be the reason: it cannot be read, or the table refuses its claim. Any
                # other SchemaError means that the tables are wrong.
                if not (isinstance(error, ROW_ERRORS) or is_refusal(error)):
                    raise
                self._failed_claims += 1
                if self._failed_claims > self.max_failed_claims:
                    raise
                await self._quarantine()
                return self._polling.min_interval
            except DatabaseUnavailableError as fault:
                if is_lock_timeout(fault) and await self._leave_out_waiting():
                    return self._polling.min_interval
                self._size.reset()  # a smaller claim may be answered in time
                self._has_timed_out = self._has_timed_out or is_timeout(fault)
                raise
            self._failed_claims = 0
            return delay

    async def drain(self) -> None:
        """Refuse all further claims, and make the completer write results without waiting for one."""
        async with self._claiming:
            self._has_stopped = True
            self._result_buffer.claims_follow = False
            self._signals.results_waiting()

    def announce(self, due: datetime | None = None) -> None:
        """Claim soon, because a job was announced that is due at this time; None if the time is unknown.

        Claims begin at a position in the order of the due times, which is the cursor. The job may precede
        that position, so the position moves back.
        """
        if due is not None:
            self.cursor.return_to(due)
        # While the cursor is kept, the head scanner searches for a job whose due time is unknown.
        elif not self.cursor.is_kept:
            self.cursor.reset()
        self._expects_job = True
        self.wake()

    def rescan(self) -> None:
        """Claim from the earliest due time on, since any job may precede the position where claims begin."""
        self._start_over()
        self.wake()

    def reconcile_claims(self) -> None:
        """Let the next claim begin with a release of the jobs whose claims this worker never received.

        They are claimed for it in their rows, because the answer to a claim was lost.
        """
        self._may_have_unacknowledged = True
        self.wake()

    async def _claim(self) -> float:
        """Claim jobs and start them, if slots are free; return the seconds until the next claim."""
        limit = min(self._executor.room - self._executor.expected, self._size.limit)
        if limit <= 0:
            # A claim also writes completions. None follows now, so the completer has to write them.
            if self._result_buffer.has_results:
                self._signals.results_waiting()
            return self._polling.semaphore_full_interval
        if self._may_have_unacknowledged:
            await self._release_unacknowledged()
        await self._pacing.reach_due_time()
        had_crashed_job = self._in_flight.has_crashed_job
        names = self._claimable_names()
        since = self._next_position(names, has_crashed_job=had_crashed_job)
        is_at_start = since is FROM_THE_START
        # The lease may be renewed while the claim is under way, but such a renewal may not reach the rows of
        # this claim. So they are trusted only as long as the lease that the worker has now.
        sent_at, trusted_until = time.monotonic(), self._lease.trusted_until
        self._executor.expected += limit
        try:
            answer = await self._fetch(names, limit, since, sent_at, crashed=not had_crashed_job)
            if answer.at is not None:
                self._clock.read(answer.at, sent_at)
            # Expired jobs count too: a claim with as many jobs as it asked for may have left further ones.
            claims = [*answer.jobs, *answer.expired] if answer.expired else answer.jobs
            is_full = len(claims) == limit
            self._measure(len(claims), limit, sent_at)
            self._size.adapt(limit, len(claims))
            jobs = await self._release_paused(answer.jobs, sent_at)
        finally:
            # Nothing is awaited from here on until the jobs have their slots.
            self._executor.expect_fewer(limit)
        # After a full claim, the next one follows as soon as a slot is free, and takes completions along.
        self._result_buffer.claims_follow = is_full and self.is_running
        # The next claim is sent before the jobs of a full claim start. But if few slots are free, that claim
        # would be small. So the jobs start first: those that never wait end at once, and free their slots for
        # a larger claim.
        starts_now = not is_full or self._executor.free < 2 * limit
        await self._start(jobs, trusted_until, starts_now=starts_now)
        if claims:
            self._pacing.reset_polls()
        # No claim follows at once that would write the completions, so the completer has to write them.
        if not is_full:
            self._signals.results_waiting()
        is_done = self._move_cursor(answer, claims, is_full=is_full, is_at_start=is_at_start)
        # A claim reads several crashed jobs but claims one, so it may have left jobs for which it had room.
        if not is_done or answer.crashed is not None:
            return 0  # seconds, so the next claim follows at once
        delay = self._next_delay(sent_at, answer.due_in)
        # This claim left out crashed jobs, because one was in flight. If that one has ended meanwhile, the
        # next crashed job need not wait for the usual delay.
        if had_crashed_job and not self._in_flight.runs_crashed_job:
            # No crashed job is claimed before the result of the last one is written.
            is_result_unwritten = self._in_flight.has_crashed_job
            if is_result_unwritten:
                return min(delay, self._polling.min_interval)
            return 0
        return delay

    async def names_to_claim(self) -> Sequence[str]:
        """Return the names of the jobs that this worker may claim now by another statement than its own.

        None is among them while claims have stopped, or while some jobs have to be left out. Jobs with limits
        pass through admission control, and so through a claim.
        """
        if self._has_stopped or not self._lease.is_trusted or self._refused_claims:
            return ()
        await self._known_pauses.refresh()
        names, limited = self._names(), self._tasks.lists.limited
        return [name for name in names if name not in limited] if limited else names

    async def start_claimed(
        self, jobs: list[Claim], sent_at: float, trusted_until: float, *, expected: int
    ) -> None:
        """Start jobs that another statement has claimed.

        ``sent_at`` is when it was sent, and ``trusted_until`` how long the lease was valid then, by the
        monotonic clock. ``expected`` is for how many jobs the executor keeps slots free until they start.
        """
        try:
            unpaused_jobs = await self._release_paused(jobs, sent_at)
        finally:
            self._executor.expect_fewer(expected)
        await self._start(unpaused_jobs, trusted_until, starts_now=True)

    async def _start(self, jobs: list[Claim], trusted_until: float, *, starts_now: bool) -> None:
        """Start claimed jobs, or release them if the lease may have expired since they were claimed."""
        if trusted_until < time.monotonic():
            # The event loop was blocked after the answer had come: other workers may have the jobs by now.
            for job in jobs:
                self._result_buffer.put(job, RELEASE)
        elif jobs:
            await self._submit(jobs, starts_now=starts_now)

    def _measure(self, claim_count: int, limit: int, sent_at: float) -> None:
        """Count a claim by how full it was, and measure how long its answer took, for the statistics.

        ``sent_at`` is a time of the monotonic clock.
        """
        if self._meter is None:
            return
        if claim_count == limit:
            fill = "full"
        elif claim_count:
            fill = "part"
        else:
            fill = "empty"
        self._meter.count("claims", fill)
        self._meter.measure("exchange_duration", "", time.monotonic() - sent_at)

    def _claimable_names(self) -> Sequence[str]:
        """Return the names of jobs to claim. The list is the same object until it changes."""
        return self._refused_claims.claimable(self._names())

    async def _release_paused(self, jobs: list[Claim], sent_at: float) -> list[Claim]:
        """Release claimed jobs of tasks that were paused during a claim that took long; return the others.

        The network may have delayed the claim or its answer, or the event loop was blocked in between. A
        claim that was sent less than a second ago, at the monotonic time ``sent_at``, is not checked.
        """
        self._known_pauses.mark_stale_since(sent_at)
        if not jobs or self._known_pauses.is_fresh():
            return jobs
        try:
            await self._known_pauses.refresh()
        except BaseException:  # whatever it was: these jobs are claimed, and none of them starts
            self._may_have_unacknowledged = True
            raise
        unpaused_names = frozenset(self._names())
        for job in jobs:
            if job.function not in unpaused_names:
                self._result_buffer.put(job, RELEASE)
        return [job for job in jobs if job.function in unpaused_names]

    async def _submit(self, jobs: list[Claim], *, starts_now: bool) -> None:
        """Start claimed jobs, now or once the next claim is sent; limited ones when they are admitted."""
        unlimited_jobs = self._admission.keep_limited(jobs) if self._tasks.lists.limited else jobs
        # Of the jobs of a task with a share, only some of each tenant can be claimed at a time, so that the
        # tenants take turns. When jobs of such a task are claimed, others can follow.
        shared = self._tasks.lists.shared
        if shared and not shared.keys().isdisjoint(job.function for job in jobs):
            self._signals.shared_claimed()
        self._executor.submit_all(unlimited_jobs, soon=not starts_now)
        if not self._signals.notifications_up.is_set:
            self._signals.heartbeat_requested()  # only heartbeats find out then which jobs are cancelled
        if starts_now:
            await asyncio.sleep(0)  # the jobs start before this pass ends

    def _next_position(self, names: Sequence[str], *, has_crashed_job: bool) -> ClaimPosition:
        """Return where the next claim begins: at the start if earlier claims left out jobs that it may claim.

        Those are jobs whose names this worker did not claim before, and crashed jobs, which are left out
        while another crashed job runs here (``has_crashed_job``).
        """
        # The list of names is the same object until a name changes.
        have_names_changed = names is not self._searched_names
        if have_names_changed and self._searched_names:  # a module was imported: its schedules may be due
            self._signals.schedules_changed()
        if have_names_changed or (self._left_crashed_jobs and not has_crashed_job):
            self._start_over()
        self._searched_names, self._left_crashed_jobs = names, has_crashed_job
        return self.cursor.since()

    async def _fetch(
        self, names: Sequence[str], limit: int, since: ClaimPosition, sent_at: float, *, crashed: bool
    ) -> ExchangeResult:
        """Claim by ``claim_jobs`` if a job is expected and nothing else is to do, else by ``exchange_jobs``.

        ``exchange_jobs`` costs twice as much. It also writes completions, claims crashed jobs, expires late
        ones and checks the liveness locks of other workers.
        """
        # The cheaper statement can only claim from the start of the index, and leaves out no jobs.
        self._claimed_cheaply = (
            self._expects_job
            and sent_at < self._exchange_at
            and since is FROM_THE_START
            and not self._result_buffer.has_completions
            and not self._refused_claims
        )
        self._expects_job = False
        try:
            if self._claimed_cheaply:
                return await self._claims.claim(
                    self._worker_id, names, limit, crashed=crashed, isolated_from=self.isolated_from
                )
            # Cheaper claims may follow until then.
            self._exchange_at = sent_at + self.cursor.max_age_s
            # The entries are counted where there may be many that no claim takes: at the start of the index.
            counts = since is FROM_THE_START and sent_at >= self._count_at
            if counts:
                self._count_at = sent_at + COUNT_INTERVAL_S
            return await self._exchange(names, limit, since, crashed=crashed, counts=counts)
        except BaseException:  # whatever it was: results do not wait for the next claim
            # The claim may be committed, although its answer did not come.
            self._may_have_unacknowledged = True
            self._result_buffer.claims_follow = False
            raise

    async def _exchange(
        self, names: Sequence[str], limit: int, since: ClaimPosition, *, crashed: bool, counts: bool
    ) -> ExchangeResult:
        """Write completions and claim jobs by one statement; report what else the answer contains."""
        with self._result_buffer.completions() as completions:
            answer = await self._claims.exchange(
                self._worker_id,
                names,
                limit,
                completed=completions.claims,
                keep=self._result_buffer.keeps_completed,
                since=since,
                after=self.cursor.after,
                crashed=crashed,
                isolated_from=self.isolated_from,
                counts=counts,
                left_out=self._refused_claims.ids(),
            )
            completions.refused = answer.refused
        # Only a claim that has room for further jobs looks at the liveness locks.
        if len(answer.jobs) + len(answer.expired) < limit:
            self._lock_looks.last_at = time.monotonic()
        if answer.silence:
            self._signals.worker_silent()
        reasons: Mapping[str, str] = {}
        try:
            if answer.expired:
                reasons = await self._claims.explain_expiry(self._worker_id, names, answer.expired)
        finally:
            # The claim is committed, so these jobs have expired whether or not their rows say why.
            for expired in answer.expired:
                reason = reasons.get(expired.job_id, EXPIRED)
                self._events.publish(JobExpired(expired.job_id, expired.job_name, expired.attempt, reason))
        if answer.crashed is not None:
            # If the crashed job has expired, no claim has its id.
            crashed_claims = (job for job in answer.jobs if job.job_id == answer.crashed)
            self._in_flight.crashed_claim = next(crashed_claims, None)
        return answer

    def _move_cursor(
        self, answer: ExchangeResult, claims: Sequence[Claim], *, is_full: bool, is_at_start: bool
    ) -> bool:
        """Move the position where claims begin behind what a claim has found.

        Return whether nothing else is left to claim now, so that the claimer may sleep.

        Args:
            answer: The answer to the claim.
            claims: The jobs that it claimed or expired.
            is_full: Whether these are as many as it asked for.
            is_at_start: Whether it began at the start of the index.
        """
        # The start of the index has many entries that no claim takes, so later claims begin behind them.
        if self.cursor.is_crowded(answer.read - len(claims)):
            self.cursor.is_kept = True
            self._signals.head_skipped()
        if is_full:
            self.cursor.advance(claims)
            return False
        if not self.cursor.is_kept:
            # Jobs may lie before the cursor. So the claimer does not sleep before a claim from the start.
            if not is_at_start:
                self.cursor.reset()
            return is_at_start
        # A cheaper claim does not return the server's time. A claim of a crashed job may have left other
        # crashed jobs that are due earlier. In both cases the cursor stays where it is.
        if answer.at is not None and answer.crashed is None:
            due_in = answer.due_in or 0.0
            # A due job that the claim left is locked, or this worker's lease has expired. Both mostly end
            # soon, so the cursor stays before that job until the job is "max_age_s" late.
            left_s = due_in if -self.cursor.max_age_s < due_in < 0 else 0.0
            self.cursor.pass_until(
                answer.at + timedelta(seconds=left_s), is_notified=self._signals.notifications_up.is_set
            )
        return True

    def _start_over(self) -> None:
        """Let the next claim be an exchange from the start of the index, which also claims crashed jobs.

        The claim also counts the index entries that it reads, because there may be many.
        """
        # Both times are in the past by now.
        self._exchange_at = self._count_at = 0.0
        self.cursor.reset()

    async def _release_unacknowledged(self) -> None:
        """Make jobs pending again that were claimed for this worker by a claim whose answer was lost.

        Otherwise they would wait until their leases expire.
        """
        attempts = self._in_flight.unreported()
        # The flag is cleared before the statement, because an attempt that is lost meanwhile sets it again.
        self._may_have_unacknowledged = False
        try:
            job_ids = await self._claims.release_unacknowledged(self._worker_id, attempts)
        except BaseException:  # whatever it was, the jobs may not be released
            self._may_have_unacknowledged = True
            raise
        if job_ids:
            self._events.publish(JobsReclaimed(tuple(job_ids), ()))
            self._start_over()

    async def _quarantine(self) -> bool:
        """Find the due jobs that make every claim fail; return whether there were any.

        Jobs whose rows cannot be read fail. Jobs whose claim the table refuses, or for which a trigger waits
        for a lock, are left out of the next claims.
        """
        self._start_over()
        # The search finds pending jobs only, but the claim that failed may be committed.
        await self._release_unacknowledged()
        names, limit = self._claimable_names(), min(self._executor.free, self._size.limit)
        isolated_from = self.isolated_from if self._in_flight.has_crashed_job else None
        quarantine = await self._claims.quarantine(
            self._worker_id, names, limit, isolated_from=isolated_from, left_out=self._refused_claims.ids()
        )
        for unreadable_job in quarantine.unreadable:
            self._failed_claims = 0
            self._events.publish(JobFailed(*unreadable_job))
        for job_id, job in quarantine.refused.items():
            self._failed_claims = 0
            self._refused_claims.leave_out(job_id, job.name, job.error)
        self._refused_claims.leave_out_waiting(quarantine.waiting)
        return bool(quarantine.unreadable or quarantine.refused or quarantine.waiting)

    async def _leave_out_waiting(self) -> bool:
        """Leave out the due jobs for which a trigger waits for a lock, and return whether there were any.

        Claims skip locked rows. So a claim that waits for a lock waits for one of a trigger, or for one of
        the whole table.
        """
        try:
            return await self._quarantine()
        except DatabaseUnavailableError as fault:
            if not is_lock_timeout(fault):
                raise
            # The whole table is locked, so none of the jobs is the reason.
            return False

    async def _quarantine_oversized(self) -> None:
        """Fail the due jobs that are too large to be read in time, after a claim that timed out.

        The server may have committed that claim nevertheless, because to send such a row takes longer than to
        claim it. So the row is released first, and then the search finds it.
        """
        self._start_over()
        if self._may_have_unacknowledged:
            await self._release_unacknowledged()
        names = self._claimable_names()
        isolated_from = self.isolated_from if self._in_flight.has_crashed_job else None
        failed_jobs, are_left = await self._claims.quarantine_oversized(
            names, self._size.limit, isolated_from=isolated_from
        )
        for job in failed_jobs:
            self._events.publish(JobFailed(*job))
        # Jobs that are left may still be held by the claim that timed out, so the next pass looks once more.
        self._has_timed_out = are_left
        self._may_have_unacknowledged |= are_left

    def _next_delay(self, sent_at: float, due_in: float | None) -> float:
        """Return the seconds until the next claim, and note when the next job is due.

        Args:
            sent_at: When the last claim was sent, by the monotonic clock.
            due_in: Seconds from then until the next job is due; None if the claim found no such job.
        """
        self.next_due_at = None if due_in is None else sent_at + due_in
        # A job that is left out is not part of due_in, and nothing else announces the end of its pause.
        poll = min(self._pacing.next_poll(), self._refused_claims.ends_in)
        if due_in is None:
            return poll
        # A due job that a cheaper claim has left is one that only an exchange can claim. The next claim is an
        # exchange, and follows at once.
        if due_in <= 0 and self._claimed_cheaply:
            return 0
        # The job is due, but was not claimed. Another session has locked its row, or this worker's lease has
        # expired.
        if due_in <= 0:
            self._signals.lease_suspect()
            return self._polling.min_interval
        delay = self._pacing.seconds_until(sent_at + due_in, poll)
        # The next claim is made for this job, and not as a poll in case that something was missed.
        self._expects_job = self._expects_job or delay < poll
        return delay
