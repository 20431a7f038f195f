"""A constant load for a long time."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Curve, Goal

TITLE: Final = "soak at 2,000 jobs/s"

GOALS: Final = (
    Goal("jobs/s", least=1900),
    Goal("memory, % per 10 min", most=5),
    Goal("table, % per 10 min", most=5),
    Goal("indexes, % per 10 min", most=5),
)

CALLERS: Final = 32
RATE: Final = 2000
MIN_MINUTES: Final = 10
"""In a shorter run the tables are still growing."""

INTERVAL_S: Final = 5.0


async def measure(bench: Bench) -> None:
    """Enqueue one by one from another process; completed jobs are deleted, so that the table can stay flat.

    The slope is that of the last two thirds of the run.
    """

    async def one(contestant: Contestant, database: Database) -> None:
        n = int(RATE * 60 * bench.soak_minutes)
        options = {"report": INTERVAL_S, "keep": False}
        points: list[tuple[float, ...]] = []
        async with database.worker(contestant, mode="tuned", options=options) as worker:
            began = time.monotonic()
            sending = asyncio.create_task(
                database.run(
                    contestant,
                    "single",
                    n=n,
                    callers=CALLERS,
                    rate=RATE,
                    timeout=120 * bench.soak_minutes,
                )
            )
            async with database.connect() as connection:
                while not sending.done():
                    report = await worker.wait_for("report")
                    sizes = await connection.fetchrow(
                        "SELECT pg_table_size('scheduled_jobs'), pg_indexes_size('scheduled_jobs')"
                    )
                    assert sizes is not None
                    minutes = (time.monotonic() - began) / 60
                    points.append((minutes, report["rss"], sizes[0], sizes[1], report["count"]))
                    bench.progress(f"{minutes:.1f} min, {report['count']:,} jobs, {report['rss'] >> 20} MiB")
            await sending
            await worker.stop()
        await database.check_finished(contestant)
        late = points[len(points) // 3 :]
        reached = (late[-1][4] - late[0][4]) / (late[-1][0] - late[0][0]) / 60
        bench.outcome.add("ours", "jobs/s", reached)
        if reached < 0.95 * RATE:
            bench.outcome.note(f"the load was {reached:,.0f} jobs/s instead of {RATE:,}")
        if bench.soak_minutes < MIN_MINUTES:
            bench.outcome.note(f"shorter than {MIN_MINUTES} minutes, so the tables were still growing")
        for name, column in (("memory", 1), ("table", 2), ("indexes", 3)):
            minutes_, values = [point[0] for point in late], [point[column] for point in late]
            slope = statistics.linear_regression(minutes_, values).slope
            middle = statistics.median(values)
            bench.outcome.add("ours", f"{name}, MiB", middle / 2**20)
            bench.outcome.add("ours", f"{name}, % per 10 min", 1000 * slope / middle)
            bench.outcome.curves.append(
                Curve(
                    "Soak: size over time, MiB",
                    name,
                    [point[0] for point in points],
                    [point[column] / 2**20 for point in points],
                )
            )
        bench.outcome.note(f"{bench.soak_minutes:g} minutes; VacuumPolicy.immediate() for completed jobs")

    await bench.alternate([OURS], one, rounds=1)
