"""What the test kits for async and for plain tests share."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar, Final

from pg_scheduler.jobs.validation import check_delay
from pg_scheduler.store.foreign.adapter import library_of
from pg_scheduler.testing.transaction import KitScheduler

TOLERANCE_S: Final = 10.0
"""Seconds by which a due time may differ from the one of an assertion: time passes in a test."""

TAKERS: Final = ("AsyncTestKit", "TestKit")


class TestKitBase:
    """What the test kits share."""

    __test__: ClassVar[bool] = False
    """pytest does not collect this class."""

    _kit: KitScheduler

    @property
    def now(self) -> datetime:
        """The current time of the kit: that of this machine, ahead by what ``advance()`` has added."""
        return self._kit.now

    def advance(
        self, by: timedelta | float = 0, *, days: float = 0, hours: float = 0, minutes: float = 0
    ) -> None:
        """Move the clock of the kit forward and do nothing else.

        Jobs that become due are late then: they may be past their misfire grace time.

        Args:
            by: A timedelta, or seconds.
            days: Days to add.
            hours: Hours to add.
            minutes: Minutes to add.

        Raises:
            ValueError: A duration is negative.
        """
        units = timedelta(days=days), timedelta(hours=hours), timedelta(minutes=minutes)
        for name, each in zip(("by", "days", "hours", "minutes"), (by, *units), strict=True):
            self._kit.advance(timedelta(seconds=check_delay(name, each)))


def owner_of(connection: object) -> object:
    """Return the connection that a session of SQLAlchemy is bound to; any other object as it is.

    Statements of the session would be part of the savepoint that it ends with each commit and rollback.
    """
    bind = getattr(connection, "bind", None) if library_of(connection) == "sqlalchemy" else None
    return bind if hasattr(bind, "exec_driver_sql") else connection
