"""Builds the parts of a worker one by one, with nothing running that a test did not start."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, cast

from pg_scheduler import Scheduler
from pg_scheduler.enqueue.declared_schedules import DeclaredSchedules
from pg_scheduler.enqueue.outbox import Outbox
from pg_scheduler.enqueue.schedule_jobs import ScheduleJobs
from pg_scheduler.events import EventBus, ServiceFaulted
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.rows import NewJob
from pg_scheduler.schedules.catalogue import periodic_catalogue
from pg_scheduler.settings import PollingConfig, VacuumConfig
from pg_scheduler.status import JobStatus
from pg_scheduler.store.store import Store
from pg_scheduler.worker.audience import Audience
from pg_scheduler.worker.event_relay import EventRelay
from pg_scheduler.worker.in_flight import InFlight
from pg_scheduler.worker.lease.heartbeat import Heartbeat
from pg_scheduler.worker.lease.lease import Lease
from pg_scheduler.worker.listener import Listener
from pg_scheduler.worker.maintenance.deadline_scanner import DeadlineScanner
from pg_scheduler.worker.maintenance.expirer import Expirer
from pg_scheduler.worker.maintenance.loose_ends import LooseEnds
from pg_scheduler.worker.maintenance.name_reporter import NameReporter
from pg_scheduler.worker.maintenance.planner import Planner
from pg_scheduler.worker.maintenance.rescuer import Rescuer
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
from pg_scheduler.worker.runners.call import JobExecutor
from pg_scheduler.worker.runners.thread import ThreadExecutor
from pg_scheduler.worker.server_clock import ServerClock
from pg_scheduler.worker.signals import Signals
from tests.support.worker import LEASE, PATIENCE, claim, new_worker


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
        super().__init__(store, events, horizon_s=4.0)
        self._calls = calls

    async def request_heartbeats(self, worker_ids: Collection[str]) -> None:
        for worker_id in worker_ids:
            self._calls.append(f"asked {worker_id}")


class NoResults:
    """Holds no outcomes."""

    def unwritten(self) -> dict[str, int]:
        return {}


class Parts:
    """One worker's parts. ``calls`` has the names of the signals that they send.

    Only ``results_waiting`` reaches a part, the completer; it is not in ``calls``.
    """

    def __init__(self, store: Store, bus: EventBus) -> None:
        self.store = store
        self.bus = bus
        self.tasks = TaskRegistry()
        self.calls = Calls()
        self.faults: list[object] = []
        bus.subscribe(self.faults.append, ServiceFaulted)
        self.worker_id = "me"
        self.signals = Signals()
        self.signals.notifications_up()
        for name, signal in self.signals:
            if signal is not self.signals.results_waiting:
                signal.connect(partial(self.calls.append, name))
        self.clock = ServerClock(self.signals.clock_stepped)
        self.lease = Lease(LEASE)
        self.lease.renewed(time.monotonic())
        self.noted_requests = NotedRequests(store, bus, self.calls)
        self.deleted: Counter[JobStatus] = Counter()
        self.use_results()

    def use_results(self, *, keeps_completed: bool = True) -> None:
        """Use a new result buffer."""
        self.results = ResultBuffer(
            self.bus,
            self.signals,
            keeps_completed=keeps_completed,
            deleted=self.deleted,
        )
        self.in_flight = InFlight(self.results)
        self.progress = ProgressWriter(self.store.progress, self.bus, self.in_flight, self.worker_id)

    def outbox(self, *, horizon_s: float = 4.0, gap_s: float = Outbox.gap_s) -> Outbox:
        outbox = Outbox(self.store, self.bus, horizon_s=horizon_s)
        outbox.gap_s = gap_s
        return outbox

    def notifier(self, outbox: Outbox | None = None) -> Notifier:
        return Notifier(self.bus, outbox or self.outbox(), self.signals)

    def completer(self, *, flush_timeout: float = 5.0) -> Completer:
        completer = Completer(
            self.store,
            self.bus,
            self.worker_id,
            self.results,
            self.progress,
            self.signals,
            EventBus(),
            flush_timeout=flush_timeout,
        )
        self.signals.results_waiting.connect(completer.wake)
        return completer

    def executor(
        self,
        completer: Completer | None = None,
        *,
        slots: int = 5,
        shutdown_timeout: float = 5.0,
        stop_grace: float = 10.0,
        max_crashes: int | None = None,
        executors: Mapping[str, JobExecutor] | None = None,
    ) -> Executor:
        runner = AttemptRunner(
            self.store.locks,
            self.bus,
            self.tasks,
            self.progress,
            scheduler=cast("Scheduler", None),
            stop_grace=stop_grace,
            max_crashes=max_crashes,
            executors={"thread": ThreadExecutor()} if executors is None else executors,
        )
        return Executor(
            runner,
            self.bus,
            self.tasks,
            self.results,
            completer or self.completer(),
            self.progress,
            self.in_flight,
            RetryPolicy(),
            self.signals,
            slots=slots,
            shutdown_timeout=shutdown_timeout,
            stop_grace=stop_grace,
        )

    def claimer(
        self,
        executor: Executor | None = None,
        *,
        batch: int = 10,
        max_crashes: int | None = 2,
        admission: Admission | None = None,
        **polling: Any,
    ) -> Claimer:
        executor = executor or self.executor()
        return Claimer(
            self.store.claims,
            self.bus,
            executor,
            admission or self.admission(executor),
            self.results,
            self.in_flight,
            self.lease,
            self.tasks,
            self.worker_id,
            self.signals,
            self.clock,
            batch=batch,
            polling=PollingConfig(**polling),
            max_crashes=max_crashes,
        )

    def head_scanner(self, claimer: Claimer) -> HeadScanner:
        """The search in front of the position of a claimer; both receive signals as in a worker."""
        scanner = HeadScanner(
            self.store.claims,
            self.bus,
            claimer.cursor,
            self.in_flight,
            self.tasks.names,
            self.signals,
            isolated_from=claimer.isolated_from,
        )
        self.signals.due.connect(claimer.announce, scanner.announce)
        self.signals.head_skipped.connect(scanner.begin)
        return scanner

    def unblocker(self) -> Unblocker:
        return Unblocker(
            self.store.limits,
            self.bus,
            self.results,
            self.in_flight,
            self.tasks,
            self.signals,
        )

    def admission(self, executor: Executor, unblocker: Unblocker | None = None) -> Admission:
        return Admission(
            self.store.limits,
            self.bus,
            executor,
            self.results,
            self.lease,
            self.tasks,
            self.worker_id,
            unblocker or self.unblocker(),
        )

    def heartbeat(self, *, lease: float = LEASE, max_loop_block: float = 0) -> Heartbeat:
        self.lease = Lease(lease, max_loop_block)
        return Heartbeat(
            self.store,
            self.bus,
            self.in_flight,
            new_worker(self.worker_id),
            self.lease,
            self.signals,
            self.clock,
        )

    def listener(self, *, own_mark: str = "mine") -> Listener:
        return Listener(
            self.store,
            self.bus,
            self.worker_id,
            self.signals,
            own_mark=own_mark,
            on_result=lambda job_id: None,
        )

    def relay(self, cluster: EventBus | None = None) -> EventRelay:
        return EventRelay(self.store, self.bus, cluster or EventBus(), self.worker_id, Audience())

    def rescuer(self, *, max_crashes: int | None = 3) -> Rescuer:
        return Rescuer(
            self.store.workers,
            self.bus,
            self.worker_id,
            self.lease,
            self.noted_requests,
            self.signals,
            heartbeat_threshold=120.0,
            max_crashes=max_crashes,
        )

    def expirer(self) -> Expirer:
        return Expirer(self.store.jobs, self.bus, self.tasks, self.worker_id)

    def scanner(self, *, lease: float = LEASE) -> DeadlineScanner:
        return DeadlineScanner(
            self.store.workers,
            self.bus,
            self.signals,
            NameReporter(self.store.jobs, self.bus, self.tasks, self.worker_id),
            LooseEnds(
                self.store.consequences, self.store.dependencies, self.worker_id, self.in_flight.unreported
            ),
            lease=lease,
            heartbeat_threshold=120.0,
        )

    def vacuum(self, config: VacuumConfig | None = None) -> Vacuum:
        return Vacuum(
            self.store,
            self.bus,
            config or VacuumConfig(),
            self.worker_id,
            deleted=self.deleted,
        )

    def planner(self, *, grace: int | None = 300, store: Store | None = None) -> Planner:
        store = store or self.store
        declared = DeclaredSchedules(store, periodic_catalogue)
        jobs = ScheduleJobs(self.tasks, misfire_grace_time=grace)
        return Planner(store, self.bus, declared, self.tasks, jobs, self.outbox(), self.signals)

    @staticmethod
    def in_flight_of_nothing() -> InFlight:
        """Attempts of no executor."""
        return InFlight(NoResults())

    async def run(self, executor: Executor, *jobs: NewJob) -> None:
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
