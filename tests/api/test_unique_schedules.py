"""Schedules of tasks that are unique: fire times that are rejected are skipped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import CatchUp, ConflictResolution, JobConflictError, Overlap, Schedule, Unique
from pg_scheduler.events import ScheduleFinished, ScheduleSkipped
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import Every, FixedDelay
from tests.support.worker import Recorder

START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
NAME = "sync"


async def sync(user: int = 7) -> None: ...


@pytest.fixture
async def t(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START) as kit:
        kit.scheduler.register(sync, name=NAME, unique=Unique())
        yield kit


@pytest.fixture
def seen(t: TestScheduler) -> Recorder:
    return Recorder(t.scheduler)


async def add(t: TestScheduler, trigger: Any = None, **options: Any) -> Schedule:
    trigger = Every(HOUR) if trigger is None else trigger
    return await t.scheduler.schedules.add(NAME, trigger, schedule_id="s", **options)


async def schedule(t: TestScheduler) -> Schedule:
    found = await t.scheduler.schedules.get("s")
    assert found is not None
    return found


async def counts(t: TestScheduler) -> tuple[int, int, int]:
    found = await schedule(t)
    return found.runs, found.skipped, found.missed


async def hold(t: TestScheduler, hours: float) -> str:
    """Enqueue a job that holds the key for some hours."""
    return await t.scheduler.enqueue(NAME, delay=timedelta(hours=hours))


@pytest.mark.parametrize("overlap", Overlap)
async def test_rejected_fire_times_are_skipped_and_the_next_ones_run(
    t: TestScheduler, seen: Recorder, overlap: Overlap
) -> None:
    await add(t, overlap=overlap)
    holder = await hold(t, 2.5)
    await t.run_until(timedelta(hours=4.5))
    assert await counts(t) == (2, 2, 0)
    assert [(each.fire_times, each.last_job_id) for each in seen.of(ScheduleSkipped)] == [(1, holder)] * 2
    assert t.ran(NAME) == 3
    assert all(job.unique_key for job in t.jobs(NAME))


async def test_fire_times_and_calls_have_the_same_key(t: TestScheduler) -> None:
    await add(t, overlap=Overlap.ALLOW, kwargs={"user": 8})
    await hold(t, 9)
    t.advance(HOUR)
    await t.run_until(timedelta(0))
    assert await counts(t) == (1, 0, 0)
    assert t.ran(NAME) == 1


async def test_rejected_fire_time_does_not_use_up_max_runs(t: TestScheduler, seen: Recorder) -> None:
    await add(t, max_runs=1)
    await hold(t, 1.5)
    await t.run_until(timedelta(hours=1.2))
    assert await counts(t) == (0, 1, 0)
    assert (await schedule(t)).next_fire_at == START + 2 * HOUR
    await t.run_until(timedelta(hours=3))
    assert await counts(t) == (1, 1, 0)
    assert (await schedule(t)).finished_at is not None
    assert len(seen.of(ScheduleFinished)) == 1


async def test_schedule_finishes_when_its_last_fire_time_is_rejected(t: TestScheduler) -> None:
    await add(t, end=START + HOUR)
    await hold(t, 1.5)
    await t.run_until(timedelta(hours=1.2))
    assert await counts(t) == (0, 1, 0)
    assert (await schedule(t)).finished_at is not None


async def test_fixed_delay_continues_after_a_rejected_fire_time(t: TestScheduler) -> None:
    await add(t, FixedDelay(HOUR))
    await hold(t, 1.5)
    await t.run_until(timedelta(hours=1.2))
    assert (await schedule(t)).next_fire_at == START + 2 * HOUR
    await t.run_until(timedelta(hours=2))
    assert await counts(t) == (2, 1, 0)


@pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.QUEUE_ALL])
async def test_of_missed_fire_times_the_first_of_each_span_becomes_a_job(
    t: TestScheduler, overlap: Overlap
) -> None:
    t.scheduler.register(sync, name=NAME, unique=Unique(per=2 * HOUR))
    await add(t, overlap=overlap, catch_up=CatchUp.all())
    taken = await t.scheduler.schedule(sync, execution_time=START + HOUR * 1.9, misfire_grace_time=None)
    t.advance(timedelta(hours=6.5))
    await t.run_until(timedelta(0))
    assert taken in {job.job_id for job in t.jobs(NAME)}
    assert await counts(t) == (3, 3, 0)
    assert t.ran(NAME) == 4, "none waits for a fire time that was rejected"
    assert sorted(job.execution_time.hour for job in t.jobs(NAME) if job.schedule_id) == [2, 4, 6]


async def test_cancel_keeps_the_old_job_when_the_fire_time_is_rejected(t: TestScheduler) -> None:
    await add(t, overlap=Overlap.CANCEL, start=START, misfire_grace_time=None)
    await t.scheduler.tasks.pause(NAME)
    await t.run_until(timedelta(hours=1.5))
    (job,) = t.jobs(NAME)
    assert not job.status.is_finished
    assert await counts(t) == (1, 1, 0)


async def test_trigger_raises_and_backfill_leaves_out_what_the_key_excludes(t: TestScheduler) -> None:
    await add(t, overlap=Overlap.QUEUE_ALL)
    holder = await hold(t, 9)
    with pytest.raises(JobConflictError) as raised:
        await t.scheduler.schedules.trigger("s")
    assert raised.value.job_id == holder
    assert await t.scheduler.schedules.backfill("s", START, START + 5 * HOUR) == []
    assert (await schedule(t)).last_job_id is None
    await t.scheduler.cancel_job(holder)
    first = await t.scheduler.schedules.backfill("s", START, START + 5 * HOUR)
    assert len(first) == 1, "the first one excludes the others"
    assert (await schedule(t)).last_job_id == first[0]
    await t.drain()
    assert await t.scheduler.schedules.trigger("s") not in {None, first[0]}


async def test_run_now_adds_the_schedule_even_if_the_key_is_taken(t: TestScheduler) -> None:
    await hold(t, 9)
    await add(t, run_now=True)
    assert (await schedule(t)).last_job_id is None
    await t.scheduler.cancel_jobs(job_name=NAME)
    await add(t, run_now=True, max_runs=9, conflict_resolution=ConflictResolution.REPLACE)
    assert (await schedule(t)).last_job_id is not None


async def test_fire_time_gets_a_job_after_the_schedule_was_removed_with_its_jobs_and_added_again(
    t: TestScheduler,
) -> None:
    await add(t)
    await t.scheduler.schedules.backfill("s", START + HOUR, START + 2 * HOUR)
    assert await t.scheduler.schedules.remove("s", cancel_jobs=True)
    await add(t)
    await t.run_until(2 * HOUR)
    assert await counts(t) == (2, 0, 0)
    assert t.ran(NAME) == 2
