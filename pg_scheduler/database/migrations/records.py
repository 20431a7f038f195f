"""Statements for the table ``scheduler_migrations``, which records the applied migrations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from pg_scheduler.base.sqltext import qualify

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    from pg_scheduler.database.migrations.plan import Migration

    AnyConnection: TypeAlias = asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]

MIGRATION_TIMEOUT_S: Final = 3600.0
"""Applies to each statement: one may wait for the lock, another rewrite a table."""

RECORDS: Final = "scheduler_migrations"
"""The table of the records."""

_CREATE: Final = """\
CREATE TABLE IF NOT EXISTS {schema}scheduler_migrations (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    needs      integer
);"""

_INSERT: Final = """\
INSERT INTO {schema}scheduler_migrations (version, name, checksum, needs)
VALUES ({version}, '{name}', '{checksum}', {needs});"""
_DELETE: Final = "DELETE FROM {schema}scheduler_migrations WHERE version = {version};"


def create_records(schema: str) -> str:
    """Return the statement that creates the table."""
    return qualify(_CREATE, schema)


def insert_record(schema: str, migration: Migration) -> str:
    """Return the statement that records an applied migration."""
    return _INSERT.format(
        schema=_prefix(schema),
        version=migration.version,
        name=migration.name,
        checksum=migration.checksum,
        needs="NULL" if migration.needs is None else migration.needs,
    )


def delete_record(schema: str, migration: Migration) -> str:
    """Return the statement that deletes the record of a reverted migration."""
    return _DELETE.format(schema=_prefix(schema), version=migration.version)


def _prefix(schema: str) -> str:
    """Return the quoted schema and a dot."""
    return qualify("{schema}", schema)
