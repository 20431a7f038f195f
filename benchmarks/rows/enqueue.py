"""Throughput of single calls: one by one, and from 32 concurrent callers."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import BARE_LISTENER, Contestant
from benchmarks.results import BEST, Goal

TITLE: Final = "enqueue one by one, and from 32 concurrent callers"

GOALS: Final = (
    Goal("jobs/s, one by one", than=BEST, least=1.2),
    Goal("jobs/s, one by one", than="bare loop", least=0.8),
    Goal("jobs/s, 32 callers", than="ours", than_measure="jobs/s, one by one", least=8),
)


async def measure(bench: Bench) -> None:
    """Enqueue without a worker."""

    async def one(contestant: Contestant, database: Database) -> None:
        n = bench.scale(5000, 1000)
        alone = await database.run(contestant, "single", n=n)
        bench.outcome.add(contestant.name, "jobs/s, one by one", n / alone["seconds"])
        if contestant is BARE_LISTENER:  # one connection, for one caller
            return
        n *= 2
        many = await database.run(contestant, "single", n=n, callers=32)
        bench.outcome.add(contestant.name, "jobs/s, 32 callers", n / many["seconds"])

    await bench.alternate(
        bench.contestants(named=("PgQueuer", "pg-scheduler 0.2.3"), bare=BARE_LISTENER), one
    )
