"""Transactions of many writers, each of which may schedule a job, and how soon that job starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import asyncpg

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal, percentile
from pg_scheduler import Scheduler, job
from pg_scheduler.settings import Notify

TITLE: Final = "transactions of 64 writers, a second, each with a job or none; pick-up after the commit, ms"

WRITERS: Final = 64
MODES: Final[tuple[Notify, ...]] = ("commit", "hint", "never")
GOALS: Final = (Goal("a job, hint", than="ours", than_measure="a job, never", least=0.9),)

starts: dict[str, float] = {}
"""When each job started."""


@job(name="bench.commits")
async def work(number: str) -> None:
    """Record the start."""
    starts[number] = time.perf_counter()


async def measure(bench: Bench) -> None:
    """Let the modes take turns, without a worker; then commit one job after the other, with a worker."""
    seconds, samples = bench.scale(5, 1), bench.scale(200, 20)

    async def one(_contestant: Contestant, database: Database) -> None:
        async with asyncpg.create_pool(database.dsn, min_size=WRITERS, max_size=WRITERS) as pool:
            await pool.execute("CREATE TABLE orders (number integer, text text)")
            bench.outcome.add("ours", "no job", await _rate(pool, None, seconds))
            for mode in MODES:
                scheduler = Scheduler(pool, notify=mode)
                bench.outcome.add("ours", f"a job, {mode}", await _rate(pool, scheduler, seconds))
            await pool.execute("DELETE FROM scheduled_jobs")
        for mode in MODES[:2]:
            delays = await _delays(database.dsn, mode, samples)
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                bench.outcome.add("ours", f"pick-up {name}, {mode}", 1000 * percentile(delays, share))

    await bench.alternate([OURS], one)


async def _rate(pool: asyncpg.Pool, scheduler: Scheduler | None, seconds: float) -> float:
    """Return the transactions of all writers in a second."""
    number, ends_at = 0, time.perf_counter() + seconds

    async def write() -> None:
        nonlocal number
        while time.perf_counter() < ends_at:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute("INSERT INTO orders VALUES ($1, 'x')", number)
                if scheduler is not None:
                    await scheduler.schedule(
                        work, execution_time=datetime.now(UTC), args=("",), connection=connection
                    )
            number += 1

    await asyncio.gather(*(write() for _ in range(WRITERS)))
    return number / seconds


async def _delays(dsn: str, mode: Notify, samples: int) -> list[float]:
    """Return the seconds from a commit to the start of its job by a worker that only notifications reach."""
    open_pool: Callable[[], Any] = lambda: asyncpg.create_pool(dsn, min_size=1, max_size=5)  # noqa: E731
    delays = []
    starts.clear()
    async with open_pool() as own, open_pool() as pool, Scheduler(own):
        sender = Scheduler(pool, notify=mode)
        for place in range(samples):
            number = f"{mode} {place}"
            async with pool.acquire() as connection, connection.transaction():
                await sender.schedule(
                    work, execution_time=datetime.now(UTC), args=(number,), connection=connection
                )
            committed = time.perf_counter()
            while number not in starts:  # noqa: ASYNC110 - the job sets it
                await asyncio.sleep(0.0005)
            delays.append(starts[number] - committed)
            await asyncio.sleep(0.02)
    return delays[samples // 10 :]
