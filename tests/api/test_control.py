"""Cancelling, retrying, changing and inspecting jobs."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobCounts, JobPriority, JobSpec, JobStatus, Scheduler
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import JobCancelled, JobCompleted, JobLost, JobStarted
from tests.api.conftest import Make
from tests.support.cases import each_case
from tests.support.inside import outbox_of
from tests.support.worker import PATIENCE, PROMPT, Gate, Recorder, now

HOUR = timedelta(hours=1)


async def work(*args: Any) -> None: ...


async def status_of(scheduler: Scheduler, job_id: str) -> str:
    row = await scheduler.get_job(job_id)
    assert row is not None
    return row.status.value


# -- cancel --------------------------------------------------------------------------------------------


async def test_cancel_job_cancels_a_pending_job(scheduler: Scheduler) -> None:
    job_id = await scheduler.schedule(work, execution_time=now() + HOUR)
    assert await scheduler.cancel_job(job_id) is True
    assert await status_of(scheduler, job_id) == "cancelled"
    assert await scheduler.cancel_job(job_id) is False


async def test_job_states_who_cancelled_it_or_set_its_status(make: Make) -> None:
    scheduler = make(identity="billing-api")
    for job_id in ("one", "many", "set"):
        await scheduler.schedule(work, execution_time=now() + HOUR, job_id=job_id)
    await scheduler.cancel_job("one")
    await scheduler.update_job_status("set", "failed")
    await scheduler.cancel_jobs(status="pending")
    jobs = {job.job_id: job.error_message for job in await scheduler.list_jobs()}
    assert jobs == {
        "one": "cancelled by billing-api",
        "many": "cancelled by billing-api",
        "set": "set to failed by billing-api",
    }


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "expired"])
async def test_cancel_job_leaves_a_finished_job_unchanged(make: Make, status: str) -> None:
    scheduler = make()
    job_id = await scheduler.schedule(work, execution_time=now() + HOUR)
    await scheduler.update_job_status(job_id, status)
    assert await scheduler.cancel_job(job_id) is False
    assert await status_of(scheduler, job_id) == status


@pytest.mark.parametrize("status", list(JobStatus))
async def test_retry_job_runs_a_finished_job_again_and_leaves_others_unchanged(
    scheduler: Scheduler, seen: Recorder, open_gate: Gate, pool: asyncpg.Pool, status: JobStatus
) -> None:
    job_id = await scheduler.schedule(open_gate.job, execution_time=now() + HOUR, args=(7,), max_retries=2)
    await pool.execute("UPDATE scheduled_jobs SET retry_count = 2, crash_count = 2, error_message = 'no'")
    await scheduler.update_job_status(job_id, status)
    has_ended = status not in (JobStatus.PENDING, JobStatus.RUNNING)
    assert await scheduler.retry_job(job_id) is has_ended
    if has_ended:
        await seen.until(JobCompleted, job_id=job_id)
        assert open_gate.calls == [(7,)]
        assert await scheduler.retry_job(job_id)
        await seen.until(JobCompleted, 2, job_id=job_id)
        row = await scheduler.get_job(job_id)
        assert row is not None
        assert (row.attempt, row.retry_count, row.error_message) == (2, 0, None)
        assert await pool.fetchval("SELECT crash_count FROM scheduled_jobs") == 0
    else:
        assert await status_of(scheduler, job_id) == status


async def test_retry_job_returns_false_for_an_unknown_id(make: Make) -> None:
    assert await make().retry_job("unknown") is False


async def test_retry_job_restarts_the_misfire_grace_time(make: Make) -> None:
    scheduler = make()
    due = now() - HOUR
    job_id = await scheduler.schedule(work, execution_time=due, misfire_grace_time=60)
    await scheduler.update_job_status(job_id, "expired")
    assert await scheduler.retry_job(job_id)
    row = await scheduler.get_job(job_id)
    assert row is not None
    assert row.execution_time > due + HOUR
    assert row.expires_at == row.execution_time + timedelta(minutes=1)


async def test_jobs_that_are_made_pending_are_announced_with_their_due_time(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be long ago, and claims may begin later: a search would take longer."""
    scheduler = make()
    past = now() - HOUR
    job_id = await scheduler.schedule(work, execution_time=past)
    announced: list[datetime] = []

    async def note(due: datetime, _connection: object = None) -> None:
        announced.append(due)

    monkeypatch.setattr(outbox_of(scheduler), "notify_due", note)
    await scheduler.update_job_status(job_id, "failed")
    await scheduler.update_job_status(job_id, "pending")
    await scheduler.update_job_status("unknown", "pending")
    assert announced == [past]
    await scheduler.update_job_status(job_id, "failed")
    assert await scheduler.retry_job(job_id)
    row = await scheduler.get_job(job_id)
    assert row is not None
    assert announced[1:] == [row.execution_time]


