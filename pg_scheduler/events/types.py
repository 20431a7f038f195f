"""Events: immutable values, published after the database committed what they describe.

``@logged`` declares the level and the text of the log record of a class, and whether its events concern one
process only. ``log.py`` writes the records, and ``cluster_events`` sends the other events to all nodes.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeVar

BY_CALLER: Final = "cancelled by a caller"
"""The reason of a JobCancelled that ``cancel_job()`` caused."""

LOCK_TAKEN: Final = "skipped: another attempt holds the advisory lock"
"""The reason of a JobCancelled for a job that was skipped."""

EXPIRED: Final = "not started within its misfire grace time"
"""The reason of a JobExpired whose row has no exact one, and the text by which all expired jobs are counted.

Their own errors differ, because they name instants and workers."""


@dataclass(frozen=True, slots=True)
class Event:
    """The base class of all events."""


E = TypeVar("E", bound=Event)

LEVELS: Final[dict[type[Event], int]] = {}
"""The level of the log record of each class of events."""

TEXTS: Final[dict[type[Event], str]] = {}
"""The text of that record, with the names of fields."""


LOCAL: Final[set[type[Event]]] = set()
"""The classes whose events concern one process only, so other nodes do not receive them."""


def logged(level: int, text: str, *, is_local: bool = False) -> Callable[[type[E]], type[E]]:
    """Declare the level and the text of the log record of a class of events.

    Local events concern one process only, so other nodes do not receive them.
    """

    def declare(kind: type[E]) -> type[E]:
        """Note the values for a class, and return the class."""
        LEVELS[kind], TEXTS[kind] = level, text
        if is_local:
            LOCAL.add(kind)
        return kind

    return declare


# -- jobs ----------------------------------------------------------------------------------------------

_JOB: Final = "job %(job_name)s (id %(job_id)s, attempt %(attempt)s)"


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """The base class of the events of one attempt of one job."""

    job_id: str
    """The id of the job."""
    job_name: str
    """The name of the job."""
    attempt: int
    """The number of the attempt; 0 if there was none."""


@logged(logging.DEBUG, "job %(job_name)s (id %(job_id)s) scheduled for %(execution_time)s", is_local=True)
@dataclass(frozen=True, slots=True)
class JobScheduled(JobEvent):
    """This process stored a job: a new one, or a new definition of an existing one.

    The event is not published for a job in a transaction of the caller (``connection=``), because the library
    does not see its commit.
    """

    execution_time: datetime
    """When the job is due. For ``enqueue()``, this is the time of the call, some milliseconds before the
    stored time."""


@logged(logging.DEBUG, f"{_JOB} started, due at %(execution_time)s")
@dataclass(frozen=True, slots=True)
class JobStarted(JobEvent):
    """An attempt started."""

    execution_time: datetime
    """When the attempt was due."""


@logged(logging.DEBUG, f"{_JOB} waits: blocked on %(blocked_on)s")
@dataclass(frozen=True, slots=True)
class JobBlocked(JobEvent):
    """The job waits, because a limit of its task was full, or because it comes after other jobs.

    This uses no retry.
    """

    blocked_on: str
    """The limit and its key, as ``limit:<name>:<key>``, or ``after``."""


@logged(logging.DEBUG, f"{_JOB} completed")
@dataclass(frozen=True, slots=True)
class JobCompleted(JobEvent):
    """The job completed."""


@logged(logging.ERROR, f"{_JOB} failed, no retry: %(error)s%(hint)s")
@dataclass(frozen=True, slots=True)
class JobFailed(JobEvent):
    """The job failed and is not retried."""

    error: str
    """The text in ``error_message``."""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception that the attempt raised, with its traceback; None if it raised none."""
    hint: str | None = field(default=None, compare=False, repr=False)
    """Which default ended the job after its first attempt, and what changes it; None otherwise, and for later
    jobs of the same task on this worker."""


@logged(logging.ERROR, f"{_JOB} passed its deadline, no retry: %(error)s")
@dataclass(frozen=True, slots=True)
class JobDeadlineExceeded(JobFailed):
    """The job failed because its deadline passed. Subscribers to `JobFailed` receive it too."""

    deadline: datetime | None = field(default=None, kw_only=True)
    """The deadline."""


