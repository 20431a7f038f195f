"""Metadata is stored with a job, and read by people, filters and the job itself."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, JobSpec, PayloadError, Scheduler, current_job, job
from pg_scheduler.events import JobCompleted
from tests.api.conftest import Make
from tests.support.inside import catalogue
from tests.support.worker import Recorder, now

SEEN: list[Any] = []


async def plain() -> None:
    SEEN.append(current_job().metadata)


async def tagged() -> None:
    SEEN.append(current_job().metadata)


async def test_every_way_of_scheduling_stores_metadata(make: Make) -> None:
    scheduler = make()
    name = "pg_scheduler.unknown"
    await scheduler.schedule(plain, execution_time=now(), job_id="a", metadata={"tenant": 7})
    await scheduler.enqueue(plain, job_id="b", metadata={"tenant": 7})
    await scheduler.enqueue(name, job_id="c", metadata={"tenant": 7})
    await scheduler.schedule_job(name, now(), {}, job_id="d", metadata={"tenant": 7})
    await scheduler.schedule_bulk([JobSpec(plain, now(), job_id="e", metadata={"tenant": 7})])
    ids = await scheduler.schedule_bulk([JobSpec(plain, now(), metadata={"tenant": n}) for n in range(200)])
    found = await scheduler.list_jobs(metadata={"tenant": 7})
    assert [job.job_id for job in found] == sorted(["a", "b", "c", "d", "e", str(ids[7])])
    assert {str(job.metadata) for job in found} == {"{'tenant': 7}"}
    assert len(await scheduler.list_jobs(metadata={}, limit=1000)) == 205


async def test_job_sees_its_metadata(scheduler: Scheduler, seen: Recorder) -> None:
    SEEN.clear()
    scheduler.register(tagged, metadata={"area": "mail", "tenant": 0})
    await scheduler.enqueue(tagged, metadata={"tenant": 7})
    await seen.until(JobCompleted, 1)
    await scheduler.enqueue(plain)
    await seen.until(JobCompleted, 2)
    assert SEEN == [{"area": "mail", "tenant": 7}, {}]


async def test_replacing_a_job_replaces_its_metadata(make: Make) -> None:
    scheduler = make()
    for tenant in (7, 8):
        await scheduler.enqueue(
            plain,
            job_id="a",
            metadata={"tenant": tenant},
            conflict_resolution=ConflictResolution.REPLACE,
        )
    (found,) = await scheduler.list_jobs()
    assert found.metadata == {"tenant": 8}


async def test_decorator_sets_metadata_for_every_scheduler(make: Make) -> None:
    @job(metadata={"area": "mail"})
    async def decorated() -> None: ...

    assert catalogue.task_of(decorated) is not None
    scheduler = make()
    await scheduler.enqueue(decorated)
    assert [each.metadata for each in await scheduler.list_jobs()] == [{"area": "mail"}]


async def test_invalid_metadata_store_nothing(make: Make) -> None:
    scheduler = make(max_payload_bytes=100)
    for metadata in ([1], {"a": {1}}, {"trace": 1}, {"a": "x" * 100}):
        with pytest.raises(PayloadError):
            await scheduler.enqueue(plain, metadata=metadata)  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match="metadata must be a dict, not str"):
        await scheduler.list_jobs(metadata="tenant")  # type: ignore[arg-type]
    assert await scheduler.list_jobs() == []


async def test_job_metadata_are_empty_when_the_row_has_something_else(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    job_id = await scheduler.enqueue(plain)
    await pool.execute("""UPDATE scheduled_jobs SET task_data = '{"args": [], "metadata": [1]}'""")
    found = await scheduler.get_job(job_id)
    assert found is not None
    assert (found.args, found.metadata) == ((), {})
