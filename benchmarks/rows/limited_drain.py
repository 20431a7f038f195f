"""Drain of a backlog of a limited task that has room, compared with the same task without a limit."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench
from benchmarks.contestants import OURS
from benchmarks.results import Goal
from benchmarks.rows.drain import rate

TITLE: Final = "drain of a backlog of a limited task with room, one key, tuned"

GOALS: Final = (Goal("limited jobs/s", than="ours", than_measure="plain jobs/s", least=0.5),)

N: Final = 50_000
MOST: Final = 100_000
"""A limit that is never reached."""


async def measure(bench: Bench) -> None:
    """Drain a backlog without a limit and one with it, in turn."""
    n = N // bench.scale(1, 5)
    for _ in range(max(2, bench.rounds)):
        for name, options in (("plain", {}), ("limited", {"max_running": MOST})):
            async with bench.database(OURS) as database:
                await database.fill(OURS, n)
                await database.settle()
                results, load = await bench.drained(OURS, database, n, "tuned", options=options)
                bench.outcome.add("ours", f"{name} jobs/s", rate(results))
                bench.outcome.add("ours", f"{name} WAL bytes/job", load.wal_bytes / n)