@logged(logging.WARNING, f"{_JOB} failed, retry in %(delay)s: %(error)s")
@dataclass(frozen=True, slots=True)
class JobRetried(JobEvent):
    """The attempt failed and is retried after the delay."""

    error: str
    """The text in ``error_message``."""
    delay: timedelta
    """The time until the retry is due."""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception that the attempt raised, with its traceback; None if it raised none."""


@logged(logging.INFO, f"{_JOB} snoozed, next attempt in %(delay)s")
@dataclass(frozen=True, slots=True)
class JobSnoozed(JobEvent):
    """The job runs again after the delay, and the attempt is not counted as a retry.

    It raised ``Snooze``, or another attempt holds its advisory lock and the job has begun before.
    """

    delay: timedelta
    """The time until the next attempt is due."""


@logged(logging.INFO, f"{_JOB} suspended by the %(kind)s %(step)s until %(until)s")
@dataclass(frozen=True, slots=True)
class JobSuspended(JobEvent):
    """The attempt ended because a step of the job waits; the job is pending and continues afterwards."""

    step: str
    """The name of the step."""
    kind: str
    """The kind of the step: ``sleep``, ``signal``, ``child``, or ``retry`` if it is called again later."""
    until: datetime
    """When the job is due at the latest."""


@logged(logging.DEBUG, f"{_JOB} reported progress: done %(done)s, total %(total)s")
@dataclass(frozen=True, slots=True)
class JobProgressed(JobEvent):
    """The progress that the job reported is written; see ``current_job().progress()``."""

    done: float
    """The amount of work that is done."""
    total: float | None = None
    """The amount of all work; None if it is unknown."""
    note: str | None = None
    """A text for people; None for no text."""


@logged(logging.DEBUG, f"{_JOB} has published values or items")
@dataclass(frozen=True, slots=True)
class JobPublished(JobEvent):
    """The attempt has published values or appended items to streams, which other processes can read now.

    One event stands for all that one statement has written.
    """


@logged(logging.WARNING, f"{_JOB} interrupted and released, attempt not counted")
@dataclass(frozen=True, slots=True)
class JobReleased(JobEvent):
    """The attempt was interrupted; the job is pending again and the attempt is not counted.

    A shutdown interrupted it; or, before it started, a lost lease or a database that was unavailable.
    """


@logged(logging.INFO, f"{_JOB} cancelled: %(reason)s")
@dataclass(frozen=True, slots=True)
class JobCancelled(JobEvent):
    """The job was cancelled, or skipped because another job holds its advisory lock."""

    reason: str
    """Why the job was cancelled or skipped."""


@logged(logging.WARNING, f"{_JOB} expired: %(reason)s")
@dataclass(frozen=True, slots=True)
class JobExpired(JobEvent):
    """The job did not start within its misfire grace time."""

    reason: str = field(default=EXPIRED, compare=False)
    """The text in ``error_message``."""


@logged(logging.WARNING, f"{_JOB} lost: claimed by another worker or changed manually, result not recorded")
@dataclass(frozen=True, slots=True)
class JobLost(JobEvent):
    """The job was claimed by another worker or changed manually; this attempt's result is not recorded."""


@logged(logging.WARNING, f"{_JOB}: its thread runs on after its timeout or cancellation, at\n%(stack)s")
@dataclass(frozen=True, slots=True)
class ThreadAbandoned(JobEvent):
    """A job's thread runs on, ``stop_grace`` seconds after its timeout or its cancellation.

    The job stays ``running``, so that no other attempt overlaps with it. The thread keeps its slot, unless
    ``max_stuck_threads`` of the worker lets another job have it.
    """

    stack: str = field(repr=False)
    """The stack of the thread."""
    has_slot: bool = True
    """Whether it keeps its slot."""


@logged(logging.WARNING, "jobs of dead workers %(dead_workers)s reclaimed: %(job_ids)s")
@dataclass(frozen=True, slots=True)
class JobsReclaimed(Event):
    """Jobs of dead workers, or of a claim whose response was lost, are pending again."""

    job_ids: tuple[str, ...]
    """The jobs that are pending again."""
    dead_workers: tuple[str, ...]
    """The workers that were declared dead; none after a lost response."""


