"""How a try ended, and what that makes of the job: one pure decision.

``decide()`` is given what happened (a result) and answers what to write (an outcome). A try that was
taken away from us (cancelled by a caller, or lost with the lease) has no outcome: its row belongs to
somebody else by now.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from pg_scheduler.domain.job import Claim
from pg_scheduler.domain.retry import RetryPolicy

__all__ = [
    "Completed",
    "Errored",
    "Failed",
    "Interrupted",
    "Outcome",
    "Release",
    "Result",
    "Retry",
    "Returned",
    "Skip",
    "Skipped",
    "Unrunnable",
    "decide",
    "describe",
]

MAX_ERROR_LENGTH = 10_000


@dataclass(frozen=True, slots=True)
class Returned:
    """The coroutine returned."""


@dataclass(frozen=True, slots=True)
class Errored:
    """The coroutine raised, or ran out of time."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Unrunnable:
    """The row cannot be run by anybody: trying again would not help."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Skipped:
    """Another run holds the advisory lock."""

    reason: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The Scheduler shut down before the coroutine ended."""


Result = Returned | Errored | Unrunnable | Skipped | Interrupted


@dataclass(frozen=True, slots=True)
class Completed:
    """Write ``completed``."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Write ``failed``, for good. ``exception`` goes into the log."""

    error: str
    exception: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Retry:
    """Write ``pending`` again, due after the delay. ``exception`` goes into the log."""

    delay: timedelta
    error: str
    exception: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Release:
    """Write ``pending`` again at once; the try does not count."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Write ``cancelled`` with the reason."""

    reason: str


Outcome = Completed | Failed | Retry | Release | Skip

_COMPLETED = Completed()
_RELEASE = Release()


def decide(claim: Claim, result: Result, policy: RetryPolicy, *, spread: float) -> Outcome:
    """What to write for a try that ended.

    Args:
        claim: The try.
        result: How it ended.
        policy: When failed tries come back. The delay is added to the database's clock.
        spread: A random number from -1 to 1 for the policy's jitter.
    """
    match result:
        case Returned():
            return _COMPLETED
        case Errored(error) if claim.retry_count < claim.max_retries:
            return Retry(policy.delay(claim.retry_count, spread=spread), describe(error), error)
        case Errored(error) | Unrunnable(error):
            return Failed(describe(error), error)
        case Skipped(reason):
            return Skip(reason)
        case Interrupted():
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
