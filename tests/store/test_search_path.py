"""No statement depends on an object that another role created in a schema of the search path."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import asyncpg
import pytest

from pg_scheduler.base.sqlbuiltins import qualify_builtins
from pg_scheduler.migrate import migrate
from tests.support.stories import NIGHTLY
from tests.support.traps import (
    PATHS,
    QUALIFICATION,
    calls_of_statements,
    create_traps,
    parameter_types,
    sites,
    statements,
)

pytestmark = pytest.mark.slow

QUERIES = statements("jobs")

OPERATOR = re.compile(r"OPERATOR\(pg_catalog\.([^)]+)\)")
FOUND = """
    SELECT pg_describe_object(refclassid, refobjid, 0)
    FROM pg_depend
    WHERE classid = 'pg_proc'::regclass AND objid = to_regproc('public.statement')
      AND pg_describe_object(refclassid, refobjid, 0) LIKE '%trap.%'
"""


class Database:
    """Create functions from statements, and report the traps that they depend on."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.types: dict[str, str] = {}

    async def traps_of(self, name: str, statement: str, path: str) -> list[str]:
        """Return the traps that a statement would call or use with a search path."""
        types = self.types.get(name) or "()"
        body = statement.rstrip(";")
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            await self.connection.execute(
                f"SET LOCAL search_path = {path};"
                f"CREATE FUNCTION public.statement{types} RETURNS void BEGIN ATOMIC {body}; END;"
                "SET LOCAL search_path = pg_catalog"
            )
            return [row[0] for row in await self.connection.fetch(FOUND)]
        except asyncpg.PostgresError as error:
            return [str(error)]  # a trap with another result type
        finally:
            await transaction.rollback()


@pytest.fixture
async def database(empty_dsn: str) -> AsyncIterator[Database]:
    connection = await asyncpg.connect(empty_dsn)
    await migrate(connection, schema="jobs")
    await connection.execute("CREATE SCHEMA trap")
    await create_traps(connection, await calls_of_statements(connection, "jobs"))
    database = Database(connection)
    for name, text in QUERIES.items():
        database.types[name] = await parameter_types(connection, text)
    yield database
    await connection.close()


async def test_no_statement_uses_a_trap(database: Database) -> None:
    for path in PATHS:
        for name, text in QUERIES.items():
            found = await database.traps_of(name, text, path)
            assert not found, f"with the search path {path}, statement {name!r} uses {', '.join(found)}"


@NIGHTLY
@pytest.mark.slow
async def test_every_statement_uses_a_trap_when_one_qualification_is_removed(database: Database) -> None:
    count = 0
    for name, text in QUERIES.items():
        for before, after in sites(text):
            count += 1
            assert await database.traps_of(name, before + after, PATHS[1]), f"{name}: ...{after[:40]}"
    assert count > 500


@pytest.mark.slow
async def test_better_matches_are_called_although_pg_catalog_is_searched_first(database: Database) -> None:
    missing = {"function trap.make_interval", "function trap.unnest", "function trap.jsonb_build_object"}
    for name, text in QUERIES.items():
        for before, after in sites(text):
            if missing:
                found = await database.traps_of(name, before + after, PATHS[0])
                missing -= {each.partition("(")[0] for each in found}
    assert not missing


async def test_qualified_statements_have_the_same_meaning(database: Database) -> None:
    """The server would print them differently if parentheses were missing."""
    body = "SELECT pg_get_function_sqlbody(to_regproc('public.statement'))"
    for name, text in QUERIES.items():
        meanings = []
        source = re.sub(QUALIFICATION, "", OPERATOR.sub(r"\1", text))
        assert qualify_builtins(source) == text
        for each in (source, text):
            transaction = database.connection.transaction()
            await transaction.start()
            types = database.types[name] or "()"
            create = (
                f"CREATE FUNCTION public.statement{types} RETURNS void BEGIN ATOMIC {each.rstrip(';')}; END"
            )
            await database.connection.execute(create)
            meanings.append(await database.connection.fetchval(body))
            await transaction.rollback()
        assert meanings[0] == meanings[1], name
