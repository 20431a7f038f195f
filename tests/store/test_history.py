"""Attempts that do not simply complete append an entry to the history of their job."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from pg_scheduler import AttemptError, Job, JobStatus
from pg_scheduler.clock import FakeClock
from tests.support.inside import COMPLETE, RELEASE, Claim, Outcome, Store, load_queries
from tests.support.store import LEASE, NAME, NOW, SECOND, Pool, column, new_job, running, worker

ENTRY = '{"outcome":"timeout","error_type":"TimeoutError","message":"late","traceback":"..."}'
RETRY = Outcome.retry(SECOND, "TimeoutError: late", entry=ENTRY)
HOUR = timedelta(hours=1)


async def job_of(store: Store, job_id: str = "job") -> Job:
    found = await store.jobs.get_job(job_id)
    assert found is not None
    return found


async def outcomes(store: Store, job_id: str = "job") -> list[str]:
    return [error.outcome for error in (await job_of(store, job_id)).errors]


async def claim_again(store: Store) -> Claim:
    (claim,) = (await store.claims.exchange("w1", [NAME], 1)).jobs
    return claim


async def test_settle_appends_the_entry_with_the_attempt_its_worker_and_its_times(
    store: Store, clock: FakeClock
) -> None:
    (claim,) = await running(store, new_job())
    clock.advance(10 * SECOND)
    assert await store.results.settle("w1", [(claim, RETRY)]) == {"job"}
    later = NOW + 10 * SECOND
    assert (await job_of(store)).errors == (
        AttemptError(1, NOW, later, "w1", "timeout", "TimeoutError", "late", "..."),
    )


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (COMPLETE, []),
        (Outcome.fail("no"), ["error"]),
        (RETRY, ["timeout"]),
        (RELEASE, ["released"]),
        (Outcome.skip("locked"), ["skipped"]),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_settle_appends_the_outcome_of_each_attempt_that_does_not_complete(
    store: Store, outcome: Outcome, expected: list[str]
) -> None:
    (claim,) = await running(store, new_job())
    await store.results.settle("w1", [(claim, outcome)])
    assert await outcomes(store) == expected


async def test_history_keeps_the_newest_ten_entries(store: Store, clock: FakeClock) -> None:
    await running(store, new_job(max_retries=20))
    for attempt in range(1, 14):
        if attempt > 1:
            clock.advance(SECOND)
            assert (await claim_again(store)).attempt == attempt
        claim = await store.claims.held_claim("job", "w1")
        assert claim is not None
        await store.results.settle("w1", [(claim, RETRY)])
        assert len((await job_of(store)).errors) == min(attempt, 10)
    assert [error.attempt for error in (await job_of(store)).errors] == list(range(4, 14))


async def test_history_stays_null_when_every_attempt_completes(store: Store, pool: Pool) -> None:
    first, second, third = await running(store, new_job("a"), new_job("b"), new_job("c"))
    await store.claims.exchange("w1", [NAME], 1, completed=[first])
    await store.claims.complete("w1", [second], keep=True)
    await store.results.settle("w1", [(third, COMPLETE)])
    assert set((await column(pool, "status")).values()) == {"completed"}
    assert set((await column(pool, "errors")).values()) == {None}


@pytest.mark.parametrize("name", ["exchange_jobs", "claim_jobs", "complete_unlocked"])
def test_hot_statements_do_not_name_the_history(name: str) -> None:
    assert "errors" not in load_queries("public")[name].text


async def test_history_is_kept_when_a_later_attempt_completes(store: Store, clock: FakeClock) -> None:
    (claim,) = await running(store, new_job(max_retries=1))
    await store.results.settle("w1", [(claim, RETRY)])
    clock.advance(SECOND)
    await store.claims.complete("w1", [await claim_again(store)], keep=True)
    assert (await job_of(store)).status is JobStatus.COMPLETED
    assert await outcomes(store) == ["timeout"]


async def test_retry_job_keeps_the_history(store: Store) -> None:
    (claim,) = await running(store, new_job())
    await store.results.settle("w1", [(claim, Outcome.fail("no"))])
    assert await store.jobs.retry("job")
    assert await outcomes(store) == ["error"]


async def test_replacing_a_job_clears_the_history(store: Store, clock: FakeClock) -> None:
    (claim,) = await running(store, new_job(max_retries=1))
    await store.results.settle("w1", [(claim, RETRY)])
    await store.inserts.replace([new_job()])
    assert await outcomes(store) == []
    clock.advance(SECOND)
    claim = await claim_again(store)
    await store.inserts.replace([new_job()])
    await store.results.settle("w1", [(claim, Outcome.fail("no"))])
    assert (await job_of(store)).status is JobStatus.PENDING
    assert await outcomes(store) == []


async def test_cancelling_a_running_job_appends_to_the_history(store: Store, clock: FakeClock) -> None:
    await running(store, new_job())
    clock.advance(SECOND)
    await store.jobs.cancel("job")
    assert (await job_of(store)).errors == (
        AttemptError(1, NOW, NOW + SECOND, "w1", "cancelled", None, None, None),
    )


async def test_cancelling_a_pending_job_appends_nothing(store: Store) -> None:
    await store.inserts.insert([new_job()])
    await store.jobs.cancel("job")
    assert (await job_of(store)).errors == ()


@pytest.mark.parametrize("status", JobStatus)
async def test_setting_the_status_of_a_running_job_appends_to_the_history(
    store: Store, status: JobStatus
) -> None:
    await running(store, new_job("running"))
    await store.inserts.insert([new_job("pending")])
    for job_id in ("running", "pending"):
        await store.jobs.set_status(job_id, status, LEASE)
    assert await outcomes(store, "running") == ["lost"]
    assert (await job_of(store, "running")).errors[0].attempt == 1
    assert await outcomes(store, "pending") == []


@pytest.mark.parametrize(("max_crashes", "status"), [(3, "pending"), (1, "failed")])
async def test_reclaiming_a_job_of_a_dead_worker_appends_to_the_history(
    store: Store, clock: FakeClock, max_crashes: int, status: str
) -> None:
    await running(store, new_job())
    clock.advance(HOUR)
    await store.workers.rescue(120, max_crashes=max_crashes)
    (error,) = (await job_of(store)).errors
    assert (error.outcome, error.worker_id, error.attempt) == ("crashed", "w1", 1)
    assert (error.message is not None) is (status == "failed")
    assert (await job_of(store)).status == status


@pytest.mark.parametrize(("max_crashes", "status"), [(3, "pending"), (1, "failed")])
async def test_death_of_the_process_of_a_job_appends_to_the_history(
    store: Store, max_crashes: int, status: str
) -> None:
    (claim,) = await running(store, new_job())
    crash = Outcome.crash("the process died: SIGKILL", max_crashes)
    await store.results.settle("w1", await store.results.count_crashes([(claim, crash)]))
    (error,) = (await job_of(store)).errors
    assert (error.outcome, error.worker_id, error.attempt) == ("crashed", "w1", 1)
    assert (error.started_at, error.ended_at) == (NOW, NOW)
    assert error.message is not None
    assert ("SIGKILL" in error.message) is (status == "pending")
    assert (await job_of(store)).status == status


async def test_reclaiming_a_job_that_its_live_worker_does_not_renew_appends_to_the_history(
    store: Store, clock: FakeClock
) -> None:
    await running(store, new_job())
    clock.advance((LEASE - 1) * SECOND)
    await store.workers.renew("w1", {}, LEASE)
    clock.advance(5 * SECOND)
    await store.workers.renew("w1", {}, LEASE)
    assert (await store.workers.rescue(120, worker_id="w1")).job_ids == ["job"]
    assert await outcomes(store) == ["lost"]


async def test_releasing_an_unacknowledged_claim_appends_to_the_history(store: Store) -> None:
    await running(store, new_job())
    assert await store.claims.release_unacknowledged("w1", {}) == ["job"]
    assert await outcomes(store) == ["released"]


async def test_refusing_a_replacement_appends_to_the_history(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job())
    await pool.execute("""UPDATE scheduled_jobs SET on_end = '{"replacement": {"priority": "high"}}'""")
    await store.results.settle("w1", [(claim, Outcome.fail("no"))])
    (error,) = (await job_of(store)).errors
    assert (error.outcome, error.attempt, error.ended_at) == ("error", 1, NOW)
    assert error.message is not None
    assert error.message.startswith("the new definition that waited for this job cannot be used")


@pytest.mark.slow
async def test_quarantining_an_unreadable_job_appends_to_the_history(store: Store, pool: Pool) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job()])
    await pool.execute("ALTER TABLE scheduled_jobs DROP CONSTRAINT scheduled_jobs_payload")
    await pool.execute(
        "UPDATE scheduled_jobs SET task_data = jsonb_build_object('args', repeat('x', 33554432))"
    )
    assert len((await store.claims.quarantine_oversized([NAME], 10))[0]) == 1
    (error,) = (await job_of(store)).errors
    assert (error.outcome, error.attempt, error.started_at, error.ended_at) == ("error", 1, None, NOW)
    assert error.message == (await job_of(store)).error_message


@pytest.mark.parametrize("before", ["null", "5", "{}", '"text"', "[]", json.dumps([7] * 100)])
async def test_entry_is_appended_whatever_the_column_holds(store: Store, pool: Pool, before: str) -> None:
    (claim,) = await running(store, new_job())
    await pool.execute("UPDATE scheduled_jobs SET errors = $1", before)
    assert (await job_of(store)).errors == ()
    await store.results.settle("w1", [(claim, Outcome.fail("no"))])
    assert await outcomes(store) == ["error"]
    stored: list[Any] = json.loads((await column(pool, "errors"))["job"])
    assert len(stored) <= 10


async def test_infinite_start_reads_as_none(store: Store, pool: Pool) -> None:
    (claim,) = await running(store, new_job())
    await pool.execute("UPDATE scheduled_jobs SET started_at = '-infinity'")
    await store.results.settle("w1", [(claim, Outcome.fail("no"))])
    assert (await job_of(store)).errors[0].started_at is None


async def test_job_reads_the_other_columns_as_far_as_they_are_valid(store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job("a"), new_job("b"), new_job("c")])
    await pool.execute(
        "UPDATE scheduled_jobs SET blocked_on = 'after', unique_key = 'key', progress = '{\"done\": 1}',"
        """ options = '{"schedule_id": "nightly", "fire_time": "2030-01-01T00:00:00+00:00"}'"""
        " WHERE job_id = 'a'"
    )
    await pool.execute("UPDATE scheduled_jobs SET options = '[1]', progress = '[1]' WHERE job_id = 'b'")
    await pool.execute("""UPDATE scheduled_jobs SET options = '{"fire_time": 5}' WHERE job_id = 'c'""")
    full, hostile, other = [await job_of(store, job_id) for job_id in "abc"]
    assert (full.blocked_on, full.unique_key, full.schedule_id) == ("after", "key", "nightly")
    assert full.progress is not None
    assert (full.progress.done, full.fire_time) == (
        1,
        NOW.replace(month=1, day=1, hour=0, minute=0, second=0),
    )
    for job in (hostile, other):
        assert (job.progress, job.schedule_id, job.fire_time, job.blocked_on) == (None, None, None, None)
