"""Signals to waiting jobs."""

from __future__ import annotations

import asyncio
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal
from benchmarks.rows.latency import record_delays

TITLE: Final = "signal of another process to a waiting job, from the call until the job has its value, ms"

GOALS: Final = (Goal("p50", than="DBOS", most=1.0), Goal("p50", than="absurd", most=0.5))

PAUSE_S: Final = 0.05
SETTLE_S: Final = 2.0
"""Seconds after which the last job waits too."""


async def measure(bench: Bench) -> None:
    """Send one signal to each of many waiting jobs, one after the other."""
    n = bench.scale(200, 40)

    async def one(contestant: Contestant, database: Database) -> None:
        await database.fill(contestant, n, job="wait")
        order = {"n": n, "job": "wait", "mode": "tuned", "options": {"slots": n}}
        async with (
            database.worker(contestant, **order) as worker,
            database.driver(contestant, "signals", n=n, every=PAUSE_S) as sender,
        ):
            await worker.suspended()
            await asyncio.sleep(SETTLE_S)
            await sender.ready()
            await sender.go()
            await sender.result()
            samples: list[float] = (await worker.result())["samples"]
        # The first ones are left out because they run with cold caches.
        record_delays(bench, contestant.name, "", samples[min(5, n // 10) :], plot=TITLE)

    await bench.alternate([OURS, *bench.durable_peers()], one)
