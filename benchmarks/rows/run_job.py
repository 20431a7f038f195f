"""Jobs whose results are awaited."""

from __future__ import annotations

import statistics
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import Contestant
from benchmarks.results import BEST, Goal, percentile

TITLE: Final = "results read by 100 waiters, each of which enqueues its next job when it has one"

GOALS: Final = (Goal("results/s", than=BEST, least=1.2),)

WAITERS: Final = 100


async def measure(bench: Bench) -> None:
    """Enqueue, run and read in one process."""

    async def one(contestant: Contestant, database: Database) -> None:
        n = bench.scale(5_000, 1_000)
        result = await database.run(contestant, "results", n=n, callers=WAITERS, mode="tuned")
        bench.outcome.add(contestant.name, "results/s", n / result["seconds"])
        delays = [1000 * delay for delay in result["delays"]]
        bench.outcome.add(contestant.name, "ms until the result, p50", statistics.median(delays))
        bench.outcome.add(contestant.name, "ms until the result, p99", percentile(delays, 0.99))

    await bench.alternate(bench.contestants(named=("APScheduler",), others=False), one)
