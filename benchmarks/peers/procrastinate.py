"""The driver of procrastinate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any

import procrastinate

from benchmarks.peers.protocol import Order, Peer, record, run


async def work(t: float, user: str) -> None:  # noqa: ARG001 - a typical argument
    """Record the start."""
    record(t)


class Procrastinate(Peer):
    """procrastinate. Tuned: a concurrency of 100."""

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        connector = procrastinate.PsycopgConnector(conninfo=order.dsn, min_size=1, max_size=20)
        self._app = procrastinate.App(connector=connector)
        self._task = self._app.task(name="work")(work)

    async def install(self) -> None:
        """Create the tables."""
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Open the app."""
        async with self._app.open_async():
            yield

    async def send(self, arguments: dict[str, Any], due: float | None) -> None:
        """Call defer_async()."""
        await self._timed(due).defer_async(**arguments)

    async def send_many(self, arguments: list[dict[str, Any]], due: float | None) -> None:
        """Call batch_defer_async() with 10,000 jobs at a time."""
        for start in range(0, len(arguments), 10_000):
            await self._timed(due).batch_defer_async(*arguments[start : start + 10_000])

    @contextmanager
    def blocking(self) -> Iterator[Callable[[dict[str, Any]], object]]:
        """Call defer() with a pool of psycopg."""
        connector = procrastinate.SyncPsycopgConnector(conninfo=self.order.dsn, min_size=1, max_size=20)
        app = procrastinate.App(connector=connector)
        task = app.task(name="work")(work)
        with app.open():
            yield lambda arguments: task.defer(**arguments)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run a worker."""
        settings = {"concurrency": 100} if self.order.tuned else {}
        async with self._app.open_async():
            running = asyncio.create_task(
                self._app.run_worker_async(install_signal_handlers=False, **settings)
            )
            await asyncio.sleep(0 if self.order.n >= 5000 else 1)  # it does not report that it has started
            yield
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _timed(self, due: float | None) -> Any:
        if self.order.options.get("max_running") == 1:
            return self._task.configure(lock="one")
        if due is None:
            return self._task
        return self._task.configure(schedule_at=datetime.fromtimestamp(due, UTC))


def main(order: str) -> None:
    """Run the driver."""
    run(Procrastinate, order)
