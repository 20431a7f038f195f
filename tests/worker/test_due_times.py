"""Due times that the server's clock gave before it was set back are computed again."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg
import pytest

from pg_scheduler import (
    Child,
    ConflictResolution,
    JobSpec,
    JobStatus,
    Limit,
    Retry,
    RetryPolicy,
    Sleep,
    Snooze,
    Wait,
    call,
    current_job,
    job,
)
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus
from pg_scheduler.inspect import Inspector
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import Every
from pg_scheduler.worker.due_times import DueTimeCorrector
from tests.support.inside import NEVER, NO_TIMEOUT, ExtendedJob, Extras, Store, load_queries
from tests.support.parts import Parts
from tests.support.store import LEASE, NAME, new_job, worker

NOON = datetime(2030, 3, 10, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
YEARS = timedelta(days=3650)
AHEAD = NOON + YEARS


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture
async def ahead(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    """A Scheduler whose clock is years ahead."""
    async with TestScheduler(pool, now=AHEAD) as scheduler:
        yield scheduler


@pytest.fixture
def corrector(clocked: Store, bus: EventBus) -> DueTimeCorrector:
    """The service of a worker, with the right clock."""
    corrector = DueTimeCorrector(Parts(clocked, bus))
    corrector.correct()
    return corrector


async def due(pool: asyncpg.Pool, job_id: str) -> datetime:
    instant: datetime = await pool.fetchval(
        "SELECT execution_time FROM scheduled_jobs WHERE job_id = $1", job_id
    )
    return instant


@job(name="ahead.plain")
async def plain() -> None: ...


@job(name="ahead.retried", max_retries=1)
async def retried() -> None:
    raise Retry(10 * MINUTE)


@job(name="ahead.rated", max_retries=3, limits=[Limit(max_starts=1, per=HOUR)])
async def rated() -> None:
    raise Retry(MINUTE)


@job(name="ahead.snoozed")
async def snoozed() -> None:
    raise Snooze(10 * MINUTE)


@job(name="ahead.waiting")
async def waiting(timeout: float | None) -> None:
    await current_job().steps.wait("go", timeout=timeout)


@job(name="ahead.twice")
async def waiting_twice() -> None:
    steps = current_job().steps
    await steps.run("before", plain)
    await steps.wait("first")
    await steps.wait("second", timeout=2 * HOUR)


@job(name="ahead.sleeping")
async def sleeping() -> None:
    await current_job().steps.sleep("rest", HOUR)


@job(name="ahead.failing")
async def failing() -> None:
    policy = RetryPolicy(base=10 * MINUTE, maximum=10 * MINUTE, jitter=0)
    await current_job().steps.run("charge", refuse, retry=policy)


async def refuse() -> None:
    raise ConnectionError


@job(name="ahead.choosing")
async def choosing() -> None:
    await current_job().steps.first("choice", Wait("go"), Wait("stop"))


@pytest.mark.parametrize("function", [retried, snoozed])
async def test_delay_of_an_attempt_that_ended_in_the_future_begins_now(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool, function: object
) -> None:
    job_id = await ahead.scheduler.enqueue(function)  # type: ignore[arg-type]
    await ahead.run_one()
    assert await due(pool, job_id) == AHEAD + 10 * MINUTE
    for _ in range(2):  # a second pass changes nothing
        corrector.correct()
        while await corrector.run_once() == 0:
            pass
        assert await due(pool, job_id) == NOON + 10 * MINUTE


@pytest.mark.parametrize("then", ["blocked", "unblocked", "moved", "moved back"])
@pytest.mark.parametrize("is_retry", [True, False], ids=["retry", "first"])
async def test_job_that_its_limit_blocked_when_it_was_claimed_in_the_future_is_due_now(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool, then: str, is_retry: bool
) -> None:
    """A caller who has moved it since then has decided when it is due."""
    if is_retry:
        job_id = await ahead.scheduler.enqueue(rated)
        await ahead.run_one()
        await ahead.run_until(2 * MINUTE)
    else:
        await ahead.scheduler.enqueue(rated, job_id="a", max_retries=0)
        job_id = await ahead.scheduler.enqueue(rated, job_id="b")
        await ahead.drain()
    row = await pool.fetchrow("SELECT attempt, blocked_on FROM scheduled_jobs WHERE job_id = $1", job_id)
    assert row is not None
    assert (row["attempt"], row["blocked_on"]) == (2 if is_retry else 1, "limit:ahead.rated:")
    moved_to = {"moved": AHEAD + DAY, "moved back": NOON + DAY}.get(then)
    if moved_to is not None:
        async for progress in Inspector(ahead.scheduler).move_jobs(ids=[job_id], to=moved_to):
            assert progress.done == 1
    if then == "unblocked":
        await pool.execute("UPDATE scheduled_jobs SET blocked_on = NULL WHERE job_id = $1", job_id)
    for _ in range(2):
        corrector.correct()
        while await corrector.run_once() == 0:
            pass
        assert await due(pool, job_id) == (moved_to or NOON)


async def test_job_that_its_limit_blocked_keeps_the_due_time_of_its_caller(
    pool: asyncpg.Pool, ahead: TestScheduler, corrector: DueTimeCorrector
) -> None:
    async with TestScheduler(pool, now=NOON) as before:
        job_id = await before.scheduler.schedule(rated, execution_time=AHEAD - DAY, misfire_grace_time=None)
    await ahead.scheduler.schedule(
        rated, execution_time=AHEAD - 2 * DAY, job_id="first", max_retries=0, misfire_grace_time=None
    )
    await ahead.drain()
    assert await pool.fetchval("SELECT attempt FROM scheduled_jobs WHERE job_id = $1", job_id) == 1
    assert await corrector.run_once() != 0
    assert await due(pool, job_id) == AHEAD - DAY


async def test_job_that_was_due_when_it_was_added_in_the_future_is_due_now(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    now = await ahead.scheduler.enqueue(plain)
    await ahead.scheduler.schedules.add(plain, Every(minutes=5), schedule_id="often")
    of_schedule = await ahead.scheduler.schedules.trigger("often")
    assert of_schedule is not None
    assert await corrector.run_once() == 0
    assert [await due(pool, each) for each in (now, of_schedule)] == [NOON, NOON]
    assert "are corrected: 2" in caplog.text


async def test_due_times_that_callers_gave_stay(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    tomorrow = NOON + timedelta(days=1)
    job_ids = {
        tomorrow: await ahead.scheduler.schedule(plain, execution_time=tomorrow),
        AHEAD + HOUR: await ahead.scheduler.enqueue(plain, delay=HOUR),
    }
    assert await corrector.run_once() != 0
    assert {at: await due(pool, job_id) for at, job_id in job_ids.items()} == {at: at for at in job_ids}


async def test_job_that_was_added_before_keeps_a_due_time_in_the_far_future(
    pool: asyncpg.Pool, corrector: DueTimeCorrector
) -> None:
    async with TestScheduler(pool, now=NOON) as scheduler:
        job_id = await scheduler.scheduler.schedule(plain, execution_time=AHEAD)
        suspended = await scheduler.scheduler.enqueue(waiting, args=(YEARS.total_seconds(),))
        await scheduler.run_one()
    assert await corrector.run_once() != 0
    assert [await due(pool, each) for each in (job_id, suspended)] == [AHEAD, AHEAD]


async def test_timeout_of_a_wait_that_began_in_the_future_begins_now(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    job_id = await ahead.scheduler.enqueue(waiting, args=(3600,))
    await ahead.run_one()
    assert await due(pool, job_id) == AHEAD + HOUR
    while await corrector.run_once() == 0:
        pass
    assert await due(pool, job_id) == NOON + HOUR
    assert await pool.fetchval("SELECT until FROM scheduler_steps") == NOON + HOUR


async def test_waits_keep_their_length_however_long_it_is(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    lengths = {NOON + length: length for length in (YEARS - HOUR, YEARS, YEARS + HOUR, 2 * YEARS)}
    ends = {
        await ahead.scheduler.enqueue(waiting, args=(length.total_seconds(),)): end
        for end, length in lengths.items()
    }
    ends[await ahead.scheduler.enqueue(waiting, args=(None,))] = NO_TIMEOUT
    while await ahead.run_one():
        pass
    for _ in range(2):  # a second step back changes nothing
        corrector.correct()
        passes = 1
        while await corrector.run_once() == 0:
            passes += 1
        assert passes <= 2
        rows = await pool.fetch("SELECT job_id, until, started_at FROM scheduler_steps")
        assert {row["job_id"]: row["until"] for row in rows} == ends
        assert {row["started_at"] for row in rows} == {NOON}


async def test_wait_after_steps_of_the_future_keeps_its_length_and_the_order(
    clocked: Store, pool: asyncpg.Pool, bus: EventBus
) -> None:
    async with TestScheduler(pool, now=AHEAD) as ahead:
        job_id = await ahead.scheduler.enqueue(waiting_twice)
        await ahead.run_one()
    async with TestScheduler(pool, now=NOON) as right:
        assert await right.scheduler.signal(job_id, "first")
        await right.scheduler.run_job_now(job_id)
        await right.run_one()
    corrector = DueTimeCorrector(Parts(clocked, bus))
    corrector.correct()
    while await corrector.run_once() == 0:
        pass
    rows = await pool.fetch("SELECT name, until, started_at FROM scheduler_steps ORDER BY started_at")
    assert [row["name"] for row in rows] == ["before", "first", "second"]
    assert rows[-1]["until"] == NOON + 2 * HOUR
    assert rows[-1]["started_at"] == NOON


async def test_second_wait_that_began_by_the_wrong_clock_ends_by_a_signal_only(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    """As the section "What is left as it is" of the page about leases states."""

    @job(name="ahead.again")
    async def waiting_again() -> None:
        steps = current_job().steps
        with contextlib.suppress(TimeoutError):
            await steps.wait("go", timeout=4)
        await steps.wait("go", timeout=600)

    async with TestScheduler(pool, now=NOON) as before:
        job_id = await before.scheduler.enqueue(waiting_again)
        await before.run_one()
    await ahead.run_one()
    while await corrector.run_once() == 0:
        pass
    end = AHEAD + 10 * MINUTE
    assert await due(pool, job_id) == end
    async with TestScheduler(pool, now=NOON) as right:
        assert await right.scheduler.run_job_now(job_id)
        await right.run_one()
        assert await due(pool, job_id) == end
        assert await right.scheduler.signal(job_id, "go")
        await right.run_one()
        job_at_end = await right.scheduler.get_job(job_id)
        assert job_at_end is not None
        assert job_at_end.status is JobStatus.COMPLETED


async def test_sleep_until_a_time_of_the_wrong_clock_ends_by_a_call(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    """As the section "What is left as it is" of the page about leases states."""

    @job(name="ahead.until")
    async def sleeping_until() -> None:
        await current_job().steps.sleep("rest", until=AHEAD + HOUR)

    async with TestScheduler(pool, now=NOON) as before:
        job_id = await before.scheduler.enqueue(sleeping_until)
        await before.run_one()
    assert await corrector.run_once() != 0
    assert await due(pool, job_id) == AHEAD + HOUR
    async with TestScheduler(pool, now=NOON) as right:
        assert await right.scheduler.end_sleep(job_id)
        await right.run_one()
        job_at_end = await right.scheduler.get_job(job_id)
        assert job_at_end is not None
        assert job_at_end.status is JobStatus.COMPLETED


@pytest.mark.parametrize("correction", ["worker", "step"])
async def test_retry_from_a_step_repeats_it_after_the_clock_was_set_back(
    ahead: TestScheduler, clock: FakeClock, corrector: DueTimeCorrector, pool: asyncpg.Pool, correction: str
) -> None:
    reminders: list[int] = []

    async def remind() -> None:
        reminders.append(1)

    @job(name="ahead.reminding")
    async def reminding() -> None:
        steps = current_job().steps
        with contextlib.suppress(TimeoutError):
            await steps.wait("go", timeout=4)
            return
        await steps.run("remind", remind)
        await steps.wait("go", timeout=15)
        await steps.run("end", plain)

    job_id = await ahead.scheduler.enqueue(reminding)
    await ahead.drain()
    await ahead.run_until(timedelta(seconds=4))
    assert reminders == [1]
    clock.advance(MINUTE)
    async with TestScheduler(pool, now=clock.now) as right:
        if correction == "worker":
            while await corrector.run_once() == 0:
                pass
        assert await right.scheduler.signal(job_id, "go")
        await right.scheduler.run_job_now(job_id)
        await right.drain()
        steps = (await Inspector(right.scheduler).steps(job_id)).items
        assert [step.name for step in steps] == ["go", "remind", "end"]
        assert all(step.ended_at is not None and step.ended_at < clock.now + MINUTE for step in steps)
        assert await right.scheduler.retry_job(job_id, from_step="remind")
        await right.drain()
    assert reminders == [1, 1]


async def test_next_attempt_of_a_step_that_failed_in_the_future_is_due_after_its_delay_from_now(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    job_id = await ahead.scheduler.enqueue(failing)
    await ahead.run_one()
    assert await due(pool, job_id) == AHEAD + 10 * MINUTE
    while await corrector.run_once() == 0:
        pass
    assert await due(pool, job_id) == NOON + 10 * MINUTE
    async with TestScheduler(pool, now=NOON) as right:
        assert await right.run_until(10 * MINUTE) == 1


async def test_timeout_of_a_wait_begins_when_its_attempt_is_suspended_after_the_clock_was_set_back(
    ahead: TestScheduler, pool: asyncpg.Pool
) -> None:
    """The job was no suspended one when the clock was set back, so the service had nothing to correct."""

    @job(name="ahead.busy", keep_result=DAY)
    async def busy() -> str:
        steps = current_job().steps
        await steps.run("before", plain)
        wait = asyncio.create_task(steps.wait("go", timeout=3600))
        if current_job().attempt == 1:
            stored = "SELECT count(*) FROM scheduler_steps"
            while await pool.fetchval(stored) < 2:  # noqa: ASYNC110 - the other task stores it
                await asyncio.sleep(0.01)
            ahead._clock.now = NOON
        try:
            return str(await wait)
        except TimeoutError:
            return "timeout"

    job_id = await ahead.scheduler.enqueue(busy)
    await ahead.drain()
    assert NOON + HOUR - MINUTE < await due(pool, job_id) <= NOON + HOUR
    rows = await pool.fetch("SELECT name, started_at FROM scheduler_steps ORDER BY started_at")
    assert [row["name"] for row in rows] == ["before", "go"]
    assert rows[-1]["started_at"] == NOON
    async with TestScheduler(pool, now=NOON) as right:
        await right.run_until(HOUR)
        result = await right.scheduler.get_job_result(job_id, wait=False)
        assert result is not None
        assert result.unwrap() == "timeout"


async def test_next_attempt_of_a_step_is_due_by_the_clock_that_is_set_back_before_the_suspension(
    ahead: TestScheduler, pool: asyncpg.Pool
) -> None:
    @job(name="ahead.busy_failing")
    async def busy() -> None:
        step = asyncio.create_task(failing())
        stored = "SELECT count(*) FROM scheduler_steps"
        while not await pool.fetchval(stored):  # noqa: ASYNC110 - the other task stores it
            await asyncio.sleep(0.01)
        ahead._clock.now = NOON
        await step

    job_id = await ahead.scheduler.enqueue(busy)
    await ahead.drain()
    assert NOON + 9 * MINUTE < await due(pool, job_id) <= NOON + 10 * MINUTE


async def test_timeout_of_a_wait_begins_when_its_job_is_retried_after_the_clock_was_set_back(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    job_id = await ahead.scheduler.enqueue(waiting, args=(3600,))
    await ahead.run_one()
    await ahead.scheduler.cancel_job(job_id)
    assert await corrector.run_once() != 0
    async with TestScheduler(pool, now=NOON) as right:
        assert await right.scheduler.retry_job(job_id)
        await right.drain()
        assert await due(pool, job_id) == NOON + HOUR


async def test_suspension_waits_for_no_step_that_another_transaction_has_locked(
    ahead: TestScheduler, pool: asyncpg.Pool
) -> None:
    job_id = await ahead.scheduler.enqueue(waiting, args=(3600,))
    await ahead.run_one()
    async with TestScheduler(pool, now=NOON) as right:
        await right.scheduler.run_job_now(job_id)
        async with pool.acquire() as connection, connection.transaction():
            await connection.fetch("SELECT FROM scheduler_steps FOR UPDATE")
            await right.run_one()
            assert await due(pool, job_id) == NOON + timedelta(seconds=1)
        await right.run_until(timedelta(seconds=1))
        assert await due(pool, job_id) == NOON + timedelta(seconds=1) + HOUR


async def test_sleep_keeps_its_end(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    job_id = await ahead.scheduler.enqueue(sleeping)
    await ahead.run_one()
    assert await corrector.run_once() != 0
    assert await due(pool, job_id) == AHEAD + HOUR


async def test_signal_that_came_in_the_future_makes_its_job_due_now(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    job_id = await ahead.scheduler.enqueue(choosing)
    await ahead.run_one()
    await ahead.scheduler.signal(job_id, "go")
    assert await due(pool, job_id) == AHEAD
    while await corrector.run_once() == 0:
        pass
    assert await due(pool, job_id) == NOON


async def test_small_step_back_corrects_nothing(pool: asyncpg.Pool, corrector: DueTimeCorrector) -> None:
    a_little = timedelta(seconds=4)
    async with TestScheduler(pool, now=NOON + a_little) as scheduler:
        job_id = await scheduler.scheduler.enqueue(plain)
    assert await corrector.run_once() != 0
    assert await due(pool, job_id) == NOON + a_little


async def test_corrector_rests_until_the_clock_is_set(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    assert await corrector.run_once() != 0
    job_id = await ahead.scheduler.enqueue(plain)
    await corrector.run_once()
    assert await due(pool, job_id) == AHEAD
    corrector.correct()
    assert await corrector.run_once() == 0
    assert await due(pool, job_id) == NOON


async def test_row_that_is_locked_is_corrected_when_it_is_free(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    job_id = await ahead.scheduler.enqueue(plain)
    other_id = await ahead.scheduler.enqueue(plain)
    async with pool.acquire() as connection, connection.transaction():
        await connection.fetch("SELECT FROM scheduled_jobs WHERE job_id = $1 FOR UPDATE", job_id)
        assert await corrector.run_once() == 0
        assert await due(pool, other_id) == NOON
        corrector._first_xid = 0  # as if the transaction had begun after the first pass
        pauses = [await corrector.run_once() for _ in range(12)]
        assert pauses[:3] == [1, 2, 4]
        assert pauses[-1] == corrector.longest_pause_s
    assert await corrector.run_once() == 0
    assert await due(pool, job_id) == NOON


async def test_step_that_is_locked_is_set_back_when_it_is_free(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    job_id = await ahead.scheduler.enqueue(waiting, args=(3600,))
    await ahead.run_one()
    async with pool.acquire() as connection, connection.transaction():
        await connection.fetch("SELECT FROM scheduler_steps FOR UPDATE")
        await corrector.run_once()
        assert 0 < await corrector.run_once() < NEVER
    while await corrector.run_once() == 0:
        pass
    assert await due(pool, job_id) == NOON + HOUR


async def test_job_of_a_transaction_that_is_committed_after_the_clock_was_set_back_is_due_now(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    async with pool.acquire() as connection, connection.transaction():
        job_id = await ahead.scheduler.enqueue(plain, connection=connection)
        assert 0 < await corrector.run_once() < NEVER
    assert await corrector.run_once() == 0
    assert await due(pool, job_id) == NOON


async def test_job_added_long_after_its_transaction_began_is_known_to_be_due_at_once(
    pool: asyncpg.Pool,
) -> None:
    async with TestScheduler(pool) as scheduler, pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_sleep(0.01)")
        await scheduler.scheduler.enqueue(plain, connection=connection)
        assert await connection.fetchval("SELECT created_at = execution_time FROM scheduled_jobs")


@pytest.mark.parametrize("change", ["retried", "replaced"])
async def test_job_that_a_call_of_the_future_made_due_at_once_is_due_now(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool, change: str
) -> None:
    async with TestScheduler(pool, now=NOON) as before:
        await before.scheduler.enqueue(plain, job_id="job")
        await before.drain()
    if change == "retried":
        await ahead.scheduler.retry_job("job")
    else:
        await ahead.scheduler.enqueue(plain, job_id="job", conflict_resolution=ConflictResolution.REPLACE)
    assert await due(pool, "job") == AHEAD
    job = await ahead.scheduler.get_job("job")
    assert job is not None
    assert job.last_heartbeat is None, "nobody sees when it got its due time"
    assert await corrector.run_once() == 0
    assert await due(pool, "job") == NOON


async def test_job_that_is_replaced_for_tomorrow_keeps_its_due_time(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    tomorrow = NOON + timedelta(days=1)
    await ahead.scheduler.enqueue(plain, job_id="job")
    await ahead.drain()
    await ahead.scheduler.schedule(
        plain, execution_time=tomorrow, job_id="job", conflict_resolution=ConflictResolution.REPLACE
    )
    assert await corrector.run_once() != 0
    assert await due(pool, "job") == tomorrow


async def test_definition_that_replaced_a_job_keeps_its_due_time_after_an_early_signal(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    job_id = await ahead.scheduler.enqueue(plain, job_id="job")
    await ahead.run_one()
    await ahead.scheduler.schedule(
        plain, execution_time=AHEAD + HOUR, job_id=job_id, conflict_resolution=ConflictResolution.REPLACE
    )
    assert await ahead.scheduler.signal(job_id, "go")
    assert await corrector.run_once() != 0
    assert await due(pool, job_id) == AHEAD + HOUR


@pytest.mark.parametrize("function", [sleeping, choosing])
async def test_suspended_job_keeps_the_time_to_which_it_was_moved(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool, function: Any
) -> None:
    job_id = await ahead.scheduler.enqueue(function)
    await ahead.run_one()
    moved_to = AHEAD + 3 * HOUR
    async for progress in Inspector(ahead.scheduler).move_jobs(ids=[job_id], to=moved_to):
        assert progress.done == 1
    assert await corrector.run_once() != 0
    assert await due(pool, job_id) == moved_to


@job(name="ahead.parent")
async def parent() -> None:
    await current_job().steps.first("first", Child("child", call(plain), {"delay": HOUR}), Wait("go"))


async def end_wait(ahead: TestScheduler, job_id: str) -> None:
    await ahead.scheduler.signal(job_id, "go")


async def end_child(ahead: TestScheduler, job_id: str) -> None:
    await ahead.scheduler.run_job_now(f"{job_id}:child")
    assert await ahead.run_one()


@pytest.mark.parametrize(
    ("function", "end"), [(choosing, end_wait), (parent, end_child)], ids=["signal", "child"]
)
async def test_moved_job_that_a_signal_or_a_child_of_the_future_made_due_is_due_now(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool, function: Any, end: Any
) -> None:
    job_id = await ahead.scheduler.enqueue(function)
    await ahead.run_one()
    async for progress in Inspector(ahead.scheduler).move_jobs(ids=[job_id], to=AHEAD + YEARS):
        assert progress.done == 1
    await end(ahead, job_id)
    assert await due(pool, job_id) == AHEAD
    while await corrector.run_once() == 0:
        pass
    assert await due(pool, job_id) == NOON


async def test_job_that_sleeps_too_is_due_now_when_a_signal_of_the_future_has_ended_its_wait(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    """Its sleep began before the clock was set, and would end in an hour."""

    @job(name="ahead.limited")
    async def limited() -> None:
        await current_job().steps.first("choice", Wait("go"), Sleep("limit", HOUR))

    async with TestScheduler(pool, now=NOON) as before:
        job_id = await before.scheduler.enqueue(limited)
        await before.run_one()
    assert await ahead.scheduler.signal(job_id, "go")
    assert await due(pool, job_id) == NOON + HOUR
    while await corrector.run_once() == 0:
        pass
    assert await due(pool, job_id) == NOON


@pytest.mark.parametrize("function", [plain, retried, sleeping])
async def test_job_that_was_to_run_at_once_by_a_call_of_the_future_is_due_now(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool, function: Any
) -> None:
    async with TestScheduler(pool, now=NOON) as before:
        if function is plain:
            job_id = await before.scheduler.enqueue(function, delay=HOUR)
        else:
            job_id = await before.scheduler.enqueue(function)
            await before.run_one()
    assert await ahead.scheduler.run_job_now(job_id)
    assert await due(pool, job_id) == AHEAD
    while await corrector.run_once() == 0:
        pass
    assert await due(pool, job_id) == NOON


async def test_job_whose_tenant_had_its_turn_in_the_future_is_due_now(
    pool: asyncpg.Pool, clocked: Store, clock: FakeClock, corrector: DueTimeCorrector
) -> None:
    row = new_job("job", execution_time=NOON)
    await clocked.inserts.insert_extended([ExtendedJob(row, Extras(blocked_on="share:s:acme"))])
    clock.now = AHEAD
    await clocked.workers.register(worker("w1"), LEASE)
    assert (await clocked.shares.feed(["share:s:acme"], {"share:s:": [NAME]}, [NAME])).jobs == 1
    assert AHEAD - MINUTE < await due(pool, "job") <= AHEAD
    clock.now = NOON
    while await corrector.run_once() == 0:
        pass
    assert await due(pool, "job") == NOON


async def ordered(pool: asyncpg.Pool) -> list[tuple[str, datetime]]:
    rows = await pool.fetch(
        'SELECT job_id, execution_time FROM scheduled_jobs ORDER BY execution_time, job_id COLLATE "C"'
    )
    return [(row["job_id"], row["execution_time"]) for row in rows]


async def add_to_sequence(store: Store, *job_ids: str) -> None:
    """Add jobs that wait in a sequence and are due when they are added."""
    for job_id in job_ids:
        row = new_job(job_id, execution_time=store.statements.now)
        await store.inserts.insert_extended([ExtendedJob(row, Extras(blocked_on="zsequence:s:acme"))])


async def test_jobs_of_a_sequence_keep_their_order_when_they_are_due_now(
    pool: asyncpg.Pool, clocked: Store, clock: FakeClock, corrector: DueTimeCorrector
) -> None:
    """Their ids do not ascend. The first one is not corrected, since it is due within the next seconds."""
    for number, job_id in enumerate(("c", "e", "d", "b", "a")):
        clock.now = NOON + timedelta(seconds=3) if job_id == "c" else AHEAD + number * MINUTE
        await add_to_sequence(clocked, job_id)
    clock.now = NOON
    while await corrector.run_once() == 0:
        pass
    jobs = await ordered(pool)
    assert [job_id for job_id, _ in jobs] == ["c", "e", "d", "b", "a"]
    assert jobs[-1][1] < NOON + timedelta(seconds=4)


async def test_job_of_a_slow_call_is_not_overtaken_in_its_sequence(
    pool: asyncpg.Pool, clocked: Store, clock: FakeClock, corrector: DueTimeCorrector
) -> None:
    """The call computed the due time half a minute before the server added the job."""
    clock.now = NOON + 90 * MINUTE
    await add_to_sequence(clocked, "b", "a")
    await pool.execute(
        "UPDATE scheduled_jobs SET execution_time = created_at - interval '30 s' WHERE job_id = 'b'"
    )
    clock.now = NOON
    while await corrector.run_once() == 0:
        pass
    jobs = await ordered(pool)
    assert [job_id for job_id, _ in jobs] == ["b", "a"]
    assert jobs[-1][1] - NOON < MINUTE


@job(name="ahead.booking", sequence=lambda account: account)
async def booking(account: str) -> None: ...


def booked(job_id: str) -> dict[str, Any]:
    return {"args": ("acme",), "job_id": job_id}


async def add_at_once(kit: TestScheduler) -> None:
    await kit.scheduler.enqueue(booking, **booked("first"))


async def add_by_a_slow_call(kit: TestScheduler) -> None:
    half_a_minute_ago = kit.now - timedelta(seconds=30)
    await kit.scheduler.schedule(booking, execution_time=half_a_minute_ago, **booked("first"))


async def add_in_bulk(kit: TestScheduler) -> None:
    await kit.scheduler.schedule_bulk([JobSpec(booking, kit.now, **booked("first"))])


async def replace_by_one_for_now(kit: TestScheduler) -> None:
    await kit.scheduler.enqueue(booking, delay=DAY, **booked("first"))
    await kit.scheduler.enqueue(booking, conflict_resolution=ConflictResolution.REPLACE, **booked("first"))


async def run_tomorrows_job_now(kit: TestScheduler) -> None:
    await kit.scheduler.enqueue(booking, delay=DAY, **booked("first"))
    assert await kit.scheduler.run_job_now("first")


async def retry_a_cancelled_job(kit: TestScheduler) -> None:
    await kit.scheduler.enqueue(booking, **booked("first"))
    assert await kit.scheduler.cancel_job("first")
    assert await kit.scheduler.retry_job("first")


async def set_a_cancelled_job_to_pending(kit: TestScheduler) -> None:
    await kit.scheduler.enqueue(booking, **booked("first"))
    assert await kit.scheduler.cancel_job("first")
    assert await kit.scheduler.update_job_status("first", "pending")


async def trigger_a_schedule(kit: TestScheduler) -> None:
    await kit.scheduler.schedules.add(booking, Every(days=1), schedule_id="books", args=("acme",))
    assert await kit.scheduler.schedules.trigger("books")


WAYS_INTO_A_SEQUENCE: Final = (
    *(add_at_once, add_by_a_slow_call, add_in_bulk, replace_by_one_for_now, run_tomorrows_job_now),
    *(retry_a_cancelled_job, set_a_cancelled_job_to_pending, trigger_a_schedule),
)
"""How a job comes to wait in a sequence. One with ``after=`` is refused."""


@pytest.mark.parametrize("ahead_by", [90 * MINUTE, YEARS], ids=["90 minutes", "years"])
@pytest.mark.parametrize("way", WAYS_INTO_A_SEQUENCE, ids=lambda way: way.__name__)
async def test_job_that_was_due_in_its_sequence_is_not_overtaken(
    pool: asyncpg.Pool,
    corrector: DueTimeCorrector,
    way: Callable[[TestScheduler], Awaitable[None]],
    ahead_by: timedelta,
) -> None:
    """However it came to wait there: the job that is added a second later stays behind it."""
    async with TestScheduler(pool, now=NOON + ahead_by) as kit:
        await way(kit)
        (first,) = await ordered(pool)
        kit.advance(timedelta(seconds=1))
        await kit.scheduler.enqueue(booking, **booked("a"))
    while await corrector.run_once() == 0:
        pass
    jobs = await ordered(pool)
    assert [job_id for job_id, _ in jobs] == [first[0], "a"]
    assert jobs[-1][1] - NOON < MINUTE


async def test_job_that_was_moved_to_the_front_stays_there(
    pool: asyncpg.Pool, clocked: Store, clock: FakeClock, corrector: DueTimeCorrector
) -> None:
    """It was moved an hour after the others had become due."""
    clock.now = AHEAD
    await add_to_sequence(clocked, "a", "b", "c")
    clock.now = AHEAD + 60 * MINUTE
    await clocked.sequences.move_to_front("c")
    clock.now = NOON
    while await corrector.run_once() == 0:
        pass
    jobs = await ordered(pool)
    assert [job_id for job_id, _ in jobs] == ["c", "a", "b"]
    assert jobs[-1][1] - NOON < MINUTE


async def test_job_of_a_sequence_is_not_corrected_before_a_locked_one_in_front_of_it(
    pool: asyncpg.Pool, clocked: Store, clock: FakeClock, corrector: DueTimeCorrector
) -> None:
    clock.now = AHEAD
    await add_to_sequence(clocked, "a", "b", "c")
    clock.now = NOON
    async with pool.acquire() as connection, connection.transaction():
        await connection.fetch("SELECT FROM scheduled_jobs WHERE job_id = 'b' FOR UPDATE")
        await corrector.run_once()
        first, *others = await ordered(pool)
        assert (first[0], first[1] - NOON < MINUTE) == ("a", True)
        assert others == [("b", AHEAD), ("c", AHEAD)]
    while await corrector.run_once() == 0:
        pass
    jobs = await ordered(pool)
    assert [job_id for job_id, _ in jobs] == ["a", "b", "c"]
    assert jobs[-1][1] - NOON < MINUTE


async def test_jobs_of_a_sequence_keep_their_order_when_the_clock_is_set_back_again(
    pool: asyncpg.Pool, clocked: Store, clock: FakeClock, corrector: DueTimeCorrector
) -> None:
    """The second one was locked while the first one was corrected."""
    clock.now = AHEAD
    await add_to_sequence(clocked, "b", "c")
    clock.now = NOON
    async with pool.acquire() as connection, connection.transaction():
        await connection.fetch("SELECT FROM scheduled_jobs WHERE job_id = 'c' FOR UPDATE")
        await corrector.run_once()
    clock.now = NOON - DAY
    corrector.correct()
    while await corrector.run_once() == 0:
        pass
    jobs = await ordered(pool)
    assert [job_id for job_id, _ in jobs] == ["b", "c"]
    assert jobs[-1][1] - clock.now < MINUTE


@pytest.mark.parametrize("is_due", [True, False], ids=["now", "tomorrow"])
async def test_definition_given_to_a_running_job_in_the_future_is_due_now_if_it_was_to_run_at_once(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool, is_due: bool
) -> None:
    tomorrow = NOON + timedelta(days=1)

    @job(name="ahead.replaced")
    async def replaced() -> None:
        replace = ConflictResolution.REPLACE
        if is_due:
            await ahead.scheduler.enqueue(plain, job_id="job", conflict_resolution=replace)
        else:
            await ahead.scheduler.schedule(
                plain, execution_time=tomorrow, job_id="job", conflict_resolution=replace
            )

    async with TestScheduler(pool, now=NOON) as before:
        await before.scheduler.enqueue(replaced, job_id="job")
    assert await ahead.run_one()
    assert await due(pool, "job") == (AHEAD if is_due else tomorrow)
    while await corrector.run_once() == 0:
        pass
    assert await due(pool, "job") == (NOON if is_due else tomorrow)


async def test_job_that_was_suspended_and_set_to_pending_in_the_future_is_due_now(
    ahead: TestScheduler, corrector: DueTimeCorrector, pool: asyncpg.Pool
) -> None:
    job_id = await ahead.scheduler.enqueue(waiting, args=(3600,))
    await ahead.run_one()
    assert await ahead.scheduler.cancel_job(job_id)
    assert await ahead.scheduler.update_job_status(job_id, "pending")
    assert await due(pool, job_id) == AHEAD
    while await corrector.run_once() == 0:
        pass
    assert await due(pool, job_id) == NOON


AS_ADDED: Final = "the job was added then"
AS_NOTED: Final = "last_heartbeat of the pending job is that time"
AS_ENDED: Final = "the history has the end of the attempt"
AS_SUSPENDED: Final = "its steps tell when the job is due"
CORRECTED: Final = {
    "insert_generated_job": AS_ADDED,
    "insert_generated_jobs": AS_ADDED,
    "insert_job": AS_ADDED,
    "insert_jobs": AS_ADDED,
    "insert_extended_jobs": AS_ADDED,
    "enqueue_job": AS_ADDED,
    "enqueue_jobs": AS_ADDED,
    "enqueue_generated_job": AS_ADDED,
    "enqueue_due_job": AS_ADDED,
    "enqueue_extended_generated_job": AS_ADDED,
    "enqueue_extended_due_job": AS_ADDED,
    "enqueue_extended_jobs": AS_ADDED,
    "replace_jobs": AS_NOTED,
    "replace_extended_jobs": AS_NOTED,
    "replace_debounced_jobs": AS_NOTED,
    "apply_replacements": AS_NOTED,
    "retry_job": AS_NOTED,
    "retry_jobs": AS_NOTED,
    "move_jobs": AS_NOTED,
    "set_status": AS_NOTED,
    "wake_signalled": AS_NOTED,
    "wake_broadcast": AS_NOTED,
    "end_sleep": AS_NOTED,
    "end_child_steps": AS_NOTED,
    "feed_shares": AS_NOTED,
    "move_heads": AS_NOTED,
    "hand_over": AS_NOTED,
    "move_to_front": AS_NOTED,
    "settle_jobs": AS_ENDED,
    "settle_failed": AS_ENDED,
    "settle_suspended": AS_SUSPENDED,
    "set_back_suspended": "it is the correction",
    "look_at_waits": AS_SUSPENDED,
    "block_waiting": AS_SUSPENDED,
    "claim_one": "a job that runs was due",
    "correct_due_times": "it is the correction",
}
"""The statements that give jobs a due time, and what tells the correction that the server's clock gave it."""

GIVES: Final = re.compile(
    r'INSERT INTO "?app"?\.scheduled_jobs|(?:\bSET|,)\s+execution_time\s*=|\bSET \([^)]*\bexecution_time\b'
)


def test_list_has_each_statement_that_gives_a_due_time() -> None:
    giving = {
        name
        for name, query in load_queries("app").items()
        if GIVES.search(re.sub(r"^--.*\n?", "", query.text, flags=re.MULTILINE))
    }
    assert giving == CORRECTED.keys()
    noted = {name for name, reason in CORRECTED.items() if reason == AS_NOTED}
    assert all("last_heartbeat" in load_queries("app")[name].text for name in noted)


MAKES_PENDING: Final = re.compile(r"\bstatus\s*=\s*'pending'\s*,|THEN 'pending'")


def test_only_a_limit_makes_a_claimed_job_pending_and_leaves_its_due_time() -> None:
    """Such a job has no entry of its last attempt, so `due_again` needs another note.

    That of a revoked attempt of a sequence has one.
    """
    keeping = {name for name, query in load_queries("app").items() if MAKES_PENDING.search(query.text)}
    assert keeping - CORRECTED.keys() == {"admit_attempts", "release_revoked"}
