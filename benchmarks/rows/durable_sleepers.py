"""Thousands of jobs that sleep in a durable step."""

from __future__ import annotations

import asyncio
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal

TITLE: Final = "10,000 jobs that sleep for an hour in a durable step, in one worker"

GROWTH: Final = "growth of memory, MiB"
IDLE: Final = "transactions/min"
IDLE_WITHOUT: Final = "transactions/min, no job"
GOALS: Final = (
    Goal(GROWTH, than="DBOS", most=0.1),
    Goal(IDLE, than="ours", than_measure=IDLE_WITHOUT, most=1.25),
)

SLOTS: Final = 100
SETTLE_S: Final = 3.0
"""Seconds after which the last job sleeps too, and autovacuum has ended."""


async def measure(bench: Bench) -> None:
    """Measure the memory of the worker, and the transactions while all jobs sleep, and without any."""
    n, seconds = bench.scale(10_000, 1_000), bench.scale(30, 10)

    async def one(contestant: Contestant, database: Database) -> None:
        # A job that sleeps in memory keeps its slot.
        slots = n if contestant.name == "DBOS" else SLOTS
        order = {"job": "sleep", "options": {"slots": slots}}
        async with database.worker(contestant, **order):
            without = await _transactions_per_minute(database, seconds)
        await database.fill(contestant, n, job="sleep")
        await database.settle()
        async with database.worker(contestant, n=n, **order) as worker:
            await worker.suspended()
            idle = await _transactions_per_minute(database, seconds)
            result = await worker.stop()
            started = worker.events["started"][0]
        bench.outcome.add(contestant.name, "memory, MiB", result["rss"] / 2**20)
        bench.outcome.add(contestant.name, GROWTH, (result["rss"] - started["rss"]) / 2**20)
        bench.outcome.add(contestant.name, IDLE, idle)
        bench.outcome.add(contestant.name, IDLE_WITHOUT, without)

    await bench.alternate([OURS, *bench.durable_peers()], one, rounds=1)


async def _transactions_per_minute(database: Database, seconds: float) -> float:
    """Count the transactions of some seconds without autovacuum, which makes more than an idle worker."""
    async with database.connect() as connection:
        await connection.execute("ALTER SYSTEM SET autovacuum = off")
        await connection.execute("SELECT pg_reload_conf()")
        try:
            await asyncio.sleep(SETTLE_S)
            before = await database.counters()
            await asyncio.sleep(seconds)  # time is the subject
            after = await database.counters()
        finally:
            await connection.execute("ALTER SYSTEM RESET autovacuum")
            await connection.execute("SELECT pg_reload_conf()")
    return 60 * (after.transactions - before.transactions) / (after.seconds - before.seconds)
