"""A batch of jobs with a callback, compared with the same batch alone."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench
from benchmarks.contestants import OURS
from benchmarks.results import Goal
from benchmarks.rows.drain import rate

TITLE: Final = "batch of 10,000 jobs, alone and with one job after all of them, tuned"

GOALS: Final[tuple[Goal, ...]] = ()

N: Final = 10_000


async def measure(bench: Bench) -> None:
    """Insert and drain a batch without a callback and one with it, in turn."""
    n = N // bench.scale(1, 5)
    for _ in range(max(3, bench.rounds)):
        for name, extra in (("alone", 0), ("with a callback", 1)):
            async with bench.database(OURS) as database:
                filled = await database.fill(OURS, n, options={"callback": bool(extra)})
                await database.settle()
                results, load = await bench.drained(OURS, database, n + extra, "tuned")
                bench.outcome.add("ours", f"s to insert, {name}", filled["seconds"])
                bench.outcome.add("ours", f"jobs/s, {name}", rate(results))
                bench.outcome.add("ours", f"WAL bytes/job, {name}", load.wal_bytes / n)
