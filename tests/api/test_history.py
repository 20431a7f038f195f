"""Job.errors shows why the attempts of a job did not complete."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from pg_scheduler import JobStatus, Scheduler
from pg_scheduler.events import JobCompleted, JobFailed, JobRetried
from tests.support.inside import worker_of
from tests.support.worker import Recorder, now

HUGE = 100_000


async def fail(reason: str) -> None:
    raise ValueError(reason)


async def recurse(depth: int = 200) -> None:
    if depth == 0:
        raise ValueError("x" * HUGE)
    await recurse(depth - 1)


async def sleep() -> None:
    await asyncio.sleep(60)  # its timeout ends it


async def succeed() -> None: ...


def fail_in_process() -> None:
    raise KeyError("in a process")


async def test_errors_show_why_a_job_failed_three_times(scheduler: Scheduler, seen: Recorder) -> None:
    job_id = await scheduler.enqueue(fail, args=("no",), max_retries=2)
    for _ in range(2):
        await seen.until(JobRetried, job_id=job_id)
        seen.events.clear()
        await scheduler.db_pool.execute("UPDATE scheduled_jobs SET execution_time = now()")
        await scheduler.retry_job("wake")
        worker_of(scheduler).node.signals.due()
    await seen.until(JobFailed, job_id=job_id)
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert [error.attempt for error in job.errors] == [1, 2, 3]
    for error in job.errors:
        assert (error.outcome, error.error_type, error.message) == ("error", "ValueError", "no")
        assert error.traceback is not None
        assert "raise ValueError(reason)" in error.traceback
        assert error.started_at is not None
        assert error.ended_at is not None
        assert error.started_at <= error.ended_at
        assert error.worker_id == scheduler.worker_id


async def test_huge_error_fails_its_job_and_stops_no_other(scheduler: Scheduler, seen: Recorder) -> None:
    failing = await scheduler.enqueue(recurse)
    await seen.until(JobFailed, job_id=failing)
    await seen.until(JobCompleted, job_id=await scheduler.enqueue(succeed))
    job = await scheduler.get_job(failing)
    assert job is not None
    assert job.status is JobStatus.FAILED
    (error,) = job.errors
    assert len(error.message or "") == 10_000
    assert 0 < len((error.traceback or "").encode()) <= 4000


async def test_timeout_and_completion_are_distinguished(scheduler: Scheduler, seen: Recorder) -> None:
    late = await scheduler.schedule(sleep, execution_time=now(), timeout=timedelta(milliseconds=10))
    await seen.until(JobFailed, job_id=late)
    done = await scheduler.enqueue(succeed)
    await seen.until(JobCompleted, job_id=done)
    found = {job.job_id: [error.outcome for error in job.errors] for job in await scheduler.list_jobs()}
    assert found == {late: ["timeout"], done: []}


async def test_errors_show_the_exception_of_a_child_process(scheduler: Scheduler, seen: Recorder) -> None:
    scheduler.register(fail_in_process, executor="process")
    job_id = await scheduler.enqueue(fail_in_process)
    await seen.until(JobFailed, job_id=job_id)
    job = await scheduler.get_job(job_id)
    assert job is not None
    (error,) = job.errors
    assert (error.outcome, error.error_type, error.message) == ("error", "KeyError", "'in a process'")
    assert error.traceback is not None
    assert 'raise KeyError("in a process")' in error.traceback
