"""A constant load for minutes while other sessions hold snapshots: throughput, lateness, processor time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

import asyncpg

from benchmarks.bench import Bench, Database
from benchmarks.contestants import Contestant
from benchmarks.drivers import Driver
from benchmarks.results import Goal
from benchmarks.rows.snapshot import held_snapshot

RATE: Final = 800
SLOTS: Final = 32
CALLERS: Final = 32
INTERVAL_S: Final = 30.0
WARM_UP_S: Final = 5.0
"""Seconds of load before the snapshots are taken."""

READERS: Final = 4
READERS_APART_S: Final = 3.0


class Variant(NamedTuple):
    """A kind of jobs, and who holds snapshots meanwhile."""

    holders: int
    """Sessions that hold a snapshot."""
    keep: bool = True
    """Whether the rows of completed jobs stay."""
    lead: float | None = None
    """The least seconds until a job is due, which vary by up to 4 more; None for immediately."""


VARIANTS: Final = {
    "none": Variant(0),
    "snapshot": Variant(1),
    "readers": Variant(READERS),
    "immediate-none": Variant(0, keep=False),
    "immediate-snapshot": Variant(1, keep=False),
    "timed-none": Variant(0, lead=1.0),
    "timed-snapshot": Variant(1, lead=1.0),
}
"""The variants by name. Each one with snapshots has one without them to compare with."""

TITLE: Final = f"{RATE} jobs/s for minutes while other sessions hold snapshots"

GOALS: Final = tuple(
    goal
    for held, free in (
        ("snapshot", "none"),
        ("readers", "none"),
        ("immediate-snapshot", "immediate-none"),
        ("timed-snapshot", "timed-none"),
    )
    for goal in (
        Goal(f"{held}: completed / offered", least=0.99),
        Goal(f"{held}: p99, ms", than="ours", than_measure=f"{free}: p99, ms", most=5.0),
        Goal(
            f"{held}: server CPU, us/job", than="ours", than_measure=f"{free}: server CPU, us/job", most=3.0
        ),
    )
)


class _Interval(NamedTuple):
    """The values of a report of the worker and of the counters of the server at one instant."""

    at: float
    started: int
    cpu_seconds: float


async def measure(bench: Bench) -> None:
    """Enqueue one by one from another process, with a worker of 32 slots.

    The snapshots are taken after some seconds of load, and held to the end. The figures are those of the last
    third of the run.
    """
    for name in bench.variants or VARIANTS:

        async def one(contestant: Contestant, database: Database, name: str = name) -> None:
            await _one(bench, contestant, database, name)

        await bench.alternate(bench.contestants(others=False), one, rounds=1)
    bench.outcome.note(f"{bench.soak_minutes:g} minutes each; the figures are those of the last third")


async def _one(bench: Bench, contestant: Contestant, database: Database, name: str) -> None:
    variant = VARIANTS[name]
    seconds = 60 * bench.soak_minutes
    interval_s = min(INTERVAL_S, seconds / 3)
    options = {"slots": SLOTS, "report": interval_s, "keep": variant.keep}
    async with database.worker(contestant, options=options) as worker, AsyncExitStack() as holders:
        sending = asyncio.create_task(
            database.run(
                contestant,
                "single",
                n=int(RATE * seconds),
                callers=CALLERS,
                rate=RATE,
                lead=variant.lead,
                options={} if variant.lead is None else {"spread": 4.0},
                timeout=10 * seconds,
            )
        )
        holding = asyncio.create_task(_hold(database, variant.holders, holders))
        points = await _follow(bench, database, worker, sending, f"{contestant.name}, {name}")
        await sending
        await holding
        await worker.stop()
    late = points[2 * len(points) // 3 :]
    began = points[2 * len(points) // 3 - 1][0]
    ended, _ = late[-1]
    completed = ended.started - began.started
    for measure_name, value in {
        "completed / offered": completed / (ended.at - began.at) / RATE,
        "p50, ms": max(report["p50"] for _, report in late),
        "p99, ms": max(report["p99"] for _, report in late),
        "server CPU, us/job": 1e6 * (ended.cpu_seconds - began.cpu_seconds) / max(completed, 1),
    }.items():
        bench.outcome.add(contestant.name, f"{name}: {measure_name}", value)


async def _follow(
    bench: Bench, database: Database, worker: Driver, sending: asyncio.Task[Any], label: str
) -> list[tuple[_Interval, dict[str, Any]]]:
    """Print a line for each report of the worker while jobs are sent, and return all of them."""
    points: list[tuple[_Interval, dict[str, Any]]] = []
    before = _Interval(time.monotonic(), 0, (await database.counters()).cpu_seconds)
    while True:
        report = await worker.wait_for("report")
        if sending.done():
            break
        if not report["count"]:
            continue  # the first report comes at the start
        now = _Interval(time.monotonic(), report["count"], (await database.counters()).cpu_seconds)
        done = now.started - before.started
        bench.progress(
            f"{label}: {done / (now.at - before.at):6.1f} jobs/s, lateness p50 {report['p50']:.1f} ms"
            f" p99 {report['p99']:.1f} ms, server CPU"
            f" {1e6 * (now.cpu_seconds - before.cpu_seconds) / max(done, 1):.0f} us/job"
        )
        points.append((now, report))
        before = now
    return points


async def _hold(database: Database, count: int, stack: AsyncExitStack) -> None:
    """Hold snapshots until the stack closes: every other session is idle, the others run a query."""
    await asyncio.sleep(WARM_UP_S)
    for number in range(count):
        if number % 2:
            await stack.enter_async_context(_running_query(database))
        else:
            await stack.enter_async_context(held_snapshot(database))
        await asyncio.sleep(READERS_APART_S)


@asynccontextmanager
async def _running_query(database: Database) -> AsyncIterator[None]:
    """Run a query without end in a transaction that is READ COMMITTED."""
    async with database.connect() as connection:
        query = asyncio.create_task(connection.execute("SELECT pg_sleep(1e6)"))
        try:
            yield
        finally:
            query.cancel()
            with suppress(asyncio.CancelledError, asyncpg.PostgresError):
                await query
