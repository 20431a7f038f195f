"""A worker whose services make passes only when a test asks: none of them has a loop."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Final

from pg_scheduler.database.queries import names_by_text
from pg_scheduler.errors import DatabaseUnavailableError, PoolClosedError
from pg_scheduler.events import Event, JobStarted
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.scheduler.runtime import Runtime
from pg_scheduler.schedules.planner import Planner
from pg_scheduler.statistics.service import StatisticsWriter
from pg_scheduler.steps.attempt import AttemptSteps
from pg_scheduler.testing.attempt_bound import AttemptBound
from pg_scheduler.testing.expected import NamingScheduler
from pg_scheduler.worker.claimer import Claimer
from pg_scheduler.worker.completer import Completer
from pg_scheduler.worker.executor import Executor
from pg_scheduler.worker.heartbeat import Heartbeat
from pg_scheduler.worker.in_flight import Attempt, Revocation
from pg_scheduler.worker.keeper import LeaseKeeper
from pg_scheduler.worker.lease import RENEWALS_PER_LEASE
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.progress_writer import ProgressWriter
from pg_scheduler.worker.service import Service
from pg_scheduler.worker.vacuum import Vacuum
from pg_scheduler.worker.worker_rows import NextInstants

POLL_INTERVAL_S: Final = 0.2
"""Seconds of real time between two checks for cancellations and new jobs while attempts run."""

MAX_LOCKED_S: Final = 10.0
"""Seconds of real time for which an outcome may wait for a lock, which the test itself may hold."""

MAX_FAILED_PASSES: Final = 10
"""Passes in succession that may fail because the database is unavailable."""


step_calls: Final[ContextVar[Counter[object]]] = ContextVar("pg_scheduler_step_calls")
"""The number of calls by the function of steps, for a test that counts them."""


class NotingSteps(AttemptSteps):
    """Counts the calls of the functions of steps, and never waits in memory for an attempt of a step."""

    # Every wait suspends the job, so that it passes on the virtual clock of the test.
    in_place_wait_s = 0.0

    @contextmanager
    def _calling(self, name: str, func: Callable[..., Any]) -> Iterator[None]:
        """Count a call of the function of a step, which the block makes."""
        calls = step_calls.get(None)
        if calls is not None:
            calls[func] += 1
            # A step in a thread calls a wrapper of the plain function. Without a wrapper, this counts under
            # None, which no test reads.
            calls[getattr(func, "__wrapped__", None)] += 1
        with super()._calling(name, func):
            yield


class NotingExecutor(Executor):
    """Notes the attempts that get a slot.

    An attempt that never suspends may have ended, and be in flight no more, when the pass of the claimer
    ends.
    """

    def __init__(self, node: Node, completer: Completer, progress: ProgressWriter) -> None:
        super().__init__(node, completer, progress)
        self.claimed: Final[list[Attempt]] = []

    def take_slot(self, claim: Claim, measured_for: int = 0) -> Attempt:
        """Reserve a slot for a claimed job, and note the attempt."""
        attempt = super().take_slot(claim, measured_for)
        self.claimed.append(attempt)
        return attempt


class VirtualClaimer(Claimer):
    """A claimer that makes no pass at once for a job that is due later.

    The virtual clock stands still until the passes are over, so the job would not be due by then either.
    """

    def _next_delay(self, sent_at: float, due_in: float | None) -> float:
        """Return the seconds until the next claim: never 0 if the next job is due later."""
        delay_s = super()._next_delay(sent_at, due_in)
        # By the real clock, such a job may be due by now.
        is_due_later = due_in is not None and due_in > 0
        if is_due_later:
            return max(delay_s, self._polling.min_interval)
        return delay_s


class ManualRuntime(Runtime):
    """The parts of one worker, without their loops."""

    executor_class = NotingExecutor
    claimer_class = VirtualClaimer
    executor: NotingExecutor

    jobs_started = 0
    """How many jobs were claimed and started."""
    last_started: str | None = None
    """The id of the job that was started last."""
    is_dead = False
    """Whether the worker has crashed: nothing of it is written any more."""

    _locked_since: float | None = None
    """Since when an outcome has waited for a lock, in real time; None if none waits."""
    _bound: AttemptBound | None = None
    """What ends the drain that runs; None for nothing."""
    renewed_at: datetime | None = None
    """When the lease was renewed last, by the virtual clock; None before that, and if it may be lost."""

    async def start(self, announce: Callable[[], None]) -> None:
        """Set up every part without its loop, and announce the worker.

        The lease keeper stays off, because its thread works in real time.
        """
        self.executor.has_jitter = False
        # The passes call the chunks, since timers work in real time.
        self.executor.chunks.closes_by_itself = False
        # No part waits between two passes: the virtual clock does not move meanwhile.
        self.rescuer.answer_timeout_s = 0.0
        self.unblocker.gap_s = self.feeder.gap_s = self.feeder.rest = 0.0
        self.sequencer.gap_s = self.sequencer.rest = 0.0
        for part in self.parts:
            if isinstance(part, Service):
                await part.prepare()
        await self.pass_of(self.listener)
        announce()

    async def stop(self) -> None:
        """Stop the parts in reverse order: release what runs, write every result, deregister the worker."""
        try:
            for part in reversed(self.parts):
                if isinstance(part, Service):
                    await part.drain()
                elif not isinstance(part, LeaseKeeper):
                    await part.stop()
        finally:
            await self.node.store.connections.release_held()

    async def pass_of(self, service: Service) -> float:
        """Make one pass, and repeat it some times while the database is unavailable.

        The last pass raises its error.
        """
        for _ in range(MAX_FAILED_PASSES - 1):
            try:
                return await service.run_once()
            except PoolClosedError:  # it stays closed
                raise
            except DatabaseUnavailableError:
                continue
        return await service.run_once()

    async def maintain(self) -> None:
        """Let every service that does maintenance do what it has to do now, the rescuer a second time.

        The first pass of the rescuer requests heartbeats from suspect workers. The second pass reclaims the
        jobs of the workers that made no heartbeat.
        """
        # The other methods make the passes of the claimer, the completer, the heartbeat and the planner.
        # `TestScheduler` makes those of the vacuum, which has an interval of its own. The statistics are
        # written when the worker stops.
        without_maintenance = (Claimer, Completer, Heartbeat, Planner, StatisticsWriter, Vacuum)
        # Unless a scan of the jobs is requested, a pass of the rescuer may only look at the liveness locks.
        self.rescuer.scan_jobs()
        for part in (*self.parts, self.rescuer):
            if isinstance(part, Service) and not isinstance(part, without_maintenance):
                await self._pass_while_behind(part)

    async def renew(self, now: datetime) -> None:
        """Renew the lease, unless that is not necessary yet."""
        if self.renewed_at is None or now >= self.renewed_at + timedelta(seconds=self.renewal_interval_s):
            await self.pass_of(self.heartbeat)
            self.renewed_at = now

    @property
    def renewal_interval_s(self) -> float:
        """Seconds between two renewals of the lease."""
        return self.node.config.lease_seconds / RENEWALS_PER_LEASE

    async def plan(self) -> bool:
        """Enqueue the jobs of all due fire times; return whether there were any."""
        previous_count = self.planner.jobs_planned
        if self.node.config.plans:
            await self._pass_while_behind(self.planner)
        return self.planner.jobs_planned > previous_count

    async def run_due(self, bound: AttemptBound, *, most: int | None = None) -> int:
        """Run due jobs until none is left, or until ``most`` were started; return how many were started.

        Raises:
            RuntimeError: There are more attempts than the bound allows.
            TimeoutError: No attempt has ended in time.
        """
        previous_count = self.jobs_started
        self._bound = bound
        self.unblocker.request_scan()
        await self._pass_while_behind(self.unblocker)
        self.claimer.rescan()
        while True:
            await self._feed()
            started_count = self.jobs_started - previous_count
            await self._claim(None if most is None else most - started_count)
            # As long as attempts run, their slots may become free for other jobs.
            if await self._wait_for_an_end():
                continue
            # No attempt runs any more. What is done now may make further jobs due.
            has_more = await self._write_results()
            if not has_more:
                has_more = await self._feed()
            # A claim may have written completions, for which the unblocker has to check limits.
            if not has_more and not self.unblocker.has_ends_to_check:
                return self.jobs_started - previous_count
            # While a result cannot be written, this loop must not block the event loop.
            await asyncio.sleep(0)
            await self._pass_while_behind(self.unblocker)
            self.claimer.rescan()

    async def _feed(self) -> bool:
        """Move jobs of tenants and sequences to the claim index; return whether there were any."""
        if not self.node.config.runs_jobs:
            return False
        has_moved, is_behind = False, True
        while is_behind:
            is_behind = await self.pass_of(self.feeder) <= 0
            has_moved = has_moved or self.feeder.has_moved
        self.sequencer.wake()
        is_behind = True
        while is_behind:
            is_behind = await self.pass_of(self.sequencer) <= 0
            has_moved = has_moved or self.sequencer.has_moved
        if has_moved:
            self.claimer.rescan()
        return has_moved

    async def _claim(self, most: int | None) -> None:
        """Claim jobs for the free slots, one by one, but at most so many; None for no maximum."""
        previous_count = self.jobs_started
        while self.node.config.runs_jobs and self.executor.room and not self.is_dead:
            if most is not None and self.jobs_started - previous_count >= most:
                return
            # The lease ends in real time, which the renewals by the virtual clock do not follow.
            if not self.node.lease.is_trusted:
                await self.pass_of(self.heartbeat)
            self.executor.claimed.clear()
            delay_s = await self.pass_of(self.claimer)
            if self.executor.claimed:
                await self._start(self.executor.claimed[-1])
                self.claimer.rescan()
            # The pass has found no job, and has no reason to make another one at once.
            elif delay_s > 0:
                return

    async def _start(self, attempt: Attempt) -> None:
        """Let a claimed job start, unless its limits block it."""
        await self._pass_while_behind(self.admission)
        # The event loop starts the task of the attempt now.
        await asyncio.sleep(0)
        # Without a task, a limit has blocked the job. The limit may have got room meanwhile.
        if attempt.task is None:
            await self._pass_while_behind(self.unblocker)
        else:
            self.jobs_started += 1
            self.last_started = attempt.claim.job_id
            if self._bound is not None:
                self._bound.count(attempt.claim)

    async def _wait_for_an_end(self) -> bool:
        """Wait until an attempt has ended, or for the poll interval; return whether attempts ran."""
        claims_by_task = {
            attempt.task: attempt.claim
            for attempt in self.node.in_flight.attempts.values()
            if attempt.task is not None
        }
        if not claims_by_task:
            return False
        # As long as a slot is free, the claims before this one have left no due job that could join a chunk.
        if self.executor.free:
            self.executor.chunks.call_open()
        # A job that runs may wait for the result of another job, which has to be written for that.
        if self.node.config.max_concurrent_jobs > 1:
            await self._write_results()
        ended_tasks, _ = await asyncio.wait(
            claims_by_task, timeout=POLL_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
        )
        if self._bound is not None:
            if ended_tasks:
                self._bound.note_end()
            else:
                self._bound.check_wait(list(claims_by_task.values()))
        # An attempt that runs may wait for a cancellation, which the heartbeat reads, or for a new job.
        if not ended_tasks and not self.is_dead:
            await self.pass_of(self.heartbeat)
            await self.plan()
            self.claimer.rescan()
        return True

    async def _write_results(self) -> bool:
        """Write all results; return whether there were any.

        A result that waits for a lock may be left to the next call, up to ``MAX_LOCKED_S``.
        """
        if self.is_dead or not self.node.in_flight.unwritten():
            return False
        await self._pass_while_behind(self.completer)
        # Results whose rows are locked by other transactions are written later.
        delay_s = self.node.result_buffer.late.next_turn_in()
        if delay_s is None:
            self._locked_since = None
            return True
        now = time.monotonic()
        if self._locked_since is None:
            self._locked_since = now
        if now > self._locked_since + MAX_LOCKED_S:
            raise await self.completer.unwritten_error(None)
        await asyncio.sleep(delay_s)
        return True

    async def _pass_while_behind(self, service: Service) -> None:
        """Make passes of a service until it has nothing left to do now."""
        # Between two passes over the jobs of a pause that has ended, the pause watcher makes a gap.
        while await self.pass_of(service) <= 0 or (service is self.pauses and self.pauses.is_renewing):
            pass

    def die(self) -> None:
        """End every attempt without a result."""
        self.is_dead = True
        self.node.in_flight.revoke_all(Revocation.SHUTDOWN)

    async def close_dead(self) -> None:
        """Close what a dead worker has left open, without writing anything."""
        await self.executor.stop()
        await self.relay.drain()
        await self.listener.drain()


class ManualScheduler(NamingScheduler):
    """A Scheduler whose ``start()`` starts no loops. `TestScheduler` makes the passes."""

    _runtime_class = ManualRuntime
    _steps_class = NotingSteps
    _guards_copies = False

    _dead_runtime: ManualRuntime | None = None
    """The parts of a worker that has crashed, until they are closed."""

    def count_runs(self) -> Counter[str]:
        """Return a counter of attempts by name, which the attempts from now on update."""
        runs: Counter[str] = Counter()

        def count(event: Event) -> None:
            """Count an attempt under each name by which a test may ask for it."""
            if isinstance(event, JobStarted):
                runtime = self._parts.runtime
                attempt = None if runtime is None else runtime.node.in_flight.attempts.get(event.job_id)
                function_name = event.job_name if attempt is None else attempt.claim.function
                task = self._parts.tasks.resolve(function_name)
                task_name = function_name if task is None else task.name
                # A test may use the name of the job, of its function or of the task. Equal names count once.
                runs.update({event.job_name, function_name, task_name})

        self.subscribe(count, JobStarted)
        return runs

    async def statement_names(self) -> dict[str, str]:
        """Return the names of the statements of the library by their texts."""
        return names_by_text(await self._parts.store.statements.schema())

    async def manual(self) -> ManualRuntime:
        """Return the parts of the worker. If it has stopped or crashed, start a new one."""
        await self._close_dead()
        if not self.is_running:
            await self.start()
        runtime = self._parts.runtime
        assert isinstance(runtime, ManualRuntime)  # noqa: S101 - _runtime_class
        return runtime

    async def shutdown(self) -> None:
        """Stop the worker; see `Scheduler`."""
        try:
            await self._close_dead()
        finally:
            await super().shutdown()

    async def _close_dead(self) -> None:
        """Close the parts of a worker that has crashed, if they are still open."""
        runtime, self._dead_runtime = self._dead_runtime, None
        if runtime is not None:
            await runtime.close_dead()

    @property
    def is_called_by_job(self) -> bool:
        """Whether the caller is a job that this worker runs."""
        return self._parts.runtime is not None and self._parts.runtime.runs_the_caller()

    def crash(self) -> None:
        """Let the worker die; the next one has another id.

        Raises:
            CancelledError: The caller is a job of this worker.
        """
        runtime, is_called_by_job = self._parts.runtime, self.is_called_by_job
        # No worker runs.
        if not isinstance(runtime, ManualRuntime):
            return
        self._parts.life.runtime, self._parts.life.is_running = None, False
        self._parts.life.worker_id = self._new_worker_id()
        runtime.die()
        self._dead_runtime = runtime
        self._parts.outbox.detach()
        if is_called_by_job:
            raise asyncio.CancelledError("the worker has crashed")

    async def reclaim_blocked(self) -> None:
        """Return the jobs of this worker to pending, as another worker does after the end of its lease."""
        await self._parts.store.workers.rescue(
            self._parts.config.heartbeat_threshold,
            suspects=[self.worker_id],
            max_crashes=self._parts.config.max_crashes,
        )

    @property
    def max_loop_block(self) -> float:
        """Seconds for which the lease keeper renews the lease while the event loop is blocked."""
        return max(self._parts.config.max_loop_block, self._parts.config.lease_seconds)

    @property
    def vacuum_interval(self) -> timedelta | None:
        """The time between two passes of the vacuum; None if it is disabled."""
        config = self._parts.config
        return timedelta(minutes=config.vacuum.interval_minutes) if config.vacuum_enabled else None

    async def next_instants(self) -> NextInstants:
        """Return the seconds until jobs are due, and until jobs, leases and pauses of tasks end."""
        return await self._parts.store.workers.next_instants(self.worker_id)

    def close_connections(self) -> int:
        """Close every connection of the pool from this side; return their number."""
        connections = self._parts.store.connections.open_connections()
        for connection in connections:
            connection.terminate()
        return len(connections)
