"""What happens, as values, and a bus that hands them to whoever wants to know.

Events are published after the database has committed what they tell. Subscribers are called in the
event loop's thread and must not block it.
"""

from __future__ import annotations

import inspect
import logging
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Protocol

__all__ = [
    "Event",
    "EventBus",
    "JobCancelled",
    "JobCompleted",
    "JobExpired",
    "JobFailed",
    "JobLost",
    "JobReleased",
    "JobRetried",
    "JobStarted",
    "JobsRescued",
    "JobsVacuumed",
    "KeeperConnected",
    "KeeperLost",
    "LeaseLost",
    "ListenerConnected",
    "ListenerLost",
    "LoopBlocked",
    "PassFinished",
    "PeriodicJobBroken",
    "PeriodicJobPlanned",
    "ServiceFaulted",
    "ServiceRetrying",
    "Sink",
    "Subscriber",
    "WorkerStarted",
    "WorkerStopped",
]

logger = logging.getLogger("pg_scheduler")

BY_CALLER: Final = "cancelled by a caller"
"""The reason of a JobCancelled that ``cancel_job()`` brought about."""


@dataclass(frozen=True, slots=True)
class Event:
    """The root of all events."""


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    """A Scheduler claims jobs from now on."""

    worker_id: str
    hostname: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True, slots=True)
class WorkerStopped(Event):
    """A Scheduler has stopped; its results are written."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """Something about one try of one job."""

    job_id: str
    job_name: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobStarted(JobEvent):
    """A try begins. ``execution_time`` is when it was due."""

    execution_time: datetime


@dataclass(frozen=True, slots=True)
class JobCompleted(JobEvent):
    """The job ended well."""


@dataclass(frozen=True, slots=True)
class JobFailed(JobEvent):
    """The job ended for good without success. ``exception`` is what it raised, with its traceback."""

    error: str
    exception: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class JobRetried(JobEvent):
    """The try failed; the job is due again after the delay. ``exception`` is what it raised."""

    error: str
    delay: timedelta
    exception: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class JobReleased(JobEvent):
    """Shutdown interrupted the try; the job is pending again and the try does not count."""


@dataclass(frozen=True, slots=True)
class JobCancelled(JobEvent):
    """The try was cancelled, or skipped because another run holds the advisory lock."""

    reason: str


@dataclass(frozen=True, slots=True)
class JobExpired(JobEvent):
    """The job was not started within its misfire grace time."""


@dataclass(frozen=True, slots=True)
class JobLost(JobEvent):
    """The job is another worker's, or was changed by hand: what this try did is not recorded."""


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """This worker's lease ran out; all it ran was cancelled here."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class KeeperConnected(Event):
    """The lease keeper has its connection, and the liveness lock unless a pooler answers there."""

    has_lock: bool


@dataclass(frozen=True, slots=True)
class KeeperLost(Event):
    """The lease keeper has no connection, and tries again unless the pool is too small for it.

    Until it has one, a blocked event loop costs the lease, and the end of this process may be noticed only
    when its lease is over.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class LoopBlocked(Event):
    """The event loop answers again, after something had blocked it for so many seconds.

    ``job_id`` and ``job_name`` tell the job whose code it was, None if it was not a job's; ``stack`` is where
    the loop's thread was when that was noticed.
    """

    job_id: str | None
    job_name: str | None
    seconds: float
    stack: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class JobsRescued(Event):
    """Jobs that nobody holds are pending again: of dead workers, or of a claim whose answer was lost."""

    job_ids: tuple[str, ...]
    dead_workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobsVacuumed(Event):
    """Old finished jobs were deleted."""

    completed: int
    failed: int
    cancelled: int
    expired: int


@dataclass(frozen=True, slots=True)
class PeriodicJobPlanned(Event):
    """A window's job was enqueued by this node."""

    dedup_key: str
    job_id: str
    next_fire_at: datetime


@dataclass(frozen=True, slots=True)
class PeriodicJobBroken(Event):
    """A schedule's row cannot be understood here, and is left alone until it changes."""

    dedup_key: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class ListenerConnected(Event):
    """Notifications arrive from now on."""

    channel: str


@dataclass(frozen=True, slots=True)
class ListenerLost(Event):
    """Notifications do not arrive; polling carries on alone."""

    reason: str


@dataclass(frozen=True, slots=True)
class PassFinished(Event):
    """A service made one round."""

    service: str
    seconds: float
    next_in: float


@dataclass(frozen=True, slots=True)
class ServiceRetrying(Event):
    """A transient fault ended a service's round; it tries again."""

    service: str
    error: BaseException
    next_in: float


@dataclass(frozen=True, slots=True)
class ServiceFaulted(Event):
    """A fault that trying again cannot mend ended a service; the Scheduler stops."""

    service: str
    error: BaseException


Subscriber = Callable[[Event], None]


class Sink(Protocol):
    """Where every event goes that it wants at the moment; the log."""

    def wants(self, kind: type[Event]) -> bool:
        """Whether it would do anything with an event of this class now."""

    def __call__(self, event: Event) -> None:
        """Take an event."""


class EventBus:
    """Hands each event to the subscribers of its class.

    Args:
        sink: Gets every event that it wants, before the subscribers.
    """

    def __init__(self, sink: Sink | None = None) -> None:
        self._sink = sink
        self._subscriptions: list[tuple[Subscriber, tuple[type[Event], ...]]] = []
        self._routes: dict[type[Event], tuple[Subscriber, ...]] = {}

    def subscribe(self, subscriber: Subscriber, *kinds: type[Event]) -> Callable[[], None]:
        """Call ``subscriber`` with every event of these classes (of all, when none is named).

        Returns:
            A function that ends the subscription.

        Raises:
            TypeError: The subscriber is no plain function, or a kind is no class of events.
        """
        _check_subscription(subscriber, kinds)
        entry = (subscriber, kinds or (Event,))
        self._subscriptions.append(entry)
        self._routes.clear()

        def unsubscribe() -> None:
            if entry in self._subscriptions:
                self._subscriptions.remove(entry)
                self._routes.clear()

        return unsubscribe

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody would see an event of this class now; if not, it need not be made."""
        return bool(self._route(kind)) or (self._sink is not None and self._sink.wants(kind))

    def publish(self, event: Event) -> None:
        """Hand the event on. A subscriber that raises is logged and does not stop the others."""
        if self._sink is not None:
            self._sink(event)
        for subscriber in self._route(type(event)):
            try:
                subscriber(event)
            except Exception:  # a subscriber's mistake must not end the service that published
                logger.exception("an event subscriber failed on %r", event)

    def _route(self, kind: type[Event]) -> tuple[Subscriber, ...]:
        route = self._routes.get(kind)
        if route is None:
            route = tuple(subscriber for subscriber, kinds in self._subscriptions if issubclass(kind, kinds))
            self._routes[kind] = route
        return route


def _check_subscription(subscriber: object, kinds: tuple[object, ...]) -> None:
    if not callable(subscriber) or inspect.iscoroutinefunction(subscriber):
        raise TypeError(f"a subscriber is a plain function, called in the event loop, not {subscriber!r}")
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Event)):
            raise TypeError(f"the kinds of events to subscribe to are classes of Event, not {kind!r}")
