"""Jobs and middleware read the object that the application has set as the state of its Scheduler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobCall, JobStatus, Scheduler, job, job_state
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.testing import AsyncTestKit, TestKit, job_context
from tests.api.conftest import Make
from tests.support.patience import PATIENCE
from tests.support.transactions import application


class Shop:
    """The state."""

    def __init__(self, name: str) -> None:
        self.name = name


@job(name="state.read")
async def read() -> str:
    return job_state(Shop).name


@job(name="state.read_in_thread")
def read_in_thread() -> str:
    return job_state(Shop).name


async def note_state(call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
    return [job_state(Shop).name, await call_next()]


async def test_jobs_and_middleware_read_the_state(make: Make) -> None:
    scheduler = make(middleware=[note_state])
    scheduler.state = Shop("north")
    await scheduler.start()
    for function in (read, read_in_thread):
        assert await scheduler.run_job(function, wait_timeout=PATIENCE) == ["north", "north"]


def test_jobs_of_a_blocking_worker_read_the_state(dsn: str) -> None:
    with SyncScheduler(dsn) as scheduler:
        assert scheduler.state is None
        scheduler.state = Shop("north")
        scheduler.start()
        assert scheduler.run_job(read_in_thread, wait_timeout=PATIENCE) == "north"
        scheduler.state = Shop("south")
        assert scheduler.run_job(read, wait_timeout=PATIENCE) == "south"
        assert scheduler.state.name == "south"


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg"])
async def test_kits_have_the_state_of_the_application(kind: str, dsn: str, pool: asyncpg.Pool) -> None:
    async with application(kind, dsn, pool) as app:
        app.scheduler.state = Shop("north")
        if kind == "asyncpg":
            assert await AsyncTestKit(app.connection, scheduler=app.scheduler).run(read) == "north"
        else:
            assert TestKit(app.connection, scheduler=app.scheduler).run(read_in_thread) == "north"


def test_context_of_a_unit_test_has_the_state_of_its_scheduler() -> None:
    scheduler = SyncScheduler()
    scheduler.state = Shop("north")
    with job_context(scheduler=scheduler):
        assert read_in_thread() == "north"


@pytest.mark.parametrize(("state", "found"), [(None, "not set"), ("north", "a str")])
async def test_other_state_is_an_error_that_names_both_classes(make: Make, state: Any, found: str) -> None:
    scheduler = make()
    scheduler.state = state
    await scheduler.start()
    job_id = await scheduler.enqueue(read)
    result = await scheduler.get_job_result(job_id, timeout=PATIENCE)
    assert result is not None
    assert result.status is JobStatus.FAILED
    assert f"scheduler.state is {found}, and job_state() was called for Shop" in str(result.error)


def test_state_outside_of_a_job_is_a_lookup_error() -> None:
    with pytest.raises(LookupError, match="outside of a running job"):
        job_state(Shop)


def test_state_belongs_to_one_scheduler(pool: asyncpg.Pool) -> None:
    one, two = Scheduler(pool), Scheduler(pool)
    one.state = Shop("north")
    assert two.state is None
