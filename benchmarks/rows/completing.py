"""Jobs that complete in the transaction of their effect, against the transaction alone and DBOS."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Final

import asyncpg

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal
from pg_scheduler import JobSpec, Scheduler, current_job, job
from pg_scheduler.events import JobCompleted

TITLE: Final = "jobs with one INSERT each, 100 at a time: completed in its transaction, or without completion"

GOALS: Final = (
    Goal("jobs/s", than="ours", than_measure="transactions/s, without jobs", least=0.5),
    Goal("jobs/s", than="DBOS", least=3.0),
)

SLOTS: Final = 100
CONNECTIONS: Final = 20
EFFECT: Final = "INSERT INTO effects VALUES ($1)"


@job(name="bench.completing")
async def work(number: int) -> None:
    """Write the effect and the completion in one transaction."""
    async with current_job().completing() as connection:
        await connection.execute(EFFECT, number)


async def measure(bench: Bench) -> None:
    """Measure the jobs and the transactions in turn, on one database, and workflows with one such step."""
    n = bench.scale(10_000, 1_000)
    peers = [peer for peer in bench.durable_peers() if peer.name == "DBOS"]

    async def one(contestant: Contestant, database: Database) -> None:
        if contestant in peers:
            await workflows(contestant, database)
            return
        async with asyncpg.create_pool(database.dsn, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
            await pool.execute("CREATE TABLE effects (number integer)")
            bench.outcome.add("ours", "transactions/s, without jobs", await _transactions(pool, n))
            bench.outcome.add("ours", "jobs/s", await _jobs(pool, n))
            assert await pool.fetchval("SELECT count(*) FROM effects") == 2 * n

    async def workflows(contestant: Contestant, database: Database) -> None:
        async with database.connect() as connection:
            await connection.execute("CREATE TABLE effects (name text)")
        count = n // 10  # fewer for a slow contestant
        await database.fill(contestant, count, job="write")
        options = {"slots": SLOTS}
        [result], _ = await bench.drained(contestant, database, count, "tuned", job="write", options=options)
        bench.outcome.add(contestant.name, "jobs/s", count / (result["last"] - result["first"]))

    await bench.alternate([OURS, *peers], one)


async def _transactions(pool: asyncpg.Pool, n: int) -> float:
    """Return the transactions with an effect that as many tasks as slots commit in a second."""
    numbers, began = iter(range(n)), time.perf_counter()

    async def write() -> None:
        for number in numbers:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute(EFFECT, number)

    await asyncio.gather(*(write() for _ in range(SLOTS)))
    return n / (time.perf_counter() - began)


async def _jobs(pool: asyncpg.Pool, n: int) -> float:
    """Return the jobs that complete in a second."""
    scheduler, ended, left = Scheduler(pool, max_concurrent_jobs=SLOTS), asyncio.Event(), n

    def count(_event: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            ended.set()

    await scheduler.initialize_db()
    await scheduler.schedule_bulk([JobSpec(work, datetime.now(UTC), args=(number,)) for number in range(n)])
    scheduler.subscribe(count, JobCompleted)
    began = time.perf_counter()
    async with scheduler:
        await ended.wait()
        return n / (time.perf_counter() - began)
