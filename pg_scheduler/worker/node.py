"""The state that the parts of a worker share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pg_scheduler.enqueue.child_jobs import EnqueueChild
from pg_scheduler.enqueue.declared_schedules import DeclaredSchedules
from pg_scheduler.enqueue.outbox import Outbox
from pg_scheduler.enqueue.result_waiters import ResultWaiters
from pg_scheduler.enqueue.schedule_jobs import ScheduleJobs
from pg_scheduler.events import EventBus
from pg_scheduler.jobs.context import GetScheduler
from pg_scheduler.jobs.middleware import Middleware
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.measure.meter import Meter
from pg_scheduler.settings import SchedulerConfig
from pg_scheduler.store.store import Store
from pg_scheduler.worker.in_flight import InFlight
from pg_scheduler.worker.lease.lease import Lease, ServerClock
from pg_scheduler.worker.pipeline.result_buffer import ResultBuffer
from pg_scheduler.worker.routing import Routing
from pg_scheduler.worker.runners.call import JobExecutor
from pg_scheduler.worker.signals import Signals
from pg_scheduler.worker.waiting import SuspensionPass


@dataclass(eq=False, kw_only=True)
class Node:
    """One worker from its start to its end: what the Scheduler passes to it, and the state of its parts."""

    worker_id: str
    config: SchedulerConfig
    store: Store
    events: EventBus
    cluster_events: EventBus
    tasks: TaskRegistry
    declared: DeclaredSchedules
    schedule_jobs: ScheduleJobs
    outbox: Outbox
    waiters: ResultWaiters
    retry_policy: RetryPolicy
    executors: Mapping[str, JobExecutor]
    middleware: Sequence[Middleware]
    meter: Meter | None
    get_scheduler: GetScheduler
    enqueue_child: EnqueueChild

    def __post_init__(self) -> None:
        config = self.config
        self.signals = Signals()
        self.lease = Lease(config.lease_seconds, config.max_loop_block)
        self.results = ResultBuffer(
            self.events, self.signals, keeps_completed=not config.deletes_completed, meter=self.meter
        )
        self.in_flight = InFlight(self.results.unwritten)
        self.routing = Routing(self.tasks, self.executors, config.only, config.skip, worker_id=self.worker_id)
        self.clock = ServerClock(self.signals.clock_stepped)
        self.audience = Audience()
        self.suspensions = SuspensionPass()


class Audience:
    """Names of event classes: the heartbeat reads them, and the relay sends such events."""

    __slots__ = ("kinds",)

    def __init__(self) -> None:
        self.kinds: frozenset[str] = frozenset()

    def update(self, kinds: Iterable[str]) -> bool:
        """Set the names; return whether they have changed."""
        former, self.kinds = self.kinds, frozenset(kinds)
        return self.kinds != former
