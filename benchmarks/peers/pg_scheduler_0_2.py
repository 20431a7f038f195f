"""The driver of pg-scheduler 0.2.3."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.peers.protocol import Peer, record, run
from pg_scheduler import JobSpec, PollingConfig, Scheduler


async def work(t: float, user: str) -> None:  # noqa: ARG001 - a typical argument
    """Record the start."""
    record(t)


class Old(Peer):
    """pg-scheduler 0.2.3. Tuned: 100 slots, claims of 100, polls every 10 to 50 ms."""

    async def install(self) -> None:
        """Create the tables.

        Raises:
            RuntimeError: Another version was imported.
        """
        found = sys.modules[Scheduler.__module__].__file__ or ""
        if not Path(found).is_relative_to(sys.prefix):
            raise RuntimeError(f"{found} was imported instead of version 0.2.3")
        async with self._pool() as pool:
            await Scheduler(pool).initialize_db()

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Open a Scheduler without starting it."""
        async with self._pool() as pool:
            self._sender = Scheduler(pool, misfire_grace_time=None)
            yield

    async def send(self, arguments: dict[str, Any], due: float | None) -> None:
        """Call schedule()."""
        await self._sender.schedule(work, execution_time=_instant(due), kwargs=arguments)

    async def send_many(self, arguments: list[dict[str, Any]], due: float | None) -> None:
        """Call schedule_bulk()."""
        instant = _instant(due)
        await self._sender.schedule_bulk([JobSpec(work, instant, kwargs=each) for each in arguments])

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Run a Scheduler."""
        settings: dict[str, Any] = {}
        if self.order.tuned:
            settings = {
                "max_concurrent_jobs": 100,
                "batch_claim_limit": 100,
                "polling_config": PollingConfig(
                    min_interval=0, idle_start_interval=0.01, max_interval=0.05, semaphore_full_interval=0.005
                ),
            }
        async with self._pool() as pool:
            scheduler = Scheduler(pool, misfire_grace_time=None, **settings)
            # It registers functions only in schedule(), and fails jobs of other functions.
            vars(scheduler)["task_map"]["work"] = work
            await scheduler.start()
            yield
            await scheduler.shutdown()

    def _pool(self) -> asyncpg.Pool:
        return asyncpg.create_pool(self.order.dsn, min_size=1, max_size=20)


def _instant(due: float | None) -> datetime:
    return datetime.now(UTC) if due is None else datetime.fromtimestamp(due, UTC)


def main(order: str) -> None:
    """Run the driver."""
    run(Old, order)
