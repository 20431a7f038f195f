"""The migration of a table of pg-scheduler 0.2.3 with millions of jobs, up and down."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg

from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.migrate import missing_indexes
from tools.environment import ROOT
from tools.upgrade import legacy
from tools.upgrade.fleet import Fleet, RehearsalError
from tools.upgrade.legacy import LegacyError
from tools.upgrade.rehearsal import Log, keep_if_needed, open_database
from tools.upgrade.releases import OLD_RELEASE, Release, environment_with, install

SHARES: Final = {
    "completed": 0.78,
    "failed": 0.05,
    "expired": 0.01,
    "cancelled": 0.01,
    "pending": 0.15,
}
"""The part of the jobs that has each status. Besides, some are running."""

RUNNING: Final = 50
DUE: Final = 0.01
"""The part of all jobs that is pending and due."""

RUN_S: Final = 600.0
PROBE_S: Final = 0.01
POLL_S: Final = 0.5

_COUNTS = "SELECT status, count(*) FROM scheduled_jobs GROUP BY 1"
_TABLE_BYTES = "SELECT pg_table_size('scheduled_jobs')"
_INDEX_BYTES = "SELECT pg_indexes_size('scheduled_jobs')"
_PRINT = """
    SELECT count(*) AS jobs, sum(hashtextextended(row(job_id, job_name, execution_time, status, task_data,
        priority, retry_count, max_retries, worker_id, error_message, misfire_grace_time)::text, 0)) AS digest
    FROM scheduled_jobs WHERE job_id LIKE 'large-%' AND job_id NOT LIKE 'large-due-%'
        AND job_id NOT LIKE 'large-running-%'
"""
_ALL_HAVE_RUN = """
    SELECT NOT EXISTS (
        SELECT FROM scheduled_jobs
        WHERE finished_at IS NULL AND blocked_on IS NULL AND execution_time <= now() AND job_id LIKE 'large-%'
    )
"""
_FIRST_START = """
    SELECT extract(epoch FROM min(started_at) - $1::timestamptz)::float
    FROM scheduled_jobs WHERE job_id LIKE 'large-due-%'
"""
_RUN_OFTEN = """
    SELECT count(*) FROM scheduled_jobs
    WHERE job_id LIKE 'large-due-%' AND (status <> 'completed' OR attempt <> 1)
        OR job_id LIKE 'large-running-%' AND (status <> 'completed' OR attempt <> 2)