@logged(
    logging.WARNING,
    "pending jobs reference the function %(job_name)s, which is not registered here "
    "(%(jobs)s, due since %(due_since)s)",
)
@dataclass(frozen=True, slots=True)
class UnregisteredName(Event):
    """Jobs have been due for 30 seconds, and their function is not registered on this worker.

    No worker that had a free slot has registered it either. Published at most once a minute for each name.
    The log record is a WARNING, or INFO if workers without a free slot may have registered the name.
    """

    job_name: str
    """The name of the function; the name of the jobs if their rows have no function."""
    jobs: int
    """The number of these jobs, among the 2,000 of each priority that were due first."""
    due_since: datetime
    """When the first of them was due."""
    suggestion: str | None
    """The most similar name that is registered here, None if there is none."""
    busy_workers: int = 0
    """Other workers without a free slot, which may have registered the name."""
    more_names: int = 0
    """How many further unregistered names have no event in this minute. It is 0 except in the last of ten
    events."""
    namesakes: tuple[str, ...] = ()
    """The tasks here whose functions have this bare name. If several have it, it leads to none of them."""


@logged(
    logging.INFO,
    "deleted jobs: %(completed)s completed, %(failed)s failed, %(cancelled)s cancelled, %(expired)s expired",
)
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


# -- tasks ---------------------------------------------------------------------------------------------


@logged(logging.INFO, "task %(task_name)s paused by %(actor)s")
@dataclass(frozen=True, slots=True)
class TaskPaused(Event):
    """A task was paused: its jobs wait on all nodes."""

    task_name: str
    """The name of the task."""
    paused_until: datetime | None
    """When the pause ends by itself; None if it lasts until the task is resumed."""
    note: str | None
    """Why it was paused."""
    actor: str
    """The Scheduler that paused it: its identity, else its worker id."""


@logged(logging.INFO, "task %(task_name)s resumed by %(actor)s")
@dataclass(frozen=True, slots=True)
class TaskResumed(Event):
    """The pause of a task ended. One node publishes it if the pause ended by itself."""

    task_name: str
    """The name of the task."""
    actor: str | None
    """The Scheduler that resumed it: its identity, else its worker id; None if the pause ended by itself."""


# -- schedules -----------------------------------------------------------------------------------------

_SCHEDULE: Final = "schedule %(schedule_id)s of %(task_name)s"
_FIRED: Final = f"{_SCHEDULE}: job %(job_id)s enqueued, next fire time %(next_fire_at)s"
_BROKEN: Final = f"{_SCHEDULE} cannot be planned and is paused, correct and resume it: %(error)s"


@dataclass(frozen=True, slots=True)
class ScheduleEvent(Event):
    """The base class of the events of one schedule."""

    schedule_id: str
    """The id of the schedule; of a periodic function, its dedup key."""
    task_name: str = field(default="", kw_only=True)
    """The name of its task; empty in an event of a node with an earlier release."""


@logged(logging.INFO, f"{_SCHEDULE} added")
@dataclass(frozen=True, slots=True)
class ScheduleAdded(ScheduleEvent):
    """This process added a schedule."""


@logged(logging.INFO, f"{_SCHEDULE} updated")
@dataclass(frozen=True, slots=True)
class ScheduleUpdated(ScheduleEvent):
    """This process changed the definition of a schedule."""


@logged(logging.INFO, f"{_SCHEDULE} removed")
@dataclass(frozen=True, slots=True)
class ScheduleRemoved(ScheduleEvent):
    """This process deleted a schedule."""


@logged(logging.INFO, f"{_SCHEDULE} paused: %(note)s")
@dataclass(frozen=True, slots=True)
class SchedulePaused(ScheduleEvent):
    """A schedule was paused, by a call of this process or after too many failures."""

    note: str | None
    """The note of the call, or the error."""
    paused_until: datetime | None = None
    """When the pause ends by itself; None if it lasts until the schedule is resumed."""


@logged(logging.INFO, f"{_SCHEDULE} resumed")
@dataclass(frozen=True, slots=True)
class ScheduleResumed(ScheduleEvent):
    """This process resumed a schedule, or planned one whose pause has ended by itself."""


@logged(logging.DEBUG, _FIRED)
@dataclass(frozen=True, slots=True)
class ScheduleFired(ScheduleEvent):
    """This node enqueued the job of a fire time."""

    job_id: str
    """The job that was enqueued."""
    next_fire_at: datetime | None
    """The next fire time of the schedule; None if there is none, or until the job has ended."""


@logged(logging.DEBUG, _FIRED)
@dataclass(frozen=True, slots=True)
class PeriodicJobPlanned(ScheduleFired):
    """This node enqueued the job of a fire time of a periodic function."""

    @property
    def dedup_key(self) -> str:
        """The key of the schedule."""
        return self.schedule_id


