"""A retried job of a schedule waits for the last one, so that two jobs of a schedule never run at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import asyncpg
import pytest

import pg_scheduler
from pg_scheduler import Overlap, Scheduler, Share, current_job
from pg_scheduler.inspect import Inspector
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import Every, FixedDelay
from tests.support.inside import store_of

NOW = datetime(2030, 1, 1, 0, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
ORDERED = [overlap for overlap in Overlap if overlap is not Overlap.ALLOW]

Retry: TypeAlias = Callable[[Scheduler, asyncpg.Pool, Sequence[str]], Awaitable[None]]


async def retry_each(scheduler: Scheduler, pool: asyncpg.Pool, job_ids: Sequence[str]) -> None:
    """Retry the jobs one by one."""
    for job_id in job_ids:
        assert await scheduler.retry_job(job_id)


async def retry_in_a_transaction(scheduler: Scheduler, pool: asyncpg.Pool, job_ids: Sequence[str]) -> None:
    """Retry the jobs in a transaction of the application."""
    async with pool.acquire() as connection, connection.transaction():
        for job_id in job_ids:
            assert await scheduler.retry_job(job_id, connection=connection)


async def retry_families(scheduler: Scheduler, pool: asyncpg.Pool, job_ids: Sequence[str]) -> None:
    """Retry the jobs with their children."""
    for job_id in job_ids:
        assert await scheduler.retry_job(job_id, children=True)


async def retry_in_bulk(scheduler: Scheduler, pool: asyncpg.Pool, job_ids: Sequence[str]) -> None:
    """Retry the jobs by one call."""
    async for step in Inspector(scheduler).retry_jobs(ids=job_ids):
        assert step.done == len(job_ids)


WAYS: Sequence[Retry] = [retry_each, retry_in_a_transaction, retry_families, retry_in_bulk]


class Course:
    """A function that fails at first, and records how many of its jobs run at once."""

    def __init__(self) -> None:
        self.fails = True
        self.fire_times: list[datetime | None] = []

    async def work(self) -> None:
        if self.fails:
            raise ValueError("the supplier is down")
        self.fire_times.append(current_job().fire_time)


async def failed_jobs(t: TestScheduler, course: Course, overlap: Overlap, count: int = 4) -> list[str]:
    """Add a schedule whose first jobs fail; return their ids."""
    t.scheduler.register(course.work, name="retried.work", max_retries=0)
    schedules = t.scheduler.schedules
    await schedules.add("retried.work", Every(hours=1), schedule_id="a", overlap=overlap)
    job_ids = await schedules.backfill("a", NOW - count * HOUR, NOW)
    await t.drain()
    assert {job.status.value for job in t.jobs()} == {"failed"}
    course.fails = False
    return job_ids


async def blocked(pool: asyncpg.Pool) -> list[str | None]:
    """Return what the unfinished jobs wait for, in the order of their due times."""
    rows = await pool.fetch(
        "SELECT blocked_on FROM scheduled_jobs WHERE finished_at IS NULL ORDER BY execution_time, job_id"
    )
    return [row["blocked_on"] for row in rows]


@pytest.mark.parametrize("overlap", ORDERED)
@pytest.mark.parametrize("retry", WAYS)
async def test_retried_jobs_of_a_schedule_run_one_after_the_other(
    retry: Retry, overlap: Overlap, pool: asyncpg.Pool
) -> None:
    course = Course()
    async with TestScheduler(pool, now=NOW) as t:
        job_ids = await failed_jobs(t, course, overlap)
        await retry(t.scheduler, pool, job_ids)
        assert sorted(await blocked(pool), key=str) == [None, "after", "after", "after"]
        schedule = await t.scheduler.schedules.get("a")
        assert schedule is not None
        assert schedule.last_job_id == job_ids[-1]
        triggered = await t.scheduler.schedules.trigger("a")
        assert (await blocked(pool)).count(None) == 1
        await t.drain()
        assert [job.status.value for job in t.jobs()] == ["completed"] * 5
        assert triggered is not None
        assert course.fire_times[:4] == [NOW - hours * HOUR for hours in range(4, 0, -1)]
        assert not await pool.fetchval("SELECT count(*) FROM scheduler_after")


async def test_retried_jobs_of_a_schedule_that_allows_overlaps_wait_for_none(pool: asyncpg.Pool) -> None:
    course = Course()
    async with TestScheduler(pool, now=NOW) as t:
        job_ids = await failed_jobs(t, course, Overlap.ALLOW)
        await retry_each(t.scheduler, pool, job_ids)
        assert await blocked(pool) == [None] * 4


@pytest.mark.parametrize("retry", WAYS)
async def test_retried_job_waits_for_the_running_one_and_the_next_fire_time_for_both(
    retry: Retry, pool: asyncpg.Pool
) -> None:
    course = Course()
    async with TestScheduler(pool, now=NOW) as t:
        job_ids = await failed_jobs(t, course, Overlap.QUEUE_ALL, 1)
        triggered = await t.scheduler.schedules.trigger("a")
        await retry(t.scheduler, pool, job_ids)
        parents = await pool.fetch("SELECT parent_id, child_id FROM scheduler_after")
        assert [tuple(row) for row in parents] == [(triggered, job_ids[0])]
        await t.run_until(HOUR)
        assert [job.status.value for job in t.jobs()] == ["completed"] * 3
        assert course.fire_times == [None, NOW - HOUR, NOW + HOUR]


async def test_retried_job_whose_schedule_was_removed_or_has_a_sequence_gets_no_edge(
    pool: asyncpg.Pool,
) -> None:
    course = Course()
    async with TestScheduler(pool, now=NOW) as t:
        job_ids = await failed_jobs(t, course, Overlap.SKIP, 2)
        await t.scheduler.schedules.remove("a")
        await retry_each(t.scheduler, pool, job_ids)
        assert await blocked(pool) == [None, None]
        await t.drain()


async def test_retried_job_of_a_sequence_waits_in_the_sequence_only(pool: asyncpg.Pool) -> None:
    course = Course()
    key = pg_scheduler.Sequence(key=lambda: "one", on_failure="skip")
    async with TestScheduler(pool, now=NOW) as t:
        t.scheduler.register(course.work, name="retried.work", max_retries=0, sequence=key)
        await t.scheduler.schedules.add("retried.work", Every(hours=1), schedule_id="a", overlap=Overlap.SKIP)
        job_ids = await t.scheduler.schedules.backfill("a", NOW - 2 * HOUR, NOW)
        await t.drain()
        course.fails = False
        await retry_each(t.scheduler, pool, job_ids)
        assert not await pool.fetchval("SELECT count(*) FROM scheduler_after")
        await t.drain()
        assert len(course.fire_times) == 2


async def test_retried_job_keeps_its_turn_of_a_share_while_it_waits(pool: asyncpg.Pool) -> None:
    course = Course()
    async with TestScheduler(pool, now=NOW) as t:
        share = Share(key=lambda: "tenant")
        t.scheduler.register(course.work, name="retried.work", max_retries=0, share=share)
        await t.scheduler.schedules.add("retried.work", Every(hours=1), schedule_id="a", overlap=Overlap.SKIP)
        job_ids = await t.scheduler.schedules.backfill("a", NOW - 2 * HOUR, NOW)
        # They are cancelled while they wait for their turns.
        await t.scheduler.cancel_jobs(job_name="retried.work")
        course.fails = False
        await t.drain()
        await retry_each(t.scheduler, pool, job_ids)
        await t.drain()
        assert len(course.fire_times) == 2


async def test_fixed_delay_counts_from_the_end_of_a_retried_job(pool: asyncpg.Pool) -> None:
    course = Course()
    async with TestScheduler(pool, now=NOW) as t:
        t.scheduler.register(course.work, name="retried.work", max_retries=0)
        schedules = t.scheduler.schedules
        await schedules.add("retried.work", FixedDelay(HOUR), schedule_id="a")
        await t.run_until(HOUR)
        (job_id,) = [job.job_id for job in t.jobs()]
        course.fails = False
        t.advance(HOUR / 2)
        assert await t.scheduler.retry_job(job_id)
        schedule = await schedules.get("a")
        assert schedule is not None
        assert schedule.next_fire_at is None
        await t.run_until(HOUR / 4)
        schedule = await schedules.get("a")
        assert schedule is not None
        assert schedule.next_fire_at is not None
        assert schedule.next_fire_at >= NOW + 5 * HOUR / 2


async def test_job_that_another_call_retries_meanwhile_keeps_its_place(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = Course()
    async with TestScheduler(pool, now=NOW) as t:
        dependencies = store_of(t.scheduler).dependencies
        lock_schedules = dependencies.lock_schedules
        (job_id,) = await failed_jobs(t, course, Overlap.QUEUE_ALL, 1)
        first_id = await t.scheduler.schedules.trigger("a")
        later_ids: list[str | None] = []

        async def lock_later(*args: Any) -> dict[str, str | None]:
            """Let another call retry the job, and a third one add a job behind it, before the lock."""
            monkeypatch.setattr(dependencies, "lock_schedules", lock_schedules)
            assert await t.scheduler.retry_job(job_id)
            later_ids.append(await t.scheduler.schedules.trigger("a"))
            return await lock_schedules(*args)

        monkeypatch.setattr(dependencies, "lock_schedules", lock_later)
        assert not await t.scheduler.retry_job(job_id)
        edges = {tuple(row) for row in await pool.fetch("SELECT parent_id, child_id FROM scheduler_after")}
        assert edges == {(first_id, job_id), (job_id, later_ids[0])}
        await t.drain()
        assert [job.status.value for job in t.jobs()] == ["completed"] * 3
