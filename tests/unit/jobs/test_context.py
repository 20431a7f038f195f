"""current_job(): the attempt that is running."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from pg_scheduler.jobs.context import CurrentJob, GetScheduler, RunningJob, current, current_job
from pg_scheduler.jobs.progress import JobProgress
from tests.support.inside import Claim

DUE = datetime(2030, 1, 1, tzinfo=UTC)
SCHEDULER = cast("GetScheduler", object())
CLAIM = Claim("id", "name", "function", 3, DUE, "{}", 5, 0, 0, None, None)


def ignore(_claim: Claim, _progress: JobProgress) -> None: ...


def test_current_job_raises_lookup_error_when_no_job_is_running() -> None:
    with pytest.raises(LookupError, match=r"outside of a running job; .*copy_context\(\)\.run\(\)"):
        current_job()


async def test_current_job_is_the_same_in_coroutines_and_tasks_of_the_job() -> None:
    job = CurrentJob("id", "name", 3, DUE, None, SCHEDULER)

    async def look() -> CurrentJob:
        return current_job()

    async def run() -> tuple[CurrentJob, CurrentJob]:
        current.set(RunningJob(CLAIM, DUE.timestamp(), SCHEDULER, ignore, None))
        return await look(), await asyncio.create_task(look())

    assert await asyncio.create_task(run()) == (job, job)
    with pytest.raises(LookupError):
        current_job()


@pytest.mark.parametrize(
    ("seconds", "left"),
    [(None, None), (90.5, timedelta(seconds=90.5)), (0.0, timedelta(0)), (1e300, timedelta(seconds=1e9))],
)
async def test_current_job_deadline_is_the_start_of_the_attempt_plus_the_timeout(
    seconds: float | None, left: timedelta | None
) -> None:
    began = DUE + timedelta(hours=1)

    async def run() -> datetime | None:
        claim = CLAIM._replace(timeout_seconds=seconds)
        current.set(RunningJob(claim, began.timestamp(), SCHEDULER, ignore, None))
        return current_job().deadline

    assert await asyncio.create_task(run()) == (None if left is None else began + left)