async def test_cancel_job_returns_false_for_an_unknown_id(make: Make) -> None:
    assert await make().cancel_job("unknown") is False


@pytest.mark.parametrize("where", ["here", "elsewhere", "a process that never starts"])
async def test_cancel_job_cancels_a_running_job_without_a_poll_from_any_process(
    scheduler: Scheduler, seen: Recorder, make: Make, gate: Gate, where: str
) -> None:
    """Polling and heartbeats come too late here: only a notification cancels the job in time."""
    caller = scheduler if where == "here" else make()
    if where == "elsewhere":
        await caller.start()
    job_id = await scheduler.schedule(gate.job, execution_time=now(), max_retries=5)
    await gate.wait_begun()
    async with asyncio.timeout(PROMPT):
        assert await caller.cancel_job(job_id) is True
        (event,) = await seen.until(JobCancelled, job_id=job_id)
    assert event.reason == "cancelled by a caller"
    assert gate.cancelled == 1
    assert await status_of(scheduler, job_id) == "cancelled"
    assert not seen.of(JobLost)


async def test_cancel_job_cancels_the_job_that_calls_it(scheduler: Scheduler, seen: Recorder) -> None:
    async def mine() -> None:
        assert await scheduler.cancel_job("mine")
        await asyncio.Event().wait()

    await scheduler.schedule(mine, execution_time=now(), job_id="mine")
    await seen.until(JobCancelled, job_id="mine")


@pytest.mark.parametrize("invalid", ["", "a\x00", 7, None])
async def test_job_methods_reject_an_invalid_job_id(make: Make, invalid: Any) -> None:
    scheduler = make()
    for call in (scheduler.cancel_job, scheduler.get_job, lambda x: scheduler.update_job_status(x, "failed")):
        with pytest.raises((TypeError, ValueError)):
            await call(invalid)


# -- update_job_status ---------------------------------------------------------------------------------


async def test_update_job_status_changes_any_status_to_any_other(make: Make) -> None:
    scheduler = make()
    for old, new in product(JobStatus, JobStatus):
        job_id = await scheduler.schedule(work, execution_time=now() + HOUR)
        assert await scheduler.update_job_status(job_id, old) is True, (old, new)
        assert await scheduler.update_job_status(job_id, new.value) is True, (old, new)
        row = await scheduler.get_job(job_id)
        assert row is not None
        assert row.status is new, old
        assert (row.finished_at is not None) == new.is_finished, (old, new)
        assert (row.lease_until is not None) == (new is JobStatus.RUNNING), (old, new)


@pytest.mark.parametrize("invalid", ["done", "", None, 7, JobPriority.HIGH])
async def test_update_job_status_rejects_an_invalid_status(make: Make, invalid: Any) -> None:
    scheduler = make()
    job_id = await scheduler.schedule(work, execution_time=now() + HOUR)
    with pytest.raises(ValueError, match="'pending', 'running'"):
        await scheduler.update_job_status(job_id, invalid)
    assert await status_of(scheduler, job_id) == "pending"


async def test_update_job_status_returns_false_for_an_unknown_id(make: Make) -> None:
    assert await make().update_job_status("unknown", JobStatus.FAILED) is False


async def test_update_job_status_runs_a_finished_job_again_when_set_to_pending(
    scheduler: Scheduler, seen: Recorder, open_gate: Gate
) -> None:
    job_id = await scheduler.schedule(open_gate.job, execution_time=now())
    await seen.until(JobCompleted)
    await scheduler.update_job_status(job_id, "pending")
    await seen.until(JobCompleted, 2, job_id=job_id)


