"""Build the trigger of a periodic schedule from its parts."""

from __future__ import annotations

from datetime import UTC, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.cron import CronTrigger
from pg_scheduler.triggers.interval import IntervalTrigger

__all__ = ["parse_timezone", "trigger_for"]


def trigger_for(every: timedelta | None, cron: str | None, timezone: tzinfo | str | None) -> Trigger:
    """The trigger of a schedule, with its parts checked.

    Raises:
        ValueError: Neither or both of every and cron, a time that is not positive, a bad cron expression,
            an unknown time zone, or a time zone without cron.
        TypeError: A part of the wrong type.
    """
    if (every is None) == (cron is None):
        raise ValueError(
            f"exactly one of every and cron must be given, not every={every!r} and cron={cron!r}"
        )
    if cron is not None:
        return CronTrigger(cron, parse_timezone(timezone))
    if timezone is not None:
        raise ValueError(f"timezone={timezone!r} goes with cron only: an interval is the same in every zone")
    if not isinstance(every, timedelta):
        raise TypeError(f"every must be a timedelta, not {type(every).__name__}: {every!r}")
    return IntervalTrigger(every)


def parse_timezone(timezone: tzinfo | str | None) -> tzinfo:
    """A zone from its IANA name or itself; UTC for None.

    Raises:
        ValueError: No zone of that name is installed, or the zone has no name.
    """
    if timezone is None:
        return UTC
    if timezone is UTC or (isinstance(timezone, ZoneInfo) and timezone.key):
        return timezone
    if not isinstance(timezone, str):
        raise ValueError(  # noqa: TRY004 - every mistake of a schedule is promised to be one
            f"timezone must be an IANA name, or a ZoneInfo with one that other nodes know, not {timezone!r}"
        )
    try:
        return ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        if timezone == "UTC":  # a machine without time zone data knows this one all the same
            return UTC
        raise ValueError(
            f"timezone {timezone!r} is not known here. Use an IANA name such as 'Europe/Berlin'; "
            "on a machine without time zone data, install the package tzdata."
        ) from error
