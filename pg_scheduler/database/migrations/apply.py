"""Apply and revert migrations, in one transaction.

When the nodes of an application start together, all of them find the database empty. They queue on an
advisory lock. The first one migrates, and the others find nothing to do. The lock belongs to the transaction,
so it works through PgBouncer and cannot be left behind. The search path ``pg_catalog`` belongs to it too: the
migrations do not qualify built-in names, and no other role may replace one.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import asyncpg

from pg_scheduler.base.sqlbuiltins import qualify_builtins
from pg_scheduler.base.sqltext import qualify
from pg_scheduler.base.text.remedies import execute
from pg_scheduler.database.migrations.engine import check_encoding
from pg_scheduler.database.migrations.plan import Migration, Step, plan, shipped_migrations
from pg_scheduler.database.migrations.records import MIGRATION_TIMEOUT_S, RECORDS, create_records
from pg_scheduler.database.migrations.repair import create_routines, recreate_tables, restore_records
from pg_scheduler.database.migrations.shape import ADDED_LATER, check_relations, missing_shipped_indexes
from pg_scheduler.database.migrations.sql import UNPIN, create_schema, lock, step_statements
from pg_scheduler.database.migrations.verify import (
    check_shape,
    differing_routines,
    has_table,
    home_schema,
    missing_tables,
    read_state,
)
from pg_scheduler.database.options import PROBED_TRANSACTION
from pg_scheduler.errors import SchemaMismatchError
from pg_scheduler.events.log import record_fields

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from pg_scheduler.database.migrations.records import AnyConnection


logger = logging.getLogger("pg_scheduler")

_MAX_ATTEMPTS = 5

_MISFIT_ERRORS = (
    asyncpg.DuplicateColumnError,
    asyncpg.DuplicateObjectError,
    asyncpg.DuplicateTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedObjectError,
)

_SCHEMA_EXISTS = qualify_builtins("SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)")
_DELETE_RECORDS = "DELETE FROM {schema}scheduler_migrations"


async def migrate(
    connection: AnyConnection, *, schema: str | None = None, target: int | None = None
) -> list[int]:
    """Migrate the tables up or down to a version, completely or not at all.

    A table that the applied migrations created and that was dropped since is created again, empty. So are the
    records of the migrations, if all tables are up to date, and functions and triggers that are missing or
    have another text, as after ALTER SCHEMA ... RENAME. A warning in the log names them.

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
        ConfigurationError: This release has no such target version, the schema's name is invalid, or the
            encoding of the database is SQL_ASCII.
        SchemaMissingError: No schema was given, and no schema of the search path exists.
        SchemaTooNewError: A newer release has applied a migration that this release cannot use, or would have
            to revert; nothing was changed.
        MigrationChangedError: An applied migration differs from the shipped one; nothing was changed.
        SchemaMismatchError: A table differs from the one that the migrations make; nothing was changed.

    Example:
        >>> applied = await migrate(connection, schema="jobs")  # doctest: +SKIP
        >>> await migrate(connection, schema="jobs")  # doctest: +SKIP
        []
        >>> await migrate(connection, schema="jobs", target=0) == applied[::-1]  # doctest: +SKIP
        True
    """
    return await apply(connection, shipped_migrations(), schema=schema, target=target)


async def apply(
    connection: AnyConnection,
    shipped: Iterable[Migration],
    *,
    schema: str | None = None,
    target: int | None = None,
    on_step: Callable[[Step], None] = lambda _: None,
) -> list[int]:
    """Migrate to a version with the given migrations, as `migrate` does with the shipped ones.

    ``on_step`` is called before each of them, again if the transaction is repeated.
    """
    home = await home_schema(connection, schema)
    migrations = tuple(shipped)
    # The transaction of a caller cannot be repeated: a deadlock ends it.
    repeated_attempts = 0 if connection.is_in_transaction() else _MAX_ATTEMPTS - 1
    for _ in range(repeated_attempts):
        # Nodes that run jobs meanwhile lock the same tables in other orders.
        with suppress(asyncpg.DeadlockDetectedError):
            return await _apply(connection, migrations, home, target, on_step)
    return await _apply(connection, migrations, home, target, on_step)


async def _apply(
    connection: AnyConnection,
    shipped: Sequence[Migration],
    home: str,
    target: int | None,
    on_step: Callable[[Step], None],
) -> list[int]:
    """Migrate in one transaction, and log what was created again and which indexes are still missing."""
    repairs: list[str] = []
    async with _transaction(connection):
        # If the machine is lost meanwhile, its locks on the tables would stop every worker.
        await connection.execute(PROBED_TRANSACTION, timeout=MIGRATION_TIMEOUT_S)
        await connection.execute(lock(home), timeout=MIGRATION_TIMEOUT_S)
        is_new = await _prepare(connection, home)
        state = await read_state(connection, home, shipped)
        # Migrations that are still missing may add what is ignored here. check_shape() looks at it below.
        check_relations(state.parts, home, ignored=ADDED_LATER)
        # Without records, either no migration was ever applied, or the table of the records was lost.
        if not state.applied and await restore_records(
            connection, home, shipped, state.tables, is_new=is_new
        ):
            state = await read_state(connection, home, shipped)
            repairs.append(f"the records in {RECORDS}")
        steps = plan(state.applied, shipped, target)
        # A database with an unsuitable encoding can still be migrated down.
        if any(step.up for step in steps):
            await check_encoding(connection)
        if missing := missing_tables(state, shipped):
            applied = [migration for migration in shipped if migration.version in state.applied]
            await recreate_tables(connection, home, applied, missing)
            repairs += missing
        for step in steps:
            on_step(step)
            await _execute(connection, home, step)
        # The state was read before these changes.
        if steps or repairs:
            state = await read_state(connection, home, shipped)
        check_shape(state, home)
        if routines := differing_routines(state, home):
            await create_routines(connection, home, routines)
            repairs += map(str, routines)
        await connection.execute(UNPIN, timeout=MIGRATION_TIMEOUT_S)
    if steps or repairs:
        # Statements that were prepared for the old columns would fail inside a transaction.
        await connection.reload_schema_state()
    if repairs:
        logger.warning(
            "recreated what was missing in schema %r: %s; lost rows and privileges are not restored",
            home,
            ", ".join(repairs),
            extra=record_fields(),
        )
    # Migrations that add an index leave it out on large tables, where its build would block jobs for long.
    is_newest = max(state.applied, default=0) == shipped[-1].version
    if steps and is_newest and (missing := missing_shipped_indexes(state.parts)):
        logger.warning(
            "the migrations left out on the large tables of schema %r: %s; lists of jobs are slow until "
            "pg_scheduler.migrate.build_indexes(connection) has built them, without blocking jobs",
            home,
            ", ".join(missing),
            extra=record_fields(),
        )
    return [step.migration.version for step in steps]


@asynccontextmanager
async def _transaction(connection: AnyConnection) -> AsyncIterator[None]:
    """Run the block in a transaction, with a time limit for its begin and for its end."""
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


async def _execute(connection: AnyConnection, home: str, step: Step) -> None:
    """Apply or revert one migration, and record it.

    Raises:
        SchemaMismatchError: The migration creates an object that exists, or changes one that is missing.
    """
    migration = step.migration
    try:
        await connection.execute("\n".join(step_statements(step, home)), timeout=MIGRATION_TIMEOUT_S)
    except _MISFIT_ERRORS as error:
        command = qualify(_DELETE_RECORDS, home)
        raise SchemaMismatchError(
            f"migration {migration.version:04} ({migration.name}) does not fit the tables in schema "
            f"{home!r}: {error}",
            execute(
                command,
                before="if its record is lost, start() restores all records after the owner of the table "
                "executes:",
            ),
        ) from error


async def _prepare(connection: AnyConnection, home: str) -> bool:
    """Create the schema and the table of the records, and return whether that table is new."""
    # Queried first, because IF NOT EXISTS requires the privilege to create in any case.
    if not await connection.fetchval(_SCHEMA_EXISTS, home, timeout=MIGRATION_TIMEOUT_S):
        await connection.execute(create_schema(home), timeout=MIGRATION_TIMEOUT_S)
    if await has_table(connection, home, RECORDS):
        return False
    await connection.execute(create_records(home), timeout=MIGRATION_TIMEOUT_S)
    return True
