"""Record applied migrations in the table ``scheduler_migrations``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from pg_scheduler.sqltext import qualify

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    from .plan import Migration

    AnyConnection: TypeAlias = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

MIGRATION_TIMEOUT_S: Final = 3600.0
"""Applies to each statement: one may wait for the lock, another rewrite a table."""

RECORDS: Final = "scheduler_migrations"
"""The table of the records."""

CREATE_RECORDS: Final = """
    CREATE TABLE {schema}scheduler_migrations (
        version    integer PRIMARY KEY,
        name       text NOT NULL,
        checksum   text NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT now(),
        needs      integer
    )
"""
_INSERT_RECORD = (
    "INSERT INTO {schema}scheduler_migrations (version, name, checksum, needs) VALUES ($1, $2, $3, $4)"
)
_DELETE_RECORD = "DELETE FROM {schema}scheduler_migrations WHERE version = $1"


async def create_records(connection: AnyConnection, schema: str) -> None:
    """Create the table."""
    await connection.execute(qualify(CREATE_RECORDS, schema), timeout=MIGRATION_TIMEOUT_S)


async def insert_record(connection: AnyConnection, schema: str, migration: Migration) -> None:
    """Record an applied migration."""
    record = (migration.version, migration.name, migration.checksum, migration.needs)
    await connection.execute(qualify(_INSERT_RECORD, schema), *record, timeout=MIGRATION_TIMEOUT_S)


async def delete_record(connection: AnyConnection, schema: str, migration: Migration) -> None:
    """Delete the record of a reverted migration."""
    query = qualify(_DELETE_RECORD, schema)
    await connection.execute(query, migration.version, timeout=MIGRATION_TIMEOUT_S)
