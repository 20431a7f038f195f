"""Decide the outcome of an attempt from its result, and derive the row change and the event.

``decide()`` maps a result (how the attempt ended) to an outcome (what to write). ``row_change()`` maps an
outcome to the values of the row, ``outcome_event()`` to the event.

An attempt that a caller cancelled, or whose lease was lost, has no outcome but a ``Revocation``
(worker/in_flight.py): its row belongs to another attempt by then. The executor passes completions on without
these functions, and ``exchange_jobs`` writes them; ``row_change()`` is for the completions that it refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from pg_scheduler.events import (
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobLost,
    JobReleased,
    JobRetried,
    JobSnoozed,
)
from pg_scheduler.jobs.control import Abort, Snooze
from pg_scheduler.jobs.history import exception_entry, history_entry, message_of, storable
from pg_scheduler.jobs.model import JobStatus
from pg_scheduler.jobs.result import KeptResult, keep_seconds, kept_error, kept_value
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.rows import Claim

__all__ = [
    "CompleteOutcome",
    "ErrorResult",
    "FailOutcome",
    "InterruptResult",
    "Outcome",
    "ReleaseOutcome",
    "Result",
    "RetryOutcome",
    "ReturnResult",
    "RowChange",
    "SkipOutcome",
    "SkippedResult",
    "SnoozeOutcome",
    "UnrunnableResult",
    "decide",
    "describe",
    "outcome_event",
    "reclaim_change",
    "release_change",
    "row_change",
]

MAX_ERROR_LENGTH: Final = 10_000
"""Characters of an error message that are kept, with the name of its class."""

QUARANTINED: Final = "quarantined: {} workers died while they ran this job. retry_job() runs it once more."

# -- how an attempt ended ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReturnResult:
    """The function returned."""

    value: object = None


@dataclass(frozen=True, slots=True)
class ErrorResult:
    """The coroutine raised an exception or timed out."""

    error: BaseException
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class UnrunnableResult:
    """No worker can run the row, so a retry would not help."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class SkippedResult:
    """Another attempt holds the advisory lock."""

    reason: str


@dataclass(frozen=True, slots=True)
class InterruptResult:
    """The scheduler shut down before the coroutine ended."""


@dataclass(frozen=True, slots=True)
class CrashResult:
    """The process that ran the function died."""

    reason: str
    max_crashes: int | None


Result = ReturnResult | ErrorResult | UnrunnableResult | SkippedResult | InterruptResult | CrashResult

# -- what to write -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompleteOutcome:
    """Complete the job."""

    kept: KeptResult | None = None


@dataclass(frozen=True, slots=True)
class FailOutcome:
    """Fail the job permanently. ``exception`` goes into the log, ``entry`` into the history."""

    error: str
    exception: BaseException | None = field(default=None, compare=False)
    entry: str | None = field(default=None, compare=False)
    kept: KeptResult | None = None


@dataclass(frozen=True, slots=True)
class RetryOutcome:
    """Make the job pending again, due after the delay. ``exception`` and ``entry`` as in ``FailOutcome``."""

    delay: timedelta
    error: str
    exception: BaseException | None = field(default=None, compare=False)
    entry: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ReleaseOutcome:
    """Make the job pending again at once. The attempt does not count as a retry."""


@dataclass(frozen=True, slots=True)
class SnoozeOutcome:
    """Make the job pending again, due after the delay. The attempt does not count as a retry."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class SkipOutcome:
    """Cancel the job with a reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class CrashOutcome:
    """Make the job pending again at once, or fail it after too many crashes.

    Attributes:
        crashes: Crashes of earlier attempts, which are read just before the outcome is written.
    """

    error: str
    max_crashes: int | None
    crashes: int = 0


Outcome = (
    CompleteOutcome | FailOutcome | RetryOutcome | ReleaseOutcome | SnoozeOutcome | SkipOutcome | CrashOutcome
)


@dataclass(frozen=True, slots=True)
class RowChange:
    """Column values that settle an attempt.

    Attributes:
        attempt: The attempt, which is part of the fencing token.
        status: The new status.
        error: The new error message; None keeps the old one, unless the job completed.
        delay_s: Seconds until a pending job is due; 0 keeps its execution time.
        retries: Added to the row's retries.
        crashes: Added to the row's crashes.
        entry: Appended to the row's history, as JSON text; None for an attempt that simply completed.
        kept: The result to store; None for a job that does not keep it.
    """

    attempt: int
    status: JobStatus
    error: str | None = None
    delay_s: float = 0.0
    retries: int = 0
    crashes: int = 0
    entry: str | None = None
    kept: KeptResult | None = None


