"""The trigger protocol, and the search for the latest fire time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Trigger", "latest_fire"]


class Trigger(Protocol):
    """Says when a periodic job fires."""

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
        """The first fire strictly after ``instant``, in UTC.

        Args:
            instant: A timezone-aware datetime.
            anchor: The timezone-aware instant that the schedule was laid out from.
        """


def latest_fire(trigger: Trigger, *, first: datetime, now: datetime, anchor: datetime) -> datetime:
    """The latest fire that is not after ``now``.

    Halves the time in question instead of walking through it, so a year of missed seconds costs some fifty
    calls of ``next_after``.

    Args:
        trigger: What fires.
        first: A fire not after ``now``.
        now: The timezone-aware instant to look back from.
        anchor: Passed on to the trigger.
    """
    found, end = _utc(first), _utc(now)
    while (following := trigger.next_after(found, anchor=anchor)) <= now:
        found = following
        middle = found + (end - found) / 2
        fire = trigger.next_after(middle, anchor=anchor)
        if fire <= now:
            found = fire
        else:
            end = middle
    return found


def _utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone. Write datetime.now(UTC) or give tzinfo.")
    return instant.astimezone(UTC)
