"""Drain of a backlog with default settings."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import Contestant
from benchmarks.results import Goal
from benchmarks.rows.drain import record_drain

TITLE: Final = "drain of a backlog at default settings (25 slots)"

GOALS: Final = (
    Goal("jobs/s", than="pg-scheduler 0.2.3", least=40),
    Goal("jobs/s", than="PgQueuer", least=1.0),
)


async def measure(bench: Bench) -> None:
    """Fill the table, settle and drain it."""

    async def one(contestant: Contestant, database: Database) -> None:
        n = contestant.drain_default // bench.scale(1, 5)
        await database.fill(contestant, n)
        await database.settle()
        results, load = await bench.drained(contestant, database, n, "default")
        record_drain(bench.outcome, contestant.name, results, load, n)

    named = ("pg-scheduler 0.2.3", "PgQueuer")
    await bench.alternate([each for each in bench.contestants(named=named) if each.drain_default], one)
