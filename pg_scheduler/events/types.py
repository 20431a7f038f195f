"""Events: immutable values, published after the database committed what they describe."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

BY_CALLER: Final = "cancelled by a caller"
"""The reason of a JobCancelled that ``cancel_job()`` caused."""

LOCK_TAKEN: Final = "skipped: another attempt holds the advisory lock"
"""The reason of a JobCancelled for a job that was skipped."""


@dataclass(frozen=True, slots=True)
class Event:
    """The base class of all events."""


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    """A Scheduler has started and is about to claim jobs. No event of a job precedes it."""

    worker_id: str
    """The id of the Scheduler's worker."""
    hostname: str = field(default_factory=platform.node)
    """The name of the machine."""
    pid: int = field(default_factory=os.getpid)
    """The id of the process."""
    identity: str | None = None
    """The label of the Scheduler; None for none."""


@dataclass(frozen=True, slots=True)
class WorkerStopped(Event):
    """A Scheduler has written its results and stopped."""

    worker_id: str
    """The id of the Scheduler's worker."""


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """The base class of the events of one attempt of one job."""

    job_id: str
    """The id of the job."""
    job_name: str
    """The name of the job."""
    attempt: int
    """The number of the attempt; 0 if the job was never claimed."""


@dataclass(frozen=True, slots=True)
class JobScheduled(JobEvent):
    """This process stored a job: a new one, or a new definition of an existing one.

    Not published for jobs of a caller's transaction (``connection=``), whose commit the library does not see.
    """

    execution_time: datetime
    """When the job is due; of ``enqueue()``, earlier than the stored time by the milliseconds of its call."""


@dataclass(frozen=True, slots=True)
class JobStarted(JobEvent):
    """An attempt started."""

    execution_time: datetime
    """When the attempt was due."""


@dataclass(frozen=True, slots=True)
class JobBlocked(JobEvent):
    """The job waits: a limit of its task was full, which uses no retry, or it comes after other jobs."""

    blocked_on: str
    """The limit and its key, as ``limit:<name>:<key>``, or ``after``."""


@dataclass(frozen=True, slots=True)
class JobCompleted(JobEvent):
    """The job completed."""


@dataclass(frozen=True, slots=True)
class JobFailed(JobEvent):
    """The job failed and is not retried."""

    error: str
    """The text in ``error_message``."""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception that the attempt raised, with its traceback; None if it raised none."""


@dataclass(frozen=True, slots=True)
class JobRetried(JobEvent):
    """The attempt failed and is retried after the delay."""

    error: str
    """The text in ``error_message``."""
    delay: timedelta
    """The time until the retry is due."""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception that the attempt raised, with its traceback; None if it raised none."""


@dataclass(frozen=True, slots=True)
class JobSnoozed(JobEvent):
    """The job raised ``Snooze``: it runs again after the delay, and the attempt is not counted as a retry."""

    delay: timedelta
    """The time until the next attempt is due."""


@dataclass(frozen=True, slots=True)
class JobProgressed(JobEvent):
    """The progress that the job reported is written; see ``current_job().progress()``."""

    done: float
    """The amount of work that is done."""
    total: float | None = None
    """The amount of all work; None if it is unknown."""
    note: str | None = None
    """A text for people; None for no text."""


@dataclass(frozen=True, slots=True)
class JobReleased(JobEvent):
    """The shutdown interrupted the attempt; the job is pending again and the attempt is not counted."""


@dataclass(frozen=True, slots=True)
class JobCancelled(JobEvent):
    """The job was cancelled, or skipped because another job holds its advisory lock."""

    reason: str
    """Why the job was cancelled or skipped."""


@dataclass(frozen=True, slots=True)
class JobExpired(JobEvent):
    """The job did not start within its misfire grace time."""


@dataclass(frozen=True, slots=True)
class JobLost(JobEvent):
    """The job was claimed by another worker or changed manually; this attempt's result is not recorded."""


