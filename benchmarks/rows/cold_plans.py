"""Claims with statements that were planned while the table was empty."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal, percentile
from benchmarks.rows.drain import rate

TITLE: Final = "worker started on an empty table, then 500,000 rows in bulk, no ANALYZE"

GOALS: Final = (
    Goal("slowest claim, ms", than="ours", than_measure="slowest claim, settled table, ms", most=2),
)


async def measure(bench: Bench) -> None:
    """Measure a cold worker, and as a control one that starts on the same rows, vacuumed and analysed.

    Slow claims that the control has too are not caused by plans.
    """
    n = bench.scale(500_000, 50_000)
    options = {"trace": True, "poll": 0.01, "claim": 100, "slots": 200}

    async def cold(contestant: Contestant, database: Database) -> None:
        async with database.connect() as connection:
            await connection.execute(
                "ALTER TABLE scheduled_jobs SET (autovacuum_analyze_threshold = 2000000000)"
            )
        async with database.worker(contestant, n=n, mode="tuned", options=options) as worker:
            await asyncio.sleep(2)  # hundreds of claims without a result, after which the plans are cached
            await database.fill(contestant, n)
            result = await worker.result()
            record("", result, worker.events["claims"][0])

    async def settled(contestant: Contestant, database: Database) -> None:
        await database.fill(contestant, n)
        await database.settle()
        async with database.worker(contestant, n=n, mode="tuned", options=options) as worker:
            result = await worker.result()
            record(", settled table", result, worker.events["claims"][0])

    def record(suffix: str, result: dict[str, Any], claims: dict[str, Any]) -> None:
        took: list[float] = claims["milliseconds"]
        bench.outcome.add("ours", f"slowest claim{suffix}, ms", max(took))
        bench.outcome.add("ours", f"claim p50{suffix}, ms", percentile(sorted(took), 0.5))
        bench.outcome.add("ours", f"claim p99{suffix}, ms", percentile(sorted(took), 0.99))
        bench.outcome.add("ours", f"jobs/s{suffix}", rate([result]))

    for _ in range(bench.scale(2, 1)):
        await bench.alternate([OURS], cold, rounds=1)
        await bench.alternate([OURS], settled, rounds=1)
    bench.outcome.note("claims of up to 100 jobs with as many completions, waits for the event loop included")
