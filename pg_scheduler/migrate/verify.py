"""Check that a database has the migrations of this release.

Every node does so at every start, so a check that succeeds takes one query and no lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import asyncpg

from pg_scheduler.sqltext import qualify

from ..errors import SchemaMissingError
from .plan import Applied, Migration, check, shipped_migrations, table_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from asyncpg.pool import PoolConnectionProxy

    AnyConnection: TypeAlias = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

__all__ = ["REMEDY", "SchemaState", "home_schema", "missing_tables", "read_state", "verify"]

QUERY_TIMEOUT_S = 30.0

REMEDY = "; call await scheduler.initialize_db() or start() to create or upgrade them"
"""The end of each message about missing tables or migrations."""

_HOME_SCHEMA = """
    SELECT coalesce(
        (SELECT namespace.nspname
         FROM pg_catalog.pg_class AS class
         JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
         WHERE class.oid = coalesce(
             pg_catalog.to_regclass('scheduled_jobs'), pg_catalog.to_regclass('scheduler_migrations')
         )),
        pg_catalog.current_schema()
    )
"""
# Read by to_jsonb, because the column "needs" exists only from migration 0006 on.
_STATE = """
    SELECT record.version, record.checksum, (to_jsonb(record) ->> 'needs')::integer AS needs, existing.tables
    FROM (
        SELECT coalesce(array_agg(class.relname::text), '{}') AS tables
        FROM pg_catalog.pg_class AS class
        JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
        WHERE namespace.nspname = $1 AND class.relname = ANY ($2::text[])
    ) AS existing
    LEFT JOIN {schema}scheduler_migrations AS record ON true
"""


class SchemaState(NamedTuple):
    """The recorded migrations of a schema and its tables.

    Attributes:
        applied: The migrations, by version.
        tables: The names of the tables that exist, of those that the shipped migrations create.
    """

    applied: Mapping[int, Applied]
    tables: frozenset[str]


async def home_schema(connection: AnyConnection, schema: str | None = None) -> str:
    """Return the schema of the tables, or the one in which they will be created.

    Args:
        connection: A connection to the database.
        schema: The schema that the application configured, or None.

    Returns:
        The given schema; without one, the first schema of the search path that contains ``scheduled_jobs``,
        or else ``scheduler_migrations``; if none does, the first one that exists.

    Raises:
        SchemaMissingError: No schema was given, and no schema of the search path exists.
    """
    if schema is not None:
        return schema
    home: str | None = await connection.fetchval(_HOME_SCHEMA, timeout=QUERY_TIMEOUT_S)
    if home is None:
        search_path = await connection.fetchval("SHOW search_path", timeout=QUERY_TIMEOUT_S)
        raise SchemaMissingError(
            f"the search path {search_path!r} names no schema that exists; create one of them, or pass "
            "schema=..., which is created if it is missing"
        )
    return home


async def verify(connection: AnyConnection, *, schema: str | None = None) -> None:
    """Check that the database has the migrations of this release, without changing anything.

    Migrations of a newer release are accepted if they remove nothing that this one uses. Whether all tables
    exist is not checked then.

    With ``schema`` (from ``home_schema``) this takes a single query. If the tables are missing, that query
    fails, which aborts a transaction of the caller.

    Args:
        connection: A connection to the database.
        schema: The schema of the tables; None to search for it along the search path.

    Raises:
        SchemaMissingError: The tables or some migrations are missing.
        SchemaTooNewError: A newer release has applied a migration that this release cannot use.
        MigrationChangedError: An applied migration differs from the shipped one.
    """
    home = await home_schema(connection, schema)
    shipped = shipped_migrations()
    try:
        state = await read_state(connection, home, shipped)
    except asyncpg.UndefinedTableError as error:
        raise SchemaMissingError(f"schema {home!r} has no tables of pg_scheduler{REMEDY}") from error
    check(state.applied, shipped)
    missing = [f"{migration.version:04}" for migration in shipped if migration.version not in state.applied]
    if missing:
        raise SchemaMissingError(
            f"the tables of pg_scheduler in schema {home!r} lack the migrations {', '.join(missing)}{REMEDY}"
        )
    if tables := missing_tables(state, shipped):
        raise SchemaMissingError(
            f"tables of pg_scheduler are missing in schema {home!r}: {', '.join(tables)}{REMEDY}"
        )


async def read_state(connection: AnyConnection, schema: str, shipped: Iterable[Migration]) -> SchemaState:
    """Return the recorded migrations and the existing tables of the schema, with one query."""
    query = qualify(_STATE, schema)
    rows = await connection.fetch(query, schema, table_names(shipped), timeout=QUERY_TIMEOUT_S)
    applied = {
        row["version"]: Applied(row["checksum"], row["needs"]) for row in rows if row["version"] is not None
    }
    return SchemaState(applied, frozenset(rows[0]["tables"]))


def missing_tables(state: SchemaState, shipped: Iterable[Migration]) -> list[str]:
    """Return the tables that the applied migrations created and that no longer exist.

    The list is empty if a newer release has migrated the schema: that release may have dropped them.
    """
    known = {migration.version: migration for migration in shipped}
    if not state.applied.keys() <= known.keys():
        return []
    created = table_names(known[version] for version in sorted(state.applied))
    return [table for table in created if table not in state.tables]
