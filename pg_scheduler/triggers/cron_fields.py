"""Parse cron expressions, and find the next wall time that matches.

croniter is used as the parser only. Its releases disagree about the times of an expression (``0 0 1,30 * *``
omits the 1st of March before 6.1), while all nodes of a cluster must agree, even with different releases. So
this module searches itself, and rejects expressions that releases read differently.

Wall times are naive: time zones are handled in `Cron`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from croniter import croniter

ALIASES: Final[Mapping[str, str]] = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_NAMES: Final = ("minute", "hour", "day of month", "month", "day of week", "second")
_RANGES: Final = (range(60), range(24), range(1, 32), range(1, 13), range(7), range(60))
_DAY_OF_MONTH: Final = 2
_WEEKDAY: Final = 4
_FURTHER_FORMS: Final = {
    _DAY_OF_MONTH: ", or L for the last day",
    _WEEKDAY: ", L5 for the last Friday, or 5#3 for the third one",
}
_SPAN: Final = re.compile(r"(?P<low>\d+|[a-z]{3})(-(?P<high>\d+|[a-z]{3}))?(?P<step>/\d+)?(#.*)?")
_RANDOM: Final = re.compile(r"[hr](\(.*\))?(/.*)?")
_NEAREST_WEEKDAY: Final = re.compile(r"\d+w|w\d+")
_NTH_WEEKDAY: Final = re.compile(r".*#.*|l\d")
_MISWRITTEN_LAST_WEEKDAY: Final = re.compile(r"(?P<day>[0-7]|[a-z]{3})l|l(?P<name>[a-z]{3})")
_BEFORE_LAST_DAY: Final = re.compile(r"l?w|l-.*")
_MAX_LENGTH: Final = 1000
_MONTHS_AHEAD: Final = 50 * 12  # a 29th of February on a given weekday can be 40 years away


class _FieldValues(NamedTuple):
    """What one field of an expression matches.

    Attributes:
        numbers: The numbers.
        nth_weekdays: As in `CronFields`; empty for other fields than the day of week.
        has_last_day: Whether the field names the last day of the month.
    """

    numbers: frozenset[int]
    nth_weekdays: Mapping[int, frozenset[str]]
    has_last_day: bool


class _Expansion(NamedTuple):
    """One field as croniter expands it: its values, such as 5, ``*`` and ``l``, and its nth weekdays."""

    values: list[int | str]
    nth_weekdays: Mapping[int, frozenset[str]]


@dataclass(frozen=True, slots=True, eq=False)
class CronFields:
    """The values that each field of a cron expression matches.

    Attributes:
        wild: Whether the minute or the hour field starts with ``*``, so that the job follows the local time
            through clock changes; see `Cron`.
        either_day: Whether day of month and day of week are both restricted, so that one match is enough.
        last_day: Whether the day of month field contains ``L``.
        nth_weekdays: For each weekday (0 = Sunday), which of its occurrences in a month match: ``"1"`` to
            ``"5"``, or ``"l"`` for the last. They match in addition to ``weekdays``.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    nth_weekdays: Mapping[int, frozenset[str]]
    last_day: bool
    either_day: bool
    wild: bool

    def at_or_after(self, wall: datetime) -> datetime:
        """Return the first matching time that is not before ``wall`` (naive, whole seconds).

        Raises:
            LookupError: No later day matches.
        """
        day = self._day_from(wall.date())
        if day == wall.date():
            moment = self._time_from(wall.time())
            if moment is not None:
                return datetime.combine(day, moment)
            day = self._day_from(day + timedelta(days=1))
        return datetime.combine(day, time(self.hours[0], self.minutes[0], self.seconds[0]))

    def _time_from(self, start: time) -> time | None:
        """Return the first matching time of a day that is not before ``start``; None if there is none."""
        hour = _first(self.hours, start.hour)
        # If the hour of the start does not match, the result is the first time of a later hour.
        if hour != start.hour:
            return None if hour is None else time(hour, self.minutes[0], self.seconds[0])
        minute = _first(self.minutes, start.minute)
        # If its minute matches too, a second of this minute may be left, else a later minute of this hour.
        if minute == start.minute:
            second = _first(self.seconds, start.second)
            if second is not None:
                return time(hour, minute, second)
            minute = _first(self.minutes, start.minute + 1)
        if minute is not None:
            return time(hour, minute, self.seconds[0])
        # No minute of this hour is left.
        hour = _first(self.hours, start.hour + 1)
        return None if hour is None else time(hour, self.minutes[0], self.seconds[0])

    def _day_from(self, start: date) -> date:
        """Return the first matching day that is not before ``start``; raise LookupError if there is none."""
        year, month, first_day = start.year, start.month, start.day
        for _ in range(_MONTHS_AHEAD):
            if month in self.months:
                first_weekday, length = _month(year, month)
                days = _days_of_month(self, first_weekday, length)
                index = bisect_left(days, first_day)
                if index < len(days):
                    return date(year, month, days[index])
            # The search continues on the first day of the next month.
            first_day = 1
            month += 1
            if month > 12:
                year, month = year + 1, 1
            if year > MAXYEAR:
                break
        raise LookupError(f"no day matches the fields within {_MONTHS_AHEAD} months")


