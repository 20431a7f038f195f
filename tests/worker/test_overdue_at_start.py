"""What became overdue while no worker ran is settled before the first claim of the next one."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import JobPriority, JobStatus, Overlap, Scheduler, current_job
from pg_scheduler.events import JobCompleted, JobDeadlineExceeded, JobExpired, UnregisteredName
from pg_scheduler.triggers import Every
from tests.support.worker import Recorder, now

HOUR = timedelta(hours=1)


async def note() -> None: ...


async def age(pool: asyncpg.Pool, by: timedelta = 2 * HOUR) -> None:
    """Let time pass for all jobs."""
    await pool.execute(
        "UPDATE scheduled_jobs SET execution_time = execution_time - $1::interval,"
        " expires_at = expires_at - $1::interval, created_at = created_at - $1::interval",
        by,
    )


@pytest.mark.parametrize("overlap", [Overlap.QUEUE_ONE, Overlap.SKIP])
async def test_job_that_is_late_keeps_no_due_fire_time_from_its_run(
    pool: asyncpg.Pool, overlap: Overlap
) -> None:
    """The last job of the schedule never started. While it is pending, its schedule waits for its end."""
    producer = Scheduler(pool, role="scheduler")
    producer.register(note, name="note")
    async with producer:
        await producer.schedules.add(
            "note", Every(HOUR), schedule_id="s", overlap=overlap, run_now=True, misfire_grace_time=300
        )
    await age(pool)
    await pool.execute("UPDATE scheduler_schedules SET next_fire_at = now() - interval '5 s'")
    # Due jobs of another service make the statement that expires jobs slower than the start of the planner.
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, task_data, status, priority)"
        " SELECT 'other-' || number, 'other', now() - interval '1 min', '{}', 'pending', 8"
        " FROM generate_series(1, 10000) AS number"
    )
    worker = Scheduler(pool)
    worker.register(note, name="note")
    seen = Recorder(worker)
    async with worker:
        await seen.until(JobCompleted)
        await seen.until(JobExpired)
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'completed'") == 1


@pytest.mark.parametrize("suspend_expiry", [False, True])
async def test_job_past_its_grace_and_its_later_deadline_expires_unless_a_pause_suspends_that(
    pool: asyncpg.Pool, suspend_expiry: bool
) -> None:
    producer = Scheduler(pool)
    if suspend_expiry:
        await producer.tasks.pause(f"{__name__}.note", suspend_expiry=True)
    job_id = await producer.schedule(note, execution_time=now(), misfire_grace_time=300, deadline=HOUR)
    await age(pool)
    await pool.execute(
        "UPDATE scheduled_jobs SET options = jsonb_set(options, '{deadline}',"
        " to_jsonb(to_char((now() - interval '1 h') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US')))"
    )
    await pool.execute("UPDATE scheduler_deadlines SET at = now() - interval '1 h'")
    worker = Scheduler(pool)
    seen = Recorder(worker)
    async with worker:
        await seen.until(JobDeadlineExceeded if suspend_expiry else JobExpired, job_id=job_id)
        assert not seen.of(UnregisteredName)
    job = await producer.get_job(job_id)
    assert job
    assert job.status is (JobStatus.FAILED if suspend_expiry else JobStatus.EXPIRED)


async def test_reclaimed_job_starts_before_jobs_of_lower_priority(pool: asyncpg.Pool) -> None:
    """Its worker has left no row, so nothing but its own lease tells that it has died."""
    started: list[str] = []

    async def record() -> None:
        started.append(current_job().job_id)

    worker = Scheduler(pool, max_concurrent_jobs=1)
    orphan = await worker.schedule(
        record, execution_time=now(), priority=JobPriority.CRITICAL, misfire_grace_time=None
    )
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'running', worker_id = 'gone', attempt = 1, started_at = now(),"
        " last_heartbeat = now() - interval '1 h', lease_until = now() - interval '50 min'"
    )
    other = await worker.schedule(
        record, execution_time=now(), priority=JobPriority.LOW, misfire_grace_time=None
    )
    seen = Recorder(worker)
    async with worker:
        for job_id in (orphan, other):
            await seen.until(JobCompleted, job_id=job_id)
    assert started == [orphan, other]
