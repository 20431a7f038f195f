"""Events: immutable values that describe what happened, published after the database has committed it."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

__all__ = [
    "Event",
    "JobCancelled",
    "JobCompleted",
    "JobExpired",
    "JobFailed",
    "JobLost",
    "JobReleased",
    "JobRetried",
    "JobStarted",
    "JobsReclaimed",
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
    "WorkerStarted",
    "WorkerStopped",
]

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
class JobsReclaimed(Event):
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
