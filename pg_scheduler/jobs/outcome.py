"""How a try ended, and what that makes of the job: one pure decision.

``decide()`` is given what happened (a result) and answers what to write (an outcome). A try that was
taken away from us (cancelled by a caller, or lost with the lease) has no outcome: its row belongs to
somebody else by now.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

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
    "SkipOutcome",
    "SkippedResult",
    "UnrunnableResult",
    "decide",
    "describe",
]

MAX_ERROR_LENGTH = 10_000


@dataclass(frozen=True, slots=True)
class ReturnResult:
    """The coroutine returned."""


@dataclass(frozen=True, slots=True)
class ErrorResult:
    """The coroutine raised, or ran out of time."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class UnrunnableResult:
    """The row cannot be run by anybody: trying again would not help."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class SkippedResult:
    """Another run holds the advisory lock."""

    reason: str


@dataclass(frozen=True, slots=True)
class InterruptResult:
    """The Scheduler shut down before the coroutine ended."""


Result = ReturnResult | ErrorResult | UnrunnableResult | SkippedResult | InterruptResult


@dataclass(frozen=True, slots=True)
class CompleteOutcome:
    """Write ``completed``."""


@dataclass(frozen=True, slots=True)
class FailOutcome:
    """Write ``failed``, for good. ``exception`` goes into the log."""

    error: str
    exception: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RetryOutcome:
    """Write ``pending`` again, due after the delay. ``exception`` goes into the log."""

    delay: timedelta
    error: str
    exception: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ReleaseOutcome:
    """Write ``pending`` again at once; the try does not count."""


@dataclass(frozen=True, slots=True)
class SkipOutcome:
    """Write ``cancelled`` with the reason."""

    reason: str


Outcome = CompleteOutcome | FailOutcome | RetryOutcome | ReleaseOutcome | SkipOutcome

_COMPLETED = CompleteOutcome()
_RELEASE = ReleaseOutcome()


def decide(claim: Claim, result: Result, policy: RetryPolicy, *, spread: float) -> Outcome:
    """What to write for a try that ended.

    Args:
        claim: The try.
        result: How it ended.
        policy: When failed tries come back. The delay is added to the database's clock.
        spread: A random number from -1 to 1 for the policy's jitter.
    """
    match result:
        case ReturnResult():
            return _COMPLETED
        case ErrorResult(error) if claim.retry_count < claim.max_retries:
            return RetryOutcome(policy.delay(claim.retry_count, spread=spread), describe(error), error)
        case ErrorResult(error) | UnrunnableResult(error):
            return FailOutcome(describe(error), error)
        case SkippedResult(reason):
            return SkipOutcome(reason)
        case InterruptResult():
            return _RELEASE


def describe(error: BaseException) -> str:
    """An exception as the text of the ``error_message`` column, which can hold neither NUL nor surrogates."""
    name = type(error).__qualname__
    try:
        said = str(error)
    except Exception as mistake:  # noqa: BLE001 - user code: a class of the job's author
        said = f"(its text cannot be had: {type(mistake).__qualname__})"
    text = f"{name}: {said}" if said else name
    return text[:MAX_ERROR_LENGTH].replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
