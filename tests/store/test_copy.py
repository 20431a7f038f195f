"""COPY writes the same rows as INSERT does, whatever is in them, and all of a batch or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.jobs.ids import new_job_ids
from pg_scheduler.jobs.payload import encode
from pg_scheduler.jobs.rows import GeneratedIdJob, NewJob
from pg_scheduler.jobs.validation import INFINITIES, MAX_INTEGER
from pg_scheduler.store.connections.pool import Connections
from pg_scheduler.store.copy import CHUNK
from pg_scheduler.store.store import Store
from tests.support.store import NOW, SECOND, Pool, new_job

MICROSECOND = timedelta(microseconds=1)
SPECIAL = "tab\tnew\nline\\ \"quoted\" 'single' \\N \\. žluť 🦉 \x01\x7f"

KINDS = [
    new_job(),
    new_job(priority=1, max_retries=MAX_INTEGER, misfire_grace_time=0, timeout_seconds=None),
    new_job(misfire_grace_time=MAX_INTEGER, timeout_seconds=1e-9),
    new_job(timeout_seconds=1e300, function="app.moved", lock_key=-(2**63)),
    new_job(job_name=SPECIAL, task_data=encode((SPECIAL, 1.5, None), {SPECIAL: [SPECIAL, {"a": 10**300}]})),
    new_job(execution_time=INFINITIES[0] + MICROSECOND),
    new_job(execution_time=INFINITIES[1] - MICROSECOND, misfire_grace_time=MAX_INTEGER),
    new_job(execution_time=datetime(1999, 12, 31, 23, 59, 59, 999999, UTC), misfire_grace_time=1),
    new_job(task_data=encode(("x" * 1_000_000,), None)),
]


def fresh(jobs: Sequence[NewJob]) -> list[GeneratedIdJob]:
    """The same with ids of their own."""
    return [
        GeneratedIdJob(job_id, *job[1:]) for job_id, job in zip(new_job_ids(len(jobs)), jobs, strict=True)
    ]


async def rows(pool: Pool) -> list[dict[str, object]]:
    """Everything in the table but the ids, in the order of the ids; timestamps as text, for any range."""
    columns = ", ".join(
        f"{name}::text"
        for (name,) in await pool.fetch(
            "SELECT column_name FROM information_schema.columns"
            " WHERE table_name = 'scheduled_jobs' AND column_name <> 'job_id' ORDER BY ordinal_position"
        )
    )
    return [dict(row) for row in await pool.fetch(f"SELECT {columns} FROM scheduled_jobs ORDER BY job_id")]


async def test_the_rows_are_those_of_an_insert(store: Store, pool: Pool) -> None:
    jobs = [NewJob(*job) for job in fresh(KINDS)]
    assert await store.jobs.insert(jobs) == {job.job_id for job in jobs}
    inserted = await rows(pool)
    await pool.execute("TRUNCATE scheduled_jobs")
    await store.jobs.copy(fresh(KINDS), 1000)
    assert await rows(pool) == inserted
    assert len(inserted) == len(KINDS)


async def test_every_other_insert_writes_them_too(store: Store, pool: Pool) -> None:
    await store.jobs.insert([NewJob(*job) for job in fresh(KINDS)])
    inserted = await rows(pool)
    await pool.execute("TRUNCATE scheduled_jobs")
    several = fresh(KINDS)
    assert await store.jobs.insert(several) == {job.job_id for job in several}
    assert await rows(pool) == inserted
    await pool.execute("TRUNCATE scheduled_jobs")
    for job in fresh(KINDS):
        assert await store.jobs.insert([job]) == {job.job_id}
    assert await rows(pool) == inserted
    await pool.execute("TRUNCATE scheduled_jobs")
    for job in fresh(KINDS):
        assert await store.jobs.insert([NewJob(*job)]) == {job.job_id}
        assert await store.jobs.insert([NewJob(*job)]) == set()
    assert await rows(pool) == inserted


async def test_without_an_override_the_databases_clock_tells_the_creation(pool: Pool) -> None:
    before = await pool.fetchval("SELECT clock_timestamp()")
    await Store(Connections(pool)).jobs.copy(fresh([new_job()]), 1)
    created = await pool.fetchval("SELECT created_at FROM scheduled_jobs")
    assert before <= created <= await pool.fetchval("SELECT clock_timestamp()")


@pytest.mark.parametrize("count", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1])
@pytest.mark.parametrize("batch_size", [1, CHUNK, 10 * CHUNK])
async def test_no_row_is_lost_between_two_pieces(
    store: Store, pool: Pool, count: int, batch_size: int
) -> None:
    if batch_size == 1:
        count = min(count, 3)
    jobs = fresh([new_job(execution_time=NOW + n * SECOND) for n in range(count)])
    await store.jobs.copy(jobs, batch_size)
    found = await pool.fetch("SELECT job_id, execution_time FROM scheduled_jobs ORDER BY job_id")
    assert [tuple(row) for row in found] == [(job.job_id, job.execution_time) for job in jobs]


async def test_what_the_table_refuses_is_refused_with_its_batch(store: Store, pool: Pool) -> None:
    wrong = new_job(priority=2)
    with pytest.raises(asyncpg.CheckViolationError):
        await store.jobs.copy(fresh([new_job(), new_job(), new_job(), wrong]), 2)
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 2


async def test_a_copy_that_is_cancelled_leaves_nothing(dsn: str, clock: FakeClock) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        store = Store(Connections(pool), clock=clock)
        async with pool.acquire() as other, other.transaction():
            await other.execute("LOCK TABLE scheduled_jobs IN ACCESS EXCLUSIVE MODE")
            copying = asyncio.create_task(store.jobs.copy(fresh([new_job()] * 2000), 1000))
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while not await other.fetchval(waits):
                pass
            copying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await copying
        assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0
        await store.jobs.copy(fresh([new_job()] * 2000), 1000)
        assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 2000
