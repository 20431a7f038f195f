"""Drain of a backlog with 16, 64 and 256 slots, by jobs without work and by jobs of a millisecond."""

from __future__ import annotations

from typing import Final, Literal

from benchmarks.bench import Bench, Database
from benchmarks.contestants import Contestant
from benchmarks.results import Goal
from benchmarks.rows.drain import rate

TITLE: Final = "drain with 16, 64 and 256 slots, jobs without work and of 1 ms, claims of the default size"

GOALS: Final = (
    Goal("jobs/s, 16 slots", than="before", least=1.5),
    Goal("jobs/s, 16 slots, 1 ms", than="PgQueuer", least=1.0),
)

SLOTS: Final = (16, 64, 256)
N: Final = 30_000
JOBS: Final[tuple[tuple[Literal["work", "short"], str], ...]] = (("work", ""), ("short", ", 1 ms"))


async def measure(bench: Bench) -> None:
    """Fill the table, settle and drain it, with each number of slots and each job."""
    n = N // bench.scale(1, 3)
    for slots in SLOTS:
        for job, suffix in JOBS:
            label = f"{slots} slots{suffix}"

            async def one(contestant: Contestant, database: Database) -> None:
                await database.fill(contestant, n, job=job)  # noqa: B023 - called within this pass
                await database.settle()
                mode: Literal["default", "tuned"] = "tuned" if contestant.kind == "node" else "default"
                results, load = await bench.drained(
                    contestant,
                    database,
                    n,
                    mode,
                    job=job,  # noqa: B023
                    options={"slots": slots},  # noqa: B023
                )
                add = bench.outcome.add
                add(contestant.name, f"jobs/s, {label}", rate(results))  # noqa: B023
                cpu = load.cpu_seconds + sum(result["cpu"] for result in results)
                add(contestant.name, f"us/job, {label}", 1e6 * cpu / n)  # noqa: B023
                add(contestant.name, f"transactions/job, {label}", load.transactions / n)  # noqa: B023

            await bench.alternate(bench.contestants(named=("graphile-worker", "PgQueuer"), others=False), one)
