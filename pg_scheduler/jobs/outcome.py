"""Decide the outcome of an attempt from its result.

``decide()`` maps a result (how the attempt ended) to an outcome (what to write). ``settlement.py`` derives
the row change and the event.

An attempt that a caller cancelled, or whose lease was lost, has a ``Revocation`` (worker/in_flight.py): its
row belongs to another attempt by then, or has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.foreign import class_name, guarded, is_a, message_of
from pg_scheduler.jobs.control import Abort, Snooze, delay_of
from pg_scheduler.jobs.history import exception_entry, storable
from pg_scheduler.jobs.result import KeptResult, keep_seconds, kept_error, kept_value
from pg_scheduler.jobs.retry import DEFAULT_RETRY_POLICY, RetryPolicy
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.validation import check_delay

T = TypeVar("T")

MAX_ERROR_LENGTH: Final = 10_000
"""Characters of an error message that are kept, with the name of its class."""

# -- how an attempt ended ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReturnResult:
    """The function returned."""

    value: object = None


@dataclass(frozen=True, slots=True)
class ErrorResult:
    """The coroutine raised an exception or timed out.

    Attributes:
        log: The last lines that it logged.
        trace: The headers of its trace.
    """

    error: BaseException
    timed_out: bool = False
    log: tuple[str, ...] = ()
    trace: Mapping[str, str] | None = None


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
    """The process that ran the function died. ``trace`` as in ``ErrorResult``."""

    reason: str
    max_crashes: int | None
    trace: Mapping[str, str] | None = None


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
        trace: The headers of the trace of the attempt.
    """

    error: str
    max_crashes: int | None
    crashes: int = 0
    trace: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class RevokedOutcome:
    """Report that an attempt has ended whose job was ended before, as by a caller who cancelled it."""


Outcome = (
    CompleteOutcome
    | FailOutcome
    | RetryOutcome
    | ReleaseOutcome
    | SnoozeOutcome
    | SkipOutcome
    | CrashOutcome
    | RevokedOutcome
)


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
        case ErrorResult(error) if is_a(error, Snooze):
            return SnoozeOutcome(delay_of(error))
        case ErrorResult(error, timed_out, log, trace):
            entry = exception_entry("timeout" if timed_out else "error", error, log, trace)
            return (
                RetryOutcome(_retry_delay(claim, policy, spread), describe(error), error, entry)
                if may_retry(claim, error, policy)
                else _fail(claim, error, entry)
            )
        case UnrunnableResult(error):
            return _fail(claim, error, exception_entry("error", error))
        case SkippedResult(reason):
            return SkipOutcome(reason)
        case InterruptResult():
            return _RELEASE
        case CrashResult(reason, max_crashes, trace):
            return CrashOutcome(reason, max_crashes, trace=trace)


_RELEASE: Final = ReleaseOutcome()


def may_retry(claim: Claim, error: BaseException, policy: RetryPolicy) -> bool:
    """Return whether the job is retried after this error of an attempt."""
    if claim.retry_count >= claim.max_retries or is_a(error, Abort):
        return False
    return guarded(lambda: bool(policy.allows(error)), partial(_broken_policy, claim, True))


def _retry_delay(claim: Claim, policy: RetryPolicy, spread: float) -> timedelta:
    """Return the delay of a policy, whose class may be derived by the user."""
    count = claim.retry_count
    return guarded(
        lambda: timedelta(seconds=check_delay("delay", policy.delay(count, spread=spread))),
        partial(_broken_policy, claim, DEFAULT_RETRY_POLICY.delay(count, spread=spread)),
    )


def _broken_policy(claim: Claim, default: T, kind: str) -> T:
    logger.error(
        "the retry policy of job %s (id %s) raised %s; the default policy applies",
        claim.job_name,
        claim.job_id,
        kind,
        extra=record_fields(job_id=claim.job_id, job_name=claim.job_name, attempt=claim.attempt),
    )
    return default


def _fail(claim: Claim, error: BaseException, entry: str) -> FailOutcome:
    message, seconds = describe(error), keep_seconds(claim.options)
    kept = None if seconds is None else kept_error(seconds, message, error)
    return FailOutcome(message, error, entry, kept)


def describe(error: BaseException) -> str:
    """Return an exception as text that PostgreSQL can hold: without NUL and surrogates."""
    name, message = class_name(error), message_of(error)
    return storable((f"{name}: {message}" if message else name)[:MAX_ERROR_LENGTH])
