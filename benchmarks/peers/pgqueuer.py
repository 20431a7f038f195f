"""The driver of PgQueuer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from threading import local
from typing import Any

import asyncpg
import psycopg
from pgqueuer import PgQueuer  # type: ignore[import-not-found]
from pgqueuer.db import (  # type: ignore[import-not-found]
    AsyncpgDriver,
    AsyncpgPoolDriver,
    SyncPsycopgDriver,
)
from pgqueuer.queries import Queries, SyncQueries  # type: ignore[import-not-found]

from benchmarks.peers.protocol import SHORT_S, Peer, record, run


async def work(job: Any) -> None:
    """Record the start."""
    record(json.loads(job.payload)["t"])


async def short(job: Any) -> None:
    """Record the start and wait for a millisecond."""
    await work(job)
    await asyncio.sleep(SHORT_S)


class Queuer(Peer):
    """PgQueuer on one asyncpg connection as documented, a pool for many callers. Tuned: batches of 500."""

    async def install(self) -> None:
        """Create the tables."""
        connection = await asyncpg.connect(self.order.dsn)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Open its queries on a connection or a pool."""
        if self.order.callers > 1:
            async with asyncpg.create_pool(self.order.dsn, min_size=10, max_size=10) as pool:
                self._queries = Queries(AsyncpgPoolDriver(pool))
                yield
            return
        connection = await asyncpg.connect(self.order.dsn)
        self._queries = Queries(AsyncpgDriver(connection))
        yield
        await connection.close()

    async def send(self, arguments: dict[str, Any], due: float | None) -> None:
        """Call enqueue()."""
        await self._queries.enqueue("work", json.dumps(arguments).encode(), execute_after=_delay(due))

    async def send_many(self, arguments: list[dict[str, Any]], due: float | None) -> None:
        """Call enqueue() with 10,000 jobs at a time."""
        for start in range(0, len(arguments), 10_000):
            batch = [json.dumps(each).encode() for each in arguments[start : start + 10_000]]
            await self._queries.enqueue(
                ["work"] * len(batch), batch, [0] * len(batch), [_delay(due)] * len(batch)
            )

    @contextmanager
    def blocking(self) -> Iterator[Callable[[dict[str, Any]], object]]:
        """Call enqueue() with one connection of psycopg for each thread."""
        connections = local()
        opened = []

        def send(arguments: dict[str, Any]) -> object:
            if not hasattr(connections, "queries"):
                connection = psycopg.connect(self.order.dsn, autocommit=True)
                opened.append(connection)
                connections.queries = SyncQueries(SyncPsycopgDriver(connection))
            return connections.queries.enqueue("work", json.dumps(arguments).encode())

        yield send
        for connection in opened:
            connection.close()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run a queue manager."""
        connection = await asyncpg.connect(self.order.dsn)
        queuer = PgQueuer.from_asyncpg_connection(connection)
        most = self.order.options.get("max_running", 0)  # 0 for no limit
        queuer.entrypoint("work", concurrency_limit=most)(short if self.order.job == "short" else work)
        settings = {"batch_size": 500} if self.order.tuned else {}
        if slots := self.order.options.get("slots"):  # it requires room for two batches
            settings = {"batch_size": slots // 2, "max_concurrent_tasks": slots}
        running = asyncio.create_task(queuer.run(**settings))
        # It does not report that it has started.
        await asyncio.sleep(0 if self.order.n >= 5000 else 1)
        yield
        queuer.shutdown.set()
        await running
        await connection.close()


def _delay(due: float | None) -> timedelta | None:
    return None if due is None else timedelta(seconds=max(0.0, due - time.time()))


def main(order: str) -> None:
    """Run the driver."""
    run(Queuer, order)