@logged(
    logging.INFO,
    f"{_SCHEDULE}: %(fire_times)s dropped, job %(last_job_id)s is unfinished",
)
@dataclass(frozen=True, slots=True)
class ScheduleSkipped(ScheduleEvent):
    """Fire times were dropped: the last job is unfinished, or another job has the unique key."""

    fire_times: int
    """The number of fire times."""
    last_job_id: str
    """The unfinished job."""


@logged(logging.WARNING, f"{_SCHEDULE} missed %(fire_times)s")
@dataclass(frozen=True, slots=True)
class ScheduleMissed(ScheduleEvent):
    """Fire times were missed and get no job."""

    fire_times: int
    """The number of fire times."""
    is_exact: bool
    """Whether the number is exact; if it is not, there were more."""


@logged(logging.INFO, f"{_SCHEDULE} finished: no further fire time")
@dataclass(frozen=True, slots=True)
class ScheduleFinished(ScheduleEvent):
    """The last fire time of a schedule was planned."""


@logged(logging.ERROR, _BROKEN)
@dataclass(frozen=True, slots=True)
class ScheduleBroken(ScheduleEvent):
    """A schedule could not be planned and is paused: its trigger raised, or its row is invalid."""

    error: BaseException
    """The exception of the trigger, or an exception that states what is invalid."""


@logged(logging.ERROR, _BROKEN)
@dataclass(frozen=True, slots=True)
class PeriodicJobBroken(ScheduleBroken):
    """The schedule of a periodic function could not be planned and is paused."""

    @property
    def dedup_key(self) -> str:
        """The key of the schedule."""
        return self.schedule_id


# -- workers and their services ------------------------------------------------------------------------


@logged(logging.INFO, "worker %(worker_id)s started on %(hostname)s, pid %(pid)s")
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


@logged(logging.INFO, "worker %(worker_id)s stopped")
@dataclass(frozen=True, slots=True)
class WorkerStopped(Event):
    """A Scheduler has written its results and stopped."""

    worker_id: str
    """The id of the Scheduler's worker."""


@logged(logging.ERROR, "worker %(worker_id)s lost its lease, its running jobs are cancelled")
@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """This worker's lease expired; its running jobs were cancelled in this process."""

    worker_id: str
    """The id of the Scheduler's worker."""


@logged(
    logging.ERROR,
    "outcome of job %(job_name)s (id %(job_id)s, attempt %(attempt)s) refused by the table, %(effect)s: "
    "%(error)s",
)
@dataclass(frozen=True, slots=True)
class OutcomeRefused(Event):
    """A trigger or a constraint of the table rejected the outcome of an attempt.

    The outcomes of other attempts are written. This outcome is then written without the error and the value
    of the job. If the table rejects that as well, the failure of the job is written. If the table rejects
    even the failure, the job stays running, and its worker tries to write the outcome every minute.
    """

    job_id: str
    """The id of the job."""
    job_name: str
    """The name of the job."""
    attempt: int
    """The number of the attempt."""
    error: str
    """The class and the message of the error."""
    effect: str
    """What was written instead."""


@logged(
    logging.WARNING,
    "outcome of job %(job_name)s (id %(job_id)s, attempt %(attempt)s) not written for %(seconds)s, because "
    "a row is locked: %(holders)s; end that transaction (outcomes that wait: %(number)s)",
)
@dataclass(frozen=True, slots=True)
class OutcomesDelayed(Event):
    """Outcomes of this worker wait for rows that other transactions have locked. Other outcomes are written.

    It is published five seconds after the first attempt to write them, and every minute from then on.
    """

    job_id: str
    """The id of the job whose outcome waits longest."""
    job_name: str
    """The name of the job."""
    attempt: int
    """The number of its attempt."""
    seconds: float
    """Seconds for which its outcome has waited."""
    holders: tuple[str, ...]
    """The sessions that hold the locks: process id, application, and the start of the transaction. Empty if
    the locks were free for a moment."""
    number: int
    """How many outcomes wait."""


@logged(logging.DEBUG, "lease keeper connected, liveness lock held", is_local=True)
@dataclass(frozen=True, slots=True)
class KeeperConnected(Event):
    """The lease keeper connected. It holds the liveness lock unless it is connected to a pooler."""

    has_lock: bool
    """Whether the keeper holds the liveness lock."""


