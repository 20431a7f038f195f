"""Build indexes while jobs run: those that migrations leave out on large tables, and those that were dropped.

A migration is one transaction, which would lock the table until the index is built. ``CREATE INDEX
CONCURRENTLY`` blocks no job, but cannot be part of a transaction. If it fails, it leaves an invalid index
behind, which the next call replaces. A valid index of the same name, but with another definition, is renamed
first and dropped last, so that statements never lack both.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from pg_scheduler.base.sqlbuiltins import qualify_builtins
from pg_scheduler.base.sqltext import qualify
from pg_scheduler.database.migrations.plan import shipped_migrations
from pg_scheduler.database.migrations.shape import LATER_INDEXES, index_statements, missing_shipped_indexes
from pg_scheduler.database.migrations.verify import QUERY_TIMEOUT_S, home_schema, read_state
from pg_scheduler.database.options import HELD_RESET
from pg_scheduler.database.session import prepare_to_hold
from pg_scheduler.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pg_scheduler.database.migrations.records import AnyConnection


BUILD_TIMEOUT_S: Final = 86_400.0
"""A build reads the table twice, and waits for every older transaction."""

LOCK_POLL_S: Final = 1.0
"""Seconds between two attempts to get the lock. A session that waited for it in a statement would hold a
snapshot, for whose end the build would wait."""

_LOCK_CLASS = 0x70677369  # "pgsi"; the second half of the key is a hash of the schema's name
_TRY_LOCK = "SELECT pg_catalog.pg_try_advisory_lock($1::integer, $2::integer)"
_UNLOCK = "SELECT pg_catalog.pg_advisory_unlock($1::integer, $2::integer)"
_PROGRESS: Final = qualify_builtins("""
    SELECT phase,
        CASE WHEN blocks_total > 0 THEN blocks_done WHEN tuples_total > 0 THEN tuples_done
            ELSE lockers_done END,
        CASE WHEN blocks_total > 0 THEN blocks_total WHEN tuples_total > 0 THEN tuples_total
            ELSE lockers_total END
    FROM pg_catalog.pg_stat_progress_create_index
    WHERE pid = $1::integer
""")
_VALID: Final = qualify_builtins("""
    SELECT indisvalid FROM pg_catalog.pg_index
    WHERE indexrelid = to_regclass($1::text)
