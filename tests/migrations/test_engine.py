"""Engines that speak the protocol of PostgreSQL, and are not one."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from pg_scheduler import ConfigurationError, Scheduler
from tests.support.engines import NO_FUNCTION, NO_LOCKS
from tests.support.statements import Statements

TABLES = "SELECT count(*) FROM pg_class WHERE relname LIKE 'schedule%'"


@pytest.mark.parametrize(
    ("statements", "reason"),
    [(NO_LOCKS, "two sessions got the same advisory lock"), (NO_FUNCTION, "lacks a feature")],
)
@pytest.mark.parametrize("settings", [{"max_size": 3}, {"max_size": 1, "direct": True}])
async def test_start_rejects_an_engine_and_names_it_before_it_creates_tables(
    empty_dsn: str, statements: str, reason: str, settings: dict[str, Any]
) -> None:
    async with asyncpg.create_pool(empty_dsn, min_size=1, max_size=settings["max_size"]) as pool:
        await pool.execute(statements)
        scheduler = Scheduler(pool, direct_dsn=empty_dsn if "direct" in settings else None)
        with pytest.raises(ConfigurationError, match=reason) as raised:
            await scheduler.start()
        assert not scheduler.is_running
        with pytest.raises(ConfigurationError, match=reason):
            await scheduler.initialize_db()
        assert await pool.fetchval(TABLES) == 0
        assert pool.get_size() - pool.get_idle_size() == 0, "every connection was released"
    assert "CockroachDB CCL v25.2.0" in str(raised.value)
    assert "connect to PostgreSQL 14 or newer" in str(raised.value)


async def test_engine_is_checked_once_for_a_database(empty_dsn: str) -> None:
    statements = Statements()
    async with asyncpg.create_pool(empty_dsn, min_size=1, max_size=3, init=statements.listen) as pool:
        for expected in (1, 0):
            await Scheduler(pool).initialize_db()
            sent = await statements.take()
            assert sent.counts["LISTEN"] == expected
        assert await pool.fetchval("SELECT count(*) FROM pg_listening_channels()") == 0
