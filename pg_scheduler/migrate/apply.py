"""Apply and revert migrations, in one transaction.

When the nodes of an application start together, all of them find the database empty. They queue on an
advisory lock. The first one migrates, and the others find nothing to do. The lock belongs to the transaction,
so it works through PgBouncer and cannot be left behind.
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

_LOCK_CLASS = 0x70677363  # "pgsc"; the second half of the key is a hash of the schema's name
MIGRATION_TIMEOUT_S = 3600.0
"""Applies to each statement: one may wait for the lock, another rewrite a table."""
_MAX_ATTEMPTS = 5

_TAKE_LOCK = "SELECT pg_catalog.pg_advisory_xact_lock($1::integer, $2::integer)"
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
_INSERT_RECORD = "INSERT INTO {schema}scheduler_migrations (version, name, checksum) VALUES ($1, $2, $3)"
_SET_NEEDS = "UPDATE {schema}scheduler_migrations SET needs = $2 WHERE version = $1"
_DELETE_RECORD = "DELETE FROM {schema}scheduler_migrations WHERE version = $1"


async def migrate(
    connection: AnyConnection, *, schema: str | None = None, target: int | None = None
) -> list[int]:
    """Migrate the tables up or down to a version, completely or not at all.

    Any number of nodes may call this at once, also while other nodes run jobs. A given schema is created if
    it is missing. The schema of a newer release is left unchanged if this release can use it.

    An upgrade may lock ``scheduled_jobs`` exclusively until it is done, and the first one rewrites the rows
    of a pg-scheduler 0.2.x database. The session's ``lock_timeout`` and ``statement_timeout`` apply. Set
    ``lock_timeout`` if queueing behind a long transaction would block the application, and no
    ``statement_timeout`` that a large table would exceed. After a timeout nothing has changed, and the call
    can be repeated. A ``command_timeout`` of the connection does not apply.

    Args:
        connection: A connection to the database; its settings are kept. Inside a transaction, whose isolation
            level must be READ COMMITTED, the migrations become part of it.
        schema: The schema of the tables; None to search for it along the search path.
        target: The version to migrate to; None for the newest, 0 for the tables of pg-scheduler 0.2.x.

    Returns:
        The versions that were applied or reverted, in that order; empty if there was nothing to do.

    Raises:
        ConfigurationError: This release has no such target version, or the schema's name is invalid.
        SchemaMissingError: No schema was given, and no schema of the search path exists.
        SchemaTooNewError: A newer release has applied a migration that this release cannot use, or would have
            to revert; nothing was changed.
        MigrationChangedError: An applied migration differs from the shipped one; nothing was changed.

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
    """Migrate to a version with the given migrations, as `migrate` does with the shipped ones."""
    home = await home_schema(connection, schema)
    for _ in range(0 if connection.is_in_transaction() else _MAX_ATTEMPTS - 1):
        # Nodes that run jobs meanwhile lock the same tables in other orders.
        with suppress(asyncpg.DeadlockDetectedError):
            return await _apply(connection, shipped, home, target)
    return await _apply(connection, shipped, home, target)


async def _apply(
    connection: AnyConnection, shipped: Iterable[Migration], home: str, target: int | None
) -> list[int]:
    async with _transaction(connection):
        await connection.execute(_TAKE_LOCK, *_lock_key(home), timeout=MIGRATION_TIMEOUT_S)
        await _prepare(connection, home)
        steps = plan(await applied_migrations(connection, home), shipped, target)
        for step in steps:
            migration = step.migration
            script = migration.up if step.up else migration.down
            await connection.execute(qualify(script, home), timeout=MIGRATION_TIMEOUT_S)
            if step.up:
                record = (migration.version, migration.name, migration.checksum)
                await connection.execute(qualify(_INSERT_RECORD, home), *record, timeout=MIGRATION_TIMEOUT_S)
                if migration.needs is not None:  # migration 0006 adds the column
                    needs = (migration.version, migration.needs)
                    await connection.execute(qualify(_SET_NEEDS, home), *needs, timeout=MIGRATION_TIMEOUT_S)
            else:
                await connection.execute(
                    qualify(_DELETE_RECORD, home), migration.version, timeout=MIGRATION_TIMEOUT_S
                )
    if steps:
        # Statements that were prepared for the old columns would fail inside a transaction.
        await connection.reload_schema_state()
    return [step.migration.version for step in steps]


@asynccontextmanager
async def _transaction(connection: AnyConnection) -> AsyncIterator[None]:
    # With a stricter isolation level the snapshot would be older than the lock, and hide the migrations that
    # the previous holder of the lock has committed.
    transaction = connection.transaction(isolation="read_committed")
    async with asyncio.timeout(MIGRATION_TIMEOUT_S):
        await transaction.start()
    try:
        yield
    except TimeoutError:  # a connection that timed out will not answer a ROLLBACK either
        connection.terminate()
        raise
    except BaseException:  # any failure, cancellation included, must leave nothing behind
        with suppress(asyncpg.InterfaceError):  # raised by a broken connection of a pool
            if not connection.is_closed():
                async with asyncio.timeout(MIGRATION_TIMEOUT_S):
                    await transaction.rollback()
        raise
    async with asyncio.timeout(MIGRATION_TIMEOUT_S):
        await transaction.commit()


async def _prepare(connection: AnyConnection, home: str) -> None:
    # Queried first, because IF NOT EXISTS requires the privilege to create in any case.
    records = qualify("{schema}scheduler_migrations", home)
    if not await connection.fetchval(_SCHEMA_EXISTS, home, timeout=MIGRATION_TIMEOUT_S):
        await connection.execute(f"CREATE SCHEMA {quote_identifier(home)}", timeout=MIGRATION_TIMEOUT_S)
    if not await connection.fetchval(_RECORDS_EXIST, records, timeout=MIGRATION_TIMEOUT_S):
        await connection.execute(qualify(_CREATE_RECORDS, home), timeout=MIGRATION_TIMEOUT_S)


def _lock_key(schema: str) -> tuple[int, int]:
    digest = hashlib.sha256(schema.encode()).digest()
    return _LOCK_CLASS, int.from_bytes(digest[:4], "big", signed=True)
