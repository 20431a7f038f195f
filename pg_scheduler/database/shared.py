"""The LISTEN connection, shared with the statements of an idle worker.

It is held anyway, and idle between two notifications. A statement on it is one transaction instead of two,
because no pool resets the connection afterwards. It remains available when jobs use up the pool, and each
answer shows that notifications can still arrive. A statement never waits for it: if it is busy or does not
answer, the statement runs on a connection of the pool, so a heartbeat never queues behind a lock wait.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import asyncpg

from pg_scheduler.database.faults import is_transient, raise_translated, translated
from pg_scheduler.database.options import DEDICATED_RESET, ConnectionOptions, as_statements
from pg_scheduler.database.session import Connection, is_open, terminate
from pg_scheduler.errors import DatabaseUnavailableError


class SharedConnection:
    """Run one statement at a time on a connection that another component holds."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._connection: Connection | None = None
        # Whether the session of the connection has the settings for statements of this library.
        self._has_settings = False
        # Whether take_back() ends the settings.
        self._resets_settings = True
        self.turn: Final = asyncio.Lock()
        """Held by the code that uses the connection, which executes one statement at a time."""
        self.answered_at = 0.0
        """When the server last responded, by the monotonic clock."""

    @property
    def connection(self) -> Connection | None:
        """The shared connection, None if there is none."""
        return self._connection

    @property
    def is_free(self) -> bool:
        """Whether there is an open connection that no statement uses."""
        connection = self._connection
        return connection is not None and is_open(connection) and not self.turn.locked()

    @property
    def silent_for(self) -> float:
        """Seconds since the last response of the server."""
        return time.monotonic() - self.answered_at

    def lend(self, connection: Connection, *, has_settings: bool = False) -> None:
        """Share this connection. It must not lead to a pooler: statements change its session.

        ``has_settings`` is whether its session has the settings already, which `take_back()` then leaves to
        who has made them.
        """
        # Another Scheduler on the same pool may share it already.
        if connection is not self._connection:
            self._connection, self._has_settings = connection, has_settings
            self._resets_settings = not has_settings
        self.answered_at = time.monotonic()

    async def fetch(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """Run a statement that may safely run again, because its answer may be lost.

        Raises:
            DatabaseUnavailableError: The connection is gone, or did not answer and was terminated.
        """
        timeout_s = self._options.answer_timeout_s
        async with self.turn:
            connection = self._connection
            if connection is None:
                raise DatabaseUnavailableError("the shared connection is not available")
            try:
                if not self._has_settings:
                    await connection.execute(as_statements(self._options.shared_settings), timeout=timeout_s)
                    self._has_settings = True
                rows = list(await connection.fetch(query, *args, timeout=timeout_s))
            except Exception as error:
                # A PostgresError is an answer of the server, so the connection works. After any other
                # transient error, such as a timeout, its state is unknown.
                if is_transient(error) and not isinstance(error, asyncpg.PostgresError):
                    terminate(connection)
                raise_translated(error)
                raise  # an error that needs no translation
            self.answered_at = time.monotonic()
            return rows

    async def take_back(self, connection: Connection) -> None:
        """Stop sharing this connection, wait for the running statement, and reset its settings."""
        # Another connection may have taken its place.
        if connection is not self._connection:
            return
        # From now on, no statement begins on the connection.
        self._connection = None
        async with self.turn:
            if is_open(connection) and self._resets_settings:
                try:
                    with translated():
                        await connection.execute(DEDICATED_RESET, timeout=self._options.close_timeout_s)
                except DatabaseUnavailableError:
                    terminate(connection)
