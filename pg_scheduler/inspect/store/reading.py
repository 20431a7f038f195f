"""Read in read-only transactions, on a bounded number of connections, with a time limit of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import asyncpg

from pg_scheduler.sqltext import quote_identifier
from pg_scheduler.store.connections.options import TRANSACTION_SETTINGS, ConnectionOptions
from pg_scheduler.store.connections.pool import Connections
from pg_scheduler.store.connections.session import Connection, transact_with
from pg_scheduler.store.faults import translated

ANSWER_MARGIN_S: Final = 3.0
"""Seconds by which a client waits longer for an answer than the server works on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How an Inspector reads.

    Attributes:
        connections: The maximum number of connections that it uses at the same time.
        statement_timeout_s: Seconds after which the server cancels a statement.
        application_name: The name of its sessions in ``pg_stat_activity`` while they read.
    """

    connections: int = 2
    statement_timeout_s: float = 2.0
    application_name: str = "pg_scheduler inspector"


class ReadingConnections(Connections):
    """Check out connections for read-only transactions.

    Every setting is local to its transaction, so the pool may be that of the application, and may lead to a
    pooler.
    """

    def __init__(self, pool: asyncpg.Pool, settings: ReadSettings) -> None:
        timeout_s = settings.statement_timeout_s + ANSWER_MARGIN_S
        super().__init__(pool, options=ConnectionOptions(call_timeout_s=timeout_s, hot_timeout_s=timeout_s))
        self._turns = asyncio.Semaphore(settings.connections)
        self._begin = (
            "SET TRANSACTION READ ONLY;"
            f" SET LOCAL statement_timeout = {round(settings.statement_timeout_s * 1000)};"
            f" SET LOCAL application_name = {quote_identifier(settings.application_name)};"
            f" {TRANSACTION_SETTINGS}"
        )

    @asynccontextmanager
    async def acquire(self, *, reserved: bool = False) -> AsyncIterator[Connection]:  # noqa: ARG002 - a worker has no part in it
        """Yield a connection in a read-only transaction."""
        timeout_s = self.options.call_timeout_s
        with translated():
            async with asyncio.timeout(timeout_s):
                await self._turns.acquire()
        try:
            async with (
                super().acquire() as connection,
                transact_with(connection, self._begin, timeout_s),
            ):
                yield connection
        finally:
            self._turns.release()

    def sticky(self, *, reserved: bool = False) -> AbstractAsyncContextManager[Connection]:
        """Yield a connection in a read-only transaction."""
        return self.acquire(reserved=reserved)

    @asynccontextmanager
    async def transaction(
        self,
        *,
        hot: bool = False,  # noqa: ARG002 - every transaction is alike
        reserved: bool = False,
    ) -> AsyncIterator[Connection]:
        """Yield a connection in a read-only transaction."""
        async with self.acquire(reserved=reserved) as connection:
            yield connection
