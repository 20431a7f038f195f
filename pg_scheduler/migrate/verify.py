"""Check that a database has the migrations of this release.

Every node does so at every start, so a check that succeeds takes one query and no lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import asyncpg

from pg_scheduler.sqltext import qualify

from ..errors import SchemaMissingError
from .plan import Applied, check, shipped_migrations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncpg.pool import PoolConnectionProxy

    AnyConnection: TypeAlias = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

__all__ = ["REMEDY", "applied_migrations", "home_schema", "verify"]

QUERY_TIMEOUT_S = 30.0

REMEDY = "; call await scheduler.initialize_db() or start() to create or upgrade them"
"""The end of each message about missing tables or migrations."""

_HOME_SCHEMA = """
    SELECT coalesce(
        (SELECT namespace.nspname
         FROM pg_catalog.pg_class AS class
         JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
         WHERE class.oid = pg_catalog.to_regclass('scheduled_jobs')),
        pg_catalog.current_schema()
    )
"""
# Read by to_jsonb, because the column "needs" exists only from migration 0006 on.
_APPLIED = """
    SELECT version, checksum, (to_jsonb(record) ->> 'needs')::integer AS needs
    FROM {schema}scheduler_migrations AS record
"""


async def home_schema(connection: AnyConnection, schema: str | None = None) -> str:
    """Return the schema of the tables, or the one in which they will be created.

    Args:
        connection: A connection to the database.
        schema: The schema that the application configured, or None.

    Returns:
        The given schema; without one, the first schema of the search path that contains ``scheduled_jobs``;
        if none does, the first one that exists.

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

    Migrations of a newer release are accepted if they remove nothing that this one uses.

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
    try:
        applied = await applied_migrations(connection, home)
    except asyncpg.UndefinedTableError as error:
        raise SchemaMissingError(f"schema {home!r} has no tables of pg_scheduler{REMEDY}") from error
    shipped = shipped_migrations()
    check(applied, shipped)
    missing = [f"{migration.version:04}" for migration in shipped if migration.version not in applied]
    if missing:
        raise SchemaMissingError(
            f"the tables of pg_scheduler in schema {home!r} lack the migrations {', '.join(missing)}{REMEDY}"
        )


async def applied_migrations(connection: AnyConnection, schema: str) -> Mapping[int, Applied]:
    """Return the migrations recorded in the schema, by version."""
    rows = await connection.fetch(qualify(_APPLIED, schema), timeout=QUERY_TIMEOUT_S)
    return {row["version"]: Applied(row["checksum"], row["needs"]) for row in rows}
