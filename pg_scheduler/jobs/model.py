"""Public values of a job: its specification, its row as read, its status and priority."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from typing import Any, Final

__all__ = [
    "DEFAULT_TIMEOUT",
    "UNSET",
    "ConflictResolution",
    "Job",
    "JobCounts",
    "JobFunction",
    "JobPriority",
    "JobSpec",
    "JobStatus",
    "Unset",
    "Worker",
]

JobFunction = Callable[..., Coroutine[Any, Any, Any]]


DEFAULT_TIMEOUT: Final = timedelta(hours=1)


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
