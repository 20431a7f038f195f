"""The message that jobs are due, with their times; see ``store/connections/listen.py``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

DUE: Final = "due"
"""The message that a job is due, or will be soon; see ``store/connections/listen.py``."""


def due_message(mark: str, *times: datetime | None) -> str:
    """Return the message that jobs are due at these times, of which None is unknown.

    A statement may append a blank and one more time.
    """
    return " ".join([DUE, mark, *("?" if each is None else f"{each.timestamp():.6f}" for each in times)])


def read_due(about: str) -> tuple[str, datetime | None]:
    """Return the mark of a message about due jobs, and the earliest of its times; None if one is unknown."""
    mark, *times = about.split(" ")
    try:
        return mark, min((datetime.fromtimestamp(float(each), UTC) for each in times), default=None)
    except (ValueError, OverflowError, OSError):  # unknown, or written by hand
        return mark, None


def earliest(one: datetime | None, other: datetime | None) -> datetime | None:
    """Return the earlier one of two due times, of which None means that it is unknown."""
    return None if one is None or other is None else min(one, other)
