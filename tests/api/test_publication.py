"""A publication of all tables, as logical replication creates one, rejects no statement."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Limit, Overlap, Scheduler, call, current_job
from pg_scheduler.events import JobCompleted, ScheduleFired, ServiceFaulted
from pg_scheduler.triggers import Every
from tests.api.conftest import Make
from tests.support.worker import Recorder

PUBLISH = "CREATE PUBLICATION everything FOR ALL TABLES"


@pytest.fixture
async def scheduler(make: Make) -> Scheduler:
    scheduler = make()

    async def work() -> int:
        return 1

    async def parent() -> int:
        return int(await current_job().steps.child("child", call(work)))

    scheduler.register(work, name="work")
    scheduler.register(parent, name="parent")
    scheduler.register(work, name="limited", limits=[Limit(max_running=1)])
    scheduler.register(work, name="kept", keep_result=timedelta(minutes=1))
    await scheduler.start()
    return scheduler


async def test_every_kind_of_job_completes_beside_a_publication_of_all_tables(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    seen = Recorder(scheduler)
    await scheduler.enqueue("work", job_id="waits already", delay=3600)
    await scheduler.enqueue("work", job_id="child of a job that waits", after=["waits already"])
    await pool.execute(PUBLISH)
    await scheduler.enqueue("work", job_id="first", delay=3600)
    await scheduler.enqueue("work", job_id="second", after=["first"])
    await scheduler.enqueue("parent", job_id="parent")
    await scheduler.enqueue("limited", job_id="limited")
    await scheduler.enqueue("kept", job_id="kept")
    for job_id in ("waits already", "first"):
        await scheduler.run_job_now(job_id)
    ids = "waits already", "child of a job that waits", "first", "second", "parent", "limited", "kept"
    for job_id in ids:
        await seen.until(JobCompleted, job_id=job_id)
    assert seen.of(ServiceFaulted) == []


async def test_schedule_whose_job_outlasts_its_interval_is_planned_beside_a_publication(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    seen, may_end = Recorder(scheduler), asyncio.Event()

    async def outlast(**_: Any) -> None:
        await may_end.wait()

    scheduler.register(outlast, name="outlast")
    await pool.execute(PUBLISH)
    await scheduler.start()
    await scheduler.schedules.add("outlast", Every(seconds=0.1), schedule_id="s", overlap=Overlap.QUEUE_ALL)
    await seen.until(ScheduleFired, 3, schedule_id="s")
    may_end.set()
    await seen.until(JobCompleted, 3)
    assert seen.of(ServiceFaulted) == []
