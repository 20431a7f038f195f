"""The dedicated connection, which stays out of the pool and keeps its planner settings between uses."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from types import TracebackType

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from pg_scheduler.database.asyncpg_private import count_free, open_beside_pool
from pg_scheduler.database.faults import connecting, is_lock_timeout, translated
from pg_scheduler.database.fork import inherited_sockets
from pg_scheduler.database.options import DEDICATED_RESET, MIN_FREE_CONNECTIONS, ConnectionOptions
from pg_scheduler.database.session import (
    Connection,
    check_pool,
    is_open,
    prepare_to_hold,
    release_to,
    take_from,
    terminate_unanswered,
)
from pg_scheduler.errors import DatabaseUnavailableError


class DedicatedConnection:
    """Hold one connection for claims and completions, and yield it to one user at a time.

    A pool that cannot spare a connection gives none. A pooler gives none either, because the planner settings
    would stay in a session that others use.

    It is a class, because a context manager made of a generator is slower, and every claim passes here.
    """

    def __init__(self, pool: asyncpg.Pool, options: ConnectionOptions) -> None:
        self._pool = pool
        self._options = options
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._is_available = pool.get_max_size() > MIN_FREE_CONNECTIONS + 1
        self.is_in_use = False
        """Whether services use it, from the first statement until ``release()``, also between statements."""

    @property
    def connection(self) -> Connection | None:
        """The held connection, None if there is none."""
        return self._connection

    async def __aenter__(self) -> Connection | None:
        """Wait until no other user has the connection, and return it; None if the pool cannot spare one."""
        self.is_in_use = True
        await self._turn.acquire()
        try:
            if self._connection is None or self._pool.is_closing() or not is_open(self._connection):
                await self._replace()
        except BaseException:  # let the next user in
            self._turn.release()
            raise
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None and self._connection is not None:
                # These translate the error, and terminate a connection that did not answer.
                with translated(), terminate_unanswered(self._connection):
                    raise error
        except DatabaseUnavailableError as fault:
            # Another connection may not have the problem, unless it is a lock of another transaction.
            if not is_lock_timeout(fault):
                await self._drop()
            raise
        finally:
            self._turn.release()

    async def release(self) -> None:
        """Reset the settings of the connection and return it to the pool."""
        async with self._turn:
            self.is_in_use = False
            await self._drop()

    async def _replace(self) -> None:
        """Take another connection, if the pool can spare one."""
        # pool.close() waits for held connections, so none is taken from a pool that is being closed.
        check_pool(self._pool)
        await self._drop()
        free_count = count_free(self._pool)
        # The pool keeps its last free connections. But if none is free, _open() opens one outside of it.
        if not self._is_available or 0 < free_count <= MIN_FREE_CONNECTIONS:
            return
        timeout_s = self._options.hot_timeout_s
        with translated():
            self._connection = connection = await self._open()
            try:
                if await prepare_to_hold(connection, timeout_s):
                    await connection.execute(self._options.dedicated_settings, timeout=timeout_s)
                    return
            except BaseException:  # a session without its settings must not be used
                await self._drop()
                raise
        # Behind a pooler each transaction may run in another session, so no connection can be held.
        self._is_available = False
        await self._drop()

    async def _open(self) -> Connection:
        """Take a connection of the pool; if jobs use all of them, open one that the pool does not count."""
        if count_free(self._pool):
            return await take_from(self._pool, self._options.call_timeout_s)
        with connecting():
            async with asyncio.timeout(self._options.call_timeout_s):
                # In a child that this process forks, the socket is closed, as are those of the pool.
                return await inherited_sockets.open(partial(open_beside_pool, self._pool))

    async def _drop(self) -> None:
        """Close the connection, or reset its settings and return it to the pool if it is one of the pool."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        timeout_s = self._options.close_timeout_s
        # Whatever fails, this object does not hold the connection any more.
        with suppress(DatabaseUnavailableError), translated():
            if not isinstance(connection, PoolConnectionProxy):
                await connection.close(timeout=timeout_s)
                return
            try:
                # The pool resets the connection too, but its owner may have given it a reset= that keeps
                # settings.
                if is_open(connection):
                    await connection.execute(DEDICATED_RESET, timeout=timeout_s)
            finally:
                await release_to(self._pool, connection, timeout_s)