def decide(  # noqa: PLR0911 - one for each result
    claim: Claim,
    result: Result,
    policy: RetryPolicy,
    *,
    spread: float,
    max_result_bytes: int | None = None,
) -> Outcome:
    """Return the outcome of an attempt.

    Args:
        claim: The attempt.
        result: How it ended.
        policy: The exceptions that are retried, and the delay before a retry, which is added to the
            database's clock.
        spread: A random number from -1 to 1 for the policy's jitter.
        max_result_bytes: The maximum size of a kept value as JSON; None for no limit.
    """
    match result:
        case ReturnResult(value):
            seconds = keep_seconds(claim.options)
            kept = None if seconds is None else kept_value(seconds, value, max_result_bytes)
            return CompleteOutcome(kept)
        case ErrorResult(Snooze() as snooze):
            return SnoozeOutcome(snooze.delay)
        case ErrorResult(error, timed_out):
            entry = exception_entry("timeout" if timed_out else "error", error)
            may_retry = claim.retry_count < claim.max_retries and not isinstance(error, Abort)
            return (
                RetryOutcome(policy.delay(claim.retry_count, spread=spread), describe(error), error, entry)
                if may_retry and policy.allows(error)
                else _fail(claim, error, entry)
            )
        case UnrunnableResult(error):
            return _fail(claim, error, exception_entry("error", error))
        case SkippedResult(reason):
            return SkipOutcome(reason)
        case InterruptResult():
            return _RELEASE
        case CrashResult(reason, max_crashes):
            return CrashOutcome(reason, max_crashes)


_RELEASE: Final = ReleaseOutcome()


def _fail(claim: Claim, error: BaseException, entry: str) -> FailOutcome:
    message, seconds = describe(error), keep_seconds(claim.options)
    kept = None if seconds is None else kept_error(seconds, message, error)
    return FailOutcome(message, error, entry, kept)


def row_change(attempt: int, outcome: Outcome) -> RowChange:  # noqa: PLR0911 - one for each outcome
    """Return the row change of an outcome."""
    match outcome:
        case CompleteOutcome(kept):
            return RowChange(attempt, JobStatus.COMPLETED, kept=kept)
        case FailOutcome(error, _, entry, kept):
            entry = entry or history_entry("error", message=error)
            return RowChange(attempt, JobStatus.FAILED, error, entry=entry, kept=kept)
        case RetryOutcome(delay, error, _, entry):
            entry = entry or history_entry("error", message=error)
            return RowChange(attempt, JobStatus.PENDING, error, delay.total_seconds(), retries=1, entry=entry)
        case SnoozeOutcome(delay):
            entry = history_entry("snoozed")
            return RowChange(attempt, JobStatus.PENDING, delay_s=delay.total_seconds(), entry=entry)
        case SkipOutcome(reason):
            entry = history_entry("skipped", message=reason)
            return RowChange(attempt, JobStatus.CANCELLED, reason, entry=entry)
        case ReleaseOutcome():
            return release_change(attempt)
        case CrashOutcome(error, max_crashes, crashes):
            change = reclaim_change(attempt, crashed=True, crashes=crashes, max_crashes=max_crashes)
            reason = change.error or error
            return replace(change, error=reason, entry=history_entry("crashed", message=reason))


def release_change(attempt: int, outcome: str = "released") -> RowChange:
    """Return the row change that makes a job pending again without counting the attempt."""
    return RowChange(attempt, JobStatus.PENDING, entry=history_entry(outcome))


def reclaim_change(attempt: int, *, crashed: bool, crashes: int, max_crashes: int | None) -> RowChange:
    """Return the row change of an orphaned job.

    Args:
        attempt: The attempt that no worker holds any more.
        crashed: Whether its worker died.
        crashes: The number of workers that died before while they ran the job.
        max_crashes: The number that quarantines the job; None for no limit.
    """
    if not crashed:
        return release_change(attempt, "lost")
    if max_crashes is None or crashes + 1 < max_crashes:
        return RowChange(attempt, JobStatus.PENDING, crashes=1, entry=history_entry("crashed"))
    reason = QUARANTINED.format(crashes + 1)
    entry = history_entry("crashed", message=reason)
    return RowChange(attempt, JobStatus.FAILED, reason, crashes=1, entry=entry)


def outcome_event(claim: Claim, outcome: Outcome, *, accepted: bool) -> JobEvent:
    """Return the event of an outcome; ``JobLost`` for one that the database refused."""
    about = (claim.job_id, claim.job_name, claim.attempt)
    if isinstance(outcome, CrashOutcome):
        change = row_change(claim.attempt, outcome)
        error = change.error or outcome.error
        is_final = change.status is JobStatus.FAILED
        outcome = FailOutcome(error) if is_final else RetryOutcome(timedelta(0), error)
    event: JobEvent
    match outcome:
        case _ if not accepted:
            event = JobLost(*about)
        case CompleteOutcome():
            event = JobCompleted(*about)
        case FailOutcome(error, exception):
            event = JobFailed(*about, error=error, exception=exception)
        case RetryOutcome(delay, error, exception):
            event = JobRetried(*about, error=error, delay=delay, exception=exception)
        case SnoozeOutcome(delay):
            event = JobSnoozed(*about, delay=delay)
        case SkipOutcome(reason):
            event = JobCancelled(*about, reason=reason)
        case ReleaseOutcome():
            event = JobReleased(*about)
    return event


def describe(error: BaseException) -> str:
    """Return an exception as text that PostgreSQL can hold: without NUL and surrogates."""
    name, message = type(error).__qualname__, message_of(error)
    return storable((f"{name}: {message}" if message else name)[:MAX_ERROR_LENGTH])
