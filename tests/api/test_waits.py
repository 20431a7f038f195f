"""Jobs that wait for signals: what arrives, when they continue, and what ends the wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from pydantic import BaseModel

from pg_scheduler import (
    ConfigurationError,
    ConflictResolution,
    JobStatus,
    RetryPolicy,
    Scheduler,
    current_job,
)
from pg_scheduler.errors import DuplicateStepError
from pg_scheduler.events import JobCompleted, JobSuspended
from pg_scheduler.testing import TestScheduler
from tests.api.conftest import Make
from tests.support.codecs import KeyedCodec
from tests.support.worker import PATIENCE, Recorder

START = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOW = timedelta(0)


class Approval(BaseModel):
    by: str


@pytest.fixture
async def t(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START) as scheduler:
        yield scheduler


async def wait() -> Any:
    return await current_job().steps.wait("go", timeout=7 * DAY)


async def wait_or_give_up() -> str:
    try:
        return str(await current_job().steps.wait("go", timeout=7 * DAY))
    except TimeoutError as error:
        return f"timed out: {error}"


async def enqueue(t: TestScheduler, func: Callable[..., Awaitable[Any]] = wait, **options: Any) -> None:
    await t.scheduler.enqueue(func, job_id="job", keep_result=3650 * DAY, **options)


async def value_of(scheduler: Scheduler) -> Any:
    found = await scheduler.get_job_result("job", wait=False)
    assert found is not None, "the job has not ended"
    return found.unwrap()


async def attempts(t: TestScheduler) -> int:
    found = await t.scheduler.get_job("job")
    assert found is not None
    return found.attempt


async def due(t: TestScheduler) -> datetime:
    found = await t.scheduler.get_job("job")
    assert found is not None
    assert found.status is JobStatus.PENDING
    return found.execution_time


async def test_signal_before_the_wait_is_returned_at_once(t: TestScheduler) -> None:
    await enqueue(t)
    assert await t.scheduler.signal("job", "go", {"by": "ann"})
    assert await t.run_one()
    assert await value_of(t.scheduler) == {"by": "ann"}
    assert await attempts(t) == 1


async def test_signal_during_the_wait_continues_the_job(t: TestScheduler) -> None:
    await enqueue(t)
    await t.run_until(DAY)
    assert await due(t) == START + 7 * DAY
    assert await t.scheduler.signal("job", "go", 1)
    assert await due(t) == START + DAY
    assert await t.run_one()
    assert await value_of(t.scheduler) == 1
    assert await attempts(t) == 2


async def test_signal_in_the_attempt_before_its_wait_is_returned(t: TestScheduler) -> None:
    async def signal_itself() -> Any:
        assert await t.scheduler.signal("job", "go", 1)
        return await current_job().steps.wait("go", timeout=DAY)

    await enqueue(t, signal_itself)
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == 1


async def test_first_of_two_signals_is_returned(t: TestScheduler) -> None:
    await enqueue(t)
    assert await t.scheduler.signal("job", "go", 1) is True
    assert await t.scheduler.signal("job", "go", 2) is False
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == 1


async def test_null_is_a_value(t: TestScheduler) -> None:
    await enqueue(t, wait_or_give_up)
    await t.run_until(NOW)
    assert await t.scheduler.signal("job", "go")
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == "None"


async def test_wait_times_out_at_its_deadline_and_accepts_no_signal_then(t: TestScheduler) -> None:
    await enqueue(t, wait_or_give_up)
    await t.run_until(START + 7 * DAY - SECOND)
    assert await attempts(t) == 1
    await t.run_until(START + 7 * DAY)
    reason = "timed out: no signal 'go' came for job 'job' until 2030-01-08 00:00:00+00:00"
    assert await value_of(t.scheduler) == reason
    assert await t.scheduler.signal("job", "go", 1) is False


async def test_wait_that_has_timed_out_stays_so_in_later_attempts(t: TestScheduler) -> None:
    errors: list[str] = []

    async def wait_and_fail() -> None:
        try:
            await current_job().steps.wait("go", timeout=HOUR)
        except TimeoutError as error:
            errors.append(str(error))
            if len(errors) == 1:
                raise

    await enqueue(t, wait_and_fail, max_retries=1)
    await t.run_until(HOUR)
    assert await t.scheduler.signal("job", "go", 1) is False
    await t.run_until(DAY)
    assert errors[0] == errors[1]
    assert await value_of(t.scheduler) is None


async def test_timeout_of_zero_only_looks(t: TestScheduler) -> None:
    async def look() -> list[Any]:
        steps, found = current_job().steps, list[Any]()
        for name in ("here", "not here"):
            try:
                found.append(await steps.wait(name, timeout=0))
            except TimeoutError:
                found.append("none")
        return found

    await enqueue(t, look)
    await t.scheduler.signal("job", "here", 1)
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == [1, "none"]
    assert await attempts(t) == 1


async def test_signal_after_the_deadline_is_returned_if_the_job_has_not_continued(t: TestScheduler) -> None:
    await enqueue(t, wait_or_give_up)
    await t.run_until(NOW)
    t.advance(8 * DAY)
    assert await t.scheduler.signal("job", "go", 1)
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == "1"


async def test_wait_without_a_timeout_lasts(t: TestScheduler) -> None:
    async def wait_for_years() -> Any:
        return await current_job().steps.wait("go")

    await enqueue(t, wait_for_years)
    await t.run_until(1000 * DAY)
    assert (await attempts(t), (await due(t)).year) == (1, 9999)
    await t.scheduler.signal("job", "go", 1)
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == 1


async def test_value_has_the_type_for_which_the_job_waits(t: TestScheduler) -> None:
    async def wait_for_types() -> str:
        steps = current_job().steps
        approval = await steps.wait("approval", kind=Approval)
        when = await steps.wait("when", kind=datetime)
        numbers = await steps.wait("numbers", kind=list[int])
        return f"{approval!r} {when.isoformat()} {sum(numbers)}"

    await enqueue(t, wait_for_types)
    await t.scheduler.signal("job", "approval", Approval(by="ann"))
    await t.scheduler.signal("job", "when", START)
    await t.scheduler.signal("job", "numbers", (1, 2))
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == "Approval(by='ann') 2030-01-01T00:00:00+00:00 3"


async def test_value_of_another_type_fails_the_job_without_retries(t: TestScheduler) -> None:
    async def wait_for_approval() -> None:
        await current_job().steps.wait("go", kind=Approval)

    await enqueue(t, wait_for_approval, max_retries=5)
    await t.scheduler.signal("job", "go", {"from": "ann"})
    await t.run_until(DAY)
    job = await t.scheduler.get_job("job")
    assert job is not None
    assert (job.status, job.attempt) == (JobStatus.FAILED, 1)
    assert "the value of the signal 'go' does not fit kind=" in str(job.error_message)


class Unsupported: ...


@pytest.mark.parametrize("kind", [Unsupported, list["Unsupported"], "Unsupported"])
async def test_type_that_pydantic_does_not_support_is_refused(t: TestScheduler, kind: Any) -> None:
    async def wait_for_it() -> None:
        with pytest.raises(ConfigurationError, match=r"kind=.*Unsupported.* is no type for pydantic"):
            await current_job().steps.wait("go", kind=kind)

    await enqueue(t, wait_for_it)
    await t.run_until(NOW)
    await value_of(t.scheduler)


async def test_name_of_a_wait_is_unique_in_an_attempt_until_it_times_out(t: TestScheduler) -> None:
    async def wait_twice() -> None:
        steps = current_job().steps
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await steps.wait("go", timeout=0)
        with pytest.raises(DuplicateStepError):
            await steps.sleep("go", 1)
        await steps.wait("here")
        for repeated in (steps.wait("here"), steps.wait("here", timeout=0)):
            with pytest.raises(DuplicateStepError):
                await repeated

    await enqueue(t, wait_twice)
    await t.scheduler.signal("job", "here")
    await t.run_until(NOW)
    await value_of(t.scheduler)


async def test_name_that_a_signal_has_taken_is_refused_for_another_step(t: TestScheduler) -> None:
    async def work() -> None: ...

    async def use_the_name() -> None:
        with pytest.raises(DuplicateStepError):
            await current_job().steps.run("go", work)

    await enqueue(t, use_the_name)
    await t.scheduler.signal("job", "go")
    await t.run_until(NOW)
    await value_of(t.scheduler)


async def test_job_waits_for_several_signals_at_once(t: TestScheduler) -> None:
    async def wait_for_both() -> list[Any]:
        steps = current_job().steps
        return list(await asyncio.gather(steps.wait("a", timeout=2 * DAY), steps.wait("b", timeout=3 * DAY)))

    await enqueue(t, wait_for_both)
    await t.run_until(HOUR)
    assert await due(t) == START + 2 * DAY
    assert await t.scheduler.signal("job", "b", 2)
    await t.run_until(HOUR)
    assert await due(t) == START + 2 * DAY
    assert await t.scheduler.signal("job", "a", 1)
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == [1, 2]


async def test_signal_does_not_shorten_the_delay_of_a_retry(t: TestScheduler) -> None:
    async def fail() -> None:
        while await t.pool.fetchval("SELECT count(*) FROM scheduler_steps") < 2:
            pass  # it does not wait yet
        raise ValueError

    async def place() -> list[Any]:
        steps = current_job().steps
        waits = steps.wait("paid"), steps.wait("packed", timeout=DAY)
        failed = [steps.run("fail", fail)] if current_job().attempt == 1 else []
        return list(await asyncio.gather(*waits, *failed))

    t.scheduler.register(place, name="place", retry=RetryPolicy(HOUR, maximum=HOUR, jitter=0))

    await enqueue(t, place, max_retries=3)
    await t.run_until(NOW)
    assert await due(t) == START + HOUR
    assert await t.scheduler.signal("job", "paid", 1)
    assert await t.scheduler.signal("job", "packed", 2)
    assert await due(t) == START + HOUR
    await t.run_until(HOUR)
    assert await value_of(t.scheduler) == [1, 2]
    assert await attempts(t) == 2


async def test_value_stays_for_the_retries_of_a_job(t: TestScheduler) -> None:
    found: list[Any] = []

    async def wait_and_fail() -> None:
        found.append(await current_job().steps.wait("go"))
        if len(found) < 3:
            raise ValueError

    await enqueue(t, wait_and_fail, max_retries=1)
    await t.scheduler.signal("job", "go", 7)
    await t.run_until(DAY)
    await t.scheduler.retry_job("job")
    await t.run_until(DAY)
    assert found == [7, 7, 7]


async def test_signal_to_a_job_that_was_cancelled_while_it_waited_is_refused(t: TestScheduler) -> None:
    await enqueue(t)
    await t.run_until(HOUR)
    assert await t.scheduler.cancel_job("job")
    assert await t.scheduler.signal("job", "go", 1) is False


async def test_signal_to_a_replaced_job_does_not_reach_its_successor(t: TestScheduler) -> None:
    await enqueue(t, wait_or_give_up)
    await t.run_until(HOUR)
    await t.scheduler.signal("job", "go", "old")
    await enqueue(t, wait_or_give_up, conflict_resolution=ConflictResolution.REPLACE)
    await t.run_until(HOUR)
    assert await due(t) == START + HOUR + 7 * DAY
    await t.scheduler.signal("job", "go", "new")
    await t.run_until(HOUR)
    assert await value_of(t.scheduler) == "new"


async def test_suspended_job_receives_the_signal_of_a_transaction_of_ten_seconds(
    t: TestScheduler, pool: asyncpg.Pool
) -> None:
    await enqueue(t)
    await t.run_until(NOW)
    async with pool.acquire() as connection, connection.transaction():
        assert await t.scheduler.signal("job", "go", 1, connection=connection)
        await t.run_until(10 * SECOND)
        assert await attempts(t) == 1
    await t.run_until(NOW)
    assert await value_of(t.scheduler) == 1


async def test_job_looks_each_second_while_a_signal_is_being_stored(
    t: TestScheduler, pool: asyncpg.Pool
) -> None:
    """The transaction of ten seconds sends its signal while the job runs, so it has no suspension to end."""
    async with pool.acquire() as connection:
        transaction = connection.transaction()

        async def send_and_wait() -> Any:
            steps = current_job().steps
            if current_job().attempt == 2:  # the first one has stored the wait
                await transaction.start()
                assert await t.scheduler.signal("job", "go", 1, connection=connection)
            return await steps.wait("go", timeout=DAY)

        await enqueue(t, send_and_wait)
        await t.run_until(NOW)
        await t.scheduler.run_job_now("job")
        await t.run_until(10 * SECOND)
        assert await attempts(t) == 12
        await transaction.commit()
    await t.run_until(SECOND)
    assert await value_of(t.scheduler) == 1


async def test_aborted_signal_does_not_arrive(t: TestScheduler, pool: asyncpg.Pool) -> None:
    await enqueue(t, wait_or_give_up)
    await t.run_until(NOW)
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        assert await t.scheduler.signal("job", "go", 1, connection=connection)
        await t.run_until(8 * DAY)  # at the deadline the row is locked
        assert await attempts(t) == 1
        await transaction.rollback()
    await t.run_until(NOW)
    assert (await value_of(t.scheduler)).startswith("timed out")


async def test_value_is_decoded_by_the_codec(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, now=START, codec=KeyedCodec("k1")) as t:
        await enqueue(t)
        await t.scheduler.signal("job", "go", {"card": "4242"})
        assert "4242" not in await pool.fetchval("SELECT value::text FROM scheduler_steps")
        await t.run_until(NOW)
        assert await value_of(t.scheduler) == {"card": "4242"}


async def test_signal_of_another_process_continues_the_job_without_a_poll(make: Make) -> None:
    worker, client = make(), make()
    worker.register(wait, name="waits.wait")
    seen = Recorder(worker)
    await worker.start()
    await client.enqueue("waits.wait", job_id="job", keep_result=HOUR)
    async with asyncio.timeout(PATIENCE):
        await seen.until(JobSuspended)
        assert await client.signal("job", "go", 7)
        await seen.until(JobCompleted)
    assert await value_of(client) == 7
