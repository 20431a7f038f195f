"""Describe a cron expression in words where they are shorter than its fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pg_scheduler.triggers.cron_fields import CronFields

_DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_MAX_ITEMS: Final = 3


def describe(expression: str, fields: CronFields) -> str:
    """Return "at 03:00 on Sunday"; "cron '*/7 * * * *'" for an expression without a short description."""
    when, day = _time(fields), _day(fields)
    return f"cron '{expression}'" if when is None or day is None else f"{when} {day}"


def _time(fields: CronFields) -> str | None:
    if fields.seconds != (0,) or len(fields.minutes) != 1 or len(fields.hours) > _MAX_ITEMS:
        return None
    return "at " + _list(f"{hour:02}:{fields.minutes[0]:02}" for hour in fields.hours)


def _day(fields: CronFields) -> str | None:
    if fields.nth_weekdays or fields.either_day:
        return None
    date, weekday, month = _date(fields), _weekday(fields), _month(fields)
    if date is None or month is None or (date and weekday):
        return None
    if date:
        return f"on {date} of {month or 'every month'}"
    text = f"on {weekday}" if weekday else "every day"
    return f"{text} in {month}" if month else text


def _date(fields: CronFields) -> str | None:
    """Return the days of the month; "" for all, None for too many."""
    if fields.last_day:
        return None if fields.days else "the last day"
    if len(fields.days) == 31:
        return ""
    return f"day {_list(map(str, sorted(fields.days)))}" if len(fields.days) <= _MAX_ITEMS else None


def _weekday(fields: CronFields) -> str:
    """Return the days of the week; "" for all."""
    if len(fields.weekdays) == 7:
        return ""
    if fields.weekdays == {1, 2, 3, 4, 5}:
        return "Monday to Friday"
    return _list(_DAYS[day % 7] for day in sorted(each or 7 for each in fields.weekdays))


def _month(fields: CronFields) -> str | None:
    """Return the months; "" for all, None for too many."""
    if len(fields.months) == 12:
        return ""
    if len(fields.months) > _MAX_ITEMS:
        return None
    return _list(_MONTHS[month - 1] for month in sorted(fields.months))


def _list(words: Iterable[str]) -> str:
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last
