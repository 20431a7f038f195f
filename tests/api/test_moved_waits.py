"""A suspended job continues at what it waits for, whatever its due time is; other jobs keep theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Child, JobStatus, Sleep, Wait, call, current_job
from pg_scheduler.inspect import Inspector
from pg_scheduler.testing import TestScheduler
from tests.support.inside import NO_TIMEOUT

START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOW = timedelta(0)


@pytest.fixture
async def t(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START) as scheduler:
        scheduler.scheduler.register(answer, name="answer")
        yield scheduler


async def answer() -> Any:
    return await current_job().steps.wait("go")


async def wait_without_end() -> Any:
    return await current_job().steps.wait("go")


async def wait_for_a_week() -> Any:
    return await current_job().steps.wait("go", timeout=7 * DAY)


async def wait_for_a_child() -> Any:
    return await current_job().steps.child("child", call(answer))


async def wait_for_the_first() -> Any:
    steps = current_job().steps
    waits = Child("child", call(answer)), Wait("other"), Sleep("limit", 30 * DAY)
    return (await steps.first("first", *waits)).value


WAITS = [
    (wait_without_end, "job", NO_TIMEOUT),
    (wait_for_a_week, "job", START + 7 * DAY),
    (wait_for_a_child, "job:child", START),
    (wait_for_the_first, "job:child", START + 30 * DAY),
]


async def suspend(t: TestScheduler, func: Callable[..., Awaitable[Any]]) -> None:
    await t.scheduler.enqueue(func, job_id="job", keep_result=3650 * DAY)
    await t.run_until(NOW)


async def due(t: TestScheduler, job_id: str = "job") -> datetime:
    job = await t.scheduler.get_job(job_id)
    assert job is not None
    assert job.status is JobStatus.PENDING
    return job.execution_time


async def move(t: TestScheduler, **time: Any) -> tuple[int, int]:
    """Move the job; return how many jobs were changed, and how many were refused."""
    [*_, progress] = [step async for step in Inspector(t.scheduler).move_jobs(ids=["job"], **time)]
    return progress.done, progress.refused


async def value(t: TestScheduler) -> Any:
    result = await t.scheduler.get_job_result("job", wait=False)
    assert result is not None, "the job has not ended"
    return result.unwrap()


@pytest.mark.parametrize(("function", "signalled", "ends_at"), WAITS)
@pytest.mark.parametrize("time", [{"to": START + 9 * DAY}, {"by": HOUR}, {"by": -HOUR}], ids=str)
async def test_moved_job_continues_at_what_it_waits_for(
    t: TestScheduler, function: Any, signalled: str, ends_at: datetime, time: dict[str, Any]
) -> None:
    await suspend(t, function)
    assert await due(t) == ends_at
    if "by" in time and ends_at == NO_TIMEOUT:
        assert await move(t, **time) == (0, 1)
        assert await due(t) == NO_TIMEOUT
    else:
        assert await move(t, **time) == (1, 0)
        assert await due(t) == time.get("to", ends_at + time.get("by", NOW))
    assert await t.scheduler.signal(signalled, "go", 7)
    await t.run_until(NOW)
    assert await value(t) == 7


@pytest.mark.parametrize("function", [wait_without_end, wait_for_a_week])
async def test_job_that_an_older_node_has_suspended_continues_at_its_signal(
    t: TestScheduler, function: Any
) -> None:
    for moves in (False, True):
        await suspend(t, function)
        await t.pool.execute("UPDATE scheduled_jobs SET options = options - 'suspended'")
        if moves:
            assert await move(t, to=START + 9 * DAY) == (1, 0)
        assert await t.scheduler.signal("job", "go", 7)
        await t.run_until(NOW)
        assert await value(t) == 7
        await t.pool.execute("DELETE FROM scheduled_jobs")


async def test_wait_continues_at_its_signal_after_the_code_has_taken_away_its_timeout(
    t: TestScheduler,
) -> None:
    timeout: timedelta | None = DAY

    async def wait() -> Any:
        return await current_job().steps.wait("go", timeout=timeout)

    await suspend(t, wait)
    timeout = None
    assert await t.scheduler.run_job_now("job")
    await t.run_until(NOW)
    assert await due(t) == NO_TIMEOUT
    assert await t.scheduler.signal("job", "go", 7)
    await t.run_until(NOW)
    assert await value(t) == 7


async def test_signal_does_not_end_a_sleep_after_the_wait_for_it(t: TestScheduler) -> None:
    async def choose_then_sleep() -> None:
        steps = current_job().steps
        await steps.first("first", Wait("go"), Sleep("hour", HOUR))
        await steps.sleep("day", DAY)

    await suspend(t, choose_then_sleep)
    await t.run_until(HOUR)
    assert await due(t) == START + HOUR + DAY
    assert await t.scheduler.signal("job", "go")
    assert await due(t) == START + HOUR + DAY


async def test_signal_does_not_shorten_the_due_time_of_a_job_that_was_retried(
    t: TestScheduler,
) -> None:
    await suspend(t, wait_for_a_week)
    assert await t.scheduler.cancel_job("job")
    assert await t.scheduler.retry_job("job")
    assert await move(t, to=START + DAY) == (1, 0)
    assert await t.scheduler.signal("job", "go", 7)
    assert await due(t) == START + DAY


async def test_signal_continues_a_job_whose_cancellation_was_undone_by_hand(t: TestScheduler) -> None:
    await suspend(t, wait_without_end)
    assert await t.scheduler.cancel_job("job")
    assert await t.scheduler.update_job_status("job", "pending")
    assert await t.scheduler.signal("job", "go", 7)
    await t.run_until(NOW)
    assert await value(t) == 7
