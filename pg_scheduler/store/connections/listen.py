"""The LISTEN connection, and the messages that travel between nodes.

Messages are few and short; what they are about is read from the tables:

- ``due <mark>``: a job is due, or will be soon. The mark is the sender's, who knows; without one it came in a
  transaction of the caller's;
- ``check <worker id>``: a job that this worker runs was cancelled or changed;
- ``periodic``: a schedule was switched on or off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.store.connections.pool import CALL_TIMEOUT, PoolConnection, end, is_open, is_own_session
from pg_scheduler.store.faults import translated
from pg_scheduler.store.store import Store

__all__ = ["CHECK", "DUE", "PERIODIC", "Subscription"]

DUE = "due"
CHECK = "check"
PERIODIC = "periodic"


class Subscription:
    """A connection that listens.

    Args:
        store: Gives the connection and the channel.
        on_message: Called with each message, in the event loop.
        on_broken: Called when the connection ends by itself.
    """

    def __init__(
        self, store: Store, on_message: Callable[[str], None], on_broken: Callable[[], None]
    ) -> None:
        self._store = store
        self._on_message = on_message
        self._on_broken = on_broken
        self._connection: PoolConnection | None = None
        self._stack = AsyncExitStack()
        self.channel = ""

    @property
    def is_open(self) -> bool:
        """Whether messages can arrive, as far as is known."""
        return self._connection is not None and is_open(self._connection)

    async def open(self) -> bool:
        """Connect and listen; False behind a pooler: LISTEN would stay with a session that others use."""
        self.channel = await self._store.channel()
        connection = await self._stack.enter_async_context(self._store.connections.hold())
        with translated():
            if not await is_own_session(connection):
                return False
            connection.add_termination_listener(self._terminated)
            await asyncio.wait_for(connection.add_listener(self.channel, self._received), CALL_TIMEOUT)
        self._connection = connection
        return True

    def lend(self) -> None:
        """Let upkeep use the connection: messages arrive on it, so it is a session of its own."""
        if self._connection is not None:
            self._store.shared.lend(self._connection)

    async def check(self, silence: float) -> float:
        """Ask the server for an answer, if it gave none for so many seconds.

        A half-open connection stays silent for ever otherwise.

        Returns:
            Seconds after which to check again.
        """
        if self._connection is not None and self._store.shared.silent_for >= silence:
            await self._store.shared.fetch("SELECT 1")
        return silence - self._store.shared.silent_for

    async def close(self) -> None:
        """Stop listening and give the connection back."""
        connection, self._connection = self._connection, None
        await self._store.shared.take_back()
        if connection is not None and is_open(connection):
            connection.remove_termination_listener(self._terminated)
            try:
                with translated():
                    await asyncio.wait_for(
                        connection.remove_listener(self.channel, self._received), CALL_TIMEOUT
                    )
            except DatabaseUnavailableError:
                end(connection)
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    def _received(self, _connection: object, _pid: int, _channel: str, message: object) -> None:
        self._on_message(str(message))

    def _terminated(self, _connection: object) -> None:
        self._on_broken()
