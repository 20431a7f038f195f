"""Schedulers of several schemas on one pool: they share the connections that are held for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.events import JobCompleted, KeeperConnected, ListenerConnected
from tests.api.conftest import SLOW_POLLING
from tests.support import inside
from tests.support.inside import store_of
from tests.support.worker import PATIENCE, Recorder

SCHEMAS = [f"tenant_{number}" for number in range(10)]

SESSIONS = """
SELECT pid, query FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""

LOCK_HOLDERS = """
SELECT (classid::bigint << 32 | objid::bigint) AS key, pid FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.fixture
async def admin(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection outside of the pool of the Schedulers."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def echo(number: int) -> int:
    return number


@asynccontextmanager
async def schedulers(pool: asyncpg.Pool, schemas: Sequence[str] = SCHEMAS) -> AsyncIterator[list[Scheduler]]:
    """Running Schedulers, one for each schema."""
    async with AsyncExitStack() as stack:
        all_schedulers = []
        for schema in schemas:
            scheduler = Scheduler(pool, schema=schema, polling_config=SLOW_POLLING)
            scheduler.register(echo)
            all_schedulers.append(await stack.enter_async_context(scheduler))
        yield all_schedulers


async def key_of(admin: asyncpg.Connection, schema: str) -> Any:
    return await admin.fetchval(f"SELECT liveness_key FROM {schema}.scheduler_workers")


async def run_in_each(all_schedulers: Sequence[Scheduler]) -> None:
    """Run a job in each of them. Their polls are slow, so a notification or the process itself wakes them."""
    async with asyncio.timeout(PATIENCE):
        jobs = [scheduler.run_job(echo, args=(number,)) for number, scheduler in enumerate(all_schedulers)]
        assert await asyncio.gather(*jobs) == list(range(len(all_schedulers)))


async def test_ten_schedulers_on_one_pool_hold_three_connections(dsn: str, admin: asyncpg.Connection) -> None:
    async with asyncpg.create_pool(dsn, min_size=0, max_size=12) as pool, schedulers(pool) as all_schedulers:
        await run_in_each(all_schedulers)
        async with asyncio.timeout(PATIENCE):
            while pool.get_size() - pool.get_idle_size() > 2:  # noqa: ASYNC110 - kept connections return soon
                await asyncio.sleep(0.05)
        # Those for claims and for LISTEN, and the one of the keepers, which is not of the pool.
        assert pool.get_size() - pool.get_idle_size() == 2
        holders = await admin.fetch(LOCK_HOLDERS)
        keys = {await key_of(admin, schema) for schema in SCHEMAS}
        assert keys <= {row["key"] for row in holders}
        assert len(keys) == len(SCHEMAS)
        assert len({row["pid"] for row in holders}) == 1
        await pool.expire_connections()
        await asyncio.sleep(0)
        # Idle connections of the pool may be open as well, but none has to be.
        assert len(await admin.fetch(SESSIONS)) <= 3 + pool.get_idle_size()


async def test_idle_schedulers_of_ten_schemas_use_at_most_six_connections(
    dsn: str, admin: asyncpg.Connection
) -> None:
    async with asyncpg.create_pool(dsn, min_size=0, max_size=5) as pool, schedulers(pool) as all_schedulers:
        await run_in_each(all_schedulers)
        assert len(await admin.fetch(SESSIONS)) <= 6


async def test_others_go_on_when_one_scheduler_stops(dsn: str, admin: asyncpg.Connection) -> None:
    async with asyncpg.create_pool(dsn, min_size=0, max_size=8) as pool:
        async with schedulers(pool, SCHEMAS[:3]) as (first, *others):
            key = await key_of(admin, SCHEMAS[0])
            other_keys = {await key_of(admin, schema) for schema in SCHEMAS[1:3]}
            recorders = [Recorder(scheduler) for scheduler in others]
            await first.shutdown()
            held_keys = {row["key"] for row in await admin.fetch(LOCK_HOLDERS)}
            assert key not in held_keys, "the worker has stopped, so its lock is free"
            assert other_keys <= held_keys
            await run_in_each(others)
            # Another process notifies them.
            async with asyncpg.create_pool(dsn, min_size=0, max_size=2) as other_pool:
                for schema, recorder in zip(SCHEMAS[1:3], recorders, strict=True):
                    client = Scheduler(other_pool, schema=schema)
                    await client.enqueue("tests.api.test_many_schemas.echo", args=(1,))
                    await client.shutdown()
                    await recorder.until(JobCompleted, 2)
            await first.start()
            await run_in_each([first, *others])
        assert pool.get_size() - pool.get_idle_size() == 0
        assert not await admin.fetch(LOCK_HOLDERS)


async def test_each_scheduler_listens_again_when_the_shared_connection_ends(
    dsn: str, admin: asyncpg.Connection
) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=0, max_size=8) as pool,
        schedulers(pool, SCHEMAS[:3]) as all_schedulers,
    ):
        recorders = [Recorder(scheduler) for scheduler in all_schedulers]
        connection = store_of(all_schedulers[0]).shared.connection
        assert connection is not None
        assert {store_of(scheduler).shared.connection for scheduler in all_schedulers} == {connection}
        await admin.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
        for recorder in recorders:
            await recorder.until(ListenerConnected)
        new_connections = {store_of(scheduler).shared.connection for scheduler in all_schedulers}
        assert len(new_connections) == 1
        assert new_connections != {connection}
        await run_in_each(all_schedulers)


async def test_each_keeper_takes_its_lock_again_when_their_session_ends(
    dsn: str, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, poll_interval_of_lease_keeper_s=0.02)
    async with (
        asyncpg.create_pool(dsn, min_size=0, max_size=8) as pool,
        schedulers(pool, SCHEMAS[:3]) as all_schedulers,
    ):
        recorders = [Recorder(scheduler) for scheduler in all_schedulers]
        first_keys = {await key_of(admin, schema) for schema in SCHEMAS[:3]}
        (pid,) = {row["pid"] for row in await admin.fetch(LOCK_HOLDERS)}
        await admin.execute("SELECT pg_terminate_backend($1)", pid)
        for recorder in recorders:
            await recorder.until(KeeperConnected)
        holders = await admin.fetch(LOCK_HOLDERS)
        keys = {await key_of(admin, schema) for schema in SCHEMAS[:3]}
        assert keys == {row["key"] for row in holders}
        assert keys.isdisjoint(first_keys)
        assert len({row["pid"] for row in holders}) == 1


async def test_scheduler_uses_the_pool_while_another_one_uses_the_dedicated_connection(dsn: str) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=0, max_size=8) as pool,
        schedulers(pool, SCHEMAS[:2]) as (first, second),
    ):
        connections = [store_of(scheduler).connections for scheduler in (first, second)]
        async with connections[0].dedicated_connection as connection:
            assert connection is not None
            await run_in_each([second])
            async with connections[1].dedicated as other_connection:
                assert other_connection is None
        async with connections[1].dedicated_connection as other_connection:
            assert other_connection is connection


async def test_schedulers_on_other_pools_or_with_other_addresses_share_nothing(dsn: str) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=0, max_size=8) as pool,
        asyncpg.create_pool(dsn, min_size=0, max_size=8) as other_pool,
    ):
        shares = [
            store_of(Scheduler(pool, schema="a")).connections.share,
            store_of(Scheduler(other_pool, schema="a")).connections.share,
            store_of(Scheduler(pool, schema="a", direct_dsn=dsn)).connections.share,
        ]
        assert len(set(shares)) == len(shares)
        assert store_of(Scheduler(pool, schema="b")).connections.share is shares[0]


async def test_release_of_one_scheduler_leaves_the_dedicated_connection_to_the_others(dsn: str) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=0, max_size=8) as pool,
        schedulers(pool, SCHEMAS[:2]) as (first, second),
    ):
        held = store_of(first).connections.share.held
        await run_in_each([first, second])
        connection = held.connection
        assert connection is not None
        await first.shutdown()
        assert held.connection is connection
        await second.shutdown()
        assert held.connection is None
