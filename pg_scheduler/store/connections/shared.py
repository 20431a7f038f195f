"""The connection that listens, lent to the statements of upkeep.

It is held anyway and has nothing to do between two messages. A statement there is one transaction, not two,
since no pool resets the connection after it; it is there when jobs have used the pool up; and each answer
shows that messages can still arrive. Nobody waits for it: who finds it busy, or gets no answer soon, takes a
connection of the pool, so a heartbeat is never behind a statement that waits for a lock.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import asyncpg

from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.store.connections.pool import (
    FAREWELL,
    STEADY_RESET,
    STEADY_SETTINGS,
    PoolConnection,
    end,
    is_open,
)
from pg_scheduler.store.faults import translated

__all__ = ["ANSWER_TIMEOUT", "SharedConnection"]

ANSWER_TIMEOUT: Final = 5.0
"""Seconds after which a connection that does not answer counts as dead."""

SETTINGS: Final = f"{STEADY_SETTINGS}; SET lock_timeout = '1s'"
"""Those of a connection that is held; and who waits for a lock says so, before it is taken for dead."""


class SharedConnection:
    """A connection that somebody holds for something else, for one statement at a time."""

    def __init__(self) -> None:
        self._connection: PoolConnection | None = None
        self._is_set = False
        self._turn = asyncio.Lock()
        self._answered = 0.0

    @property
    def is_free(self) -> bool:
        """Whether there is one that nobody uses now."""
        connection = self._connection
        return connection is not None and is_open(connection) and not self._turn.locked()

    @property
    def silent_for(self) -> float:
        """Seconds since the last answer."""
        return time.monotonic() - self._answered

    def lend(self, connection: PoolConnection) -> None:
        """From now on it may be used. It must be a session of its own: settings are made in it."""
        self._connection, self._is_set = connection, False
        self._answered = time.monotonic()

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """Run a statement that does no harm when it is run again, since its answer may be lost.

        Raises:
            DatabaseUnavailableError: The connection is gone, or gave no answer and was terminated.
        """
        async with self._turn:
            connection = self._connection
            if connection is None:
                raise DatabaseUnavailableError("the connection has been taken back")
            try:
                with translated():
                    if not self._is_set:
                        await connection.execute(SETTINGS, timeout=ANSWER_TIMEOUT)
                        self._is_set = True
                    rows = list(await connection.fetch(query, *args, timeout=ANSWER_TIMEOUT))
            except DatabaseUnavailableError as fault:
                if not isinstance(fault.__cause__, asyncpg.PostgresError):  # which would be an answer
                    end(connection)
                raise
            self._answered = time.monotonic()
            return rows

    async def take_back(self) -> None:
        """Have it back as it was, when the statement that is under way has ended."""
        connection, self._connection = self._connection, None
        async with self._turn:
            if connection is not None and is_open(connection):
                try:
                    with translated():
                        await connection.execute(STEADY_RESET, timeout=FAREWELL)
                except DatabaseUnavailableError:
                    end(connection)
