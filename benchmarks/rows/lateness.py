"""Lateness of timed jobs."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import BEFORE, Contestant
from benchmarks.results import Goal
from benchmarks.rows.latency import record_delays

__all__ = ["GOALS", "TITLE", "measure"]

TITLE: Final = "lateness of timed jobs, ms"

GOALS: Final = (
    Goal("p50", most=1.5),
    Goal("p99", most=4.0),
    Goal("earliest", least=0.0),
)

LEAD_S: Final = 1.5
"""More than the polling interval of the workers."""


async def measure(bench: Bench) -> None:
    """Enqueue timed jobs at random instants while a worker runs."""
    n = bench.scale(300, 40)

    async def one(contestant: Contestant, database: Database) -> None:
        mode = "default" if contestant.name in {"ours", BEFORE, "procrastinate"} else "tuned"
        async with database.worker(contestant, n=n, mode=mode) as worker:
            await database.run(contestant, "single", n=n, every=0.03, lead=LEAD_S)
            result = await worker.result()
        record_delays(bench, contestant.name, "", result["samples"], plot="Lateness of timed jobs, ms")
        bench.outcome.add(contestant.name, "earliest", 1000 * min(result["samples"]))

    await bench.alternate(bench.contestants(named=("PgQueuer", "graphile-worker")), one)
