"""A job's values: what a caller asks for, what lies in the row, what a worker holds."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from pg_scheduler.errors import ConfigurationError

__all__ = [
    "DEFAULT_TIMEOUT",
    "UNSET",
    "Claim",
    "ConflictResolution",
    "FreshJob",
    "Job",
    "JobCounts",
    "JobFunction",
    "JobPriority",
    "JobSpec",
    "JobStatus",
    "NewJob",
    "Unset",
    "Worker",
]

JobFunction = Callable[..., Coroutine[Any, Any, Any]]

T = TypeVar("T")

DEFAULT_TIMEOUT: Final = timedelta(hours=1)

MAX_ID_BYTES: Final = 2000
"""A row of a PostgreSQL index holds at most 2,704 bytes, and the claim index holds more than the id."""

MAX_INTEGER: Final = 2**31 - 1

PLAIN: Final = (str, int, float, Enum, type(None))

INFINITIES: Final = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
"""What asyncpg takes for them."""


class Unset(Enum):
    """The type of UNSET, which tells "not given" from None."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "<unset>"


UNSET: Final = Unset.UNSET


class JobStatus(StrEnum):
    """Where a job is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_finished(self) -> bool:
        """True for a status that a job does not leave by itself."""
        return self not in (JobStatus.PENDING, JobStatus.RUNNING)

    @classmethod
    def parse(cls, status: object) -> JobStatus:
        """A status from itself or its text; anything else is a ValueError."""
        text = status.value if isinstance(status, Enum) else status
        try:
            return cls(str(text))
        except ValueError:
            known = ", ".join(repr(member.value) for member in cls)
            raise ValueError(f"status {status!r} is unknown. A status is one of {known}.") from None


class JobPriority(Enum):
    """How urgent a job is: every due job of a higher priority starts before any of a lower one."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def db_value(self) -> int:
        """The number in the ``priority`` column: 1, 3, 5 or 8; the lowest runs first."""
        return _DB_VALUES[self]

    @classmethod
    def from_db_value(cls, db_value: int) -> JobPriority:
        """The priority of a column's number; an unknown number is NORMAL."""
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


class ConflictResolution(Enum):
    """What to do when a job of the same id exists."""

    RAISE = "raise"
    """Refuse with JobConflictError, a ValueError that names the id and the status it has."""
    IGNORE = "ignore"
    """Keep the old job as it is and return its id."""
    REPLACE = "replace"
    """Take the new definition, with its tries unused. A finished job becomes pending again; a running
    one finishes undisturbed and then runs again with the new definition."""


@dataclass
class JobSpec:
    """One job of a bulk call.

    Args:
        func: The coroutine function to run.
        execution_time: When; timezone-aware.
        args: Positional arguments; JSON carries them.
        kwargs: Keyword arguments; JSON carries them.
        priority: Jobs of a higher priority start first.
        max_retries: Tries after the first one.
        job_id: Your own id; made for you when None.
        misfire_grace_time: Seconds after ``execution_time`` within which the job may still start; None
            for ever; left out, the scheduler's.
        timeout: Seconds (or a timedelta) one try may take; None for ever; left out, the function's
            default, which is an hour unless ``@job`` says otherwise.

    Example:
        >>> from datetime import UTC, datetime
        >>> from pg_scheduler import JobSpec
        >>> async def send(to: str) -> None: ...
        >>> JobSpec(send, datetime(2030, 1, 1, tzinfo=UTC), args=("ada@example.org",)).max_retries
        0
    """

    func: JobFunction
    execution_time: datetime
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    priority: JobPriority = JobPriority.NORMAL
    max_retries: int = 0
    job_id: str | None = None
    misfire_grace_time: int | Unset | None = UNSET
    timeout: float | timedelta | Unset | None = field(default=UNSET, kw_only=True)


class NewJob(NamedTuple):
    """A job checked and ready to be inserted.

    A tuple, since a bulk call makes many; what differs from job to job comes before what many share.
    """

    job_id: str
    task_data: str
    execution_time: datetime
    job_name: str
    priority: int
    max_retries: int
    misfire_grace_time: int | None
    timeout_seconds: float | None
    function: str | None = None
    lock_key: int | None = None


class FreshJob(NewJob):
    """One whose id was made for it, so that it cannot be taken. There is a cheaper way into the table."""

    __slots__ = ()


