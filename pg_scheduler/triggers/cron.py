"""The cron trigger follows the local time of a time zone.

Clock changes follow the rules of Debian's cron, as the manual page cron(8) states them under NOTES:

* A job whose minute and hour fields both name fixed times (neither starts with ``*``) runs **once**: right
  after the change if its time was skipped, and the first time only if its time occurs twice.
* Any other job follows the local time: skipped times do not run, repeated times run twice.
* A change of three hours or more is a correction of the clock: every job follows the local time. (A change
  back by exactly three hours counts as smaller, as in the source of Debian's cron; the manual does not say.)

Intended differences from Debian's cron:

* Several fixed times in one skipped hour, or one of them and the time right after it, are **one** fire time
  at the instant of the change. Debian's cron starts the command once for each.
* Every change of the zone's UTC offset counts. Debian's cron ignores those that do not toggle daylight saving
  time until it is restarted.
* Changes of less than five minutes forward, last seen in the 1970s, are treated as larger ones. Debian's cron
  takes them for a late wake-up and also runs the missed times of wildcard jobs.
* A sixth field holds seconds, which Debian's cron does not have. Seconds do not make a job a wildcard job.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Final

from pg_scheduler.triggers.base import Trigger, restricted_trigger
from pg_scheduler.triggers.cron_fields import CronFields, parse_cron
from pg_scheduler.triggers.search import to_utc
from pg_scheduler.triggers.serialization import trigger_kind
from pg_scheduler.triggers.zones import ClockChange, change_at, named_zone

SECOND: Final = timedelta(seconds=1)

MIN_CORRECTION: Final = timedelta(hours=3)
"""A change of this size or larger is a correction of the clock."""


@trigger_kind("cron")
@dataclass(frozen=True, slots=True, init=False)
class Cron(Trigger):
    """A trigger that fires when the local time of a time zone matches a cron expression.

    Args:
        expression: Five fields, or six with the seconds **last**, or an alias such as ``@hourly``. If both
            day of month and day of week are restricted (neither starts with ``*``), one match is enough.
        timezone: An IANA name or a ZoneInfo.

    Raises:
        ValueError: The expression or the time zone is invalid; the message contains the remedy.

    Example:
        >>> from datetime import UTC, datetime
        >>> from pg_scheduler.triggers import Cron
        >>> trigger = Cron("30 2 * * *", timezone="Europe/Berlin")
        >>> trigger.next_after(datetime(2024, 3, 31, tzinfo=UTC))  # 02:30 is skipped
        datetime.datetime(2024, 3, 31, 1, 0, tzinfo=datetime.timezone.utc)
    """

    expression: str
    timezone: str = "UTC"
    _fields: CronFields = field(init=False, repr=False, compare=False)
    _zone: tzinfo = field(init=False, repr=False, compare=False)

    def __init__(self, expression: str, timezone: str | tzinfo = "UTC") -> None:
        name, zone = named_zone(timezone)
        # The dataclass is frozen, so its attributes cannot be assigned.
        object.__setattr__(self, "_fields", parse_cron(expression))
        object.__setattr__(self, "expression", expression)
        object.__setattr__(self, "timezone", name)
        object.__setattr__(self, "_zone", zone)

    def next_after(
        self,
        instant: datetime,
        *,
        anchor: datetime | None = None,  # noqa: ARG002 - part of the protocol
    ) -> datetime | None:
        """Return the first fire time strictly after ``instant``, in UTC; None after the year 9999.

        The anchor has no effect.
        """
        try:
            return self._first_after(to_utc(instant))
        except (LookupError, OverflowError):
            return None

    def _first_after(self, instant: datetime) -> datetime:
        """Return the first fire time after an instant; raise LookupError or OverflowError after the last."""
        local = instant.astimezone(self._zone)
        wall_time = local.replace(tzinfo=None, microsecond=0, fold=0)
        # The wall time from which to search. Fire times are whole seconds.
        start = wall_time + SECOND
        # An instant has no skipped wall time, so a change here is one that repeats the wall time. A ``fold``
        # of 0 stands for the first pass of the repeated times, and 1 for the second pass.
        repeat = change_at(wall_time, self._zone)
        if repeat is not None and local.fold == 0 and self._follows(repeat):
            # The instant is in the first pass of the repeated times. Search the remainder of this pass, then
            # all of the second one. A wall time minus the UTC offset of its pass is the time in UTC.
            for pass_start, offset in ((start, repeat.before), (repeat.wall_start, repeat.after)):
                wall = self._fields.at_or_after(pass_start)
                if wall < repeat.wall_end:
                    return (wall - offset).replace(tzinfo=UTC)
        elif repeat is not None and local.fold == 1 and not self._follows(repeat):
            # Fixed times fire in the first pass only.
            start = repeat.wall_end
        while True:
            wall = self._fields.at_or_after(start)
            change = change_at(wall, self._zone)
            if change is None:
                return wall.replace(tzinfo=self._zone).astimezone(UTC)
            if change.is_repeat:
                break
            # The wall time is skipped: a fixed time fires at the change, any other does not fire.
            if not self._follows(change):
                return change.instant
            start = change.wall_end
        # The wall time occurs twice. The first occurrence may not be after the instant.
        first = wall.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
        second = wall.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        return first if first > instant else second

    def _follows(self, change: ClockChange) -> bool:
        """Return whether fire times follow the local time at this change.

        If they do, skipped times do not fire, and repeated ones fire twice. Otherwise a skipped time fires at
        the change, and a repeated one fires the first time only.
        """
        moved_by = change.after - change.before
        # A change of exactly three hours is a correction forward, but not back, as in Debian's cron.
        is_correction = moved_by < -MIN_CORRECTION or moved_by >= MIN_CORRECTION
        return self._fields.wild or is_correction

    def __str__(self) -> str:
        return f"{describe(self.expression, self._fields)}, {self.timezone}"


# -- a short description in words ----------------------------------------------------------------------

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
    """Return a text such as "at 03:00 on Sunday", or "cron '*/7 * * * *'" if no short description exists."""
    day_text, interval_text = _day(fields), _repeated(fields)
    if day_text is not None and interval_text is not None:
        # An interval on every day needs no "every day": "every 5 minutes in January".
        days_left = day_text.removeprefix("every day").strip()
        return f"{interval_text} {days_left}" if days_left else interval_text
    time_text = _time(fields)
    if time_text is None or day_text is None:
        return f"cron '{expression}'"
    return f"{time_text} {day_text}"


def _time(fields: CronFields) -> str | None:
    """Return the times of a day, such as "at 03:00 and 15:00", if they are few; None for other fields."""
    if fields.seconds != (0,) or len(fields.minutes) != 1 or len(fields.hours) > _MAX_ITEMS:
        return None
    return "at " + _list(f"{hour:02}:{fields.minutes[0]:02}" for hour in fields.hours)


def _repeated(fields: CronFields) -> str | None:
    """Return the interval within a day, such as "every 5 minutes from 09:00 to 17:55", if there is one."""
    if fields.seconds != (0,):
        second_step = _cycle(fields.seconds)
        is_all_day = (len(fields.hours), len(fields.minutes)) == (24, 60)
        begins_at_zero = fields.seconds[0] == 0
        if second_step and is_all_day and begins_at_zero:
            return f"every {_counted(second_step, 'second')}"
        return None
    if len(fields.hours) == 24:
        return _in_every_hour(fields.minutes)
    hour_step, minute_step = _step(fields.hours), _cycle(fields.minutes)
    # A few hours are listed instead, as "at 03:00 and 15:00".
    if len(fields.minutes) == 1 and len(fields.hours) > _MAX_ITEMS and hour_step is not None:
        return f"every {_counted(hour_step, 'hour')} {_span(fields)}"
    # Minutes form one interval only within one hour, or if the hours follow one another without a gap.
    if minute_step is not None and (len(fields.hours) == 1 or hour_step == 1):
        return f"every {_counted(minute_step, 'minute')} {_span(fields)}"
    return None


def _in_every_hour(minutes: Sequence[int]) -> str | None:
    """Return the minutes of each hour, such as "every 5 minutes"; None for many minutes without a step."""
    if len(minutes) == 1:
        return f"at minute {minutes[0]} of every hour"
    step = _cycle(minutes)
    if step is not None:
        interval = f"every {_counted(step, 'minute')}"
        return f"{interval} from minute {minutes[0]} of every hour" if minutes[0] else interval
    if len(minutes) <= _MAX_ITEMS:
        return f"at minutes {_list(map(str, minutes))} of every hour"
    return None


def _step(numbers: Sequence[int]) -> int | None:
    """Return the difference of neighboring numbers; None if the differences vary, or for a single number."""
    steps = {number - previous_number for previous_number, number in pairwise(numbers)}
    return steps.pop() if len(steps) == 1 else None


def _cycle(numbers: Sequence[int]) -> int | None:
    """Return the step of minutes if it fits evenly into the hour, such as 5 of 0, 5, ... 55; None otherwise.

    Likewise it returns the step of seconds in a minute.
    """
    step = _step(numbers)
    return step if step is not None and step * len(numbers) == 60 else None


def _span(fields: CronFields) -> str:
    """Return the first and the last time of the day, such as "from 09:00 to 17:55"."""
    first_time = f"{fields.hours[0]:02}:{fields.minutes[0]:02}"
    last_time = f"{fields.hours[-1]:02}:{fields.minutes[-1]:02}"
    return f"from {first_time} to {last_time}"


def _counted(number: int, noun: str) -> str:
    """Return a number with a noun as they follow the word "every": "minute" or "5 minutes"."""
    return noun if number == 1 else f"{number} {noun}s"


def _day(fields: CronFields) -> str | None:
    """Return the days, such as "every day" or "on Sunday in May"; None if they have no short description."""
    if fields.nth_weekdays or fields.either_day:
        return None
    date, weekday, month = _date(fields), _weekday(fields), _month(fields)
    # An empty text stands for all days or all months. A date that must also be a certain weekday is not
    # described.
    if date is None or month is None or (date and weekday):
        return None
    if date:
        return f"on {date} of {month or 'every month'}"
    text = f"on {weekday}" if weekday else "every day"
    return f"{text} in {month}" if month else text


def _date(fields: CronFields) -> str | None:
    """Return the days of the month in words; "" for all, None for too many."""
    if fields.last_day:
        return None if fields.days else "the last day"
    if len(fields.days) == 31:
        return ""
    if len(fields.days) > _MAX_ITEMS:
        return None
    return f"day {_list(map(str, sorted(fields.days)))}"


def _weekday(fields: CronFields) -> str:
    """Return the days of the week in words; "" for all."""
    if len(fields.weekdays) == 7:
        return ""
    if fields.weekdays == {1, 2, 3, 4, 5}:
        return "Monday to Friday"
    # Sunday, which is day 0, is sorted as day 7, so that it is named last.
    sorted_days = sorted(7 if weekday == 0 else weekday for weekday in fields.weekdays)
    return _list(_DAYS[day % 7] for day in sorted_days)


def _month(fields: CronFields) -> str | None:
    """Return the names of the months; "" for all, None for too many."""
    if len(fields.months) == 12:
        return ""
    if len(fields.months) > _MAX_ITEMS:
        return None
    return _list(_MONTHS[month - 1] for month in sorted(fields.months))


def _list(words: Iterable[str]) -> str:
    """Return words as a list in English, such as "1, 2 and 3"."""
    *earlier_words, last_word = words
    return f"{', '.join(earlier_words)} and {last_word}" if earlier_words else last_word


def warn_of_seconds(trigger: object) -> None:
    """Warn if a cron expression seems to have its seconds in the first field.

    It seems so if there are six fields, of which the last is a wildcard and the first is not ``*``. The
    warning names the line that called the calling function.
    """
    inner = restricted_trigger(trigger) if isinstance(trigger, Trigger) else trigger
    if not isinstance(inner, Cron):
        return
    fields = inner.expression.split()
    if len(fields) == 6 and fields[-1] in {"*", "?"} and fields[0] != "*":
        # The level 3 is the caller of the function that called this one.
        warnings.warn(
            f"cron expression {inner.expression!r} fires every second of the minutes it matches; write the "
            "seconds last: the order of six fields is minute, hour, day of month, month, day of week, second",
            stacklevel=3,
        )
