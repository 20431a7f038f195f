"""The clock of a Scheduler.

In production it is the database's clock: statements use ``coalesce(:now, now())`` and receive None, so all
nodes agree whatever their own clocks show. Tests pass a FakeClock and move it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

__all__ = ["Clock", "FakeClock", "SystemClock"]


class Clock(Protocol):
    """Gives statements their current time."""

    def override(self) -> datetime | None:
        """Return the current time for statements; None for the time of the database."""


class SystemClock:
    """Uses the clock of the database."""

    def override(self) -> None:
        """Return None, so that the database's time counts."""
        return


class FakeClock:
    """Stands still until it is advanced, for tests.

    Args:
        now: The first time, timezone-aware.
    """

    def __init__(self, now: datetime) -> None:
        self.now = now

    def override(self) -> datetime:
        """Return the time of this clock."""
        return self.now

    def advance(self, by: timedelta) -> None:
        """Move the clock forward, or back by a negative timedelta."""
        self.now += by
