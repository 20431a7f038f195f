"""Times and durations that people write as options."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from .errors import CommandError, ExitCode

__all__ = ["read_duration", "read_time"]

_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])")
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
MAX_DURATION_S: Final = 36_500 * 86_400


def read_duration(name: str, text: str) -> float:
    """Return the seconds of a duration such as 90s, 15m, 12h or 2d.

    Raises:
        CommandError: It is none, or 0, or longer than a hundred years.
    """
    found = _DURATION.fullmatch(text.strip())
    seconds = 0.0 if found is None else float(found[1]) * _UNITS[found[2]]
    if not 0 < seconds <= MAX_DURATION_S:
        raise CommandError(
            ExitCode.USAGE, f"{name} must be a duration such as 90s, 15m, 12h or 2d, not {text!r}"
        )
    return seconds


def read_time(name: str, text: str, zone: tzinfo) -> datetime:
    """Return an instant: a time, in this zone unless it has one, or a duration from now on.

    Raises:
        CommandError: It is neither.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        if _DURATION.fullmatch(text.strip()) is None:
            raise CommandError(
                ExitCode.USAGE,
                f"{name} must be a time such as 2027-01-31T09:00 or a duration such as 15m, not {text!r}",
            ) from None
        return datetime.now(UTC) + timedelta(seconds=read_duration(name, text))
    return at if at.tzinfo is not None else at.replace(tzinfo=zone)
