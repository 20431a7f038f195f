"""Builds the parts of a worker one by one, with nothing running that a test did not start."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from pg_scheduler.enqueue.outbox import Outbox, OutboxOptions
from pg_scheduler.enqueue.schedule_book import ScheduleBook
from pg_scheduler.events import EventBus, ServiceFaulted
from pg_scheduler.jobs.model import JobStatus
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.rows import NewJob
from pg_scheduler.schedules.catalogue import periodic_catalogue
from pg_scheduler.settings import PollingConfig, VacuumConfig
from pg_scheduler.store.store import Store
from pg_scheduler.worker.in_flight import InFlight
from pg_scheduler.worker.lease.heartbeat import Heartbeat
from pg_scheduler.worker.lease.lease import Lease
from pg_scheduler.worker.listener import Listener
from pg_scheduler.worker.maintenance.deadline_scanner import DeadlineScanner
from pg_scheduler.worker.maintenance.expirer import Expirer
from pg_scheduler.worker.maintenance.planner import Planner
from pg_scheduler.worker.maintenance.rescuer import Rescuer
from pg_scheduler.worker.maintenance.vacuum import Vacuum
from pg_scheduler.worker.notifier import Notifier
from pg_scheduler.worker.pipeline.claimer import Claimer
from pg_scheduler.worker.pipeline.completer import Completer
from pg_scheduler.worker.pipeline.executor import Executor
from pg_scheduler.worker.pipeline.result_buffer import ResultBuffer, ResultBufferOptions
from tests.support.worker import LEASE, claim, new_worker


class Nothing:
    """No results that wait to be written."""

    def unwritten(self) -> dict[str, int]:
        return {}


class Parts:
    """One worker's parts. ``calls`` gathers what they told their neighbours."""

    def __init__(self, store: Store, bus: EventBus) -> None:
        self.store = store
        self.bus = bus
        self.tasks = TaskRegistry()
        self.calls: list[str] = []
        self.messages: list[str] = []
        self.faults: list[ServiceFaulted] = []
        self.hears = True
        self.worker_id = "me"
        self.lease = Lease(LEASE)
        self.lease.renewed(time.monotonic())
        self.deleted: Counter[JobStatus] = Counter()
        self.use_results()

    def _notes(self, what: str) -> Callable[[], None]:
        return lambda: self.calls.append(what)

    def outbox(self, *, horizon_s: float = 4.0, options: OutboxOptions | None = None) -> Outbox:
        return Outbox(self.store, self.bus, horizon_s=horizon_s, options=options or OutboxOptions())

    def notifier(self, outbox: Outbox | None = None) -> Notifier:
        return Notifier(self.bus, outbox or self.outbox(), on_due=self._notes("due"))

    def use_results(self, *, keeps_completed: bool = True, **options: int) -> None:
        """Use a new result buffer with these options."""
        self.completers: list[Completer] = []
        self.results = ResultBuffer(
            self.bus,
            keeps_completed=keeps_completed,
            deleted=self.deleted,
            on_waiting=self._wake_completers,
            options=ResultBufferOptions(**options),
        )
        self.in_flight = InFlight(self.results)

    def _wake_completers(self) -> None:
        for completer in self.completers:
            completer.wake()

    def completer(self, *, flush_timeout: float = 5.0) -> Completer:
        completer = Completer(
            self.store,
            self.bus,
            self.worker_id,
            self.results,
            flush_timeout=flush_timeout,
            on_written=lambda handed_back: self.calls.append("handed back" if handed_back else "written"),
        )
        self.completers.append(completer)
        return completer

    def executor(
        self, completer: Completer | None = None, *, slots: int = 5, shutdown_timeout: float = 5.0
    ) -> Executor:
        return Executor(
            self.store,
            self.bus,
            self.tasks,
            self.results,
            completer or self.completer(),
            self.in_flight,
            RetryPolicy(),
            slots=slots,
            shutdown_timeout=shutdown_timeout,
            on_free=self._notes("free"),
            on_lost=self._notes("lost"),
            on_fault=self.faults.append,
        )

    def claimer(
        self,
        executor: Executor | None = None,
        *,
        batch: int = 10,
        **polling: Any,
    ) -> Claimer:
        executor = executor or self.executor()
        return Claimer(
            self.store,
            self.bus,
            executor,
            self.results,
            self.in_flight,
            self.lease,
            self.tasks,
            self.worker_id,
            batch=batch,
            polling=PollingConfig(**polling),
            on_claimed=self._notes("claimed"),
            on_silence=self._notes("silence"),
            on_refused=self._notes("refused"),
        )

    def heartbeat(
        self,
        *,
        lease: float = LEASE,
    ) -> Heartbeat:
        self.lease = Lease(lease)
        return Heartbeat(
            self.store,
            self.bus,
            self.in_flight,
            new_worker(self.worker_id),
            self.lease,
            hears=lambda: self.hears,
        )

    def listener(self) -> Listener:
        return Listener(
            self.store,
            self.bus,
            self.worker_id,
            on_message=self.messages.append,
            on_connected=self._notes("connected"),
        )

    def rescuer(self, *, max_crashes: int | None = 3) -> Rescuer:
        async def ask(worker_ids: Collection[str]) -> None:
            self.calls += [f"asked {worker_id}" for worker_id in worker_ids]

        return Rescuer(
            self.store,
            self.bus,
            self.worker_id,
            self.lease,
            heartbeat_threshold=120.0,
            max_crashes=max_crashes,
            ask=ask,
            on_rescued=self._notes("rescued"),
        )

    def expirer(self) -> Expirer:
        return Expirer(self.store, self.bus)

    def scanner(self, *, lease: float = LEASE) -> DeadlineScanner:
        return DeadlineScanner(
            self.store,
            self.bus,
            lease=lease,
            heartbeat_threshold=120.0,
            on_lapsed=self._notes("lapsed"),
            on_expired=self._notes("expired"),
        )

    def vacuum(self, config: VacuumConfig | None = None) -> Vacuum:
        return Vacuum(self.store, self.bus, config or VacuumConfig(), self.worker_id, deleted=self.deleted)

    def planner(self, *, grace: int | None = 300, store: Store | None = None) -> Planner:
        store = store or self.store
        return Planner(
            store,
            self.bus,
            ScheduleBook(store, periodic_catalogue, self.tasks, misfire_grace_time=grace),
            hears=lambda: self.hears,
            on_planned=self._notes("planned"),
            on_switched=self._notes("switched"),
        )

    def with_store(self, store: Store) -> Parts:
        """Another worker's parts on another store, with the same bus."""
        return Parts(store, self.bus)

    @staticmethod
    def in_flight_of_nothing() -> InFlight:
        """Attempts of no executor."""
        return InFlight(Nothing())

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
