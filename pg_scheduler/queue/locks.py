"""Hold advisory locks and send notifications, such as that jobs are due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Final

from pg_scheduler.base.sqltext import qualify
from pg_scheduler.database.blockers import Blocker, watching
from pg_scheduler.database.faults import REFUSALS, translated
from pg_scheduler.database.queries import Route
from pg_scheduler.database.session import Connection, is_open, noticing_end
from pg_scheduler.database.statements import Repository, Statements
from pg_scheduler.errors import DatabaseUnavailableError

HOLDERS_TIMEOUT_S: Final = 1.0
"""Longest time in which the sessions that hold locks on the tables are looked up, for a message."""

HOLDERS_AGE_S: Final = 5.0
"""Seconds for which the services of a worker share the sessions that one of them has found."""


LOCK_CLASS: Final = 1_885_825_130
"""The first key of the advisory locks of limits, shares and cycles of jobs; the second hashes their text."""


class LockRepository(Repository):
    """Advisory locks and notifications, which the server keeps outside of tables."""

    def __init__(self, statements: Statements) -> None:
        super().__init__(statements)
        self._holders: tuple[str, ...] = ()
        self._holders_until = float("-inf")
        self._holder_search = asyncio.Lock()

    async def channel(self, *, on: Connection | None = None) -> str:
        """Return the notification channel of the schema."""
        return await self._statements.channel(on=on)

    async def notify(self, messages: Sequence[str], *, connection: Connection | None = None) -> None:
        """Send messages to every process that listens, when the transaction commits."""
        await self._statements.fetch("notify", messages, on=connection)

    async def notify_once(self, message: str) -> None:
        """Send a message, and return the connection to the pool at once, because no other one follows soon.

        Otherwise a worker would keep the connection for a moment while it starts, and its other parts would
        open one more, which the pool then has for minutes.
        """
        await self._statements.fetch("notify", [message], route=Route.RESERVED)

    async def session_pid(self, connection: Connection) -> int:
        """Return the id of the server process that runs the transaction of this connection."""
        return await self._statements.number("session_pid", on=connection)

    async def find_holders(self) -> tuple[str, ...]:
        """Return the sessions with the strongest locks on the tables, for a message; none if unknown.

        Many services meet the lock of a table at the same time. One of them searches, and the others wait for
        that search and share what it finds. If it finds no session, the next service searches again.
        """
        async with self._holder_search:
            now = time.monotonic()
            if not self._holders or now >= self._holders_until:
                self._holders_until, self._holders = now + HOLDERS_AGE_S, ()
                with suppress(DatabaseUnavailableError, *REFUSALS, TimeoutError):
                    async with asyncio.timeout(HOLDERS_TIMEOUT_S):
                        table = qualify("{schema}scheduled_jobs", await self._statements.schema())
                        self._holders = tuple(map(str, await self._rows(Blocker, "find_holders", table)))
            return self._holders

    async def blockers(self, pid: int) -> list[Blocker]:
        """Return the sessions that a session waits for; none if it does not wait."""
        return await self._rows(Blocker, "find_blockers", pid)

    def watching(self, connection: Connection, blockers: list[Blocker]) -> AbstractAsyncContextManager[None]:
        """Look up which sessions a transaction waits for within the block; put them into ``blockers``."""
        return watching(self._statements.fetch, connection, blockers)

    @asynccontextmanager
    async def advisory_lock(
        self, key: int, on_loss: Callable[[], None] = lambda: None
    ) -> AsyncIterator[bool]:
        """Try to take a lock for the block; yield whether it was taken.

        If the session ends within the block, the lock is lost. The lock keeps attempts from overlapping. If
        they overlap nevertheless, the fencing token, a number of each attempt, keeps their results apart.

        Args:
            key: The key of the lock.
            on_loss: Called if the lock was taken, and its session ends before the lock is released.
        """
        take = await self._statements.query("take_advisory_lock")
        drop = await self._statements.query("drop_advisory_lock")
        timeout_s = self._statements.call_timeout_s
        async with self._statements.connections.checkout_for_lock() as connection:
            with translated():
                is_held: bool = await connection.fetchval(take.text, key, timeout=timeout_s)
            with noticing_end(connection, on_loss) if is_held else nullcontext():
                try:
                    yield is_held
                finally:
                    # The server releases the lock of a session that has ended.
                    if is_held and is_open(connection):
                        with translated():
                            await connection.fetchval(drop.text, key, timeout=timeout_s)
