"""Drain of a backlog of jobs that fail for good, whose failures are counted for the page of errors."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import Contestant
from benchmarks.results import Goal
from benchmarks.rows.drain import record_drain

TITLE: Final = "drain of a backlog of 20,000 jobs that fail for good, at default settings (25 slots)"

GOALS: Final[tuple[Goal, ...]] = ()


async def measure(bench: Bench) -> None:
    """Fill the table, settle and drain it."""

    async def one(contestant: Contestant, database: Database) -> None:
        n = bench.scale(20_000, 2_000)
        await database.fill(contestant, n, job="fail")
        await database.settle()
        results, load = await bench.drained(contestant, database, n, "default", job="fail")
        record_drain(bench.outcome, contestant.name, results, load, n)

    await bench.alternate(bench.contestants(), one)
