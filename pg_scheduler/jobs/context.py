"""What a running job can know about itself."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pg_scheduler.jobs.rows import Claim

LONGEST_SHOWN: Final = 1e9
"""Seconds; the calendar of Python ends in the year 9999. First in a ``min()``, it answers NaN too."""

__all__ = ["CurrentJob", "current", "current_job"]


@dataclass(frozen=True, slots=True)
class CurrentJob:
    """The try that is running.

    ``attempt`` is 1 for the first claim and grows with every later one, whatever ended the one before.
    ``deadline`` is when the timeout strikes, None when there is none.
    """

    job_id: str
    job_name: str
    attempt: int
    execution_time: datetime
    deadline: datetime | None


current: Final[ContextVar[tuple[Claim, float]]] = ContextVar("pg_scheduler_current_job")
"""The claim and when its try began (seconds since 1970), set for every job; most never ask."""


def current_job() -> CurrentJob:
    """The job whose code is running, in it and in everything it awaits or starts.

    Raises:
        LookupError: No job is running here.

    Example:
        >>> from pg_scheduler import current_job
        >>> async def charge(order_id: int) -> None:
        ...     key = f"{current_job().job_id}"  # the same for every try: an idempotency key
    """
    try:
        claim, began = current.get()
    except LookupError:
        raise LookupError("current_job() was called outside of a running job") from None
    seconds = claim.timeout_seconds
    deadline = None
    if seconds is not None:
        deadline = datetime.fromtimestamp(began, UTC) + timedelta(seconds=min(LONGEST_SHOWN, seconds))
    return CurrentJob(claim.job_id, claim.job_name, claim.attempt, claim.execution_time, deadline)
