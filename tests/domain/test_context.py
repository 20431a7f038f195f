"""What a job knows of itself."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from pg_scheduler.domain.context import CurrentJob, current, current_job


def test_outside_of_a_job_there_is_none() -> None:
    with pytest.raises(LookupError, match=r"current_job\(\) was called outside of a running job"):
        current_job()


async def test_a_job_sees_itself_in_all_it_starts_and_nowhere_else() -> None:
    job = CurrentJob("id", "name", 1, datetime(2030, 1, 1, tzinfo=UTC), None)

    async def look() -> CurrentJob:
        return current_job()

    async def run() -> tuple[CurrentJob, CurrentJob]:
        current.set(job)
        return await look(), await asyncio.create_task(look())

    assert await asyncio.create_task(run()) == (job, job)
    with pytest.raises(LookupError):
        current_job()
