"""The driver of APScheduler 4."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
from apscheduler import AsyncScheduler
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from apscheduler.eventbrokers.asyncpg import AsyncpgEventBroker
from apscheduler.triggers.date import DateTrigger
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.peers.protocol import Order, Peer, record, run


async def work(t: float, user: str) -> None:  # noqa: ARG001 - a typical argument
    """Record the start."""
    record(t)


class AP(Peer):
    """APScheduler 4. Tuned: 100 concurrent jobs (its default), no limit per task (default: one)."""

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self._scheduler: Any = None

    async def install(self) -> None:
        """Start it, which creates its tables."""
        async with self._open():
            pass

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Open a scheduler without starting it; reuse the one of a worker in the same process."""
        if self._scheduler is not None:
            yield
            return
        async with self._open() as self._scheduler:
            await self._configure()
            yield

    async def send(self, arguments: dict[str, Any], due: float | None) -> None:
        """Call add_job(), or add_schedule() for a timed job."""
        if due is None:
            await self._scheduler.add_job("work", kwargs=arguments)
        else:
            await self._scheduler.add_schedule(
                "work", DateTrigger(datetime.fromtimestamp(due, UTC)), kwargs=arguments
            )

    async def send_many(self, arguments: list[dict[str, Any]], due: float | None) -> None:
        """Insert the jobs one by one from 10 tasks, because there is no bulk call."""
        each = iter(arguments)

        async def caller() -> None:
            for one in each:
                await self.send(one, due)

        await asyncio.gather(*(caller() for _ in range(10)))

    async def result_of(self, arguments: dict[str, Any]) -> object:
        """Call run_job()."""
        return await self._scheduler.run_job("work", kwargs=arguments)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run a scheduler."""
        async with self._open() as self._scheduler:
            await self._configure()
            await self._scheduler.start_in_background()
            yield
            await self._scheduler.stop()
            await self._scheduler.wait_until_stopped()

    async def _configure(self) -> None:
        limits = {"max_running_jobs": None} if self.order.tuned else {}
        await self._scheduler.configure_task("work", func=work, job_executor="async", **limits)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        engine = create_async_engine(
            "postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(self.order.dsn), pool_size=20
        )
        broker = AsyncpgEventBroker(self.order.dsn)
        async with AsyncScheduler(SQLAlchemyDataStore(engine), broker, max_concurrent_jobs=100) as scheduler:
            yield scheduler
        await engine.dispose()


def main(order: str) -> None:
    """Run the driver."""
    run(AP, order)
