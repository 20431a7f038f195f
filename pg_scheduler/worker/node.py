"""The state that the parts of a worker share."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Protocol

from pg_scheduler.base.messages import Look
from pg_scheduler.base.meter import Meter
from pg_scheduler.base.settings import SchedulerConfig
from pg_scheduler.events import EventBus
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.jobs.call import JobExecutor
from pg_scheduler.jobs.context import GetScheduler
from pg_scheduler.jobs.middleware import Middleware
from pg_scheduler.jobs.registry import TaskRegistry
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.queue.outbox import Outbox
from pg_scheduler.queue.result_waiters import ResultWaiters
from pg_scheduler.worker.in_flight import Attempt, InFlight, OpenSteps, OpenStreams
from pg_scheduler.worker.known_pauses import KnownPauses
from pg_scheduler.worker.lease import Lease, ServerClock
from pg_scheduler.worker.refused_claims import RefusedClaims
from pg_scheduler.worker.result_buffer import ResultBuffer
from pg_scheduler.worker.routing import Routing
from pg_scheduler.worker.signals import Signals
from pg_scheduler.worker.store import WorkerStore
from pg_scheduler.worker.waiting import ChildWaits, SuspensionPass

REPORTED_S: Final = 3600.0
"""For how long a worker reports a time zone that it did not know."""

MAX_LOOKS: Final = 100
"""The maximum number of requests that wait for the `LookWriter`; older ones are dropped."""

UNKNOWN_ZONE: Final = (
    "schedule %r of the task %r is left to other nodes, because this machine does not know its time zone %r; "
    "install the package tzdata, of Debian also tzdata-legacy, or choose a zone that it has, such as "
    "America/New_York"
)


class DeclaredFunctions(Protocol):
    """The functions of the schedules that the code declares; see ``schedules/declarations.py``."""

    @property
    def version(self) -> int:
        """The number of the last change of the schedules."""

    def functions(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the names of the functions, by the ids of the schedules, for the row of the worker."""


@dataclass(eq=False, kw_only=True)
class Node:
    """One worker from its start to its end: what the Scheduler passes to it, and the state of its parts."""

    worker_id: str
    config: SchedulerConfig
    store: WorkerStore
    events: EventBus
    cluster_events: EventBus
    tasks: TaskRegistry
    declared: DeclaredFunctions
    outbox: Outbox
    waiters: ResultWaiters
    retry_policy: RetryPolicy
    executors: Mapping[str, JobExecutor]
    middleware: Sequence[Middleware]
    meter: Meter | None
    get_scheduler: GetScheduler
    new_steps: Callable[[Node, Attempt], OpenSteps]
    """Returns the durable steps of an attempt."""
    new_streams: Callable[[Node, Attempt], OpenStreams]
    """Returns the values and streams of an attempt."""
    starts_draining: bool = False

    def __post_init__(self) -> None:
        """Create the objects that the parts of the worker share."""
        config = self.config
        self.signals = Signals()
        self.lease = Lease(config.lease_seconds, config.max_loop_block)
        self.result_buffer = ResultBuffer(
            self.events, self.signals, keeps_completed=not config.deletes_completed, meter=self.meter
        )
        self.in_flight = InFlight(self.result_buffer.unwritten)
        self.routing = Routing(self.tasks, self.executors, config.only, config.skip, worker_id=self.worker_id)
        self.routing.drain(is_draining=self.starts_draining)
        self.known_pauses = KnownPauses(self.signals.notifications_up)
        self.clock = ServerClock(self.signals.clock_stepped, self.signals.clock_set_back)
        self.audience = Audience()
        self.looks: deque[Look] = deque(maxlen=MAX_LOOKS)
        self.unknown_zones = UnknownZones()
        self.refused_claims = RefusedClaims(self.worker_id)
        self.lock_looks = LockLooks()
        self.suspensions = SuspensionPass()
        self.child_waits = ChildWaits(config.max_concurrent_jobs)


class UnknownZones:
    """Schedules with a time zone that this machine does not know: planners elsewhere may know it.

    Attributes:
        left_out: Due schedules that this node leaves to others until it tries them again.
    """

    __slots__ = ("_unknown_zones", "left_out")

    def __init__(self) -> None:
        self.left_out: set[str] = set()
        # By schedule, its zone, and when this node last met it, by the monotonic clock.
        self._unknown_zones: dict[str, tuple[str, float]] = {}

    def add(self, schedule_id: str, task: str, zone: str) -> None:
        """Leave a schedule to other nodes, because this machine does not know its time zone.

        The first time that the schedule has this zone, log a WARNING.
        """
        self.left_out.add(schedule_id)
        known_zone, _ = self._unknown_zones.get(schedule_id, ("", 0.0))
        if known_zone != zone:
            logger.warning(UNKNOWN_ZONE, schedule_id, task, zone, extra=record_fields())
        self._unknown_zones[schedule_id] = (zone, time.monotonic())

    def try_again(self) -> None:
        """Let the next pass try them again: their triggers, or the data of this machine, may have changed."""
        self.left_out.clear()

    def recent(self) -> dict[str, str]:
        """Return the zones that were missing within the last hour, by the ids of their schedules."""
        oldest = time.monotonic() - REPORTED_S
        self._unknown_zones = {
            schedule_id: (zone, met_at)
            for schedule_id, (zone, met_at) in self._unknown_zones.items()
            if met_at > oldest
        }
        return {schedule_id: zone for schedule_id, (zone, _) in self._unknown_zones.items()}


class LockLooks:
    """When this worker has looked at the liveness locks of the others.

    Attributes:
        last_at: The last time, by the monotonic clock.
    """

    __slots__ = ("last_at",)

    def __init__(self) -> None:
        self.last_at = -inf


class Audience:
    """The names of the event classes that other workers want, as the last heartbeat read them.

    The relay sends events of these classes to the other workers.
    """

    __slots__ = ("kinds",)

    def __init__(self) -> None:
        self.kinds: frozenset[str] = frozenset()

    def update(self, kinds: Iterable[str]) -> bool:
        """Set the names; return whether they have changed."""
        previous_kinds, self.kinds = self.kinds, frozenset(kinds)
        return self.kinds != previous_kinds
