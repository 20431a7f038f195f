"""write_progress: fenced by worker and attempt, and never waiting for a locked row."""

from __future__ import annotations

import json

import asyncpg
import pytest

from pg_scheduler import JobProgress
from tests.support.inside import Store
from tests.support.store import Pool, column, new_job, running

HALF = JobProgress(1, 2, "half")


async def progress(pool: Pool) -> dict[str, object]:
    return {
        job_id: None if text is None else json.loads(text)
        for job_id, text in (await column(pool, "progress")).items()
    }


async def test_progress_of_several_jobs_is_written_by_one_call(store: Store, pool: asyncpg.Pool) -> None:
    a, b, _ = await running(store, new_job("a"), new_job("b"), new_job("c"))
    reports = {"a": (a, HALF), "b": (b, JobProgress(0.5))}
    assert await store.progress.write_progress("w1", reports) == {"a", "b"}
    assert await progress(pool) == {
        "a": {"done": 1, "total": 2, "note": "half"},
        "b": {"done": 0.5},
        "c": None,
    }
    job = await store.jobs.get_job("a")
    assert job is not None
    assert job.progress == HALF


@pytest.mark.parametrize(
    ("worker_id", "attempt", "change"),
    [
        ("other", 1, ""),
        ("w1", 2, ""),
        ("w1", 1, "status = 'completed', finished_at = now()"),
        ("w1", 1, "worker_id = 'other'"),
        ("w1", 1, "attempt = 2"),
    ],
)
async def test_progress_is_refused_for_an_attempt_that_the_worker_does_not_hold(
    worker_id: str, attempt: int, change: str, store: Store, pool: asyncpg.Pool
) -> None:
    (claim,) = await running(store, new_job("a"))
    if change:
        await pool.execute(f"UPDATE scheduled_jobs SET {change}")
    assert (
        await store.progress.write_progress(worker_id, {"a": (claim._replace(attempt=attempt), HALF)})
        == set()
    )
    assert await progress(pool) == {"a": None}


async def test_progress_of_a_locked_row_is_left_to_the_next_call(store: Store, pool: asyncpg.Pool) -> None:
    a, b = await running(store, new_job("a"), new_job("b"))
    reports = {"a": (a, HALF), "b": (b, HALF)}
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = 'a' FOR UPDATE")
        assert await store.progress.write_progress("w1", reports) == {"b"}
    assert await store.progress.write_progress("w1", reports) == {"a", "b"}
