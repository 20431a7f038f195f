"""Times as people write them: ``now``, ``today``, ``-1h30m``, days, and times of ISO 8601.

A time names a span: a day lasts from midnight to midnight in its time zone, a minute for 60 seconds, and a
relative time is an instant, a span without length.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final

from pg_scheduler.base.text.durations import DURATION, read_seconds

DAYS: Final = {"yesterday": -1, "today": 0, "tomorrow": 1}
DAY: Final = timedelta(days=1)
HELP: Final = "write -1h, +30m, now, today, 2026-11-20 or 2026-11-20T14:30Z"

_RELATIVE: Final = re.compile(rf"(?P<sign>[+-])(?P<length>{DURATION})")
_ABSOLUTE: Final = re.compile(
    r"(?P<time>[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)?)"
    r"(?P<zone>[Zz]|[+-][0-9]{2}:?[0-9]{2})?"
)
_END: Final = re.compile(r"([0-9]{2}(?:[-Tt :][0-9]{2}){0,4})([Zz]|[+-][0-9]{2}:[0-9]{2})?")
"""The end of a range without the parts that it shares with the start: ``2026-11-20..21``."""


class TimeError(ValueError):
    """A text is not a time; the message contains the reason and the remedy."""


class NonexistentTimeError(TimeError):
    """A text has the form of a time, and there is no such time."""


class OutOfRangeError(NonexistentTimeError):
    """A time is before the year 1 or after the year 9999."""


def read_instant(text: str, now: datetime, tz: tzinfo | None) -> datetime:
    """Return the instant that a text names; of a longer time, such as a day, the start.

    Args:
        text: The time, such as ``-1h30m`` or ``2027-01-01``.
        now: The instant to which relative times refer.
        tz: The time zone of days and times without one; None if there is none.

    Raises:
        TimeError: The text is not a time, or it needs a time zone and there is none.

    Example:
        >>> from datetime import UTC, datetime
        >>> read_instant("-1h30m", datetime(2027, 1, 1, tzinfo=UTC), UTC).isoformat()
        '2026-12-31T22:30:00+00:00'
    """
    return read_span(text, now, tz)[0]


def read_timestamp(text: str) -> datetime:
    """Return the instant of a timestamp of ISO 8601 with a UTC offset, as programs write it, in UTC.

    Raises:
        ValueError: The text is no timestamp, it has no offset, or its instant is out of range in UTC.

    Example:
        >>> read_timestamp("2027-01-01T01:00:00+01:00").isoformat()
        '2027-01-01T00:00:00+00:00'
    """
    instant = datetime.fromisoformat(text)
    if instant.utcoffset() is None:
        raise ValueError(f"the timestamp {text[:50]!r} has no UTC offset")
    try:
        return instant.astimezone(UTC)
    except OverflowError as error:
        raise OutOfRangeError(f"the timestamp {text[:50]!r} is out of range in UTC") from error


def read_span(text: str, now: datetime, tz: tzinfo | None, start: str = "") -> tuple[datetime, datetime]:
    """Return the start and the end of the time of a text, as `read_instant()` does.

    Args:
        text: The time.
        now: The instant to which relative times refer.
        tz: The time zone of days and times without one; None if there is none.
        start: The start of a range, if the text is its end. The end may then omit the first parts, which it
            shares with the start.

    Raises:
        TimeError: The text is not a time, or it needs a time zone and there is none.
    """
    try:
        if text == "now":
            return now, now
        if text in DAYS:
            zone = _check_zone(tz, text)
            return _day(now.astimezone(zone), DAYS[text], zone)
        if relative := _RELATIVE.fullmatch(text):
            length = timedelta(seconds=read_seconds(relative["length"]) or 0)
            at = now - length if relative["sign"] == "-" else now + length
            return at, at
        if absolute := _ABSOLUTE.fullmatch(_completed(text, start)):
            suffix = absolute["zone"]
            zone = _check_zone(tz if suffix is None else _zone_of(suffix), text)
            return _absolute(absolute["time"], zone)
    except TimeError:
        raise
    except OverflowError:
        raise OutOfRangeError(
            f"the time {text!r} is out of range; it must be between 0001-01-02 and 9999-12-30"
        ) from None
    except ValueError as error:
        raise NonexistentTimeError(f"the time {text!r} does not exist: {error}") from None
    raise TimeError(f"{text!r} is no time; {HELP}" if text else f"a time is missing; {HELP}")


def _completed(text: str, start: str) -> str:
    """Return the end of a range with the parts that it shares with the start; another text as it is."""
    start_match, end_match = _ABSOLUTE.fullmatch(start), _END.fullmatch(text)
    if start_match is None or end_match is None:
        return text
    (start_time, start_zone), (end_time, end_zone) = start_match.groups(), end_match.groups()
    if len(end_time) >= len(start_time):
        return text
    # The text of the end takes the place of as many characters at the end of the start.
    return f"{start_time[: -len(end_time)]}{end_time}{end_zone or start_zone or ''}"


def _absolute(text: str, zone: tzinfo) -> tuple[datetime, datetime]:
    """Return the bounds of a day or a time, which lasts as long as the smallest unit in the text."""
    local = datetime.fromisoformat(text.upper())
    if len(text) == len("2026-11-20"):
        return _day(local, 0, zone)
    at = local.replace(tzinfo=zone).astimezone(UTC)
    has_seconds = text.count(":") > 1
    if "." in text:
        length = timedelta(microseconds=1)
    elif has_seconds:
        length = timedelta(seconds=1)
    else:
        length = timedelta(minutes=1)
    return at, at + length


def _day(local: datetime, offset_days: int, zone: tzinfo) -> tuple[datetime, datetime]:
    """Return the bounds of a day in a time zone, which can have 23 or 25 hours.

    The day is ``offset_days`` after that of the local time.
    """
    # Days are added to the wall time. Added to an instant in UTC, each of them would have 24 hours.
    midnight = datetime(local.year, local.month, local.day) + offset_days * DAY  # noqa: DTZ001 - wall time
    return (
        midnight.replace(tzinfo=zone).astimezone(UTC),
        (midnight + DAY).replace(tzinfo=zone).astimezone(UTC),
    )


def _zone_of(suffix: str) -> tzinfo:
    """Return the time zone of a suffix such as ``Z``, ``+01:00`` or ``-0530``."""
    if suffix in {"Z", "z"}:
        return UTC
    length = timedelta(hours=int(suffix[1:3]), minutes=int(suffix[-2:]))
    return timezone(-length if suffix[0] == "-" else length)


def _check_zone(zone: tzinfo | None, text: str) -> tzinfo:
    """Return the time zone that the time in a text needs; raise TimeError if there is none."""
    if zone is None:
        raise TimeError(
            f"the time {text!r} has no time zone; pass tz=, or write 2026-11-20Z or 2026-11-20T14:30+01:00"
        )
    return zone
