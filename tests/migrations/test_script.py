"""Migrations as text, and on connections of other libraries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from pg_scheduler.database.migrations.apply import apply
from pg_scheduler.database.migrations.run import run_migrations
from pg_scheduler.database.migrations.sql import step_statements
from pg_scheduler.database.options import PROBED_TRANSACTION
from pg_scheduler.errors import (
    ConfigurationError,
    MigrationChangedError,
    SchemaMissingError,
    SchemaTooNewError,
)
from pg_scheduler.migrate import Migration, Step, script, shipped_migrations, steps_between, verify
from tests.conftest import migrate_on, run_on
from tests.migrations.dump import CHECKED_IN, describe
from tests.migrations.next_release import OF_NEXT_RELEASE

HEAD = shipped_migrations()[-1].version
ALL = list(range(1, HEAD + 1))
ODD = 'the "odd" {jobs}'
QUOTED = '"the ""odd"" {jobs}"'

Run = Callable[[str], Sequence[Any]]


def by_cursor(cursor: Any) -> Run:
    def run(statement: str) -> Sequence[Any]:
        cursor.execute(statement)
        rows: Sequence[Any] = cursor.fetchall() if cursor.description else ()
        return rows

    return run


def by_sqlalchemy(connection: Connection) -> Run:
    def run(statement: str) -> Sequence[Any]:
        result = connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
        return result.all() if result.returns_rows else ()

    return run


@contextmanager
def transaction(dsn: str) -> Iterator[Run]:
    """Yield a function that runs statements in a transaction."""
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        yield by_cursor(cursor)


def shape(dsn: str) -> str:
    async def read(connection: asyncpg.Connection) -> None:
        texts.append(await describe(connection, "public"))

    texts: list[str] = []
    run_on(dsn, read)
    return texts[0]


def of(text: str) -> list[str]:
    """Return the statements of a migration, without the heading and the record."""
    heading, *statements, _ = step_statements(Step(Migration(1, "example", f";{text}", ""), up=True), "s")
    assert heading == "-- apply 0001 example\n;"
    return statements


@pytest.mark.parametrize(("start", "target"), [(0, HEAD), (HEAD, 0), (HEAD, HEAD + 1), (HEAD + 1, HEAD)])
async def test_script_is_what_migrate_executes(
    connection: asyncpg.Connection, start: int, target: int
) -> None:
    if start:
        await apply(connection, OF_NEXT_RELEASE, schema=ODD, target=start)
    executed: list[str] = []
    expected = "\n".join(script(steps_between(start, target, shipped=OF_NEXT_RELEASE), ODD))
    with connection.query_logger(lambda record: executed.append(record.query)):
        await apply(connection, OF_NEXT_RELEASE, schema=ODD, target=target)
        await asyncio.sleep(0)  # loggers are called by the event loop
    assert "\n".join(query for query in executed if query in expected) == expected
    others = {
        query.split()[0].strip(";")
        for query in executed
        if query not in expected and query != PROBED_TRANSACTION
    }
    assert others <= {"BEGIN", "SELECT", "COMMIT"}


async def test_script_has_single_statements_that_make_and_revert_the_tables(
    connection: asyncpg.Connection,
) -> None:
    for start, target, version in ((0, HEAD, HEAD), (HEAD, 0, None)):
        async with connection.transaction():
            for statement in script(steps_between(start, target), ODD):
                await connection.fetch(statement)  # by the protocol that rejects two statements
        assert await connection.fetchval(f"SELECT max(version) FROM {QUOTED}.scheduler_migrations") == version
        if version:
            await verify(connection, schema=ODD)


@pytest.mark.parametrize(
    "statements",
    [
        ["SELECT ';', ';''';", "SELECT 2;"],
        ['SELECT ";" FROM t -- one; two', "SELECT 2"],
        ["DO $tag$ SELECT $1; $other$;$other$; $tag$;", "DO $$;$$;", "SELECT 3;"],
        ["-- one; two\nSELECT 1;", "/* one;\ntwo; */ SELECT 2;"],
        [],
    ],
)
def test_semicolons_in_strings_names_bodies_and_comments_end_no_statement(statements: list[str]) -> None:
    statements = [each if each.endswith(";") else f"{each}\n;" for each in statements]
    assert of("\n".join(statements)) == statements
    assert of("\n".join([*statements, "-- the end;"])) == statements
    assert of("\n".join([*statements, "SELECT 0"])) == [*statements, "SELECT 0\n;"]


@pytest.mark.parametrize("library", ["psycopg", "psycopg2", "sqlalchemy+psycopg", "sqlalchemy+psycopg2"])
def test_migrations_run_on_connections_of_each_library(empty_dsn: str, library: str) -> None:
    wrapper, _, driver = library.rpartition("+")

    def work(run: Run, start: int, target: int) -> list[int]:
        return run_migrations(run, start=start, target=target)

    def once(start: int, target: int) -> list[int]:
        if wrapper:
            engine = create_engine(empty_dsn.replace("postgresql", f"postgresql+{driver}", 1))
            with engine.begin() as connection:
                done = work(by_sqlalchemy(connection), start, target)
            engine.dispose()
            return done
        connect: Any = {"psycopg": psycopg, "psycopg2": psycopg2}[driver].connect
        with closing(connect(empty_dsn)) as connection, connection, connection.cursor() as cursor:
            return work(by_cursor(cursor), start, target)

    assert once(0, HEAD) == ALL
    assert shape(empty_dsn) == CHECKED_IN.read_text(encoding="utf-8")
    run_on(empty_dsn, verify)
    assert once(0, HEAD) == []
    assert once(HEAD, 0) == ALL[::-1]
    assert once(HEAD, 0) == []


async def test_migrations_run_on_an_asyncpg_connection_of_sqlalchemy(empty_dsn: str) -> None:
    engine = create_async_engine(empty_dsn.replace("postgresql", "postgresql+asyncpg", 1))
    async with engine.begin() as connection:
        done = await connection.run_sync(
            lambda sync: run_migrations(by_sqlalchemy(sync), start=0, target=HEAD, schema=ODD)
        )
    await engine.dispose()
    assert done == ALL
    plain = await asyncpg.connect(empty_dsn)
    await verify(plain, schema=ODD)
    await plain.close()


def test_migrations_on_a_connection_belong_to_its_transaction(empty_dsn: str) -> None:
    with transaction(empty_dsn) as run:
        run("SET search_path = pg_temp, public")
        run("CREATE SCHEMA mine")
        run_migrations(run, start=0, target=HEAD)
        assert run("SHOW search_path") == [("pg_temp, public",)]
        run("ROLLBACK")
    assert shape(empty_dsn) == ""
    with transaction(empty_dsn) as run:
        assert run("SELECT to_regnamespace('mine')") == [(None,)]


def test_migrations_on_a_connection_skip_what_nodes_have_migrated(empty_dsn: str) -> None:
    """A worker and the migrations of Django or Alembic may run in either order."""
    run_on(empty_dsn, migrate_on)
    for expected in ([HEAD + 1], []):
        with transaction(empty_dsn) as run:
            assert run_migrations(run, start=0, target=HEAD, shipped=OF_NEXT_RELEASE) == []
            assert run_migrations(run, start=HEAD, target=HEAD + 1, shipped=OF_NEXT_RELEASE) == expected
    run_on(empty_dsn, verify)


def test_migrations_on_a_connection_wait_for_a_node_that_migrates(empty_dsn: str) -> None:
    async def both() -> None:
        with transaction(empty_dsn) as first, transaction(empty_dsn) as second:
            assert run_migrations(first, start=0, target=HEAD) == ALL
            waiting = asyncio.create_task(
                asyncio.to_thread(run_migrations, second, start=0, target=HEAD, schema="public")
            )
            observer = await asyncpg.connect(empty_dsn)
            while not await observer.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110 - a lock raises no event
                await asyncio.sleep(0)
            await observer.close()
            assert not waiting.done()
            first("COMMIT")
            assert await waiting == []

    asyncio.run(both())
    run_on(empty_dsn, verify)


@pytest.mark.parametrize("version", [-1, HEAD + 1])
def test_unknown_versions_are_rejected(empty_dsn: str, version: int) -> None:
    with transaction(empty_dsn) as run:
        for start, target in ((0, version), (version, 0)):
            with pytest.raises(
                ConfigurationError, match=f"is {version}, but this release has .* 0 to {HEAD}"
            ):
                run_migrations(run, start=start, target=target)


def test_migrations_on_a_connection_without_a_transaction_are_rejected(empty_dsn: str) -> None:
    message = "in a transaction, not on an autocommit connection"
    with (
        psycopg.connect(empty_dsn, autocommit=True) as connection,
        connection.cursor() as cursor,
        pytest.raises(ConfigurationError, match=message),
    ):
        run_migrations(by_cursor(cursor), start=0, target=HEAD)
    assert shape(empty_dsn) == ""


def test_migrations_on_a_connection_neither_leave_gaps_nor_revert_later_ones(empty_dsn: str) -> None:
    with transaction(empty_dsn) as run:
        with pytest.raises(
            SchemaMissingError, match=r"'public' lack the migrations 0001, .*; apply them first"
        ):
            run_migrations(run, start=HEAD, target=HEAD + 1, shipped=OF_NEXT_RELEASE)
        run("ROLLBACK")
        run_migrations(run, start=0, target=HEAD + 1, shipped=OF_NEXT_RELEASE)
        run("COMMIT")
        with pytest.raises(
            SchemaTooNewError, match=f"version {HEAD + 1}, .* the versions after {HEAD} first"
        ):
            run_migrations(run, start=HEAD, target=0, shipped=OF_NEXT_RELEASE)
        run("ROLLBACK")
        edited = [*shipped_migrations()[:-1], replace(shipped_migrations()[-1], up="SELECT 1;")]
        with pytest.raises(MigrationChangedError, match="undo the edit"):
            run_migrations(run, start=HEAD, target=HEAD - 1, shipped=edited)


def test_reverting_what_was_never_applied_creates_nothing(empty_dsn: str) -> None:
    with transaction(empty_dsn) as run:
        assert run_migrations(run, start=HEAD, target=0, schema="jobs") == []
        assert run("SELECT to_regnamespace('jobs')") == [(None,)]


def test_search_path_without_a_schema_is_an_error(empty_dsn: str) -> None:
    with transaction(empty_dsn) as run:
        run("SET search_path = absent")
        with pytest.raises(SchemaMissingError, match="search path 'absent' names no schema that exists"):
            run_migrations(run, start=0, target=HEAD)


def test_role_that_may_not_create_schemas_migrates_in_one_that_exists(empty_dsn: str) -> None:
    with transaction(empty_dsn) as run:
        run("CREATE SCHEMA jobs; GRANT ALL ON SCHEMA jobs TO pg_monitor; SET ROLE pg_monitor")
        assert run_migrations(run, start=0, target=HEAD, schema="jobs") == ALL
