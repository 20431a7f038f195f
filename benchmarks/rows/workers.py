"""Throughput of two, four and eight worker processes compared with one."""

from __future__ import annotations

import os
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import BARE, Contestant
from benchmarks.results import Goal
from benchmarks.rows.drain import rate

TITLE: Final = "one, two, four and eight worker processes, tuned"

GOALS: Final = (
    Goal("jobs/s, 2 workers", than="ours", than_measure="jobs/s, 1 worker", least=1.25),
    Goal("jobs/s, 2 workers", than="graphile-worker", least=1.15),
    Goal("jobs/s, 4 workers", than="graphile-worker", least=1.1),
)

WORKERS: Final = {1: "1 worker", 2: "2 workers", 4: "4 workers", 8: "8 workers"}


async def measure(bench: Bench) -> None:
    """Drain the same backlog with each number of workers, and measure the load of the processors."""

    async def one(contestant: Contestant, database: Database) -> None:
        n = contestant.drain // bench.scale(1, 5)
        for workers, label in WORKERS.items():
            await database.fill(contestant, n)
            await database.settle()
            results, load = await bench.drained(contestant, database, n, "tuned", workers=workers)
            bench.outcome.add(contestant.name, f"jobs/s, {label}", rate(results))
            seconds = n / rate(results)
            workers_busy = sum(result["cpu"] for result in results) / seconds
            bench.outcome.add(contestant.name, f"server cores busy, {label}", load.cpu_seconds / seconds)
            bench.outcome.add(contestant.name, f"worker cores busy, {label}", workers_busy)
        bench.outcome.note(f"the machine has {len(os.sched_getaffinity(0))} cores")

    await bench.alternate(bench.contestants(named=("graphile-worker",), bare=BARE, others=False), one)
