"""Open every connection and pool of a DSN, with its options translated for asyncpg.

Nothing else in this library calls ``asyncpg.connect()`` or ``asyncpg.create_pool()`` with a DSN.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import asyncpg

from pg_scheduler.base.dsn import server_in
from pg_scheduler.base.dsn_options import connect_arguments
from pg_scheduler.database.asyncpg_private import caches_statements, connect_as_pool
from pg_scheduler.database.faults import LOST_STATEMENTS, reaching
from pg_scheduler.database.fork import inherited_sockets
from pg_scheduler.database.session import Connection, is_own_session, release_to, terminate

PROBE_TIMEOUT_S: Final = 5.0
"""Longest wait for another session of a pooler, which may have a single one."""

MAX_SESSIONS: Final = 4
"""The most sessions of a pooler that the probe occupies, so that the pooler has to take another one."""

PROCESS_ID: Final = "SELECT pg_catalog.pg_backend_pid()"


def create_pool(dsn: str | None, name: str, **settings: Any) -> asyncpg.Pool:
    """Return a pool of asyncpg that is not awaited yet.

    Args:
        dsn: The connection string; None for the variables and files of libpq.
        name: The setting that it comes from, for messages.
        **settings: Arguments of ``asyncpg.create_pool()``, over which the options of the DSN have precedence.

    Raises:
        ConfigurationError: An option of the DSN, a service or a file of certificates cannot be used.
    """
    address, arguments = _arguments(dsn, name, settings)
    create: Any = asyncpg.create_pool
    pool: asyncpg.Pool = create(address, **arguments)
    return pool


async def open_own_pool(dsn: str | None, name: str, **settings: Any) -> asyncpg.Pool:
    """Return an open pool that works through a pooler such as PgBouncer too: there it caches no statements.

    The parameters and errors are those of `create_pool()`.
    """
    with reaching(name, partial(server_in, dsn, name)):
        pool = await create_pool(dsn, name, **settings)
    try:
        if not await loses_statements(pool):
            return pool
    except BaseException:  # whatever it was, no caller has the pool to close it
        pool.terminate()
        raise
    # The setting cannot be changed in an open pool.
    pool.terminate()
    return await create_pool(dsn, name, **{**settings, "statement_cache_size": 0})


async def open_connection_to(dsn: str | None, name: str, **settings: Any) -> asyncpg.Connection:
    """Open a connection. The parameters and errors are those of `create_pool()`."""
    address, arguments = _arguments(dsn, name, settings)
    connect: Any = asyncpg.connect
    with reaching(name, partial(server_in, dsn, name)):
        connection: asyncpg.Connection = await connect(address, **arguments)
    return connection


async def loses_statements(pool: asyncpg.Pool) -> bool:
    """Return whether prepared statements of the pool fail, as behind a pooler in transaction mode."""
    connection = await pool.acquire(timeout=PROBE_TIMEOUT_S)
    try:
        await probe_statements(pool, connection)
    except LOST_STATEMENTS:
        return True
    finally:
        await release_to(pool, connection, PROBE_TIMEOUT_S)
    return False


async def probe_statements(pool: asyncpg.Pool, connection: Connection) -> None:
    """Use a prepared statement in two sessions of a pooler, if there is one.

    A pooler in transaction mode may give a connection another session for its next transaction. To bring that
    about, this opens other connections, whose transactions occupy the sessions that are free. A connection
    with a session of its own costs one query.

    Args:
        pool: The pool.
        connection: One of its connections.

    Raises:
        asyncpg.PostgresError: The statement does not exist there; one of `LOST_STATEMENTS`.
    """
    if not caches_statements(pool) or await is_own_session(connection, PROBE_TIMEOUT_S):
        return
    session = await connection.fetchval(PROCESS_ID, timeout=PROBE_TIMEOUT_S)
    sessions: list[asyncpg.Connection] = []
    try:
        while len(sessions) < MAX_SESSIONS:
            sessions.append(await inherited_sockets.open(partial(connect_as_pool, pool)))
            await sessions[-1].execute("BEGIN", timeout=PROBE_TIMEOUT_S)
            # This statement is prepared in the first session, and has now been executed in another one.
            if await connection.fetchval(PROCESS_ID, timeout=PROBE_TIMEOUT_S) != session:
                return
    except TimeoutError:
        # The pooler has no other session, so no statement is lost. This connection may still wait for one.
        terminate(connection)
    finally:
        for other in sessions:
            terminate(other)


def _arguments(dsn: str | None, name: str, settings: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the DSN and the keyword arguments for asyncpg."""
    address, translated = connect_arguments(dsn, name)
    return address, {**settings, **translated}