"""


@dataclass
class Measured:
    """The figures, in the order of the table, and what was wrong."""

    figures: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


async def multiply(pool: asyncpg.Pool[Any], rows: int) -> None:
    """Add so many jobs to the tables that 0.2.3 has filled, each a copy of one of its own jobs."""
    columns = [
        row[0]
        for row in await pool.fetch(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'scheduled_jobs'"
        )
    ]
    templates = {
        "completed": "done",
        "failed": "broken",
        "expired": "late",
        "cancelled": "cancelled",
        "pending": "waiting",
        "due": "patient",
        "running": "stuck",
    }
    numbers = {status: round(rows * share) for status, share in SHARES.items()}
    numbers["due"] = round(rows * DUE)
    numbers["pending"] -= numbers["due"] + RUNNING
    numbers["running"] = RUNNING
    ended = "now() - number * interval '1 day' / $1"
    for kind, template in templates.items():
        changed = {
            "job_id": f"'large-{kind}-' || number",
            "task_data": (
                "jsonb_build_object('args', jsonb_build_array(number), 'kwargs', "
                "jsonb_build_object('to', 'someone@example.org', 'subject', 'Your order ' || number))"
            ),
        }
        match kind:
            case "pending":
                changed["execution_time"] = "now() + interval '1 hour' + number * interval '30 days' / $1"
            case "due":
                changed["execution_time"] = "now()"
            case "running":
                changed["task_data"] = "task_data"
                changed["execution_time"] = "now()"
            case _:
                changed["execution_time"] = changed["created_at"] = ended
                changed["last_heartbeat"] = f"last_heartbeat + ({ended} - now())"
        await pool.execute(
            f"INSERT INTO scheduled_jobs ({', '.join(columns)}) "  # noqa: S608 - names of columns
            f"SELECT {', '.join(changed.get(column, column) for column in columns)} "
            "FROM scheduled_jobs, generate_series(1, $1::integer) AS number WHERE job_id = $2",
            numbers[kind],
            template,
        )
    await pool.execute("VACUUM ANALYZE scheduled_jobs")


@asynccontextmanager
async def probe(dsn: str) -> AsyncIterator[Callable[[], float]]:
    """Read a job again and again, and offer the longest time that this took, which a lock has caused."""
    longest = 0.0

    async def read() -> None:
        nonlocal longest
        connection = await asyncpg.connect(dsn)
        try:
            while True:
                began = time.monotonic()
                await connection.fetch("SELECT job_id FROM scheduled_jobs WHERE job_id = 'waiting'")
                longest = max(longest, time.monotonic() - began)
                await asyncio.sleep(PROBE_S)
        finally:
            await connection.close()

    task = asyncio.create_task(read())
    try:
        yield lambda: longest
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class Migration:
    """One migration up and down."""

    def __init__(self, dsn: str, pool: asyncpg.Pool[Any], fleet: Fleet, log: Log) -> None:
        self._dsn, self._pool, self._fleet, self._log = dsn, pool, fleet, log
        self._new = Release("new", "this release", ROOT)
        self.measured = Measured()

    async def run(self, rows: int, environment: Mapping[str, str]) -> None:
        """Fill, migrate, work, and migrate down."""
        await legacy.fill(self._dsn, environment)
        await multiply(self._pool, rows)
        counts = dict(await self._pool.fetch(_COUNTS))
        self._note("jobs", f"{sum(counts.values()):,}")
        self._note("of them", ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items())))
        await self._note_sizes("before")
        before = await self._pool.fetchrow(_PRINT)
        assert before

        await self._measure("migration up", "migrate")
        await self._note_sizes("after the migration")
        await self._check_jobs("migration up", before)
        counts_after = dict(await self._pool.fetch(_COUNTS))
        if counts_after != counts:
            self.measured.problems.append(f"the statuses were {counts}, and are {counts_after}")

        await self._work(rows)
        await self._measure("migration down to the tables of 0.2.3", "migrate", "down", "--to", "0", "--yes")
        await self._check_jobs("migration down", before)
        await self._note_sizes("after the migration down")
        await self._pool.execute(
            "UPDATE scheduled_jobs SET execution_time = now() WHERE job_id = 'large-pending-1'"
        )
        calls = await legacy.run(self._dsn, environment, "large-pending-1")
        self._note("jobs that 0.2.3 has run after that", str(len(calls)))

    async def _work(self, rows: int) -> None:
        """Start a worker of this release, and let it run what is due, while the index is built."""
        began = await self._pool.fetchval("SELECT clock_timestamp()")
        await self._fleet.start("worker", self._new, target="tools.upgrade.legacy_jobs:open_scheduler")
        async with self._pool.acquire() as connection:
            left_out = list(await missing_indexes(connection))
        self._note("indexes left out", ", ".join(left_out) or "none")
        await self._measure("`pg-scheduler migrate indexes`, while jobs run", "migrate", "indexes")
        async with self._pool.acquire() as connection:
            if still := list(await missing_indexes(connection)):
                self.measured.problems.append(f"the command has not built {', '.join(still)}")
        async with asyncio.timeout(RUN_S):
            while not await self._pool.fetchval(_ALL_HAVE_RUN):  # noqa: ASYNC110 - counted in the table
                await asyncio.sleep(POLL_S)
        first_s = await self._pool.fetchval(_FIRST_START, began)
        self._note("first job started after the start of a worker", f"{first_s:.1f} s")
        wrong = await self._pool.fetchval(_RUN_OFTEN)
        due = round(rows * DUE)
        self._note(
            "due jobs that ran once, and running ones that ran again",
            f"{due + RUNNING - wrong:,} of {due + RUNNING:,}",
        )
        if wrong:
            self.measured.problems.append(f"{wrong} due or running jobs did not run as often as they must")
        await self._fleet.stop("worker")

    async def _measure(self, name: str, *command: str) -> None:
        async with probe(self._dsn) as longest:
            began = time.monotonic()
            await self._fleet.run(f"{command[0]}-{command[-1]}", self._new, *command)
            self._note(name, f"{time.monotonic() - began:.0f} s")
            # A reader that waits for the lock returns after its end.
            await asyncio.sleep(10 * PROBE_S)
            self._note(f"{name}: longest wait of a reader", f"{longest():.1f} s")

    async def _note_sizes(self, when: str) -> None:
        table, indexes = [await self._pool.fetchval(query) for query in (_TABLE_BYTES, _INDEX_BYTES)]
        self._note(f"size {when}, table and indexes", f"{table / 2**20:,.0f} and {indexes / 2**20:,.0f} MiB")

    async def _check_jobs(self, what: str, before: Mapping[str, Any]) -> None:
        """Compare the jobs that no worker has run with those before, by a digest of their values."""
        after = await self._pool.fetchrow(_PRINT)
        assert after
        self._note(f"{what}: jobs lost", f"{before['jobs'] - after['jobs']:,}")
        if dict(after) != dict(before):
            self.measured.problems.append(f"the {what} has changed jobs: {before} became {after}")

    def _note(self, name: str, figure: str) -> None:
        self.measured.figures[name] = figure
        self._log(f"{name}: {figure}")


async def migrate_large(server: EmbeddedPostgres, rows: int, log: Log) -> Measured:
    """Migrate a table with so many jobs of 0.2.3 up and down."""
    folder = Path(tempfile.mkdtemp(prefix="upgrade-"))
    async with open_database(server, "legacy") as pool:
        dsn = server.dsn("legacy")
        fleet = Fleet(folder, dsn, pool)
        migration = Migration(dsn, pool, fleet, log)
        try:
            environment = environment_with(install(OLD_RELEASE, folder))
            await migration.run(rows, environment)
        except subprocess.CalledProcessError as error:
            migration.measured.problems.append(f"{OLD_RELEASE} cannot be installed: {error.stderr}")
        except (RehearsalError, LegacyError, TimeoutError) as error:
            migration.measured.problems.append(f"the rehearsal did not end: {error!r}")
        finally:
            await fleet.close()
        migration.measured.problems += fleet.complaints()
    keep_if_needed(folder, migration.measured.problems)
    return migration.measured
