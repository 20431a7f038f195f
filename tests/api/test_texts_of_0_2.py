"""Error messages contain the texts that callers of pg-scheduler 0.2 match."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pg_scheduler import JobSpec, Scheduler, periodic
from tests.support.worker import now


async def work() -> None: ...


def not_async() -> None: ...


def test_periodic_error_contains_either_when_there_is_no_schedule() -> None:
    with pytest.raises(ValueError, match="Either"):
        periodic()(work)


def test_periodic_error_contains_both_when_there_are_two_schedules() -> None:
    with pytest.raises(ValueError, match="both"):
        periodic(every=timedelta(minutes=5), cron="* * * * *")(work)


def test_periodic_error_contains_invalid_timezone_when_the_zone_is_unknown() -> None:
    with pytest.raises(ValueError, match="Invalid timezone"):
        periodic(cron="0 0 * * *", timezone="Invalid/Timezone")(work)


def test_periodic_error_contains_timezone_and_cron_when_an_interval_has_a_timezone() -> None:
    with pytest.raises(ValueError, match=r"timezone.*cron"):
        periodic(every=timedelta(minutes=5), timezone="America/New_York")(work)


async def test_schedule_error_contains_expected_an_async_function_when_func_is_not_async(
    scheduler: Scheduler,
) -> None:
    with pytest.raises(TypeError, match="Expected an async function"):
        await scheduler.schedule(not_async, execution_time=now())
    with pytest.raises(TypeError, match="Expected an async function"):
        await scheduler.schedule_bulk([JobSpec(not_async, now())])


async def test_schedule_error_contains_already_exists_when_the_id_exists(scheduler: Scheduler) -> None:
    later = now() + timedelta(hours=1)
    await scheduler.schedule(work, execution_time=later, job_id="taken")
    with pytest.raises(ValueError, match="'taken' already exists with status 'pending'"):
        await scheduler.schedule(work, execution_time=later, job_id="taken")
