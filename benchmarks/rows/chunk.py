"""Jobs in chunks of 100, beside the same jobs plain, whose function makes one call to another service."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg

from benchmarks.bench import Bench
from benchmarks.contestants import OURS
from benchmarks.results import Goal
from pg_scheduler import Chunk, JobSpec, Scheduler

TITLE: Final = "drain of 10,000 jobs, plain and in chunks of 100, 100 slots"

SLOTS: Final = 100
SIZE: Final = 100
CALL_S: Final = 0.05
"""Seconds that the call of the other service takes, for one item or for 100."""

PLAIN: Final = "jobs/s, plain"
CHUNKS: Final = "jobs/s, in chunks"
PLAIN_CALLS: Final = "jobs/s with a call of 50 ms, plain"
CHUNK_CALLS: Final = "jobs/s with a call of 50 ms, in chunks"
CALLS: Final = "calls for 100 jobs, in chunks"

GOALS: Final = (
    Goal(CHUNKS, than="ours", than_measure=PLAIN, least=0.5),
    Goal(CHUNK_CALLS, than="ours", than_measure=PLAIN_CALLS, least=1.0),
)


async def measure(bench: Bench) -> None:
    """Drain the same jobs in the four ways, in turn."""
    count = bench.scale(10_000, 2_000)
    for _ in range(max(2, bench.rounds)):
        for name, is_chunked, call_s in (
            (PLAIN, False, 0.0),
            (CHUNKS, True, 0.0),
            (PLAIN_CALLS, False, CALL_S),
            (CHUNK_CALLS, True, CALL_S),
        ):
            async with bench.database(OURS) as database:
                jobs = Jobs(count, call_s)
                bench.outcome.add("ours", name, await jobs.drain(database.dsn, is_chunked=is_chunked))
                if is_chunked:
                    bench.outcome.add("ours", CALLS, jobs.calls * SIZE / count)


class Jobs:
    """Jobs that only wait for the other service."""

    def __init__(self, count: int, call_s: float) -> None:
        self.count = self.left = count
        self.call_s = call_s
        self.calls = 0
        self.ended = asyncio.Event()
        self.began = 0.0

    async def plain(self, _item: int) -> None:
        """Make a call for one item."""
        await self._call(1)

    async def chunk(self, chunk: Chunk[int]) -> None:
        """Make a call for all items."""
        await self._call(len(chunk))

    async def _call(self, items: int) -> None:
        self.began = self.began or time.monotonic()
        self.calls += 1
        if self.call_s:
            await asyncio.sleep(self.call_s)
        self.left -= items
        if not self.left:
            self.ended.set()

    async def drain(self, dsn: str, *, is_chunked: bool) -> float:
        """Run all jobs; return the jobs per second."""
        async with asyncpg.create_pool(dsn, min_size=2, max_size=10) as pool:
            scheduler = Scheduler(pool, max_concurrent_jobs=SLOTS)
            func = self.chunk if is_chunked else self.plain
            scheduler.register(func, name="job", chunk=SIZE if is_chunked else None)
            await scheduler.initialize_db()
            due = datetime.now(UTC) - timedelta(minutes=1)
            await scheduler.schedule_bulk(
                [JobSpec(func, due, args=(number,), misfire_grace_time=None) for number in range(self.count)]
            )
            await pool.execute("VACUUM ANALYZE scheduled_jobs")
            await pool.execute("CHECKPOINT")
            async with scheduler:
                await self.ended.wait()
                return self.count / (time.monotonic() - self.began)
