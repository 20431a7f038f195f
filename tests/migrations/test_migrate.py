"""Migrating up and down, concurrently and with errors, on a real database."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from pg_scheduler.database.migrations import apply as apply_module
from pg_scheduler.database.migrations.apply import apply
from pg_scheduler.database.migrations.sql import lock
from pg_scheduler.errors import MigrationChangedError, SchemaMissingError, SchemaTooNewError
from pg_scheduler.migrate import Migration, home_schema, migrate, shipped_migrations, verify
from tests.migrations.dump import CHECKED_IN, describe, shipped_shape
from tests.migrations.next_release import NEXT, OF_NEXT_RELEASE
from tests.support.golden import golden

SHIPPED = shipped_migrations()
HEAD = SHIPPED[-1].version
ALL = list(range(1, HEAD + 1))
ODD_SCHEMA = 'Odd "Schéma" 100%'


async def test_migrate_restores_the_same_schema_after_down_and_up(connection: asyncpg.Connection) -> None:
    assert await migrate(connection) == ALL
    first = await describe(connection, "public")
    assert await migrate(connection, target=0) == ALL[::-1]
    assert await describe(connection, "public") != first
    assert await migrate(connection) == ALL
    assert await describe(connection, "public") == first


@pytest.mark.parametrize("version", ALL)
async def test_each_down_migration_reverts_its_up_migration(
    connection: asyncpg.Connection, version: int
) -> None:
    await migrate(connection, target=max(version - 1, 1))
    await migrate(connection, target=version - 1)
    before = await describe(connection, "public")
    assert await migrate(connection, target=version) == [version]
    assert await migrate(connection, target=version - 1) == [version]
    assert await describe(connection, "public") == before


async def test_migrate_does_nothing_when_called_again(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    applied = "SELECT * FROM scheduler_migrations ORDER BY version"
    before = await connection.fetch(applied)
    assert await migrate(connection) == []
    assert await connection.fetch(applied) == before
    assert [(row["version"], row["name"]) for row in before] == [(one.version, one.name) for one in SHIPPED]


async def test_migrated_schema_equals_the_checked_in_dump(
    empty_dsn: str, connection: asyncpg.Connection
) -> None:
    shape = await shipped_shape(empty_dsn)
    expected = golden(CHECKED_IN, shape)
    assert shape == expected, "run: python3 dev.py renew"
    await migrate(connection, schema=ODD_SCHEMA)
    assert await describe(connection, ODD_SCHEMA) == expected


@pytest.mark.parametrize("schema", [None, ODD_SCHEMA])
@pytest.mark.parametrize("isolation", ["read committed", "serializable"])
async def test_migrate_succeeds_on_twenty_connections_at_once(
    empty_dsn: str, schema: str | None, isolation: str
) -> None:
    settings = {"default_transaction_isolation": isolation}
    connections = [await asyncpg.connect(empty_dsn, server_settings=settings) for _ in range(20)]
    try:
        results = await asyncio.gather(*(migrate(connection, schema=schema) for connection in connections))
        assert sorted(results, key=len) == [[]] * 19 + [ALL]
        await verify(connections[0], schema=schema)
    finally:
        for connection in connections:
            await connection.close()


async def test_migrate_changes_nothing_when_a_migration_fails(connection: asyncpg.Connection) -> None:
    broken = Migration(HEAD + 1, "broken", "CREATE TABLE {schema}half_way (); SELECT 1 / 0;", "")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await apply(connection, [*SHIPPED, broken], schema="jobs")
    assert not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'jobs')")

    await migrate(connection)
    before = await describe(connection, "public")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await apply(connection, [*SHIPPED, broken])
    assert await describe(connection, "public") == before
    await verify(connection)


async def test_migrate_raises_the_cause_when_a_pool_connection_breaks(empty_dsn: str) -> None:
    fatal = Migration(HEAD + 1, "fatal", "SELECT pg_terminate_backend(pg_backend_pid());", "")
    async with asyncpg.create_pool(empty_dsn, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        with pytest.raises((asyncpg.AdminShutdownError, asyncpg.ConnectionDoesNotExistError)):
            await apply(connection, [*SHIPPED, fatal])


async def test_newer_schema_is_refused_and_left_unchanged(connection: asyncpg.Connection) -> None:
    newer = Migration(
        HEAD + 1, "from_tomorrow", "CREATE TABLE {schema}tomorrow ();", "DROP TABLE {schema}tomorrow;"
    )
    await apply(connection, [*SHIPPED, newer])
    before = await describe(connection, "public")
    refusal = rf"at schema version {HEAD + 1}, but this release .* supports versions up to {HEAD}; upgrade"
    for target in (None, 0):
        with pytest.raises(SchemaTooNewError, match=refusal):
            await migrate(connection, target=target)
    with pytest.raises(SchemaTooNewError, match=refusal):
        await verify(connection)
    assert await describe(connection, "public") == before

    assert await apply(connection, [*SHIPPED, newer], target=HEAD) == [HEAD + 1]
    await verify(connection)


async def test_newer_schema_is_accepted_when_its_migrations_only_expand(
    connection: asyncpg.Connection,
) -> None:
    more = Migration(HEAD + 1, "more", "-- expand\nCREATE TABLE {schema}more ();", "DROP TABLE {schema}more;")
    less = Migration(HEAD + 2, "less", f"-- contract {HEAD:04}\nSELECT 1;", "SELECT 1;")
    too_much = replace(less, up=f"-- contract {HEAD + 1:04}\nSELECT 1;")
    await apply(connection, [*SHIPPED, more, less])
    await verify(connection)
    assert await migrate(connection) == []
    with pytest.raises(SchemaTooNewError, match=f"migrate down to {HEAD} with the newer release"):
        await migrate(connection, target=HEAD)
    assert await apply(connection, [*SHIPPED, more, less], target=HEAD + 1) == [HEAD + 2]

    await apply(connection, [*SHIPPED, more, too_much])
    with pytest.raises(SchemaTooNewError, match=f"at schema version {HEAD + 2}"):
        await verify(connection)
    assert await apply(connection, [*SHIPPED, more, too_much], target=0)


async def test_migrate_retries_after_a_deadlock_with_a_running_node(
    empty_dsn: str, connection: asyncpg.Connection
) -> None:
    await migrate(connection)
    # The victim is the one whose check comes first; the node may be slow to wait.
    await connection.execute("SET deadlock_timeout = '3s'")
    node = await asyncpg.connect(empty_dsn, server_settings={"deadlock_timeout": "1min"})
    try:
        transaction = node.transaction()
        await transaction.start()
        await node.execute("LOCK scheduler_workers IN ROW EXCLUSIVE MODE")
        migrating = asyncio.create_task(
            apply(connection, OF_NEXT_RELEASE)
        )  # it locks scheduled_jobs, then waits for scheduler_workers
        waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
        while not await node.fetchval(waits):  # noqa: ASYNC110 - a lock wait raises no event
            await asyncio.sleep(0.01)
        await node.execute("LOCK scheduled_jobs IN ROW SHARE MODE")
        await transaction.commit()
        assert await migrating == [NEXT.version]
    finally:
        await node.close()


async def test_changed_migration_is_refused(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    await connection.execute("UPDATE scheduler_migrations SET checksum = 'edited' WHERE version = 1")
    refusal = rf"0001 \({SHIPPED[0].name}\) was applied with the checksum edited, .* {SHIPPED[0].checksum}"
    with pytest.raises(MigrationChangedError, match=refusal):
        await verify(connection)
    with pytest.raises(MigrationChangedError, match=refusal):
        await migrate(connection, target=0)


async def test_verify_names_the_missing_migrations(connection: asyncpg.Connection) -> None:
    with pytest.raises(SchemaMissingError, match=r"schema 'public' has no tables .*initialize_db\(\)"):
        await verify(connection)
    with pytest.raises(SchemaMissingError, match="schema 'nowhere' has no tables"):
        await verify(connection, schema="nowhere")
    await migrate(connection, target=0)
    with pytest.raises(
        SchemaMissingError,
        match=r"lack the migrations 0001, 0002, 0003, 0004, 0005, 0006; .*initialize_db\(\)",
    ):
        await verify(connection)


async def test_verify_runs_two_queries(connection: asyncpg.Connection) -> None:
    await migrate(connection)
    queries: list[str] = []
    with connection.query_logger(lambda record: queries.append(record.query)):
        await verify(connection, schema="public")
        await asyncio.sleep(0)  # the logger is called in the next iteration of the event loop
    # The first asks whether the table of migrations exists: to read it would be an ERROR in the server's log.
    assert len(queries) == 2


async def test_schemas_of_one_database_are_independent(connection: asyncpg.Connection) -> None:
    await migrate(connection, schema="one")
    await migrate(connection, schema=ODD_SCHEMA)
    await migrate(connection, schema="one", target=0)
    await verify(connection, schema=ODD_SCHEMA)
    with pytest.raises(SchemaMissingError, match="schema 'one' lack"):
        await verify(connection, schema="one")
    assert await describe(connection, "public") == ""


async def test_migrate_works_without_a_search_path(connection: asyncpg.Connection) -> None:
    await connection.execute("SET search_path = ''")
    await migrate(connection, schema="jobs")
    await verify(connection, schema="jobs")
    await migrate(connection, schema="jobs", target=0)


async def test_home_schema_follows_the_search_path(connection: asyncpg.Connection) -> None:
    await connection.execute(
        "CREATE SCHEMA first; CREATE SCHEMA second; SET search_path = absent, first, second"
    )
    assert await home_schema(connection) == "first"
    await migrate(connection, schema="second")
    assert await home_schema(connection) == "second"
    assert await home_schema(connection, "first") == "first"
    assert await migrate(connection) == []
    await verify(connection)


async def test_migrate_raises_with_the_search_path_when_none_of_its_schemas_exists(
    connection: asyncpg.Connection,
) -> None:
    await connection.execute("SET search_path = absent")
    with pytest.raises(SchemaMissingError, match=r"search path 'absent' names no schema .* schema=\.\.\."):
        await migrate(connection)


async def test_migrate_leaves_no_setting_lock_or_transaction_behind(connection: asyncpg.Connection) -> None:
    await connection.execute("DO 'BEGIN END'")  # which loads PL/pgSQL and its settings
    settings = "SELECT name, setting FROM pg_settings ORDER BY name"
    before = await connection.fetch(settings)
    await migrate(connection, schema="jobs")
    assert await connection.fetch(settings) == before
    assert not connection.is_in_transaction()
    locks = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"
    assert await connection.fetchval(locks) == 0


async def test_migrate_is_undone_by_a_rollback_of_the_caller(connection: asyncpg.Connection) -> None:
    transaction = connection.transaction()
    await transaction.start()
    assert await migrate(connection) == ALL
    await transaction.rollback()
    assert await describe(connection, "public") == ""


async def test_migrate_raises_when_lock_timeout_expires(
    empty_dsn: str, connection: asyncpg.Connection
) -> None:
    other = await asyncpg.connect(empty_dsn)
    try:
        async with other.transaction():
            await migrate(other, target=0)
            await connection.execute("SET lock_timeout = '1ms'")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await migrate(connection)
        assert await migrate(connection) == ALL
    finally:
        await other.close()


async def test_migrate_succeeds_on_a_current_schema_without_the_privilege_to_create(
    connection: asyncpg.Connection,
) -> None:
    await migrate(connection, schema="jobs")
    await connection.execute(
        """
        GRANT USAGE ON SCHEMA jobs TO pg_monitor;
        GRANT SELECT ON jobs.scheduler_migrations TO pg_monitor;
        SET ROLE pg_monitor;
        """
    )
    assert await migrate(connection, schema="jobs") == []
    await verify(connection, schema="jobs")


async def test_migrate_closes_its_connection_when_another_migration_does_not_end(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real time: the lock is held longer than the timeout."""
    holder, connection = [await asyncpg.connect(empty_dsn) for _ in range(2)]
    async with holder.transaction():
        await holder.execute(lock("public"))
        with monkeypatch.context() as patch:
            patch.setattr(apply_module, "MIGRATION_TIMEOUT_S", 0.2)
            with pytest.raises(TimeoutError):
                await migrate(connection)
    assert connection.is_closed()
    assert await migrate(holder)
    await holder.close()