_month = lru_cache(maxsize=4096)(monthrange)
"""The weekday of the first day of a month (0 = Monday), and the number of its days."""


@lru_cache(maxsize=4096)
def _days_of_month(fields: CronFields, first_weekday: int, length: int) -> tuple[int, ...]:
    """Return the matching days of a month, whose first day is a ``first_weekday`` (0 = Monday).

    There are few different months, so the results are remembered.
    """
    days = []
    for day in range(1, length + 1):
        # In cron expressions, 0 is Sunday.
        weekday = (first_weekday + day) % 7
        by_date = day in fields.days or (fields.last_day and day == length)
        by_weekday = weekday in fields.weekdays
        # Which of this weekday's occurrences in the month match, such as the third one or the last.
        occurrences = fields.nth_weekdays.get(weekday)
        if occurrences and not by_weekday:
            occurrence = str((day + 6) // 7)
            is_last = day + 7 > length
            by_weekday = occurrence in occurrences or (is_last and "l" in occurrences)
        # As in every cron: if both fields are restricted, one match is enough.
        matches = (by_date or by_weekday) if fields.either_day else (by_date and by_weekday)
        if matches:
            days.append(day)
    return tuple(days)


def _first(numbers: tuple[int, ...], minimum: int) -> int | None:
    """Return the first of some sorted numbers that is at least the minimum; None if there is none."""
    index = bisect_left(numbers, minimum)
    return numbers[index] if index < len(numbers) else None


def parse_cron(expression: str) -> CronFields:
    """Parse a cron expression.

    Args:
        expression: ``minute hour day-of-month month day-of-week``, optionally a **sixth and last** field with
            the seconds (0 without it), or an alias such as ``@hourly``.

    Raises:
        ValueError: The expression is invalid or ambiguous, or its date never occurs. The message contains the
            expression, the reason and the remedy.
    """
    value: object = expression
    if not isinstance(value, str) or not value.isascii():
        raise _invalid(value, "is not ASCII text", "write five fields, such as '30 4 * * *'")
    return _parse(expression)


@lru_cache(maxsize=1024)
def _parse(expression: str) -> CronFields:
    """Parse a cron expression that is known to be a text of ASCII, and remember the result.

    The errors are those of ``parse_cron()``.
    """
    if len(expression) > _MAX_LENGTH:
        raise _invalid(
            f"{expression[:40]}...", f"has {len(expression)} characters", f"write at most {_MAX_LENGTH}"
        )
    lowered = expression.strip().lower()
    if lowered.startswith("@") and lowered not in ALIASES:
        raise _invalid(expression, "is an unknown alias", f"use one of {', '.join(sorted(ALIASES))}")
    texts = ALIASES.get(lowered, lowered).split()
    if len(texts) not in (5, 6):
        raise _invalid(
            expression,
            f"has {len(texts)} field{'s' * (len(texts) != 1)}",
            "write five (minute, hour, day of month, month, day of week), or six with the seconds last; "
            "years are not supported",
        )
    field_values = [_values(expression, index, text) for index, text in enumerate(texts)]
    # The numbers of each field, in order. The sixth field, with the seconds, is optional.
    minutes, hours, days, months, weekdays, *seconds = (
        tuple(sorted(values.numbers)) for values in field_values
    )
    minute_text, hour_text = texts[:2]
    fields = CronFields(
        seconds=seconds[0] if seconds else (0,),
        minutes=minutes,
        hours=hours,
        days=frozenset(days),
        months=frozenset(months),
        weekdays=frozenset(weekdays),
        nth_weekdays=field_values[_WEEKDAY].nth_weekdays,
        last_day=field_values[_DAY_OF_MONTH].has_last_day,
        either_day=not any(texts[index][0] in "*?" for index in (_DAY_OF_MONTH, _WEEKDAY)),
        wild=any(text.startswith("*") for text in (minute_text, hour_text)),
    )
    # An expression that never matches, such as one for the 30th of February, is an error. Which year the
    # search begins with does not matter.
    try:
        fields.at_or_after(datetime.combine(date(2000, 1, 1), time.min))
    except LookupError as error:
        raise _invalid(expression, "has a date that never occurs", "check its day and month") from error
    return fields


def _values(expression: str, index: int, text: str) -> _FieldValues:
    """Return the numbers and nth weekdays that one field of an expression matches.

    Args:
        expression: The whole expression, for errors.
        index: The place of the field, from 0.
        text: The field.
    """
    items = text.split(",")
    for item in items:
        _check_item(expression, index, item)
    # croniter rejects some lists that mix plain and nth weekdays, and ignores the plain weekdays of others.
    # So each kind is expanded alone.
    plain_items = [item for item in items if index != _WEEKDAY or not _NTH_WEEKDAY.fullmatch(item)]
    nth_items = [item for item in items if item not in plain_items]
    values: list[int | str] = []
    nth_weekdays: Mapping[int, frozenset[str]] = {}
    if plain_items:
        values = _expand(expression, index, ",".join(plain_items)).values
    if nth_items:
        nth_weekdays = _expand(expression, index, ",".join(nth_items)).nth_weekdays
    numbers = frozenset(value for value in values if isinstance(value, int))
    if "*" in values:
        numbers = frozenset(_RANGES[index])
    return _FieldValues(numbers, nth_weekdays, has_last_day="l" in values)


def _check_item(expression: str, index: int, item: str) -> None:
    """Reject an item that croniter accepts but misreads, or reads differently between releases."""
    field = f"has {_as_written(expression, index, item)!r} as {_NAMES[index]}"
    if _RANDOM.fullmatch(item):
        raise _invalid(
            expression, f"{field}, a random or hashed value", "write a number, so that nodes agree"
        )
    if _NEAREST_WEEKDAY.fullmatch(item):
        raise _invalid(expression, f"{field}, a nearest weekday, which is not supported", "write plain days")
    if index == _DAY_OF_MONTH and _BEFORE_LAST_DAY.fullmatch(item):
        reason = f"{field}, a day before the last one, which is not supported"
        raise _invalid(expression, reason, "write L for the last day")
    # Such as "5L" or "LFRI" in place of L5, for the last Friday.
    if index == _WEEKDAY and (last_weekday := _MISWRITTEN_LAST_WEEKDAY.fullmatch(item)):
        number = _number(expression, index, last_weekday["day"] or last_weekday["name"])
        raise _invalid(expression, f"{field}, which is invalid", f"write L{number} for the last such day")
    # The remaining checks are about ranges: those with an end, and those with a step, such as 5/10.
    span = _SPAN.fullmatch(item)
    if span is None or not (span["high"] or span["step"]):
        return
    low = _number(expression, index, span["low"])
    high = _number(expression, index, span["high"]) if span["high"] else _RANGES[index][-1]
    if index == _WEEKDAY and low == 7:
        raise _invalid(expression, f"{field}, a range that starts with 7", "write 0 for its Sunday")
    if low == high:
        raise _invalid(expression, f"{field}, a range of one value", f"write {span['low']}")
    if low > high and span["step"]:
        raise _invalid(expression, f"{field}, a range with steps across the end", "list the values")


def _as_written(expression: str, index: int, item: str) -> str:
    """Return an item of a field, given in lower case, with the capitals that it has in the expression.

    If it is not in the expression, because that is an alias, it is returned unchanged.
    """
    words = expression.split()
    word = words[index] if index < len(words) else ""
    start = word.lower().find(item)
    return item if start < 0 else word[start : start + len(item)]


def _number(expression: str, index: int, text: str) -> int:
    """Return the number of a text in a field: the text has digits, or is a name such as "mon"."""
    return int(text) if text.isdigit() else int(_expand(expression, index, text).values[0])


def _expand(expression: str, index: int, text: str) -> _Expansion:
    """Return one field as croniter expands it, with its nth weekdays as `CronFields` has them.

    The other fields are ``*`` for that, and have no effect. Seconds are parsed as minutes, whose range they
    share.
    """
    texts = ["*"] * 5
    # The seconds have the place 5, which becomes that of the minutes, 0.
    place = index % 5
    texts[place] = text
    try:
        expanded, nth = croniter.expand(" ".join(texts))
    except ValueError as error:
        reason = f"has {_as_written(expression, index, text)!r} as {_NAMES[index]}, which is invalid"
        remedy = f"write *, numbers from {_RANGES[index][0]} to {_RANGES[index][-1]}, ranges, steps or lists"
        remedy += _FURTHER_FORMS.get(index, "")
        if len(expression.split()) == len(_NAMES):
            remedy += f"; the order of six fields is {', '.join(_NAMES)}"
        raise _invalid(expression, reason, remedy) from error
    # Sunday may be written as 7, and is 0 here.
    nth_weekdays = {int(weekday) % 7: frozenset(map(str, numbers)) for weekday, numbers in nth.items()}
    return _Expansion(list(expanded[place]), nth_weekdays)


def _invalid(expression: object, reason: str, remedy: str) -> ValueError:
    """Return the error for an expression, with what is wrong and what to write instead."""
    return ValueError(f"cron expression {expression!r} {reason}; {remedy}")
