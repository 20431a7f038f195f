"""What happens, as values, and a bus that hands them to whoever wants to know.

Events are published after the database has committed what they tell. Subscribers are called in the
event loop's thread and must not block it.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

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
    "LeaseLost",
    "ListenerConnected",
    "ListenerLost",
    "PassFinished",
    "PeriodicJobBroken",
    "PeriodicJobPlanned",
    "ServiceFaulted",
    "ServiceRetrying",
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
class JobsRescued(Event):
    """Jobs of dead workers are pending again."""

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


class EventBus:
    """Hands each event to the subscribers of its class."""

    def __init__(self) -> None:
        self._subscribers: list[tuple[Subscriber, tuple[type[Event], ...]]] = []

    def subscribe(self, subscriber: Subscriber, *kinds: type[Event]) -> Callable[[], None]:
        """Call ``subscriber`` with every event of these classes (of all, when none is named).

        Returns:
            A function that ends the subscription.

        Raises:
            TypeError: The subscriber is no plain function, or a kind is no class of events.
        """
        _check_subscription(subscriber, kinds)
        entry = (subscriber, kinds or (Event,))
        self._subscribers.append(entry)

        def unsubscribe() -> None:
            if entry in self._subscribers:
                self._subscribers.remove(entry)

        return unsubscribe

    def publish(self, event: Event) -> None:
        """Hand the event on. A subscriber that raises is logged and does not stop the others."""
        for subscriber, kinds in tuple(self._subscribers):
            if isinstance(event, kinds):
                try:
                    subscriber(event)
                except Exception:  # a subscriber's mistake must not end the service that published
                    logger.exception("an event subscriber failed on %r", event)


def _check_subscription(subscriber: object, kinds: tuple[object, ...]) -> None:
    if not callable(subscriber) or inspect.iscoroutinefunction(subscriber):
        raise TypeError(f"a subscriber is a plain function, called in the event loop, not {subscriber!r}")
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Event)):
            raise TypeError(f"the kinds of events to subscribe to are classes of Event, not {kind!r}")
