"""The thread of lease keepers, and the session in which they hold their liveness locks.

The Schedulers on one pool share both, as they share what they hold of the pool. A keeper is a task in the
event loop of this thread. A session may hold many advisory locks, each under a key of its own. So each keeper
frees its own lock when it stops, and the server frees all of them when the process ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from pg_scheduler.database.faults import REFUSALS, translated
from pg_scheduler.database.pool import Connections
from pg_scheduler.database.pool_share import PoolShare
from pg_scheduler.database.session import Connection, is_open, prepare_to_hold, terminate
from pg_scheduler.errors import DatabaseUnavailableError

Keep: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""What a keeper does in the event loop of the thread, until it is stopped. It raises nothing."""


class LeaseSession:
    """A session outside of the pool, which renews leases and holds liveness locks.

    Attributes:
        connection: Its connection, which belongs to the event loop of the thread.
        can_hold_locks: Whether it is a session of its own, and not one that a pooler shares with others.
        is_direct: Whether no proxy lies between this process and the server.
        turn: Held by the code that uses the connection, which executes one statement at a time.
        user_count: The number of keepers that use it.
    """

    def __init__(self, connection: Connection, *, can_hold_locks: bool, is_direct: bool) -> None:
        self.connection: Final = connection
        self.can_hold_locks: Final = can_hold_locks
        self.is_direct: Final = is_direct
        self.turn: Final = asyncio.Lock()
        self.user_count = 0


class LeaseSessions:
    """Yields the keepers of one thread one session, and another one after that has ended."""

    def __init__(self) -> None:
        # One keeper at a time opens a session; the others wait and use it too.
        self._turn = asyncio.Lock()
        # The sessions by the seconds between two of their TCP keepalives, which follow from the lease.
        self._sessions: dict[int, LeaseSession] = {}

    async def join(self, connections: Connections, probe_interval_s: int) -> LeaseSession:
        """Return the session that is open, or open one.

        Args:
            connections: Opens the connection, if there is none.
            probe_interval_s: Seconds without a packet, and between two probes, until the server ends it.
        """
        async with self._turn:
            session = self._sessions.get(probe_interval_s)
            # The users of a session that has ended leave it by themselves.
            if session is None or not is_open(session.connection):
                session = await _open(connections, probe_interval_s)
                self._sessions[probe_interval_s] = session
            session.user_count += 1
            return session

    async def leave(self, session: LeaseSession, key: int | None, timeout_s: float) -> None:
        """Free the lock under a key, and stop using a session. It is closed when its last user leaves.

        If the server does not answer, the connection is terminated, with which the server frees all locks of
        the session. The other users then open another session.
        """
        # Nothing is awaited until the session is out of the dict, so none joins a session that is closed.
        session.user_count -= 1
        if session.user_count == 0:
            self._sessions = {
                interval_s: other for interval_s, other in self._sessions.items() if other is not session
            }
        if not is_open(session.connection):
            return
        with suppress(DatabaseUnavailableError, *REFUSALS), translated():
            if session.user_count == 0:
                await session.connection.close(timeout=timeout_s)
            elif key is not None:
                await _unlock(session, key, timeout_s)


async def _open(connections: Connections, probe_interval_s: int) -> LeaseSession:
    """Open a session. It holds no locks behind a pooler, where it is shared with others."""
    timeout_s = connections.options.lease_timeout_s
    connection = await connections.connect()
    try:
        ownership = await prepare_to_hold(
            connection, timeout_s, interval_s=probe_interval_s, settings=connections.options.shared_settings
        )
    except BaseException:  # a session without its settings must not be used
        terminate(connection)
        raise
    return LeaseSession(
        connection,
        can_hold_locks=ownership.is_own,
        is_direct=ownership.is_own and ownership.is_direct,
    )


async def _unlock(session: LeaseSession, key: int, timeout_s: float) -> None:
    """Free the lock under a key, or terminate the connection."""
    try:
        async with asyncio.timeout(timeout_s), session.turn:
            await session.connection.execute(f"SELECT pg_catalog.pg_advisory_unlock('{key}'::bigint)")
    except BaseException:  # whatever it was, the lock must not stay
        terminate(session.connection)
        raise


class KeeperThread:
    """The thread in which the keepers of one pool run, from the start of the first to the end of the last."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # What the thread is to begin. Other threads add to it.
        self._coming: list[Keep] = []
        self._thread: threading.Thread | None = None
        # The event loop of the thread, and what wakes it; None while it does not run.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self.sessions = LeaseSessions()

    @classmethod
    def of(cls, share: PoolShare) -> KeeperThread:
        """Return the thread of a pool."""
        thread = _threads.get(share)
        if thread is None:
            _threads[share] = thread = cls()
        return thread

    def run(self, keep: Keep) -> threading.Thread:
        """Run the coroutine of a keeper in the thread, which is started unless it runs; return the thread."""
        with self._guard:
            if self._thread is None:
                # It is a daemon, because it must not keep a process alive whose event loop ended without a
                # shutdown. It waits for the guard before it reads what is coming.
                thread = threading.Thread(target=self._main, name="pg_scheduler keeper", daemon=True)
                thread.start()
                self._thread = thread
            self._coming.append(keep)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake.set)
            return self._thread

    def _main(self) -> None:
        """Run the event loop of the thread."""
        asyncio.run(self._run_all())

    async def _run_all(self) -> None:
        """Run what comes, each coroutine in a task of its own, until nothing is left."""
        tasks: set[asyncio.Task[None]] = set()
        # Locks and events belong to the event loop in which they are first used.
        with self._guard:
            self._wake, self.sessions = asyncio.Event(), LeaseSessions()
            self._loop = asyncio.get_running_loop()

        def end(task: asyncio.Task[None]) -> None:
            """Forget a task that has ended, and check whether another one is left."""
            tasks.discard(task)
            self._wake.set()

        while True:
            self._wake.clear()
            with self._guard:
                coming, self._coming = self._coming, []
                # From here on, run() starts another thread.
                if not coming and not tasks:
                    self._thread = self._loop = None
                    return
            for keep in coming:
                task = asyncio.create_task(keep())
                tasks.add(task)
                task.add_done_callback(end)
            await self._wake.wait()


_threads: Final[WeakKeyDictionary[PoolShare, KeeperThread]] = WeakKeyDictionary()
