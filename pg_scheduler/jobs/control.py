"""Exceptions by which a job controls its own retries."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pg_scheduler.foreign import guarded
from pg_scheduler.jobs.validation import check_delay

DEFAULT_DELAY: Final = timedelta(minutes=1)


class Snooze(Exception):
    """Raise it in a job to run the job again after a delay, without using a retry.

    The attempt counts as neither failed nor completed. A job may snooze any number of times. It gets its
    whole misfire grace time again.

    Args:
        delay: The time in seconds or as a timedelta, more than 0 and at most 100 years.

    Raises:
        TypeError: ``delay`` has the wrong type.
        ValueError: ``delay`` is out of range.

    Example:
        >>> from pg_scheduler import Snooze
        >>> async def export(order: int) -> None:
        ...     if not await is_paid(order):
        ...         raise Snooze(60)
    """

    def __init__(self, delay: float | timedelta) -> None:
        seconds = check_delay("delay", delay)
        if not seconds:
            raise ValueError("delay must be more than 0 seconds; return or raise Abort() to end the job")
        self._delay = timedelta(seconds=seconds)
        super().__init__(f"run again in {self._delay}")

    @property
    def delay(self) -> timedelta:
        """The time until the next attempt is due; a minute for a subclass that sets none."""
        return getattr(self, "_delay", DEFAULT_DELAY)

    def __reduce__(self) -> tuple[type[Snooze], tuple[timedelta]]:
        return type(self), (self.delay,)


def delay_of(snooze: Snooze) -> timedelta:
    """Return the delay of a snooze; the default one if a subclass returns no valid delay."""
    seconds = guarded(lambda: check_delay("delay", snooze.delay), lambda _: 0.0)
    return timedelta(seconds=seconds) if seconds else DEFAULT_DELAY


class Abort(Exception):
    """Raise it in a job to fail the job at once, whatever retries are left.

    The reason is stored in ``Job.error_message``, after the name of the class.

    Args:
        reason: Why the job cannot succeed.

    Example:
        >>> from pg_scheduler import Abort
        >>> async def charge(order: int) -> None:
        ...     raise Abort(f"order {order} was cancelled")
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
