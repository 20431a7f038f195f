"""A connection that stays out of the pool for a moment after each use.

A pool resets a connection at each release, which is one more transaction. Calls that follow one another share
one reset.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.store.connections.options import ConnectionOptions
from pg_scheduler.store.connections.session import (
    check_pool,
    ended_connection,
    is_open,
    release_to,
    take_from,
    terminate,
)
from pg_scheduler.store.faults import translated


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
