"""The interval trigger counts from an anchor, so that lateness does not accumulate."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.triggers.base import to_utc

__all__ = ["IntervalTrigger"]

MAX_INTERVAL: Final = timedelta(days=3660)
"""The calendar of Python ends in the year 9999."""


@dataclass(frozen=True, slots=True)
class IntervalTrigger:
    """Fires at ``anchor + k * every`` for every integer k.

    Args:
        every: A positive timedelta.

    Raises:
        ValueError: ``every`` is not a positive timedelta, or longer than 3,660 days.

    Example:
        >>> from datetime import UTC, datetime, timedelta
        >>> from pg_scheduler.triggers import IntervalTrigger
        >>> anchor = datetime(2024, 1, 1, tzinfo=UTC)
        >>> IntervalTrigger(timedelta(minutes=5)).next_after(anchor + timedelta(minutes=12), anchor=anchor)
        datetime.datetime(2024, 1, 1, 0, 15, tzinfo=datetime.timezone.utc)
    """

    every: timedelta

    def __post_init__(self) -> None:
        every: object = self.every
        if not isinstance(every, timedelta) or every <= timedelta(0):
            raise ValueError(
                f"every must be a positive timedelta, such as timedelta(minutes=5), not {every!r}"
            )
        if every > MAX_INTERVAL:
            raise ValueError(f"every must be at most {MAX_INTERVAL.days} days, not {every!r}")

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
        """Return the first fire time strictly after ``instant``, in UTC. It may precede the anchor."""
        start = to_utc(anchor)
        return start + ((to_utc(instant) - start) // self.every + 1) * self.every
