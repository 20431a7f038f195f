"""A job that is due by an earlier statement counts as one of that time, if the clock is set back in between.

The correction of due times knows a job of a wrong clock by the time of its creation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Final

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, JobSpec, Scheduler
from pg_scheduler.database.statements import Statements
from pg_scheduler.events import JobFailed
from pg_scheduler.schedules.statements import ScheduleRepository
from pg_scheduler.triggers import Every
from tests.api.conftest import Make
from tests.support.worker import Recorder

YEARS: Final = timedelta(days=3650)
HOUR: Final = timedelta(hours=1)

IN_YEARS: Final = """
    SELECT execution_time, coalesce(last_heartbeat, created_at) AS given_at
    FROM scheduled_jobs WHERE execution_time > now() + interval '1 year'
"""


async def work(**_: object) -> None: ...


async def fail() -> None:
    raise ValueError


async def add_and_run(scheduler: Scheduler) -> None:
    await scheduler.schedules.add(work, Every(HOUR), schedule_id="hourly", run_now=True)


async def trigger(scheduler: Scheduler) -> None:
    await scheduler.schedules.trigger("hourly")


async def alert(scheduler: Scheduler) -> None:
    seen = Recorder(scheduler)
    scheduler.register(work, name="wrong_clock.alert")
    scheduler.register(fail, name="wrong_clock.fail", on_failure="wrong_clock.alert", max_retries=0)
    await scheduler.enqueue(fail)
    await scheduler.start()
    await seen.until(JobFailed)


@pytest.mark.parametrize("call", [add_and_run, trigger, alert])
async def test_job_that_is_due_by_an_earlier_statement_was_created_then(
    make: Make,
    pool: asyncpg.Pool,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Scheduler], Awaitable[None]],
) -> None:
    scheduler = make()
    if call is trigger:
        await scheduler.schedules.add(work, Every(HOUR), schedule_id="hourly")
    original_read, lock = Statements.read_clock, ScheduleRepository.lock

    async def clock_ahead(*args: Any, **kwargs: Any) -> datetime:
        return await original_read(*args, **kwargs) + YEARS

    async def lock_ahead(*args: Any, **kwargs: Any) -> Any:
        locked = await lock(*args, **kwargs)
        return {schedule_id: (row, now + YEARS) for schedule_id, (row, now) in locked.items()}

    # It is right again in the statement that inserts the job.
    monkeypatch.setattr(Statements, "read_clock", clock_ahead)
    monkeypatch.setattr(ScheduleRepository, "lock", lock_ahead)
    await call(scheduler)
    (job,) = await pool.fetch(IN_YEARS)
    assert job["given_at"] == job["execution_time"]


@pytest.mark.parametrize("resolution", ConflictResolution)
@pytest.mark.parametrize("is_within", [False, True])
async def test_jobs_of_a_bulk_call_that_are_due_at_once_were_created_then(
    make: Make,
    pool: asyncpg.Pool,
    monkeypatch: pytest.MonkeyPatch,
    resolution: ConflictResolution,
    *,
    is_within: bool,
) -> None:
    scheduler, original_read = make(), Statements.read_clock
    specs = [
        JobSpec(work),
        JobSpec(work, job_id="plain"),
        JobSpec(work, job_id="extended", keep_result=HOUR),
        JobSpec(work, job_id="unique", unique="key"),
        JobSpec(work, job_id="dependent", after=["plain"]),
    ]

    async def clock_ahead(*args: Any, **kwargs: Any) -> datetime:
        return await original_read(*args, **kwargs) + YEARS

    if resolution is ConflictResolution.REPLACE:
        await scheduler.schedule_bulk(specs)
    # It is right again in the statements that insert the jobs.
    monkeypatch.setattr(Statements, "read_clock", clock_ahead)
    async with pool.acquire() as connection, connection.transaction():
        await scheduler.schedule_bulk(
            specs, conflict_resolution=resolution, connection=connection if is_within else None
        )
    jobs = await pool.fetch(IN_YEARS)
    assert len(jobs) == len(specs)
    assert [job["given_at"] - job["execution_time"] for job in jobs] == [timedelta()] * len(specs)
