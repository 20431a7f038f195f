"""What an explanation is derived from: facts about a job and about what it needs, at one instant.

Each value is None where the fact is not available: statistics are off, a worker of an earlier release does
not report its names, or the reader may not read a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.pause import Pause
from pg_scheduler.status import JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """A worker that has a row.

    Attributes:
        worker_id: Its id.
        hostname: The name of its machine.
        slots: The number of its slots.
        running_jobs: Jobs that ran at its last heartbeat.
        is_alive: Whether its lease is valid.
        claims_jobs: Whether its role runs jobs.
        is_draining: Whether it claims no more jobs, or has shut down.
        names: The names that it claims; None if it does not report them.
        lease_until: When its lease expires.
        reclaim_at: When its jobs are reclaimed at the latest if it is not renewed.
        loop_blocked_s: Seconds for which its event loop has been blocked; None if it is not.
        blocking_job_id: The job that blocks the event loop; None if that is unknown.
        missing_executor: The executor of the job, if the worker has registered its function without it.
    """

    worker_id: str
    hostname: str
    slots: int
    running_jobs: int
    is_alive: bool
    claims_jobs: bool
    is_draining: bool
    names: frozenset[str] | None
    lease_until: datetime
    reclaim_at: datetime | None = None
    loop_blocked_s: float | None = None
    blocking_job_id: str | None = None
    missing_executor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """The limit that a job waits for.

    Attributes:
        name: Its name.
        key: Its key; empty for a limit without keys.
        running: Attempts that run within it.
        starts: Starts within its time span that it still counts.
        max_running: Attempts that may run at once; None for no limit, or if no Scheduler here declares it.
        max_starts: Attempts that may start within its time span; None likewise.
        is_spread: Whether the starts are spread over the time span, so that one may wait for its turn.
        room_at: When a start stops counting, so that another attempt may start; None if that is unknown.
    """

    name: str
    key: str
    running: int
    starts: int
    max_running: int | None = None
    max_starts: int | None = None
    is_spread: bool = False
    room_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A session that holds a lock which the job needs.

    Attributes:
        pid: The process id of its backend.
        application: Its application name.
        since: When its transaction began; None if that is unknown.
        statement: Its statement, or its last one; None if the reader may not see it.
    """

    pid: int
    application: str
    since: datetime | None = None
    statement: str | None = None


@dataclass(frozen=True, slots=True)
class ParentJob:
    """A job that another one waits for; its status is None if it does not exist."""

    job_id: str
    status: JobStatus | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePosition:
    """The due jobs that start before a due job.

    Attributes:
        ahead: Their number.
        outranked_by: The number of those that have a higher priority.
        is_capped: Whether counting stopped, so that there may be more.
    """

    ahead: int
    outranked_by: int
    is_capped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """The schedule that enqueued the job.

    Attributes:
        schedule_id: Its id.
        exists: Whether it has a row.
        paused_at: When it was paused; None if it is not paused.
        note: Why it was paused.
    """

    schedule_id: str
    exists: bool = True
    paused_at: datetime | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatistics:
    """What workers measured in the last minutes.

    Attributes:
        starts_per_s: Attempts of any name that started per second, on all workers together.
        run_p95_s: The duration in seconds that 95 of 100 attempts of this name did not exceed.
    """

    starts_per_s: float | None = None
    run_p95_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that an explanation considers.

    Attributes:
        job: The job.
        task: The name that a worker must claim for it: that of its function.
        now: The instant of the facts.
        workers: Every worker.
        pause: The pause of the task; None if it is not paused.
        limit: The limit that the job waits for.
        parents: The unfinished jobs that it waits for.
        schedule: Its schedule; None if it has none.
        queue: The due jobs before it.
        statistics: What workers measured.
        row_lock: The session that has locked its row.
        advisory_lock: The session that holds its advisory lock.
        standby_lag_s: How old the facts are if they come from a standby; None if they do not.
        slot_use: For an expired job, the names whose attempts ended while it was due, and their seconds.
    """

    job: Job
    task: str
    now: datetime
    workers: Sequence[WorkerState] = ()
    pause: Pause | None = None
    limit: LimitUse | None = None
    parents: Sequence[ParentJob] = ()
    schedule: ScheduleState | None = None
    queue: QueuePosition | None = None
    statistics: TaskStatistics | None = None
    row_lock: LockHolder | None = None
    advisory_lock: LockHolder | None = None
    standby_lag_s: float | None = None
    slot_use: Sequence[tuple[str, float]] = ()
