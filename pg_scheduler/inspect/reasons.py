"""An explanation: a verdict, and reasons with codes. Jobs of different statuses share some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from pg_scheduler.inspect.facts import Facts
from pg_scheduler.inspect.store.inspections import InspectedWorker
from pg_scheduler.inspect.texts import command, hosts, instant, length, short

MAX_STANDBY_LAG_S: Final = 1.0


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


def about_schedule(facts: Facts) -> Iterator[Reason]:
    """Yield why no further job of the schedule follows."""
    schedule_id, schedule = facts.job.schedule_id, facts.schedule
    if schedule_id is None:
        return
    if schedule is None:
        yield Reason(
            ReasonCode.SCHEDULE_UNKNOWN,
            f"its schedule {schedule_id!r} does not exist any more, so no further job follows",
        )
    elif schedule.paused_at is not None:
        note = "" if schedule.note is None else f": {short(schedule.note)}"
        end = "" if schedule.paused_until is None else f" until {instant(schedule.paused_until)}"
        yield Reason(
            ReasonCode.SCHEDULE_PAUSED,
            f"its schedule {schedule_id!r} is paused{end}, so no further job follows{note}",
            f"await scheduler.schedules.resume({schedule_id!r})",
            schedule.paused_at,
            command("schedules", "resume", schedule_id),
        )


def about_standby(facts: Facts) -> Iterator[Reason]:
    """Yield how old the facts are, if they are old."""
    if facts.standby_lag_s is not None and facts.standby_lag_s > MAX_STANDBY_LAG_S:
        yield Reason(
            ReasonCode.STANDBY_LAG,
            f"this was read from a standby that is {length(facts.standby_lag_s)} behind",
            "ask again without read_pool=",
        )


def loop_blocked(workers: Sequence[InspectedWorker]) -> Reason:
    """Return the reason that these workers have blocked event loops."""
    (worker, *_) = workers
    by = "" if worker.blocking_job_id is None else f" by job {worker.blocking_job_id!r}"
    blocked = length(worker.loop_blocked_s or 0)
    return Reason(
        ReasonCode.LOOP_BLOCKED,
        f"the event loop of {hosts(workers)} has been blocked for {blocked}{by}",
        "declare the blocking function as a plain one, so that it runs in a thread",
    )
