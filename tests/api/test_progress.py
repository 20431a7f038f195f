"""current_job().progress() of async jobs, threads and processes, as other processes read it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pg_scheduler import JobProgress, JobStatus, Scheduler, current_job
from pg_scheduler.events import JobCompleted, JobFailed, JobProgressed
from tests.support.worker import Gate, Recorder
from tests.worker import processes


async def progress_of(scheduler: Scheduler, job_id: str) -> JobProgress | None:
    job = await scheduler.get_job(job_id)
    assert job is not None
    return job.progress


async def report_steps(count: int) -> None:
    for number in range(1, count + 1):
        current_job().progress(number, count, note=f"step {number}")


async def test_progress_of_a_running_job_is_read_while_it_runs(
    scheduler: Scheduler, seen: Recorder, gate: Gate
) -> None:
    async def work() -> None:
        current_job().progress(1, 2, note="half")
        await gate.job()

    scheduler.register(work)
    job_id = await scheduler.enqueue(work)
    await seen.until(JobProgressed, job_id=job_id)
    assert await progress_of(scheduler, job_id) == JobProgress(1, 2, "half")
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert job.status is JobStatus.RUNNING
    gate.open.set()
    await seen.until(JobCompleted, job_id=job_id)
    assert await progress_of(scheduler, job_id) == JobProgress(1, 2, "half"), "it stays in the row"


@pytest.mark.parametrize(
    ("func", "executor"),
    [(report_steps, "async"), (processes.report_steps, "thread"), (processes.report_steps, "process")],
)
async def test_last_progress_is_stored_when_the_job_has_completed(
    func: Any, executor: str, scheduler: Scheduler, seen: Recorder
) -> None:
    scheduler.register(func, name="steps", executor=executor)
    job_id = await scheduler.enqueue("steps", args=(2000,))
    await seen.until(JobCompleted, job_id=job_id)
    assert await progress_of(scheduler, job_id) == JobProgress(2000, 2000, "step 2000")
    assert seen.events.index(seen.of(JobProgressed)[-1]) < seen.events.index(seen.of(JobCompleted)[-1])


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_progress_of_a_function_outside_of_the_event_loop_is_written_while_it_runs(
    executor: str, scheduler: Scheduler, seen: Recorder, tmp_path: Path
) -> None:
    scheduler.register(processes.report_and_wait, name="wait", executor=executor)
    path = tmp_path / "go"
    job_id = await scheduler.enqueue("wait", args=(str(path),))
    (event,) = await seen.until(JobProgressed, job_id=job_id)
    assert (event.job_name, event.attempt, event.done, event.total, event.note) == ("wait", 1, 1, 2, None)
    assert await progress_of(scheduler, job_id) == JobProgress(1, 2)
    await asyncio.to_thread(path.touch)
    await seen.until(JobCompleted, job_id=job_id)


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_progress_that_cannot_be_stored_fails_its_own_job(
    executor: str, scheduler: Scheduler, seen: Recorder
) -> None:
    scheduler.register(processes.report_nonsense, name="nonsense", executor=executor, max_retries=0)
    job_id = await scheduler.enqueue("nonsense")
    (failed,) = await seen.until(JobFailed, job_id=job_id)
    assert (
        failed.error
        == "TypeError: done must be an int or a float, not 'half'; pass done=int(...) or float(...)"
    )


async def test_retried_job_keeps_its_progress_until_it_reports_again(
    scheduler: Scheduler, seen: Recorder, gate: Gate
) -> None:
    numbers: list[int] = [1]

    async def work() -> None:
        for number in numbers:
            current_job().progress(number)
        numbers.clear()
        await gate.job()

    gate.open.set()
    scheduler.register(work)
    job_id = await scheduler.enqueue(work)
    await seen.until(JobCompleted, job_id=job_id)
    await scheduler.retry_job(job_id)
    await seen.until(JobCompleted, 2, job_id=job_id)
    assert await progress_of(scheduler, job_id) == JobProgress(1)
    numbers.append(2)
    await scheduler.retry_job(job_id)
    await seen.until(JobCompleted, 3, job_id=job_id)
    assert await progress_of(scheduler, job_id) == JobProgress(2)
