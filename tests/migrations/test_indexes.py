"""Building indexes while jobs run: those that the migrations leave out on large tables, and dropped ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from pg_scheduler.database.migrations import indexes
from pg_scheduler.database.migrations.shape import LATER_INDEXES, index_statements
from pg_scheduler.errors import ConfigurationError, SchemaMismatchError, SchemaMissingError
from pg_scheduler.migrate import build_indexes, migrate, missing_indexes, verify
from tests.migrations.dump import CHECKED_IN, describe
from tests.support.logs import records_of

INDEX = "scheduled_jobs_unsuccessful"
ODD_SCHEMA = 'Odd "Schéma" 100%'
ROWS_OF_0_2 = """
    INSERT INTO scheduled_jobs (job_id, job_name, execution_time)
    SELECT n, 'name', now() FROM generate_series(1, $1::integer) AS n
"""
ROWS = """
    INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, finished_at, error_message)
    SELECT n, 'name', now(), 'failed', now(), 'error' FROM generate_series(1, $1::integer) AS n
"""


async def leave_out(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    await connection.execute(f"DROP INDEX {INDEX}")


@asynccontextmanager
async def open_transaction(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Keep a transaction open that has written to the table, for which a build waits."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("UPDATE scheduled_jobs SET attempt = 1")
            yield connection
    finally:
        await connection.close()


async def index_state(connection: asyncpg.Connection) -> bool | None:
    """Return whether the index is valid; None without an index."""
    valid: bool | None = await connection.fetchval(
        "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1)", INDEX
    )
    return valid


@pytest.mark.parametrize(("rows", "is_built"), [(100_000, True), (100_001, False)])
async def test_migration_leaves_the_index_out_on_a_large_table(
    connection: asyncpg.Connection, caplog: pytest.LogCaptureFixture, rows: int, is_built: bool
) -> None:
    await migrate(connection)
    await migrate(connection, target=0)
    await connection.execute(ROWS_OF_0_2, rows)
    await migrate(connection)
    await verify(connection)
    assert (await index_state(connection) is True) == is_built
    messages = [record.getMessage() for record in records_of(caplog)]
    warning = (
        "the migrations left out on the large tables of schema 'public': scheduled_jobs_unsuccessful; lists "
        "of jobs are slow until pg_scheduler.migrate.build_indexes(connection) has built them, without "
        "blocking jobs"
    )
    assert messages == [warning] * (not is_built)
    assert await missing_indexes(connection) == [INDEX] * (not is_built)


@pytest.mark.parametrize("schema", [None, ODD_SCHEMA])
async def test_build_makes_the_index_of_the_migration(
    connection: asyncpg.Connection, schema: str | None
) -> None:
    await migrate(connection, schema=schema)
    home = (schema or "public").replace('"', '""')
    await connection.execute(f'DROP INDEX "{home}".{INDEX}')
    assert await missing_indexes(connection, schema=schema) == [INDEX]
    assert await build_indexes(connection, schema=schema) == [INDEX]
    assert await build_indexes(connection, schema=schema) == []
    assert await missing_indexes(connection, schema=schema) == []
    assert await describe(connection, schema or "public") == CHECKED_IN.read_text(encoding="utf-8")
    locks = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"
    assert await connection.fetchval(locks) == 0


async def test_each_dropped_index_is_built_as_the_migrations_make_it(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    names = list(index_statements())
    assert {"scheduled_jobs_claim", *LATER_INDEXES} < set(names)
    await connection.execute(f"DROP INDEX {', '.join(names)}")
    with pytest.raises(SchemaMismatchError, match="index scheduled_jobs_claim of scheduled_jobs is missing"):
        await verify(connection)
    assert await missing_indexes(connection) == names
    assert await build_indexes(connection) == names
    assert await describe(connection, "public") == CHECKED_IN.read_text(encoding="utf-8")


async def test_indexes_of_another_version_are_not_built(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    await connection.execute("DROP INDEX scheduled_jobs_claim")
    assert await missing_indexes(connection) == ["scheduled_jobs_claim"]
    await connection.execute(
        "INSERT INTO scheduler_migrations (version, name, checksum) VALUES (9999, 'later', '')"
    )
    assert await missing_indexes(connection) == []


async def test_index_of_a_dropped_table_is_not_built(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    await connection.execute("DROP TABLE scheduler_after")
    assert await missing_indexes(connection) == []


async def test_schema_without_the_index_is_no_mismatch_and_is_migrated_down_and_up(
    connection: asyncpg.Connection,
) -> None:
    await leave_out(connection)
    await verify(connection)
    assert await migrate(connection) == []
    assert await index_state(connection) is None
    await migrate(connection, target=0)
    await migrate(connection)
    assert await index_state(connection) is True


async def test_lost_records_are_restored_without_the_index(connection: asyncpg.Connection) -> None:
    await leave_out(connection)
    await connection.execute("DROP TABLE scheduler_migrations")
    assert await migrate(connection) == []
    await verify(connection)
    assert await missing_indexes(connection) == [INDEX]


async def test_invalid_index_is_missing_and_replaced(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    await connection.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = $1::text::regclass", INDEX
    )
    await verify(connection)
    assert await missing_indexes(connection) == [INDEX]
    assert await build_indexes(connection) == [INDEX]
    assert await index_state(connection) is True


async def test_failed_build_leaves_an_invalid_index_that_the_next_call_replaces(
    empty_dsn: str, connection: asyncpg.Connection
) -> None:
    await leave_out(connection)
    async with asyncio.timeout(30), open_transaction(empty_dsn):
        await connection.execute("SET lock_timeout = '100ms'")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await build_indexes(connection)
    assert await index_state(connection) is False
    await connection.execute("RESET lock_timeout")
    assert await build_indexes(connection) == [INDEX]
    assert await index_state(connection) is True


async def test_valid_index_of_another_definition_is_kept_until_the_right_one_is_built(
    empty_dsn: str, connection: asyncpg.Connection
) -> None:
    await leave_out(connection)
    await connection.execute(f"CREATE INDEX {INDEX} ON scheduled_jobs (job_id)")
    valid = (
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 'scheduled_jobs'::regclass"
        " AND indisvalid AND indexrelid::regclass::text ~ $1 ORDER BY 1"
    )
    for _ in range(2):  # the second call begins with an invalid index, beside the renamed one
        async with asyncio.timeout(30), open_transaction(empty_dsn):
            await connection.execute("SET lock_timeout = '100ms'")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await build_indexes(connection)
            await connection.execute("RESET lock_timeout")
        assert [row[0] for row in await connection.fetch(valid, INDEX)] == [f"{INDEX}_replaced"]
    assert await build_indexes(connection) == [INDEX]
    assert await describe(connection, "public") == CHECKED_IN.read_text(encoding="utf-8")


def test_name_of_a_replaced_index_is_short_enough() -> None:
    assert max(len(name + indexes._REPLACED) for name in index_statements()) < 64


async def test_index_of_another_name_with_the_same_columns_suffices(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    await connection.execute(f"ALTER INDEX {INDEX} RENAME TO mine")
    assert await missing_indexes(connection) == []
    assert await build_indexes(connection) == []


async def test_one_of_several_calls_builds_the_index(
    empty_dsn: str, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "LOCK_POLL_S", 0.01)
    await leave_out(connection)
    connections = [await asyncpg.connect(empty_dsn) for _ in range(5)]
    try:
        results = await asyncio.gather(*(build_indexes(each) for each in connections))
    finally:
        for each in connections:
            await each.close()
    assert sorted(results) == [[], [], [], [], [INDEX]]
    assert await index_state(connection) is True


async def test_build_blocks_no_writes(empty_dsn: str, connection: asyncpg.Connection) -> None:
    await leave_out(connection)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        async with open_transaction(empty_dsn) as older:
            build = group.create_task(build_indexes(connection))
            waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
            while not await older.fetchval(waits):  # noqa: ASYNC110 - a lock wait raises no event
                await asyncio.sleep(0.01)
            await older.execute(ROWS, 1)
            assert not build.done()
        assert await build == [INDEX]


async def test_build_is_refused_in_a_transaction(connection: asyncpg.Connection) -> None:
    await leave_out(connection)
    async with connection.transaction():
        with pytest.raises(ConfigurationError, match="cannot be part of a transaction"):
            await build_indexes(connection)


async def test_build_without_tables_is_refused(connection: asyncpg.Connection) -> None:
    with pytest.raises(SchemaMissingError, match=r"schema 'public' has no tables .*initialize_db\(\)"):
        await build_indexes(connection)
    with pytest.raises(SchemaMissingError, match="schema 'public' has no tables"):
        await missing_indexes(connection)
