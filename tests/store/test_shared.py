"""The LISTEN connection runs shareable statements, and no statement waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Connection
from pg_scheduler.database.options import PLANNER_SETTINGS, ConnectionOptions
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.worker.notifications import Subscription
from tests.support.inside import Connections, Store
from tests.support.store import LEASE, Pool, worker
from tests.support.worker import PATIENCE, Wire, holds, locked, wire_to

PID = "SELECT pg_backend_pid()"


@asynccontextmanager
async def sharing(pool: Pool, **options: Any) -> AsyncIterator[tuple[Store, Connection]]:
    """A store with a shared connection."""
    store = Store(Connections(pool, options=ConnectionOptions(**options)))
    await store.workers.register(worker(), LEASE)
    async with store.connections.checkout() as connection:
        store.shared.lend(connection)
        yield store, connection
        await store.shared.take_back(connection)


@pytest.fixture
async def listening(pool: Pool) -> AsyncIterator[tuple[Store, Connection]]:
    async with sharing(pool) as shared:
        yield shared


async def pid(store: Store) -> int:
    rows = await store.shared.fetch(PID)
    found: int = rows[0][0]
    return found


async def test_shareable_statements_run_on_the_shared_connection(
    listening: tuple[Store, Connection], pool: Pool
) -> None:
    store, connection = listening
    queries: list[str] = []
    connection.add_query_logger(lambda record: queries.append(record.query.partition("\n")[0]))
    before = pool.get_size()
    await store.workers.renew("w1", {}, LEASE)
    await store.workers.scan_deadlines(30, 120)
    await store.schedules.read(["key"])
    await asyncio.sleep(0)  # asyncpg calls its loggers in the next iteration of the loop
    assert len(queries) == 4, "the settings and three statements, with no transaction or reset around them"
    assert pool.get_size() == before
    assert await pid(store) == connection.get_server_pid()


async def test_shared_connection_has_its_settings_only_while_it_is_shared(
    listening: tuple[Store, Connection],
) -> None:
    store, connection = listening
    settings = "SELECT name, setting FROM pg_settings WHERE name = ANY ($1)"
    names = [*PLANNER_SETTINGS, "lock_timeout"]
    before = await connection.fetch(settings, names)
    during = await store.shared.fetch(settings, names)
    assert {row["name"]: row["setting"] for row in during} == PLANNER_SETTINGS | {"lock_timeout": "1000"}
    await store.shared.take_back(connection)
    assert await connection.fetch(settings, names) == before
    assert not store.shared.is_free
    assert (await store.workers.renew("w1", {}, LEASE)).alive
    with pytest.raises(DatabaseUnavailableError):
        await store.shared.fetch(PID)


async def test_heartbeat_runs_when_jobs_use_up_the_pool(
    listening: tuple[Store, Connection], pool: Pool
) -> None:
    store, _ = listening
    taken = [await pool.acquire() for _ in range(pool.get_max_size() - 1)]
    assert (await asyncio.wait_for(store.workers.renew("w1", {}, LEASE), 10)).alive
    for each in taken:
        await pool.release(each)


async def test_heartbeat_runs_elsewhere_when_the_shared_connection_is_busy(pool: Pool, dsn: str) -> None:
    async with sharing(pool, shared_settings=(("jit", "off"),)) as (store, connection):
        async with locked(dsn, "scheduler_schedules"):
            waiting = asyncio.create_task(store.shared.fetch("SELECT count(*) FROM scheduler_schedules"))
            await asyncio.sleep(0)
            assert not store.shared.is_free
            assert (await asyncio.wait_for(store.workers.renew("w1", {}, LEASE), 10)).alive
        await waiting
        assert holds(store.shared.is_free)
        assert not connection.is_closed()


async def test_shared_connection_survives_a_lock_timeout(pool: Pool, dsn: str) -> None:
    async with sharing(pool, shared_settings=(("lock_timeout", "10ms"),)) as (store, connection):
        async with locked(dsn, "scheduler_schedules"):
            with pytest.raises(DatabaseUnavailableError, match="LockNotAvailable"):
                await store.shared.fetch("SELECT FROM scheduler_schedules")
            rows = asyncio.create_task(store.schedules.read(["key"]))  # waits on a connection of the pool
            await asyncio.wait([rows], timeout=0.1)  # real time: it must still wait
            assert not rows.done()
        assert await rows == {}
        assert not connection.is_closed()


async def test_shared_connection_raises_the_error_of_a_statement(listening: tuple[Store, Connection]) -> None:
    store, connection = listening
    with pytest.raises(asyncpg.DivisionByZeroError):
        await store.shared.fetch("SELECT 1 / 0")
    assert await pid(store) == connection.get_server_pid()


async def test_take_back_waits_for_the_running_statement(listening: tuple[Store, Connection]) -> None:
    store, connection = listening
    statement = asyncio.create_task(store.shared.fetch("SELECT 1 FROM pg_sleep(0.05)"))
    await asyncio.sleep(0)
    await store.shared.take_back(connection)
    assert statement.done()
    assert len(await statement) == 1


@pytest.fixture
async def wire(dsn: str) -> AsyncIterator[Wire]:
    async with wire_to(dsn) as wire:
        yield wire


@pytest.mark.parametrize("fault", ["cut", "frozen"])
async def test_statement_runs_on_the_pool_when_the_shared_connection_is_dead(
    fault: str, wire: Wire, pool: Pool
) -> None:
    """Real time if it is frozen: the timeout must pass."""
    connections = Connections(pool, wire.dsn, options=ConnectionOptions(answer_timeout_s=0.2))
    store, broken = Store(connections), asyncio.Event()
    await store.workers.register(worker(), LEASE)
    subscription = Subscription(store, lambda _message: None, broken.set)
    await subscription.open()
    subscription.lend()
    await store.workers.scan_deadlines(30, 120)
    if fault == "cut":
        wire.cut()
    else:
        wire.freeze_old_connections()
    assert (await store.workers.renew("w1", {}, LEASE)).alive
    async with asyncio.timeout(10):
        await broken.wait()
    assert not holds(subscription.is_open)
    assert not holds(store.shared.is_free)
    assert (await store.workers.renew("w1", {}, LEASE)).alive
    await subscription.close()
    if fault == "frozen":
        await subscription.open()
        subscription.lend()
        assert holds(store.shared.is_free)
        await subscription.close()


async def test_statement_announces_the_end_of_the_shared_connection_that_asyncpg_does_not(pool: Pool) -> None:
    """asyncpg has read the last message of the server, but not yet the end of the stream."""
    store, broken = Store(Connections(pool)), asyncio.Event()
    subscription = Subscription(store, lambda _message: None, broken.set)
    await subscription.open()
    subscription.lend()
    connection: Any = store.shared.connection
    connection._transport.pause_reading()
    await pool.execute("SELECT pg_terminate_backend($1, 5000)", connection.get_server_pid())
    connection._transport.resume_reading()
    for _ in range(2):  # a later read returns the end of the stream
        await asyncio.sleep(0)
    with pytest.raises(DatabaseUnavailableError):
        await store.shared.fetch("SELECT 1")
    async with asyncio.timeout(PATIENCE):
        await broken.wait()
    await subscription.close()
    assert pool.get_idle_size() == pool.get_size()


async def test_close_releases_a_connection_that_has_ended(pool: Pool) -> None:
    """A warning about its listeners would be an error here."""
    store = Store(Connections(pool))
    subscription = Subscription(store, lambda _message: None, lambda: None)
    await subscription.open()
    connection: Any = subscription._connection
    connection._protocol.abort()  # as asyncpg does in the test above
    await subscription.close()
    assert pool.get_idle_size() == pool.get_size()


async def test_cancelled_close_releases_the_connection(pool: Pool) -> None:
    store = Store(Connections(pool))
    subscription = Subscription(store, lambda _message: None, lambda: None)
    await subscription.open()
    subscription.lend()
    statement = asyncio.create_task(store.shared.fetch("SELECT 1 FROM pg_sleep(0.2)"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(subscription.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, statement, return_exceptions=True)
    await store.connections.release_held()
    assert pool.get_idle_size() == pool.get_size()


async def test_take_back_terminates_a_connection_that_does_not_answer(wire: Wire, pool: Pool) -> None:
    """Real time: the timeout must pass."""
    store = Store(Connections(pool, wire.dsn, options=ConnectionOptions(close_timeout_s=0.1)))
    async with store.connections.checkout() as connection:
        store.shared.lend(connection)
        await store.shared.fetch(PID)
        wire.freeze_old_connections()
        await store.shared.take_back(connection)
        assert connection.is_closed()
