"""The job that is running in the current context."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pg_scheduler.jobs.rows import Claim

if TYPE_CHECKING:
    import asyncpg

    from pg_scheduler.scheduler import Scheduler

MAX_DEADLINE_S: Final = 1e9
"""The calendar of Python ends in the year 9999. As the first argument of ``min()``, it also replaces NaN."""

__all__ = ["CurrentJob", "current", "current_job"]


@dataclass(frozen=True, slots=True)
class CurrentJob:
    """The attempt that is running."""

    job_id: str
    """The id of the job."""
    job_name: str
    """The name of the job."""
    attempt: int
    """1 for the first claim of the job, larger for each later one."""
    execution_time: datetime
    """When this attempt was due."""
    deadline: datetime | None
    """When the timeout of the attempt expires; None for no timeout."""
    scheduler: Scheduler = field(repr=False, compare=False)
    """The Scheduler that runs the attempt, so that jobs can schedule jobs."""

    @property
    def pool(self) -> asyncpg.Pool[Any]:
        """The asyncpg pool of that Scheduler."""
        return self.scheduler.db_pool


current: Final[ContextVar[tuple[Claim, float, Scheduler]]] = ContextVar("pg_scheduler_current_job")
"""The claim, the start of its attempt in seconds since 1970 and the Scheduler, set for every job."""


def current_job() -> CurrentJob:
    """Return the running job, also in the coroutines and tasks that it awaits or starts.

    Raises:
        LookupError: The caller is not part of a running job.

    Example:
        >>> from pg_scheduler import current_job
        >>> async def charge(order_id: int) -> None:
        ...     key = f"{current_job().job_id}"  # the same for every attempt: an idempotency key
    """
    try:
        claim, began, scheduler = current.get()
    except LookupError:
        raise LookupError(
            "current_job() was called outside of a running job; call it in a job function"
        ) from None
    seconds = claim.timeout_seconds
    deadline = None
    if seconds is not None:
        deadline = datetime.fromtimestamp(began, UTC) + timedelta(seconds=min(MAX_DEADLINE_S, seconds))
    return CurrentJob(claim.job_id, claim.job_name, claim.attempt, claim.execution_time, deadline, scheduler)
