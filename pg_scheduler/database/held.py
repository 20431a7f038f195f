"""The dedicated connection, which stays out of the pool and keeps its planner settings between uses.

The Schedulers on one pool share it. Suppose an application has a schema for each of ten tenants, and a
Scheduler for each schema: ten connections of this kind would be idle most of the time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from pg_scheduler.database.asyncpg_private import (
    count_free,
    open_beside_pool,
    resets_as_usual,
    server_of_pool,
)
from pg_scheduler.database.faults import connecting, is_lock_timeout, translated
from pg_scheduler.database.fork import inherited_sockets
from pg_scheduler.database.options import DEDICATED_RESET, MIN_FREE_CONNECTIONS, ConnectionOptions
from pg_scheduler.database.session import (
    POOL,
    Connection,
    check_pool,
    is_open,
    prepare_to_hold,
    release_to,
    take_from,
    terminate_unanswered,
)
from pg_scheduler.errors import DatabaseUnavailableError


class HeldConnection:
    """The connection that the Schedulers on one pool hold for claims and completions.

    A pool that cannot spare a connection gives none. A pooler gives none either, because the planner settings
    would stay in a session that others use.

    Attributes:
        connection: The held connection; None if there is none.
        turn: The lock of the code that uses it.
        user: Who has the turn, or had it last.
        users: Those who have used the connection and have not released it.
    """

    def __init__(self, pool: asyncpg.Pool, options: ConnectionOptions) -> None:
        self._pool = pool
        self._options = options
        self._is_available = pool.get_max_size() > MIN_FREE_CONNECTIONS + 1
        self.connection: Connection | None = None
        self.turn: Final = asyncio.Lock()
        self.user: DedicatedConnection | None = None
        self.users: Final[set[DedicatedConnection]] = set()

    @property
    def is_usable(self) -> bool:
        """Whether there is an open connection, of a pool that is not being closed."""
        return self.connection is not None and not self._pool.is_closing() and is_open(self.connection)

    async def replace(self) -> None:
        """Take another connection, if the pool can spare one."""
        # pool.close() waits for held connections, so none is taken from a pool that is being closed.
        check_pool(self._pool)
        await self.drop()
        free_count = count_free(self._pool)
        # The pool keeps its last free connections. But if none is free, _open() opens one outside of it.
        if not self._is_available or 0 < free_count <= MIN_FREE_CONNECTIONS:
            return
        timeout_s = self._options.hot_timeout_s
        with translated():
            self.connection = connection = await self._open()
            try:
                ownership = await prepare_to_hold(
                    connection, timeout_s, settings=self._options.dedicated_settings
                )
                if ownership.is_own:
                    return
            except BaseException:  # a session without its settings must not be used
                await self.drop()
                raise
        # Behind a pooler each transaction may run in another session, so no connection can be held.
        self._is_available = False
        await self.drop()

    async def _open(self) -> Connection:
        """Take a connection of the pool; if jobs use all of them, open one that the pool does not count."""
        if count_free(self._pool):
            return await take_from(self._pool, self._options.call_timeout_s)
        with connecting(POOL, partial(server_of_pool, self._pool)):
            async with asyncio.timeout(self._options.call_timeout_s):
                # In a child that this process forks, the socket is closed, as are those of the pool.
                return await inherited_sockets.open(partial(open_beside_pool, self._pool))

    async def drop(self) -> None:
        """Close the connection, or reset its settings and return it to the pool if it is one of the pool."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        timeout_s = self._options.close_timeout_s
        # Whatever fails, this object does not hold the connection any more.
        with suppress(DatabaseUnavailableError), translated():
            if not isinstance(connection, PoolConnectionProxy):
                await connection.close(timeout=timeout_s)
                return
            try:
                # The pool resets the connection, unless its owner has given it a reset= of its own.
                if is_open(connection) and not resets_as_usual(self._pool):
                    await connection.execute(DEDICATED_RESET, timeout=timeout_s)
            finally:
                await release_to(self._pool, connection, timeout_s)


class DedicatedConnection:
    """The dedicated connection, as one Scheduler uses it: for one statement at a time.

    It is a class, because a context manager made of a generator is slower, and every claim passes here.
    """

    def __init__(self, held: HeldConnection) -> None:
        self._held = held
        self.is_in_use = False
        """Whether services use it, from the first statement until ``release()``, also between statements."""

    @property
    def connection(self) -> Connection | None:
        """The held connection, None if there is none."""
        return self._held.connection

    @property
    def is_taken(self) -> bool:
        """Whether another Scheduler executes a statement on the connection at this moment."""
        return self._held.turn.locked() and self._held.user is not self

    async def __aenter__(self) -> Connection | None:
        """Wait until no other user has the connection, and return it; None if the pool cannot spare one."""
        held = self._held
        self.is_in_use = True
        held.users.add(self)
        await held.turn.acquire()
        held.user = self
        try:
            if not held.is_usable:
                await held.replace()
        except BaseException:  # let the next user in
            held.turn.release()
            raise
        return held.connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        held = self._held
        try:
            if error is not None and held.connection is not None:
                # These translate the error, and terminate a connection that did not answer.
                with translated(), terminate_unanswered(held.connection):
                    raise error
        except DatabaseUnavailableError as fault:
            # Another connection may not have the problem, unless it is a lock of another transaction.
            if not is_lock_timeout(fault):
                await held.drop()
            raise
        finally:
            held.turn.release()

    async def release(self) -> None:
        """Stop using the connection. The last user resets its settings and returns it to the pool."""
        held = self._held
        async with held.turn:
            self.is_in_use = False
            held.users.discard(self)
            if not held.users:
                await held.drop()
