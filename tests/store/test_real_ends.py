"""What waits for a job that was cancelled while it ran waits for the real end of its attempt."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from pg_scheduler import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.database.statements import Transaction
from pg_scheduler.jobs.outcome import REVOKED
from pg_scheduler.queue.dependencies import ScanPosition
from pg_scheduler.queue.jobs import JobFilters
from tests.support.dependencies import add, child, edges, state
from tests.support.inside import COMPLETE, RELEASE, Claim, ExtendedJob, Extras, Outcome, Store
from tests.support.store import LEASE, NAME, NOW, Pool, column, new_job, row, running, worker

FREE = ("pending", None)
BLOCKED = ("pending", "after")
CANCELLED = ("cancelled", None)
MINUTE = timedelta(minutes=1)
OF_A_SCHEDULE = Extras(options='{"schedule_id": "s"}')


async def family(store: Store) -> Claim:
    """Start a job for which another one waits, whatever its outcome."""
    (claim,) = await running(store, new_job("a"))
    await add(store, child("b", "a", outcome="ended"))
    return claim


async def on_end(pool: Pool, job_id: str = "a") -> Any:
    text = (await row(pool, job_id))["on_end"]
    return None if text is None else json.loads(text)


async def start_of_schedule(store: Store) -> Claim:
    """Start a job of a schedule, for which no other job waits."""
    await store.inserts.insert_extended([ExtendedJob(new_job("a"), OF_A_SCHEDULE)])
    await store.workers.register(worker(), LEASE)
    (claim,) = (await store.claims.exchange("w1", [NAME], 1)).jobs
    return claim


async def cancel(store: Store) -> None:
    assert (await store.jobs.cancel("a")).worker_id == "w1"


async def cancel_all(store: Store) -> None:
    ((job,), end) = await store.jobs.cancel_next(None, JobFilters(statuses=["running"]))
    assert (job.worker_id, end) == ("w1", None)


async def fail_by_hand(store: Store) -> None:
    assert (await store.jobs.set_status("a", JobStatus.FAILED, LEASE)).worker_id == "w1"


@pytest.mark.parametrize("end", [cancel, cancel_all, fail_by_hand])
@pytest.mark.parametrize(
    "outcome",
    [REVOKED, COMPLETE, Outcome.fail("no"), RELEASE, Outcome.skip("no")],
    ids=lambda outcome: outcome.change.status,
)
async def test_successor_waits_for_the_end_of_the_attempt_when_a_running_job_is_ended(
    store: Store, pool: Pool, end: Any, outcome: Outcome
) -> None:
    claim = await family(store)
    await end(store)
    status = (await row(pool, "a"))["status"]
    assert status != "running"
    assert await state(pool, "b") == [BLOCKED]
    assert await on_end(pool) == {"child": True, "alive": True}
    await store.consequences.apply_lost(10)
    await store.dependencies.repair(ScanPosition(), blocks=10, jobs=10)
    assert await state(pool, "b") == [BLOCKED], "no scan takes it for ended"
    assert await store.claims.complete("w1", [claim], keep=True) == {"a"}
    await store.results.settle("w1", [(claim, outcome)])
    assert await state(pool, "a", "b") == [(status, None), FREE]
    assert (await edges(pool), await on_end(pool)) == (set(), None)


async def test_end_of_another_attempt_does_not_count(store: Store, pool: Pool) -> None:
    claim = await family(store)
    await cancel(store)
    await store.results.settle("w2", [(claim, REVOKED)])
    await store.results.settle("w1", [(claim._replace(attempt=2), REVOKED)])
    assert await state(pool, "b") == [BLOCKED]


async def test_pending_job_and_job_of_a_worker_without_a_row_end_at_once(store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job("p")])
    await add(store, child("q", "p", outcome="ended"))
    await store.jobs.cancel("p")
    await family(store)
    await store.workers.deregister("w1")
    await cancel(store)
    assert await state(pool, "q", "b") == [FREE, FREE]
    assert await column(pool, "on_end") == dict.fromkeys("abpq")


async def test_plain_job_that_is_cancelled_awaits_nothing(store: Store, pool: Pool) -> None:
    await running(store, new_job("a"))
    await cancel(store)
    assert await on_end(pool) is None
    assert await store.jobs.read_revoked(["a", "b"]) == {"a": (JobStatus.CANCELLED, False)}


async def test_replacement_of_a_cancelled_job_is_dropped(store: Store, pool: Pool) -> None:
    claim = await family(store)
    await store.inserts.replace([new_job("a")])
    assert set(await on_end(pool)) == {"child", "replacement"}
    await cancel(store)
    assert await on_end(pool) == {"child": True, "alive": True}
    await store.results.settle("w1", [(claim, REVOKED)])
    assert await state(pool, "a", "b") == [CANCELLED, FREE]


async def test_job_that_comes_after_a_cancelled_one_waits_while_its_attempt_runs(
    store: Store, pool: Pool
) -> None:
    claim = await start_of_schedule(store)
    await cancel(store)
    assert await on_end(pool) == {"alive": True}
    assert await store.jobs.read_revoked(["a"]) == {"a": (JobStatus.CANCELLED, True)}
    async with store.statements.transaction() as (connection, _):
        assert await store.dependencies.lock_unfinished(["a"], Transaction(connection, [])) == {"a"}
        locked = await store.schedules.lock_last_jobs(["a"], on=connection)
        assert (locked["a"].waits, locked["a"].is_locked) == (False, True)
    await add(store, child("b", "a", outcome="ended"), child("c", "a"))
    assert await state(pool, "b", "c") == [BLOCKED, BLOCKED]
    await store.results.settle("w1", [(claim, REVOKED)])
    assert await state(pool, "b", "c") == [FREE, CANCELLED]
    async with store.statements.transaction() as (connection, _):
        assert await store.dependencies.lock_unfinished(["a"], Transaction(connection, [])) == set()
        assert await store.schedules.lock_last_jobs(["a"], on=connection) == {}


async def queue(store: Store) -> Claim:
    """Start a job of a schedule, and queue two others behind it."""
    claim = await start_of_schedule(store)
    waits = OF_A_SCHEDULE._replace(blocked_on="after")
    await add(store, child("b", "a", outcome="ended", extras=waits))
    await add(store, child("c", "b", outcome="ended", extras=waits))
    return claim


async def test_job_behind_a_queued_one_that_is_cancelled_waits_for_the_running_one(
    store: Store, pool: Pool
) -> None:
    claim = await queue(store)
    assert (await store.jobs.cancel("b")).changed
    await store.consequences.report_gone("w2", {}, 10)
    await store.consequences.apply_lost(10)
    await store.dependencies.repair(ScanPosition(), blocks=10, jobs=10)
    assert await state(pool, "b", "c") == [CANCELLED, BLOCKED]
    assert not await store.jobs.retry("b")
    await add(store, child("d", "b", outcome="ended"))
    assert await state(pool, "d") == [BLOCKED]
    await store.results.settle("w1", [(claim, COMPLETE)])
    assert await state(pool, "c", "d") == [FREE, FREE]
    assert await column(pool, "on_end") == dict.fromkeys("abcd")
    assert await edges(pool) == set()


async def test_queue_is_repaired_when_the_running_job_is_deleted(store: Store, pool: Pool) -> None:
    await queue(store)
    await store.jobs.cancel("b")
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'a'")
    await store.dependencies.repair(ScanPosition(), blocks=10, jobs=10)
    assert await state(pool, "b", "c") == [CANCELLED, FREE]


async def test_job_outside_of_a_schedule_does_not_wait_for_the_one_before(store: Store, pool: Pool) -> None:
    await family(store)
    await add(store, child("c", "b", outcome="ended"))
    await store.jobs.cancel("b")
    assert await state(pool, "b", "c") == [CANCELLED, FREE], "only the jobs of a schedule form a queue"


async def test_scan_reports_the_attempts_of_workers_that_are_gone(store: Store, pool: Pool) -> None:
    await family(store)
    await cancel(store)
    assert await store.consequences.report_gone("w2", {}, 10) == 0
    assert (await store.workers.scan_deadlines(30, 120)).has_ended
    await store.workers.deregister("w1")
    assert await store.consequences.report_gone("w2", {}, 10) == 1
    assert await store.consequences.apply_lost(10) == 1
    assert await state(pool, "b") == [FREE]
    assert not (await store.workers.scan_deadlines(30, 120)).has_ended


async def test_scan_reports_the_attempt_of_a_worker_that_is_gone_although_a_child_of_its_job_runs(
    store: Store, pool: Pool
) -> None:
    await family(store)
    await store.inserts.insert([new_job("kid")])
    await pool.execute(
        "INSERT INTO scheduler_after (parent_id, child_id, outcome, definition)"
        " VALUES ('kid', 'a', 'ended', 'd')"
    )
    await cancel(store)
    await store.workers.deregister("w1")
    assert await store.consequences.report_gone("w2", {}, 10) == 1
    assert await store.consequences.apply_lost(10) == 1
    assert await state(pool, "b") == [FREE]


async def test_scan_reports_attempts_that_their_worker_does_not_know_any_more(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await family(store)
    await cancel(store)
    assert await store.consequences.report_gone("w1", {}, 10) == 0, "claimed just now"
    clock.advance(MINUTE)
    assert await store.consequences.report_gone("w1", {"a": 1}, 10) == 0
    assert await store.consequences.report_gone("w1", {"a": 2}, 10) == 1
    assert await store.consequences.apply_lost(10) == 1
    assert await state(pool, "b") == [FREE]


async def test_job_whose_cancelled_attempt_runs_is_neither_deleted_nor_run_again(
    store: Store, pool: Pool
) -> None:
    claim = await start_of_schedule(store)
    await cancel(store)
    blocks = await store.retention.table_blocks()
    assert await store.retention.vacuum_blocks(0, blocks, {JobStatus.CANCELLED: NOW}) == {}
    assert (await store.retention.vacuum_surplus(JobStatus.CANCELLED, 0, 10)).deleted == 0
    assert not await store.jobs.retry("a")
    await store.results.settle("w1", [(claim, REVOKED)])
    assert await store.jobs.retry("a")
    assert await state(pool, "a") == [FREE]


async def test_new_definition_of_a_cancelled_job_awaits_nothing(store: Store, pool: Pool) -> None:
    await family(store)
    await cancel(store)
    await store.inserts.replace([new_job("a")])
    assert await on_end(pool) == {"child": True}
    assert await state(pool, "a", "b") == [FREE, BLOCKED]


async def test_status_by_hand_of_a_cancelled_job_awaits_nothing(store: Store, pool: Pool) -> None:
    await family(store)
    await cancel(store)
    await store.jobs.set_status("a", JobStatus.FAILED, LEASE)
    assert await on_end(pool) == {"child": True, "alive": True}, "its attempt may still run"
    await store.jobs.set_status("a", JobStatus.PENDING, LEASE)
    assert await on_end(pool) == {"child": True}
