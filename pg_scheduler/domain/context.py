"""What a running job can know about itself."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Final

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


current: Final[ContextVar[CurrentJob]] = ContextVar("pg_scheduler_current_job")


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
        return current.get()
    except LookupError:
        raise LookupError("current_job() was called outside of a running job") from None
