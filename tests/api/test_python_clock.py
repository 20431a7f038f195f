"""The clocks of tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler, clock
from pg_scheduler.clock import PythonClock


async def work() -> None: ...


class Moved(datetime):
    """A class that replaces that of the module, as freezegun does."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return datetime(2031, 5, 4, 12, tzinfo=tz)


async def test_statements_follow_the_clock_of_python(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = Scheduler(pool, clock=PythonClock())
    before = datetime.now(UTC)
    present = await scheduler.get_job(await scheduler.enqueue(work))
    monkeypatch.setattr(clock, "datetime", Moved)
    moved = await scheduler.get_job(await scheduler.enqueue(work, delay=60))
    assert present is not None
    assert moved is not None
    assert before <= present.execution_time <= datetime.now(UTC)
    assert moved.execution_time == datetime(2031, 5, 4, 12, 1, tzinfo=UTC)
