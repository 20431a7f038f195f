"""Is this a database we can work with?

Every node asks at every start, so the answer costs one query and no lock when all is well.
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

CALL_TIMEOUT = 30.0
"""Seconds a question may take."""

REMEDY = "Call await scheduler.initialize_db() or start(), which create and upgrade them."
"""How the message ends that says that tables or migrations are not there."""

_HOME_SCHEMA = """
    SELECT coalesce(
        (SELECT namespace.nspname
         FROM pg_catalog.pg_class AS class
         JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = class.relnamespace
         WHERE class.oid = pg_catalog.to_regclass('scheduled_jobs')),
        pg_catalog.current_schema()
    )
"""
# The column came late; a record as JSON has it or not.
_APPLIED = """
    SELECT version, checksum, (to_jsonb(record) ->> 'needs')::integer AS needs
    FROM {schema}scheduler_migrations AS record
"""


async def home_schema(connection: AnyConnection, schema: str | None = None) -> str:
    """Find the schema that holds the tables, or shall hold them.

    Args:
        connection: Any connection to the database.
        schema: The one the application chose, if it did.

    Returns:
        The given schema; else the one in which the search path finds ``scheduled_jobs``; else the one in
        which it would be created.

    Raises:
        SchemaMissingError: None was given and the search path names no schema that exists.
    """
    if schema is not None:
        return schema
    home: str | None = await connection.fetchval(_HOME_SCHEMA, timeout=CALL_TIMEOUT)
    if home is None:
        search_path = await connection.fetchval("SHOW search_path", timeout=CALL_TIMEOUT)
        raise SchemaMissingError(
            f"the search path {search_path!r} names no schema that exists. Create one of them, or say where "
            "the tables shall live with schema=..., which is created when it is missing."
        )
    return home


async def verify(connection: AnyConnection, *, schema: str | None = None) -> None:
    """Check that the database has the migrations of this release; change nothing.

    It may have more, of a newer release, as long as those take nothing away that this one needs.

    Give ``schema`` (from ``home_schema``) to spend one query only. That the tables are missing is learned
    from a failed query, so a transaction of the caller's is aborted by it.

    Args:
        connection: Any connection to the database.
        schema: The schema that holds the tables; None to look along the search path.

    Raises:
        SchemaMissingError: The tables, or some migrations, are not there yet.
        SchemaTooNewError: A newer release has migrated this database to what this one cannot work with.
        MigrationChangedError: A migration was applied in another form than the one shipped.
    """
    home = await home_schema(connection, schema)
    try:
        applied = await applied_migrations(connection, home)
    except asyncpg.UndefinedTableError as error:
        raise SchemaMissingError(f"schema {home!r} has no tables of pg_scheduler. {REMEDY}") from error
    shipped = shipped_migrations()
    check(applied, shipped)
    missing = [f"{migration.version:04}" for migration in shipped if migration.version not in applied]
    if missing:
        raise SchemaMissingError(
            f"the tables of pg_scheduler in schema {home!r} lack the migrations {', '.join(missing)}. "
            f"{REMEDY}"
        )


async def applied_migrations(connection: AnyConnection, schema: str) -> Mapping[int, Applied]:
    """The migrations the schema remembers, by version."""
    rows = await connection.fetch(qualify(_APPLIED, schema), timeout=CALL_TIMEOUT)
    return {row["version"]: Applied(row["checksum"], row["needs"]) for row in rows}
