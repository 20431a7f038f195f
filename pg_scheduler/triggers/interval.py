"""Interval trigger: a grid laid from an anchor, so that lateness never accumulates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from pg_scheduler.triggers.base import _utc

__all__ = ["IntervalTrigger"]

_LONGEST = timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class IntervalTrigger:
    """Fires at ``anchor + k * every`` for every whole k.

    Args:
        every: A positive timedelta.

    Raises:
        ValueError: ``every`` is not that.

    Example:
        >>> from datetime import UTC, datetime
        >>> anchor = datetime(2024, 1, 1, tzinfo=UTC)
        >>> IntervalTrigger(timedelta(minutes=5)).next_after(anchor + timedelta(minutes=12), anchor=anchor)
        datetime.datetime(2024, 1, 1, 0, 15, tzinfo=datetime.timezone.utc)
    """

    every: timedelta

    def __post_init__(self) -> None:
        every: object = self.every
        if not isinstance(every, timedelta) or every <= timedelta(0):
            raise ValueError(f"every={every!r} is no positive timedelta. Write timedelta(minutes=5), say.")
        if every > _LONGEST:  # the calendar of Python ends in the year 9999
            raise ValueError(f"every={every!r} is longer than {_LONGEST.days} days")

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
        """The first point of the grid strictly after ``instant``, in UTC; it may lie before the anchor."""
        start = _utc(anchor)
        return start + ((_utc(instant) - start) // self.every + 1) * self.every
