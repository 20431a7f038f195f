"""Triggers that count elapsed time: `Every` from an anchor, `FixedDelay` from the end of the last job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.search import to_utc
from pg_scheduler.triggers.serialization import trigger_kind

MAX_INTERVAL: Final = timedelta(days=3660)
"""The calendar of Python ends in the year 9999."""

_UNITS: Final = (
    ("day", timedelta(days=1)),
    ("hour", timedelta(hours=1)),
    ("minute", timedelta(minutes=1)),
    ("second", timedelta(seconds=1)),
    ("microsecond", timedelta(microseconds=1)),
)


@trigger_kind("every")
@dataclass(frozen=True, slots=True, init=False)
class Every(Trigger):
    """A trigger that fires at ``anchor + k * every`` for every integer k, in elapsed time: a day is 24 hours.

    Clock changes do not affect it. For a wall time every n days, weeks or months use `CalendarInterval`.

    Args:
        every: A positive timedelta, instead of the other parameters.
        weeks: Added up with the other units.
        days: See ``weeks``.
        hours: See ``weeks``.
        minutes: See ``weeks``.
        seconds: See ``weeks``.

    Raises:
        ValueError: The interval is not positive, or longer than 3,660 days.

    Example:
        >>> from datetime import UTC, datetime
        >>> from pg_scheduler.triggers import Every
        >>> anchor = datetime(2024, 1, 1, 12, 7, tzinfo=UTC)
        >>> [f"{fire:%H:%M}" for fire in Every(minutes=5).upcoming(3, after=anchor)]
        ['12:12', '12:17', '12:22']
    """

    every: timedelta

    def __init__(
        self,
        every: timedelta | None = None,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        units = _sum_of_units(weeks, days, hours, minutes, seconds)
        if every is not None and units:
            raise ValueError(f"every={every!r} and units are given; pass a timedelta or units, not both")
        object.__setattr__(self, "every", _check("every", units if every is None else every))

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, in UTC; None after the year 9999.

        The fire time may precede the anchor.
        """
        start = to_utc(anchor)
        try:
            # The division rounds down, also to negative numbers for an instant before the anchor.
            passed_intervals = (to_utc(instant) - start) // self.every
            return start + (passed_intervals + 1) * self.every
        except OverflowError:
            return None

    def _anchored_interval(self) -> timedelta:
        """Return the interval."""
        return self.every

    def __str__(self) -> str:
        text = elapsed_text(self.every)
        # "every hour", but "every 1 hour 30 minutes".
        has_one_unit = text.count(" ") == 1
        return f"every {text.removeprefix('1 ')}" if has_one_unit else f"every {text}"


@trigger_kind("fixed_delay")
@dataclass(frozen=True, slots=True)
class FixedDelay(Trigger):
    """A trigger that fires a fixed time after the end of the previous job.

    The first fire time is that long after the ``start`` of the schedule, or after the schedule was added.
    Retries are part of the job. Combine it with `During` only: a fire time outside of the set is postponed to
    the first instant within.

    Args:
        delay: A positive timedelta.

    Raises:
        ValueError: ``delay`` is not a positive timedelta, or longer than 3,660 days.
    """

    _follows_ends = True

    delay: timedelta

    def __post_init__(self) -> None:
        _check("delay", self.delay)

    def next_after(self, instant: datetime, *, anchor: datetime | None = None) -> datetime | None:  # noqa: ARG002
        """Return ``instant``, the end of the previous job, plus the delay; None after the year 9999."""
        try:
            return to_utc(instant) + self.delay
        except OverflowError:
            return None

    def __str__(self) -> str:
        return f"{elapsed_text(self.delay)} after the previous job ended"


def elapsed_text(elapsed: timedelta) -> str:
    """Return "1 hour 30 minutes". One day is written as 24 hours, since it is not a calendar day."""
    if elapsed == timedelta(days=1):
        return "24 hours"
    words = []
    for name, unit in _UNITS:
        count, elapsed = divmod(elapsed, unit)
        if count:
            words.append(f"{count} {name}{'s' * (count != 1)}")
    return " ".join(words)


def _sum_of_units(weeks: float, days: float, hours: float, minutes: float, seconds: float) -> timedelta:
    """Return the sum of numbers of units; raise ValueError if one is no number, or the sum is too large."""
    cause: Exception | None = None
    try:
        # timedelta() would accept a bool as a number.
        if bool not in map(type, (weeks, days, hours, minutes, seconds)):
            return timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    except (TypeError, OverflowError, ValueError) as error:
        cause = error
    units = f"{weeks=}, {days=}, {hours=}, {minutes=}, {seconds=}"
    raise ValueError(f"units must be numbers, up to {MAX_INTERVAL.days} days in all, not {units}") from cause


def _check(name: str, value: object) -> timedelta:
    """Return the value if it is a positive timedelta up to `MAX_INTERVAL`; else raise ValueError."""
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise ValueError(f"{name} must be a positive timedelta, such as timedelta(minutes=5), not {value!r}")
    if value > MAX_INTERVAL:
        raise ValueError(f"{name} must be at most {MAX_INTERVAL.days} days, not {value!r}")
    return value
