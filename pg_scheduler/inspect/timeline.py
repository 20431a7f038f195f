"""The life of a job: what happened to it, and what is ahead.

The ``attempt`` of a job counts its claims, because it is part of the fencing token. If a limit sends back a
claim, nothing runs. If a step suspends an attempt, the next claim continues it. Neither of the two leaves an
entry in the history. So this module numbers only the attempts that the history has, and the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.inspect.texts import length
from pg_scheduler.jobs.history import PARENT, AttemptError
from pg_scheduler.jobs.limits import BLOCKED_BY_LIMIT
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.shares import BLOCKED_BY_SHARE
from pg_scheduler.jobs.step_values import NO_TIMEOUT

MAX_KEPT: Final = 10
"""The maximum number of attempts in the history of a row."""

HELD: Final = {"limit": "waited for a limit", "step": "suspended by a step"}
"""The titles of events, by what held the job between two attempts."""


@dataclass(frozen=True, slots=True)
class Event:
    """A point in the life of a job."""

    at: datetime | None
    """When it happened, or is expected; None if that is unknown."""
    title: str
    worker: str | None = None
    error: str | None = None
    traceback: str | None = None
    log: Sequence[str] = ()
    """The last lines that the attempt logged. They can contain arguments."""
    is_ahead: bool = False
    """Whether it is expected, and has not happened yet."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An execution of a job."""

    number: int
    """Its number among the attempts that are known, without claims that ran nothing."""
    claim: int
    """The ``attempt`` of its job, which logs and ``current_job()`` show."""
    outcome: str | None
    """How it ended: an outcome of `AttemptError`, or the status of its job; None while it runs."""
    started_at: datetime | None
    ended_at: datetime | None
    worker_id: str | None
    error: str | None = None
    """The type and the message of its error."""
    traceback: str | None = None
    log: Sequence[str] = ()
    """The last lines that it logged. They can contain arguments."""
    held_by: str = ""
    """What held its job between the attempt before and this one: ``limit`` if a limit sent back a claim,
    ``step`` if a step suspended an attempt; empty if nothing did."""

    @property
    def seconds(self) -> float | None:
        """How long it ran in seconds; None while it runs, or if it never started."""
        if self.started_at is None or self.ended_at is None:
            return None
        return (self.ended_at - self.started_at).total_seconds()

    @property
    def title(self) -> str:
        """Its number, and how it ended."""
        ran = "" if self.seconds is None else f" after {length(self.seconds)}"
        return f"attempt {self.number}: {self.outcome or 'running'}{ran}"


def attempts_of(job: Job, *, has_suspended: bool = False) -> list[Attempt]:
    """Return the attempts of a job that its row keeps, the oldest first.

    Args:
        job: The job.
        has_suspended: Whether a step has suspended it.
    """
    errors = [error for error in job.errors if error.outcome != PARENT]
    attempts: list[Attempt] = []
    # A full history may have lost its first entries, so the number of its oldest entry is taken from that
    # entry.
    is_full = len(job.errors) >= MAX_KEPT
    first_number = max(errors[0].attempt, 1) if is_full and errors else 1

    def held_by(claim: int) -> str:
        # Claims without an entry between two attempts were sent back by a limit, or suspended by a step.
        has_claims_between = bool(attempts) and claim > attempts[-1].claim + 1
        return ("step" if has_suspended else "limit") if has_claims_between else ""

    for error in errors:
        attempts.append(
            Attempt(
                number=first_number + len(attempts),
                claim=error.attempt,
                outcome=error.outcome,
                started_at=error.started_at,
                ended_at=error.ended_at,
                worker_id=error.worker_id,
                error=error_text(error),
                traceback=error.traceback,
                log=error.log,
                held_by=held_by(error.attempt),
            )
        )
    # The history lacks the last attempt while it runs, and if it completed the job.
    if job.started_at is not None and not (job.errors and job.errors[-1].attempt == job.attempt):
        attempts.append(
            Attempt(
                number=first_number + len(attempts),
                claim=job.attempt,
                outcome=job.status.value if job.finished_at is not None else None,
                started_at=job.started_at,
                ended_at=job.finished_at,
                worker_id=job.worker_id,
                held_by=held_by(job.attempt),
            )
        )
    return attempts


def error_text(error: AttemptError) -> str | None:
    """Return the type and the message of an error; None for neither."""
    return ": ".join(filter(None, (error.error_type, error.message))) or None


