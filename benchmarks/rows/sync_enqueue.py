"""Throughput of single calls without asyncio: one by one, and from 8 threads."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import Contestant
from benchmarks.results import BEST, Goal

TITLE: Final = "enqueue without asyncio, one by one and from 8 threads"

GOALS: Final = (
    Goal("jobs/s, one by one", than=BEST, least=1.2),
    Goal("jobs/s, 8 threads", than=BEST, least=1.2),
)

PEERS: Final = ("procrastinate", "PgQueuer")
"""The peers that have a call without asyncio."""


async def measure(bench: Bench) -> None:
    """Enqueue without a worker."""

    async def one(contestant: Contestant, database: Database) -> None:
        n = bench.scale(5000, 1000)
        alone = await database.run(contestant, "blocking", n=n)
        bench.outcome.add(contestant.name, "jobs/s, one by one", n / alone["seconds"])
        many = await database.run(contestant, "blocking", n=n, callers=8)
        bench.outcome.add(contestant.name, "jobs/s, 8 threads", n / many["seconds"])

    await bench.alternate(bench.contestants(named=PEERS, others=False), one)
