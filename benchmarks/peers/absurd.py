"""The driver of absurd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd, AsyncTaskContext
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.peers.protocol import Order, Peer, record, run

QUEUE = "work"
TUNED_POLL_S = 0.02
WAIT_S = 3600


async def steps(params: Any, ctx: AsyncTaskContext) -> None:
    """Store as many steps as wanted."""
    record.begin()
    for number in range(params["steps"]):

        async def same(number: int = number) -> int:
            return number

        await ctx.step(f"step-{number}", same)
    record(params["t"])


async def wait(params: Any, ctx: AsyncTaskContext) -> None:
    """Wait for an event, and record when it arrives."""
    record.suspend()
    record(await ctx.await_event(params["user"]))


async def sleep(params: Any, ctx: AsyncTaskContext) -> None:  # noqa: ARG001 - a typical argument
    """Sleep for an hour without a worker."""
    record.suspend()
    await ctx.sleep_for("hour", WAIT_S)


HANDLERS = {"steps": steps, "wait": wait, "sleep": sleep}


class AbsurdPeer(Peer):
    """absurd. Tuned: the queue is polled every 20 ms."""

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self._app = AsyncAbsurd(order.dsn, queue_name=QUEUE)
        if order.job in HANDLERS:
            self._app.register_task(order.job)(HANDLERS[order.job])

    async def install(self) -> None:
        """Create the tables with the statements that absurdctl has."""
        async with await psycopg.AsyncConnection.connect(self.order.dsn, autocommit=True) as connection:
            await connection.execute(BUNDLED_SCHEMA_SQL)
        await self._app.create_queue(QUEUE)
        await self._app.close()

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Use the connection of the app."""
        yield

    async def send(self, arguments: dict[str, Any], due: float | None) -> None:  # noqa: ARG002
        """Call spawn()."""
        await self._app.spawn(self.order.job, arguments)

    async def send_many(self, arguments: list[dict[str, Any]], due: float | None) -> None:
        """Call spawn() for each job, because there is no bulk call."""
        for each in arguments:
            await self.send(each, due)

    async def signal(self, number: int, value: float) -> None:
        """Call emit_event()."""
        await self._app.emit_event(f"user-{number}@example.org", value)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run a worker."""
        options = {"poll_interval": TUNED_POLL_S} if self.order.tuned else {}
        slots = self.order.options.get("slots", 1)
        working = asyncio.create_task(self._app.start_worker(concurrency=slots, **options))
        yield
        self._app.stop_worker()
        await working


def main(order: str) -> None:
    """Run the driver."""
    run(AbsurdPeer, order)
