"""Lengths of time as people write them: ``90s``, ``15m``, ``12h``, ``2d``, ``1w``, or several, ``1h30m``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

DURATION: Final = r"(?:[0-9]{1,9}(?:\.[0-9]{1,6})?[smhdw]){1,5}"
"""The pattern of a length of time."""

_UNITS: Final = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION: Final = re.compile(DURATION)
_PART: Final = re.compile(r"([0-9.]+)([smhdw])")


def read_seconds(text: str) -> float | None:
    """Return the seconds of a length of time; None if the text is none.

    Example:
        >>> read_seconds("1h30m"), read_seconds("0.5s"), read_seconds("soon")
        (5400.0, 0.5, None)
    """
    if _DURATION.fullmatch(text) is None:
        return None
    return sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(text))


def write_duration(length: timedelta) -> str:
    """Return the text of a length of whole seconds.

    Example:
        >>> write_duration(timedelta(days=8, minutes=5))
        '1w1d5m'
    """
    remainder, parts = length.days * 86_400 + length.seconds, []
    for unit, size in _UNITS.items():
        count, remainder = divmod(remainder, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
