"""An Inspector with read settings reads in read-only transactions, on few connections, for a limited time."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError, Scheduler
from pg_scheduler.inspect import Inspector, ReadSettings
from pg_scheduler.inspect.store.connections import ReadingConnections
from tests.support.patience import PATIENCE
from tests.support.store import as_user

SETTINGS = ReadSettings(connections=2, statement_timeout_s=1, application_name='the "dash"board')


async def test_transactions_are_read_only_and_settings_do_not_outlive_them(pool: asyncpg.Pool) -> None:
    connections = ReadingConnections(pool, SETTINGS)
    query = "SELECT current_setting('application_name'), current_setting('statement_timeout')"
    async with connections.acquire() as connection:
        assert tuple(*await connection.fetch(query)) == ('the "dash"board', "1s")
    for reading in (connections.acquire, connections.sticky, connections.transaction):
        with pytest.raises(DatabaseUnavailableError, match="ReadOnly"):
            async with reading() as connection:
                await connection.execute("DELETE FROM scheduled_jobs")
    async with pool.acquire() as connection:
        assert tuple(*await connection.fetch(query)) == ("", "0")


@pytest.mark.slow
async def test_server_cancels_long_statements(pool: asyncpg.Pool) -> None:
    with pytest.raises(DatabaseUnavailableError, match="statement timeout"):
        async with ReadingConnections(pool, SETTINGS).acquire() as connection:
            await connection.execute("SELECT pg_sleep(60)")


async def test_no_more_connections_than_configured_are_in_use(pool: asyncpg.Pool) -> None:
    connections = ReadingConnections(pool, SETTINGS)
    held, most, are_two, may_end = 0, 0, asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        nonlocal held, most
        async with connections.acquire():
            held += 1
            most = max(most, held)
            if held == 2:
                are_two.set()
            await may_end.wait()
            held -= 1

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(hold())
        await are_two.wait()
        may_end.set()
    assert most == 2


async def test_every_read_of_an_inspector_works_within_the_settings(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    await scheduler.schedule_job("work.read", datetime.now(UTC), {}, job_id="job")
    settings = ReadSettings(statement_timeout_s=PATIENCE)
    for source in (scheduler, pool):
        inspector = Inspector(source, read_settings=settings)
        assert (await inspector.search_jobs()).searched == 1
        assert (await inspector.search_jobs(names=["work.*"])).found == 1
        assert (await inspector.search_jobs(names=["work"])).found == 0
        assert (await inspector.get_job("job")) is not None
        assert (await inspector.get_result("job")) is None
        assert (await inspector.explain_job("job")).reasons
        assert (await inspector.backlog()).due == 1
        assert [each.name for each in (await inspector.tasks()).items] == ["work.read"]
        assert not (await inspector.error_groups()).items
        assert (await inspector.totals()).jobs is None
        assert await inspector.workers() == []


async def test_select_is_the_only_privilege_that_reads_need(pool: asyncpg.Pool, dsn: str) -> None:
    await Scheduler(pool).schedule_job("work.read", datetime.now(UTC), {}, job_id="job")
    role = f"viewer_{uuid.uuid4().hex}"
    await pool.execute(f"CREATE ROLE {role} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    try:
        async with asyncpg.create_pool(as_user(dsn, role), min_size=0, max_size=2) as viewers:
            inspector = Inspector(viewers, read_settings=ReadSettings(statement_timeout_s=PATIENCE))
            assert (await inspector.search_jobs()).found == 1
            assert (await inspector.explain_job("job")).reasons
            assert (await inspector.get_result("job")) is None
            assert (await inspector.backlog()).due == 1
            assert len((await inspector.tasks()).items) == 1
            assert not (await inspector.error_groups()).items
    finally:
        await pool.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
