"""Many schedules that are due at the same instant."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal

TITLE: Final = "schedules due at one instant: seconds until the last job is planned, and until it has started"

GOALS: Final = (Goal("10,000 planned", most=2.0),)

N: Final = 10_000
N_STARTED: Final = 1_000
"""APScheduler adds some hundred schedules per second."""

LEAD_S: Final = 10.0
PLANNED: Final = "SELECT count(*) FROM scheduled_jobs"


async def measure(bench: Bench) -> None:
    """Add the schedules before the worker starts, which is idle until they are due."""

    async def planned(contestant: Contestant, database: Database) -> None:
        n = N // bench.scale(1, 5)
        due = await _add(contestant, database, n, LEAD_S + n / 500)
        async with database.worker(contestant, options={"role": "scheduler"}) as worker:
            async with database.connect() as connection, asyncio.timeout(60):
                await asyncio.sleep(due - time.time())
                while await connection.fetchval(PLANNED) < n:  # noqa: ASYNC110 - another process plans
                    await asyncio.sleep(0.02)
            bench.outcome.add(contestant.name, f"{n:,} planned", time.time() - due)
            await worker.stop()

    async def started(contestant: Contestant, database: Database) -> None:
        n = N_STARTED // bench.scale(1, 5)
        due = await _add(contestant, database, n, LEAD_S + n / 100)
        async with database.worker(contestant, n=n, mode="tuned") as worker:
            result = await worker.result()
        bench.outcome.add(contestant.name, f"{n:,} started", result["last"] - due)

    await bench.alternate([OURS], planned)
    await bench.alternate(bench.contestants(named=("APScheduler",), others=False), started)


async def _add(contestant: Contestant, database: Database, n: int, lead: float) -> float:
    due = time.time() + lead
    await database.fill(contestant, n, due=due, options={"schedules": True})
    await database.settle()
    return due
