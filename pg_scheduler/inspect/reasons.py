"""An explanation: a verdict, and reasons with codes. Jobs of different statuses share some of the codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple

from pg_scheduler.inspect.store.workers import InspectedWorker
from pg_scheduler.inspect.texts import hosts, length


class ReasonScope(StrEnum):
    """What the texts of a reason mention, which decides who may read them."""

    JOB = "job"
    """The job alone, so everyone who may see the job may read the texts."""
    TASK = "task"
    """The job and its task, whose name may differ from that of the job."""
    OTHERS = "others"
    """The job, and other jobs, tasks or sessions."""


class ReasonCode(StrEnum):
    """Why a job is where it is. Each code has an entry in the runbook."""

    NOT_DUE = "NOT-DUE"
    """Its time has not come."""
    DEBOUNCED = "DEBOUNCED"
    """Each further call with its unique key postpones it."""
    BACKOFF = "BACKOFF"
    """It waits before its next attempt."""
    SLEEPING = "SLEEPING"
    """A step of it sleeps."""
    SIGNAL = "SIGNAL"
    """It waits for a signal."""
    NO_WORKER = "NO-WORKER"
    """No live worker runs jobs."""
    NAME_UNKNOWN = "NAME-UNKNOWN"
    """No live worker claims its name."""
    TASK_PAUSED = "TASK-PAUSED"
    """Its task is paused."""
    SLOTS_FULL = "SLOTS-FULL"
    """Every slot of the workers that claim its name is in use, or due jobs start before it."""
    OUTRANKED = "OUTRANKED"
    """Due jobs of a higher priority start before it."""
    LIMIT = "LIMIT"
    """It waits for a limit."""
    LIMIT_HELD = "LIMIT-HELD"
    """Jobs hold the limit for which it waits, and others wait before it."""
    SHARE = "SHARE"
    """It waits for the turn of its tenant."""
    SEQUENCE = "SEQUENCE"
    """It waits for its place in a sequence."""
    SEQUENCE_STOPPED = "SEQUENCE-STOPPED"
    """Its sequence stands still at a failed job."""
    AFTER = "AFTER"
    """It waits for other jobs."""
    ROW_LOCKED = "ROW-LOCKED"
    """A transaction has locked its row."""
    CLAIM_REFUSED = "CLAIM-REFUSED"
    """A trigger or a constraint of the application prevents its claim, or those of many jobs of its task."""
    DRAINING = "DRAINING"
    """Every worker that claims its name is draining."""
    STANDBY_LAG = "STANDBY-LAG"
    """The facts come from a standby that lags."""
    RUNNING = "RUNNING"
    """A worker runs it."""
    LEASE_EXPIRED = "LEASE-EXPIRED"
    """It was running, and its lease has expired."""
    LOOP_BLOCKED = "LOOP-BLOCKED"
    """The event loop of its worker, or of every worker that claims its name, is blocked."""
    LOCK_HELD = "LOCK-HELD"
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
    SCHEDULE_PAUSED = "SCHEDULE-PAUSED"
    """Its schedule is paused, so no further job follows."""
    SCHEDULE_UNKNOWN = "SCHEDULE-UNKNOWN"
    """Its schedule does not exist any more, so no further job follows."""
    NEARLY_EXPIRED = "NEARLY-EXPIRED"
    """It expires soon unless it starts."""
    SHOULD_RUN_NOW = "SHOULD-RUN-NOW"
    """Nothing prevents its start."""


class ReasonKind(NamedTuple):
    """What the reasons with one code have in common."""

    heading: str
    """What holds the job, in a few words."""
    scope: ReasonScope = ReasonScope.OTHERS
    """What the texts of these reasons mention."""


KINDS: Final[Mapping[ReasonCode, ReasonKind]] = {
    ReasonCode.NOT_DUE: ReasonKind("Waits for its due time", ReasonScope.JOB),
    ReasonCode.DEBOUNCED: ReasonKind("Further calls postpone it", ReasonScope.JOB),
    ReasonCode.BACKOFF: ReasonKind("Waits for its next attempt", ReasonScope.JOB),
    ReasonCode.SLEEPING: ReasonKind("Sleeps", ReasonScope.JOB),
    ReasonCode.SIGNAL: ReasonKind("Waits for a signal", ReasonScope.JOB),
    ReasonCode.NO_WORKER: ReasonKind("No live worker runs jobs", ReasonScope.JOB),
    ReasonCode.NAME_UNKNOWN: ReasonKind("No live worker claims its task"),
    ReasonCode.TASK_PAUSED: ReasonKind("Its task is paused", ReasonScope.TASK),
    ReasonCode.SLOTS_FULL: ReasonKind("Waits for a free slot", ReasonScope.JOB),
    ReasonCode.OUTRANKED: ReasonKind("Jobs of a higher priority start first", ReasonScope.JOB),
    ReasonCode.LIMIT: ReasonKind("Waits for a limit"),
    ReasonCode.LIMIT_HELD: ReasonKind("The limit is held"),
    ReasonCode.SHARE: ReasonKind("Waits for the turn of its tenant"),
    ReasonCode.SEQUENCE: ReasonKind("Waits for its place in a sequence"),
    ReasonCode.SEQUENCE_STOPPED: ReasonKind("Its sequence stands still at a failed job"),
    ReasonCode.AFTER: ReasonKind("Waits for other jobs"),
    ReasonCode.ROW_LOCKED: ReasonKind("A transaction has locked its row"),
    ReasonCode.CLAIM_REFUSED: ReasonKind("A trigger or a constraint prevents its claim", ReasonScope.TASK),
    ReasonCode.DRAINING: ReasonKind("Every worker that claims its task is draining", ReasonScope.TASK),
    ReasonCode.STANDBY_LAG: ReasonKind("Read from a standby that is behind", ReasonScope.JOB),
    ReasonCode.RUNNING: ReasonKind("Running", ReasonScope.JOB),
    ReasonCode.LEASE_EXPIRED: ReasonKind("Its lease has expired", ReasonScope.JOB),
    ReasonCode.LOOP_BLOCKED: ReasonKind("The event loop of its worker is blocked"),
    ReasonCode.LOCK_HELD: ReasonKind("Another attempt holds its lock"),
    ReasonCode.EXPIRED: ReasonKind("Expired: it did not start in time"),
    ReasonCode.QUARANTINED: ReasonKind("Quarantined: its workers died", ReasonScope.JOB),
    ReasonCode.FAILED: ReasonKind("Failed", ReasonScope.JOB),
    ReasonCode.CANCELLED: ReasonKind("Cancelled"),
    ReasonCode.REPLACED: ReasonKind("A new definition waits for the end of this attempt", ReasonScope.JOB),
    ReasonCode.SCHEDULE_PAUSED: ReasonKind("Its schedule is paused", ReasonScope.JOB),
    ReasonCode.SCHEDULE_UNKNOWN: ReasonKind("Its schedule does not exist any more", ReasonScope.JOB),
    ReasonCode.NEARLY_EXPIRED: ReasonKind("It expires soon", ReasonScope.JOB),
    ReasonCode.SHOULD_RUN_NOW: ReasonKind("Due now", ReasonScope.JOB),
}


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
    """Since when the reason holds; None if that is unknown."""
    command: str | None = None
    """The shell command of the remedy, such as ``pg-scheduler jobs retry mail:9``; None if there is none."""

    has_key: ClassVar[bool] = False
    """Whether a text has the key of a limit, a share or a sequence, which is made from arguments."""
    has_statement: ClassVar[bool] = False
    """Whether a text has the statement of another session, which may contain arguments."""


class KeyReason(Reason):
    """A reason one of whose texts has the key of a limit, a share or a sequence."""

    __slots__ = ()

    has_key = True


class StatementReason(Reason):
    """A reason one of whose texts has the statement of another session."""

    __slots__ = ()

    has_statement = True


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job runs, waits or has ended."""

    verdict: Verdict
    """The state of the job, in one word."""
    reasons: tuple[Reason, ...]
    """The reasons, the most decisive first. Empty for a completed job."""
    eta: datetime | None = None
    """When the job will probably start, or end if it runs; None if that cannot be estimated."""


def loop_blocked(workers: Sequence[InspectedWorker]) -> Reason:
    """Return the reason that these workers have blocked event loops, with the block of the first worker."""
    # The caller passes workers with blocks. The values without a block only satisfy the type.
    block = workers[0].health.block
    culprit = "" if block is None or block.job_id is None else f" by job {block.job_id!r}"
    blocked_for = length(0 if block is None else block.seconds)
    return Reason(
        ReasonCode.LOOP_BLOCKED,
        f"the event loop of {hosts(workers)} has been blocked for {blocked_for}{culprit}",
        "declare the blocking function as a plain one, so that it runs in a thread",
    )
