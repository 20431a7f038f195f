"""Times and durations that people write as options: one grammar, which searches have too.

A duration is ``90s``, ``15m``, ``12h``, ``2d``, ``1w`` or several of them, ``1h30m``. A time is ``now``,
``today``, ``tomorrow``, ``yesterday``, a day or a time of ISO 8601, or a duration from now: ``+1h`` later,
``-15m`` earlier. Without a sign it is later, and earlier for options that look back.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from pg_scheduler.inspect.search.errors import SearchError
from pg_scheduler.inspect.search.times import UNITS, read_instant

from .errors import CommandError, ExitCode

_DURATION: Final = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,6})?[smhdw]){1,5}")
_PART: Final = re.compile(r"([0-9.]+)([smhdw])")
MAX_DURATION: Final = timedelta(days=36_500)


def read_duration(name: str, text: str) -> float:
    """Return the seconds of a duration such as 90s, 15m, 1h30m or 2d.

    Raises:
        CommandError: It is none, or 0, or longer than a hundred years.
    """
    duration = _duration(text.strip())
    if duration is None or not 0 < duration <= MAX_DURATION.total_seconds():
        raise CommandError(
            ExitCode.USAGE, f"{name} must be a duration such as 90s, 15m, 1h30m or 2d, not {text!r}"
        )
    return duration


def read_time(name: str, text: str, zone: tzinfo, *, is_past: bool = False) -> datetime:
    """Return an instant: a time, in this zone unless it has one, or a duration from now.

    Args:
        name: The option, for the message.
        text: The time.
        zone: The zone of days and of times without one.
        is_past: Whether a duration without a sign looks back.

    Raises:
        CommandError: It is no time.
    """
    text = text.strip()
    sign, unsigned = ("-" if is_past else "+", text) if text[:1] not in {"+", "-"} else (text[0], text[1:])
    now = datetime.now(UTC)
    if _duration(unsigned) is not None:
        length = timedelta(seconds=read_duration(name, unsigned))
        return now - length if sign == "-" else now + length
    try:
        return read_instant(text, now, zone)
    except SearchError:
        raise CommandError(
            ExitCode.USAGE,
            f"{name} must be a time such as 2027-01-31T09:00, now, +15m or -1h, not {text!r}",
        ) from None


def read_since(name: str, text: str, zone: tzinfo) -> datetime:
    """Return a time, or the instant a duration such as 1h ago."""
    return read_time(name, text, zone, is_past=True)


def read_move(name: str, text: str, zone: tzinfo) -> datetime | timedelta:
    """Return a time, or a signed duration such as +1h or -30m, by which each job is moved."""
    if text[:1] in {"+", "-"}:
        length = timedelta(seconds=read_duration(name, text[1:]))
        return -length if text[0] == "-" else length
    return read_time(name, text, zone)


def _duration(text: str) -> float | None:
    if _DURATION.fullmatch(text) is None:
        return None
    return sum(float(count) * UNITS[unit].total_seconds() for count, unit in _PART.findall(text))
