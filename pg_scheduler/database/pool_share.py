"""What the Schedulers on one pool share: the connections that they hold for long.

Suppose an application has a schema for each of its ten tenants, and a Scheduler on the same pool for each
schema. If each of them held connections of its own, thirty would be open, most of them idle. Statements name
the schema of their tables, so a session serves all of these Schedulers. Each listens on a channel of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

import asyncpg

from pg_scheduler.database.held import HeldConnection
from pg_scheduler.database.options import ConnectionOptions
from pg_scheduler.database.session import Connection, is_open
from pg_scheduler.database.shared import SharedConnection

Hold: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection | None]]
"""Holds a session; see ``Connections.hold_session()``."""

Key: TypeAlias = tuple[int, str | None, str | None, ConnectionOptions]
"""The id of a pool, the direct DSN, the DSN of the lease keeper, and the options."""


class ListenSession:
    """A session that is held for LISTEN, until the last Scheduler that listens in it leaves."""

    def __init__(self, connection: Connection, stack: AsyncExitStack) -> None:
        self.connection: Final = connection
        self.user_count = 0
        self._stack = stack

    async def close(self) -> None:
        """Return or close the connection."""
        await self._stack.aclose()


class ListenSessions:
    """Yields the Schedulers on one pool one session for LISTEN, and another one after that has ended."""

    def __init__(self, shared: SharedConnection) -> None:
        self._shared = shared
        # One Scheduler at a time opens a session; the others wait and use it too.
        self._turn = asyncio.Lock()
        self._session: ListenSession | None = None

    async def join(self, hold: Hold) -> ListenSession | None:
        """Return the session that is open, or open one; None behind a pooler."""
        async with self._turn:
            session = self._session
            # The users of a session that has ended leave it by themselves.
            if session is None or not is_open(session.connection):
                stack = AsyncExitStack()
                connection = await stack.enter_async_context(hold())
                if connection is None:
                    await stack.aclose()
                    return None
                self._session = session = ListenSession(connection, stack)
            session.user_count += 1
            return session

    async def leave(self, session: ListenSession) -> None:
        """Stop using a session. It is closed when its last user leaves."""
        # Nothing is awaited before the session is closed to others, so no Scheduler joins it afterwards.
        session.user_count -= 1
        if session.user_count:
            return
        if self._session is session:
            self._session = None
        try:
            await self._shared.take_back(session.connection)
        finally:
            await session.close()


class PoolShare:
    """The held connections of one pool.

    Attributes:
        held: The one for claims and completions.
        shared: The one that listens, for statements of idle workers.
        listening: The session for LISTEN.
    """

    def __init__(self, pool: asyncpg.Pool, options: ConnectionOptions) -> None:
        # As long as this object exists, no other pool can get the id of this one, by which it is found.
        self._pool = pool
        self.held: Final = HeldConnection(pool, options)
        self.shared: Final = SharedConnection(options)
        self.listening: Final = ListenSessions(self.shared)

    @classmethod
    def of(
        cls, pool: asyncpg.Pool, direct_dsn: str | None, keeper_dsn: str | None, options: ConnectionOptions
    ) -> PoolShare:
        """Return what the Schedulers on a pool share that open connections in the same way."""
        key = id(pool), direct_dsn, keeper_dsn, options
        share = _shares.get(key)
        if share is None:
            _shares[key] = share = cls(pool, options)
        return share


_shares: Final[WeakValueDictionary[Key, PoolShare]] = WeakValueDictionary()
