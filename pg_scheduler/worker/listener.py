"""The LISTEN connection, which receives messages from other processes; see ``base/messages.py``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from pg_scheduler.database.faults import translated
from pg_scheduler.database.session import Connection, is_open, is_own_session, terminate
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.worker.store import WorkerStore


class Subscription:
    """Receive the messages of the schema on one connection."""

    def __init__(
        self, store: WorkerStore, on_message: Callable[[str], None], on_broken: Callable[[], None]
    ) -> None:
        self._store = store
        self._on_message = on_message
        self._on_broken = on_broken
        self._call_timeout_s = store.connections.options.call_timeout_s
        self._connection: Connection | None = None
        self._stack = AsyncExitStack()
        self.channel = ""

    @property
    def is_open(self) -> bool:
        """Whether the connection is open. A half-open one is detected by ``check()``."""
        return self._connection is not None and is_open(self._connection)

    async def open(self) -> bool:
        """Open a connection and LISTEN on the channel of the schema.

        Returns:
            False behind a pooler: LISTEN would stay in a session that others use.
        """
        self.channel = await self._store.locks.channel()
        connection = await self._stack.enter_async_context(self._store.connections.checkout())
        with translated():
            if not await is_own_session(connection, self._call_timeout_s):
                return False
            connection.add_termination_listener(self._terminated)
            await asyncio.wait_for(
                connection.add_listener(self.channel, self._received), self._call_timeout_s
            )
        self._connection = connection
        return True

    def lend(self) -> None:
        """Share the connection with statements. Call this only after a message has arrived."""
        if self._connection is not None:
            self._store.shared.lend(self._connection)

    async def check(self, silence_s: float) -> float:
        """Query the server if it sent nothing for this long. A half-open connection reports no error.

        Returns:
            Seconds until the next check.
        """
        shared = self._store.shared
        if self._connection is not None and shared.silent_for >= silence_s:
            await shared.fetch("SELECT 1")
        return silence_s - shared.silent_for

    async def close(self) -> None:
        """Stop listening and release the connection."""
        connection, self._connection = self._connection, None
        stack, self._stack = self._stack, AsyncExitStack()
        try:
            await self._store.shared.take_back()
            if connection is not None and is_open(connection):
                connection.remove_termination_listener(self._terminated)
                with translated():
                    await asyncio.wait_for(
                        connection.remove_listener(self.channel, self._received), self._call_timeout_s
                    )
            elif connection is not None:
                terminate(connection)
        except BaseException as error:  # a cancellation too: it may listen, and must not return to the pool
            if connection is not None:
                terminate(connection)
            if not isinstance(error, DatabaseUnavailableError):
                raise
        finally:
            await stack.aclose()

    def _received(self, _connection: object, _pid: int, _channel: str, message: object) -> None:
        self._on_message(str(message))

    def _terminated(self, _connection: object) -> None:
        self._on_broken()
