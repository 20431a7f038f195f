"""The tables are in one schema, whatever its name and however the search path changes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.errors import ConfigurationError, SchemaMissingError
from tests.support.inside import COMPLETE, Connections, GeneratedIdJob, Store
from tests.support.store import LEASE, NAME, Pool, new_job, running, worker

UNUSUAL = ['the "odd" one', "UPPER", "select", "a.b", "žluť 🦉", "x" * 63, "{schema}", "$1", "--", "%s"]


@pytest.fixture
async def empty_pool(empty_dsn: str) -> AsyncIterator[Pool]:
    async with asyncpg.create_pool(empty_dsn, min_size=1, max_size=3) as pool:
        yield pool


async def schemas_with_jobs(pool: Pool) -> set[str]:
    query = "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = 'scheduled_jobs'"
    return {row[0].strip('"').replace('""', '"') for row in await pool.fetch(query)}


@pytest.mark.parametrize("schema", UNUSUAL)
async def test_store_works_in_a_schema_of_any_name(empty_pool: Pool, clock: FakeClock, schema: str) -> None:
    store = Store(Connections(empty_pool), schema=schema, clock=clock)
    await store.migrate()
    (claim,) = await running(store, new_job())
    assert await store.results.settle("w1", [(claim, COMPLETE)]) == {"job"}
    await store.inserts.copy([GeneratedIdJob(*new_job("copied"))], 1)
    assert (await store.jobs.count_jobs(None)).pending == 1
    assert await store.retention.table_blocks() == 1
    assert await schemas_with_jobs(empty_pool) == {schema}
    assert len(await store.locks.channel()) <= 63
    await store.migrate()


@pytest.mark.parametrize("schema", ["é" * 32, "a\x00b"])
async def test_migrate_rejects_a_schema_name_that_postgresql_cannot_hold(
    empty_pool: Pool, schema: str
) -> None:
    with pytest.raises(ConfigurationError, match="1 to 63 bytes"):
        await Store(Connections(empty_pool), schema=schema).migrate()


async def test_stores_in_two_schemas_are_independent(empty_pool: Pool, clock: FakeClock) -> None:
    one, two = (Store(Connections(empty_pool), schema=name, clock=clock) for name in ("one", "two"))
    await one.migrate()
    await two.migrate()
    assert await one.locks.channel() != await two.locks.channel()
    await one.inserts.insert([new_job()])
    await one.workers.register(worker(), LEASE)
    await two.workers.register(worker(), LEASE)
    assert await two.jobs.get_job("job") is None
    assert (await two.claims.exchange("w1", [NAME], 1)).jobs == []
    await two.inserts.insert([new_job(priority=8)])
    (claim,) = (await one.claims.exchange("w1", [NAME], 1)).jobs
    assert claim.priority == 5
    assert await two.results.settle("w1", [(claim, COMPLETE)]) == set()


async def test_search_path_chooses_the_schema_once_when_no_name_is_given(
    empty_dsn: str, clock: FakeClock
) -> None:
    path = {"search_path": "missing, jobs, public"}
    async with asyncpg.create_pool(empty_dsn, min_size=1, max_size=1, server_settings=path) as pool:
        await pool.execute("CREATE SCHEMA jobs")
        store = Store(Connections(pool), clock=clock)
        await store.migrate()
        assert await schemas_with_jobs(pool) == {"jobs"}
        assert await store.schema() == "jobs"
        async with pool.acquire() as connection:
            await connection.execute("SET search_path = ''")
            assert await store.inserts.insert([new_job()], connection=connection) == {"job"}


async def test_schema_finds_tables_further_down_the_search_path(empty_pool: Pool, empty_dsn: str) -> None:
    await Store(Connections(empty_pool), schema="public").migrate()
    path = {"search_path": "mine, public"}
    async with asyncpg.create_pool(empty_dsn, min_size=1, max_size=1, server_settings=path) as pool:
        await pool.execute("CREATE SCHEMA mine")
        assert await Store(Connections(pool)).schema() == "public"


async def test_missing_tables_raise_an_error_that_names_the_remedy(empty_pool: Pool) -> None:
    store = Store(Connections(empty_pool), schema="public")
    with pytest.raises(
        SchemaMissingError,
        match=r"missing or old .* scheduler\.initialize_db\(\) .* run pg-scheduler migrate$",
    ) as caught:
        await store.inserts.insert([new_job()])
    assert isinstance(caught.value.__cause__, asyncpg.UndefinedTableError)
    with pytest.raises(SchemaMissingError):
        await Store(Connections(empty_pool), schema="nowhere").jobs.count_jobs(None)


async def test_schema_raises_when_the_search_path_contains_no_schema(empty_dsn: str) -> None:
    path = {"search_path": "missing"}
    async with asyncpg.create_pool(empty_dsn, min_size=1, max_size=1, server_settings=path) as pool:
        with pytest.raises(SchemaMissingError, match="names no schema that exists"):
            await Store(Connections(pool)).migrate()
