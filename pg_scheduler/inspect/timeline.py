"""The life of a job: what happened to it, and what is ahead.

The ``attempt`` of a job counts its claims, because it is part of the fencing token. If a limit sends back a
claim, nothing runs. If a step suspends an attempt, the next claim continues it. Neither of the two leaves an
entry in the history. So this module numbers three kinds of attempts: those that the history has, those whose
waits are among the steps of the job, and the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.inspect.steps import StepState, has_suspended
from pg_scheduler.inspect.texts import length
from pg_scheduler.jobs.history import PARENT, AttemptError
from pg_scheduler.jobs.limits import BLOCKED_BY_LIMIT
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.sequences import BLOCKED_BY_SEQUENCE
from pg_scheduler.jobs.shares import BLOCKED_BY_SHARE
from pg_scheduler.jobs.step_values import CHILD, NO_TIMEOUT, RETRY, SIGNAL, SLEEP

MAX_KEPT: Final = 10
"""The maximum number of attempts in the history of a row."""

CONTINUES: Final = {
    SLEEP: "continues after its sleep",
    RETRY: "continues with the next attempt of its step",
    SIGNAL: "continues without the signal that it waits for",
    CHILD: "continues once its children have ended",
}
"""The titles of the next events of suspended jobs, by what the jobs wait for."""

MAX_SUSPENDED: Final = 50
"""The maximum number of suspended attempts, the newest ones, that are listed."""

SUSPENDED: Final = "suspended"
"""The outcome of an attempt that a step has suspended."""

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
    """How it ended: an outcome of `AttemptError`, the status of its job, or ``suspended``; None while it
    runs. A suspended attempt counts as started at the end of the wait before it, or else with its first
    step."""
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
        # The start of a suspended attempt is not exact, so neither is its duration.
        duration_text = ""
        if self.seconds is not None and self.outcome != SUSPENDED:
            duration_text = f" after {length(self.seconds)}"
        return f"attempt {self.number}: {self.outcome or 'running'}{duration_text}"


def attempts_of(job: Job, steps: Sequence[StepState] = ()) -> list[Attempt]:
    """Return the attempts of a job that its row and its steps keep, the oldest first.

    Args:
        job: The job.
        steps: Its steps, of which the waits show suspended attempts.
    """
    # An entry about a parent job that did not complete does not belong to an attempt.
    history = [entry for entry in job.errors if entry.outcome != PARENT]
    suspended_attempts = _suspended_attempts(job, steps)
    is_cut = len(job.errors) >= MAX_KEPT or len(suspended_attempts) >= MAX_SUSPENDED
    # The attempts of the history and the suspended ones are merged in the order of their claims. They get
    # their numbers below, when all of them are known.
    attempts: list[Attempt] = []
    for entry in history:
        while suspended_attempts and suspended_attempts[0].claim < entry.attempt:
            attempts.append(suspended_attempts.pop(0))
        attempts.append(
            Attempt(
                number=0,
                claim=entry.attempt,
                outcome=entry.outcome,
                started_at=entry.started_at,
                ended_at=entry.ended_at,
                worker_id=entry.worker_id,
                error=error_text(entry),
                traceback=entry.traceback,
                log=entry.log,
            )
        )
    attempts += suspended_attempts
    # The history lacks the last attempt while it runs, and if it completed the job.
    is_last_in_history = bool(job.errors) and job.errors[-1].attempt == job.attempt
    if job.started_at is not None and not is_last_in_history:
        attempts.append(
            Attempt(
                number=0,
                claim=job.attempt,
                outcome=job.status.value if job.finished_at is not None else None,
                started_at=job.started_at,
                ended_at=job.finished_at,
                worker_id=job.worker_id,
            )
        )
    # A full history may have lost its first entries, so the number of its oldest entry is taken from that
    # entry.
    first_number = max(attempts[0].claim, 1) if is_cut and attempts else 1
    numbered_attempts: list[Attempt] = []
    for attempt in attempts:
        # The claims between two known attempts: a limit sent them back, or a step suspended their attempts.
        has_claims_between = bool(numbered_attempts) and attempt.claim > numbered_attempts[-1].claim + 1
        held_by = ""
        if has_claims_between:
            held_by = "step" if has_suspended(steps) else "limit"
        numbered_attempts.append(
            replace(attempt, number=first_number + len(numbered_attempts), held_by=held_by)
        )
    return numbered_attempts


def _suspended_attempts(job: Job, steps: Sequence[StepState]) -> list[Attempt]:
    """Return the attempts that a wait (a sleep, or a wait for a signal or for jobs) has suspended.

    The steps of the job show the waits. The oldest attempt comes first.
    """
    claims_in_history = {entry.attempt for entry in job.errors}
    # The last attempt has ended too if the job has no start: then no attempt runs.
    last_ended_claim = job.attempt if job.started_at is None else job.attempt - 1
    waits = sorted((step for step in steps if step.until is not None), key=attrgetter("started_at"))
    # The last wait of each attempt is the one that has suspended the attempt.
    last_waits = {wait.attempt: wait for wait in waits if 1 <= wait.attempt <= last_ended_claim}
    # An attempt that is in the history has ended in another way.
    suspended_claims = sorted(last_waits.keys() - claims_in_history)
    attempts = []
    for claim in suspended_claims[-MAX_SUSPENDED:]:
        end = last_waits[claim].started_at
        # The row has the start of the last attempt only. An earlier one began when a wait of the attempt
        # before it ended, or else shortly before its first step.
        first_step_at = min(step.started_at for step in steps if step.attempt == claim)
        ends_of_earlier_waits = (wait.ended_at for wait in waits if wait.ended_at and wait.attempt < claim)
        start = max(ends_of_earlier_waits, default=first_step_at)
        attempts.append(
            Attempt(
                number=0,
                claim=claim,
                outcome=SUSPENDED,
                started_at=min(start, end),
                ended_at=end,
                worker_id=None,
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
    noun = "retry" if job.max_retries == 1 else "retries"
    return f"{job.retry_count} of {job.max_retries} {noun} used"


def is_retry_next(job: Job) -> bool:
    """Return whether the next attempt of a job is the retry that ``retry_count`` counts already.

    A suspended job continues an attempt.
    """
    return job.status is JobStatus.PENDING and job.retry_count > 0 and job.suspended_by is None


def timeline_of(job: Job, now: datetime, steps: Sequence[StepState] = ()) -> Iterator[Event]:
    """Yield the past events of a job, the oldest first; then the expected ones, if the job is unfinished.

    Args:
        job: The job.
        now: The current time.
        steps: Its steps, of which the waits show suspended attempts.
    """
    yield Event(job.created_at, "created")
    attempts = attempts_of(job, steps)
    past = list(_past(job, attempts))
    ahead = [] if job.finished_at is not None else list(_ahead(job, now))
    # The row has the due time of the last attempt only, or of the next one if the job is pending.
    is_pending = job.status is JobStatus.PENDING
    due_event = Event(job.execution_time, "due")
    if is_pending:
        next_number = attempts[-1].number + 1 if attempts else 1
        title = f"attempt {next_number} due"
        # A suspended job continues an attempt when it is due, so the event is about what it waits for.
        if job.suspended_by in CONTINUES:
            title = CONTINUES[job.suspended_by]
        due_event = Event(job.execution_time, title, is_ahead=job.execution_time > now)
        # A wait for a signal without a timeout has a due time that is never reached.
        if job.execution_time >= NO_TIMEOUT:
            due_event = Event(None, "continues with the signal that it waits for", is_ahead=True)
    # A job that waits for its children and is due has an event of _conditions() instead.
    waits_for_children = is_pending and job.suspended_by == CHILD
    if due_event.is_ahead:
        ahead.insert(0, due_event)
    elif not waits_for_children:
        # The event comes before the first past event that is not earlier.
        later_indexes = (
            index for index, event in enumerate(past) if event.at and event.at >= job.execution_time
        )
        past.insert(next(later_indexes, len(past)), due_event)
    yield from past
    yield from ahead


def _past(job: Job, attempts: Sequence[Attempt]) -> Iterator[Event]:
    """Yield the attempts, the ends of parents that kept the job from starting, and the end of the job."""
    remaining_attempts = deque(attempts)
    # Each entry of the history is that of an attempt, in the same order, or of a parent that did not
    # complete. Suspended attempts are between them.
    for entry in job.errors:
        if entry.outcome == PARENT:
            yield Event(entry.ended_at, "not started", entry.worker_id, error_text(entry))
            continue
        while remaining_attempts[0].outcome == SUSPENDED:
            suspended_attempt = remaining_attempts.popleft()
            yield Event(suspended_attempt.ended_at, suspended_attempt.title)
        attempt = remaining_attempts.popleft()
        yield from _held(attempt)
        yield Event(
            attempt.ended_at, attempt.title, attempt.worker_id, attempt.error, attempt.traceback, attempt.log
        )
    # The other attempts are not in the history: suspended ones, and the last one.
    for attempt in remaining_attempts:
        yield from _held(attempt)
        if attempt.outcome == SUSPENDED:
            yield Event(attempt.ended_at, attempt.title)
            continue
        # The end of the last attempt is that of the job, which has an event of its own below.
        yield Event(attempt.started_at, f"attempt {attempt.number} started", attempt.worker_id)
    if job.finished_at is not None:
        yield Event(job.finished_at, job.status.value)


def _held(attempt: Attempt) -> Iterator[Event]:
    """Yield what held the job before an attempt: a limit, or a wait of a step; nothing if nothing did."""
    if attempt.held_by:
        yield Event(None, HELD[attempt.held_by])


def _ahead(job: Job, now: datetime) -> Iterator[Event]:
    """Yield what an unfinished job waits for, and how many retries it has left."""
    if job.status is JobStatus.PENDING:
        yield from _conditions(job, now)
    if job.deadline is not None:
        yield Event(job.deadline, "fails at its deadline unless it has ended", is_ahead=True)
    retries = job.max_retries - job.retry_count
    if retries > 0:
        noun = "retry" if retries == 1 else "retries"
        # A retry is counted before its attempt starts. So the retries that are left come after the next
        # attempt if that is a retry itself.
        order = " after it" if is_retry_next(job) else ""
        yield Event(None, f"{retries} {noun} left{order}", is_ahead=True)


def _conditions(job: Job, now: datetime) -> Iterator[Event]:
    """Yield what a pending job waits for besides its due time, and when it expires."""
    is_blocked = job.blocked_on is not None
    waits_for_turn = job.blocked_on is not None and job.blocked_on.startswith(BLOCKED_BY_SHARE)
    waits_for_limit = job.blocked_on is not None and job.blocked_on.startswith(BLOCKED_BY_LIMIT)
    waits_for_place = job.blocked_on is not None and job.blocked_on.startswith(BLOCKED_BY_SEQUENCE)
    # A job that is blocked otherwise waits for other jobs. Its grace time begins when these have ended.
    if is_blocked and not waits_for_turn and not waits_for_limit:
        title = "starts once the jobs that it waits for have ended"
        if waits_for_place:
            title = "starts once the jobs before it in its sequence have ended"
        yield Event(None, CONTINUES.get(job.suspended_by or "", title), is_ahead=True)
        if job.misfire_grace_time is not None:
            grace = length(timedelta(seconds=job.misfire_grace_time))
            since = " or its due time, whichever is later" if job.execution_time > now else ""
            yield Event(None, f"expires {grace} after that{since}, unless it has started", is_ahead=True)
        return
    if waits_for_turn:
        yield Event(None, "starts once it is the turn of its tenant", is_ahead=True)
    if waits_for_limit:
        yield Event(None, "starts once its limit has room", is_ahead=True)
    if job.expires_at is not None and job.expires_at > now:
        grace_time = job.expires_at - job.execution_time
        title = "expires unless it has started"
        if grace_time > timedelta(0):
            title = f"expires {length(grace_time)} after its due time unless it has started"
        yield Event(job.expires_at, title, is_ahead=True)
    elif job.expires_at is not None:
        yield Event(None, "expires now: its misfire grace time has passed", is_ahead=True)


def last_attempt(job: Job) -> int:
    """Return the number of the attempt after which the job has no retries left.

    Attempts that were released or snoozed, or that came before a call of `retry_job()`, use no retry.
    """
    retries = max(job.max_retries - job.retry_count, 0)
    # A job without a start waits for its next attempt. Otherwise the attempt runs, or was the last one.
    present_attempt = job.attempt + 1 if job.started_at is None else max(job.attempt, 1)
    return present_attempt + retries
