"""The set of instants that a calendar, a time of day and two bounds describe."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, tzinfo
from datetime import timezone as tz
from typing import Any, Final

from pg_scheduler.triggers.search import Search, to_utc
from pg_scheduler.triggers.serialization import trigger_kind
from pg_scheduler.triggers.sets import DuringSet
from pg_scheduler.triggers.wall import WallSet, check_time, day_ranges, time_text
from pg_scheduler.triggers.zones import first_change, instant_of, named_zone

MAX_DATES: Final = 5000

REACH: Final = timedelta(hours=25)
"""No clock change is larger, and two changes of a time zone are further apart."""

FIRST_DAY: Final = date(2000, 1, 1)

DAYS_PER_STEP: Final = 366
"""Days of a calendar that one step of a search passes. A rare week can be several years away."""


@trigger_kind("during")
@dataclass(frozen=True, slots=True, init=False)
class During(DuringSet):
    """The instants at which **all** given conditions hold on the wall clock of a time zone.

    Combine it with a trigger, ``trigger & During(...)`` or ``trigger - During(...)``, or with other sets:
    ``~d``, ``d | e``, ``d & e``. Where the clock is set back, both passes of the repeated hour count.

    Args:
        weekdays: Days such as ``"mon-fri"`` or ``"sat,sun"``.
        dates: Up to 5,000 dates, such as holidays. An empty tuple matches nothing.
        months: Months such as ``"jan-mar,12"``.
        iso_weeks: Weeks of the ISO calendar, such as ``"1-26"``.
        start: The time of day at which the set begins on each day; midnight when None.
        end: The time of day at which it ends, excluded; midnight when None. ``end <= start`` passes midnight:
            22:00 to 06:00 are two ranges of each day, 00:00 to 06:00 and 22:00 to 24:00.
        since: The first instant, or the first date.
        until: The end, excluded: an instant, or the midnight with which a date begins.
        timezone: An IANA name or a ZoneInfo.

    Raises:
        ValueError: No condition is given, or a condition is invalid or can never hold.

    Example:
        >>> from datetime import UTC, date, datetime, time
        >>> from pg_scheduler.triggers import During
        >>> office = During(weekdays="mon-fri", start=time(9), end=time(17), timezone="Europe/London")
        >>> datetime(2024, 7, 1, 8, 30, tzinfo=UTC) in office
        True
        >>> print(office & ~During(dates=(date(2024, 12, 25),), timezone="Europe/London"))
        mon-fri 09:00-17:00 Europe/London and not 2024-12-25 Europe/London
    """

    weekdays: str | None = None
    dates: tuple[date, ...] | None = None
    months: str | None = None
    iso_weeks: str | None = None
    start: time | None = None
    end: time | None = None
    since: date | datetime | None = None
    until: date | datetime | None = None
    timezone: str = "UTC"
    _wall: WallSet = field(init=False, repr=False, compare=False)
    _zone: tzinfo = field(init=False, repr=False, compare=False)
    _first: datetime | None = field(init=False, repr=False, compare=False)
    _last: datetime | None = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        *,
        weekdays: str | None = None,
        dates: Iterable[date] | None = None,
        months: str | int | None = None,
        iso_weeks: str | int | None = None,
        start: time | None = None,
        end: time | None = None,
        since: date | datetime | None = None,
        until: date | datetime | None = None,
        timezone: str | tzinfo = "UTC",
    ) -> None:
        name, zone = named_zone(timezone)
        weekday_text, weekday_set = WEEKDAYS.parse("weekdays", weekdays)
        month_text, month_set = MONTHS.parse("months", months)
        week_text, week_set = WEEKS.parse("iso_weeks", iso_weeks)
        # The days that match the weekdays, months and weeks, whatever the dates and the times of day are.
        calendar = WallSet(weekday_set, month_set, week_set, dates=None, ranges=day_ranges(None, None))
        if calendar.day_from(FIRST_DAY) is None:
            raise ValueError(
                f"months={month_text!r} and iso_weeks={week_text!r} have no day in common; change one"
            )
        checked_dates = None if dates is None else _check_dates(dates)
        # The days of the dates that match the other conditions too.
        matching_dates = None if checked_dates is None else tuple(filter(calendar.has_day, checked_dates))
        ranges = day_ranges(
            None if start is None else check_time("start", start),
            None if end is None else check_time("end", end),
        )
        since, until = _plain(since), _plain(until)
        first, last = _bound("since", since, zone), _bound("until", until, zone)
        if first is not None and last is not None and last <= first:
            raise ValueError(f"until={until!r} is not after since={since!r}; swap them")
        values: dict[str, Any] = {
            "weekdays": weekday_text, "dates": checked_dates, "months": month_text, "iso_weeks": week_text,
            "start": start, "end": end, "since": since, "until": until,
        }  # fmt: skip
        if all(value is None for value in values.values()):
            raise ValueError("During() has no condition; pass weekdays=, dates=, start= or another one")
        values |= {"timezone": name, "_zone": zone, "_first": first, "_last": last}
        values["_wall"] = WallSet(weekday_set, month_set, week_set, matching_dates, ranges)
        # The dataclass is frozen, so its attributes cannot be assigned.
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)

    def _find_inside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant in the set that is not before ``instant``, or None."""
        if self._first is not None and instant < self._first:
            instant = self._first
        candidate = self._first_match(instant, self._wall.first_inside, search)
        if candidate is None or (self._last is not None and candidate >= self._last):
            return None
        return candidate

    def _find_outside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant not in the set that is not before ``instant``, or None."""
        if self._first is not None and instant < self._first:
            return instant
        if self._last is not None and instant >= self._last:
            return instant
        candidate = self._first_match(instant, self._wall.first_outside, search)
        # The set ends at ``until``, whatever the other conditions are. So that is the first instant outside,
        # unless an earlier one was found.
        if candidate is None or (self._last is not None and candidate > self._last):
            return self._last
        return candidate

    def _first_match(
        self, instant: datetime, find: Callable[[datetime], datetime | None], search: Search
    ) -> datetime | None:
        """Return the first instant whose wall time ``find`` accepts; None if it is after the year 9999.

        ``find`` returns a wall time unchanged if it accepts it, and otherwise the next one that it accepts.
        """
        try:
            return self._first_instant(instant, find, search)
        except OverflowError:
            return None

    def _first_instant(
        self, instant: datetime, find: Callable[[datetime], datetime | None], search: Search
    ) -> datetime | None:
        """Return the first instant whose wall time ``find`` accepts, by jumps on the wall clock of the zone.

        Between two clock changes, a wall time that is later by an hour belongs to an instant that is later by
        an hour. So the difference of two wall times gives the instant. If the clock changes within the next
        `REACH` and before that instant, the search begins again at the change.
        """
        while True:
            search.spend()
            wall = instant.astimezone(self._zone).replace(tzinfo=None, fold=0)
            accepted_wall = find(wall)
            if accepted_wall == wall:
                return instant
            reach = instant + REACH
            # The instant of the accepted wall time, if the clock does not change before it.
            candidate = None
            if accepted_wall is not None:
                # A calendar without dates was searched day by day, while dates are found by bisection.
                if self.dates is None:
                    search.spend((accepted_wall - wall).days // DAYS_PER_STEP)
                candidate = instant + (accepted_wall - wall)
            checked_until = reach if candidate is None else min(candidate, reach)
            # After a change, the wall clock shows other times, so the search begins again there. Without a
            # change, a candidate within reach is right, and if ``find`` accepts no later wall time, there is
            # no candidate.
            change = first_change(instant, checked_until, self._zone)
            if change is not None:
                instant = change
            elif candidate is None or candidate <= reach:
                return candidate
            else:
                # The wall clock may change on the way, by less than ``REACH``. So the search begins again
                # that long before the candidate.
                instant = max(reach, candidate - REACH)

    def __str__(self) -> str:
        words = [
            self.weekdays,
            _dates_text(self.dates),
            self.months,
            self.iso_weeks and f"week {self.iso_weeks}",
        ]
        if self.start is not None or self.end is not None:
            start_text = time_text(self.start or time.min)
            end_text = "24:00" if self.end is None else time_text(self.end)
            words.append(f"{start_text}-{end_text}")
        words.append(None if self.since is None else f"since {self.since}")
        words.append(None if self.until is None else f"until {self.until}")
        return " ".join([*filter(None, words), self.timezone])


def _check_dates(dates: Iterable[object]) -> tuple[date, ...]:
    """Return the dates in order, each once; raise ValueError for other values, or for too many dates."""
    if isinstance(dates, str | bytes) or not isinstance(dates, Iterable):
        raise ValueError(f"dates must be a tuple of dates, not {dates!r}")  # noqa: TRY004 - as the other errors
    unique_dates: set[date] = set()
    for value in dates:
        if not isinstance(value, date) or isinstance(value, datetime):
            raise ValueError(  # noqa: TRY004
                f"dates must contain dates such as date(2024, 12, 25), not {value!r}"
            )
        unique_dates.add(value)
        if len(unique_dates) > MAX_DATES:
            raise ValueError(f"dates has more than {MAX_DATES} dates; split them into two schedules")
    return tuple(sorted(unique_dates))


def _bound(name: str, value: object, zone: tzinfo) -> datetime | None:
    """Return ``since`` or ``until`` as an instant in UTC; a date is its midnight in the time zone."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return to_utc(value)
    if isinstance(value, date):
        try:
            return instant_of(datetime.combine(value, time.min), zone)
        except OverflowError as error:
            raise ValueError(f"{name}={value!r} begins outside of the years 1 to 9999") from error
    raise ValueError(f"{name} must be a timezone-aware datetime or a date, not {value!r}")


