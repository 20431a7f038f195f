"""The cost of an idle worker."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.drivers import Driver
from benchmarks.results import Goal

TITLE: Final = "idle worker with default settings: transactions per minute"

GOALS: Final = (Goal("transactions/min", most=18),)

SETTLE_S: Final = 15
"""The start is excluded; a session that becomes idle reports its counters after ten seconds."""


async def measure(bench: Bench) -> None:
    """Run all contestants concurrently, each in a database with counters of its own."""
    seconds = bench.scale(120, 20)
    async with AsyncExitStack() as stack:
        running: list[tuple[Contestant, Database, Driver]] = []
        for contestant in bench.contestants(named=("PgQueuer", "pg-scheduler 0.2.3")):
            database = await stack.enter_async_context(bench.database(contestant))
            options = {"statements": True} if contestant is OURS else {}
            worker = await stack.enter_async_context(database.worker(contestant, options=options))
            running.append((contestant, database, worker))
        bench.progress(f"{len(running)} idle workers for {seconds} s")
        await asyncio.sleep(SETTLE_S)
        began = time.time()
        before = [await database.counters() for _, database, _ in running]
        await asyncio.sleep(seconds)
        for (contestant, database, _), start in zip(running, before, strict=True):
            end = await database.counters()
            count = end.transactions - start.transactions
            bench.outcome.add(contestant.name, "transactions/min", 60 * count / (end.seconds - start.seconds))
        ended = time.time()
        for contestant, _, worker in running:
            bench.outcome.add(contestant.name, "memory MiB", (await worker.stop())["rss"] / 2**20)
            for event in worker.events.get("statements", ()):
                counts = Counter(statement for at, statement in event["seen"] if began <= at <= ended)
                bench.outcome.note(f"{contestant.name} in {seconds} s: {_text(counts)}")
    if bench.quick:
        bench.outcome.note(f"extrapolated from {seconds} s, so events once a minute count 0 or 3 times")


def _text(counts: Counter[str]) -> str:
    return ", ".join(f'{count} x "{statement}"' for statement, count in counts.most_common())
