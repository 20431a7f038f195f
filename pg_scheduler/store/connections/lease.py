"""The lease connection: outside the pool, for a thread with its own event loop.

It renews a lease while the pool's event loop is blocked, and it holds the worker's liveness lock: an advisory
lock of its session, whose key is in the worker's row. If another session can take that lock, this session has
ended. Each connection has a key of its own, so a half-open one that still holds its lock blocks no other.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress

from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.store.connections.pool import Connections
from pg_scheduler.store.connections.session import Connection, is_open, is_own_session
from pg_scheduler.store.faults import translated
from pg_scheduler.store.types import RenewResult
from pg_scheduler.store.workers import WorkerRepository

__all__ = ["LeaseConnection"]


class LeaseConnection:
    """Renew one worker's lease on one connection, in one event loop.

    Args:
        workers: Runs the statements.
        connections: Opens the connection.
        worker_id: The worker.
    """

    def __init__(self, workers: WorkerRepository, connections: Connections, worker_id: str) -> None:
        self._workers = workers
        self._connections = connections
        self._options = connections.options
        self.worker_id = worker_id
        self._connection: Connection | None = None
        self.key: int | None = None
        """The key of the liveness lock that is held; None if there is none."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is open. A broken one is detected at its next use."""
        return self._connection is not None and is_open(self._connection)

    async def open(self) -> None:
        """Connect and take the liveness lock under a new key. Behind a pooler, take no lock."""
        await self.close()
        with translated():
            async with asyncio.timeout(self._options.lease_timeout_s):
                self._connection = connection = await self._connections.connect()
                if not await is_own_session(connection, self._options.lease_timeout_s):
                    return
                settings = self._options.dedicated_settings
                await connection.execute(f"{settings}; SET lock_timeout = 0")  # unlike a claim, it can wait
                key = secrets.randbits(63)
                await connection.execute(f"SELECT pg_advisory_lock({key})")
                self.key = key

    async def renew(self, held: Mapping[str, int], ended: Mapping[str, int], lease_s: float) -> RenewResult:
        """Renew the lease and record the key; see ``WorkerRepository.renew()``."""
        with translated():
            async with asyncio.timeout(self._options.lease_timeout_s):
                return await self._workers.renew(
                    self.worker_id,
                    held,
                    lease_s,
                    ended=ended,
                    liveness_key=self.key,
                    on=self._connection,
                )

    async def close(self) -> None:
        """Close the connection, which releases the lock. One that does not answer is terminated."""
        connection, self._connection, self.key = self._connection, None, None
        if connection is not None and is_open(connection):
            with suppress(DatabaseUnavailableError), translated():
                await connection.close(timeout=self._options.lease_close_timeout_s)
