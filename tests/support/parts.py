"""Builds the parts of a worker one by one, with nothing running that a test did not start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from pg_scheduler.admission.admission import Admission
from pg_scheduler.admission.feeder import Feeder
from pg_scheduler.admission.sequencer import Sequencer
from pg_scheduler.admission.unblocker import Unblocker
from pg_scheduler.base.settings import PollingConfig, SchedulerConfig, VacuumConfig
from pg_scheduler.cluster_events.relay import EventRelay
from pg_scheduler.events import EventBus, ServiceFaulted
from pg_scheduler.jobs.call import JobExecutor
from pg_scheduler.jobs.context import GetScheduler
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.rows import PlainJob
from pg_scheduler.queue.outbox import Outbox
from pg_scheduler.queue.result_waiters import ResultWaiters
from pg_scheduler.scheduler.store import Store
from pg_scheduler.schedules.declarations import DeclaredSchedules
from pg_scheduler.schedules.declared import periodic_catalogue
from pg_scheduler.schedules.job_builder import JobBuilders
from pg_scheduler.schedules.planner import Planner
from pg_scheduler.steps.attempt import AttemptSteps
from pg_scheduler.steps.child_jobs import ChildEnqueuer
from pg_scheduler.streams.attempt import AttemptStreams
from pg_scheduler.worker.claimer import Claimer
from pg_scheduler.worker.completer import Completer
from pg_scheduler.worker.cursor import HeadScanner
from pg_scheduler.worker.executor import Executor
from pg_scheduler.worker.heartbeat import Heartbeat
from pg_scheduler.worker.in_flight import InFlight
from pg_scheduler.worker.lease import Lease
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.notifications import Listener, Notifier
from pg_scheduler.worker.overdue import DeadlineScanner, Expirer
from pg_scheduler.worker.progress_writer import ProgressWriter
from pg_scheduler.worker.reporter import Reporter
from pg_scheduler.worker.rescuer import Rescuer
from pg_scheduler.worker.result_buffer import ResultBuffer
from pg_scheduler.worker.routing import Routing
from pg_scheduler.worker.runners.thread import ThreadExecutor
from pg_scheduler.worker.vacuum import Vacuum
from pg_scheduler.worker.watchdog import LoopWatchdog
from tests.support.worker import LEASE, PATIENCE, claim

CONFIG: Final = SchedulerConfig(
    max_concurrent_jobs=5,
    batch_claim_limit=10,
    misfire_grace_time=300,
    vacuum_enabled=True,
    vacuum=VacuumConfig(),
    polling=PollingConfig(),
    schema=None,
    direct_dsn=None,
    keeper_dsn=None,
    max_payload_bytes=None,
    max_result_bytes=None,
    shutdown_timeout=5.0,
    lease_seconds=LEASE,
    heartbeat_threshold=120.0,
    max_crashes=3,
    max_loop_block=600.0,
)


class Calls(list[str]):
    """Names of the signals that were sent, and a way to wait for them."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def append(self, name: str, *_about: object) -> None:
        super().append(name)
        self._changed.set()

    async def until(self, *names: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while list(self) != list(names):
                self._changed.clear()
                await self._changed.wait()


class NotedRequests(Outbox):
    """An outbox that notes which workers are asked for a heartbeat."""

    def __init__(self, store: Store, events: EventBus, calls: Calls) -> None:
        super().__init__(store, events, horizon_s=4.0, mark="mine")
        self._calls = calls

    async def request_heartbeats(self, worker_ids: Collection[str]) -> None:
        for worker_id in worker_ids:
            self._calls.append(f"asked {worker_id}")


class Parts(Node):
    """A worker whose parts a test builds. ``calls`` has the names of the signals that they send.

    Only ``results_waiting`` reaches a part, the completer; it is not in ``calls``.
    """

    store: Store
    declared: DeclaredSchedules

    def __init__(self, store: Store, bus: EventBus, worker_id: str = "me") -> None:
        tasks = TaskRegistry()
        self.calls = Calls()
        self.declared = DeclaredSchedules(store, store.schedules, periodic_catalogue)
        self.job_builders = JobBuilders(tasks, misfire_grace_time=300)
        store.statements.publish = bus.publish
        super().__init__(
            worker_id=worker_id,
            config=CONFIG,
            store=store,
            events=bus,
            cluster_events=EventBus(),
            tasks=tasks,
            declared=self.declared,
            outbox=NotedRequests(store, bus, self.calls),
            waiters=ResultWaiters(store, 2.0),
            retry_policy=RetryPolicy(),
            executors={"thread": ThreadExecutor()},
            middleware=(),
            meter=None,
            get_scheduler=cast("GetScheduler", None),
            new_steps=partial(AttemptSteps, store.steps, cast("ChildEnqueuer", None)),
            new_streams=partial(AttemptStreams, store.streams),
        )
        self.faults: list[object] = []
        bus.subscribe(self.faults.append, ServiceFaulted)
        self.signals.notifications_up()
        for name, signal in self.signals:
            if signal is not self.signals.results_waiting:
                signal.connect(partial(self.calls.append, name))
        self.lease = Lease(LEASE)
        self.lease.renewed(time.monotonic())
        self.use_result_buffer()

    def configure(self, **settings: Any) -> None:
        """Build parts with these settings from now on."""
        self.config = replace(self.config, **settings)

    def use_result_buffer(self, *, keeps_completed: bool = True) -> None:
        """Use a new result buffer."""
        self.result_buffer = ResultBuffer(self.events, self.signals, keeps_completed=keeps_completed)
        self.in_flight = InFlight(self.result_buffer.unwritten)
        self.progress = ProgressWriter(self)

    def use_outbox(self, *, horizon_s: float = 4.0, gap_s: float = Outbox.gap_s) -> Outbox:
        """Use a new outbox, whose callers notify by their commits, and return it."""
        self.outbox = Outbox(self.store, self.events, horizon_s=horizon_s, notify="commit")
        self.outbox.gap_s = gap_s
        return self.outbox

    def notifier(self) -> Notifier:
        return Notifier(self)

    def completer(self, *, flush_timeout: float = 5.0) -> Completer:
        self.configure(shutdown_timeout=flush_timeout)
        completer = Completer(self, self.progress)
        self.signals.results_waiting.connect(completer.wake)
        return completer

    def executor(
        self,
        completer: Completer | None = None,
        *,
        slots: int = 5,
        shutdown_timeout: float = 5.0,
        stop_grace: float = 10.0,
        max_stuck_threads: int = 0,
        max_crashes: int | None = None,
        executors: Mapping[str, JobExecutor] | None = None,
    ) -> Executor:
        completer = completer or self.completer()
        self.configure(
            max_concurrent_jobs=slots,
            shutdown_timeout=shutdown_timeout,
            stop_grace=stop_grace,
            max_stuck_threads=max_stuck_threads,
            max_crashes=max_crashes,
        )
        if executors is not None:
            self.executors = executors
            self.routing = Routing(self.tasks, executors, worker_id=self.worker_id)
        return Executor(self, completer, self.progress)

    def claimer(
        self,
        executor: Executor | None = None,
        *,
        batch: int | None = 10,
        max_crashes: int | None = 2,
        admission: Admission | None = None,
        **polling: Any,
    ) -> Claimer:
        executor = executor or self.executor()
        self.configure(batch_claim_limit=batch, max_crashes=max_crashes, polling=PollingConfig(**polling))
        return Claimer(self, executor, admission or self.admission(executor))

    def head_scanner(self, claimer: Claimer) -> HeadScanner:
        """The search in front of the position of a claimer; both receive signals as in a worker."""
        scanner = HeadScanner(self, claimer.cursor, isolated_from=claimer.isolated_from)
        self.signals.due.connect(claimer.announce, scanner.announce)
        self.signals.head_skipped.connect(scanner.begin)
        return scanner

    def unblocker(self) -> Unblocker:
        return Unblocker(self, self.store.limits)

    def feeder(self) -> Feeder:
        return Feeder(self, self.store.limits, self.store.shares)

    def sequencer(self) -> Sequencer:
        return Sequencer(self, self.store.sequences)

    def admission(self, executor: Executor, unblocker: Unblocker | None = None) -> Admission:
        return Admission(self, self.store.limits, executor, unblocker or self.unblocker())

    def reporter(self) -> Reporter:
        return Reporter(self, LoopWatchdog(self.events, self.in_flight))

    def heartbeat(self, *, lease: float = LEASE, max_loop_block: float = 0) -> Heartbeat:
        self.lease = Lease(lease, max_loop_block)
        return Heartbeat(self, self.reporter())

    def relay(self) -> EventRelay:
        return EventRelay(self)

    def listener(self) -> Listener:
        return Listener(self, self.relay())

    def rescuer(self, *, max_crashes: int | None = 3) -> Rescuer:
        self.configure(max_crashes=max_crashes)
        return Rescuer(self)

    def expirer(self) -> Expirer:
        return Expirer(self)

    def scanner(self, *, lease: float = LEASE) -> DeadlineScanner:
        self.configure(lease_seconds=lease)
        return DeadlineScanner(self)

    def vacuum(self, config: VacuumConfig | None = None) -> Vacuum:
        deleted = self.result_buffer.deleted
        store, settings = self.store, config or VacuumConfig()
        return Vacuum(
            store,
            self.events,
            settings,
            self.worker_id,
            schedules=store.schedules,
            statistics=store.statistics,
            streams=store.streams,
            deleted=deleted,
        )

    def planner(self, *, grace: int | None = 300) -> Planner:
        self.job_builders = JobBuilders(self.tasks, misfire_grace_time=grace)
        return Planner(self, self.store.schedules, self.declared, self.job_builders)

    @staticmethod
    def in_flight_of_nothing() -> InFlight:
        """Attempts of no executor."""
        return InFlight(dict)

    async def run(self, executor: Executor, *jobs: PlainJob) -> None:
        """Insert jobs, claim them, run them and wait for all to end; nothing is written yet."""
        for each in await claim(self.store, *jobs, worker_id=self.worker_id):
            executor.submit(each)
        await self.ended(executor)

    @staticmethod
    async def ended(executor: Executor) -> None:
        executor._begin_all()  # what was claimed begins when the loop comes round
        for attempt in list(executor.in_flight.attempts.values()):
            if attempt.task:
                await attempt.task


def sent_statements(parts: Parts) -> list[str]:
    """Return a list to which the names of later statements are added."""
    names: list[str] = []
    fetch = parts.store.statements.fetch

    async def note(name: str, *args: Any, **options: Any) -> Any:
        names.append(name)
        return await fetch(name, *args, **options)

    parts.store.statements.fetch = note  # type: ignore[method-assign]
    return names