class Claim(NamedTuple):
    """One try of one job, held by this worker under a fresh token: (job_id, its own id, attempt).

    A tuple in the order of the claim statement's columns: there is one for every job that runs.
    """

    job_id: str
    job_name: str
    function: str
    attempt: int
    execution_time: datetime
    task_data: str
    priority: int
    retry_count: int
    max_retries: int
    timeout_seconds: float | None
    lock_key: int | None


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its row says.

    ``attempt`` counts claims, ``retry_count`` failed tries that were retried. ``timeout`` None means for
    ever, ``expires_at`` None never. ``replacement`` is True while a running job has a new definition
    waiting for it.
    """

    job_id: str
    job_name: str
    execution_time: datetime
    status: JobStatus
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    priority: JobPriority
    attempt: int
    retry_count: int
    max_retries: int
    misfire_grace_time: int | None
    timeout: timedelta | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    last_heartbeat: datetime | None
    lease_until: datetime | None
    worker_id: str | None
    error_message: str | None
    replacement: bool


@dataclass(frozen=True, slots=True)
class JobCounts:
    """How many jobs have each status."""

    pending: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0

    @property
    def total(self) -> int:
        """All jobs in the table."""
        return self.pending + self.running + self.completed + self.failed + self.cancelled + self.expired


@dataclass(frozen=True, slots=True)
class Worker:
    """A running Scheduler as its row says; ``is_alive`` is judged by the database's clock."""

    worker_id: str
    hostname: str
    pid: int
    version: str
    max_concurrent_jobs: int
    running_jobs: int
    started_at: datetime
    last_beat: datetime
    lease_until: datetime
    is_alive: bool


def check_job_id(job_id: object) -> str:
    """The id, if the table can hold it."""
    if not isinstance(job_id, str):
        raise TypeError(f"job_id must be a str, not {type(job_id).__name__}: {job_id!r}")
    if not job_id:
        raise ValueError("job_id must not be empty. Leave it out (or pass None) to have one made.")
    size = len(check_text("job_id", job_id).encode())
    if size > MAX_ID_BYTES:
        raise ValueError(f"job_id has {size} bytes of UTF-8; at most {MAX_ID_BYTES} fit into the index.")
    return job_id


def check_text(name: str, value: object) -> str:
    """A text that PostgreSQL can store."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}: {value!r}")
    if "\x00" in value:
        raise ValueError(f"{name} {value!r} holds a NUL character, which PostgreSQL cannot store.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} {value!r} holds a lone surrogate, which is no text: {error}") from error
    return value


def check_execution_time(execution_time: object, *, name: str = "execution_time") -> datetime:
    """The time in UTC; a naive one is refused, since its zone could only be guessed."""
    if not isinstance(execution_time, datetime):
        raise TypeError(f"{name} must be a datetime, not {type(execution_time).__name__}")
    if execution_time.tzinfo is not UTC and execution_time.utcoffset() is None:
        raise ValueError(
            f"{name} {execution_time.isoformat()} has no time zone. "
            "Use datetime.now(UTC) + timedelta(...), or datetime(..., tzinfo=ZoneInfo('Europe/Berlin'))."
        )
    try:
        instant = execution_time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{name} {execution_time.isoformat()} is out of range in UTC.") from error
    if instant in INFINITIES:
        raise ValueError(f"{name} {execution_time.isoformat()} is out of range: it means no instant.")
    return instant


def check_count(name: str, value: object, *, least: int = 0, most: int = MAX_INTEGER) -> int:
    """A whole number that the integer column can hold."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}: {value!r}")
    if not least <= value <= most:
        shown = value if value.bit_length() <= 64 else f"an int of {value.bit_length()} bits"
        raise ConfigurationError(f"{name} must be between {least} and {most}, not {shown}.")
    return value


def check_grace(value: object) -> int | None:
    """Seconds of grace, or None for ever."""
    return None if value is None else check_count("misfire_grace_time", value)


def check_timeout(value: object) -> float | None:
    """A try's time limit in seconds, or None for ever."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"timeout must be seconds, a timedelta or None, not {type(value).__name__}: {value!r}"
        )
    try:
        seconds = float(value)
    except OverflowError:  # an int
        seconds = float("inf")
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(
            f"timeout must be more than 0 seconds and finite, not {seconds}. None means for ever."
        )
    return seconds


def check_kind(name: str, value: object, kind: type[T]) -> T:
    """The value, if it is of this class. What is refused is not shown if it could hold a job's arguments."""
    if not isinstance(value, kind):
        shown = f": {value!r}" if isinstance(value, PLAIN) else ""
        raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}{shown}")
    return value