@pytest.mark.parametrize("status", ["completed", "failed", "expired", "running"])
async def test_update_job_status_cancels_the_task_of_a_running_job(
    scheduler: Scheduler, seen: Recorder, gate: Gate, status: str
) -> None:
    job_id = await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    await scheduler.update_job_status(job_id, status)
    await seen.until(JobLost, job_id=job_id)
    assert gate.cancelled == 1
    assert await status_of(scheduler, job_id) == status


async def test_update_job_status_starts_a_new_attempt_when_a_running_job_is_set_to_pending(
    scheduler: Scheduler, seen: Recorder, gate: Gate
) -> None:
    job_id = await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    await scheduler.update_job_status(job_id, "pending")
    await seen.until(JobLost, job_id=job_id, attempt=1)
    await seen.until(JobStarted, job_id=job_id, attempt=2)
    gate.open.set()
    await seen.until(JobCompleted, job_id=job_id, attempt=2)
    assert gate.cancelled == 1


async def test_update_job_status_reserves_a_job_set_to_running_until_the_lease_expires(
    make: Make, open_gate: Gate
) -> None:
    clock = FakeClock(now())
    scheduler = make(clock=clock)
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.schedule(open_gate.job, execution_time=clock.now + timedelta(seconds=1))
    await scheduler.update_job_status(job_id, "running")
    clock.advance(timedelta(seconds=59))
    await scheduler.send_heartbeat(job_id)
    await scheduler.recover_orphaned_jobs()
    assert await status_of(scheduler, job_id) == "running"
    clock.advance(timedelta(seconds=2))
    await scheduler.recover_orphaned_jobs()
    await seen.until(JobCompleted, job_id=job_id)


# -- inspection ----------------------------------------------------------------------------------------


@pytest.fixture
async def filled(make: Make) -> Scheduler:
    """Return a Scheduler with jobs a to e, due an hour apart: b failed, d completed, the others pending."""
    scheduler = make()
    await scheduler.schedule_bulk(
        [
            JobSpec(work, START + HOUR * number, (number,), job_id=job_id)
            for number, job_id in enumerate("abcd", 1)
        ]
    )
    await scheduler.schedule_job("other", START + HOUR * 5, {}, job_id="e")
    await scheduler.update_job_status("b", "failed")
    await scheduler.update_job_status("d", "completed")
    return scheduler


START = datetime.fromisoformat("2040-01-01T00:00:00+00:00")


@each_case(
    ("filters", "found"),
    [
        ({}, "abcde"),
        ({"status": "pending"}, "ace"),
        ({"status": JobStatus.FAILED}, "b"),
        ({"status": ["failed", JobStatus.COMPLETED]}, "bd"),
        ({"status": []}, ""),
        ({"job_name": "other"}, "e"),
        ({"job_name": "unknown"}, ""),
        ({"worker_id": "unknown"}, ""),
        ({"due_from": START + 2 * HOUR}, "bcde"),
        ({"due_before": START + 2 * HOUR}, "a"),
        ({"due_from": START + 2 * HOUR, "due_before": START + 4 * HOUR, "status": "pending"}, "c"),
        ({"limit": 2}, "ab"),
        ({"limit": 2, "after": "b"}, "cd"),
        ({"after": "e"}, ""),
    ],
    ids=str,
)
async def test_list_jobs_applies_its_filters(filled: Scheduler, filters: dict[str, Any], found: str) -> None:
    assert [job.job_id for job in await filled.list_jobs(**filters)] == list(found)


async def test_list_jobs_is_empty_when_the_list_of_statuses_is(filled: Scheduler) -> None:
    page = await filled.list_jobs(status=[])
    assert page == []
    assert page.next is None


@pytest.mark.parametrize(("limit", "pages"), [(2, ["ab", "cd", "e"]), (5, ["abcde"]), (4, ["abcd", "e"])])
async def test_next_of_a_page_leads_to_the_following_page(
    filled: Scheduler, limit: int, pages: list[str]
) -> None:
    page = await filled.list_jobs(limit=limit)
    found = ["".join(job.job_id for job in page)]
    while page.next is not None:
        page = await filled.list_jobs(limit=limit, after=page.next)
        found.append("".join(job.job_id for job in page))
    assert found == pages


