"""Whose clock decides.

In production the database's: statements use ``coalesce(:now, now())`` and get None, so all nodes agree
whatever their own clocks say. Tests pass a FakeClock and move time by hand.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

__all__ = ["Clock", "FakeClock", "SystemClock"]


class Clock(Protocol):
    """Gives statements their ``now``."""

    def override(self) -> datetime | None:
        """The instant statements shall take for now; None for the database's own."""


class SystemClock:
    """The database decides."""

    def override(self) -> None:
        """Nothing overrides it."""
        return


class FakeClock:
    """Stands still until it is told to move. For tests.

    Args:
        now: A timezone-aware datetime to start from.
    """

    def __init__(self, now: datetime) -> None:
        self.now = now

    def override(self) -> datetime:
        """Where the clock stands."""
        return self.now

    def advance(self, by: timedelta) -> None:
        """Move time forward (or, with a negative timedelta, back)."""
        self.now += by