@dataclass(frozen=True, slots=True)
class ThreadAbandoned(JobEvent):
    """A job's thread runs on, ``stop_grace`` seconds after its timeout or its cancellation.

    The thread keeps its slot, and the job stays ``running``, so that no other attempt overlaps with it.
    """

    stack: str = field(repr=False)
    """The stack of the thread."""


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """This worker's lease expired; its running jobs were cancelled in this process."""

    worker_id: str
    """The id of the Scheduler's worker."""


@dataclass(frozen=True, slots=True)
class KeeperConnected(Event):
    """The lease keeper connected. It holds the liveness lock unless it is connected to a pooler."""

    has_lock: bool
    """Whether the keeper holds the liveness lock."""


@dataclass(frozen=True, slots=True)
class KeeperLost(Event):
    """The lease keeper has no connection. It reconnects unless the pool is too small for it.

    Until then, a blocked event loop costs the lease, and the death of this process may be detected only when
    its lease expires.
    """

    reason: str
    """Why there is no connection."""


@dataclass(frozen=True, slots=True)
class LoopBlocked(Event):
    """The event loop resumed after it was blocked."""

    job_id: str | None
    """The job that blocked the event loop; None if it was not a job."""
    job_name: str | None
    """The name of that job, or None."""
    seconds: float
    """For how long the event loop was blocked."""
    stack: str = field(repr=False)
    """The stack of the event loop's thread when the block was detected."""


@dataclass(frozen=True, slots=True)
class JobsReclaimed(Event):
    """Jobs of dead workers, or of a claim whose response was lost, are pending again."""

    job_ids: tuple[str, ...]
    """The jobs that are pending again."""
    dead_workers: tuple[str, ...]
    """The workers that were declared dead; none after a lost response."""


@dataclass(frozen=True, slots=True)
class UnregisteredName(Event):
    """Jobs have been due for 30 seconds, and their function is not registered on this worker.

    No worker that had a free slot has registered it either. Published at most once a minute for each name.
    The log record is a WARNING, or INFO if workers without a free slot may have registered the name.
    """

    job_name: str
    """The name of the function, else of the jobs."""
    jobs: int
    """The number of these jobs, among the 2,000 of each priority that were due first."""
    due_since: datetime
    """When the first of them was due."""
    suggestion: str | None
    """The most similar name that is registered here, None if there is none."""
    busy_workers: int = 0
    """Other workers without a free slot, which may have registered the name."""
    more_names: int = 0
    """Further such names, which have no event in this minute. 0 except in the last of ten events."""


@dataclass(frozen=True, slots=True)
class JobsVacuumed(Event):
    """The vacuum deleted finished jobs."""

    completed: int
    """The number of completed jobs that were deleted."""
    failed: int
    """The number of failed jobs that were deleted."""
    cancelled: int
    """The number of cancelled jobs that were deleted."""
    expired: int
    """The number of expired jobs that were deleted."""


@dataclass(frozen=True, slots=True)
class ListenerConnected(Event):
    """The LISTEN connection works: notifications arrive."""

    channel: str
    """The notification channel."""


@dataclass(frozen=True, slots=True)
class ListenerLost(Event):
    """The LISTEN connection is lost: jobs are found by polling alone."""

    reason: str
    """Why no notifications arrive."""


@dataclass(frozen=True, slots=True)
class PassFinished(Event):
    """A service finished one pass and sleeps for ``next_in`` seconds."""

    service: str
    """The name of the service."""
    seconds: float
    """The duration of the pass."""
    next_in: float
    """Seconds until the next pass; infinite if it waits for a signal."""


@dataclass(frozen=True, slots=True)
class ServiceRetrying(Event):
    """The database was unavailable in a service's pass; the next pass is in ``next_in`` seconds."""

    service: str
    """The name of the service."""
    error: BaseException
    """The error of the pass."""
    next_in: float
    """Seconds until the next pass; infinite if there is none."""


@dataclass(frozen=True, slots=True)
class ServiceFaulted(Event):
    """A permanent error ended a service; the Scheduler shuts down."""

    service: str
    """The name of the service."""
    error: BaseException
    """The error that ended it."""
