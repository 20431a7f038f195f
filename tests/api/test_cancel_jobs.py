"""cancel_jobs() cancels everything that matches, on every worker."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from pg_scheduler import JobCounts, JobSpec, Scheduler
from pg_scheduler.events import JobCancelled, JobStarted
from tests.api.conftest import Make
from tests.support.worker import Gate, Recorder, now

HOUR = timedelta(hours=1)


async def work(*args: Any) -> None: ...


async def test_cancel_jobs_cancels_pending_and_stops_running_jobs(
    scheduler: Scheduler, seen: Recorder, gate: Gate
) -> None:
    running = await scheduler.enqueue(gate.job, metadata={"tenant": 7})
    await seen.until(JobStarted, job_id=running)
    pending = await scheduler.enqueue(work, delay=HOUR, metadata={"tenant": 7})
    other = await scheduler.enqueue(work, delay=HOUR, metadata={"tenant": 8})
    assert await scheduler.cancel_jobs(metadata={"tenant": 7}) == 2
    await seen.until(JobCancelled, job_id=running)
    await seen.until(JobCancelled, job_id=pending)
    assert len(seen.of(JobCancelled)) == 2
    assert await scheduler.count_jobs() == JobCounts(pending=1, cancelled=2)
    assert [job.job_id for job in await scheduler.list_jobs(status="pending")] == [other]
    assert await scheduler.cancel_jobs(metadata={"tenant": 7}) == 0


async def test_cancel_jobs_stops_a_job_that_another_worker_runs(
    scheduler: Scheduler, seen: Recorder, gate: Gate, make: Make
) -> None:
    running = await scheduler.enqueue(gate.job)
    await seen.until(JobStarted, job_id=running)
    assert await make().cancel_jobs(worker_id=scheduler.worker_id) == 1
    await seen.until(JobCancelled, job_id=running)


async def test_cancel_jobs_cancels_thousands_of_jobs(make: Make) -> None:
    scheduler = make()
    await scheduler.schedule_bulk([JobSpec(work, now() + HOUR) for _ in range(2500)])
    other = await scheduler.schedule_job("other", now() + HOUR, {})
    assert await scheduler.cancel_jobs(job_name=f"{__name__}.work") == 2500
    assert await scheduler.count_jobs() == JobCounts(pending=1, cancelled=2500)
    assert [job.job_id for job in await scheduler.list_jobs(status="pending")] == [other]


@pytest.mark.parametrize("filters", [{}, {"metadata": {}}, {"metadata": None, "status": None}], ids=str)
async def test_cancel_jobs_without_a_filter_is_rejected(make: Make, filters: dict[str, Any]) -> None:
    scheduler = make()
    await scheduler.schedule(work, execution_time=now() + HOUR)
    with pytest.raises(ValueError, match=r"cancel_jobs\(\) needs a filter; to cancel all jobs, pass status="):
        await scheduler.cancel_jobs(**filters)
    assert await scheduler.count_jobs() == JobCounts(pending=1)
    assert await scheduler.cancel_jobs(status=[]) == 0
    assert await scheduler.cancel_jobs(status="completed") == 0
    assert await scheduler.cancel_jobs(status=["pending", "running"]) == 1


@pytest.mark.parametrize(
    "filters",
    [
        {"status": "done"},
        {"due_from": datetime(2030, 1, 1)},  # noqa: DTZ001 - the subject
        {"job_name": "\x00"},
        {"metadata": {"a": {1}}},
    ],
    ids=str,
)
async def test_cancel_jobs_rejects_invalid_filters(make: Make, filters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        await make().cancel_jobs(**filters)