def retries_used(job: Job) -> str:
    """Return how many of its retries a job has used.

    Attempts that were released, that the job itself postponed, or that came before a call of `retry_job()`
    use no retry.
    """
    if job.max_retries <= 0:
        return "no retries"
    return f"{job.retry_count} of {job.max_retries} {'retry' if job.max_retries == 1 else 'retries'} used"


def timeline_of(job: Job, now: datetime, *, has_suspended: bool = False) -> Iterator[Event]:
    """Yield the past events of a job, the oldest first; then the expected ones, if the job is unfinished.

    Args:
        job: The job.
        now: The current time.
        has_suspended: Whether a step has suspended it.
    """
    yield Event(job.created_at, "created")
    attempts = attempts_of(job, has_suspended=has_suspended)
    past = list(_past(job, attempts))
    ahead = [] if job.finished_at is not None else list(_ahead(job, now))
    # The row has the due time of the last attempt only, or of the next one if the job is pending.
    due = Event(job.execution_time, "due")
    if job.status is JobStatus.PENDING:
        title = f"attempt {attempts[-1].number + 1 if attempts else 1} due"
        due = Event(job.execution_time, title, is_ahead=job.execution_time > now)
        if job.execution_time >= NO_TIMEOUT:
            due = Event(None, "continues with the signal that it waits for", is_ahead=True)
    if due.is_ahead:
        ahead.insert(0, due)
    else:
        # The event comes before the first past event that is not earlier.
        later_indexes = (
            index for index, event in enumerate(past) if event.at and event.at >= job.execution_time
        )
        past.insert(next(later_indexes, len(past)), due)
    yield from past
    yield from ahead


def _past(job: Job, attempts: Sequence[Attempt]) -> Iterator[Event]:
    """Yield the attempts, the ends of parents that kept the job from starting, and the end of the job."""
    following = iter(attempts)
    # Each entry of the history is that of an attempt, in the same order, or of a parent that did not
    # complete.
    for entry in job.errors:
        if entry.outcome == PARENT:
            yield Event(entry.ended_at, "not started", entry.worker_id, error_text(entry))
            continue
        attempt = next(following)
        yield from _held(attempt)
        yield Event(
            attempt.ended_at, attempt.title, attempt.worker_id, attempt.error, attempt.traceback, attempt.log
        )
    for attempt in following:
        yield from _held(attempt)
        yield Event(attempt.started_at, f"attempt {attempt.number} started", attempt.worker_id)
    if job.finished_at is not None:
        yield Event(job.finished_at, job.status.value)


def _held(attempt: Attempt) -> Iterator[Event]:
    if attempt.held_by:
        yield Event(None, HELD[attempt.held_by])


def _ahead(job: Job, now: datetime) -> Iterator[Event]:
    if job.status is JobStatus.PENDING:
        yield from _conditions(job, now)
    retries = job.max_retries - job.retry_count
    if retries > 0:
        yield Event(None, f"{retries} {'retry' if retries == 1 else 'retries'} left", is_ahead=True)


def _conditions(job: Job, now: datetime) -> Iterator[Event]:
    """Yield what a pending job waits for besides its due time, and when it expires."""
    is_queued = job.blocked_on is not None and job.blocked_on.startswith(BLOCKED_BY_SHARE)
    is_limited = job.blocked_on is not None and job.blocked_on.startswith(BLOCKED_BY_LIMIT)
    if job.blocked_on is not None and not is_queued and not is_limited:
        yield Event(None, "starts once the jobs that it waits for have ended", is_ahead=True)
        if job.misfire_grace_time is not None:
            grace = length(timedelta(seconds=job.misfire_grace_time))
            since = " or its due time, whichever is later" if job.execution_time > now else ""
            yield Event(None, f"expires {grace} after that{since}, unless it has started", is_ahead=True)
        return
    if is_queued:
        yield Event(None, "starts once it is the turn of its tenant", is_ahead=True)
    if is_limited:
        yield Event(None, "starts once its limit has room", is_ahead=True)
    if job.expires_at is not None and job.expires_at > now:
        yield Event(job.expires_at, "expires unless it has started", is_ahead=True)
    elif job.expires_at is not None:
        yield Event(None, "expires now: its misfire grace time has passed", is_ahead=True)


def last_attempt(job: Job) -> int:
    """Return the number of the last attempt that the job can have without an intervention.

    Attempts that were released or snoozed, or that came before a call of `retry_job()`, use no retry.
    """
    retries = max(job.max_retries - job.retry_count, 0)
    return retries + (job.attempt + 1 if job.started_at is None else max(job.attempt, 1))
