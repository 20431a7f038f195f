"""Thousands of sleeping jobs in one worker."""

from __future__ import annotations

import asyncio
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal

TITLE: Final = "10,000 jobs sleeping at once in one worker"

GOALS: Final = (Goal("KiB per job", most=8),)


async def measure(bench: Bench) -> None:
    """Measure the starts, the memory, and the work of the database while the jobs sleep."""
    n, seconds = bench.scale(10_000, 10_000), bench.scale(120, 6)

    async def one(contestant: Contestant, database: Database) -> None:
        await database.fill(contestant, n, job="nap")
        options = {"slots": n, "claim": 500, "report": 0.2, "shutdown_timeout": 0.5}
        async with database.worker(contestant, job="nap", options=options) as worker:
            while (report := await worker.wait_for("report"))["count"] < n:
                pass
            started = worker.events["started"][0]
            bench.outcome.add("ours", "KiB per job", (report["rss"] - started["rss"]) / n / 1024)
            before = await database.counters()
            await asyncio.sleep(seconds)  # time is the subject
            after = await database.counters()
            result = await worker.stop()
        minutes = (after.seconds - before.seconds) / 60
        bench.outcome.add("ours", "starts/s", n / (report["last"] - result["first"]))
        bench.outcome.add("ours", "transactions/min", (after.transactions - before.transactions) / minutes)
        bench.outcome.add("ours", "WAL KiB/min", (after.wal_bytes - before.wal_bytes) / 1024 / minutes)
        bench.outcome.add("ours", "server CPU s/min", (after.cpu_seconds - before.cpu_seconds) / minutes)
        async with database.connect() as connection:
            pending = await connection.fetchval(
                "SELECT count(*) FROM scheduled_jobs WHERE status = 'pending'"
            )
        bench.outcome.add("ours", "released at shutdown", pending)

    await bench.alternate([OURS], one, rounds=1)
