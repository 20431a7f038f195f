"""Children: jobs for which a step waits, through the public API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    Abort,
    Child,
    ConflictResolution,
    JobCancelledError,
    JobExpiredError,
    JobFailedError,
    JobNotFoundError,
    JobStatus,
    Limit,
    PayloadError,
    ResultUnavailableError,
    RetryPolicy,
    Scheduler,
    Snooze,
    Unique,
    VacuumConfig,
    VacuumPolicy,
    call,
    current_job,
    job,
)
from pg_scheduler.events import JobCompleted, JobStarted, JobSuspended
from pg_scheduler.inspect import Inspector
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import FixedDelay
from tests.api.conftest import Make
from tests.store.test_steps import until_a_lock_is_awaited
from tests.support import inside
from tests.support.codecs import KeyedCodec
from tests.support.worker import PATIENCE, Recorder

MAX_STEPS = inside.internal_setting("steps_of_job")

Pool = asyncpg.Pool

START = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
async def t(pool: Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START) as scheduler:
        yield scheduler


async def test_child_keeps_its_result_as_long_as_its_task_says(t: TestScheduler, pool: Pool) -> None:
    @job(keep_result=30 * DAY)
    async def keeping() -> int:
        return 1

    async def other() -> int:
        return 2

    async def place() -> None:
        steps = current_job().steps
        await steps.child("kept", call(keeping))
        await steps.gather("all", [call(keeping), call(other)])
        await steps.child("short", call(keeping), keep_result=DAY)

    await t.scheduler.enqueue(place, job_id="job")
    await t.drain()
    rows = await pool.fetch(
        "SELECT job_id, (options ->> 'keep_result')::float8 / 3600 AS hours FROM scheduled_jobs"
        " WHERE job_id <> 'job'"
    )
    assert {row["job_id"]: row["hours"] for row in rows} == {
        "job:kept": 720,
        "job:all:0": 720,
        "job:all:1": 1,
        "job:short": 24,
    }


async def test_end_of_a_child_does_not_end_the_attempt_of_a_cancelled_job(make: Make, pool: Pool) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    has_begun, child_may_end, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer() -> None:
        await child_may_end.wait()

    async def stubborn() -> None:
        child = asyncio.create_task(current_job().steps.child("ask", call(answer)))
        try:
            has_begun.set()
            await may_end.wait()
        except asyncio.CancelledError:
            child.cancel()
            await may_end.wait()  # a cleanup
            raise

    async def follow() -> None:
        assert may_end.is_set()

    for function in (answer, stubborn, follow):
        scheduler.register(function, name=function.__name__)
    await scheduler.start()
    await scheduler.enqueue("stubborn", job_id="job")
    await scheduler.enqueue("follow", after=["job"], after_outcome="ended")
    async with asyncio.timeout(PATIENCE):
        await has_begun.wait()
        await seen.until(JobStarted, job_name="answer")
        assert await scheduler.cancel_job("job")
        child_may_end.set()
        await seen.until(JobCompleted, job_name="answer")
        assert await pool.fetchval(
            "SELECT on_end -> 'alive' IS NOT NULL FROM scheduled_jobs WHERE job_id = 'job'"
        )
        may_end.set()
        await seen.until(JobCompleted, job_name="follow")


class Log(list[Any]):
    """What happened, and jobs that note it."""

    async def note(self, what: Any) -> Any:
        self.append(what)
        return what

    async def fail(self, what: Any) -> None:
        self.append(what)
        raise ValueError(f"no {what}")

    async def slow(self, what: Any, seconds: float) -> Any:
        await current_job().steps.sleep("slow", seconds)
        return await self.note(what)


@pytest.fixture
def log() -> Log:
    return Log()


async def enqueue(t: TestScheduler, func: Callable[..., Awaitable[Any]], **options: Any) -> str:
    return await t.scheduler.enqueue(func, **{"job_id": "job", "keep_result": 3650 * DAY, **options})


async def value_of(t: TestScheduler, job_id: str = "job") -> Any:
    found = await t.scheduler.get_job_result(job_id, wait=False)
    assert found is not None, "the job has not ended"
    return found.unwrap()


async def state(t: TestScheduler, job_id: str = "job") -> tuple[JobStatus, str | None, int]:
    job = await t.scheduler.get_job(job_id)
    assert job
    return job.status, job.blocked_on, job.attempt


WAITING = (JobStatus.PENDING, "after", 1)


async def test_job_waits_for_its_child_and_gets_the_value(t: TestScheduler, log: Log) -> None:
    async def place() -> Any:
        log.append("begin")
        return await current_job().steps.child("label", call(log.note, {"order": 7}))

    await enqueue(t, place)
    assert await t.run_one()
    assert log == ["begin"]
    assert await state(t) == WAITING
    assert (await state(t, "job:label"))[0] is JobStatus.PENDING
    assert await t.run_one()
    assert await t.run_one()
    assert await value_of(t) == {"order": 7}
    assert log == ["begin", {"order": 7}, "begin"]
    assert (await state(t))[2] == 2


async def test_children_of_gather_run_at_once_and_return_their_values_in_order(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> Any:
        calls = [call(log.slow, number, 10 - number) for number in range(5)]
        return await current_job().steps.gather("docs", calls)

    await enqueue(t, place)
    await t.run_until(HOUR)
    assert await value_of(t) == [0, 1, 2, 3, 4]
    assert log == [4, 3, 2, 1, 0]
    assert (await state(t))[2] == 2, "the last child makes it due"
    assert (await state(t, "job:docs:4"))[0] is JobStatus.COMPLETED


async def test_gather_of_no_calls_returns_at_once(t: TestScheduler) -> None:
    async def place() -> Any:
        return await current_job().steps.gather("docs", [])

    await enqueue(t, place)
    await t.run_one()
    assert await value_of(t) == []


async def test_options_of_a_child_are_those_of_enqueue(t: TestScheduler, log: Log) -> None:
    async def place() -> Any:
        return await current_job().steps.child(
            "later", call(log.note, 1), delay=HOUR, max_retries=3, metadata={"tenant": 7}
        )

    await enqueue(t, place)
    await t.run_one()
    child = await t.scheduler.get_job("job:later")
    assert child
    assert (child.execution_time, child.max_retries, child.metadata) == (START + HOUR, 3, {"tenant": 7})
    await t.run_until(2 * HOUR)
    assert await value_of(t) == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"job_id": "a"}, TypeError, "a child takes no job_id="),
        ({"connection": None}, TypeError, "a child takes no connection="),
        (
            {"colour": 1},
            TypeError,
            "a child has no option colour=; its options are delay, priority, max_retries",
        ),
        (
            {"execution_time": START},
            TypeError,
            "a child has no option execution_time=; its options are delay, ",
        ),
        ({"priority": 99}, TypeError, "priority"),
        ({"delay": -1}, ValueError, "delay"),
    ],
)
async def test_option_that_is_not_for_children_is_refused(
    t: TestScheduler, log: Log, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    async def place() -> None:
        with pytest.raises(error, match=message):
            await current_job().steps.child("label", call(log.note, 1), **options)

    await enqueue(t, place)
    await t.run_one()
    assert await value_of(t) is None
    assert await t.scheduler.get_job("job:label") is None


async def test_function_without_call_is_refused(t: TestScheduler, log: Log) -> None:
    async def place() -> None:
        steps = current_job().steps
        with pytest.raises(TypeError, match=r"a child needs a call\(\), not .*; pass call\(function"):
            await steps.child("label", log.note)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"a child needs a call\(\)"):
            await steps.gather("docs", [log.note])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"gather\(\) needs a list of calls, not Call; pass \[call\("):
            await steps.gather("docs", call(log.note, 1))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must not be empty"):
            await steps.child("", call(log.note, 1))

    await enqueue(t, place)
    await t.run_one()
    assert await value_of(t) is None


async def test_more_than_a_thousand_children_are_a_payload_error(t: TestScheduler, log: Log) -> None:
    async def place() -> None:
        with pytest.raises(PayloadError, match="of job 'job' has 1001 children, more than 1000"):
            await current_job().steps.gather("docs", [call(log.note, 1)] * (MAX_STEPS + 1))

    await enqueue(t, place)
    await t.run_one()
    assert await value_of(t) is None


async def fail_first(log: Log, number: int) -> int:
    log.append(number)
    if log.count(number) == 1:
        raise ValueError(f"no {number}")
    return number


async def test_failed_child_raises_its_error_in_every_attempt_until_it_is_retried_and_the_step_repeated(
    t: TestScheduler, log: Log
) -> None:
    errors: list[str] = []

    async def once(number: int) -> int:
        return await fail_first(log, number)

    async def place() -> Any:
        steps = current_job().steps
        await steps.run("before", log.note, "before")
        t.advance(SECOND)
        try:
            return await steps.child("label", call(once, 7))
        except JobFailedError as error:
            errors.append(str(error))
            raise

    await enqueue(t, place, max_retries=1)
    await t.run_until(5 * MINUTE)
    assert (await state(t))[0] is JobStatus.FAILED
    assert set(errors) == {"job 'job:label' failed: ValueError: no 7"}
    assert len(errors) == 2
    assert await t.scheduler.retry_job("job")
    await t.run_until(5 * MINUTE)
    assert len(errors) == 4, "nothing has changed for the job"
    assert await t.scheduler.retry_job("job:label")
    await t.run_until(SECOND)
    assert log == ["before", 7, 7]
    assert await t.scheduler.retry_job("job")
    await t.run_until(5 * MINUTE)
    assert len(errors) == 6, "the step has the old result"
    assert await t.scheduler.retry_job("job", from_step="label")
    await t.run_until(SECOND)
    assert await value_of(t) == 7
    assert log == ["before", 7, 7], "the child that has completed is not repeated"


async def test_retry_from_the_step_waits_for_a_child_that_is_retried(t: TestScheduler, log: Log) -> None:
    async def once(number: int) -> int:
        return await fail_first(log, number)

    async def place() -> Any:
        return await current_job().steps.child("label", call(once, 7))

    await enqueue(t, place)
    await t.drain()
    assert (await state(t))[0] is JobStatus.FAILED
    await t.scheduler.retry_job("job:label")
    await t.scheduler.retry_job("job", from_step="label")
    await t.drain()
    assert await value_of(t) == 7
    assert log == [7, 7]


async def test_gather_waits_for_all_and_raises_the_first_error_in_order(t: TestScheduler, log: Log) -> None:
    async def place() -> str:
        calls = [call(log.slow, 0, 30), call(slow_failure, "b", 20), call(log.fail, "c")]
        try:
            await current_job().steps.gather("docs", calls)
        except JobFailedError as error:
            return str(error)
        return ""

    async def slow_failure(what: str, seconds: float) -> None:
        await current_job().steps.sleep("slow", seconds)
        await log.fail(what)

    await enqueue(t, place)
    await t.run_until(29 * SECOND)
    assert (await state(t))[0] is JobStatus.PENDING
    await t.run_until(2 * SECOND)
    assert await value_of(t) == "job 'job:docs:1' failed: ValueError: no b"
    assert log == ["c", "b", 0]


async def test_child_that_was_cancelled_or_has_expired_or_has_no_value_raises_that(
    t: TestScheduler, log: Log
) -> None:
    async def unstorable() -> object:
        return object()

    async def place() -> list[str]:
        steps, found = current_job().steps, list[str]()
        for name, each, options in (
            ("cancelled", call(log.note, 1), {"delay": HOUR}),
            ("expired", call(log.note, 1), {"delay": HOUR, "misfire_grace_time": 1}),
            ("unstorable", call(unstorable), {}),
        ):
            try:
                await steps.child(name, each, **options)
            except (JobCancelledError, JobExpiredError, ResultUnavailableError) as error:
                found.append(type(error).__name__)
        return found

    await enqueue(t, place)
    await t.drain()
    assert await t.scheduler.cancel_job("job:cancelled")
    await t.drain()
    t.advance(2 * HOUR)
    await t.run_until(HOUR)
    assert await value_of(t) == ["JobCancelledError", "JobExpiredError", "ResultUnavailableError"]
    assert log == []


async def test_result_outlives_the_row_and_the_kept_result_of_the_child(
    t: TestScheduler, pool: Pool, log: Log
) -> None:
    async def place() -> Any:
        steps = current_job().steps
        label = await steps.child("label", call(log.note, 7))
        await steps.sleep("cool-off", 2 * DAY)
        return label

    await enqueue(t, place)
    await t.run_until(HOUR)
    await pool.execute("DELETE FROM scheduler_results; DELETE FROM scheduled_jobs WHERE job_id = 'job:label'")
    await t.run_until(3 * DAY)
    assert await value_of(t) == 7
    assert log == [7]


async def test_children_of_a_cancelled_job_go_on_and_count_when_it_is_retried(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> Any:
        log.append("begin")
        return await current_job().steps.gather("docs", [call(log.note, 1), call(log.slow, 2, 1800)])

    await enqueue(t, place)
    assert await t.run_one()
    assert await t.scheduler.cancel_job("job")
    assert (await state(t))[:2] == (JobStatus.CANCELLED, None)
    await t.run_until(2000 * SECOND)
    assert log == ["begin", 1, 2]
    assert await t.scheduler.retry_job("job")
    await t.run_until(SECOND)
    assert await value_of(t) == [1, 2]
    assert log == ["begin", 1, 2, "begin"]


@pytest.mark.parametrize("is_alternative", [False, True])
async def test_child_under_the_name_of_several_children_says_so(
    t: TestScheduler, log: Log, is_alternative: bool
) -> None:
    async def place() -> Any:
        log.append("begin")
        steps = current_job().steps
        if len(log) == 1:
            return await steps.gather("docs", [call(log.note, 1), call(log.note, 2)])
        if is_alternative:
            return await steps.first("either", Child("docs", call(log.note, 1)))
        return await steps.child("docs", call(log.note, 1))

    await enqueue(t, place)
    await t.drain()
    await t.run_until(SECOND)
    job = await t.scheduler.get_job("job")
    assert job is not None
    assert job.status is JobStatus.FAILED
    message = "step 'docs' of job 'job' was stored by gather() with 2 calls, and child() has one"
    assert message in str(job.error_message)


@pytest.mark.parametrize(("first", "later"), [(2, 3), (3, 2)])
async def test_gather_of_another_number_of_calls_returns_the_stored_ones_and_warns(
    t: TestScheduler, log: Log, caplog: pytest.LogCaptureFixture, first: int, later: int
) -> None:
    async def place() -> Any:
        calls = [call(log.note, number) for number in range(later if log else first)]
        return await current_job().steps.gather("docs", calls)

    await enqueue(t, place)
    await t.drain()
    assert await value_of(t) == list(range(first))
    (text,) = [record.getMessage() for record in caplog.records if "was stored with" in record.getMessage()]
    assert f"was stored with {first} calls, and the code has {later} now" in text


@pytest.mark.parametrize("deleted", ["results", "rows"])
async def test_retry_from_the_step_repeats_no_completed_child_after_its_retention(
    t: TestScheduler, pool: Pool, log: Log, deleted: str
) -> None:
    async def once(number: int) -> int:
        return await fail_first(log, number)

    async def place() -> Any:
        return await current_job().steps.gather("docs", [call(log.note, 1), call(once, 2)])

    await enqueue(t, place)
    await t.drain()
    assert (await state(t))[0] is JobStatus.FAILED
    await delete_completed(t, pool, deleted)
    await t.scheduler.retry_job("job:docs:1")
    await t.scheduler.retry_job("job", from_step="docs")
    await t.run_until(SECOND)
    assert await value_of(t) == [1, 2]
    assert log == [1, 2, 2]
    await t.scheduler.retry_job("job:docs:1")
    await t.scheduler.retry_job("job", from_step="docs")
    await t.run_until(SECOND)
    assert await value_of(t) == [1, 2]
    assert log == [1, 2, 2, 2], "a child that is retried counts again"


@pytest.mark.parametrize("deleted", ["results", "rows"])
async def test_result_of_a_child_that_ends_after_the_cancellation_of_its_job_is_there_for_its_retry(
    t: TestScheduler, pool: Pool, log: Log, deleted: str
) -> None:
    async def place() -> Any:
        return await current_job().steps.gather("docs", [call(log.note, 1), call(log.slow, 2, 1800)])

    await enqueue(t, place)
    await t.drain()
    assert await t.scheduler.cancel_job("job")
    await t.run_until(HOUR)
    await delete_completed(t, pool, deleted)
    assert await t.scheduler.retry_job("job")
    await t.run_until(SECOND)
    assert await value_of(t) == [1, 2]
    assert log == [1, 2]


@pytest.mark.parametrize("deleted", [None, "results", "rows"])
@pytest.mark.parametrize(("fails", "retries"), [(False, 1), (False, 2), (True, 1), (True, 2)])
async def test_newest_end_of_a_child_counts_when_its_step_is_repeated(
    t: TestScheduler, pool: Pool, fails: bool, retries: int, deleted: str | None
) -> None:
    log = Log()

    async def quote() -> Any:
        if fails and not log:
            await log.fail(0)
        return await log.note(len(log))

    async def place() -> Any:
        value = await current_job().steps.child("price", call(quote))
        if value < retries:
            raise ValueError("wrong")
        return value

    await enqueue(t, place)
    await t.drain()
    for _ in range(retries):
        assert await t.scheduler.retry_job("job:price")
        await t.drain()
    if deleted is not None:
        await delete_completed(t, pool, deleted)
    assert await t.scheduler.retry_job("job")
    await t.drain()
    assert (await state(t))[0] is JobStatus.FAILED, "the step has the old result"
    assert await t.scheduler.retry_job("job", from_step="price")
    await t.drain()
    assert await value_of(t) == retries
    assert log == list(range(retries + 1))


@pytest.mark.parametrize("is_slow", [False, True], ids=["ended again", "runs"])
@pytest.mark.parametrize("how", ["call", "transaction", "inspector", "by hand"])
async def test_step_that_waits_for_other_children_gets_the_newer_end_of_one_that_was_retried(
    t: TestScheduler, pool: Pool, log: Log, how: str, is_slow: bool
) -> None:
    async def once() -> Any:
        if not log:
            await log.fail("first")
        if is_slow:
            await current_job().steps.sleep("slow", 7200)
        return await log.note("second")

    async def place() -> Any:
        return await current_job().steps.gather("docs", [call(once), call(log.slow, "other", 3600)])

    await enqueue(t, place)
    await t.drain()
    assert await state(t) == WAITING
    await retry_child(t, pool, how, "job:docs:0")
    await t.run_until(HOUR)
    assert (await state(t))[1] == ("after" if is_slow else None)
    await t.run_until(2 * HOUR)
    assert await value_of(t) == ["second", "other"]
    assert sorted(log) == ["first", "other", "second"]
    assert not await pool.fetch("SELECT FROM scheduler_after")


async def retry_child(t: TestScheduler, pool: Pool, how: str, job_id: str) -> None:
    """Make a finished child pending."""
    match how:
        case "call":
            assert await t.scheduler.retry_job(job_id)
        case "transaction":
            async with pool.acquire() as connection, connection.transaction():
                assert await t.scheduler.retry_job(job_id, connection=connection)
        case "inspector":
            async for _ in Inspector(t.scheduler).retry_jobs(ids=[job_id]):
                pass
        case "by hand":
            assert await t.scheduler.update_job_status(job_id, JobStatus.PENDING)


@pytest.mark.parametrize("deleted", ["results", "rows"])
async def test_child_that_ends_before_its_job_comes_to_its_step_again_is_not_repeated(
    t: TestScheduler, pool: Pool, log: Log, deleted: str
) -> None:
    async def place() -> Any:
        steps = current_job().steps
        await steps.run("before", log.note, "before")
        t.advance(SECOND)
        if log.count("before") > 1:
            await steps.sleep("pause", 12 * 3600)
        child = asyncio.create_task(steps.child("charge", call(log.slow, "charged", 60)))
        if log.count("before") == 1:
            while await t.scheduler.get_job("job:charge") is None:  # noqa: ASYNC110 - inserted by another task
                await asyncio.sleep(0.01)
            raise ValueError("another branch has failed")
        return await child

    await enqueue(t, place)
    await t.run_until(SECOND)
    assert (await state(t))[0] is JobStatus.FAILED
    assert await t.scheduler.retry_job("job", from_step="before")
    await t.run_until(MINUTE)
    await t.run_until(MINUTE)
    assert log == ["before", "before", "charged"]
    await delete_completed(t, pool, deleted)
    await t.run_until(12 * HOUR)
    assert await value_of(t) == "charged"
    assert log == ["before", "before", "charged"]


async def test_retry_from_a_step_keeps_the_waits_of_earlier_steps(
    t: TestScheduler, pool: Pool, log: Log
) -> None:
    async def place() -> Any:
        steps = current_job().steps
        child = asyncio.create_task(steps.child("charge", call(log.slow, "charged", 60)))
        while await t.scheduler.get_job("job:charge") is None:  # noqa: ASYNC110 - inserted by another task
            await asyncio.sleep(0.01)
        t.advance(SECOND)
        await steps.run("beside", log.note, "beside")
        if log == ["beside"]:
            raise ValueError("another branch has failed")
        return await child

    await enqueue(t, place)
    await t.run_until(SECOND)
    edges = await pool.fetch("SELECT parent_id, child_id FROM scheduler_after")
    assert [tuple(edge) for edge in edges] == [("job:charge", "job")]
    assert await t.scheduler.retry_job("job", from_step="beside")
    assert await pool.fetch("SELECT parent_id, child_id FROM scheduler_after") == edges
    await t.run_until(HOUR)
    assert await value_of(t) == "charged"
    assert log == ["beside", "beside", "charged"]


async def test_retry_from_an_early_signal_keeps_what_the_job_waits_for(t: TestScheduler, log: Log) -> None:
    await t.scheduler.enqueue(log.slow, args=("before", 60), job_id="before")
    await enqueue(t, log.note, args=("job",), after=["before"])
    assert await t.scheduler.signal("job", "go", 1)
    await t.scheduler.cancel_job("job")
    assert await t.scheduler.retry_job("job", from_step="go")
    await t.run_until(HOUR)
    assert log == ["before", "job"]


async def delete_completed(t: TestScheduler, pool: Pool, what: str) -> None:
    """Let the results of completed jobs be over, or their rows too."""
    await t.run_until(2 * HOUR)
    await pool.execute("DELETE FROM scheduler_results WHERE status = 'completed'")
    if what == "rows":
        await pool.execute("DELETE FROM scheduled_jobs WHERE status = 'completed'")


async def test_schedule_goes_on_at_the_cancellation_of_its_job_that_waits_for_a_child(
    t: TestScheduler, log: Log
) -> None:
    @job(name="children.of_schedule")
    async def place() -> None:
        log.append("place")
        if len(log) == 1:
            await current_job().steps.child("label", call(log.slow, 1, 30 * 86400))

    await t.scheduler.schedules.add("children.of_schedule", FixedDelay(MINUTE), schedule_id="s")
    await t.run_until(HOUR)
    assert log == ["place"]
    (waiting,) = [each for each in await t.scheduler.list_jobs() if each.blocked_on == "after"]
    assert await t.scheduler.cancel_job(waiting.job_id)
    await t.run_until(MINUTE)
    assert log == ["place"] * 2
    assert await t.scheduler.retry_job(waiting.job_id), "its attempt has ended"


async def test_job_that_is_retried_while_its_child_runs_waits_for_it_again(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> Any:
        return await current_job().steps.child("label", call(log.slow, 2, 3600))

    await enqueue(t, place)
    await t.drain()
    await t.scheduler.cancel_job("job")
    await t.scheduler.retry_job("job")
    await t.drain()
    assert (await state(t))[:2] == (JobStatus.PENDING, "after")
    await t.run_until(HOUR)
    assert await value_of(t) == 2
    assert log == [2]


async def test_children_of_a_replaced_job_do_not_count_for_its_successor(t: TestScheduler, log: Log) -> None:
    async def place(number: int) -> Any:
        return await current_job().steps.child("label", call(log.note, number))

    await enqueue(t, place, args=(1,))
    await t.drain()
    t.advance(SECOND)
    await enqueue(t, place, args=(2,), conflict_resolution=ConflictResolution.REPLACE)
    await t.drain()
    assert await value_of(t) == 2
    assert log == [1, 2]
    await t.scheduler.retry_job("job", from_step="label")
    await t.drain()
    assert await value_of(t) == 2
    assert log == [1, 2], "its own child stays"


async def test_running_child_of_a_replaced_job_is_replaced_when_it_ends(t: TestScheduler, log: Log) -> None:
    async def place(number: int) -> Any:
        return await current_job().steps.child("label", call(log.slow, number, 3600 * number))

    await enqueue(t, place, args=(3,))
    await t.drain()
    await t.run_until(HOUR)
    await enqueue(t, place, args=(1,), conflict_resolution=ConflictResolution.REPLACE)
    await t.run_until(DAY / 2)
    assert await value_of(t) == 1
    assert log == [1]


@pytest.mark.parametrize("passes", [False, True])
async def test_definition_that_replaces_a_running_job_does_not_wait_for_its_children(
    t: TestScheduler, log: Log, passes: bool
) -> None:
    async def second() -> list[str]:
        return [result.job_id async for result in current_job().predecessors()]

    async def replace() -> None:
        again = ConflictResolution.REPLACE
        await enqueue(t, second, after=["first"], conflict_resolution=again, pass_results=passes)

    async def place() -> None:
        steps = current_job().steps
        await steps.run("replace", replace)
        await steps.child("label", call(log.slow, 1, 30 * 86400))

    await t.scheduler.enqueue(log.note, args=("first",), job_id="first", delay=MINUTE, keep_result=DAY)
    await enqueue(t, place)
    await t.drain()
    assert (await state(t)) == WAITING
    await t.run_until(HOUR)
    assert await value_of(t) == ["first"] * passes


async def test_failed_child_of_a_deleted_job_does_not_count_for_a_new_one_of_its_id(
    t: TestScheduler, pool: Pool, log: Log
) -> None:
    async def place() -> Any:
        return await current_job().steps.child("label", call(log.fail if not log else log.note, 1))

    await enqueue(t, place)
    await t.drain()
    assert (await state(t))[0] is JobStatus.FAILED
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'job'")
    t.advance(SECOND)
    await enqueue(t, place)
    await t.drain()
    assert await value_of(t) == 1


async def test_child_that_is_deleted_by_hand_raises_and_runs_again_from_its_step(
    t: TestScheduler, pool: Pool, log: Log
) -> None:
    async def place() -> Any:
        return await current_job().steps.child("label", call(log.note, 1))

    await enqueue(t, place)
    assert await t.run_one()
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'job:label'")
    await t.run_until(HOUR)
    job = await t.scheduler.get_job("job")
    assert job
    assert (job.status, log) == (JobStatus.FAILED, [])
    assert JobNotFoundError.__name__ in str(job.error_message)
    await t.scheduler.retry_job("job", from_step="label")
    await t.drain()
    assert await value_of(t) == 1


@pytest.mark.parametrize("seconds", [1800, 7200])
async def test_job_that_waits_for_a_child_and_for_something_else_continues_at_the_first_end(
    t: TestScheduler, log: Log, seconds: int
) -> None:
    async def place() -> None:
        steps = current_job().steps

        async def sleep() -> None:
            await steps.sleep("nap", seconds)
            await steps.run("after the nap", log.note, ["nap", t.now.isoformat()])

        async def label() -> None:
            await steps.child("label", call(log.slow, 1, 3600))
            await steps.run("after the child", log.note, ["child", t.now.isoformat()])

        await asyncio.gather(sleep(), label())

    await enqueue(t, place)
    await t.run_until(DAY / 2)
    assert await value_of(t) is None
    nap, child = ["nap", (START + seconds * SECOND).isoformat()], ["child", (START + HOUR).isoformat()]
    assert log == ([nap, 1, child] if seconds < 3600 else [1, child, nap])
    assert (await state(t))[2] == 3


@pytest.mark.parametrize("seconds", [10, 30])
async def test_job_that_races_a_child_against_a_sleep_ends_with_the_first(
    t: TestScheduler, log: Log, seconds: int
) -> None:
    async def race() -> list[str]:
        steps = current_job().steps
        tasks = {
            "child": asyncio.ensure_future(steps.child("child", call(log.slow, 1, 20))),
            "limit": asyncio.ensure_future(steps.sleep("limit", seconds)),
        }
        done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        return [name for name, task in tasks.items() if task in done]

    await enqueue(t, race)
    await t.run_until(min(seconds, 20) * SECOND)
    assert await value_of(t) == [["limit"], ["child"]][seconds == 30]
    assert (await state(t))[2] == 2


async def test_job_that_waits_for_a_child_a_sleep_and_a_signal_continues_at_the_end_of_each_only(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> list[Any]:
        steps = current_job().steps
        child = steps.child("label", call(log.slow, "label", 86400))
        return list(await asyncio.gather(child, steps.sleep("remind", HOUR), steps.wait("approval")))

    await enqueue(t, place)
    await t.run_until(2 * HOUR)
    assert await state(t) == (JobStatus.PENDING, None, 2)
    await t.run_until(2 * DAY)
    assert await state(t) == (JobStatus.PENDING, None, 3)
    assert await t.scheduler.signal("job", "approval", 7)
    await t.run_until(HOUR)
    assert await value_of(t) == ["label", None, 7]
    assert (await state(t))[2] == 4


async def test_values_of_children_have_the_types_that_their_functions_return(t: TestScheduler) -> None:
    async def sizes() -> tuple[int, ...]:
        return 320, 1280

    async def total(number: int) -> Decimal:
        return str(number)  # type: ignore[return-value]

    async def place() -> None:
        steps = current_job().steps
        assert await steps.child("sizes", call(sizes)) == (320, 1280)
        values = await steps.gather("all", [call(sizes), call(total, 7)])
        assert values == [(320, 1280), Decimal(7)]

    await enqueue(t, place)
    await t.run_until(HOUR)
    assert await value_of(t) is None


async def test_value_of_a_child_that_its_annotation_does_not_accept_fails_the_job(t: TestScheduler) -> None:
    async def number() -> int:
        return "seven"  # type: ignore[return-value]

    async def place() -> None:
        await current_job().steps.child("number", call(number))

    await enqueue(t, place, max_retries=5)
    await t.run_until(HOUR)
    with pytest.raises(JobFailedError, match=r"step 'number' does not fit the return annotation"):
        await value_of(t)


async def test_job_that_waits_for_two_children_continues_at_the_end_of_each(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> None:
        steps = current_job().steps

        async def label(hours: int) -> None:
            found = await steps.child(f"{hours}", call(log.slow, hours, 3600 * hours))
            await steps.run(f"after {found}", log.note, [found, t.now.isoformat()])

        await asyncio.gather(label(2), label(1))

    await enqueue(t, place)
    await t.run_until(DAY / 2)
    assert await value_of(t) is None
    first, second = ((START + hours * HOUR).isoformat() for hours in (1, 2))
    assert log == [1, [1, first], 2, [2, second]]
    assert (await state(t))[2] == 3


async def test_signal_continues_a_job_that_waits_for_a_child_too(t: TestScheduler, log: Log) -> None:
    async def place() -> Any:
        steps = current_job().steps
        return await asyncio.gather(
            steps.wait("go", timeout=7 * DAY), steps.child("label", call(log.slow, 1, 86400))
        )

    await enqueue(t, place)
    await t.run_until(HOUR)
    assert await t.scheduler.signal("job", "go", "signal")
    await t.run_until(HOUR)
    assert (await state(t)) == (JobStatus.PENDING, "after", 2)
    await t.run_until(DAY)
    assert await value_of(t) == ["signal", 1]


async def test_end_of_a_child_does_not_shorten_the_delay_of_a_retry(t: TestScheduler, log: Log) -> None:
    async def fail_after_the_insertion() -> None:
        while await t.scheduler.get_job("job:label") is None:
            pass
        await log.fail("place")

    async def place() -> Any:
        steps = current_job().steps
        if current_job().attempt == 1:
            failed = steps.run("fail", fail_after_the_insertion)
            await asyncio.gather(steps.child("label", call(log.note, 1)), failed)
        log.append(t.now)
        return await steps.child("label", call(log.note, 1))

    await enqueue(t, place, max_retries=1)
    assert await t.run_one()
    job = await t.scheduler.get_job("job")
    assert job
    await t.run_until(HOUR)
    assert await value_of(t) == 1
    assert log == ["place", 1, job.execution_time]


@pytest.mark.parametrize("is_first", [False, True])
async def test_child_may_be_awaited_again_after_a_call_was_cancelled_while_it_read_the_result(
    t: TestScheduler, pool: Pool, log: Log, is_first: bool
) -> None:
    async def place() -> Any:
        steps = current_job().steps

        async def await_child() -> Any:
            child = call(log.note, "child")
            if is_first:
                return (await steps.first("first", Child("child", child))).value
            return await steps.child("child", child)

        await steps.run("before", log.note, "before")
        if current_job().attempt == 2:
            await await_child()
            raise Snooze(SECOND)
        if current_job().attempt == 3:
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute("LOCK TABLE scheduler_steps IN ACCESS EXCLUSIVE MODE")
                task = asyncio.create_task(await_child())
                await until_a_lock_is_awaited(pool)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        return await await_child()

    await enqueue(t, place)
    await t.run_until(MINUTE)
    assert await value_of(t) == "child"
    assert log == ["before", "child"]


async def test_child_has_another_id_than_the_alert_of_its_job(t: TestScheduler, log: Log) -> None:
    async def place() -> Any:
        steps = current_job().steps
        if "alerted" not in log:
            raise Abort("once")
        return await steps.child("failed", call(log.note, "child"))

    async def alert(**_: Any) -> None:
        log.append("alerted")

    t.scheduler.register(alert, name="alert")
    t.scheduler.register(place, name="place", on_failure="alert")
    await enqueue(t, place)
    await t.drain()
    assert await t.scheduler.retry_job("job")
    await t.drain()
    assert await value_of(t) == "child"
    assert log == ["alerted", "child"]
    assert await t.scheduler.retry_job("job", from_step="failed")
    await t.drain()
    assert await value_of(t) == "child"
    assert log == ["alerted", "child"], "the child is found by its other id"


async def test_child_of_a_unique_task_may_be_a_job_that_exists(t: TestScheduler, log: Log) -> None:
    async def place() -> Any:
        return await current_job().steps.child("import", call(log.note, "child"), unique="the import")

    await t.scheduler.enqueue(log.note, args=("other",), job_id="x", unique="the import", delay=HOUR)
    await enqueue(t, place)
    await t.run_until(2 * HOUR)
    assert log == ["other"]
    assert await value_of(t) == "other", "a job that had not begun keeps its result for the step"


@pytest.mark.parametrize(("one", "other"), [("a", "b"), ("b", "a")])
async def test_two_steps_wait_for_one_child_whatever_their_names_are(
    t: TestScheduler, log: Log, one: str, other: str
) -> None:
    async def place() -> Any:
        steps = current_job().steps
        first = asyncio.create_task(steps.child(one, call(log.slow, "child", 60), unique="the import"))
        while await t.scheduler.get_job(f"job:{one}") is None:  # noqa: ASYNC110 - inserted by another task
            await asyncio.sleep(0.01)
        second = await steps.child(other, call(log.slow, "child", 60), unique="the import")
        return [await first, second]

    await enqueue(t, place)
    await t.drain()
    await t.run_until(HOUR)
    assert await value_of(t) == ["child", "child"]
    assert log == ["child"]
    assert await t.scheduler.get_job(f"job:{other}") is None


async def test_child_that_is_retried_for_a_later_step_stays_the_child_of_its_own(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> Any:
        steps = current_job().steps
        with contextlib.suppress(JobFailedError):
            return await steps.child("b", call(import_), unique="the import")
        await steps.wait("retried")
        return await steps.child("a", call(import_), unique="the import")

    async def import_() -> Any:
        if not log:
            await log.fail("first")
        await current_job().steps.sleep("slow", 60)
        return await log.note("second")

    await enqueue(t, place)
    await t.drain()
    assert await t.scheduler.retry_job("job:b")
    await t.scheduler.signal("job", "retried")
    await t.drain()
    await t.run_until(HOUR)
    assert await value_of(t) == "second"
    assert log == ["first", "second"]


@pytest.mark.parametrize("runs", [False, True], ids=["pending", "running"])
async def test_replaced_job_keeps_the_result_that_a_step_waits_for(
    t: TestScheduler, log: Log, runs: bool
) -> None:
    """The new definition has no ``keep_result=``. Without its value, the step would fail."""
    options: dict[str, Any] = {"job_id": "x", "unique": "the import"}

    async def replace() -> None:
        replace = ConflictResolution.REPLACE
        await t.scheduler.enqueue(log.note, args=("new",), **options, conflict_resolution=replace)

    async def place() -> Any:
        return await current_job().steps.child("import", call(log.note, "child"), unique="the import")

    func, kept = (replace, {"keep_result": HOUR}) if runs else (log.note, {"args": ("former",)})
    await t.scheduler.enqueue(func, **options, delay=HOUR, **kept)
    await enqueue(t, place)
    await t.drain()
    if not runs:
        await replace()
    await t.run_until(2 * HOUR)
    assert log == ["new"]
    assert await value_of(t) == "new"


async def test_child_is_refused_while_a_running_job_has_its_unique_key_and_keeps_no_result(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> Any:
        return await current_job().steps.child("import", call(log.note, "child"), unique="the import")

    t.scheduler.register(place, name="place", retry=RetryPolicy(HOUR, maximum=HOUR, jitter=0))
    await t.scheduler.enqueue(log.note, args=("other",), job_id="x", unique="the import", delay=HOUR)
    assert await t.scheduler.update_job_status("x", "running")
    await enqueue(t, place, max_retries=1)
    await t.run_one()
    job = await t.scheduler.get_job("job")
    assert job is not None
    assert "has the unique key" in (job.error_message or "")
    assert "of job 'x', which has the status 'running' and keeps no result" in (job.error_message or "")
    assert await t.scheduler.update_job_status("x", "completed")
    await t.run_until(2 * HOUR)
    assert await value_of(t) == "child"
    assert log == ["child"]


async def test_child_of_a_unique_task_of_a_replaced_job_may_be_a_job_that_exists(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> Any:
        return await current_job().steps.child("import", call(log.note, "child"), unique="the import")

    await enqueue(t, place)
    await t.drain()
    assert await value_of(t) == "child"
    t.advance(SECOND)
    other: dict[str, Any] = {"job_id": "x", "unique": "the import", "delay": HOUR, "keep_result": HOUR}
    await t.scheduler.enqueue(log.note, args=("other",), **other)
    await enqueue(t, place, conflict_resolution=ConflictResolution.REPLACE)
    await t.run_until(2 * HOUR)
    assert await value_of(t) == "other"
    assert log == ["child", "other"]


async def test_step_keeps_the_first_end_of_another_job_that_has_the_unique_key_until_it_is_repeated(
    t: TestScheduler, log: Log
) -> None:
    """That job is no child, so its retry does not reach the step, which waits for its other child still."""

    @job(name="children.import", unique=Unique(args=("number",)), keep_result=DAY)
    async def import_(number: int) -> Any:
        if not log:
            await log.fail("first")
        return await log.note(number)

    async def place() -> Any:
        return await current_job().steps.gather("docs", [call(import_, 1), call(log.slow, "other", 3600)])

    await t.scheduler.enqueue(import_, args=(1,), job_id="x", delay=60)
    await enqueue(t, place)
    await t.run_until(2 * MINUTE)
    assert await t.scheduler.retry_job("x")
    await t.drain()
    assert log == ["first", 1]
    assert await state(t) == WAITING
    await t.run_until(HOUR)
    with pytest.raises(JobFailedError, match="job 'x' failed: ValueError: no first"):
        await value_of(t)
    assert await t.scheduler.retry_job("job", from_step="docs")
    await t.drain()
    assert await value_of(t) == [1, "other"]
    assert log == ["first", 1, "other", 1], "the key is free, so the step has a child of its own"


async def test_ended_step_keeps_the_result_of_a_child_for_which_another_step_waits_again(
    t: TestScheduler, log: Log
) -> None:
    @job(name="children.import", unique=Unique(args=("number",)), keep_result=DAY)
    async def import_(number: int) -> Any:
        await current_job().steps.sleep("read", 60)
        if not log:
            await log.fail("first")
        return await log.note(number)

    async def place() -> Any:
        steps = current_job().steps

        async def quick() -> Any:
            try:
                return await steps.child("quick", call(import_, 1))
            except JobFailedError:
                return "failed"

        async def slow() -> Any:
            await steps.sleep("begin", 5)
            return await steps.gather("slow", [call(import_, 1), call(log.slow, "other", 3600)])

        return await asyncio.gather(quick(), slow())

    await enqueue(t, place)
    await t.run_until(2 * MINUTE)
    assert await t.scheduler.retry_job("job:quick")
    await t.run_until(2 * HOUR)
    assert await value_of(t) == ["failed", [1, "other"]]
    assert await t.scheduler.retry_job("job")
    await t.drain()
    assert await value_of(t) == ["failed", [1, "other"]]
    assert await t.scheduler.retry_job("job", from_step="quick")
    await t.run_until(HOUR)
    assert await value_of(t) == [1, [1, "other"]]


async def test_repeated_step_gets_the_end_of_a_child_that_another_step_has_got_since(
    t: TestScheduler, pool: Pool, log: Log
) -> None:
    @job(name="children.import", unique=Unique(args=("number",)), keep_result=DAY)
    async def import_(number: int) -> Any:
        await current_job().steps.sleep("read", 60)
        return await log.note(number + len(log))

    async def place() -> Any:
        steps = current_job().steps

        async def late() -> Any:
            await steps.sleep("begin", 5)
            return await steps.child("late", call(import_, 1))

        return await asyncio.gather(steps.child("early", call(import_, 1)), late())

    await enqueue(t, place)
    await t.run_until(2 * MINUTE)
    assert await value_of(t) == [1, 1]
    assert await t.scheduler.retry_job("job:early", from_step="read")
    await t.run_until(2 * MINUTE)
    assert await t.scheduler.retry_job("job:early", from_step="read")
    await t.run_until(10 * SECOND)
    assert await t.scheduler.retry_job("job", from_step="late")
    await t.run_until(2 * MINUTE)
    assert await value_of(t) == [1, 3]
    # The vacuum deletes the child after some days.
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'job:early'")
    await pool.execute("DELETE FROM scheduler_results WHERE job_id = 'job:early'")
    assert await t.scheduler.retry_job("job", from_step="early")
    await t.run_until(2 * MINUTE)
    assert await value_of(t) == [3, 4]


@pytest.mark.parametrize("end", ["completed", "cancelled", "replaced", "deleted"])
async def test_each_end_of_another_job_that_has_the_unique_key_of_a_child_wakes_the_step(
    t: TestScheduler, pool: Pool, log: Log, end: str
) -> None:
    async def place() -> Any:
        try:
            return await current_job().steps.child("import", call(log.note, "child"), unique="key")
        except (JobCancelledError, JobNotFoundError) as error:
            return type(error).__name__

    options: dict[str, Any] = {"job_id": "x", "unique": "key", "delay": HOUR}
    await t.scheduler.enqueue(log.note, args=("x",), **options)
    await enqueue(t, place)
    await t.drain()
    assert await state(t) == WAITING
    if end == "cancelled":
        assert await t.scheduler.cancel_job("x")
    elif end == "replaced":
        replace = ConflictResolution.REPLACE
        await t.scheduler.enqueue(log.note, args=("new",), conflict_resolution=replace, **options)
    elif end == "deleted":
        await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'x'")
    await t.run_until(2 * HOUR)
    errors = {"cancelled": "JobCancelledError", "deleted": "JobNotFoundError"}
    assert await value_of(t) == (errors | {"completed": "x", "replaced": "new"})[end]


@pytest.mark.parametrize(
    ("unique", "sequence"),
    # Unique children without a sequence are inserted in the order of their keys.
    [(None, None), (None, lambda number: "account"), (Unique(args=("number",)), lambda number: "account")],
)
async def test_children_run_in_the_order_of_the_step(
    unique: Unique | None, sequence: Callable[..., str] | None, t: TestScheduler
) -> None:
    numbers: list[int] = []

    @job(name="children.numbered", sequence=sequence, unique=unique)
    async def add(number: int) -> None:
        numbers.append(number)

    async def book() -> None:
        await current_job().steps.gather(
            "bookings", [call(add, number) for number in (12, 2, 1, *range(3, 12))]
        )

    await enqueue(t, book)
    await t.drain()
    assert numbers == [12, 2, 1, *range(3, 12)]


async def test_unique_children_of_a_sequence_run_in_the_order_of_the_step_by_the_clock_of_the_database(
    pool: Pool,
) -> None:
    numbers: list[int] = []

    @job(name="children.numbered", sequence=lambda number: "account", unique=Unique(args=("number",)))
    async def add(number: int) -> None:
        numbers.append(number)

    async def book() -> None:
        await current_job().steps.gather("bookings", [call(add, number) for number in range(8)])

    async with Scheduler(pool) as scheduler:
        await scheduler.run_job(book, timeout=30)
    assert numbers == [*range(8)]


@pytest.mark.parametrize("calls", [(("unique", 2), ("unique", 1)), (("unique", 2), ("another", 2))])
async def test_children_with_the_same_unique_keys_are_inserted_in_one_order(
    calls: Sequence[tuple[str, int]], t: TestScheduler, pool: Pool
) -> None:
    async def unique(number: int) -> int:
        return number

    async def another(number: int) -> int:
        return number

    tasks = {
        each.__name__: job(
            name=f"children.{each.__name__}", unique=Unique(args=("number",)), keep_result=HOUR
        )(each)
        for each in (unique, another)
    }

    async def place() -> Any:
        return await current_job().steps.gather("docs", [call(tasks[name], number) for name, number in calls])

    # The key of a unique job has a hash of its arguments.
    keys: dict[str, tuple[str, int]] = {}
    for name, number in calls:
        job_id = await t.scheduler.enqueue(tasks[name], args=(number,))
        keys[await pool.fetchval("SELECT unique_key FROM scheduled_jobs WHERE job_id = $1", job_id)] = (
            name,
            number,
        )
    await pool.execute("DELETE FROM scheduled_jobs")
    (sooner, first_number), (later, last_number) = (keys[key] for key in sorted(keys))
    await enqueue(t, place)
    async with pool.acquire() as connection:
        async with connection.transaction():
            first = await t.scheduler.enqueue(tasks[sooner], args=(first_number,), connection=connection)
            placing = asyncio.create_task(t.run_one())
            await until_a_lock_is_awaited(pool)
            await connection.execute("SET LOCAL lock_timeout = '10ms'")
            child_id = await t.scheduler.enqueue(tasks[later], args=(last_number,), connection=connection)
            assert child_id != "job:docs:0"
        assert await placing
    await t.drain()
    assert await value_of(t) == [number for _, number in calls]
    assert await t.scheduler.get_job(first)


async def test_job_that_would_wait_for_itself_is_refused(t: TestScheduler, log: Log) -> None:
    async def place() -> None:
        steps = current_job().steps
        with pytest.raises(ValueError, match="job 'job' would wait for itself"):
            await steps.child("after", call(log.note, 1), after=["job"])
        with pytest.raises(ValueError, match="job 'job' would wait for itself"):
            await steps.child("unique", call(log.note, 1), unique="key")
        with pytest.raises(JobNotFoundError):
            await steps.child("unknown", call(log.note, 1), after=["unknown"])

    await enqueue(t, place, unique="key")
    await t.run_one()
    assert await value_of(t) is None
    assert await t.scheduler.get_job("job:after") is None


async def test_children_in_a_chain_of_jobs(t: TestScheduler, log: Log) -> None:
    async def nested(depth: int) -> Any:
        if depth == 0:
            return await log.note("end")
        return [depth, await current_job().steps.child("next", call(nested, depth - 1))]

    await enqueue(t, nested, args=(5,))
    await t.drain()
    assert await value_of(t) == [5, [4, [3, [2, [1, "end"]]]]]


async def test_results_of_children_are_none_of_predecessors(t: TestScheduler, log: Log) -> None:
    async def place() -> Any:
        label = await current_job().steps.child("label", call(log.note, "child"))
        return [label, [result.job_id async for result in current_job().predecessors()]]

    await t.scheduler.enqueue(log.note, args=("before",), job_id="before", keep_result=HOUR)
    await enqueue(t, place, after=["before"], pass_results=True)
    await t.run_until(MINUTE)
    assert await value_of(t) == ["child", ["before"]]


async def test_results_of_children_are_none_of_predecessors_after_a_retry_from_their_step(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> None:
        log.append([result.job_id async for result in current_job().predecessors()])
        await current_job().steps.child("label", call(log.note, "child"))

    await enqueue(t, place)
    await t.drain()
    await t.scheduler.retry_job("job", from_step="label")
    await t.drain()
    assert log == [[], "child", [], []]


async def test_job_that_waits_for_a_child_uses_no_limit_that_the_child_needs(t: TestScheduler) -> None:
    @job(name="children.limited", limits=[Limit("children.one", max_running=1)])
    async def limited(depth: int) -> int:
        return 1 + (await current_job().steps.child("next", call(limited, depth - 1)) if depth else 0)

    await enqueue(t, limited, args=(3,))
    await t.run_until(HOUR)
    assert await value_of(t) == 4


async def test_attempt_that_lost_its_job_inserts_no_child(t: TestScheduler, pool: Pool, log: Log) -> None:
    async def place() -> Any:
        await t.scheduler.cancel_job("job")
        await current_job().steps.child("label", call(log.note, 1))

    await enqueue(t, place)
    await t.run_one()
    assert await t.scheduler.get_job("job:label") is None
    assert await pool.fetchval("SELECT count(*) FROM scheduler_steps") == 0


async def test_child_within_the_function_of_a_step_is_refused(t: TestScheduler, log: Log) -> None:
    async def step() -> None:
        await current_job().steps.child("label", call(log.note, 1))

    async def place() -> None:
        with pytest.raises(RuntimeError, match="waits within the function of step 'outer'"):
            await current_job().steps.run("outer", step)

    await enqueue(t, place)
    await t.run_one()
    assert await value_of(t) is None


async def test_results_of_children_are_decoded_by_the_codec(pool: Pool, log: Log) -> None:
    async with TestScheduler(pool, now=START, codec=KeyedCodec("k1")) as t:

        async def place() -> Any:
            return await current_job().steps.child("label", call(log.note, "secret-4242"))

        await enqueue(t, place)
        await t.drain()
        rows = await pool.fetch("SELECT value::text FROM scheduler_steps")
        assert not any("4242" in row["value"] for row in rows)
        assert await value_of(t) == "secret-4242"


async def test_resumed_job_does_not_store_the_step_of_a_child_again_that_runs(
    t: TestScheduler, pool: Pool, log: Log
) -> None:
    async def place() -> Any:
        steps = current_job().steps
        children = [steps.child(f"{n}", call(log.slow, n, 3600 * n)) for n in (1, 2)]
        return await asyncio.gather(*children)

    version = "SELECT xmin::text, ctid FROM scheduler_steps WHERE name = '2'"
    await enqueue(t, place)
    await t.drain()
    before = await pool.fetchrow(version)
    await t.run_until(HOUR)
    assert (await state(t)) == (JobStatus.PENDING, "after", 2)
    assert await pool.fetchrow(version) == before
    await t.run_until(HOUR)
    assert await value_of(t) == [1, 2]


async def child_of_nodes(number: int) -> int:
    return 2 * number


async def parent_of_nodes() -> list[int]:
    return await current_job().steps.gather("all", [call(child_of_nodes, number) for number in range(20)])


async def test_job_and_children_of_a_running_worker_need_no_poll(make: Make) -> None:
    worker = make()
    worker.register(child_of_nodes, name="children.child")
    worker.register(parent_of_nodes, name="children.parent")
    seen = Recorder(worker)
    await worker.start()
    job_id = await worker.enqueue(parent_of_nodes, keep_result=HOUR)
    async with asyncio.timeout(PATIENCE):
        await seen.until(JobSuspended)
        await seen.until(JobCompleted, 21)
        result = await worker.get_job_result(job_id)
    assert result.unwrap() == [2 * number for number in range(20)]
    assert result.attempts == 2


# -- whose child a job is ------------------------------------------------------------------------------


async def error_of(t: TestScheduler, job_id: str = "job") -> str:
    job = await t.scheduler.get_job(job_id)
    assert job
    assert job.status is JobStatus.FAILED
    return str(job.error_message)


async def test_job_with_the_id_of_a_child_is_a_conflict_and_is_left(t: TestScheduler, log: Log) -> None:
    async def place() -> Any:
        return await current_job().steps.child("label", call(log.note, "label"))

    await t.scheduler.enqueue(log.note, args=("reminder",), job_id="job:label", delay=HOUR)
    await enqueue(t, place)
    await t.run_until(2 * HOUR)
    assert log == ["reminder"]
    error = await error_of(t)
    assert error.startswith(
        "JobConflictError: the child of step 'label' of job 'job' needs the job id 'job:label', "
        "which is taken by the job "
    )
    assert error.endswith(
        ".note' with status 'pending'; give the step another name, or delete that job and run this one again"
    )
    assert await t.scheduler.retry_job("job")
    await t.drain()
    assert "with status 'completed'" in await error_of(t), "its value is not that of the child either"


async def test_job_that_takes_the_id_of_a_child_between_two_steps_is_a_conflict(
    t: TestScheduler, log: Log
) -> None:
    async def place() -> Any:
        steps = current_job().steps
        await steps.child("first", call(log.note, 1))
        await t.scheduler.enqueue(log.note, args=("other",), job_id="job:second")
        return await steps.child("second", call(log.note, 2))

    await enqueue(t, place)
    await t.drain()
    assert "'job:second'" in await error_of(t)
    assert log == [1, "other"]


@pytest.mark.parametrize("runs", [False, True])
async def test_value_of_a_job_that_has_replaced_a_child_is_not_returned(
    t: TestScheduler, log: Log, runs: bool
) -> None:
    async def place() -> Any:
        return await current_job().steps.child("label", call(child))

    async def replace() -> None:
        await t.scheduler.enqueue(
            log.note,
            args=("other",),
            job_id="job:label",
            keep_result=HOUR,
            conflict_resolution=ConflictResolution.REPLACE,
        )

    async def child() -> None:
        await replace()

    await enqueue(t, place)
    assert await t.run_one()
    if not runs:
        await replace()
    await t.drain()
    assert log == ["other"]
    error = await error_of(t)
    assert "'job:label', which is taken by another job, which has replaced the child and ended" in error
    await t.scheduler.retry_job("job", from_step="label")
    await t.drain()
    assert "which is taken by the job" in await error_of(t)


async def test_two_children_with_one_id_are_two_jobs(t: TestScheduler, log: Log) -> None:
    """Within one job, and of two jobs whose ids and names of steps concatenate equally."""

    async def pages() -> Any:
        steps = current_job().steps
        found: list[Any] = [
            await steps.gather("page", [call(log.note, "first")]),
            await steps.child("page:0", call(log.note, "second")),
        ]
        if log.count("first") + log.count("second") == 2 and "again" not in log:
            log.append("again")
            raise ValueError("again")
        return found

    async def line() -> Any:
        return await current_job().steps.child("0", call(log.slow, "of the line", 60))

    async def order() -> Any:
        return await current_job().steps.gather("7", [call(log.slow, "of the order", 30)])

    await enqueue(t, pages)
    await enqueue(t, line, job_id="order:7")
    await enqueue(t, order, job_id="order")
    await t.run_until(HOUR)
    assert (await state(t))[0] is JobStatus.FAILED
    for step in ("page", "page:0"):
        await t.scheduler.retry_job("job", from_step=step)
        await t.run_until(HOUR)
        assert await value_of(t) == [["first"], "second"]
    assert await value_of(t, "order:7") == "of the line"
    assert await value_of(t, "order") == ["of the order"]
    assert sorted(log) == ["again", "first", "of the line", "of the order", "second"]


async def test_rows_and_results_of_two_children_with_one_id_stay_apart_when_the_rows_are_gone(
    t: TestScheduler, pool: Pool, log: Log
) -> None:
    async def pages() -> Any:
        steps = current_job().steps
        found: list[Any] = [await steps.gather("page", [call(log.note, "first")])]
        await steps.sleep("pause", HOUR)
        return [*found, await steps.child("page:0", call(log.note, "second"))]

    await enqueue(t, pages)
    await t.run_until(MINUTE)
    await pool.execute(
        "DELETE FROM scheduler_results; DELETE FROM scheduled_jobs WHERE job_id = 'job:page:0'"
    )
    await t.run_until(2 * HOUR)
    assert await value_of(t) == [["first"], "second"]
    await pool.execute("DELETE FROM scheduler_results WHERE job_id LIKE 'job:%'")
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id LIKE 'job:%'")
    await t.scheduler.retry_job("job", from_step="page:0")
    await t.run_until(HOUR)
    assert log == ["first", "second"]


async def test_two_jobs_that_insert_children_with_one_id_at_once_insert_two(
    make: Make, pool: Pool, log: Log
) -> None:
    async def parent(step: str, what: str) -> Any:
        return await current_job().steps.child(step, call(log.note, what))

    scheduler = make()
    scheduler.register(parent)
    scheduler.register(log.note)
    seen = Recorder(scheduler)
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await scheduler.start()
        await transaction.start()
        await connection.execute(
            "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, options) "
            "VALUES ($1, 'x', '3000-01-01', $2)",
            "a:b:c",
            '{"child_of": {"job": "a:b", "step": "c", "definition": "x"}}',
        )
        await scheduler.enqueue(parent, args=("b:c", "of a"), job_id="a", keep_result=HOUR)
        await until_a_lock_is_awaited(pool)
        await transaction.commit()
    await seen.until(JobCompleted, job_id="a")
    result = await scheduler.get_job_result("a", wait=False)
    assert result is not None
    assert result.value == "of a"


@pytest.mark.parametrize("end", ["cancel_job", "cancel_jobs", "status", "refused"])
async def test_child_whose_new_definition_is_dropped_ends_the_step_that_waits_for_it(
    make: Make, end: str
) -> None:
    """Its former attempt still runs, and the definition of that attempt is the child of another step."""
    worker, may_end = make(), asyncio.Event()
    seen = Recorder(worker)

    async def label(number: int) -> None:
        assert number == 1, "the new definition is dropped"
        await may_end.wait()

    async def place(number: int) -> str:
        try:
            await current_job().steps.child("label", call(label, number), unique=f"key {number}")
        except (JobCancelledError, JobFailedError) as error:
            return type(error).__name__
        return "completed"

    for function in (label, place):
        worker.register(function, name=function.__name__)
    await worker.start()
    replace = ConflictResolution.REPLACE
    for number in (1, 2):
        options: dict[str, Any] = {"job_id": "job", "conflict_resolution": replace, "keep_result": HOUR}
        await worker.enqueue("place", args=(number,), **options)
        await seen.until(JobSuspended, number)
        await seen.until(JobStarted, number + 1)
    match end:
        case "cancel_job":
            assert await worker.cancel_job("job:label")
        case "cancel_jobs":
            assert await worker.cancel_jobs(job_name="label")
        case "status":
            assert await worker.update_job_status("job:label", "failed")
        case "refused":
            await worker.enqueue("label", args=(3,), job_id="other", unique="key 2", delay=DAY)
    may_end.set()
    async with asyncio.timeout(PATIENCE):
        result = await worker.get_job_result("job")
    assert result.unwrap() == ("JobCancelledError" if end.startswith("cancel") else "JobFailedError")


@pytest.mark.parametrize("deletes", [False, True], ids=["kept", "deleted"])
@pytest.mark.parametrize("is_replaced", [False, True], ids=["no replacement", "replaced"])
async def test_child_that_ends_while_its_job_runs_on_runs_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, *, is_replaced: bool, deletes: bool
) -> None:
    """The replacement of the job has no steps yet, and the row of the child may be deleted at its end."""
    inside.replace(monkeypatch, wait_look_interval_s=0.05)
    policy = VacuumPolicy.immediate() if deletes else VacuumPolicy.never()
    worker = make(vacuum_config=VacuumConfig(completed=policy))
    seen = Recorder(worker)
    charges: list[int] = []
    child_may_end, may_end = asyncio.Event(), asyncio.Event()
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def charge() -> int:
        charges.append(1)
        await child_may_end.wait()
        return 7

    async def order(number: int) -> None:
        async def ask() -> None:
            answer.set_result(await current_job().steps.child("charge", call(charge)))

        if number == 1:
            await asyncio.gather(ask(), may_end.wait())

    for function in (charge, order):
        worker.register(function, name=function.__name__)
    await worker.start()
    await worker.enqueue("order", args=(1,), job_id="job")
    await seen.until(JobStarted, job_name="charge")
    if is_replaced:
        replace = ConflictResolution.REPLACE
        await worker.enqueue("order", args=(2,), job_id="job", conflict_resolution=replace)
    child_may_end.set()
    async with asyncio.timeout(PATIENCE):
        assert await answer == 7
    may_end.set()
    await seen.until(JobCompleted, 1 + is_replaced, job_name="order")
    assert charges == [1]


@pytest.mark.parametrize("step", [-HOUR, 0 * HOUR, HOUR], ids=["set back", "stands still", "goes on"])
async def test_definition_that_replaces_another_has_children_of_its_own_whatever_the_clock_says(
    t: TestScheduler, pool: Pool, log: Log, step: timedelta
) -> None:
    async def place(number: int) -> Any:
        return await current_job().steps.child("label", call(log.note, number))

    for number in range(3):
        replace = {"conflict_resolution": ConflictResolution.REPLACE}
        await enqueue(t, place, args=(number,), **replace)
        await t.drain()
        assert await value_of(t) == number
        await pool.execute("UPDATE scheduled_jobs SET created_at = created_at - $1::interval", step)
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'job'")
    await enqueue(t, place, args=(3,))
    await t.drain()
    assert await value_of(t) == 3
    assert log == [0, 1, 2, 3]


async def test_completed_child_is_not_repeated_whatever_the_clock_says(
    t: TestScheduler, pool: Pool, log: Log
) -> None:
    async def place() -> Any:
        steps = current_job().steps
        await steps.child("one", call(log.note, 1))
        await steps.child("two", call(log.note, 2))
        if log.count("later") == 0:
            log.append("later")
            raise ValueError("later")

    await enqueue(t, place)
    await t.drain()
    await pool.execute(
        "UPDATE scheduled_jobs SET created_at = created_at - interval '1 hour' WHERE job_id = 'job:two'"
    )
    await t.scheduler.retry_job("job", from_step="two")
    await t.drain()
    assert log == [1, 2, "later"]


async def test_child_of_a_former_definition_passes_no_result_to_the_new_one(
    t: TestScheduler, log: Log
) -> None:
    async def former() -> Any:
        return await current_job().steps.child("label", call(log.slow, "former", 60))

    async def reader() -> Any:
        steps = current_job().steps
        await steps.sleep("pause", 600)
        return [result.job_id async for result in current_job().predecessors()]

    await enqueue(t, former)
    await t.run_until(SECOND)
    await enqueue(t, reader, conflict_resolution=ConflictResolution.REPLACE)
    await t.run_until(HOUR)
    assert log == ["former"]
    assert await value_of(t) == []


async def test_edge_of_a_definition_that_waits_is_not_deleted_with_those_of_the_former_one(
    t: TestScheduler, log: Log
) -> None:
    """Both wait for the same job."""

    async def former() -> Any:
        await t.scheduler.enqueue(
            log.note,
            args=("new",),
            job_id="job",
            after=["shared"],
            after_outcome="ended",
            conflict_resolution=ConflictResolution.REPLACE,
        )
        return await current_job().steps.child("label", call(log.note, "x"), unique="shared")

    await t.scheduler.enqueue(log.slow, args=("shared", 60), job_id="shared", unique="shared")
    await enqueue(t, former)
    await t.run_until(30 * SECOND)
    assert await state(t) == (JobStatus.PENDING, "after", 1)
    assert log == []
    await t.run_until(HOUR)
    assert log == ["shared", "new"]


# -- children that an older release has inserted, without a mark ---------------------------------------


async def forget_definitions(pool: Pool) -> None:
    """Change the rows to those of a release without definitions."""
    await pool.execute("UPDATE scheduler_steps SET value = value - 'step' - 'is_child' WHERE kind = 'result'")
    await pool.execute(
        "UPDATE scheduler_steps SET definition = NULL; UPDATE scheduler_after SET definition = NULL"
    )
    await pool.execute("UPDATE scheduled_jobs SET options = options - 'definition' - 'child_of'")


async def test_child_of_an_older_release_is_adopted_if_the_job_has_its_result(
    t: TestScheduler, pool: Pool, log: Log
) -> None:
    async def once(number: int) -> int:
        return await fail_first(log, number)

    async def place() -> Any:
        return await current_job().steps.child("label", call(once, 7))

    await enqueue(t, place)
    await t.drain()
    assert (await state(t))[0] is JobStatus.FAILED
    await forget_definitions(pool)
    await t.scheduler.retry_job("job:label")
    await t.drain()
    await t.scheduler.retry_job("job", from_step="label")
    await t.drain()
    assert await value_of(t) == 7
    assert log == [7, 7]


async def test_child_of_an_older_release_that_runs_continues_its_parent(
    t: TestScheduler, pool: Pool, log: Log
) -> None:
    async def place() -> Any:
        return await current_job().steps.child("label", call(log.slow, 7, 60))

    await enqueue(t, place)
    await t.run_until(SECOND)
    await forget_definitions(pool)
    await t.run_until(HOUR)
    assert await value_of(t) == 7


async def test_child_of_an_older_release_is_a_conflict_for_another_definition(
    t: TestScheduler, pool: Pool, log: Log
) -> None:
    """It may be a job of the application."""

    async def place() -> Any:
        return await current_job().steps.child("label", call(log.note, 7))

    await enqueue(t, place)
    await t.drain()
    await forget_definitions(pool)
    await enqueue(t, place, conflict_resolution=ConflictResolution.REPLACE)
    await t.drain()
    assert "'job:label', which is taken by the job" in await error_of(t)
    assert log == [7]