def _plain(bound: date | datetime | None) -> date | datetime | None:
    """Return a bound as JSON carries it: an instant with a fixed UTC offset, any other value unchanged.

    With a time zone in place of the offset, the two instants of a repeated wall time would be equal, because
    comparisons ignore the ``fold`` that distinguishes them.
    """
    offset = bound.utcoffset() if isinstance(bound, datetime) else None
    # A date, None, or a naive datetime, which a later check rejects.
    if not isinstance(bound, datetime) or offset is None:
        return bound
    return bound.replace(tzinfo=tz(offset), fold=0)


def _dates_text(dates: tuple[date, ...] | None) -> str | None:
    """Return the dates in words, shortened if there are more than three; None without that condition."""
    if dates is None:
        return None
    if len(dates) > 3:
        return f"{len(dates)} dates from {dates[0]} to {dates[-1]}"
    return ",".join(map(str, dates)) or "no date"


# -- lists and ranges with names, such as "mon-fri" and "jan-mar,12" -----------------------------------

_MAX_LENGTH: Final = 400
_ITEM: Final = re.compile(r"(\w+)(?:-(\w+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Numbering:
    """Numbers from 1 to ``last``, some of which have names.

    Attributes:
        last: The largest number.
        names: The names from 1 on; none if the numbers have no names.
        has_digits: Whether numbers are accepted. They are not for weekdays, which some programs count from 0
            and others from 1, beginning with Sunday or Monday.
        example: A valid text.
    """

    last: int
    names: Sequence[str]
    has_digits: bool
    example: str

    def parse(self, parameter: str, value: object) -> tuple[str | None, frozenset[int] | None]:
        """Return the text in its shortest form, and the set of its numbers.

        The set is None if the text names all numbers, which is no condition. Both are None if ``value`` is
        None.

        Raises:
            ValueError: The text is not a list of numbers, names and ranges.
        """
        if value is None:
            return None, None
        # A single number may be given as an int. To Python, a bool is an int too.
        is_number = isinstance(value, int) and not isinstance(value, bool)
        text = str(value) if is_number else value
        if not isinstance(text, str) or not 0 < len(text) <= _MAX_LENGTH:
            raise self._invalid(parameter, value)
        numbers: set[int] = set()
        for item in text.lower().split(","):
            span = _ITEM.fullmatch(item.strip())
            if span is None:
                raise self._invalid(parameter, value)
            first = self._number(parameter, value, span[1])
            last = self._number(parameter, value, span[2]) if span[2] else first
            if first <= last:
                numbers.update(range(first, last + 1))
            else:
                # A range such as "nov-feb" ends with the last number, and continues at the first one.
                numbers.update(range(first, self.last + 1))
                numbers.update(range(1, last + 1))
        names_all = len(numbers) == self.last
        return self._text(numbers), None if names_all else frozenset(numbers)

    def _number(self, parameter: str, value: object, word: str) -> int:
        """Return the number of a name or of digits. Another word is an error, which shows the whole value."""
        if word in self.names:
            return self.names.index(word) + 1
        if self.has_digits and len(word) <= 2 and word.isdigit() and 1 <= int(word) <= self.last:
            return int(word)
        raise self._invalid(parameter, value)

    def _text(self, numbers: set[int]) -> str:
        """Return the numbers as a list, with ranges for three or more in a row: ``mon-wed,fri,sat``."""
        texts = []
        first_numbers = sorted(number for number in numbers if number - 1 not in numbers)
        for first in first_numbers:
            # The end of the row of numbers that begins with the first one.
            last = next(number for number in range(first, self.last + 1) if number + 1 not in numbers)
            if first == last:
                texts.append(self._name(first))
            else:
                separator = "," if last == first + 1 else "-"
                texts.append(f"{self._name(first)}{separator}{self._name(last)}")
        return ",".join(texts)

    def _name(self, number: int) -> str:
        """Return a number as a text writes it: by its name, or in digits if the numbers have no names."""
        return self.names[number - 1] if self.names else str(number)

    def _invalid(self, parameter: str, value: object) -> ValueError:
        """Return the error for an invalid value of a parameter, which states what is allowed."""
        allowed = "names" if not self.has_digits else f"numbers from 1 to {self.last}"
        text = f"{value[:40]}..." if isinstance(value, str) and len(value) > 40 else value
        return ValueError(
            f"{parameter} must be a list or range of {allowed}, such as {self.example!r}, not {text!r}"
        )


WEEKDAYS: Final = Numbering(
    last=7,
    names=("mon", "tue", "wed", "thu", "fri", "sat", "sun"),
    has_digits=False,
    example="mon-fri",
)
MONTHS: Final = Numbering(
    last=12,
    names=("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    has_digits=True,
    example="jan-mar,12",
)
WEEKS: Final = Numbering(last=53, names=(), has_digits=True, example="1-26")
