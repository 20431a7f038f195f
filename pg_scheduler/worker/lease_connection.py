"""The lease connection: outside the pool, for a thread with its own event loop.

It renews a lease while the pool's event loop is blocked, and it holds the worker's liveness lock: an advisory
lock of its session, whose key is in the worker's row. If another session can take that lock, this session has
ended. Each connection has a key of its own, so a half-open one that still holds its lock blocks no other.

TCP keepalives end the session within some 20 seconds of the loss of the process's machine. Their answers come
from the kernel, so they prove that the process lives even if the process itself does nothing. Through a
proxy, they prove only that the proxy lives.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from pg_scheduler.database.faults import translated
from pg_scheduler.database.options import PROBES
from pg_scheduler.database.pool import Connections
from pg_scheduler.database.session import Connection, is_direct, is_open, prepare_to_hold
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.worker.worker_rows import RenewResult, WorkerReport, WorkerRepository

LONGEST_SILENCE_S: Final = 20
"""Seconds after which a session whose peer is gone ends at the latest."""


class LeaseConnection:
    """Renew one worker's lease on one connection, in one event loop."""

    def __init__(
        self, workers: WorkerRepository, connections: Connections, worker_id: str, lease_s: float
    ) -> None:
        self._workers = workers
        self._connections = connections
        self._options = connections.options
        self.worker_id = worker_id
        # The session ends after one interval without a packet, and another one after each probe without an
        # answer.
        self._probe_interval_s = max(round(min(lease_s, LONGEST_SILENCE_S) / (PROBES + 1)), 1)
        self._connection: Connection | None = None
        self.is_direct = False
        """Whether no proxy lies between this process and the server."""
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
                interval_s = self._probe_interval_s
                timeout_s = self._options.lease_timeout_s
                may_hold = await prepare_to_hold(connection, timeout_s, interval_s=interval_s)
                # Behind a pooler, this session is shared with others, so a lock of it would prove nothing.
                if not may_hold:
                    return
                await connection.execute(self._options.shared_settings)
                self.is_direct = await is_direct(connection, self._options.lease_timeout_s)
                # A random key is free, so this does not wait.
                key = secrets.randbits(63)
                await connection.execute(f"SELECT pg_catalog.pg_advisory_lock('{key}'::bigint)")
                self.key = key

    async def renew(
        self,
        held: Mapping[str, int],
        ended: Mapping[str, int],
        lease_s: float,
        extension_s: float | None,
        report: WorkerReport | None = None,
    ) -> RenewResult:
        """Renew the lease, and record the key and the report; see ``WorkerRepository.renew()``."""
        with translated():
            async with asyncio.timeout(self._options.lease_timeout_s):
                return await self._workers.renew(
                    self.worker_id,
                    held,
                    lease_s,
                    ended=ended,
                    liveness_key=self.key,
                    extension_s=extension_s,
                    report=report,
                    on=self._connection,
                )

    async def close(self) -> None:
        """Close the connection, which releases the lock. One that does not answer is terminated."""
        connection, self._connection, self.key = self._connection, None, None
        self.is_direct = False
        if connection is not None and is_open(connection):
            with suppress(DatabaseUnavailableError), translated():
                await connection.close(timeout=self._options.lease_close_timeout_s)
