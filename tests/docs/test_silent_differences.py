"""What the pages about moving say of differences without an error holds."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Overlap, RetryPolicy, ScheduleConflictError, Scheduler, job
from pg_scheduler.events import JobRetried
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import At, Every
from tests.support.worker import Recorder

MINUTE = timedelta(minutes=1)
LONG = timedelta(minutes=30)
alerts: list[set[str]] = []


def broken(to: str = "ada") -> None:
    raise ConnectionError(to)


def alert(**values: object) -> None:
    alerts.append(set(values))


def charge(amount: int) -> None:
    raise ConnectionError(amount)


def remind(text: str) -> None: ...


@pytest.fixture(autouse=True)
def declared() -> None:
    job(name="moved.broken", max_retries=1, retry=RetryPolicy(base=LONG, maximum=LONG))(broken)
    job(name="moved.alert")(alert)
    job(name="moved.charge", on_failure="moved.alert")(charge)
    job(name="moved.remind")(remind)


async def test_first_retry_follows_after_a_minute_and_an_attempt_lasts_an_hour(
    pool: asyncpg.Pool,
) -> None:
    assert inspect.signature(Scheduler).parameters["retry_policy"].default.base == MINUTE
    async with TestScheduler(pool) as t:
        await t.scheduler.enqueue(remind, args=("call",))
        assert await pool.fetchval("SELECT timeout_seconds FROM scheduled_jobs") == 3600


async def test_alert_has_no_arguments_of_the_failed_job(pool: asyncpg.Pool) -> None:
    alerts.clear()
    async with TestScheduler(pool) as t:
        await t.scheduler.enqueue(charge, args=(7,))
        await t.drain()
    assert alerts == [{"job_id", "job_name", "error", "attempts"}]


@pytest.mark.parametrize(("overlap", "count"), [(None, 2), (Overlap.QUEUE_ALL, 6), (Overlap.ALLOW, 6)])
async def test_fire_times_are_dropped_while_a_job_waits_for_its_retry(
    pool: asyncpg.Pool, overlap: Overlap | None, count: int
) -> None:
    async with TestScheduler(pool) as t:
        retried = Recorder(t.scheduler)
        options: dict[str, Any] = {} if overlap is None else {"overlap": overlap}
        await t.scheduler.schedules.add(broken, Every(minutes=1), **options)
        await t.run_until(timedelta(minutes=6, seconds=30))
        assert retried.of(JobRetried)
        assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == count


async def test_reminder_at_one_time_is_a_schedule_that_exists_once(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool) as t:
        at = At(t.now + MINUTE)
        await t.scheduler.schedules.add(remind, at, schedule_id="one", args=("call",))
        with pytest.raises(ScheduleConflictError):
            await t.scheduler.schedules.add(remind, at, schedule_id="one", args=("call",))
        await t.run_until(timedelta(minutes=5))
        assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'completed'") == 1
