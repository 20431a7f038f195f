"""Connections of callers that lead to another database than that of the Scheduler."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from pg_scheduler import ConfigurationError, ConnectionAdapter, Scheduler, embedded
from pg_scheduler.base.dsn import Address
from pg_scheduler.database.asyncpg_private import address_of, address_of_pool, opened_by_pool
from pg_scheduler.sync import SyncScheduler
from tests.conftest import FAST, migrate_on, run_on
from tests.support.inside import address_parts
from tests.support.transactions import KINDS, Application, application, settled
from tools.chaos.proxy import Proxy

REFUSED = "connection leads to the database '{}' .* and this Scheduler to the database '{}'"


async def work() -> None: ...


@pytest.fixture
def alias_dsn(dsn: str) -> Iterator[str]:
    """The DSN of the test's database by another address, a link to the folder of the server's socket."""
    folder = address_parts(dsn)["host"]
    with tempfile.TemporaryDirectory(prefix="alias-") as place:  # a path of pytest's is too long for a socket
        alias = Path(place, "host")
        alias.symlink_to(folder)
        assert quote(folder) in dsn
        yield dsn.replace(quote(folder), quote(str(alias)))


def name_in(dsn: str) -> str:
    return address_parts(dsn)["database"]


async def jobs_in(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    count: int = await connection.fetchval("SELECT count(*) FROM scheduled_jobs")
    await connection.close()
    return count


async def enqueue(app: Application, dsn: str) -> str:
    """Enqueue a job; on a blocking connection by a Scheduler with this DSN, without an event loop."""
    if isinstance(app.scheduler, Scheduler):
        return str(await app.call("enqueue", work))
    if hasattr(app.connection, "inc_thread_sharing"):  # Django
        app.connection.inc_thread_sharing()
    scheduler = SyncScheduler(dsn)
    job_id = await asyncio.to_thread(scheduler.enqueue, work, connection=app.connection)
    assert repr(scheduler) == "<SyncScheduler, not started>"
    return job_id


@pytest.mark.parametrize("kind", KINDS)
async def test_connection_to_another_database_is_refused_and_stays_usable(
    kind: str, dsn: str, other_dsn: str, pool: asyncpg.Pool
) -> None:
    async with application(kind, other_dsn, pool) as app:
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=REFUSED.format(name_in(other_dsn), name_in(dsn))):
                await enqueue(app, dsn)
        await app.execute("SELECT 1")
        await settled(app.commit())
    assert await jobs_in(other_dsn) == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_connection_by_another_address_is_accepted_if_it_leads_to_the_same_database(
    kind: str, dsn: str, alias_dsn: str, pool: asyncpg.Pool
) -> None:
    async with application(kind, alias_dsn, pool) as app:
        await enqueue(app, dsn)
        await settled(app.commit())
    assert await jobs_in(dsn) == 1


async def test_database_of_the_same_name_on_another_server_is_refused(
    scratch: Path | None, dsn: str, pool: asyncpg.Pool
) -> None:
    name = name_in(dsn)

    async def create(connection: Any) -> None:
        await connection.execute(f'CREATE DATABASE "{name}"')

    with embedded.EmbeddedPostgres(settings=FAST, scratch=scratch) as second:
        await asyncio.to_thread(run_on, second.dsn(), create)
        await asyncio.to_thread(run_on, second.dsn(name), migrate_on)
        async with application("psycopg-async", second.dsn(name), pool) as app:
            with pytest.raises(ConfigurationError, match=REFUSED.format(name, name)):
                await app.call("enqueue", work)


def engine_by_arguments(url: str, other_dsn: str) -> AsyncEngine:
    return create_async_engine(url, connect_args={"database": name_in(other_dsn)})


def engine_by_creator(url: str, other_dsn: str) -> AsyncEngine:
    return create_async_engine(url, async_creator=lambda *_, **__: asyncpg.connect(other_dsn))


def engine_by_listener(url: str, other_dsn: str) -> AsyncEngine:
    """An engine whose first connection leads where its URL does, and later ones elsewhere, as for tenants."""
    engine = create_async_engine(url, poolclass=NullPool)
    databases = [name_in(url)]

    def choose_database(_dialect: Any, _record: Any, _args: Any, parameters: dict[str, Any]) -> None:
        parameters["database"] = databases.pop() if databases else name_in(other_dsn)

    sqlalchemy.event.listen(engine.sync_engine, "do_connect", choose_database)
    return engine


@pytest.mark.parametrize("make_engine", [engine_by_arguments, engine_by_creator, engine_by_listener])
async def test_engine_that_leads_elsewhere_than_its_url_is_refused(
    make_engine: Callable[[str, str], AsyncEngine], dsn: str, other_dsn: str, pool: asyncpg.Pool
) -> None:
    engine = make_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"), other_dsn)
    scheduler = Scheduler(pool)
    if make_engine is engine_by_listener:
        async with AsyncSession(engine) as session, session.begin():
            await scheduler.enqueue(work, connection=session)
    async with AsyncSession(engine) as session, session.begin():
        with pytest.raises(ConfigurationError, match=REFUSED.format(name_in(other_dsn), name_in(dsn))):
            await scheduler.enqueue(work, connection=session)
    await engine.dispose()
    assert await jobs_in(other_dsn) == 0


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_blocking_engine_that_leads_elsewhere_than_its_url_is_refused(
    driver: str, dsn: str, other_dsn: str
) -> None:
    engine = sqlalchemy.create_engine(
        dsn.replace("postgresql://", f"postgresql+{driver}://"), connect_args={"dbname": name_in(other_dsn)}
    )
    with engine.begin() as connection, pytest.raises(ConfigurationError, match="connection leads to"):
        SyncScheduler(dsn).enqueue(work, connection=connection)
    engine.dispose()


async def test_every_call_with_a_connection_is_checked(dsn: str, other_dsn: str, pool: asyncpg.Pool) -> None:
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("cancel_job", ("x",)),
        ("get_job", ("x",)),
        ("retry_job", ("x",)),
        ("run_job_now", ("x",)),
        ("signal", ("x", "y")),
        ("schedule_bulk", ([],)),
        ("schedules.trigger", ("x",)),
    ]
    async with application("psycopg-async", other_dsn, pool) as app:
        for name, args in calls:
            with pytest.raises(ConfigurationError, match="connection leads to"):
                await app.call(name, *args)


# -- costs -------------------------------------------------------------------------------------------------


def recorded(engine: sqlalchemy.Engine) -> list[str]:
    """Return a list that gets the statements of an engine."""
    statements: list[str] = []

    def add(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    sqlalchemy.event.listen(engine, "before_cursor_execute", add)
    return statements


async def test_connection_by_the_address_of_the_pool_costs_no_statement(dsn: str, pool: asyncpg.Pool) -> None:
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"), poolclass=NullPool)
    statements = recorded(engine.sync_engine)
    scheduler = Scheduler(pool, schema="public")
    for _ in range(2):
        async with AsyncSession(engine) as session:
            await scheduler.enqueue(work, connection=session)
    assert len(statements) == 2
    assert all("INSERT" in each for each in statements)


async def test_another_address_costs_one_statement_for_all_engines(
    alias_dsn: str, pool: asyncpg.Pool
) -> None:
    scheduler = Scheduler(pool, schema="public")
    found = []
    for _ in range(2):
        url = alias_dsn.replace("postgresql://", "postgresql+asyncpg://")
        engine = create_async_engine(url, poolclass=NullPool)
        statements = recorded(engine.sync_engine)
        for _ in range(2):
            async with AsyncSession(engine) as session:
                await scheduler.enqueue(work, connection=session)
        found.append(sum("pg_postmaster_start_time" in each for each in statements))
    assert found == [1, 0]


# -- what cannot be known ----------------------------------------------------------------------------------


def test_scheduler_without_a_dsn_accepts_any_database(dsn: str, other_dsn: str) -> None:
    scheduler = SyncScheduler()
    for each in (dsn, other_dsn):
        engine = sqlalchemy.create_engine(each.replace("postgresql://", "postgresql+psycopg2://"))
        with engine.begin() as connection:
            scheduler.enqueue(work, connection=connection)
        engine.dispose()
        assert asyncio.run(jobs_in(each)) == 1


async def test_adapter_is_accepted_since_its_address_is_unknown(other_dsn: str, pool: asyncpg.Pool) -> None:
    connection = await asyncpg.connect(other_dsn)

    async def run(statement: str, texts: Any) -> list[str]:
        return [row[0] for row in await connection.fetch(statement, *texts)]

    await Scheduler(pool).enqueue(work, connection=ConnectionAdapter(run))
    await connection.close()
    assert await jobs_in(other_dsn) == 1


async def test_connection_is_accepted_while_the_database_of_the_pool_cannot_be_asked(
    dsn: str, proxied: tuple[Proxy, str]
) -> None:
    proxy, through = proxied
    async with asyncpg.create_pool(through, min_size=0, max_size=1) as pool:
        proxy.refuse()
        async with application("psycopg-async", dsn, pool) as app:
            await app.call("enqueue", work)
            await settled(app.commit())
    assert await jobs_in(dsn) == 1


# -- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("postgresql://app:p%40@db:6432/shop", {"host": "db", "port": "6432", "database": "shop"}),
        ("postgresql://[::1]/shop", {"host": "::1", "database": "shop"}),
        ("postgresql://[::1]:1/shop", {"host": "::1", "port": "1", "database": "shop"}),
        ("postgresql:///?host=/run&port=1&dbname=a%20b", {"host": "/run", "port": "1", "database": "a b"}),
        ("postgresql://one,two/shop", {"host": "one,two", "database": "shop"}),
    ],
)
def test_parts_of_the_address_are_read_from_a_dsn(dsn: str, expected: dict[str, str]) -> None:
    assert address_parts(dsn) == expected


def test_address_is_unknown_if_a_part_is_or_there_are_several_hosts() -> None:
    assert Address.of("/run/", None, "shop") == Address("/run", 5432, "shop")
    assert Address.of("", 5432, "shop") is None
    assert Address.of("db", 5432, None) is None
    assert Address.of("one,two", 5432, "shop") is None
    assert Address.of("db", "1,2", "shop") is None


async def test_address_of_a_pool_is_that_of_its_connections(
    dsn: str, alias_dsn: str, pool: asyncpg.Pool, proxied: tuple[Proxy, str]
) -> None:
    for each in (dsn, alias_dsn, proxied[1]):
        async with asyncpg.create_pool(each, min_size=0, max_size=1) as lazy:
            before = address_of_pool(lazy)
            async with lazy.acquire() as connection:
                opened = opened_by_pool(connection)
                assert opened is not None
                assert address_of(opened) == address_of_pool(lazy) == before
    parts = address_parts(dsn)
    named: Any = {**parts, "user": "postgres"}
    async with asyncpg.create_pool(min_size=0, max_size=1, **named) as lazy:
        assert address_of_pool(lazy) == address_of_pool(pool)
