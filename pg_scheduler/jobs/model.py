"""The public values of jobs: what callers give for them, and what they receive."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Generic, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar, overload

from pg_scheduler.base.public import public
from pg_scheduler.base.status import JobStatus
from pg_scheduler.jobs.history import AttemptError
from pg_scheduler.jobs.progress import JobProgress

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@public
@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A function and its arguments, made by ``call()``. Its type parameter is what the function returns."""

    func: Callable[..., Any]
    """The function."""
    args: tuple[Any, ...]
    """The positional arguments."""
    kwargs: Mapping[str, Any]
    """The keyword arguments."""


@overload
def call(func: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
@overload
def call(func: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
def call(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Call[Any]:
    """Return a function and its arguments as one value, instead of ``args=`` and ``kwargs=``.

    It is accepted wherever a function is. So mypy and pyright check the arguments of a job as those of a
    direct call. Nothing is called.

    Args:
        func: The function to run.
        args: Its positional arguments, that JSON can represent.
        kwargs: Its keyword arguments, that JSON can represent.

    Example:
        >>> from pg_scheduler import call
        >>> async def send(to: str, *, copies: int = 1) -> None: ...
        >>> call(send, "ada@example.org", copies=2).args
        ('ada@example.org',)
    """
    return Call(func, args, kwargs)


public(call)


class TaskName(str):
    """The name of a registered task, as an object of another library gives it."""

    __slots__ = ()


class StandIn(NamedTuple):
    """What an object of another library that stands for a task returns from ``__job_stand_in__()``."""

    name: TaskName
    """The name of the task."""
    func: Callable[..., Any]
    """The registered function."""
    options: Mapping[str, Any]
    """The options of ``JobSpec`` in which the object differs from the task."""


def stand_in_of(target: object) -> StandIn | None:
    """Return the stand-in of an object that stands for a task, such as a task of Django; None for others."""
    method = getattr(type(target), "__job_stand_in__", None)
    stand_in: StandIn | None = None if method is None else method(target)
    return stand_in


class Unset(Enum):
    """The type of UNSET. It is an enum, so that copies and pickles are the same object."""

    UNSET = "UNSET"

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
"""An option that was not given: it takes the value of the schedule, the task or the Scheduler."""


AfterOutcome: TypeAlias = Literal["completed", "ended"]
"""Which end of another job lets a waiting job start: its completion only, or any end."""

JobFunction = Callable[..., Any]
"""A coroutine function, or a plain function that was declared."""


DEFAULT_TIMEOUT: Final = timedelta(hours=1)

DEFAULT_GRACE_S: Final = 300
"""The misfire grace time of a Scheduler, and so of jobs with a time, unless code sets another one."""


@public
class JobPriority(Enum):
    """The priority of a job. Every due job of a higher priority starts before any of a lower one."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def db_value(self) -> int:
        """The number in the ``priority`` column: 1, 3, 5 or 8. The lowest number runs first."""
        return _DB_VALUES[self]

    @classmethod
    def from_db_value(cls, db_value: int) -> JobPriority:
        """Return the priority of a number in the column; NORMAL for an unknown one."""
        return _PRIORITIES.get(db_value, cls.NORMAL)

    def __str__(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return f"<JobPriority.{self.name}: {self.value} (db_value={self.db_value})>"


_DB_VALUES: Final = {
    JobPriority.CRITICAL: 1,
    JobPriority.HIGH: 3,
    JobPriority.NORMAL: 5,
    JobPriority.LOW: 8,
}


_PRIORITIES: Final = {number: priority for priority, number in _DB_VALUES.items()}


@public
class ConflictResolution(Enum):
    """The behaviour when a job with the same id exists, or an unfinished one with the same unique key."""

    RAISE = "raise"
    """Raise JobConflictError, a ValueError with the id and the status of the existing job."""
    IGNORE = "ignore"
    """Keep the existing job and return its id."""
    REPLACE = "replace"
    """Store the new definition and restart the attempt count. A finished job becomes pending again. A running
    job finishes undisturbed, then runs again with the new definition."""


@public
@dataclass(frozen=True, slots=True)
class Job:
    """A job as read from its row."""

    job_id: str
    """The id, unique among all jobs."""
    job_name: str
    """The name of the function, or of the periodic job."""
    execution_time: datetime
    """When the job is due; after a failed attempt, when the retry is due."""
    status: JobStatus
    """The status."""
    args: tuple[Any, ...]
    """The positional arguments. Empty if the row's arguments cannot be decoded."""
    kwargs: Mapping[str, Any]
    """The keyword arguments. Empty if the row's arguments cannot be decoded."""
    priority: JobPriority
    """The priority."""
    attempt: int
    """The number of attempts so far, part of the fencing token. An expiry does not count as an attempt. A
    claim that a limit blocked does, although the function has not run."""
    retry_count: int
    """The number of failed attempts that were retried."""
    crash_count: int
    """The number of workers that died while they ran the job."""
    max_retries: int
    """The number of retries allowed after failed attempts."""
    misfire_grace_time: int | None
    """Seconds after ``execution_time`` within which the job may start; None for no limit."""
    timeout: timedelta | None
    """The time limit of one attempt; None for no limit."""
    created_at: datetime
    """When the job was scheduled first."""
    started_at: datetime | None
    """When the current or last attempt started; None for a pending job, and if there was none."""
    finished_at: datetime | None
    """When the job reached a terminal state; None before."""
    expires_at: datetime | None
    """When the job expires if it has not started; None for never."""
    last_heartbeat: datetime | None
    """When the worker last renewed the lease; None for a pending job, and if none has claimed it."""
    lease_until: datetime | None
    """Until when the worker that runs the job owns it; None unless the job is running."""
    worker_id: str | None
    """The worker that runs the job, or ran it last; None for a pending job, and if none has."""
    error_message: str | None
    """The error of the last failed attempt, or the reason of a cancellation or expiry; None for neither."""
    replacement: bool
    """Whether a new definition waits until the running attempt ends."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The metadata of the task, the schedule and the job. Empty if there is none."""
    errors: tuple[AttemptError, ...] = ()
    """The newest 10 attempts that did not simply complete, oldest first. ``retry_job()`` keeps them. A new
    definition clears them, except for attempts that were cancelled or lost within the last 2 seconds."""
    progress: JobProgress | None = None
    """The progress that the job reported last; None if it reported none."""
    blocked_on: str | None = None
    """The condition besides its time that delays the job: ``after``, ``limit:<name>:<key>`` or
    ``share:<name>:<key>``; None for nothing."""
    suspended_by: str | None = None
    """What a suspended job waits for: ``signal`` if it waits for a signal, perhaps among others; else
    ``sleep`` for the end of a sleep; else ``retry`` for the next call of a step that has failed; ``child`` if
    it waits for children only. None for a job that is not suspended, or that a worker of an earlier version
    has suspended."""
    unique_key: str | None = None
    """The key of which at most one unfinished job exists; None for a job that is not unique."""
    schedule_id: str | None = None
    """The id of the schedule that enqueued the job; None if no schedule did."""
    fire_time: datetime | None = None
    """The fire time of that schedule for which the job was enqueued; None if there is none."""
    no_args_reason: str | None = None
    """Why there are no arguments, such as ``encrypted with fernet, key 3fa9c210; ...``; None if there are."""
    deadline: datetime | None = None
    """When the job must have ended; None for no deadline."""


@public
@dataclass(frozen=True, slots=True)
class JobCounts:
    """The number of jobs in each status."""

    pending: int = 0
    """Jobs that are due, or will be."""
    running: int = 0
    """Jobs that a worker has claimed."""
    completed: int = 0
    """Jobs whose function returned."""
    failed: int = 0
    """Jobs that failed and are not retried."""
    cancelled: int = 0
    """Jobs that were cancelled or skipped."""
    expired: int = 0
    """Jobs that did not start in time."""

    @property
    def total(self) -> int:
        """The number of all jobs."""
        return self.pending + self.running + self.completed + self.failed + self.cancelled + self.expired


@public
@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as read from its row."""

    worker_id: str
    """The id, as in ``Scheduler.worker_id``."""
    hostname: str
    """The name of the machine."""
    pid: int
    """The id of the process on that machine."""
    version: str
    """The version of this library."""
    max_concurrent_jobs: int
    """The number of slots."""
    running_jobs: int
    """Jobs that ran at the last heartbeat."""
    started_at: datetime
    """When the worker registered."""
    last_beat: datetime
    """The last heartbeat."""
    lease_until: datetime
    """When its lease expires unless it is renewed."""
    is_alive: bool
    """Whether the lease is valid by the database's clock."""
    is_stopping: bool = False
    """Whether the worker has shut down while threads of its process, which cannot be stopped, still run."""
    role: str = "both"
    """The role: both, scheduler, worker or observer."""
    identity: str | None = None
    """The label that the worker was given; None for none."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The labels that the worker was given. Empty if the row's metadata is not a JSON object."""
    state: str | None = None
    """``running``, ``draining`` or ``stopping``; None for a worker of an earlier release."""
    wanted: str | None = None
    """The request to the worker: ``drain``; None for no request."""
    names: tuple[str, ...] | None = None
    """The names of the jobs that it claims while none is paused; None if it does not report them."""
    health: Mapping[str, Any] = field(default_factory=dict)
    """As of the last heartbeat: ``pool`` (``size``, ``idle``, ``max``), ``loop_lag_s``, ``is_listening``,
    ``has_liveness_lock`` and, from the second one on, ``clock_offset_s`` (seconds by which the clock of its
    host is ahead of that of the server, as measured by the heartbeat before). While the event loop is
    blocked, the lease keeper adds ``loop_blocked_s``, ``blocking_job_id`` and ``blocking_job_name``; for 15
    minutes afterwards there is ``last_blocked`` (``seconds``, ``job_id``, ``job_name``). While
    ``is_stopping``, there is ``held``: the attempts that run on, by job id. Empty for a worker of an earlier
    release."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the worker, and the limits of its tasks. Empty for a worker of an earlier release."""


T = TypeVar("T")


@public
class Page(list[T]):
    """A part of a longer list: a list with the position of the following part.

    A page can be short, or empty, although others follow: a call that filters examines a bounded number of
    rows. Only ``next`` shows whether the list ends.

    Args:
        items: The items of the page.
        next: The attribute of the same name.

    Example::

        page = await scheduler.list_jobs(status="failed")
        while page.next is not None:
            page = await scheduler.list_jobs(status="failed", after=page.next)
    """

    __slots__ = ("next",)

    next: str | None
    """The ``after=`` of the following page; None at the end."""

    def __init__(self, items: Iterable[T] = (), *, next: str | None = None) -> None:  # noqa: A002 - the name of the attribute
        super().__init__(items)
        self.next = next
