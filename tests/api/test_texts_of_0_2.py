"""Error messages contain the texts that callers of pg-scheduler 0.2 match."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pg_scheduler import JobSpec, Scheduler, periodic
from tests.support.worker import now


async def work() -> None: ...


def not_async() -> None: ...


def test_periodic_without_a_schedule_says_either() -> None:
    with pytest.raises(ValueError, match="Either"):
        periodic()(work)


def test_periodic_with_two_schedules_says_both() -> None:
    with pytest.raises(ValueError, match="both"):
        periodic(every=timedelta(minutes=5), cron="* * * * *")(work)


def test_periodic_with_an_unknown_timezone_says_invalid_timezone() -> None:
    with pytest.raises(ValueError, match="Invalid timezone"):
        periodic(cron="0 0 * * *", timezone="Invalid/Timezone")(work)


def test_periodic_with_an_interval_and_a_timezone_names_timezone_and_cron() -> None:
    with pytest.raises(ValueError, match=r"timezone.*cron"):
        periodic(every=timedelta(minutes=5), timezone="America/New_York")(work)


def test_periodic_on_a_function_that_is_not_async_says_async_functions() -> None:
    with pytest.raises(TypeError, match="async functions"):
        periodic(every=timedelta(minutes=5))(not_async)  # type: ignore[type-var]


async def test_schedule_with_a_function_that_is_not_async_says_expected_an_async_function(
    scheduler: Scheduler,
) -> None:
    with pytest.raises(TypeError, match="Expected an async function"):
        await scheduler.schedule(not_async, execution_time=now())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Expected an async function"):
        await scheduler.schedule_bulk([JobSpec(not_async, now())])  # type: ignore[arg-type]


async def test_schedule_with_an_existing_id_says_already_exists(scheduler: Scheduler) -> None:
    later = now() + timedelta(hours=1)
    await scheduler.schedule(work, execution_time=later, job_id="taken")
    with pytest.raises(ValueError, match="'taken' already exists with status 'pending'"):
        await scheduler.schedule(work, execution_time=later, job_id="taken")
