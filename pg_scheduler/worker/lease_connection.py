"""The lease connection: outside the pool, for a thread with its own event loop.

It renews a lease while the pool's event loop is blocked, and it holds the worker's liveness lock: an advisory
lock of its session, whose key is in the worker's row. If another session can take that lock, this session has
ended, or the worker has stopped. Each lock has a key of its own, so a half-open connection that still holds
one blocks no other. The workers on one pool share the session.

TCP keepalives end the session within some 20 seconds of the loss of the process's machine. Their answers come
from the kernel, so they prove that the process lives even if the process itself does nothing. Through a
proxy, they prove only that the proxy lives.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Final

from pg_scheduler.database.faults import translated
from pg_scheduler.database.options import PROBES
from pg_scheduler.database.pool import Connections
from pg_scheduler.database.session import is_open
from pg_scheduler.errors import ConnectionLostError
from pg_scheduler.worker.keeper_thread import KeeperThread, LeaseSession
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
        self.thread: Final = KeeperThread.of(connections.share)
        """The thread whose event loop the connection belongs to."""
        self._session: LeaseSession | None = None
        self.is_direct = False
        """Whether no proxy lies between this process and the server."""
        self.key: int | None = None
        """The key of the liveness lock that is held; None if there is none."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is open. A broken one is detected at its next use."""
        return self._session is not None and is_open(self._session.connection)

    async def open(self) -> None:
        """Connect and take the liveness lock under a new key. Behind a pooler, take no lock."""
        await self.close()
        with translated():
            async with asyncio.timeout(self._options.lease_timeout_s):
                sessions = self.thread.sessions
                self._session = session = await sessions.join(self._connections, self._probe_interval_s)
                # Behind a pooler, this session is shared with others, so a lock of it would prove nothing.
                if not session.can_hold_locks:
                    return
                # A random key is free, so this does not wait.
                key = secrets.randbits(63)
                async with session.turn:
                    await session.connection.execute(f"SELECT pg_catalog.pg_advisory_lock('{key}'::bigint)")
                self.key, self.is_direct = key, session.is_direct

    async def renew(
        self,
        held: Mapping[str, int],
        ended: Mapping[str, int],
        lease_s: float,
        extension_s: float | None,
        report: WorkerReport | None = None,
    ) -> RenewResult:
        """Renew the lease, and record the key and the report; see ``WorkerRepository.renew()``."""
        session = self._session
        if session is None:
            raise ConnectionLostError("the lease connection is not open")
        with translated():
            async with asyncio.timeout(self._options.lease_timeout_s), session.turn:
                return await self._workers.renew(
                    self.worker_id,
                    held,
                    lease_s,
                    ended=ended,
                    liveness_key=self.key,
                    extension_s=extension_s,
                    report=report,
                    on=session.connection,
                )

    async def close(self) -> None:
        """Free the lock, and close the connection unless other workers use it.

        A connection that does not answer is terminated.
        """
        session, key = self._session, self.key
        self._session = self.key = None
        self.is_direct = False
        if session is not None:
            await self.thread.sessions.leave(session, key, self._options.lease_close_timeout_s)
