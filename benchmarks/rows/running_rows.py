"""Throughput while long-running rows are at the head of the index."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.rows.burden import burdened, goal

TITLE: Final = "10,000 long-running rows in front of the queue"

GOALS: Final = (goal(0.9),)


@asynccontextmanager
async def holding(database: Database, n: int) -> AsyncIterator[None]:
    """Run another worker with n sleeping jobs."""
    await database.fill(OURS, n, job="nap")
    options = {"slots": n, "claim": 500, "report": 0.2}
    async with database.worker(OURS, job="nap", options=options) as worker:
        while (await worker.wait_for("report"))["count"] < n:
            pass
        yield


async def measure(bench: Bench) -> None:
    """Drain while a worker in another process holds the running rows."""
    n = bench.scale(10_000, 2000)

    @asynccontextmanager
    async def burden(_contestant: Contestant, database: Database) -> AsyncIterator[int]:
        async with holding(database, n):
            yield n

    await burdened(bench, [OURS], bench.scale(100_000, 20_000), burden)
