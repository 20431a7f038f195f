"""Deleting, moving and claiming single jobs, as people do who operate the jobs."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from pg_scheduler import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.queue.jobs import TouchedJob
from tests.support.dependencies import add, child
from tests.support.inside import COMPLETE, Store
from tests.support.store import LEASE, NAME, NOW, SECOND, Pool, column, new_job, row, running, worker

HOUR = timedelta(hours=1)


async def ids(pool: Pool) -> list[str]:
    return sorted(await column(pool, "status"))


async def test_delete_leaves_running_and_unknown_jobs(store: Store, pool: Pool) -> None:
    await running(store, new_job("running"))
    await store.inserts.insert([new_job("pending"), new_job("other"), new_job("failed")])
    await store.jobs.set_status("failed", JobStatus.FAILED, LEASE)
    found = await store.jobs.delete(["running", "pending", "failed", "missing"])
    assert sorted(found) == [
        TouchedJob("failed", "failed", changed=True),
        TouchedJob("pending", "pending", changed=True),
        TouchedJob("running", "running", changed=False),
    ]
    assert await ids(pool) == ["other", "running"]


async def test_delete_leaves_jobs_for_which_others_wait_and_frees_those_that_wait(
    store: Store, pool: Pool
) -> None:
    await store.inserts.insert([new_job("parent")])
    await add(store, child("child", "parent"))
    assert await store.jobs.delete(["parent"]) == [TouchedJob("parent", "pending", changed=False)]
    assert await store.jobs.delete(["child"]) == [TouchedJob("child", "pending", changed=True)]
    assert await pool.fetchval("SELECT count(*) FROM scheduler_after") == 0
    assert await ids(pool) == ["parent"]


async def test_delete_leaves_a_job_for_which_a_schedule_waits(store: Store, pool: Pool) -> None:
    """Under a fixed delay its end sets the next fire time."""
    await store.inserts.insert([new_job("a"), new_job("b"), new_job("c")])
    await pool.execute("""
        UPDATE scheduled_jobs SET on_end = '{"schedule": true}' WHERE job_id = 'a';
        UPDATE scheduled_jobs SET on_end = '{"on_failure": "alert"}' WHERE job_id <> 'a';
        UPDATE scheduled_jobs SET status = 'failed', finished_at = now() WHERE job_id = 'c'
    """)
    assert sorted(await store.jobs.delete(["a", "b", "c"])) == [
        TouchedJob("a", "pending", changed=False),
        TouchedJob("b", "pending", changed=True),
        TouchedJob("c", "failed", changed=False),  # the alert is still to be enqueued
    ]


@pytest.mark.parametrize(
    ("to", "by_s", "due"),
    [
        (NOW + HOUR, 0, NOW + HOUR),
        (NOW - HOUR, 0, NOW - HOUR),
        (None, 3600, NOW + HOUR + SECOND),
        (None, -3600, NOW - HOUR + SECOND),
    ],
)
async def test_move_changes_when_a_pending_job_is_due_and_expires(
    store: Store, pool: Pool, to: datetime | None, by_s: float, due: datetime
) -> None:
    await store.inserts.insert([new_job(execution_time=NOW + SECOND, misfire_grace_time=10)])
    assert await store.jobs.move(["job"], to=to, by_s=by_s) == [
        TouchedJob("job", "pending", changed=True, execution_time=due)
    ]
    found = await row(pool)
    assert (found["execution_time"], found["expires_at"]) == (due, max(due, NOW) + 10 * SECOND)


async def test_move_leaves_jobs_that_are_not_pending(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job("done"))
    await running(store, new_job("running"))
    await store.results.settle("w1", [(claim, COMPLETE)])
    before = await column(pool, "execution_time")
    found = await store.jobs.move(["done", "running", "missing"], to=NOW + HOUR)
    assert sorted(found) == [
        TouchedJob("done", "completed", changed=False),
        TouchedJob("running", "running", changed=False),
    ]
    assert await column(pool, "execution_time") == before


@pytest.mark.parametrize("by_s", [3.2e9, -3.2e9])
@pytest.mark.parametrize("instant", ["290000-01-01", "4713-01-01 BC", "9999-12-31"])
async def test_move_of_an_instant_outside_of_the_calendar_succeeds(
    store: Store, pool: Pool, instant: str, by_s: float
) -> None:
    await store.inserts.insert([new_job(misfire_grace_time=2**31 - 1)])
    await pool.execute("UPDATE scheduled_jobs SET execution_time = $1::text::timestamptz", instant)
    (found,) = await store.jobs.move(["job"], by_s=by_s)
    assert found.changed


async def test_claim_one_claims_a_job_that_is_not_due_yet(store: Store, pool: Pool, clock: FakeClock) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job("a", execution_time=NOW + HOUR), new_job("b")])
    claim = await store.claims.claim_one("w1", "a")
    assert claim is not None
    assert (claim.job_id, claim.attempt, claim.execution_time) == ("a", 1, NOW)
    assert (await row(pool, "b"))["status"] == "pending"
    assert await store.claims.held_claim("a", "w1") == claim
    assert await store.claims.claim_one("w1", "a") is None
    assert await store.results.settle("w1", [(claim, COMPLETE)]) == {"a"}
    assert await store.claims.claim_one("w1", "missing") is None


async def test_job_claimed_by_hand_is_reclaimed_when_its_worker_dies(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job("a", execution_time=NOW + HOUR)])
    assert await store.claims.claim_one("w1", "a")
    clock.advance(timedelta(seconds=LEASE + 1))
    assert (await store.workers.rescue(120)).job_ids == ["a"]
    assert (await row(pool, "a"))["status"] == "pending"


async def test_claim_one_needs_a_valid_lease(store: Store, clock: FakeClock) -> None:
    await store.inserts.insert([new_job("a")])
    assert await store.claims.claim_one("w1", "a") is None
    await store.workers.register(worker(), LEASE)
    clock.advance(timedelta(seconds=LEASE + 1))
    assert await store.claims.claim_one("w1", "a") is None


async def test_claim_one_leaves_blocked_and_finished_jobs(store: Store, pool: Pool) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job("blocked"), new_job("done")])
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'limit:x:' WHERE job_id = 'blocked'")
    await store.jobs.set_status("done", JobStatus.COMPLETED, LEASE)
    for job_id in ("blocked", "done"):
        assert await store.claims.claim_one("w1", job_id) is None


async def test_claim_one_skips_a_locked_row(store: Store, pool: Pool) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job("a", function=NAME)])
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        assert await store.claims.claim_one("w1", "a") is None
