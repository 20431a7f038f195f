"""Drain of a backlog with one worker process and tuned settings."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, Database, Load
from benchmarks.contestants import BARE, OURS, Contestant
from benchmarks.results import Curve, Goal, Outcome

TITLE: Final = "drain of a backlog of 200,000 jobs, one worker process, tuned, history kept"

GOALS: Final = (
    Goal("jobs/s", than="graphile-worker", least=1.05),
    Goal("jobs/s", than="PgQueuer", least=3.3),
    Goal("jobs/s", than="bare loop", least=0.6),
)


def rate(results: list[dict[str, float]]) -> float:
    """Return the jobs per second from the first start to the last, over all workers."""
    seconds = max(result["last"] for result in results) - min(result["first"] for result in results)
    return sum(result["count"] for result in results) / seconds


def record_drain(
    outcome: Outcome, contestant: str, results: list[dict[str, float]], load: Load, n: int
) -> None:
    """Record the rate and its cost."""
    outcome.add(contestant, "jobs/s", rate(results))
    outcome.add(contestant, "worker us/job", 1e6 * sum(result["cpu"] for result in results) / n)
    outcome.add(contestant, "server us/job", 1e6 * load.cpu_seconds / n)
    outcome.add(contestant, "transactions/job", load.transactions / n)
    outcome.add(contestant, "WAL bytes/job", load.wal_bytes / n)


async def measure(bench: Bench) -> None:
    """Fill the table, settle and drain it."""

    async def one(contestant: Contestant, database: Database) -> None:
        n = contestant.drain // bench.scale(1, 5)
        await database.fill(contestant, n)
        await database.settle()
        results, load = await bench.drained(contestant, database, n, "tuned")
        record_drain(bench.outcome, contestant.name, results, load, n)
        bench.outcome.note(
            f"{contestant.name}: {n:,} jobs; {contestant.tuned}; {contestant.note}".rstrip("; ")
        )

    await bench.alternate(bench.contestants(named=("graphile-worker", "PgQueuer"), bare=BARE), one)
    if not bench.quick:
        await _sweep(bench)


async def _sweep(bench: Bench) -> None:
    """Measure the throughput against the claim size with ample slots, and against the slots."""
    curves = {
        "claim size": [{"claim": size, "slots": 2 * size} for size in (1, 10, 25, 50, 100, 200, 500, 1000)],
        "slots": [{"claim": 500, "slots": slots} for slots in (10, 25, 50, 100, 250, 500, 1000, 2000)],
    }
    for name, settings in curves.items():
        rates: list[float] = []
        for options in settings:
            bench.progress(f"sweep: {options}")
            n = 100_000 if min(options.values()) >= 50 else 20_000
            async with bench.database(OURS) as database:
                await database.fill(OURS, n)
                await database.settle()
                results, _ = await bench.drained(OURS, database, n, "tuned", options=options)
                rates.append(rate(results))
        keys = {"claim size": "claim", "slots": "slots"}
        bench.outcome.curves.append(
            Curve(f"Throughput against {name}", "ours", [float(each[keys[name]]) for each in settings], rates)
        )
