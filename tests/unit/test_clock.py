"""The clocks that statements take the time from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pg_scheduler.clock import Clock, FakeClock, SystemClock

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_system_clock_uses_the_time_of_the_database() -> None:
    clock: Clock = SystemClock()
    assert clock.override() is None


def test_fake_clock_moves_only_when_it_is_advanced() -> None:
    clock = FakeClock(NOW)
    clock.advance(timedelta(hours=1))
    clock.advance(-timedelta(minutes=1))
    assert clock.override() == clock.now == NOW + timedelta(minutes=59)
