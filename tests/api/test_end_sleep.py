"""Scheduler.end_sleep(): a job that sleeps in a step goes on, as it does at its time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import JobStatus, Sleep, Wait, current_job
from pg_scheduler.testing import TestScheduler
from tests.support.world import DAY


async def order() -> str:
    await current_job().steps.sleep("delivery", 14 * DAY)
    return "delivered"


async def remind() -> str:
    steps = current_job().steps
    first = await steps.first("answer", Sleep("patience", DAY), Wait("approval"))
    return first.name


async def approve() -> None:
    await current_job().steps.wait("approval", timeout=DAY)


@pytest.fixture
async def kit(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool) as kit:
        for function in (order, remind, approve):
            kit.scheduler.register(function, name=f"sleep.{function.__name__}")
        yield kit


async def start(kit: TestScheduler, name: str) -> None:
    await kit.scheduler.enqueue(f"sleep.{name}", job_id="job", keep_result=DAY)
    await kit.drain()


async def status(kit: TestScheduler) -> JobStatus:
    job = await kit.scheduler.get_job("job")
    assert job is not None
    return job.status


@pytest.mark.parametrize(("name", "result"), [("order", "delivered"), ("remind", "patience")])
async def test_job_goes_on_after_its_sleep_was_ended(kit: TestScheduler, name: str, result: str) -> None:
    await start(kit, name)
    assert await kit.scheduler.end_sleep("job")
    await kit.drain()
    assert await status(kit) is JobStatus.COMPLETED
    assert (await kit.scheduler.get_job_result("job")).unwrap() == result
    assert not await kit.scheduler.end_sleep("job"), "it has ended"


async def test_sleep_that_was_moved_ends_at_once(kit: TestScheduler) -> None:
    await start(kit, "order")
    await kit.scheduler.run_job_now("job")
    assert await kit.scheduler.end_sleep("job")
    await kit.drain()
    assert await status(kit) is JobStatus.COMPLETED


async def test_job_that_does_not_sleep_is_not_changed(kit: TestScheduler, pool: asyncpg.Pool) -> None:
    assert not await kit.scheduler.end_sleep("nothing")
    await kit.scheduler.enqueue("sleep.order", job_id="job", delay=timedelta(hours=1))
    before = await pool.fetchval("SELECT execution_time FROM scheduled_jobs")
    assert not await kit.scheduler.end_sleep("job"), "it has not begun"
    assert await pool.fetchval("SELECT execution_time FROM scheduled_jobs") == before


async def test_wait_for_a_signal_is_no_sleep(kit: TestScheduler) -> None:
    await start(kit, "approve")
    assert not await kit.scheduler.end_sleep("job")
    await kit.drain()
    assert await status(kit) is JobStatus.PENDING


async def test_job_that_was_claimed_since_keeps_its_sleep(kit: TestScheduler, pool: asyncpg.Pool) -> None:
    """The mark of a suspension that another attempt has left does not count."""
    await start(kit, "order")
    await pool.execute("UPDATE scheduled_jobs SET attempt = attempt + 1")
    until = await pool.fetchval("SELECT until FROM scheduler_steps")
    assert not await kit.scheduler.end_sleep("job")
    assert await pool.fetchval("SELECT until FROM scheduler_steps") == until
