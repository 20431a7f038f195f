"""From the schema a database has to the one that is wanted, in one transaction.

Nodes of one application start together and all find the database empty. They queue on an advisory lock that
belongs to the transaction, so it works through PgBouncer and cannot be left behind; the first one does the
work, and the others find nothing to do.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import asyncpg

from pg_scheduler.sqltext import qualify, quote_identifier

from .plan import Migration, plan, shipped_migrations
from .verify import applied_migrations, home_schema

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from .verify import AnyConnection

__all__ = ["apply", "migrate"]

_LOCK_CLASS = 0x70677363  # "pgsc"; the second half of the key is derived from the schema's name
MIGRATION_TIMEOUT = 3600.0
"""Seconds that each step may take, be it for the lock or for a table to be rewritten."""
_ATTEMPTS = 5

_LOCK = "SELECT pg_catalog.pg_advisory_xact_lock($1::integer, $2::integer)"
_SCHEMA_EXISTS = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)"
_RECORDS_EXIST = "SELECT pg_catalog.to_regclass($1) IS NOT NULL"
_CREATE_RECORDS = """
    CREATE TABLE {schema}scheduler_migrations (
        version    integer PRIMARY KEY,
        name       text NOT NULL,
        checksum   text NOT NULL,
        applied_at timestamptz NOT NULL DEFAULT now()
    )
"""
_RECORD = "INSERT INTO {schema}scheduler_migrations (version, name, checksum) VALUES ($1, $2, $3)"
_RECORD_NEEDS = "UPDATE {schema}scheduler_migrations SET needs = $2 WHERE version = $1"
_FORGET = "DELETE FROM {schema}scheduler_migrations WHERE version = $1"


async def migrate(
    connection: AnyConnection, *, schema: str | None = None, target: int | None = None
) -> list[int]:
    """Bring the tables to a version, up or down: all of it or nothing.

    Any number of nodes may call this at once, also while others work. The schema is created if its name was
    given and it is missing. One that a newer release has migrated, and that this one can work with, is left
    as it is.

    An upgrade may lock ``scheduled_jobs`` exclusively until it is done, and the first one rewrites the rows
    of a pg-scheduler 0.2.x database. The session's ``lock_timeout`` and ``statement_timeout`` apply: set
    ``lock_timeout`` where queueing behind a long transaction would hold up the application, and no
    ``statement_timeout`` that a large table would exceed. When one of them strikes, nothing has changed and
    the call can be repeated. A ``command_timeout`` of the connection does not cut migrations short.

    Args:
        connection: A connection to the database; it is left as it was. Inside a transaction (of the isolation
            level READ COMMITTED) the migrations become part of it.
        schema: The schema that holds the tables; None to look along the search path.
        target: The version to end at; None for the newest, 0 to go back to the tables of pg-scheduler 0.2.x.

    Returns:
        The versions that were applied or taken back, in that order; empty if nothing was to be done.

    Raises:
        ConfigurationError: The target is no version of this release, or the schema's name is impossible.
        SchemaMissingError: No schema was given and the search path names none that exists.
        SchemaTooNewError: A newer release has migrated this database, to what this one cannot work with, or
            would have to take back; nothing was changed.
        MigrationChangedError: A migration was applied in another form than the one shipped; nothing was
            changed.

    Example:
        >>> await migrate(connection, schema="jobs")  # doctest: +SKIP
        [1, 2, 3]
    """
    return await apply(connection, shipped_migrations(), schema=schema, target=target)


async def apply(
    connection: AnyConnection,
    shipped: Iterable[Migration],
    *,
    schema: str | None = None,
    target: int | None = None,
) -> list[int]:
    """Do what ``migrate`` does, with migrations of the caller's choice."""
    home = await home_schema(connection, schema)
    for _ in range(0 if connection.is_in_transaction() else _ATTEMPTS - 1):
        # Nodes that work meanwhile lock the same tables in orders of their own.
        with suppress(asyncpg.DeadlockDetectedError):
            return await _apply(connection, shipped, home, target)
    return await _apply(connection, shipped, home, target)


async def _apply(
    connection: AnyConnection, shipped: Iterable[Migration], home: str, target: int | None
) -> list[int]:
    async with _transaction(connection):
        await connection.execute(_LOCK, *_lock_key(home), timeout=MIGRATION_TIMEOUT)
        await _prepare(connection, home)
        steps = plan(await applied_migrations(connection, home), shipped, target)
        for step in steps:
            migration = step.migration
            script = migration.up if step.up else migration.down
            await connection.execute(qualify(script, home), timeout=MIGRATION_TIMEOUT)
            if step.up:
                record = (migration.version, migration.name, migration.checksum)
                await connection.execute(qualify(_RECORD, home), *record, timeout=MIGRATION_TIMEOUT)
                if migration.needs is not None:  # from 0006 on, which makes the column
                    needs = (migration.version, migration.needs)
                    await connection.execute(qualify(_RECORD_NEEDS, home), *needs, timeout=MIGRATION_TIMEOUT)
            else:
                await connection.execute(qualify(_FORGET, home), migration.version, timeout=MIGRATION_TIMEOUT)
    if steps:
        # Statements prepared on the old columns would fail inside a transaction.
        await connection.reload_schema_state()
    return [step.migration.version for step in steps]


@asynccontextmanager
async def _transaction(connection: AnyConnection) -> AsyncIterator[None]:
    # In a stricter isolation level the snapshot would be older than the lock, and what the node before us
    # committed would be invisible.
    transaction = connection.transaction(isolation="read_committed")
    async with asyncio.timeout(MIGRATION_TIMEOUT):
        await transaction.start()
    try:
        yield
    except TimeoutError:  # who gave no answer will not give one to a ROLLBACK either
        connection.terminate()
        raise
    except BaseException:  # whatever it was, nothing of it is to stay
        with suppress(asyncpg.InterfaceError):  # a pool's connection that broke refuses every call
            if not connection.is_closed():
                async with asyncio.timeout(MIGRATION_TIMEOUT):
                    await transaction.rollback()
        raise
    async with asyncio.timeout(MIGRATION_TIMEOUT):
        await transaction.commit()


async def _prepare(connection: AnyConnection, home: str) -> None:
    # Asked first, because IF NOT EXISTS wants the right to create even when nothing is to be created.
    records = qualify("{schema}scheduler_migrations", home)
    if not await connection.fetchval(_SCHEMA_EXISTS, home, timeout=MIGRATION_TIMEOUT):
        await connection.execute(f"CREATE SCHEMA {quote_identifier(home)}", timeout=MIGRATION_TIMEOUT)
    if not await connection.fetchval(_RECORDS_EXIST, records, timeout=MIGRATION_TIMEOUT):
        await connection.execute(qualify(_CREATE_RECORDS, home), timeout=MIGRATION_TIMEOUT)


def _lock_key(schema: str) -> tuple[int, int]:
    digest = hashlib.sha256(schema.encode()).digest()
    return _LOCK_CLASS, int.from_bytes(digest[:4], "big", signed=True)
