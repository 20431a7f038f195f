"""Turns of tenants: the wait of a quiet tenant beside a backlog of another one, and what a share costs."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg

from benchmarks.bench import Bench
from benchmarks.contestants import OURS
from benchmarks.results import Goal, percentile
from pg_scheduler import JobSpec, Scheduler, Share

TITLE: Final = "jobs of 50 ms, 25 slots, a backlog of one tenant and a job of another one every 100 ms"

DURATION_S: Final = 0.05
SLOTS: Final = 25
EVERY_S: Final = 0.1

WAIT: Final = "wait of the quiet tenant p99, ms"
GOALS: Final = (
    Goal("jobs/s with a share", than="ours", than_measure="jobs/s", least=0.95),
    Goal(WAIT, most=3000 * DURATION_S),
)


async def measure(bench: Bench) -> None:
    """Run a backlog without a share, with one, and with one beside a quiet tenant, in turn."""
    for _ in range(max(2, bench.rounds)):
        for name, share, is_beside in (
            ("jobs/s", None, False),
            ("jobs/s with a share", Share(key=_tenant), False),
            (WAIT, Share(key=_tenant), True),
        ):
            async with bench.database(OURS) as database:
                tenants = Tenants()
                rate = await tenants.run(database.dsn, share, bench.scale(20, 5), is_beside=is_beside)
                waits = sorted(tenants.waits_ms)
                bench.outcome.add("ours", name, percentile(waits, 0.99) if is_beside else rate)


def _tenant(tenant: str, *_: Any) -> str:
    return tenant


class Tenants:
    """The jobs of two tenants."""

    def __init__(self) -> None:
        self.count = 0
        self.waits_ms: list[float] = []

    async def job(self, _tenant: str, sent_at: float) -> None:
        """Record the wait of the quiet tenant, and take the time that every job takes."""
        if sent_at:
            self.waits_ms.append(1000 * (time.monotonic() - sent_at))
        await asyncio.sleep(DURATION_S)
        self.count += 1

    async def run(self, dsn: str, share: Share | None, seconds: int, *, is_beside: bool) -> float:
        """Run a backlog for some seconds; return the jobs per second."""
        async with asyncpg.create_pool(dsn, min_size=2, max_size=10) as pool:
            scheduler = Scheduler(pool, max_concurrent_jobs=SLOTS)
            scheduler.register(self.job, name="job", share=share)
            await scheduler.initialize_db()
            due = datetime.now(UTC) - timedelta(minutes=1)
            count = round(2 * seconds * SLOTS / DURATION_S)
            await scheduler.schedule_bulk(
                [JobSpec(self.job, due, args=("loud", 0.0), misfire_grace_time=None)] * count
            )
            async with scheduler:
                begin = time.monotonic()
                while (now := time.monotonic()) < begin + seconds:
                    if is_beside:
                        await scheduler.enqueue("job", args=("quiet", now))
                    await asyncio.sleep(EVERY_S)
                return self.count / (time.monotonic() - begin)
