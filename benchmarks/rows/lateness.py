"""Lateness of timed jobs, also behind rows that the worker cannot claim."""

from __future__ import annotations

from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import BARE_LISTENER, BEFORE, OURS, Contestant
from benchmarks.results import Goal
from benchmarks.rows.latency import record_delays

TITLE: Final = "lateness of timed jobs, ms"

GOALS: Final = (
    Goal("p50", than="bare loop", most=1.25),
    Goal("p99", than="bare loop", most=1.25),
    Goal("earliest", least=0.0),
    Goal("p50, unregistered function in front", most=10.0),
    Goal("p50, orphans in front", most=10.0),
)

LEAD_S: Final = 1.5
"""More than the polling interval of the workers."""

ORPHANS: Final = (
    "UPDATE scheduled_jobs SET status = 'running', worker_id = 'dead', attempt = 1, last_heartbeat = now(),"
    " lease_until = now() + interval '1 day'"
)


async def measure(bench: Bench) -> None:
    """Enqueue timed jobs at random instants while a worker runs.

    Then do so behind due rows of an unregistered function, and behind rows that a dead worker holds under a
    lease of a day.
    """
    n = bench.scale(300, 40)
    rows = bench.scale(100_000, 20_000)

    async def one(contestant: Contestant, database: Database) -> None:
        mode = "default" if contestant.name in {"ours", "bare loop", BEFORE, "procrastinate"} else "tuned"
        async with database.worker(contestant, n=n, mode=mode) as worker:
            await database.run(contestant, "single", n=n, every=0.03, lead=LEAD_S)
            result = await worker.result()
        record_delays(bench, contestant.name, "", result["samples"], plot="Lateness of timed jobs, ms")
        bench.outcome.add(contestant.name, "earliest", 1000 * min(result["samples"]))

    await bench.alternate(bench.contestants(named=("PgQueuer", "graphile-worker"), bare=BARE_LISTENER), one)

    async def behind(contestant: Contestant, database: Database) -> None:
        await database.fill(contestant, rows, job="other")
        await database.settle()
        await timed(contestant, database, "unregistered function in front")

    async def behind_orphans(contestant: Contestant, database: Database) -> None:
        await database.fill(contestant, rows, job="other")
        async with database.connect() as connection:
            await connection.execute(ORPHANS)
        await database.settle()
        await timed(contestant, database, "orphans in front")

    async def timed(contestant: Contestant, database: Database, label: str) -> None:
        async with database.worker(contestant, n=n) as worker:
            await database.run(contestant, "single", n=n, every=0.03, lead=LEAD_S)
            result = await worker.result()
        record_delays(bench, contestant.name, label, result["samples"])

    for measure_one in (behind, behind_orphans):
        await bench.alternate([OURS], measure_one)
