"""Build and connect the parts of a worker.

They are built anew at each start, so settings that were changed in between take effect.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pg_scheduler.enqueue.declared_schedules import DeclaredSchedules
from pg_scheduler.enqueue.outbox import Outbox
from pg_scheduler.enqueue.result_waiters import ResultWaiters
from pg_scheduler.enqueue.schedule_jobs import ScheduleJobs
from pg_scheduler.errors import ConnectionRejectedError
from pg_scheduler.events import EventBus, KeeperLost
from pg_scheduler.jobs.context import current
from pg_scheduler.jobs.middleware import Middleware
from pg_scheduler.jobs.model import Worker
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.measure.meter import Meter
from pg_scheduler.settings import SchedulerConfig, VacuumTrigger
from pg_scheduler.status import JobStatus
from pg_scheduler.store.connections.lease import LeaseConnection
from pg_scheduler.store.store import Store
from pg_scheduler.version import __version__
from pg_scheduler.worker.audience import Audience
from pg_scheduler.worker.event_relay import EventRelay
from pg_scheduler.worker.in_flight import InFlight
from pg_scheduler.worker.lease.heartbeat import Heartbeat
from pg_scheduler.worker.lease.keeper import TOO_SMALL, LeaseKeeper
from pg_scheduler.worker.lease.lease import Lease
from pg_scheduler.worker.lease.watchdog import LoopWatchdog
from pg_scheduler.worker.listener import Listener
from pg_scheduler.worker.maintenance.deadline_scanner import DeadlineScanner
from pg_scheduler.worker.maintenance.expirer import Expirer
from pg_scheduler.worker.maintenance.loose_ends import LooseEnds
from pg_scheduler.worker.maintenance.name_reporter import NameReporter
from pg_scheduler.worker.maintenance.pauses import PauseWatcher
from pg_scheduler.worker.maintenance.planner import Planner
from pg_scheduler.worker.maintenance.rescuer import Rescuer
from pg_scheduler.worker.maintenance.statistics_writer import StatisticsWriter
from pg_scheduler.worker.maintenance.vacuum import Vacuum
from pg_scheduler.worker.notifier import Notifier
from pg_scheduler.worker.pipeline.admission import Admission
from pg_scheduler.worker.pipeline.attempt_runner import AttemptRunner
from pg_scheduler.worker.pipeline.claimer import Claimer
from pg_scheduler.worker.pipeline.completer import Completer
from pg_scheduler.worker.pipeline.executor import Executor
from pg_scheduler.worker.pipeline.head import HeadScanner
from pg_scheduler.worker.pipeline.progress_writer import ProgressWriter
from pg_scheduler.worker.pipeline.result_buffer import ResultBuffer
from pg_scheduler.worker.pipeline.unblocker import Unblocker
from pg_scheduler.worker.reporter import Reporter, settings_of
from pg_scheduler.worker.routing import Routing
from pg_scheduler.worker.runners.call import JobExecutor
from pg_scheduler.worker.runners.middleware import MiddlewareChain
from pg_scheduler.worker.server_clock import ServerClock
from pg_scheduler.worker.signals import Signals
from pg_scheduler.worker.supervisor import Part, Supervisor
from pg_scheduler.worker.wiring import Receivers, connect

if TYPE_CHECKING:
    from pg_scheduler.scheduler import Scheduler


class Runtime:
    """The parts of one worker, from start to stop."""

    def __init__(  # noqa: PLR0917 - each is another collaborator, wired once
        self,
        scheduler: Scheduler,
        store: Store,
        events: EventBus,
        cluster_events: EventBus,
        tasks: TaskRegistry,
        periodic: DeclaredSchedules,
        schedule_jobs: ScheduleJobs,
        outbox: Outbox,
        waiters: ResultWaiters,
        config: SchedulerConfig,
        policy: RetryPolicy,
        executors: Mapping[str, JobExecutor],
        worker_id: str,
        meter: Meter | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._store = store
        self._events = events
        self._outbox = outbox
        self.config = config
        self._worker_id = worker_id
        self.signals = signals = Signals()
        self.lease = lease = Lease(config.lease_seconds, config.max_loop_block)
        deleted: Counter[JobStatus] = Counter()
        results = ResultBuffer(
            events,
            signals,
            keeps_completed=not _deletes_completed(config),
            deleted=deleted,
            meter=meter,
        )
        self.in_flight = in_flight = InFlight(results)
        progress = ProgressWriter(store.progress, events, in_flight, worker_id)
        self.completer = Completer(
            store,
            events,
            worker_id,
            results,
            progress,
            signals,
            waiters.failures,
            flush_timeout=config.shutdown_timeout,
        )
        runner = AttemptRunner(
            store.locks,
            events,
            tasks,
            progress,
            scheduler=scheduler,
            stop_grace=config.stop_grace,
            max_crashes=config.max_crashes,
            executors=executors,
            meter=meter,
            middleware=MiddlewareChain(middleware) if middleware else None,
        )
        self.executor = Executor(
            runner,
            events,
            tasks,
            results,
            self.completer,
            progress,
            in_flight,
            policy,
            signals,
            slots=config.max_concurrent_jobs,
            shutdown_timeout=config.shutdown_timeout,
            stop_grace=config.stop_grace,
            max_result_bytes=config.max_result_bytes,
            meter=meter,
        )
        self.unblocker = unblocker = Unblocker(store.limits, events, results, in_flight, tasks, signals)
        self.admission = admission = Admission(
            store.limits, events, self.executor, results, lease, tasks, worker_id, unblocker
        )
        audience = Audience()
        clock = ServerClock(signals.clock_stepped)
        self.routing = Routing(tasks, executors, config.only, config.skip, worker_id=worker_id)
        self.watchdog = LoopWatchdog(events, in_flight)
        self.reporter = Reporter(
            store.connections,
            lease,
            signals,
            self.routing,
            watchdog=self.watchdog,
            runs_jobs=config.runs_jobs,
        )
        worker = _worker(worker_id, config, tasks)
        self.heartbeat = Heartbeat(
            store, events, in_flight, worker, lease, signals, clock, audience, self.reporter
        )
        relay = EventRelay(store, events, cluster_events, worker_id, audience)
        keeper = LeaseKeeper(
            LeaseConnection(store.workers, store.connections, worker_id, lease.seconds),
            events,
            in_flight,
            lease,
            self.watchdog,
            signals,
            self.reporter,
            limit_s=config.max_loop_block,
        )
        self.notifier = Notifier(events, outbox, signals)
        self.listener = Listener(
            store,
            events,
            worker_id,
            signals,
            own_mark=outbox.mark,
            on_events=relay.receive,
            on_missed=relay.missed,
            on_result=waiters.announce,
            meter=meter,
        )
        self.rescuer = Rescuer(
            store.workers,
            events,
            worker_id,
            lease,
            outbox,
            signals,
            heartbeat_threshold=config.heartbeat_threshold,
            max_crashes=config.max_crashes,
            namesakes=None if config.identity is None else (config.identity, platform.node()),
            lock_scan_interval_s=None if config.runs_jobs else config.polling.max_interval,
        )
        expirer = Expirer(store.jobs, events, tasks, worker_id)
        scanner = DeadlineScanner(
            store.workers,
            events,
            signals,
            NameReporter(store.jobs, events, tasks, worker_id) if config.runs_jobs else None,
            LooseEnds(store.consequences, store.dependencies, worker_id, in_flight.unreported),
            lease=lease.seconds,
            heartbeat_threshold=config.heartbeat_threshold,
        )
        self.planner = Planner(store, events, periodic, tasks, schedule_jobs, outbox, signals)
        pauses = PauseWatcher(store.pauses, events, self.routing, signals)
        self.claimer = Claimer(
            store.claims,
            events,
            self.executor,
            admission,
            results,
            in_flight,
            lease,
            self.routing,
            worker_id,
            signals,
            clock,
            batch=config.batch_claim_limit,
            max_crashes=config.max_crashes,
            polling=config.polling,
            meter=meter,
        )
        head = HeadScanner(
            store.claims,
            events,
            self.claimer.cursor,
            in_flight,
            self.routing.names,
            signals,
            isolated_from=self.claimer.isolated_from,
        )
        vacuum = Vacuum(store, events, config.vacuum, worker_id, deleted=deleted)
        statistics = [] if meter is None else [StatisticsWriter(store.statistics, events, meter, worker_id)]
        # In the order of their start. Stopped backwards, claims end first and heartbeats last.
        self.parts: list[Part] = [
            self.heartbeat,
            *statistics,  # which need the row of the worker
            relay,
            *([keeper] if store.connections.can_open_lease_connection else []),
            *([vacuum] if config.vacuum_enabled else []),
            progress,
            unblocker,
            self.completer,
            self.executor,
            admission,
            self.notifier,
            self.listener,
            self.rescuer,
            expirer,
            scanner,
            *([self.planner] if config.plans else []),
            pauses,
            *([head, self.claimer] if config.runs_jobs else []),
        ]
        self._supervisor = Supervisor(self.parts)
        self.receivers = Receivers(
            claimer=self.claimer,
            completer=self.completer,
            expirer=expirer,
            head=head,
            heartbeat=self.heartbeat,
            outbox=outbox,
            pauses=pauses,
            planner=self.planner,
            relay=relay,
            rescuer=self.rescuer,
            scanner=scanner,
            supervisor=self._supervisor,
            unblocker=unblocker,
        )
        connect(signals, self.receivers)

    @property
    def rejection(self) -> ConnectionRejectedError | None:
        """The error of the last claim, else heartbeat, if its connection was rejected."""
        outage = self.claimer.outage if self.config.runs_jobs else self.heartbeat.outage
        return outage if isinstance(outage, ConnectionRejectedError) else None

    async def start(self, announce: Callable[[], None]) -> None:
        """Start every part of the role; return when jobs are being claimed.

        Args:
            announce: Called before the first job is claimed.
        """
        try:
            await self._supervisor.start(announce)
        except BaseException:  # whatever it was, no part runs that could use them
            await self._store.connections.release_held()
            raise
        if self.config.runs_jobs:
            self.routing.warn_of_patterns()
        if not self._store.connections.can_open_lease_connection:
            self._events.publish(KeeperLost(TOO_SMALL))

    async def stop(self) -> None:
        """Stop every part, write every result, and notify other workers of released jobs."""
        self.reporter.is_stopping = True
        try:
            await self._supervisor.stop()
            await self._outbox.flush()
        finally:
            await self._store.connections.release_held()

    def runs_the_caller(self) -> bool:
        """Return whether the caller is a job that this worker runs."""
        job = current.get(None)
        return job is not None and self.in_flight.holds(job[0].job_id, job[0].attempt)

    async def execute(self, claim: Claim) -> None:
        """Run one claimed job now, even if no slot is free."""
        await self.executor.submit(claim)

    async def execute_when_free(self, claim: Claim) -> None:
        """Run one claimed job as soon as a slot is free."""
        await (await self.executor.submit_when_free(claim))


def _deletes_completed(config: SchedulerConfig) -> bool:
    return config.vacuum_enabled and config.vacuum.completed.trigger is VacuumTrigger.IMMEDIATE


def _worker(worker_id: str, config: SchedulerConfig, tasks: TaskRegistry) -> Worker:
    now = datetime.now(UTC)  # the table's instants are the database's; these are never read
    return Worker(
        worker_id,
        platform.node(),
        os.getpid(),
        __version__,
        config.max_concurrent_jobs,
        0,
        now,
        now,
        now,
        True,
        role=config.role,
        identity=config.identity,
        metadata=config.metadata or {},
        settings=settings_of(config, tasks),
    )
