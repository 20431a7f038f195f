"""The load of a start on a database whose schema is up to date: statements, and locks that it waits for."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import Scheduler, periodic
from pg_scheduler.database.migrations.sql import lock
from pg_scheduler.events import JobCompleted, PassFinished, ServiceRetrying
from tests.support.catalogues import clear_registrations
from tests.support.statements import Statements
from tests.support.worker import PATIENCE, Recorder, now

SERVICES = (
    "claimer",
    "planner",
    "pause_watcher",
    "rescuer",
    "deadline_scanner",
    "vacuum",
    "heartbeat",
)
TABLES = "scheduled_jobs, scheduler_workers, scheduler_schedules, scheduler_migrations, vacuum_stats"


async def hourly() -> None: ...


async def note() -> None: ...


@pytest.fixture(autouse=True)
async def _schedule(pool: asyncpg.Pool) -> None:
    """A schedule that an earlier start has written, and a pass of the vacuum that has just ended."""
    clear_registrations()  # a start with limited tasks of other modules has two more statements
    periodic(every=timedelta(hours=1), dedup_key="hourly")(hourly)
    scheduler = Scheduler(pool)
    seen = Recorder(scheduler)
    async with scheduler:
        await first_passes(seen)
    assert await pool.fetchval("SELECT count(*) FROM scheduler_schedules") == 1
    # The first pass is due at a random instant, which can be that of the start to come.
    assert await pool.execute("UPDATE scheduler_vacuum_passes SET ended_at = now()") == "UPDATE 1"


async def first_passes(seen: Recorder) -> None:
    for service in SERVICES:
        await seen.until(PassFinished, service=service)


@pytest.mark.parametrize("size", [1, 3, 5])
async def test_start_runs_few_statements_when_the_schema_is_up_to_date(dsn: str, size: int) -> None:
    statements = Statements()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=size, init=statements.listen) as pool:
        scheduler = Scheduler(pool)
        seen = Recorder(scheduler)
        async with scheduler:
            await first_passes(seen)
            sent = await statements.take()
    assert sent.named["lock_declarations"] == 0
    assert sent.named["upsert_periodic"] == 0
    assert not {name for name in sent.counts if name in {"CREATE", "ALTER", "LOCK", "DROP"}}
    scans = {"restart_leases", "lock_orphans", "expire_jobs", "scan_deadlines"}
    assert sent.named.keys() & scans == {"scan_deadlines"}, "each reads the whole due backlog"
    assert len(sent.named) <= 17
    passes = Counter(event.service for event in seen.of(PassFinished) if event.service in SERVICES)
    repeated = passes.total() - len(SERVICES)  # a notification or a busy machine makes some pass twice
    assert sum(sent.named.values()) <= 25 + 2 * repeated
    assert sent.transactions <= 56 + 4 * repeated  # of which up to 24 are resets


@pytest.mark.parametrize("mode", ["ACCESS SHARE", "ROW EXCLUSIVE"])
async def test_start_takes_no_lock_that_conflicts_with_another_session(
    dsn: str, pool: asyncpg.Pool, mode: str
) -> None:
    """ROW EXCLUSIVE conflicts with every stronger mode. The other session also holds the migration lock."""
    other = await asyncpg.connect(dsn)
    transaction = other.transaction()
    await transaction.start()
    await other.execute(f"LOCK TABLE {TABLES} IN {mode} MODE")
    await other.execute(lock("public"))
    scheduler = Scheduler(pool)
    seen = Recorder(scheduler)
    async with asyncio.timeout(PATIENCE / 2):
        async with scheduler:
            await first_passes(seen)
            await seen.until(JobCompleted, job_id=await scheduler.schedule(note, execution_time=now()))
    assert not seen.of(ServiceRetrying)
    await transaction.rollback()
    await other.close()


async def test_start_does_not_wait_for_another_worker_that_starts(dsn: str, pool: asyncpg.Pool) -> None:
    """Another worker's row is not committed, and it has locked a schedule."""
    other = await asyncpg.connect(dsn)
    transaction = other.transaction()
    await transaction.start()
    await other.execute(
        "INSERT INTO scheduler_workers (worker_id, hostname, pid, version, max_concurrent_jobs, started_at,"
        " last_beat, lease_until) VALUES ('other', 'host', 1, '1', 1, now(), now(), now() + interval '1 h')"
    )
    await other.execute("SELECT FROM scheduler_schedules FOR UPDATE")
    seen: list[Recorder] = []
    async with asyncio.timeout(PATIENCE / 2):
        schedulers = [Scheduler(pool) for _ in range(2)]
        seen += map(Recorder, schedulers)
        await asyncio.gather(*(scheduler.start() for scheduler in schedulers))
        await asyncio.gather(*map(first_passes, seen))
        await asyncio.gather(*(scheduler.shutdown() for scheduler in schedulers))
    assert not any(recorder.of(ServiceRetrying) for recorder in seen)
    await transaction.rollback()
    await other.close()
