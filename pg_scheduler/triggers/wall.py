"""Sets of wall times: days of a calendar, and times of the day. Wall times are naive."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Final

DAY: Final = timedelta(days=1)

MAX_CALENDAR_STEPS: Final = 40 * 53 * 8
"""Steps that pass 40 years even if each week is looked at day by day; a 53rd week recurs within 8 years."""


def day_ranges(start: time | None, end: time | None) -> tuple[tuple[timedelta, timedelta], ...]:
    """Return the ranges of a day, as times since midnight, from ``start`` to ``end``, in order.

    None is midnight. If ``end`` is before ``start``, there are two ranges, and if both are equal, the range
    is the whole day.
    """
    first = _since_midnight(start or time.min)
    last = DAY if end is None else _since_midnight(end)
    if first < last:
        return ((first, last),)
    # An end at midnight is the end of the day.
    if last == timedelta(0):
        return ((first, DAY),)
    if first == last:
        return ((timedelta(0), DAY),)
    # From 22:00 to 06:00: the early part of each day, and its late part.
    return (timedelta(0), last), (first, DAY)


def check_time(name: str, moment: object) -> time:
    """Return a time of the day.

    Raises:
        ValueError: It is something else, or has a tzinfo.
    """
    if isinstance(moment, time) and moment.tzinfo is None:
        return moment
    raise ValueError(f"{name} must be a time without tzinfo, such as time(9), not {moment!r}; pass timezone=")


def time_text(moment: time) -> str:
    """Return "09:30", with seconds only if there are any."""
    return moment.isoformat("auto" if moment.second or moment.microsecond else "minutes")


def _since_midnight(moment: time) -> timedelta:
    """Return how long after midnight a time of the day is, on a day without a clock change."""
    return timedelta(
        hours=moment.hour, minutes=moment.minute, seconds=moment.second, microseconds=moment.microsecond
    )


@dataclass(frozen=True, slots=True)
class WallSet:
    """The wall times that satisfy all given conditions. None is no condition.

    Attributes:
        weekdays: ISO weekdays: Monday is 1.
        months: Months from 1.
        weeks: ISO weeks from 1.
        dates: Days in order, each of which satisfies the conditions on weekdays, months and weeks.
        ranges: Ranges of times since midnight, in order. The end of a range is excluded.
    """

    weekdays: AbstractSet[int] | None
    months: AbstractSet[int] | None
    weeks: AbstractSet[int] | None
    dates: tuple[date, ...] | None
    ranges: tuple[tuple[timedelta, timedelta], ...]

    def first_inside(self, wall: datetime) -> datetime | None:
        """Return the first wall time in the set that is not before ``wall``; None if there is none."""
        day = wall.date()
        midnight = datetime.combine(day, time.min)
        if self.has_day(day):
            time_of_day = wall - midnight
            for first, last in self.ranges:
                # The first range that has not ended yet contains the time, or begins later on this day.
                if time_of_day < last:
                    return wall if time_of_day >= first else midnight + first
        next_day = self.day_from(day + DAY)
        if next_day is None:
            return None
        start_of_day, _ = self.ranges[0]
        return datetime.combine(next_day, time.min) + start_of_day

    def first_outside(self, wall: datetime) -> datetime | None:
        """Return the first wall time not in the set that is not before ``wall``; None if there is none."""
        day = wall.date()
        if not self.has_day(day):
            return wall
        midnight = datetime.combine(day, time.min)
        time_of_day = wall - midnight
        # The end of the range that contains the time.
        range_end = next((last for first, last in self.ranges if first <= time_of_day < last), None)
        if range_end is None:
            return wall
        if range_end < DAY:
            return midnight + range_end
        # The range ends with the day, and the next day may begin within a range.
        day += DAY
        first, last = self.ranges[0]
        # If the range is the whole day, the search passes all further days that are in the set.
        if (first, last) == (timedelta(0), DAY):
            next_day = self._other_day_from(day)
            return None if next_day is None else datetime.combine(next_day, time.min)
        midnight = datetime.combine(day, time.min)
        begins_inside = first == timedelta(0) and self.has_day(day)
        return midnight + last if begins_inside else midnight

    def has_day(self, day: date) -> bool:
        """Return whether a day satisfies all conditions on days, whatever the times of the day are."""
        if self.dates is not None:
            index = bisect_left(self.dates, day)
            return index < len(self.dates) and self.dates[index] == day
        return (
            (self.weekdays is None or day.isoweekday() in self.weekdays)
            and (self.months is None or day.month in self.months)
            and (self.weeks is None or day.isocalendar().week in self.weeks)
        )

    def day_from(self, day: date) -> date | None:
        """Return the first day that is not before ``day`` and satisfies the conditions; None if none does."""
        if self.dates is not None:
            # Each of the dates satisfies the other conditions too.
            index = bisect_left(self.dates, day)
            return self.dates[index] if index < len(self.dates) else None
        # A month or a week without any suitable day is passed at once.
        for _ in range(MAX_CALENDAR_STEPS):
            if self.months is not None and day.month not in self.months:
                day = _next_month(day)
            elif self.weeks is not None and day.isocalendar().week not in self.weeks:
                day = _next_week(day)
            elif self.weekdays is not None and day.isoweekday() not in self.weekdays:
                day += DAY
            else:
                return day
        return None

    def _other_day_from(self, day: date) -> date | None:
        """Return the first day that is not before ``day`` and does not satisfy the conditions.

        None if all days satisfy them.
        """
        if self.dates is not None:
            return day + self._run_length(self.dates, day) * DAY
        if self.weekdays is None and self.months is None and self.weeks is None:
            return None
        for _ in range(MAX_CALENDAR_STEPS):
            if not self.has_day(day):
                return day
            # Without a condition on weekdays, all days of a week are alike, or even all days of a month.
            if self.weekdays is not None:
                day += DAY
            elif self.weeks is not None:
                day = _next_week(day)
            else:
                day = _next_month(day)
        return None

    @staticmethod
    def _run_length(dates: tuple[date, ...], day: date) -> int:
        """Return how many days in a row, from ``day`` on, are among the dates."""
        # Up to the first gap, the date at each place is a day later than at the place before. Behind the gap,
        # all dates are later than that. So the end of the run is found by bisection.
        first_place = bisect_left(dates, day)
        low, high = first_place, len(dates)
        while low < high:
            middle = (low + high) // 2
            is_before_gap = (dates[middle] - day).days == middle - first_place
            if is_before_gap:
                low = middle + 1
            else:
                high = middle
        return low - first_place


def _next_month(day: date) -> date:
    """Return the first day of the next month."""
    # Every month has a 28th, and four days after it are in the next month.
    return (day.replace(day=28) + timedelta(days=4)).replace(day=1)


def _next_week(day: date) -> date:
    """Return the Monday of the next week."""
    return day + timedelta(days=8 - day.isoweekday())
