"""A connection apart from the pool, for a thread with an event loop of its own.

It renews a lease when the pool's event loop cannot, and holds the worker's liveness lock: a session's
advisory lock under a key that stands in the worker's row. Whoever can have that lock knows that the
session has ended. Each connection has a key of its own, so one that is half-open, and still holds its
lock, is in nobody's way.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.store.connections.pool import (
    STEADY_SETTINGS,
    Connections,
    PoolConnection,
    is_open,
    is_own_session,
)
from pg_scheduler.store.faults import translated
from pg_scheduler.store.store import RenewResult, Store

__all__ = ["LeaseConnection"]

TIMEOUT: Final = 5.0
"""Seconds to connect, or for a beat."""

FAREWELL: Final = 1.0
"""Seconds to close in order."""


class LeaseConnection:
    """One connection of one worker, used by one event loop.

    Args:
        store: Knows the statements.
        connections: Knows where to connect.
    """

    def __init__(self, store: Store, connections: Connections, worker_id: str) -> None:
        self._store = store
        self._connections = connections
        self._worker_id = worker_id
        self._connection: PoolConnection | None = None
        self.key: int | None = None
        """The key of the lock that is held; None when there is none."""

    @property
    def is_open(self) -> bool:
        """Whether statements can be made, as far as is known."""
        return self._connection is not None and is_open(self._connection)

    async def open(self) -> None:
        """Connect, and take the lock under a new key, unless a pooler answers."""
        await self.close()
        with translated():
            async with asyncio.timeout(TIMEOUT):
                self._connection = connection = await self._connections.connect()
                if not await is_own_session(connection):
                    return
                await connection.execute(f"{STEADY_SETTINGS}; SET lock_timeout = 0")  # it has time to wait
                key = secrets.randbits(63)
                await connection.execute(f"SELECT pg_advisory_lock({key})")
                self.key = key

    async def renew(self, held: Mapping[str, int], ended: Mapping[str, int], lease: float) -> RenewResult:
        """One beat, which tells the key too; see ``Store.renew()``."""
        with translated():
            async with asyncio.timeout(TIMEOUT):
                return await self._store.renew(
                    self._worker_id,
                    held,
                    lease,
                    ended=ended,
                    liveness_key=self.key,
                    on=self._connection,
                )

    async def close(self) -> None:
        """Give the lock back. A connection that does not answer is given up."""
        connection, self._connection, self.key = self._connection, None, None
        if connection is not None and is_open(connection):
            with suppress(DatabaseUnavailableError), translated():
                await connection.close(timeout=FAREWELL)
