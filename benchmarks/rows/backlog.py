"""Throughput with many future and finished rows in the table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal, percentile
from benchmarks.rows.burden import burdened, goal

TITLE: Final = "500,000 future jobs of the highest priority and 1,000,000 finished rows in the table"

EMPTY_POLL: Final = "empty poll, ms in the server"
POLL_TRIP: Final = "round trip of it, ms"
TRIVIAL_TRIP: Final = "round trip of SELECT 1, ms"
GOALS: Final = (goal(0.9), Goal(POLL_TRIP, than="ours", than_measure=TRIVIAL_TRIP, most=4))


async def measure(bench: Bench) -> None:
    """Insert future jobs, run others to finish them, then drain; peers finish as many as in their drain."""
    future, finished = bench.scale(500_000, 50_000), bench.scale(1_000_000, 40_000)

    @asynccontextmanager
    async def burden(contestant: Contestant, database: Database) -> AsyncIterator[int]:
        await fill_future(contestant, database, future)
        done = finished if contestant is OURS else min(finished, contestant.drain)
        await database.fill(contestant, done)
        await bench.drained(contestant, database, done, "tuned", left=future)
        yield future

    contestants = bench.contestants(others=False)
    if not bench.quick:
        contestants += bench.peers(named=("PgQueuer", "graphile-worker", "procrastinate"), others=False)
    await burdened(bench, contestants, bench.scale(100_000, 20_000), burden)
    async with bench.database(OURS) as database:
        await fill_future(OURS, database, future)
        await empty_poll(bench, database)


async def fill_future(contestant: Contestant, database: Database, n: int) -> None:
    """Insert jobs that are due tomorrow."""
    options = {"priority": "critical"} if contestant is OURS else {}
    await database.fill(contestant, n, due=time.time() + 86_400, options=options)


async def empty_poll(bench: Bench, database: Database) -> None:
    """Measure a claim without a result: the server's time, and its round trip compared with a trivial one."""
    async with database.worker(OURS, options={"trace": True, "poll": 0.01}) as worker:
        await asyncio.sleep(3)  # time is the subject
        await worker.stop()
        (claims,) = worker.events["claims"]
    if "execution" not in claims:
        bench.outcome.note("no statement matched CLAIM in ours.py")
        return
    bench.outcome.add("ours", EMPTY_POLL, claims["execution"])
    bench.outcome.add("ours", POLL_TRIP, percentile(claims["milliseconds"], 0.5))
    bench.outcome.add("ours", TRIVIAL_TRIP, claims["select_one"])
