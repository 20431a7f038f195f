"""Events: immutable values, published after the database committed what they describe."""

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
    "JobEvent",
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
"""The reason of a JobCancelled that ``cancel_job()`` caused."""


@dataclass(frozen=True, slots=True)
class Event:
    """The base class of all events."""


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    """A Scheduler has started and claims jobs."""

    worker_id: str
    hostname: str = field(default_factory=platform.node)
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True, slots=True)
class WorkerStopped(Event):
    """A Scheduler has written its results and stopped."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """The base class of the events of one attempt of one job."""

    job_id: str
    job_name: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobStarted(JobEvent):
    """An attempt started. ``execution_time`` is when it was due."""

    execution_time: datetime


@dataclass(frozen=True, slots=True)
class JobCompleted(JobEvent):
    """The job completed."""


@dataclass(frozen=True, slots=True)
class JobFailed(JobEvent):
    """The job failed and is not retried. ``exception`` is the exception it raised, with its traceback."""

    error: str
    exception: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class JobRetried(JobEvent):
    """The attempt failed and is retried after the delay. ``exception`` is the exception it raised."""

    error: str
    delay: timedelta
    exception: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class JobReleased(JobEvent):
    """The shutdown interrupted the attempt; the job is pending again and the attempt is not counted."""


@dataclass(frozen=True, slots=True)
class JobCancelled(JobEvent):
    """The job was cancelled, or skipped because another job holds its advisory lock."""

    reason: str


@dataclass(frozen=True, slots=True)
class JobExpired(JobEvent):
    """The job did not start within its misfire grace time."""


@dataclass(frozen=True, slots=True)
class JobLost(JobEvent):
    """The job was claimed by another worker or changed manually; this attempt's result is not recorded."""


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """This worker's lease expired; its running jobs were cancelled in this process."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class KeeperConnected(Event):
    """The lease keeper connected. It holds the liveness lock unless it is connected to a pooler."""

    has_lock: bool


@dataclass(frozen=True, slots=True)
class KeeperLost(Event):
    """The lease keeper has no connection. It reconnects unless the pool is too small for it.

    Until then, a blocked event loop costs the lease, and the death of this process may be detected only when
    its lease expires.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class LoopBlocked(Event):
    """The event loop resumed after it was blocked for ``seconds``.

    ``job_id`` and ``job_name`` identify the job that blocked it, None if it was not a job. ``stack`` is the
    stack of the event loop's thread when the block was detected.
    """

    job_id: str | None
    job_name: str | None
    seconds: float
    stack: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class JobsReclaimed(Event):
    """Jobs of dead workers, or of a claim whose response was lost, are pending again."""

    job_ids: tuple[str, ...]
    dead_workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobsVacuumed(Event):
    """The vacuum deleted finished jobs. Each field is the number of deleted jobs of a status."""

    completed: int
    failed: int
    cancelled: int
    expired: int


@dataclass(frozen=True, slots=True)
class PeriodicJobPlanned(Event):
    """This node enqueued the job of a fire time."""

    dedup_key: str
    job_id: str
    next_fire_at: datetime


@dataclass(frozen=True, slots=True)
class PeriodicJobBroken(Event):
    """A schedule's row is invalid; the planner skips it until it changes."""

    dedup_key: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class ListenerConnected(Event):
    """The LISTEN connection works: notifications arrive."""

    channel: str


@dataclass(frozen=True, slots=True)
class ListenerLost(Event):
    """The LISTEN connection is lost: jobs are found by polling alone."""

    reason: str


@dataclass(frozen=True, slots=True)
class PassFinished(Event):
    """A service finished one pass and sleeps for ``next_in`` seconds."""

    service: str
    seconds: float
    next_in: float


@dataclass(frozen=True, slots=True)
class ServiceRetrying(Event):
    """The database was unavailable in a service's pass; the next pass is in ``next_in`` seconds."""

    service: str
    error: BaseException
    next_in: float


@dataclass(frozen=True, slots=True)
class ServiceFaulted(Event):
    """A permanent error ended a service; the Scheduler shuts down."""

    service: str
    error: BaseException
