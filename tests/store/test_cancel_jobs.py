"""cancel_next() cancels the matching jobs of a bounded range, with the consequences of their ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.queue import jobs as jobs_module
from pg_scheduler.queue.jobs import CancelledJob, JobFilters
from tests.support import inside
from tests.support.dependencies import add, child
from tests.support.inside import COMPLETE, Store
from tests.support.store import NAME, NOW, SECOND, Pool, column, new_job, row, running

EVERY = JobFilters(statuses=["pending", "running"])


async def cancelled(store: Store, filters: JobFilters = EVERY) -> str:
    """Cancel the matching jobs of all batches; return their ids."""
    found, after = "", None
    while True:
        jobs, after = await store.jobs.cancel_next(after, filters)
        found += "".join(sorted(job.job_id for job in jobs))
        if after is None:
            return found


def data(**metadata: Any) -> str:
    return json.dumps({"args": [], "kwargs": {}, "metadata": metadata})


async def test_pending_and_running_jobs_are_cancelled_as_single_ones_are(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await running(store, new_job("a"), new_job("b"))
    await store.inserts.insert([new_job("c"), new_job("d")])
    clock.advance(SECOND)
    await store.jobs.cancel("a")
    await store.jobs.cancel("c")
    jobs, after = await store.jobs.cancel_next(None, EVERY)
    assert sorted(jobs) == [CancelledJob("b", NAME, 1, "w1"), CancelledJob("d", NAME, 0, None)]
    assert after is None
    for single, bulk in (("a", "b"), ("c", "d")):
        assert {**await row(pool, single), "job_id": bulk} == await row(pool, bulk)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (JobFilters(statuses=["running"]), "a"),
        (JobFilters(statuses=["pending", "completed"]), "bcd"),
        (JobFilters(statuses=[]), ""),
        (JobFilters(names=["other"]), "b"),
        (JobFilters(worker_id="w1"), "a"),
        (JobFilters(due_from=NOW + SECOND), "c"),
        (JobFilters(due_before=NOW + SECOND), "abd"),
        (JobFilters(metadata='{"tenant": 7}'), "d"),
        (JobFilters(names=["other"], metadata='{"tenant": 7}'), ""),
    ],
    ids=str,
)
async def test_each_filter_selects_the_jobs_to_cancel(
    store: Store, filters: JobFilters, expected: str
) -> None:
    _, done = sorted(await running(store, new_job("a"), new_job("done")), key=lambda claim: claim.job_id)
    await store.results.settle("w1", [(done, COMPLETE)])
    await store.inserts.insert(
        [
            new_job("b", job_name="other"),
            new_job("c", execution_time=NOW + SECOND),
            new_job("d", task_data=data(tenant=7)),
        ]
    )
    assert await cancelled(store, filters) == expected


async def test_batches_are_bounded_and_continue_where_the_last_one_ended(
    store: Store, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "MAX_CANCELLED_JOBS", 2)
    inside.replace(monkeypatch, examined_rows=4)
    names = {job_id: NAME if job_id in "bhij" else "other" for job_id in "abcdefghij"}
    await store.inserts.insert([new_job(job_id, job_name=name) for job_id, name in names.items()])
    steps: list[tuple[str, str | None]] = []
    after = None
    while not steps or after is not None:
        jobs, after = await store.jobs.cancel_next(after, JobFilters(names=[NAME]))
        steps.append(("".join(sorted(job.job_id for job in jobs)), after))
    assert steps == [("b", "d"), ("h", "h"), ("ij", "j"), ("", None)]
    assert list((await column(pool, "status")).values()).count("cancelled") == 4


async def test_job_that_no_longer_matches_when_its_lock_is_released_is_left(
    store: Store, pool: Pool, dsn: str
) -> None:
    await store.inserts.insert([new_job("a", job_name="tenant-7"), new_job("b", job_name="tenant-7")])
    other = await asyncpg.connect(dsn)
    try:
        async with other.transaction():
            await other.execute("UPDATE scheduled_jobs SET job_name = 'tenant-8' WHERE job_id = 'a'")
            ended = asyncio.ensure_future(store.jobs.cancel_next(None, JobFilters(names=["tenant-7"])))
            while not await pool.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                pass
        jobs, _ = await ended
    finally:
        await other.close()
    assert [job.job_id for job in jobs] == ["b"]
    assert await column(pool, "status") == {"a": "pending", "b": "cancelled"}


async def test_cancelling_a_batch_applies_the_consequences_of_its_jobs(store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job("a"), new_job("b")])
    await add(store, child("c", "a", job_name="other"))
    assert await cancelled(store, JobFilters(names=[NAME])) == "ab"
    assert await column(pool, "status") == {"a": "cancelled", "b": "cancelled", "c": "cancelled"}
    assert set((await column(pool, "blocked_on")).values()) == {None}
    assert set((await column(pool, "on_end")).values()) == {None}


async def test_cancelling_a_batch_counts_parents_and_their_children_once(store: Store) -> None:
    await store.inserts.insert([new_job("a")])
    await add(store, child("b", "a"))
    await add(store, child("c", "b"))
    jobs, _ = await store.jobs.cancel_next(None, EVERY)
    assert sorted(job.job_id for job in jobs) == ["a", "b", "c"]


async def test_history_of_a_running_job_shows_its_cancellation(store: Store) -> None:
    await running(store, new_job("a"))
    await store.inserts.insert([new_job("b")])
    assert await cancelled(store) == "ab"
    found = [await store.jobs.get_job(job_id) for job_id in "ab"]
    assert [[error.outcome for error in job.errors] for job in found if job] == [["cancelled"], []]
    assert {job.status for job in found if job} == {JobStatus.CANCELLED}
