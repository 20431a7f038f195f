"""The result of a job that ends without a value is kept too, and outlives its row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from pg_scheduler import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.jobs.outcome import REVOKED
from pg_scheduler.queue.jobs import JobFilters
from tests.support.dependencies import add, child, passed, reader, state
from tests.support.inside import RELEASE, Claim, ExtendedJob, Extras, Outcome, Store
from tests.support.store import LEASE, NAME, NOW, SECOND, Pool, column, new_job, running, worker

KEPT = Extras(options='{"keep_result": 60}')
HOUR = timedelta(hours=1)
End = Callable[[Store, FakeClock], Awaitable[object]]


async def claim(store: Store) -> Claim:
    await store.workers.register(worker(), LEASE)
    (found,) = (await store.claims.exchange("w1", [NAME], 1)).jobs
    return found


async def settle(store: Store, outcome: Outcome) -> None:
    await store.results.settle("w1", [(await claim(store), outcome)])


async def cancel(store: Store, _clock: FakeClock) -> None:
    assert (await store.jobs.cancel("a")).changed


async def cancel_running(store: Store, _clock: FakeClock) -> None:
    await claim(store)
    assert (await store.jobs.cancel("a")).worker_id == "w1"


async def cancel_all(store: Store, _clock: FakeClock) -> None:
    assert len((await store.jobs.cancel_next(None, JobFilters(names=[NAME])))[0]) == 1


async def skip(store: Store, _clock: FakeClock) -> None:
    await settle(store, Outcome.skip("locked"))


async def expire(store: Store, clock: FakeClock) -> None:
    clock.advance(HOUR)
    assert len(await store.jobs.expire("w1", [NAME], 10)) == 1


async def expire_in_a_claim(store: Store, clock: FakeClock) -> None:
    await store.workers.register(worker(), 2 * HOUR.total_seconds())
    clock.advance(HOUR)
    found = await store.claims.exchange("w1", [NAME], 5)
    await store.claims.explain_expiry("w1", [NAME], found.expired)


async def crash(store: Store, clock: FakeClock) -> None:
    await claim(store)
    clock.advance(HOUR)
    await store.workers.rescue(120, max_crashes=1)


async def crash_of_a_child(store: Store, _clock: FakeClock) -> None:
    await settle(store, Outcome.crash("the process died", 1))


async def quarantine(store: Store, _clock: FakeClock) -> None:
    async with store.statements.transaction() as transaction:
        await store.claims._quarantine("a", ValueError("unreadable"), transaction)
    await store.results.consequences.apply(["a"])  # as after the commit of a claim


async def fail_by_hand(store: Store, _clock: FakeClock) -> None:
    assert (await store.jobs.set_status("a", JobStatus.FAILED, LEASE)).changed


ENDS: dict[str, End] = {
    "cancelled": cancel,
    "cancelled, running": cancel_running,
    "cancelled, with others": cancel_all,
    "cancelled, skipped": skip,
    "expired": expire,
    "expired, in a claim": expire_in_a_claim,
    "failed, worker died": crash,
    "failed, process died": crash_of_a_child,
    "failed, unreadable": quarantine,
    "failed, by hand": fail_by_hand,
}


@pytest.mark.parametrize("end", ENDS)
async def test_result_of_a_job_that_ends_without_a_value_outlives_its_row(
    store: Store, pool: Pool, clock: FakeClock, end: str
) -> None:
    await store.inserts.insert_extended([ExtendedJob(new_job("a", misfire_grace_time=5), KEPT)])
    await ENDS[end](store, clock)
    job = await store.jobs.get_job("a")
    assert job is not None
    assert await column(pool, "on_end") == {"a": None}
    await pool.execute("DELETE FROM scheduled_jobs")
    kept = (await store.kept_results.get(["a"]))["a"]
    assert kept is not None
    assert kept.status == end.partition(",")[0]
    assert (kept.status, kept.attempts, kept.started_at, kept.finished_at) == (
        job.status,
        job.attempt,
        job.started_at,
        clock.now,
    )
    assert (kept.error.message if kept.error else None) == job.error_message
    assert kept.expires_at == clock.now + timedelta(seconds=60)


@pytest.mark.parametrize("end", ENDS)
async def test_end_without_a_value_is_passed_as_it_is_kept(
    store: Store, pool: Pool, clock: FakeClock, end: str
) -> None:
    """It is the last of two, so it is passed in the transaction that unblocks the job."""
    await store.inserts.insert_extended([ExtendedJob(new_job("a", misfire_grace_time=5), KEPT)])
    await add(store, reader("b", "a", job_name="reader"))
    await ENDS[end](store, clock)
    async with store.statements.transaction() as transaction:  # of an attempt that was cancelled
        await store.consequences.report_ends({"a": 1}, "w1", transaction)
    assert await state(pool, "b") == [("pending", None)]
    kept = (await store.kept_results.get(["a"]))["a"]
    assert kept is not None
    assert await passed(store, "b") == {"a": replace(kept, expires_at=None)}


@pytest.mark.parametrize("end", ENDS)
async def test_job_that_ends_without_success_states_why(
    store: Store, pool: Pool, clock: FakeClock, end: str
) -> None:
    """So it is in the index of unsuccessful jobs."""
    await store.inserts.insert([new_job("a", misfire_grace_time=5)])
    await ENDS[end](store, clock)
    assert (
        await pool.fetchval(
            "SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NOT NULL AND error_message <> ''"
        )
        == 1
    )


async def test_job_that_a_claim_found_expired_states_why_if_the_worker_dies_then(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await store.workers.register(worker("w1"), LEASE)
    await store.inserts.insert([new_job("a", misfire_grace_time=5), new_job("b", misfire_grace_time=5)])
    await pool.execute("UPDATE scheduled_jobs SET error_message = 'ValueError: no' WHERE job_id = 'b'")
    clock.advance(10 * SECOND)
    found = await store.claims.exchange("w1", [NAME], 5)
    assert len(found.expired) == 2
    assert await column(pool, "error_message") == {
        "a": "not started within its misfire grace time",
        "b": "ValueError: no",
    }
    await store.claims.explain_expiry("w1", [NAME], found.expired)
    texts = await column(pool, "error_message")
    assert str(texts["a"]).startswith("not started between ")
    assert "error of the last attempt" not in str(texts["a"])
    assert str(texts["b"]).endswith("; error of the last attempt: ValueError: no")


async def test_cancelled_job_keeps_the_error_of_its_last_attempt(store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job("a"), new_job("b"), new_job("c")])
    await pool.execute("UPDATE scheduled_jobs SET error_message = 'ValueError: no' WHERE job_id <> 'c'")
    await store.jobs.cancel("a", "cancelled by me")
    await store.jobs.set_status("b", JobStatus.CANCELLED, LEASE, "set to cancelled by me")
    await store.jobs.set_status("c", JobStatus.CANCELLED, LEASE, "set to cancelled by me")
    assert await column(pool, "error_message") == {
        "a": "cancelled by me; error of the last attempt: ValueError: no",
        "b": "ValueError: no",
        "c": "set to cancelled by me",
    }


async def test_result_of_a_job_whose_parent_failed_outlives_its_row(store: Store, pool: Pool) -> None:
    (parent,) = await running(store, new_job("p"))
    await add(store, child("a", "p", extras=KEPT._replace(blocked_on="after")))
    await store.results.settle("w1", [(parent, Outcome.fail("no"))])
    await pool.execute("DELETE FROM scheduled_jobs")
    kept = (await store.kept_results.get(["a"]))["a"]
    assert kept is not None
    assert kept.error is not None
    message = "a job after which this job was to run did not complete"
    assert (kept.status, kept.error.message) == (JobStatus.CANCELLED, message)


async def test_result_of_a_cancelled_job_of_a_schedule_is_kept_when_its_attempt_has_ended(
    store: Store, pool: Pool
) -> None:
    options = '{"keep_result": 60, "schedule_id": "s"}'
    await store.inserts.insert_extended([ExtendedJob(new_job("a"), Extras(options=options))])
    held = await claim(store)
    await store.jobs.cancel("a")
    before = (await store.kept_results.get(["a"]))["a"]
    assert before is not None
    assert before.status is JobStatus.CANCELLED
    await store.results.settle("w1", [(held, REVOKED)])
    await pool.execute("DELETE FROM scheduled_jobs")
    assert (await store.kept_results.get(["a"]))["a"] is not None


async def test_job_completed_by_hand_has_no_value(store: Store) -> None:
    await store.inserts.insert_extended([ExtendedJob(new_job("a"), KEPT)])
    await add(store, reader("b", "a"))
    await store.jobs.set_status("a", JobStatus.COMPLETED, LEASE)
    kept = (await store.kept_results.get(["a"]))["a"]
    assert kept is not None
    assert (kept.status, kept.no_value_reason) == (JobStatus.COMPLETED, "the status was set by hand")
    assert await passed(store, "b") == {"a": replace(kept, expires_at=None)}


@pytest.mark.parametrize("outcome", [Outcome.retry(HOUR, "no"), RELEASE])
async def test_job_that_runs_again_stores_no_result(store: Store, pool: Pool, outcome: Outcome) -> None:
    await store.inserts.insert_extended([ExtendedJob(new_job("a", max_retries=1), KEPT)])
    await settle(store, outcome)
    assert await store.kept_results.get(["a"]) == {"a": None}
    assert await column(pool, "on_end") == {"a": None}


@pytest.mark.parametrize("options", ['{"keep_result": "x"}', "5", '[{"keep_result": 5}]'])
async def test_lifetime_written_by_hand_does_not_stop_the_end(store: Store, pool: Pool, options: str) -> None:
    await store.inserts.insert([new_job("a")])
    await pool.execute("UPDATE scheduled_jobs SET options = $1, on_end = '5'", options)
    await settle(store, Outcome.fail("no"))
    assert await column(pool, "on_end") == {"a": None}
    assert await pool.fetchval("SELECT count(*) FROM scheduler_results") == 0


async def test_result_that_a_crash_left_unstored_is_stored_by_the_scan(store: Store, pool: Pool) -> None:
    await store.inserts.insert_extended([ExtendedJob(new_job("a"), KEPT)])
    await pool.execute(
        """UPDATE scheduled_jobs SET status = 'expired', finished_at = $1, on_end = '{"result": true}'""", NOW
    )
    assert await store.retention.vacuum_blocks(0, 10, {JobStatus.EXPIRED: NOW}) == {}
    assert await store.consequences.apply_lost(10) == 1
    assert await pool.fetchval("SELECT status FROM scheduler_results") == "expired"
