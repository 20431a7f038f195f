"""An explanation: a verdict, and reasons with codes. Jobs of different statuses share some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pg_scheduler.inspect.store.workers import InspectedWorker
from pg_scheduler.inspect.texts import hosts, length


class ReasonCode(StrEnum):
    """Why a job is where it is. Each code has an entry in the runbook."""

    NOT_DUE = "NOT_DUE"
    """Its time has not come."""
    BACKOFF = "BACKOFF"
    """It waits before its next attempt."""
    SLEEPING = "SLEEPING"
    """A step of it sleeps."""
    SIGNAL = "SIGNAL"
    """It waits for a signal."""
    NO_WORKER = "NO_WORKER"
    """No live worker runs jobs."""
    NAME_UNKNOWN = "NAME_UNKNOWN"
    """No live worker claims its name."""
    TASK_PAUSED = "TASK_PAUSED"
    """Its task is paused."""
    SLOTS_FULL = "SLOTS_FULL"
    """Every slot of the workers that claim its name is in use, or due jobs start before it."""
    OUTRANKED = "OUTRANKED"
    """Due jobs of a higher priority start before it."""
    LIMIT = "LIMIT"
    """It waits for a limit."""
    SHARE = "SHARE"
    """It waits for the turn of its tenant."""
    AFTER = "AFTER"
    """It waits for other jobs."""
    ROW_LOCKED = "ROW_LOCKED"
    """A transaction has locked its row."""
    DRAINING = "DRAINING"
    """Every worker that claims its name is draining."""
    STANDBY_LAG = "STANDBY_LAG"
    """The facts come from a standby that lags."""
    RUNNING = "RUNNING"
    """A worker runs it."""
    LEASE_EXPIRED = "LEASE_EXPIRED"
    """It was running, and its lease has expired."""
    LOOP_BLOCKED = "LOOP_BLOCKED"
    """The event loop of its worker, or of every worker that claims its name, is blocked."""
    LOCK_HELD = "LOCK_HELD"
    """Another attempt holds its advisory lock."""
    EXPIRED = "EXPIRED"
    """It did not start within its misfire grace time."""
    QUARANTINED = "QUARANTINED"
    """Too many workers died while they ran it."""
    FAILED = "FAILED"
    """It failed."""
    CANCELLED = "CANCELLED"
    """It was cancelled or skipped."""
    REPLACED = "REPLACED"
    """A new definition waits for the end of its attempt."""
    SCHEDULE_PAUSED = "SCHEDULE_PAUSED"
    """Its schedule is paused, so no further job follows."""
    SCHEDULE_UNKNOWN = "SCHEDULE_UNKNOWN"
    """Its schedule does not exist any more, so no further job follows."""
    NEARLY_EXPIRED = "NEARLY_EXPIRED"
    """It expires soon unless it starts."""
    SHOULD_RUN_NOW = "SHOULD_RUN_NOW"
    """Nothing prevents its start."""


class Verdict(StrEnum):
    """The state of a job, in one word."""

    COMPLETED = "completed"
    """It completed."""
    ENDED = "ended"
    """It failed, expired or was cancelled, and will not run again."""
    RUNNING = "running"
    """A worker runs it."""
    WAITING = "waiting"
    """It starts when it is due, when there is room, or when its signal comes."""
    HELD = "held"
    """It does not start until something changes: a worker starts, a pause or a lock ends."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why a job is where it is."""

    code: ReasonCode
    """The code."""
    text: str
    """The observed facts, with their values."""
    remedy: str | None = None
    """The recommended action; None if no action is needed."""
    since: datetime | None = None
    """Since when; None if that is unknown."""
    command: str | None = None
    """The shell command of the remedy, such as ``pg-scheduler jobs retry mail:9``; None if there is none."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job runs, waits or has ended."""

    verdict: Verdict
    """The state of the job, in one word."""
    reasons: tuple[Reason, ...]
    """The reasons, the most decisive first. Empty for a completed job."""
    eta: datetime | None = None
    """When it will probably start, or end if it runs; None if that cannot be estimated."""


def loop_blocked(workers: Sequence[InspectedWorker]) -> Reason:
    """Return the reason that these workers have blocked event loops."""
    block = workers[0].health.block
    by = "" if block is None or block.job_id is None else f" by job {block.job_id!r}"
    blocked = length(0 if block is None else block.seconds)
    return Reason(
        ReasonCode.LOOP_BLOCKED,
        f"the event loop of {hosts(workers)} has been blocked for {blocked}{by}",
        "declare the blocking function as a plain one, so that it runs in a thread",
    )
