"""The trigger that counts days, weeks, months and years of the calendar."""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass, field
from datetime import MAXYEAR, date, datetime, time, timedelta, tzinfo
from typing import Final, Literal

from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.search import to_utc
from pg_scheduler.triggers.serialization import trigger_kind
from pg_scheduler.triggers.wall import check_time, time_text
from pg_scheduler.triggers.zones import instant_of, named_zone

MAX_YEARS: Final = 100
DAYS_PER_MONTH: Final = 146_097 / 4_800
"""Mean of the Gregorian calendar, which repeats after 4,800 months."""

DAY: Final = timedelta(days=1)

SLACK: Final = 8
"""The date after n intervals is at most this many days later than n times the mean interval."""


@trigger_kind("calendar_interval")
@dataclass(frozen=True, slots=True, init=False)
class CalendarInterval(Trigger):
    """A trigger that fires at a wall time, every n years, months, weeks and days after a first date.

    All dates are counted from the first one, so the 31st stays the 31st: months are added first, then weeks
    and days. A skipped wall time fires at the instant at which the clock is set forward, a repeated one fires
    the first time only.

    Args:
        years: Years between two fire times.
        months: Months between them, in addition.
        weeks: Weeks, in addition.
        days: Days, in addition.
        at: The wall time.
        timezone: An IANA name or a ZoneInfo.
        first: The first date; the date of the anchor when None.
        missing_day: If the month has no such day, ``"last"`` fires on its last day, ``"skip"`` not at all.

    Raises:
        ValueError: The interval is not positive or longer than 100 years, or another parameter is invalid.

    Example:
        >>> from datetime import UTC, date, datetime, time
        >>> from pg_scheduler.triggers import CalendarInterval
        >>> trigger = CalendarInterval(months=1, at=time(9), first=date(2024, 1, 31))
        >>> [f"{fire:%d %b}" for fire in trigger.upcoming(4, after=datetime(2024, 1, 1, tzinfo=UTC))]
        ['31 Jan', '29 Feb', '31 Mar', '30 Apr']
    """

    years: int = 0
    months: int = 0
    weeks: int = 0
    days: int = 0
    at: time = time(0)
    timezone: str = "UTC"
    first: date | None = None
    missing_day: Literal["last", "skip"] = "last"
    _zone: tzinfo = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        *,
        years: int = 0,
        months: int = 0,
        weeks: int = 0,
        days: int = 0,
        at: time = time(0),
        timezone: str | tzinfo = "UTC",
        first: date | None = None,
        missing_day: Literal["last", "skip"] = "last",
    ) -> None:
        units = {"years": years, "months": months, "weeks": weeks, "days": days}
        for unit, count in units.items():
            _check_count(unit, count)
        if not any(units.values()):
            raise ValueError("CalendarInterval has no interval; pass years=, months=, weeks= or days=")
        # The sum of the units is approximate, which suffices for this limit.
        if years + (months + 1) // 12 + (7 * weeks + days) // 365 > MAX_YEARS:
            raise ValueError(f"the interval must be at most {MAX_YEARS} years, not {units}")
        check_time("at", at)
        start: object = first
        if start is not None and (not isinstance(start, date) or isinstance(start, datetime)):
            raise ValueError(f"first must be a date, such as date(2024, 1, 31), not {first!r}")
        policy: object = missing_day
        if policy not in ("last", "skip"):
            raise ValueError(f"missing_day must be 'last' or 'skip', not {missing_day!r}")
        name, zone = named_zone(timezone)
        values = {"at": at, "timezone": name, "first": first, "missing_day": missing_day, "_zone": zone}
        # The dataclass is frozen, so its attributes cannot be assigned.
        for attribute, value in (units | values).items():
            object.__setattr__(self, attribute, value)

    def next_after(self, instant: datetime, *, anchor: datetime | None = None) -> datetime | None:
        """Return the first fire time strictly after ``instant``, in UTC; None after the year 9999.

        Without ``first``, the dates are counted from the date of the anchor in the time zone. The first fire
        time is one interval after that date, or the anchor itself if it has the wall time.

        Raises:
            ValueError: A datetime is naive, or neither ``first`` nor an anchor is given.
        """
        after = to_utc(instant)
        try:
            first = self.first
            if first is None:
                if anchor is None:
                    raise ValueError(f"'{self}' counts from an anchor; pass anchor= or first=")
                begin = to_utc(anchor)
                first = begin.astimezone(self._zone).date()
                same_day = instant_of(datetime.combine(first, self.at), self._zone)
                # The anchor itself is a fire time if it has the wall time. A wall time later on the same day
                # is no fire time: the first one is an interval after that day.
                earliest = begin - timedelta(microseconds=1) if same_day <= begin else same_day
                after = max(after, earliest)
            # The search begins a day earlier: a skipped wall time fires at the clock change, which may be on
            # the day after.
            yesterday = after.astimezone(self._zone).date() - DAY
            # How many intervals the date is after the first one.
            step = self._steps_until(yesterday, first)
            while True:
                day = self._date(first, step)
                if day is not None and day >= yesterday:
                    fire = instant_of(datetime.combine(day, self.at), self._zone)
                    if fire > after:
                        return fire
                step += 1
        # The date is after the year 9999.
        except OverflowError:
            return None

    def _anchor_from(self, start: datetime) -> datetime:
        """Return the wall time on the day of the start, so that the first fire time is on that day.

        If the wall time is before the start, or there is a first date, the anchor is the start itself.
        """
        begin = to_utc(start)
        day_of_start = begin.astimezone(self._zone).date()
        fire = instant_of(datetime.combine(day_of_start, self.at), self._zone)
        return fire if self.first is None and fire >= begin else start

    def _steps_until(self, day: date, first: date) -> int:
        """Return a number of intervals after ``first`` that certainly end before ``day``.

        It is computed from the mean length of a month, so a few more intervals may end before the day.
        """
        months, days = 12 * self.years + self.months, 7 * self.weeks + self.days
        passed_days = (day - first).days
        if months:
            passed_days -= SLACK
        mean_interval_days = months * DAYS_PER_MONTH + days
        return max(0, int(passed_days / mean_interval_days))

    def _date(self, first: date, steps: int) -> date | None:
        """Return the date that is a number of intervals after ``first``; None if ``missing_day`` skips it.

        It raises OverflowError after the year 9999.
        """
        # Months are counted from 0 here, from the January of the first year on.
        month_count = first.month - 1 + steps * (12 * self.years + self.months)
        year, month = first.year + month_count // 12, month_count % 12 + 1
        if year > MAXYEAR:
            raise OverflowError(f"year {year} is out of range")
        last_day = monthrange(year, month)[1]
        if first.day > last_day and self.missing_day == "skip":
            return None
        day = date(year, month, min(first.day, last_day))
        return day + steps * timedelta(weeks=self.weeks, days=self.days)

    def __str__(self) -> str:
        units = {"year": self.years, "month": self.months, "week": self.weeks, "day": self.days}
        words = [f"{count} {unit}{'s' * (count != 1)}" for unit, count in units.items() if count]
        # "every month", but "every 1 month 2 days".
        text = words[0].removeprefix("1 ") if len(words) == 1 else " ".join(words)
        since = "" if self.first is None else f" from {self.first}"
        skip = " unless the day is missing" if self.missing_day == "skip" else ""
        return f"every {text} at {time_text(self.at)} {self.timezone}{since}{skip}"


def _check_count(unit: str, count: object) -> None:
    """Raise ValueError unless the count of a unit is an int of at least 0."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ValueError(f"{unit} must be an int of at least 0, not {count!r}")
