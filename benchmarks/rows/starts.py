"""Forty workers that start at once, and the lateness of jobs of a worker that runs."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Final

import asyncpg

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal
from benchmarks.rows.lateness import LEAD_S
from pg_scheduler import Scheduler

TITLE: Final = "40 workers with pools of 3 start at once, an up-to-date schema"

START: Final = "seconds per start"
LATE: Final = "latest job of a running worker, ms"

GOALS: Final = (Goal(START, most=0.25), Goal(LATE, most=50))

WORKERS: Final = 40
POOL_SIZE: Final = 3
EVERY_S: Final = 0.02


async def measure(bench: Bench) -> None:
    """Enqueue timed jobs for one worker, and start the others in this process while they are due."""
    workers = bench.scale(WORKERS, 8)
    n = bench.scale(300, 150)

    async def one(contestant: Contestant, database: Database) -> None:
        async with database.worker(contestant, n=n, mode="default") as worker:
            enqueue = asyncio.create_task(database.run(contestant, "single", n=n, every=EVERY_S, lead=LEAD_S))
            await asyncio.sleep(LEAD_S + n * EVERY_S / 4)  # jobs are due, and more will be
            seconds = await start(database.dsn, workers)
            await enqueue
            result = await worker.result()
        bench.outcome.add(contestant.name, START, seconds / workers)
        bench.outcome.add(contestant.name, LATE, 1000 * max(result["samples"]))

    await bench.alternate([OURS], one)


async def start(dsn: str, workers: int) -> float:
    """Start the workers at once and return the seconds until all of them run."""
    async with AsyncExitStack() as stack:
        pools = [
            await stack.enter_async_context(asyncpg.create_pool(dsn, min_size=0, max_size=POOL_SIZE))
            for _ in range(workers)
        ]
        schedulers = [Scheduler(pool) for pool in pools]
        began = time.perf_counter()
        await asyncio.gather(*(scheduler.start() for scheduler in schedulers))
        seconds = time.perf_counter() - began
        await asyncio.gather(*(scheduler.shutdown() for scheduler in schedulers))
    return seconds
