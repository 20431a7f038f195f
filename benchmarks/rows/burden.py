"""Compare a drain behind other rows with a drain of an empty table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import Contestant
from benchmarks.results import Goal
from benchmarks.rows.drain import rate

EMPTY: Final = "jobs/s, empty table"
BURDENED: Final = "jobs/s, burdened"

Burden = Callable[[Contestant, Database], AbstractAsyncContextManager[int]]
"""Inserts the other rows; yields the number of jobs that remain unfinished."""


def goal(least: float) -> Goal:
    """Return the goal for the ratio of the two drains."""
    return Goal(BURDENED, than="ours", than_measure=EMPTY, least=least)


@asynccontextmanager
async def no_burden(_contestant: Contestant, _database: Database) -> AsyncIterator[int]:
    """Insert nothing."""
    yield 0


async def burdened(bench: Bench, contestants: list[Contestant], n: int, burden: Burden) -> None:
    """Drain n jobs of an empty table, then n jobs behind the burden, each in a new database."""
    cases: tuple[tuple[str, Burden], ...] = ((EMPTY, no_burden), (BURDENED, burden))
    for label, case in cases * (1 if bench.quick else 2):

        async def one(
            contestant: Contestant, database: Database, label: str = label, case: Burden = case
        ) -> None:
            count = min(n, contestant.drain)
            async with case(contestant, database) as left:
                await database.fill(contestant, count)
                await database.settle()
                results, _ = await bench.drained(contestant, database, count, "tuned", left=left)
            bench.outcome.add(contestant.name, label, rate(results))

        bench.progress(label)
        await bench.alternate(contestants, one, rounds=1)
