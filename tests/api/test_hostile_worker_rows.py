"""Rows of workers written by hand, with any values that the table accepts: no row may stop a Scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pg_scheduler import JobStatus, Scheduler
from pg_scheduler.events import JobCompleted, JobsReclaimed
from tests.support import inside
from tests.support.hostile import INSTANTS, JOB_NAME, OTHER_WORKERS, write_row
from tests.support.inside import Store, fault_of, services_of, worker_of
from tests.support.worker import Recorder, now

TYPES = {
    "worker_id": "text",
    "hostname": "text",
    "pid": "integer",
    "version": "text",
    "max_concurrent_jobs": "integer",
    "running_jobs": "integer",
    "liveness_key": "bigint",
    "lease_extension": "double precision",
    "subscriptions": "text[]",
    "started_at": "timestamptz",
    "last_beat": "timestamptz",
    "lease_until": "timestamptz",
}
LONG_ID = "🦉" * 2500
IDS = [*OTHER_WORKERS, LONG_ID, "\u202e", "set by hand", "due", "a b"]
NUMBERS = ["0", "-1", str(-(2**31)), str(2**31 - 1)]
LIVENESS_KEYS = [None, "0", "7", str(-(2**63)), str(2**63 - 1)]
EXTENSIONS = [None, "0", "-1e308", "600", "1e308", "NaN", "Infinity", "-Infinity"]

rows = st.fixed_dictionaries(
    {
        "worker_id": st.sampled_from(IDS),
        "hostname": st.sampled_from(["", "x" * 5000, "\u202e"]),
        "pid": st.sampled_from(NUMBERS),
        "version": st.sampled_from(["", "0.2.3", "not a version", "🦉" * 3000]),
        "max_concurrent_jobs": st.sampled_from(NUMBERS),
        "running_jobs": st.sampled_from(NUMBERS),
        "liveness_key": st.sampled_from(LIVENESS_KEYS),
        "lease_extension": st.sampled_from(EXTENSIONS),
        "subscriptions": st.sampled_from(
            [None, "{}", "{NULL}", "{JobStarted,no,\u202e}", "{{JobFailed},{a}}"]
        ),
        "started_at": st.sampled_from(INSTANTS),
        "last_beat": st.sampled_from(INSTANTS),
        "lease_until": st.sampled_from(INSTANTS),
    }
)


async def work() -> None: ...


async def write_worker(pool: asyncpg.Pool, row: Mapping[str, str | None]) -> None:
    assert await write_row(pool, "scheduler_workers", "worker_id", TYPES, row)


async def check_survival(scheduler: Scheduler, seen: Recorder) -> None:
    """Verify that every service that reads the table makes a pass and that jobs run."""
    runtime = worker_of(scheduler)
    parts = {part.name: part for part in services_of(scheduler) if hasattr(part, "run_once")}  # type: ignore[attr-defined]
    for _ in range(2):
        runtime.rescuer.answer_timeout_s = 0.0
        runtime.rescuer.scan_locks()
        for name in ("heartbeat", "rescuer", "deadline_scanner", "notifier", "heartbeat", "claimer"):
            await parts[name].run_once()
    job_id = await scheduler.schedule_job(JOB_NAME, now(), {})
    await seen.until(JobCompleted, job_id=job_id)
    for worker in await scheduler.workers():
        assert all(each.tzinfo for each in (worker.started_at, worker.last_beat, worker.lease_until))
    assert scheduler.is_running


@pytest.mark.slow
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows, min_size=1, max_size=12), st.lists(rows, min_size=1, max_size=12))
async def test_scheduler_survives_any_rows_of_workers(
    pool: asyncpg.Pool, before: list[dict[str, str | None]], added_later: list[dict[str, str | None]]
) -> None:
    await pool.execute("TRUNCATE scheduled_jobs, scheduler_workers")
    for row in before:
        await write_worker(pool, row)
    scheduler = Scheduler(pool, shutdown_timeout=0.05)
    scheduler.register(work, name=JOB_NAME)
    seen = Recorder(scheduler)
    async with scheduler:
        await check_survival(scheduler, seen)
        for row in added_later:
            await write_worker(pool, row)
        await check_survival(scheduler, seen)
    assert fault_of(scheduler) is None


async def test_heartbeat_repairs_its_worker_row_after_a_manual_change(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool, shutdown_timeout=0.05)
    scheduler.register(work, name=JOB_NAME)
    async with scheduler:
        for instant in INSTANTS:
            await pool.execute(
                "UPDATE scheduler_workers SET lease_until = $1::text::timestamptz, liveness_key = 7,"
                " last_beat = $1::text::timestamptz, started_at = $1::text::timestamptz, running_jobs = -1",
                instant,
            )
            await check_survival(scheduler, Recorder(scheduler))
            (own,) = await scheduler.workers()
            assert own.is_alive
            assert abs((own.last_beat - datetime.now(UTC)).total_seconds()) < 60
            assert own.running_jobs == 0


async def test_jobs_of_nonexistent_workers_are_reclaimed_when_their_locks_are_free(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their leases never end, but no connection holds the liveness locks in their rows."""
    inside.replace(monkeypatch, store_of_scheduler=partial(Store, server_start_grace_s=0.0))
    for number, worker_id in enumerate(IDS):
        row = dict.fromkeys(("started_at", "last_beat", "lease_until"), INSTANTS[number % 2 * 3])
        row |= {"worker_id": worker_id, "liveness_key": str(number), "hostname": "", "version": ""}
        await write_worker(pool, row | {"pid": "1", "max_concurrent_jobs": "1"})
        await pool.execute(
            "INSERT INTO scheduled_jobs"
            " (job_id, job_name, execution_time, status, attempt, worker_id, lease_until)"
            " VALUES ($1, $2, now(), 'running', 1, $3, 'infinity')",
            str(number),
            JOB_NAME,
            worker_id,
        )
    scheduler = Scheduler(pool, shutdown_timeout=0.05)
    scheduler.register(work, name=JOB_NAME)
    seen = Recorder(scheduler)
    async with scheduler:
        runtime = worker_of(scheduler)
        runtime.rescuer.answer_timeout_s = 0.0
        runtime.rescuer.scan_locks()
        for _ in range(2):
            await runtime.rescuer.run_once()
        await seen.until(JobCompleted, len(IDS))
    dead = [worker for event in seen.of(JobsReclaimed) for worker in event.dead_workers]
    assert sorted(dead) == sorted(IDS)
    assert fault_of(scheduler) is None


async def test_cancel_job_cancels_a_job_whose_worker_id_exceeds_a_notification(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, attempt, worker_id)"
        " VALUES ('odd', 'x', now(), 'running', 1, $1)",
        LONG_ID,
    )
    assert await scheduler.cancel_job("odd")
    job = await scheduler.get_job("odd")
    assert job is not None
    assert job.status is JobStatus.CANCELLED
    await scheduler.shutdown()
