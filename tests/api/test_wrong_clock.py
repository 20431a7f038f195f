"""A job that is due by an earlier statement counts as one of that time, if the clock is set back in between.

The correction of due times knows a job of a wrong clock by the time of its creation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, Final

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.database.statements import Statements
from pg_scheduler.events import JobFailed
from pg_scheduler.schedules.statements import ScheduleRepository
from pg_scheduler.triggers import Every
from tests.api.conftest import Make
from tests.support.worker import Recorder

YEARS: Final = timedelta(days=3650)
HOUR: Final = timedelta(hours=1)

IN_YEARS: Final = """
    SELECT execution_time, created_at FROM scheduled_jobs WHERE execution_time > now() + interval '1 year'
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
    assert job["created_at"] == job["execution_time"]
