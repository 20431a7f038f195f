"""A consumer of changes: a publication of all tables, and a logical slot that is read all the time.

With such a publication the server refuses changes of tables without a replica identity.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import asyncpg

from tools.chaos.broken import BROKEN_CONNECTION

SETTINGS: Final = {"wal_level": "logical", "max_slot_wal_keep_size": "16GB"}
PUBLISH: Final = "CREATE PUBLICATION chaos FOR ALL TABLES"
CREATE_SLOT: Final = "SELECT pg_create_logical_replication_slot('chaos', 'pgoutput')"
READ: Final = """
    SELECT count(*) FROM pg_logical_slot_get_binary_changes(
        'chaos', NULL, 5000, 'proto_version', '1', 'publication_names', 'chaos')
"""
LEFT: Final = """
    SELECT coalesce(pg_wal_lsn_diff($1, confirmed_flush_lsn), 1e18)::float8, wal_status
    FROM pg_replication_slots WHERE slot_name = 'chaos'
"""
PAUSE_S: Final = 0.5
READ_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 300.0


class ChangeReader:
    """Reads the changes until it is stopped.

    Attributes:
        changes: The number of changes read.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._task: asyncio.Task[None] | None = None
        self.changes = 0
        self._position: object = None

    async def start(self) -> None:
        """Create publication and slot, and begin to read."""
        connection = await asyncpg.connect(self._dsn)
        try:
            await connection.execute(PUBLISH)
            await connection.execute(CREATE_SLOT)
        finally:
            await connection.close()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            with suppress(*BROKEN_CONNECTION):  # a fault of the server is in progress
                connection = await asyncpg.connect(self._dsn, timeout=2)
                try:
                    while True:
                        self.changes += await connection.fetchval(READ, timeout=READ_TIMEOUT_S)
                        await asyncio.sleep(PAUSE_S)
                finally:
                    connection.terminate()
            await asyncio.sleep(PAUSE_S)

    async def stop(self) -> Sequence[str]:
        """Read all that is there, and return what could not be read."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            # The verdict on the jobs must not depend on this connection, so a lost one is replaced.
            with suppress(*BROKEN_CONNECTION):
                return await self._read_rest()
            await asyncio.sleep(PAUSE_S)
        return [f"the changes could not be read within {STOP_TIMEOUT_S:g} s"]

    async def _read_rest(self) -> Sequence[str]:
        connection = await asyncpg.connect(self._dsn, timeout=2)
        try:
            if self._position is None:
                self._position = await connection.fetchval("SELECT pg_current_wal_flush_lsn()")
            # A machine that reads more slowly than it writes loses the slot, but not the verdict on the jobs.
            with suppress(asyncpg.ObjectNotInPrerequisiteStateError):
                while count := await connection.fetchval(READ, timeout=READ_TIMEOUT_S):
                    self.changes += count
            [(left, status)] = await connection.fetch(LEFT, self._position)
            return [f"{left:,.0f} bytes of changes were not read; the slot is {status}"] if left > 0 else []
        finally:
            connection.terminate()
