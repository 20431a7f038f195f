"""Check single connections, limit the time of their statements, and close them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from types import MethodType
from typing import Final, NamedTuple, TypeAlias, cast

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from pg_scheduler.base.blocking import BlockingConnection
from pg_scheduler.base.sqlbuiltins import qualify_builtins
from pg_scheduler.database.asyncpg_private import (
    count_free,
    is_initialized,
    local_port,
    open_transaction,
    probe_peer,
    server_of_pool,
)
from pg_scheduler.database.callers.adapter import adapter_for
from pg_scheduler.database.callers.connection import ForeignConnection, as_foreign
from pg_scheduler.database.faults import raise_rejected, raise_unreached, translated
from pg_scheduler.database.options import BEGIN, PROBE_INTERVAL_S, PROBES, Settings, held_settings
from pg_scheduler.errors import DatabaseUnavailableError, PoolClosedError

Connection: TypeAlias = asyncpg.Connection | PoolConnectionProxy
"""A connection of asyncpg, opened directly or by a pool, or a ForeignConnection, which stands for one."""

Record: TypeAlias = asyncpg.Record
"""A row that a statement returned."""

POOL: Final = "the address of the pool"
"""Where the address of a server comes from, for messages, if no setting has it."""

NO_TRANSACTION: Final = (
    "connection is not in a transaction, so the job would be committed at once; if another library, such as "
    "SQLAlchemy, owns the connection, pass its session or connection instead; else call the method within "
    "async with connection.transaction(), or omit connection="
)

NO_SAVEPOINT: Final = (
    "connection is in a transaction that BEGIN began, in which asyncpg sets no savepoint, and this call "
    "needs one; call it within async with connection.transaction() instead"
)


def check_connection(connection: object) -> Connection | None:
    """Return what statements run on: a connection of asyncpg or a ForeignConnection; None if None is passed.

    Raises:
        TypeError: It is no connection, or a call on it would block the event loop.
        ValueError: It is an asyncpg connection that is not in a transaction.
    """
    if connection is None:
        return None
    if isinstance(connection, BlockingConnection):
        return cast("Connection", ForeignConnection(adapter_for(connection.connection, is_async=False)))
    if isinstance(connection, (asyncpg.Connection, PoolConnectionProxy)):
        # A connection that has ended is returned. Its first statement raises the error.
        if is_open(connection) and not connection.is_in_transaction():
            raise ValueError(NO_TRANSACTION)
        return connection
    if isinstance(connection, ForeignConnection):
        return cast("Connection", connection)
    return cast("Connection", ForeignConnection(adapter_for(connection, is_async=True)))


def check_savepoints(connection: Connection) -> None:
    """Raise ValueError if asyncpg sets no savepoint in the transaction of a caller."""
    if not can_set_savepoints(connection):
        raise ValueError(NO_SAVEPOINT)


def can_set_savepoints(connection: Connection) -> bool:
    """Return whether a savepoint can be set: not if a statement of the caller began the transaction.

    It is True for a connection that has ended, whose next statement raises the error.
    """
    if as_foreign(connection) is not None or not is_open(connection):
        return True
    # This is True, instead of an object, for a transaction that asyncpg did not begin.
    return open_transaction(connection) is not True


def transaction_of(connection: Connection) -> Callable[[], object] | None:
    """Return a function that returns the open transaction of a connection; None if no function can.

    The functions for the same connection of asyncpg are equal.
    """
    foreign = as_foreign(connection)
    if foreign is not None:
        return foreign.transaction_of
    return MethodType(open_transaction, connection)


def open_transaction_of(connection: Connection) -> object:
    """Return the open transaction of a connection, to compare it with a later one.

    None if the library of the connection does not tell which transaction is open; False if none is.
    """
    read = transaction_of(connection)
    if read is None:
        return None
    with translated():
        return read()


def check_pool(pool: asyncpg.Pool) -> None:
    """Raise if the pool cannot give connections, where a retry would not help.

    Raises:
        PoolClosedError: The pool is closed, and never opens again.
        RuntimeError: The pool was not awaited.
    """
    if pool.is_closing():
        raise PoolClosedError(
            "the pool is closed, as at the end of Scheduler.connect(), but the scheduler still uses it; call "
            "await scheduler.shutdown() before pool.close()"
        )
    if not is_initialized(pool):
        raise RuntimeError(
            "the pool is not initialized; write pool = await asyncpg.create_pool(...), "
            "or async with asyncpg.create_pool(...) as pool:"
        )


async def take_from(pool: asyncpg.Pool, timeout_s: float) -> PoolConnectionProxy:
    """Take a connection from the pool.

    Raises:
        PoolClosedError: The pool is closed, and never opens again.
        RuntimeError: The pool was not awaited.
    """
    try:
        return await pool.acquire(timeout=timeout_s)
    except Exception as error:
        # An InterfaceError has many causes. If the pool is the cause, check_pool() raises a clearer error.
        if isinstance(error, asyncpg.InterfaceError):
            check_pool(pool)
        # If a connection is free, the timeout is that of opening or preparing it.
        if isinstance(error, TimeoutError) and count_free(pool) <= 0:
            raise TimeoutError(
                f"no connection of the pool (max_size={pool.get_max_size()}) was free for {timeout_s:g} s; "
                "give connections back sooner, pass connection= to calls within completing() and "
                "steps.transaction(), or make the pool larger"
            ) from error
        raise_unreached(error, POOL, partial(server_of_pool, pool))
        raise_rejected(error)
        raise


async def release_to(pool: asyncpg.Pool, connection: PoolConnectionProxy, timeout_s: float) -> None:
    """Return a connection to the pool, which resets it."""
    if not is_open(connection):
        # asyncpg 0.29 does not tell the pool that a connection has ended within a call. The pool would count
        # it as used for good, and wait for it when it is closed.
        terminate(connection)
    try:
        await pool.release(connection, timeout=timeout_s)
    except Exception as error:
        raise_rejected(error)
        raise


def is_open(connection: Connection) -> bool:
    """Return whether a held connection is open.

    The pool makes a proxy of a connection for each use. The proxy of a broken one rejects every call.
    """
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False


async def is_own_session(connection: Connection, timeout_s: float) -> bool:
    """Return whether the session belongs to this connection. Behind a pooler the process ids differ.

    PgBouncer gives each client a process id of its own in every mode. So session mode, in which the session
    would stay the same, looks like transaction mode.
    """
    connected_pid = connection.get_server_pid()
    backend_pid: int = await connection.fetchval("SELECT pg_catalog.pg_backend_pid()", timeout=timeout_s)
    return backend_pid == connected_pid


_HOLD: Final = qualify_builtins("""
    SELECT count(set_config(held.name, held.setting, false)) AS settings, inet_client_port() AS port
    FROM (VALUES ('name', 'setting')) AS held (name, setting)
    WHERE pg_backend_pid() = 'process'
