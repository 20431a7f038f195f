"""A thousand jobs due at the same instant."""

from __future__ import annotations

import time
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import BARE_LISTENER, OURS, Contestant
from benchmarks.peers.protocol import Mode
from benchmarks.results import Goal

TITLE: Final = "1,000 jobs due at one instant: ms until the last has started"

GOALS: Final = (Goal("last start, tuned", than="bare loop", most=1.5),)

N: Final = 1000


async def measure(bench: Bench) -> None:
    """Insert the jobs before the worker starts, which is idle until they are due."""

    async def herd(contestant: Contestant, database: Database, mode: Mode) -> None:
        # Without a bulk call, inserting takes seconds.
        due = time.time() + (bench.scale(4, 3) if contestant.has_bulk else 9)
        await database.fill(contestant, N, due=due)
        async with database.worker(contestant, n=N, mode=mode) as worker:
            result = await worker.result()
        if result["samples"]:
            bench.outcome.add(contestant.name, f"last start, {mode}", 1000 * max(result["samples"]))
            bench.outcome.add(contestant.name, f"first start, {mode}", 1000 * min(result["samples"]))

    async def one(contestant: Contestant, database: Database) -> None:
        await herd(contestant, database, "tuned")

    async def default(contestant: Contestant, database: Database) -> None:
        await herd(contestant, database, "default")

    await bench.alternate(bench.contestants(named=("PgQueuer",), bare=BARE_LISTENER), one)
    await bench.alternate([OURS], default)
