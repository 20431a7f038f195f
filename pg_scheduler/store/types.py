"""Values that the repositories take and return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Final, NamedTuple, TypeAlias

from pg_scheduler.jobs.model import JobPriority
from pg_scheduler.jobs.rows import Claim

DUE: Final = "due"
"""The message that a job is due, or will be soon; see ``store/connections/listen.py``."""

DRAIN: Final = "drain"
"""What a worker is requested to do: claim no more jobs."""

HEARTBEAT_REQUEST: Final = "check"
"""The message that a worker is to make a heartbeat; its id follows."""

PERIODIC: Final = "periodic"
"""The message that schedules were changed."""

PRIORITY_LEVELS: Final = {priority.db_value: level for level, priority in enumerate(JobPriority)}
"""The position of each priority in a claim position, by its number in the database; the most urgent first."""

ClaimPosition: TypeAlias = Sequence[datetime | None]
"""For each priority, the instant before which no job is left to claim; None if that is unknown."""

FROM_THE_START: Final[ClaimPosition] = (None,) * len(PRIORITY_LEVELS)

NO_IDS: Final = ("",) * len(PRIORITY_LEVELS)
"""For each priority, the job id before which no job is left to claim at that instant."""


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """The result of ``exchange()``, which writes completions and claims jobs.

    Attributes:
        jobs: Claimed jobs, in the order in which they start.
        expired: Jobs that were found past their misfire grace time.
        due_in: Seconds until the next job of a known name is due; negative if it is due and could not be
            claimed, None if there is none, or if as many jobs were claimed as asked for.
        refused: Ids of completions that ``settle()`` has to decide: the job is lost, its end has
            consequences, or its row is locked.
        silence: Whether the liveness lock of another worker is free.
        crashed: The id of the claimed or expired crashed job; None if there is none.
        read: The number of entries of the claim index that were read, those of dead rows included; 0 if they
            were not counted.
        at: The server's time; None after a cheaper claim.
    """

    jobs: list[Claim]
    expired: list[Claim]
    due_in: float | None
    refused: set[str] = field(default_factory=set)
    silence: bool = False
    crashed: str | None = None
    read: int = field(default=0, compare=False)
    at: datetime | None = field(default=None, compare=False)


class JobFilters(NamedTuple):
    """The values that selected jobs have; None for any value.

    Attributes:
        statuses: One of these statuses.
        job_name: The name.
        worker_id: The worker that runs them, or ran them last.
        due_from: The first due time.
        due_before: The due time before which they are due.
        metadata: JSON text that their metadata contain.
    """

    statuses: Sequence[str] | None = None
    job_name: str | None = None
    worker_id: str | None = None
    due_from: datetime | None = None
    due_before: datetime | None = None
    metadata: str | None = None


class CancelledJob(NamedTuple):
    """A job that was cancelled with others, and the worker that ran it and must be notified."""

    job_id: str
    job_name: str
    attempt: int
    worker_id: str | None


class Overlooked(NamedTuple):
    """What a search found in front of the position from which jobs are claimed.

    Attributes:
        due: When the first claimable job there is due; None if there is none.
        read: The number of index entries that the search read.
    """

    due: datetime | None
    read: int


class UnreadableJob(NamedTuple):
    """A job that failed because its row cannot be read."""

    job_id: str
    job_name: str
    attempt: int
    error: str
    exception: Exception


@dataclass(frozen=True, slots=True)
class RenewResult:
    """The result of renewing the leases of a worker and its jobs.

    Attributes:
        alive: Whether the worker still has its row.
        lost: Ids of jobs that the worker no longer holds.
        now: The server's time.
        late: Whether the lease had expired. The next heartbeat is then the first that counts.
        subscriptions: The classes of events that other workers want, as they wrote them.
        wanted: What is requested of the worker: ``drain``, or None for nothing.
    """

    alive: bool
    lost: list[str]
    now: datetime
    late: bool = False
    subscriptions: Sequence[str | None] = ()
    wanted: str | None = None


class TouchedJob(NamedTuple):
    """A job that was to be deleted or moved.

    Attributes:
        job_id: Its id.
        status: Its status before.
        changed: Whether it was deleted or moved.
        execution_time: When it is due, if it was moved.
    """

    job_id: str
    status: str
    changed: bool
    execution_time: datetime | None = None


class WorkerReport(NamedTuple):
    """What a worker reports about itself.

    Attributes:
        state: ``running``, ``draining`` or ``stopping``.
        health: Its connections, the delay of its event loop, and whether it listens and holds its lock.
        names: The names that it claims; None if they are written already.
    """

    state: str
    health: Mapping[str, Any]
    names: Sequence[str] | None = None


class NextInstants(NamedTuple):
    """Seconds until the next instant at which something happens; None if nothing will."""

    due_in: float | None
    """Until the next pending job is due."""
    expiry_in: float | None
    """Until the next pending job, or the lease of another worker, expires."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds until the next expiry; negative if it is overdue, None if nothing will expire.

    Attributes:
        lapse_in: Until the first lease expires.
        expiry_in: Until the first pending job expires.
        has_overdue: Whether a pending job was due 30 seconds ago.
        has_ended: Whether the consequences of a job that has ended are to be applied.
        has_waiting: Whether jobs wait for other jobs.
        has_blocked: Whether a limit blocks a job.
    """

    lapse_in: float | None
    expiry_in: float | None
    has_overdue: bool = False
    has_ended: bool = False
    has_waiting: bool = False
    has_blocked: bool = False


class OverdueName(NamedTuple):
    """A name of overdue jobs.

    Attributes:
        name: The name.
        jobs: The number of its overdue jobs that were counted.
        due_since: When the first of them was due.
        busy_workers: Other workers without a free slot, which may have registered the name.
    """

    name: str
    jobs: int
    due_since: datetime
    busy_workers: int


class ExpiredJob(NamedTuple):
    """A job that expired before a worker could claim it."""

    job_id: str
    job_name: str
    attempt: int


class Quarantined(NamedTuple):
    """A job that failed because too many workers died while they ran it."""

    job_id: str
    job_name: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class RescueResult:
    """The workers and jobs that ``rescue()`` changed.

    Attributes:
        dead_workers: Workers that were declared dead.
        job_ids: Jobs that are pending again.
        quarantined: Jobs that failed instead.
        due: When the first of the pending jobs was due; None if there is none.
    """

    dead_workers: list[str]
    job_ids: list[str]
    quarantined: list[Quarantined] = field(default_factory=list)
    due: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class StatusChange:
    """Whether a job was changed, and the worker that ran it and must be notified.

    Attributes:
        due: When the job is due whose status was set; None if it is unchanged or cancelled.
    """

    changed: bool
    worker_id: str | None = None
    job_name: str = field(default="", compare=False)
    attempt: int = field(default=0, compare=False)
    due: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class VacuumDay:
    """A row of ``vacuum_stats``."""

    stat_date: date
    deleted_completed: int
    deleted_failed: int
    deleted_cancelled: int
    deleted_expired: int
    last_run: datetime | None
    worker_id: str | None


@dataclass(frozen=True, slots=True)
class VacuumTotal:
    """The sum of all rows of ``vacuum_stats``."""

    total_completed: int
    total_failed: int
    total_cancelled: int
    total_expired: int
    last_vacuum_run: datetime | None
