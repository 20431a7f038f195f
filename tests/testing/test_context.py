"""job_context(): current_job() in unit tests that call a job function."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobCancelledError, JobProgress, NotRunningError, PayloadError, Scheduler, current_job
from pg_scheduler.testing import job_context

DUE = datetime(2030, 1, 1, tzinfo=UTC)


def test_current_job_has_every_value_of_the_context() -> None:
    reports: list[JobProgress] = []
    with job_context(
        job_id="a",
        job_name="app.work",
        attempt=3,
        retry_count=2,
        max_retries=5,
        execution_time=DUE,
        timeout=timedelta(minutes=2),
        metadata={"tenant": {"id": 7}},
        schedule_id="nightly",
        fire_time=DUE,
        report=reports.append,
    ) as context:
        me = current_job()
        assert context == me
        assert (me.job_id, me.job_name, me.attempt, me.retry_count, me.max_retries) == (
            "a",
            "app.work",
            3,
            2,
            5,
        )
        assert (me.execution_time, me.schedule_id, me.fire_time) == (DUE, "nightly", DUE)
        assert me.metadata == {"tenant": {"id": 7}}
        assert me.deadline is not None
        assert timedelta(0) < me.deadline - datetime.now(UTC) <= timedelta(minutes=2)
        me.raise_if_cancelled()
        me.progress(1, 2, "half")
    assert reports == [JobProgress(1, 2, "half")]
    with pytest.raises(LookupError):
        current_job()


def test_context_has_the_defaults_of_a_first_attempt() -> None:
    with job_context() as me:
        assert (me.attempt, me.retry_count, me.max_retries, me.schedule_id, me.fire_time) == (
            1,
            0,
            0,
            None,
            None,
        )
        assert me.metadata == {}
        me.progress(1)
        with pytest.raises(NotRunningError, match="pass scheduler="):
            _ = me.scheduler


def test_contexts_nest_and_end_with_an_exception() -> None:
    with job_context(job_id="outer"):
        with (
            pytest.raises(JobCancelledError, match="job 'inner' should end"),
            job_context(job_id="inner", is_cancelled=True),
        ):
            current_job().raise_if_cancelled()
        assert (current_job().job_id, current_job().is_cancelled) == ("outer", False)


async def test_function_under_test_schedules_by_the_scheduler_of_the_context(pool: asyncpg.Pool) -> None:
    async def follow_up() -> str:
        return await current_job().scheduler.schedule_job("app.next", DUE, {})

    scheduler = Scheduler(pool)
    with job_context(scheduler=scheduler):
        job_id = await follow_up()
        assert current_job().pool is pool
    assert await scheduler.get_job(job_id)


@pytest.mark.parametrize(
    ("values", "error", "rule"),
    [
        ({"attempt": 0}, ValueError, "attempt must be between 1"),
        ({"retry_count": "1"}, TypeError, "retry_count must be an int"),
        ({"execution_time": datetime(2030, 1, 1)}, ValueError, "has no time zone"),  # noqa: DTZ001
        ({"fire_time": "now"}, TypeError, "fire_time must be a datetime"),
        ({"timeout": -1}, ValueError, "timeout must be more than 0"),
        ({"metadata": {"a": object()}}, PayloadError, "metadata"),
    ],
)
def test_context_raises_when_a_value_is_invalid(
    values: dict[str, Any], error: type[Exception], rule: str
) -> None:
    with pytest.raises(error, match=rule), job_context(**values):
        pass


async def test_function_under_test_completes_in_a_transaction_of_the_pool(pool: asyncpg.Pool) -> None:
    await pool.execute("CREATE TABLE effects (number integer)")

    async def add(number: int) -> None:
        async with current_job().completing() as connection:
            await connection.execute("INSERT INTO effects VALUES (1 / $1::integer)", number)
            current_job().set_result(number)

    results: list[object] = []
    with job_context(scheduler=Scheduler(pool), complete=results.append):
        with pytest.raises(asyncpg.DivisionByZeroError):
            await add(0)
        await add(1)
        with pytest.raises(RuntimeError, match="has completed the job"):
            await add(2)
        with pytest.raises(RuntimeError, match="outside of a block"):
            current_job().set_result(3)
    assert results == [1]
    assert [row["number"] for row in await pool.fetch("SELECT number FROM effects")] == [1]


async def test_function_under_test_completes_on_a_connection_of_its_own() -> None:
    results: list[object] = []
    with job_context(complete=results.append) as me:
        async with me.completing(connection="any") as given:
            assert given == "any"
    assert results == [None]


async def test_completing_raises_without_a_pool() -> None:
    with job_context() as me, pytest.raises(NotRunningError, match="pass scheduler="):
        async with me.completing():
            pass
