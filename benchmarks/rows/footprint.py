"""What a process needs for a worker that has nothing to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal

TITLE: Final = "idle worker with default settings: modules, memory and connections of its process"

IDLE: Final = "MiB, idle"

GOALS: Final = (
    Goal("connections", most=3),
    Goal(IDLE, than="procrastinate", most=1.2),
    Goal(IDLE, than="PgQueuer", most=1.25),
    Goal(IDLE, than="our needs", most=1.5),
)

DRIVER: Final = "benchmarks.peers.idle_workers"

NEEDS: Final = replace(OURS, name="our needs")
"""asyncpg, pydantic and croniter without this library, which bound what it could need at best."""

SESSIONS: Final = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


async def measure(bench: Bench) -> None:
    """Let each library start a worker in a process of its own, under the event loop of asyncio."""

    async def one(contestant: Contestant, database: Database) -> None:
        library = "ours" if contestant.kind == "here" and contestant is not NEEDS else contestant.name
        idle_worker = replace(contestant, driver=DRIVER)
        async with database.worker(idle_worker, options={"library": library}) as worker:
            async with database.connect() as connection:
                sessions = await connection.fetchval(SESSIONS)
            (started,) = worker.events["started"]
            await worker.stop()
        for measure_name, value in (
            ("import, ms", 1e3 * started["import_s"]),
            ("modules after import", started["import_modules"]),
            ("MiB after import", started["import_rss"] / 2**20),
            ("modules, idle", started["modules"]),
            (IDLE, started["rss"] / 2**20),
            ("connections", sessions),
        ):
            bench.outcome.add(contestant.name, measure_name, value)

    named = ("PgQueuer", "procrastinate")
    await bench.alternate(bench.contestants(named=named, bare=NEEDS, others=False), one)
    bench.outcome.note("our needs: asyncpg, pydantic and croniter alone, with three connections")
