"""Throughput behind due jobs of an unregistered function."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.rows.burden import burdened, goal

TITLE: Final = "100,000 due rows of an unregistered function at the head"

GOALS: Final = (goal(0.7),)


async def measure(bench: Bench) -> None:
    """Insert the jobs of the other function with earlier due times."""
    n = bench.scale(100_000, 20_000)

    @asynccontextmanager
    async def burden(contestant: Contestant, database: Database) -> AsyncIterator[int]:
        await database.fill(contestant, n, job="other")
        yield n

    await burdened(bench, [OURS], bench.scale(100_000, 20_000), burden)
