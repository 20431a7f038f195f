"""Throughput of bulk calls."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import Contestant
from benchmarks.results import BEST, Goal

TITLE: Final = "bulk enqueue of 20,000 jobs"

GOALS: Final = (Goal("jobs/s", than=BEST, least=1.3),)

N: Final = 20_000


async def measure(bench: Bench) -> None:
    """Insert some jobs to warm up the table, then measure in another process."""

    async def one(contestant: Contestant, database: Database) -> None:
        await database.fill(contestant, 1000)
        result = await database.fill(contestant, N)
        bench.outcome.add(contestant.name, "jobs/s", N / result["seconds"])

    named = ("graphile-worker", "pg-boss", "PgQueuer")
    contestants = [each for each in bench.contestants(named=named) if each.has_bulk]
    await bench.alternate(contestants, one, rounds=max(3, bench.rounds))
