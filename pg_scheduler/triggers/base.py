"""The trigger protocol, and the search for the latest fire time that is due."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Trigger", "latest_fire_time", "to_utc"]


class Trigger(Protocol):
    """Computes the fire times of a schedule."""

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
        """Return the first fire time strictly after ``instant``, in UTC.

        Args:
            instant: A timezone-aware datetime.
            anchor: The timezone-aware instant from which the schedule is counted.
        """


def latest_fire_time(trigger: Trigger, *, first: datetime, now: datetime, anchor: datetime) -> datetime:
    """Return the latest fire time that is not after ``now``.

    The search bisects the time since ``first``, so a year of missed seconds costs some fifty calls of
    ``next_after``.

    Args:
        trigger: The trigger.
        first: A fire time not after ``now``.
        now: A timezone-aware instant.
        anchor: The anchor of the schedule.
    """
    found, end = to_utc(first), to_utc(now)
    while (following := trigger.next_after(found, anchor=anchor)) <= now:
        found = following
        middle = found + (end - found) / 2
        fire = trigger.next_after(middle, anchor=anchor)
        if fire <= now:
            found = fire
        else:
            end = middle
    return found


def to_utc(instant: datetime) -> datetime:
    """Return the instant in UTC.

    Raises:
        ValueError: It is naive.
    """
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone; use datetime.now(UTC) or pass tzinfo=")
    return instant.astimezone(UTC)