@pytest.mark.parametrize(
    "filters",
    [
        {"status": "done"},
        {"status": ["pending", 3]},
        {"limit": 0},
        {"limit": 10_001},
        {"due_from": datetime(2030, 1, 1)},  # noqa: DTZ001 - the subject
        {"due_before": datetime(2030, 1, 1)},  # noqa: DTZ001 - the subject
        {"after": ""},
    ],
    ids=str,
)
async def test_list_jobs_rejects_invalid_filters(make: Make, filters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        await make().list_jobs(**filters)


async def test_count_jobs_counts_by_status_and_name(filled: Scheduler) -> None:
    counts = await filled.count_jobs()
    assert counts == JobCounts(pending=3, completed=1, failed=1)
    assert counts.total == 5
    assert await filled.count_jobs(job_name="other") == JobCounts(pending=1)
    assert await filled.count_jobs(job_name="unknown") == JobCounts()


async def test_job_shows_how_many_workers_died_while_they_ran_it(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    job_id = await scheduler.schedule_job("app.work", now(), {})
    await pool.execute("UPDATE scheduled_jobs SET crash_count = 2")
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert job.crash_count == 2
    assert [each.crash_count for each in await scheduler.list_jobs()] == [2]


async def test_get_job_returns_none_for_an_unknown_id(make: Make) -> None:
    assert await make().get_job("unknown") is None


async def test_get_job_returns_no_arguments_when_task_data_has_another_shape(
    filled: Scheduler, pool: asyncpg.Pool
) -> None:
    await pool.execute("UPDATE scheduled_jobs SET task_data = '[1]' WHERE job_id = 'a'")
    row = await filled.get_job("a")
    assert row is not None
    assert (row.args, row.kwargs) == ((), {})


async def test_list_jobs_includes_worker_and_lease_of_a_running_job(scheduler: Scheduler, gate: Gate) -> None:
    job_id = await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    (row,) = await scheduler.list_jobs(worker_id=scheduler.worker_id, status="running")
    assert row.job_id == job_id
    assert row.started_at is not None
    assert row.last_heartbeat is not None
    assert row.lease_until is not None
    assert timedelta(seconds=55) < row.lease_until - row.started_at <= timedelta(seconds=60)
    await scheduler.send_heartbeat(job_id)
    (worker,) = await scheduler.workers()
    assert (worker.running_jobs, worker.is_alive) == (1, True)
    gate.open.set()


async def test_workers_reports_a_worker_as_not_alive_when_its_lease_expired(make: Make) -> None:
    clock = FakeClock(now())
    scheduler = make(clock=clock)
    await scheduler.start()
    clock.advance(timedelta(seconds=61))
    assert [worker.is_alive for worker in await scheduler.workers()] == [False]


async def test_subscriber_that_raises_is_logged_and_receives_events_until_unsubscribed(
    scheduler: Scheduler, seen: Recorder, open_gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[Any] = []

    def raising(event: object) -> None:
        received.append(event)
        raise ValueError("a bug in the subscriber")

    unsubscribe = scheduler.subscribe(raising, JobStarted, JobCompleted)
    await scheduler.schedule(open_gate.job, execution_time=now())
    await seen.until(JobCompleted)
    assert [type(event) for event in received] == [JobStarted, JobCompleted]
    assert "a bug in the subscriber" in caplog.text
    unsubscribe()
    unsubscribe()
    await scheduler.schedule(open_gate.job, execution_time=now())
    await seen.until(JobCompleted, 2)
    assert len(received) == 2


async def test_events_are_published_after_the_commit(scheduler: Scheduler, open_gate: Gate, dsn: str) -> None:
    other = await asyncpg.connect(dsn)
    status: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def read_status(event: object) -> None:
        query = asyncio.ensure_future(other.fetchval("SELECT status FROM scheduled_jobs"))
        query.add_done_callback(lambda done: status.set_result(done.result()))

    scheduler.subscribe(read_status, JobCompleted)
    await scheduler.schedule(open_gate.job, execution_time=now())
    assert await asyncio.wait_for(status, PATIENCE) == "completed"
    await other.close()
