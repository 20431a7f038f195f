"""A drain with something in the way, against the same drain without."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import Contestant
from benchmarks.results import Goal
from benchmarks.rows.drain import rate

__all__ = ["BURDENED", "EMPTY", "Burden", "burdened", "goal", "nothing"]

EMPTY: Final = "jobs/s, empty table"
BURDENED: Final = "jobs/s, burdened"

Burden = Callable[[Contestant, Database], AbstractAsyncContextManager[int]]
"""Puts something in the way; gives the number of jobs that the drain must leave unfinished."""


def goal(least: float) -> Goal:
    """What a burden may cost."""
    return Goal(BURDENED, than="ours", than_measure=EMPTY, least=least)


@asynccontextmanager
async def nothing(_contestant: Contestant, _database: Database) -> AsyncIterator[int]:
    """No burden."""
    yield 0


async def burdened(bench: Bench, contestants: list[Contestant], n: int, burden: Burden) -> None:
    """Drain n jobs of an empty table, then n jobs behind the burden, each in its own database."""
    cases: tuple[tuple[str, Burden], ...] = ((EMPTY, nothing), (BURDENED, burden))
    for word, case in cases * (1 if bench.quick else 2):

        async def one(
            contestant: Contestant, database: Database, word: str = word, case: Burden = case
        ) -> None:
            count = min(n, contestant.drain)
            async with case(contestant, database) as left:
                await database.fill(contestant, count)
                await database.settle()
                results, _ = await bench.drained(contestant, database, count, "tuned", left=left)
            bench.outcome.add(contestant.name, word, rate(results))

        bench.progress(word)
        await bench.alternate(contestants, one, rounds=1)