@logged(logging.WARNING, "lease keeper not connected: %(reason)s", is_local=True)
@dataclass(frozen=True, slots=True)
class KeeperLost(Event):
    """The lease keeper has no connection. It reconnects unless the pool is too small for it.

    Until it has reconnected, a blocked event loop makes the worker lose its lease, and the death of this
    process may be detected only when its lease expires.
    """

    reason: str
    """Why there is no connection."""


@logged(logging.DEBUG, "listener connected, channel %(channel)s", is_local=True)
@dataclass(frozen=True, slots=True)
class ListenerConnected(Event):
    """The LISTEN connection works: notifications arrive."""

    channel: str
    """The notification channel."""


@logged(logging.WARNING, "listener not connected: %(reason)s", is_local=True)
@dataclass(frozen=True, slots=True)
class ListenerLost(Event):
    """The LISTEN connection is lost: jobs are found by polling alone."""

    reason: str
    """Why no notifications arrive."""


@logged(logging.WARNING, "event loop was blocked for %(seconds)s by job %(job_name)s (id %(job_id)s)")
@dataclass(frozen=True, slots=True)
class LoopBlocked(Event):
    """The event loop resumed after it was blocked."""

    job_id: str | None
    """The job that blocked the event loop; None if it was not a job, or the function of a chunk of jobs."""
    job_name: str | None
    """The name of that job, or of the jobs of that chunk; None if it was neither."""
    seconds: float
    """Seconds for which the event loop was blocked."""
    stack: str = field(repr=False)
    """The stack of the event loop's thread when the block was detected."""


@logged(logging.DEBUG, "%(service)s: pass took %(seconds)s, next pass in %(next_in)s", is_local=True)
@dataclass(frozen=True, slots=True)
class PassFinished(Event):
    """A service finished one pass and sleeps for ``next_in`` seconds."""

    service: str
    """The name of the service."""
    seconds: float
    """The duration of the pass in seconds."""
    next_in: float
    """Seconds until the next pass; infinite if it waits for a signal."""


@logged(logging.WARNING, "%(service)s: database unavailable, retry in %(next_in)s: %(error)s", is_local=True)
@dataclass(frozen=True, slots=True)
class ServiceRetrying(Event):
    """A service's pass failed; the next pass is in ``next_in`` seconds.

    The database was unavailable, a transaction of the application held a lock, or a trigger or a constraint
    of the application refused a row. The error shows which of these happened. In the first two cases, it is a
    ``DatabaseUnavailableError``, and for a lock, its cause has the SQLSTATE ``55P03``. In the third case, it
    is the error of the server.
    """

    service: str
    """The name of the service."""
    error: BaseException
    """The error of the pass."""
    next_in: float
    """Seconds until the next pass; infinite if there is none."""
    holders: tuple[str, ...] = ()
    """The sessions with the strongest locks on the tables, if the pass waited for a lock."""


@logged(logging.CRITICAL, "%(service)s failed, the Scheduler shuts down: %(error)s")
@dataclass(frozen=True, slots=True)
class ServiceFaulted(Event):
    """A permanent error ended a service; the Scheduler shuts down."""

    service: str
    """The name of the service."""
    error: BaseException
    """The error that ended it."""


# -- lost events ---------------------------------------------------------------------------------------


@logged(
    logging.WARNING,
    "event subscriber %(subscriber)s is 1,000 events behind; its oldest events are dropped",
    is_local=True,
)
@dataclass(frozen=True, slots=True)
class EventsDropped(Event):
    """An asynchronous subscriber or iterator was 1,000 events behind, so its oldest events were dropped.

    This subscriber receives the event in the place of the dropped ones, even if it has not subscribed to this
    class. No other subscriber receives it. The log has one WARNING each time that the subscriber falls so far
    behind.
    """

    number: int
    """How many events were dropped in this place."""
    subscriber: str
    """The name of the subscriber, ``events()`` or ``next_event()``."""


@logged(logging.WARNING, "events of other nodes may be lost since %(since)s", is_local=True)
@dataclass(frozen=True, slots=True)
class EventsMissed(Event):
    """Events of other nodes may be lost: read the rows of what you follow.

    It is published when notifications arrive again after the LISTEN connection was lost, and when the
    notifications of a node have a gap. Every subscriber with ``cluster=True`` receives it, even if it has not
    subscribed to this class.
    """

    since: datetime
    """When notifications last arrived, by the clock of this process."""
