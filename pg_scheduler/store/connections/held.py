"""Connections that stay out of the pool between uses.

A pool resets a connection at each release, which is one more transaction. The dedicated connection keeps its
planner settings between uses; calls that follow one another share one reset of a sticky connection.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from types import TracebackType

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.store.connections.asyncpg_private import open_beside_pool
from pg_scheduler.store.connections.fork import inherited_sockets
from pg_scheduler.store.connections.options import DEDICATED_RESET, MIN_FREE_CONNECTIONS, ConnectionOptions
from pg_scheduler.store.connections.session import (
    Connection,
    check_pool,
    count_free,
    ended_connection,
    is_open,
    is_own_session,
    release_to,
    take_from,
    terminate,
    terminate_unanswered,
)
from pg_scheduler.store.faults import connecting, is_lock_timeout, translated


class DedicatedConnection:
    """Hold one connection for claims and completions, and yield it to one user at a time.

    A pool that cannot spare a connection gives none. A pooler gives none either, because the planner settings
    would stay in a session that others use.

    A class, not a generator: every claim passes here.
    """

    def __init__(self, pool: asyncpg.Pool, options: ConnectionOptions) -> None:
        self._pool = pool
        self._options = options
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._is_available = pool.get_max_size() > MIN_FREE_CONNECTIONS + 1
        self.is_in_use = False
        """Whether the hot path runs: from its first statement until ``release()``."""

    @property
    def connection(self) -> Connection | None:
        """The held connection, None if there is none."""
        return self._connection

    async def __aenter__(self) -> Connection | None:
        """Wait for the connection and return it, or None if the pool cannot spare one."""
        await self._turn.acquire()
        try:
            return await self._take()
        except BaseException:  # let the next user in
            self._turn.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            if error is not None and self._connection is not None:
                with translated(), terminate_unanswered(self._connection):
                    raise error
        except DatabaseUnavailableError as fault:  # another connection may not have the problem
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

    async def _take(self) -> Connection | None:
        check_pool(self._pool)  # pool.close() waits for held connections
        if self._connection is not None and is_open(self._connection):
            return self._connection
        await self._drop()
        if not self._is_available or 0 < count_free(self._pool) <= MIN_FREE_CONNECTIONS:
            return None
        timeout_s = self._options.hot_timeout_s
        with translated():
            self._connection = connection = await self._open()
            try:
                if await is_own_session(connection, timeout_s):
                    await connection.execute(self._options.dedicated_settings, timeout=timeout_s)
                    return connection
            except BaseException:  # a session without its settings must not be used
                await self._drop()
                raise
        self._is_available = False  # behind a pooler each transaction may run in another session
        await self._drop()
        return None

    async def _open(self) -> Connection:
        if count_free(self._pool):
            return await take_from(self._pool, self._options.call_timeout_s)
        with connecting():
            async with asyncio.timeout(self._options.call_timeout_s):
                return await inherited_sockets.open(partial(open_beside_pool, self._pool))

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        timeout_s = self._options.close_timeout_s
        with suppress(DatabaseUnavailableError), translated():  # the connection is closed either way
            if not isinstance(connection, PoolConnectionProxy):
                await connection.close(timeout=timeout_s)
                return
            try:
                if is_open(connection):  # the reset of the pool's owner may keep settings
                    await connection.execute(DEDICATED_RESET, timeout=timeout_s)
            finally:
                await release_to(self._pool, connection, timeout_s)


class StickyConnection:
    """Yield one connection of the pool to one user at a time, and release it when idle.

    A class, not a generator: every single ``schedule()`` passes here.
    """

    def __init__(self, pool: asyncpg.Pool, options: ConnectionOptions) -> None:
        self._pool = pool
        self._options = options
        self._turn = asyncio.Lock()
        self._connection: PoolConnectionProxy | None = None
        self._idle_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.releasing: asyncio.Task[None] | None = None
        """The task that last began to release an idle connection."""

    @property
    def is_held(self) -> bool:
        """Whether a connection is out of the pool."""
        return self._connection is not None

    async def __aenter__(self) -> PoolConnectionProxy:
        await self._turn.acquire()
        try:
            if self._connection is None or not is_open(self._connection):
                with translated():
                    await self._return()
                    check_pool(self._pool)
                    self._connection = await take_from(self._pool, self._options.call_timeout_s)
        except BaseException:  # let the next user in
            self._turn.release()
            raise
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._schedule_release()
                return
            with translated():
                # After any error, the next user gets a fresh connection.
                connection = self._connection
                if connection is not None:
                    if isinstance(error, TimeoutError | asyncio.CancelledError):
                        terminate(connection)
                    if isinstance(error, AttributeError) and not is_open(connection):
                        error = ended_connection()
                await self._return()
                raise error
        finally:
            self._turn.release()

    async def release(self) -> None:
        """Return the connection to the pool now."""
        async with self._turn:
            if self._timer is not None:  # it would start a task, perhaps after the end of the loop
                self._timer.cancel()
                self._timer = None
            with translated():
                await self._return()

    def _schedule_release(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_at = loop.time() + self._options.sticky_idle_s
        if self._timer is None:  # one timer serves many uses: when it fires, it checks the last one
            self._timer = loop.call_at(self._idle_at, self._start_release)

    def _start_release(self) -> None:
        self.releasing = asyncio.create_task(self._release_if_idle(), name="pg_scheduler release")

    async def _release_if_idle(self) -> None:
        async with self._turn:
            loop = asyncio.get_running_loop()
            if loop.time() < self._idle_at and self._connection is not None:
                self._timer = loop.call_at(self._idle_at, self._start_release)
                return
            self._timer = None
            with suppress(DatabaseUnavailableError), translated():  # no caller waits; the pool closes it
                await self._return()

    async def _return(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await release_to(self._pool, connection, self._options.call_timeout_s)
