"""The clock of a Scheduler.

In production it is the database's clock: statements use ``coalesce(:now, statement_timestamp())`` and receive
None, so all nodes agree even if their own clocks differ. Tests pass a FakeClock and move it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

__all__ = ["Clock", "FakeClock", "PythonClock", "SystemClock"]


class Clock(Protocol):
    """Supplies the current time of statements."""

    def override(self) -> datetime | None:
        """Return the time that statements use as now, or None to use the database's clock."""


class SystemClock:
    """Leaves the current time to the database."""

    def override(self) -> None:
        """Return None: statements use the database's clock."""
        return


class PythonClock:
    """A clock for tests that reads ``datetime.now()``, which time-machine and freezegun move.

    Move it only while no worker runs: leases use the same clock.

    Example:
        >>> from pg_scheduler.clock import PythonClock
        >>> PythonClock().override() <= datetime.now(UTC)
        True
    """

    def override(self) -> datetime:
        """Return the time of this process."""
        return datetime.now(UTC)


class FakeClock:
    """A clock for tests that changes only when it is advanced.

    Args:
        now: The first time, timezone-aware.

    Attributes:
        now: The current time. A test may assign it.
    """

    def __init__(self, now: datetime) -> None:
        self.now = now

    def override(self) -> datetime:
        """Return the time of this clock."""
        return self.now

    def advance(self, by: timedelta) -> None:
        """Move the clock forward, or back by a negative timedelta."""
        self.now += by
