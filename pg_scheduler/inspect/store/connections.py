"""Connections for people: read-only transactions on a pool, and connections by a DSN."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import asyncpg

from pg_scheduler.base.dsn import server_in
from pg_scheduler.base.sqltext import quote_identifier
from pg_scheduler.base.threads import resolve_in_threads
from pg_scheduler.database.faults import connecting, reading_dsn, translated
from pg_scheduler.database.opening import create_pool, open_connection_to, open_own_pool
from pg_scheduler.database.options import TRANSACTION_SETTINGS, ConnectionOptions
from pg_scheduler.database.pool import Connections
from pg_scheduler.database.session import Connection, transact_with

ANSWER_MARGIN_S: Final = 3.0
"""Seconds by which a client waits longer for an answer than the server works on it."""

VERIFY_LOCK_TIMEOUT_MS: Final = 5000
"""Longest wait for the lock of a table while the schema is verified."""

CONNECT_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 5.0
MAX_POOL_SIZE: Final = 2
NAME_OF_DSN: Final = "the DSN"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """The settings for the reads of an Inspector.

    Attributes:
        connections: The maximum number of connections that it uses at the same time.
        statement_timeout_s: Seconds after which the server cancels a statement.
        application_name: The name of its sessions in ``pg_stat_activity`` while they read.
    """

    connections: int = 2
    statement_timeout_s: float = 2.0
    application_name: str = "pg_scheduler inspector"


class ReadingConnections(Connections):
    """Check out connections for read-only transactions.

    Every setting is local to its transaction. So the pool may be that of the application, and it may lead to
    a pooler.
    """

    def __init__(self, pool: asyncpg.Pool, settings: ReadSettings) -> None:
        # The server cancels a long statement before the client stops waiting for the answer.
        timeout_s = settings.statement_timeout_s + ANSWER_MARGIN_S
        super().__init__(pool, options=ConnectionOptions(call_timeout_s=timeout_s, hot_timeout_s=timeout_s))
        self._turns = asyncio.Semaphore(settings.connections)
        self._begin = (
            "SET TRANSACTION READ ONLY;"
            f" SET LOCAL statement_timeout = {round(settings.statement_timeout_s * 1000)};"
            f" SET LOCAL application_name = {quote_identifier(settings.application_name)};"
            f" {TRANSACTION_SETTINGS}"
        )

    @asynccontextmanager
    async def acquire(self, *, reserved: bool = False) -> AsyncIterator[Connection]:  # noqa: ARG002 - a worker has no part in it
        """Yield a connection in a read-only transaction."""
        timeout_s = self.options.call_timeout_s
        # The pool may be that of the application, so only some of its connections are used at once.
        with translated():
            async with asyncio.timeout(timeout_s):
                await self._turns.acquire()
        try:
            async with (
                super().acquire() as connection,
                transact_with(connection, self._begin, timeout_s),
            ):
                yield connection
        finally:
            self._turns.release()

    def sticky(self, *, reserved: bool = False) -> AbstractAsyncContextManager[Connection]:
        """Return what ``acquire()`` returns: no connection is kept here for the next call."""
        return self.acquire(reserved=reserved)

    @asynccontextmanager
    async def transaction(
        self,
        *,
        hot: bool = False,  # noqa: ARG002 - every transaction is alike
        reserved: bool = False,
        savepoints: bool = True,  # noqa: ARG002
        lock_timeout_ms: int | None = None,  # noqa: ARG002
    ) -> AsyncIterator[Connection]:
        """Yield a connection in a read-only transaction, as ``acquire()`` does.

        The other parameters are those of `Connections`. For reads they make no difference.
        """
        async with self.acquire(reserved=reserved) as connection:
            yield connection


@asynccontextmanager
async def open_connection(
    dsn: str | None, *, application_name: str
) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Open a connection, and close it at the end.

    Errors of connecting, and errors of statements in the block, are raised as errors of this library. The DSN
    may lead to a pooler, so statements are not cached.

    Args:
        dsn: A URL; None for libpq's environment variables and files.
        application_name: The name in ``pg_stat_activity``.

    Raises:
        ConfigurationError: The DSN is invalid.
        ConnectionRejectedError: The server rejects the role, its password or the database.
        DatabaseUnavailableError: The server is unavailable.
    """
    # The name of the host is resolved in threads of the library, and not in those of the application.
    resolve_in_threads(asyncio.get_running_loop())
    with _opening(dsn):
        connection = await open_connection_to(
            dsn, NAME_OF_DSN, statement_cache_size=0, **_options(application_name)
        )
    try:
        with translated():
            yield connection
    finally:
        with translated():
            await connection.close(timeout=CLOSE_TIMEOUT_S)


@asynccontextmanager
async def open_pool(
    dsn: str | None, *, application_name: str, max_size: int = MAX_POOL_SIZE, runs_worker: bool = False
) -> AsyncIterator[asyncpg.Pool[asyncpg.Record]]:
    """Open a pool, and close it at the end. The parameters and errors are those of `open_connection()`.

    The DSN may lead to a pooler, so statements are not cached. With ``runs_worker`` they are cached, unless
    the DSN leads to a pooler.
    """
    resolve_in_threads(asyncio.get_running_loop())
    options = {**_options(application_name), "min_size": 1, "max_size": max_size}
    with _opening(dsn):
        if runs_worker:
            pool = await open_own_pool(dsn, NAME_OF_DSN, **options)
        else:
            pool = await create_pool(dsn, NAME_OF_DSN, statement_cache_size=0, **options)
    try:
        yield pool
    finally:
        with translated():
            await pool.close()


def _options(application_name: str) -> dict[str, Any]:
    """Return the options of asyncpg for a connection with this name in ``pg_stat_activity``."""
    return {"timeout": CONNECT_TIMEOUT_S, "server_settings": {"application_name": application_name}}


@contextmanager
def _opening(dsn: str | None) -> Iterator[None]:
    """Raise errors of the DSN and of connecting in the block as errors of this library."""
    server = partial(server_in, dsn, NAME_OF_DSN)
    with translated(), connecting(NAME_OF_DSN, server), reading_dsn(NAME_OF_DSN):
        yield