""")
"""The statement of `prepare_to_hold()`, with a place for the settings and for the process of the session."""


class Ownership(NamedTuple):
    """Whose session a connection uses.

    Attributes:
        is_own: Whether the session belongs to the connection; see ``is_own_session()``.
        is_direct: Whether the server sees this process's own end of the connection, and not that of a proxy.
    """

    is_own: bool
    is_direct: bool


async def prepare_to_hold(
    connection: Connection,
    timeout_s: float,
    *,
    interval_s: int = PROBE_INTERVAL_S,
    settings: Settings = (),
) -> Ownership:
    """Prepare a session that is held for long: it ends soon after its process or its network, and not before.

    Both ends probe the other one. That keeps the entry of the connection in firewalls, too, which forget idle
    ones. One statement also makes further settings of the session, finds out whose session it is, and leaves
    that of a pooler unchanged.

    Args:
        connection: The connection.
        timeout_s: Limit for the statement.
        interval_s: Seconds without a packet, and between two probes.
        settings: Further settings of the session.
    """
    pairs = (*held_settings(interval_s).items(), *settings)
    rows = ", ".join(f"('{name}', '{value}')" for name, value in pairs)
    # The process that the connection was opened to. Only in a session of this process are the settings made.
    process = f"'{connection.get_server_pid()}'"
    query = _HOLD.replace("('name', 'setting')", rows).replace("'process'", process)
    with terminate_unanswered(connection):
        # Behind a pooler the process of the session is another one, so nothing is set, and the count is 0.
        (row,) = await connection.fetch(query, timeout=timeout_s)
        if row["settings"]:
            probe_peer(connection, interval_s, PROBES)
    # The port is NULL for a Unix-domain socket.
    return Ownership(bool(row["settings"]), row["port"] == local_port(connection))


@contextmanager
def noticing_end(connection: Connection, call: Callable[[], None]) -> Iterator[None]:
    """Call a function if the session ends within the block."""

    def notice(_connection: object) -> None:
        """Call the function without the connection, which asyncpg passes to a listener."""
        call()

    connection.add_termination_listener(notice)
    try:
        yield
    finally:
        if is_open(connection):
            connection.remove_termination_listener(notice)


def terminate(connection: Connection) -> None:
    """Close a connection without waiting for the server.

    Call it for a connection that has ended, too. asyncpg may not have called its termination listeners nor
    removed its other listeners yet, and does so now.
    """
    with suppress(asyncpg.InterfaceError):  # the pool's proxy of one that was released rejects every call
        connection.terminate()


@asynccontextmanager
async def transact(connection: Connection, timeout_s: float) -> AsyncIterator[None]:
    """Run a transaction, or a savepoint within one, with a timeout for each of its statements."""
    if (foreign := as_foreign(connection)) is not None:
        async with foreign.savepoint():
            yield
        return
    # The default of the role may be another level. There, of two jobs that end at the same instant, neither
    # transaction sees the end of the other, and a job that waits for both is not unblocked. A savepoint has
    # the level of its transaction.
    transaction = connection.transaction(
        isolation=None if connection.is_in_transaction() else "read_committed"
    )
    # This is not wait_for(), which may run the call in a task of its own. If the connection ends before the
    # first step of that task, asyncpg fails.
    async with asyncio.timeout(timeout_s):
        await transaction.start()
    try:
        yield
    except BaseException:  # roll back whatever happened, cancellation included
        if is_open(connection):
            async with asyncio.timeout(timeout_s):
                await transaction.rollback()
        raise
    async with asyncio.timeout(timeout_s):
        await transaction.commit()


@asynccontextmanager
async def transact_with(connection: Connection, settings: str, timeout_s: float) -> AsyncIterator[None]:
    """Run a transaction with settings of its own, which begin it in one round trip, without savepoints."""
    try:
        with terminate_unanswered(connection):
            await connection.execute(f"{BEGIN}; {settings}", timeout=timeout_s)
            yield
    except BaseException:  # roll back whatever happened, cancellation included
        if is_open(connection):
            await connection.execute("ROLLBACK", timeout=timeout_s)
        raise
    await connection.execute("COMMIT", timeout=timeout_s)


@contextmanager
def terminate_unanswered(connection: Connection) -> Iterator[None]:
    """Terminate the connection if a statement in the block times out or is cancelled.

    A connection that timed out will not answer a reset or a ROLLBACK either. A cancelled caller does not wait
    for a ROLLBACK: the server may be the reason for its cancellation.
    """
    try:
        yield
    except (TimeoutError, DatabaseUnavailableError, asyncio.CancelledError) as error:
        # A DatabaseUnavailableError may be a translated timeout. Any other one is an answer of the server,
        # such as a lock timeout, or the end of the connection.
        is_translated_timeout = isinstance(error.__cause__, TimeoutError)
        if not isinstance(error, DatabaseUnavailableError) or is_translated_timeout:
            terminate(connection)
        raise
