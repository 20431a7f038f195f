"""Jobs of which one at most may run at a time in all processes."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import Contestant
from benchmarks.results import BEST, Goal
from benchmarks.rows.drain import rate

TITLE: Final = "drain of jobs of which one may run at a time: Limit(max_running=1), or the lock of a peer"

GOALS: Final = (Goal("jobs/s", than=BEST, least=1.0),)

PEERS: Final = ("PgQueuer", "procrastinate")

N: Final = {"PgQueuer": 100, "procrastinate": 100}
"""Fewer jobs for slow contestants."""


async def measure(bench: Bench) -> None:
    """Fill the table, settle and drain it."""

    async def one(contestant: Contestant, database: Database) -> None:
        n = N.get(contestant.name, 500) // bench.scale(1, 5)
        limit = {"max_running": 1}
        await database.fill(contestant, n, options=limit)
        await database.settle()
        results, _ = await bench.drained(contestant, database, n, "tuned", options=limit)
        bench.outcome.add(contestant.name, "jobs/s", rate(results))

    await bench.alternate(bench.contestants(named=PEERS, others=False), one)
