"""Throughput while a long transaction keeps every dead row version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import Contestant
from benchmarks.results import Curve, Goal
from benchmarks.rows.drain import rate

TITLE: Final = "another session holds a snapshot open through 300,000 jobs"

GOALS: Final = (Goal("end / start", least=0.7),)

PLOT: Final = "Throughput under a held snapshot"
EDGE_SHARE: Final = 0.2
"""The share of the jobs at the start, without the very first ones, and at the end."""


async def measure(bench: Bench) -> None:
    """Compare the rates at the start and at the end of a drain."""
    n = bench.scale(300_000, 60_000)

    async def one(contestant: Contestant, database: Database) -> None:
        await database.fill(contestant, n)
        await database.settle()
        async with held_snapshot(database):
            (result,), _ = await bench.drained(contestant, database, n, "tuned")
        marks: list[tuple[float, int]] = result["marks"]
        start = [mark for mark in marks if 0.02 * n <= mark[1] <= EDGE_SHARE * n]
        end = [mark for mark in marks if mark[1] >= (1 - EDGE_SHARE) * n]
        bench.outcome.add(contestant.name, "jobs/s", rate([result]))
        bench.outcome.add(contestant.name, "end / start", _rate(end) / _rate(start))
        bench.outcome.curves.append(_curve(contestant.name, marks[:: max(1, len(marks) // 50)]))

    peers = [] if bench.quick else bench.peers(named=("graphile-worker", "PgQueuer", "pg-boss"), others=False)
    await bench.alternate([*bench.contestants(others=False), *peers], one, rounds=bench.scale(2, 1))


@asynccontextmanager
async def held_snapshot(database: Database) -> AsyncIterator[None]:
    """Hold a snapshot, as a report or an idle transaction does."""
    async with database.connect() as connection, connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("SELECT count(*) FROM pg_class")
        yield


def _rate(marks: list[tuple[float, int]]) -> float:
    (began, least), (ended, most) = marks[0], marks[-1]
    return (most - least) / (ended - began)


def _curve(contestant: str, marks: list[tuple[float, int]]) -> Curve:
    rates = [(after[1], _rate([before, after])) for before, after in pairwise(marks) if after[0] > before[0]]
    return Curve(PLOT, contestant, [float(count) for count, _ in rates], [each for _, each in rates])
