"""COPY writes the same rows as INSERT, and either a whole batch or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.jobs.payload import encode
from pg_scheduler.jobs.validation import INFINITIES, MAX_INTEGER
from pg_scheduler.queue.inserts import CHUNK_ROWS
from pg_scheduler.queue.prepare import new_job_ids
from tests.support.inside import Connections, GeneratedIdJob, PlainJob, Store
from tests.support.store import NOW, SECOND, Pool, new_job

MICROSECOND = timedelta(microseconds=1)
SPECIAL = "tab\tnew\nline\\ \"quoted\" 'single' \\N \\. žluť 🦉 \x01\x7f"

KINDS = [
    new_job(),
    new_job(priority=1, max_retries=MAX_INTEGER, misfire_grace_time=0, timeout_seconds=None),
    new_job(misfire_grace_time=MAX_INTEGER, timeout_seconds=1e-9),
    new_job(timeout_seconds=1e300),
    new_job(job_name=SPECIAL, task_data=encode((SPECIAL, 1.5, None), {SPECIAL: [SPECIAL, {"a": 10**300}]})),
    new_job(execution_time=INFINITIES[0] + MICROSECOND),
    new_job(execution_time=INFINITIES[1] - MICROSECOND, misfire_grace_time=MAX_INTEGER),
    new_job(execution_time=datetime(1999, 12, 31, 23, 59, 59, 999999, UTC), misfire_grace_time=1),
    new_job(task_data=encode(("x" * 1_000_000,), None)),
]


def fresh(jobs: Sequence[PlainJob]) -> list[GeneratedIdJob]:
    """The jobs with generated ids."""
    return [
        GeneratedIdJob(job_id, *job[1:]) for job_id, job in zip(new_job_ids(len(jobs)), jobs, strict=True)
    ]


async def rows(pool: Pool) -> list[dict[str, object]]:
    """All columns but the ids, ordered by id; timestamps as text, because they may exceed Python's range."""
    columns = ", ".join(
        f"{name}::text"
        for (name,) in await pool.fetch(
            "SELECT column_name FROM information_schema.columns"
            " WHERE table_name = 'scheduled_jobs' AND column_name <> 'job_id' ORDER BY ordinal_position"
        )
    )
    return [dict(row) for row in await pool.fetch(f"SELECT {columns} FROM scheduled_jobs ORDER BY job_id")]


async def test_copy_writes_the_same_rows_as_insert(store: Store, pool: Pool) -> None:
    jobs = [PlainJob(*job) for job in fresh(KINDS)]
    assert await store.inserts.insert(jobs) == {job.job_id for job in jobs}
    inserted = await rows(pool)
    await pool.execute("TRUNCATE scheduled_jobs")
    await store.inserts.copy(fresh(KINDS), 1000)
    assert await rows(pool) == inserted
    assert len(inserted) == len(KINDS)


async def test_every_insert_method_writes_the_same_rows(store: Store, pool: Pool) -> None:
    await store.inserts.insert([PlainJob(*job) for job in fresh(KINDS)])
    inserted = await rows(pool)
    await pool.execute("TRUNCATE scheduled_jobs")
    several = fresh(KINDS)
    assert await store.inserts.insert(several) == {job.job_id for job in several}
    assert await rows(pool) == inserted
    await pool.execute("TRUNCATE scheduled_jobs")
    for job in fresh(KINDS):
        assert await store.inserts.insert([job]) == {job.job_id}
    assert await rows(pool) == inserted
    await pool.execute("TRUNCATE scheduled_jobs")
    for job in fresh(KINDS):
        assert await store.inserts.insert([PlainJob(*job)]) == {job.job_id}
        assert await store.inserts.insert([PlainJob(*job)]) == set()
    assert await rows(pool) == inserted


async def test_copy_takes_created_at_from_the_database_when_there_is_no_test_clock(pool: Pool) -> None:
    before = await pool.fetchval("SELECT clock_timestamp()")
    await Store(Connections(pool)).inserts.copy(fresh([new_job()]), 1)
    created = await pool.fetchval("SELECT created_at FROM scheduled_jobs")
    assert before <= created <= await pool.fetchval("SELECT clock_timestamp()")


@pytest.mark.parametrize("count", [0, 1, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1, 2 * CHUNK_ROWS + 1])
@pytest.mark.parametrize("batch_size", [1, CHUNK_ROWS, 10 * CHUNK_ROWS])
async def test_copy_writes_every_row_when_it_spans_chunks(
    store: Store, pool: Pool, count: int, batch_size: int
) -> None:
    if batch_size == 1:
        count = min(count, 3)
    jobs = fresh([new_job(execution_time=NOW + n * SECOND) for n in range(count)])
    await store.inserts.copy(jobs, batch_size)
    found = await pool.fetch("SELECT job_id, execution_time FROM scheduled_jobs ORDER BY job_id")
    assert [tuple(row) for row in found] == [(job.job_id, job.execution_time) for job in jobs]


async def test_copy_rejects_the_whole_batch_when_one_row_is_invalid(store: Store, pool: Pool) -> None:
    wrong = new_job(priority=2)
    with pytest.raises(asyncpg.CheckViolationError):
        await store.inserts.copy(fresh([new_job(), new_job(), new_job(), wrong]), 2)
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 2


async def test_copy_leaves_no_rows_when_it_is_cancelled(dsn: str, clock: FakeClock) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        store = Store(Connections(pool), clock=clock)
        async with pool.acquire() as other, other.transaction():
            await other.execute("LOCK TABLE scheduled_jobs IN ACCESS EXCLUSIVE MODE")
            copying = asyncio.create_task(store.inserts.copy(fresh([new_job()] * 2000), 1000))
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while not await other.fetchval(waits):
                pass
            copying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await copying
        assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0
        await store.inserts.copy(fresh([new_job()] * 2000), 1000)
        assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 2000