""")
_DROP = "DROP INDEX CONCURRENTLY IF EXISTS "
_REPLACED: Final = "_replaced"
"""Ends the name of a valid index of another definition until the right one is built."""


async def missing_indexes(connection: AnyConnection, *, schema: str | None = None) -> list[str]:
    """Return the names of the indexes that ``build_indexes`` would build.

    There are two kinds. On a table of more than 100,000 rows, the migrations leave out some indexes; without
    these, lists of unsuccessful jobs read more rows. And on tables of this release, an index may have been
    dropped, or may be invalid; without any of these, no worker starts.

    Args:
        connection: A connection to the database.
        schema: The schema of the tables; None to search for it along the search path.

    Raises:
        SchemaMissingError: There are no tables.
    """
    home = await home_schema(connection, schema)
    return await _missing_indexes(connection, home)


class BuildProgress(NamedTuple):
    """The progress of the build of an index.

    Attributes:
        phase: The phase of the build, as PostgreSQL names it.
        done: The blocks, rows or sessions that this phase is done with.
        total: All of these; 0 if that is unknown.
    """

    phase: str
    done: int
    total: int


async def build_progress(connection: AnyConnection, pid: int) -> BuildProgress | None:
    """Return the progress of the index that another session builds; None if it builds none.

    Args:
        connection: Another connection of the role that builds it.
        pid: The process of that session, as ``get_server_pid()`` returns it.
    """
    row = await connection.fetchrow(_PROGRESS, pid, timeout=QUERY_TIMEOUT_S)
    return None if row is None else BuildProgress(*row)


async def build_indexes(connection: AnyConnection, *, schema: str | None = None) -> list[str]:
    """Build the indexes that are missing, while jobs run, and replace those that are invalid.

    Of several calls at once, one builds and the others wait for it. A build waits for every transaction that
    is older. If it fails or is cancelled, call again. The session's ``statement_timeout`` applies; a
    ``command_timeout`` of the connection does not.

    Args:
        connection: A connection to the database outside of a transaction, as the owner of the tables, and not
            through a pooler in transaction mode.
        schema: The schema of the tables; None to search for it along the search path.

    Returns:
        The names of the indexes that were built; empty if there was nothing to do.

    Raises:
        ConfigurationError: The connection is in a transaction.
        SchemaMissingError: There are no tables.

    Example:
        >>> await build_indexes(connection, schema="jobs")  # doctest: +SKIP
        ['scheduled_jobs_unsuccessful']
    """
    if connection.is_in_transaction():
        raise ConfigurationError(
            "build_indexes() cannot be part of a transaction; pass a connection without an open one"
        )
    home = await home_schema(connection, schema)
    built = []
    async with _only_builder(connection, home):
        for name in await _missing_indexes(connection, home):
            await _build(connection, home, name)
            built.append(name)
    return built


async def _build(connection: AnyConnection, home: str, name: str) -> None:
    """Build an index.

    A valid index of this name may exist with another definition. It gets another name, under which statements
    still use it, and is dropped when the new one is built.
    """
    index = qualify("{schema}", home) + name
    # This is None if no index has the name.
    is_valid = await connection.fetchval(_VALID, index, timeout=QUERY_TIMEOUT_S)
    if is_valid:
        # A build that failed may have left an index of the other name.
        await connection.execute(f"{_DROP}{index}{_REPLACED}", timeout=BUILD_TIMEOUT_S)
        await connection.execute(f"ALTER INDEX {index} RENAME TO {name}{_REPLACED}", timeout=BUILD_TIMEOUT_S)
    # A build that failed has left an invalid index.
    elif is_valid is False:
        await connection.execute(_DROP + index, timeout=BUILD_TIMEOUT_S)
    statement = qualify_builtins(index_statements()[name])
    await connection.execute(qualify(statement, home), timeout=BUILD_TIMEOUT_S)
    # The new index exists, so the one with another definition is not used any more.
    await connection.execute(f"{_DROP}{index}{_REPLACED}", timeout=BUILD_TIMEOUT_S)


async def _missing_indexes(connection: AnyConnection, home: str) -> list[str]:
    """Return the names of the indexes to build.

    In tables of another release, only those count that the migrations leave out on large tables.
    """
    state = await read_state(connection, home, shipped_migrations())
    names = missing_shipped_indexes(state.parts)
    return names if state.is_newest else [name for name in names if name in LATER_INDEXES]


@asynccontextmanager
async def _only_builder(connection: AnyConnection, home: str) -> AsyncIterator[None]:
    """Hold an advisory lock for the schema, so that only one session builds indexes.

    The index that a session is building looks like an invalid one, which another session would drop.
    """
    digest = hashlib.sha256(home.encode()).digest()
    key = _LOCK_CLASS, int.from_bytes(digest[:4], "big", signed=True)
    while not await connection.fetchval(_TRY_LOCK, *key, timeout=QUERY_TIMEOUT_S):  # noqa: ASYNC110 - a lock raises no event
        await asyncio.sleep(LOCK_POLL_S)
    has_own_session = False
    try:
        # A build sends nothing for a long time, in which a firewall may forget the connection.
        ownership = await prepare_to_hold(connection, QUERY_TIMEOUT_S)
        has_own_session = ownership.is_own
        yield
    finally:
        if not connection.is_closed():
            await connection.fetchval(_UNLOCK, *key, timeout=QUERY_TIMEOUT_S)
            if has_own_session:
                await connection.execute(HELD_RESET, timeout=QUERY_TIMEOUT_S)
