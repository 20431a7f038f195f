"""Several waits at once: the first of them, what runs beside them, and when the attempt is suspended."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    Child,
    DuplicateStepError,
    First,
    JobCall,
    JobFailedError,
    JobStatus,
    Sleep,
    Wait,
    call,
    current_job,
)
from pg_scheduler.events import JobCompleted, JobSuspended
from pg_scheduler.inspect import Inspector, ReasonCode
from pg_scheduler.sync import AttemptEnded, current_steps
from pg_scheduler.testing import TestScheduler
from tests.api.conftest import Make
from tests.support.worker import PATIENCE, Recorder

START = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NOW = timedelta(0)


async def pass_on(_call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
    return await call_next()


@pytest.fixture(params=[(), (pass_on,)], ids=["plain", "middleware"])
async def t(pool: asyncpg.Pool, request: pytest.FixtureRequest) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START, middleware=request.param) as scheduler:
        yield scheduler


async def enqueue(t: TestScheduler, func: Callable[..., Any], **options: Any) -> None:
    t.scheduler.register(func, name="several.job")  # a plain function runs in a thread then
    await t.scheduler.enqueue("several.job", job_id="job", keep_result=3650 * DAY, **options)


async def value_of(t: TestScheduler) -> Any:
    result = await t.scheduler.get_job_result("job", wait=False)
    assert result is not None, "the job has not ended"
    return result.unwrap()


async def state(t: TestScheduler) -> tuple[JobStatus, int]:
    job = await t.scheduler.get_job("job")
    assert job
    return job.status, job.attempt


async def answer() -> int:
    await current_job().steps.sleep("think", HOUR)
    return 42


async def fail() -> None:
    raise ValueError("no paper")


# -- first() ---------------------------------------------------------------------------------------------


def decide(seconds: int) -> tuple[str, Any]:
    """Wait in a thread for the first of three."""
    limit = Sleep("limit", seconds)
    return tuple(current_steps().first("decision", Wait("approved", int), Child("ask", call(answer)), limit))


async def decide_in_loop(seconds: int) -> tuple[str, Any]:
    steps, limit = current_job().steps, Sleep("limit", seconds)
    return tuple(await steps.first("decision", Wait("approved", int), Child("ask", call(answer)), limit))


@pytest.mark.parametrize("func", [decide, decide_in_loop])
@pytest.mark.parametrize("winner", ["approved", "ask", "limit"])
async def test_first_returns_the_wait_that_ends_first_and_its_value(
    t: TestScheduler, func: Callable[[], Any], winner: str
) -> None:
    await enqueue(t, func, args=(1800 if winner == "limit" else 7200,))
    await t.run_until(NOW)
    assert (await state(t))[0] is JobStatus.PENDING
    if winner == "approved":
        assert await t.scheduler.signal("job", "approved", 7)
    await t.run_until(3 * HOUR)
    assert await value_of(t) == [winner, {"approved": 7, "ask": 42, "limit": None}[winner]]
    assert (await state(t))[1] == 2


async def test_winner_of_first_stays_the_same_when_another_wait_ends_later(t: TestScheduler) -> None:
    seen: list[First] = []

    async def place() -> None:
        steps = current_job().steps
        waits = Wait("withdrawn"), Wait("approved"), Sleep("limit", DAY)
        seen.append(await steps.first("decision", *waits))
        await steps.sleep("rest", 2 * DAY)
        if len(seen) < 3:
            t.crash()

    await enqueue(t, place)
    await t.run_until(NOW)
    assert await t.scheduler.signal("job", "approved", 1)
    await t.run_until(HOUR)
    assert await t.scheduler.signal("job", "withdrawn", 2)
    await t.run_until(3 * DAY)
    assert await value_of(t) is None
    assert seen == [First("approved", 1)] * 3


async def test_first_of_several_that_have_ended_is_the_first_argument(t: TestScheduler) -> None:
    async def place() -> Any:
        steps = current_job().steps
        early = await steps.first("a", Sleep("now", 0), Wait("approved"))
        later = await steps.first("b", Wait("approved"), Sleep("now too", 0))
        return [early.name, later.name]

    await enqueue(t, place)
    await t.scheduler.signal("job", "approved")
    await t.run_until(NOW)
    assert await value_of(t) == ["now", "approved"]


async def test_job_waits_again_for_what_did_not_win(t: TestScheduler) -> None:
    """The reminders of an approval: the signal may come at any time, also while a reminder is sent."""
    reminders: list[timedelta] = []

    async def remind() -> None:
        reminders.append(t.now - START)
        if len(reminders) == 2:
            assert await t.scheduler.signal("job", "approved", "ann")

    async def place() -> Any:
        steps, expired = current_job().steps, Sleep("expired", 30 * DAY)
        for number in range(100):
            again = Sleep(f"again-{number}", 3 * DAY)
            winner = await steps.first(f"answer-{number}", Wait("approved"), expired, again)
            if winner.name != again.name:
                return winner
            await steps.run(f"remind-{number}", remind)
        return None

    await enqueue(t, place)
    await t.run_until(100 * DAY)
    assert await value_of(t) == ["approved", "ann"]
    assert reminders == [3 * DAY, 6 * DAY]


async def test_first_raises_the_error_of_a_child_that_wins(t: TestScheduler) -> None:
    async def place() -> None:
        await current_job().steps.first("a", Child("print", call(fail), {"max_retries": 0}), Wait("b"))

    await enqueue(t, place)
    await t.run_until(HOUR)
    with pytest.raises(JobFailedError, match="no paper"):
        await value_of(t)


async def test_invalid_waits_of_first_are_refused(t: TestScheduler) -> None:
    async def place() -> None:
        steps: Any = current_job().steps
        with pytest.raises(TypeError, match=r"needs Wait, Sleep and Child objects, not 'approved'"):
            await steps.first("a", "approved")
        with pytest.raises(ValueError, match="at least one"):
            await steps.first("a")
        with pytest.raises(ValueError, match="must not be empty"):
            await steps.first("a", Wait(""))
        with pytest.raises(DuplicateStepError, match="two waits named 'b'"):
            await steps.first("a", Wait("b"), Sleep("b", 1))
        with pytest.raises(TypeError, match="has no end; pass a delay or until="):
            await steps.first("a", Sleep("b"))
        with pytest.raises(DuplicateStepError, match="step 'a' occurs twice"):
            await steps.first("a", Sleep("a", 0))
        await steps.first("a", Wait("c"), Sleep("b", 0))
        for again in (steps.first("a", Wait("d")), steps.first("d", Sleep("b", 0)), steps.sleep("b", 0)):
            with pytest.raises(DuplicateStepError):
                await again
        with pytest.raises(TimeoutError):
            await steps.wait("c", timeout=0.01)

    await enqueue(t, place)
    await t.run_until(DAY)
    await value_of(t)


async def test_winner_that_the_code_does_not_wait_for_any_more_fails_the_job(t: TestScheduler) -> None:
    async def place() -> None:
        me = current_job()
        await me.steps.first("a", Sleep("b" if me.attempt == 1 else "c", 0))
        raise ValueError

    await enqueue(t, place, max_retries=5)
    await t.run_until(DAY)
    with pytest.raises(JobFailedError, match=r"the stored winner of step 'a', 'b', is none of its waits"):
        await value_of(t)


# -- a wait again ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_thread", [False, True])
async def test_wait_is_repeated_after_its_timeout_under_the_same_name(
    t: TestScheduler, in_thread: bool
) -> None:
    seen: list[Any] = []

    def note(error: TimeoutError) -> None:
        seen.append(str(error).rpartition(" until ")[2][:10])

    async def place() -> Any:
        for days in (3, 4):
            try:
                return await current_job().steps.wait("approved", timeout=days * DAY)
            except TimeoutError as error:
                note(error)
        return await current_job().steps.wait("approved")

    def place_in_thread() -> Any:
        for days in (3, 4):
            try:
                return current_steps().wait("approved", timeout=days * DAY)
            except TimeoutError as error:
                note(error)
        return current_steps().wait("approved")

    await enqueue(t, place_in_thread if in_thread else place)
    await t.run_until(8 * DAY)
    assert seen == ["2030-01-04", "2030-01-04", "2030-01-08"]
    assert (await state(t)) == (JobStatus.PENDING, 3)
    assert await t.scheduler.signal("job", "approved", "ann")
    await t.run_until(NOW)
    assert await value_of(t) == "ann"
    assert seen[3:] == ["2030-01-04", "2030-01-08"]


async def test_retry_from_a_step_before_repeated_waits_gets_the_signal_at_the_first(t: TestScheduler) -> None:
    seen: list[str] = []

    async def place() -> None:
        steps = current_job().steps
        await steps.run("begin", answer_at_once)
        for _ in range(2):
            try:
                seen.append(await steps.wait("approved", timeout=DAY))
                break
            except TimeoutError:
                seen.append("timeout")
        raise ValueError

    await enqueue(t, place, max_retries=0)
    await t.run_until(DAY)
    await t.scheduler.signal("job", "approved", "ann")
    await t.run_until(HOUR)
    assert await t.scheduler.retry_job("job", from_step="begin")
    await t.run_until(HOUR)
    assert seen == ["timeout", "timeout", "ann", "ann"]


async def answer_at_once() -> int:
    return 42


# -- work beside a wait ----------------------------------------------------------------------------------


async def test_loop_is_stopped_by_a_signal_within_its_attempt(make: Make) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    pages: list[int] = []

    async def crawl() -> int:
        steps = current_job().steps
        stop = asyncio.create_task(steps.wait("stop", kind=str))
        while not stop.done():
            pages.append(len(pages))
            await asyncio.sleep(0.01)  # work beside the wait
            if len(pages) == 3:
                assert await current_job().scheduler.signal("job", "stop", "now")
        assert await stop == "now"
        return current_job().attempt

    scheduler.register(crawl, name="crawl")
    await scheduler.start()
    await scheduler.enqueue("crawl", job_id="job", keep_result=HOUR)
    await seen.until(JobCompleted)
    result = await scheduler.get_job_result("job", wait=False)
    assert result
    assert result.unwrap() == 1
    assert not seen.of(JobSuspended)
    assert len(pages) > 3


async def test_end_of_a_sleep_a_signal_and_a_child_reaches_an_attempt_that_works(make: Make) -> None:
    scheduler = make()

    async def quick() -> int:
        return 7

    async def place() -> list[Any]:
        steps = current_job().steps
        others = [
            asyncio.create_task(steps.wait("approved")),
            asyncio.create_task(steps.sleep("rest", 0.05)),
            asyncio.create_task(steps.child("quick", call(quick))),
            asyncio.create_task(steps.first("first", Wait("never"), Sleep("limit", 0.05))),
        ]
        assert await current_job().scheduler.signal("job", "approved", 1)
        work = asyncio.create_task(asyncio.Event().wait())
        values = await asyncio.gather(*others)
        work.cancel()
        return [current_job().attempt, *values]

    for func in (quick, place):
        scheduler.register(func, name=func.__name__)
    await scheduler.start()
    await scheduler.enqueue("place", job_id="job", keep_result=HOUR)
    result = await scheduler.get_job_result("job", timeout=PATIENCE)
    assert result.unwrap() == [1, 1, None, 7, ["limit", None]]


class Limit:
    """A class of an application around ``asyncio.timeout()``."""

    def __init__(self, seconds: float) -> None:
        self.timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self.timeout.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self.timeout.__aexit__(*error)


@pytest.mark.parametrize("kind", ["wait", "child"])
@pytest.mark.parametrize("make_limit", [asyncio.timeout, Limit])
async def test_timeout_that_an_exit_stack_holds_ends_a_wait(
    t: TestScheduler, make_limit: Callable[[float], Any], kind: str
) -> None:
    async def place() -> str:
        steps = current_job().steps
        with suppress(TimeoutError):
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(make_limit(0.2))
                return str(await (steps.child("a", call(answer)) if kind == "child" else steps.wait("a")))
        return "timed out"

    await enqueue(t, place)
    await t.run_until(NOW)
    assert await value_of(t) == "timed out"


async def test_timeout_around_a_wait_frees_its_name(t: TestScheduler) -> None:
    timeouts: list[int] = []

    async def place() -> str:
        me = current_job()
        try:
            async with asyncio.timeout(0.02 if me.attempt == 1 else PATIENCE):
                return str(await me.steps.wait("approved", kind=str))
        except TimeoutError:
            timeouts.append(me.attempt)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(me.steps.first("either", Wait("approved"), Sleep("rest", DAY)), 0.02)
        cancelled = asyncio.create_task(me.steps.wait("approved"))
        await asyncio.sleep(0.01)  # it begins to wait
        cancelled.cancel()
        return str(await me.steps.wait("approved", kind=str))

    await enqueue(t, place)
    await t.run_until(NOW)
    assert await state(t) == (JobStatus.PENDING, 1)
    await t.scheduler.signal("job", "approved", "ann")
    await t.run_until(NOW)
    assert await value_of(t) == "ann"
    assert timeouts == [1]


@pytest.mark.parametrize("begins_again", [False, True])
async def test_timeout_of_a_wait_after_a_cancelled_one_begins_once(
    t: TestScheduler, begins_again: bool
) -> None:
    async def place() -> list[str]:
        wait, outcomes = current_job().steps.wait, []
        for timeout in (None, HOUR, None, HOUR)[: 4 if begins_again else 2]:
            try:
                async with asyncio.timeout(0.02 if timeout is None else None):
                    outcomes.append(await wait("approved", timeout=timeout))
            except TimeoutError:
                outcomes.append("cancelled" if timeout is None else "timed out")
        return outcomes

    await enqueue(t, place)
    await t.run_until(3 * HOUR)
    assert await value_of(t) == ["cancelled", "timed out"] * (2 if begins_again else 1)
    assert (await state(t))[1] <= 4


async def test_wait_without_a_timeout_after_a_cancelled_one_gets_its_signal(t: TestScheduler) -> None:
    async def place() -> str:
        wait = current_job().steps.wait
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                return str(await wait("approved", timeout=HOUR))
        return str(await wait("approved", kind=str))

    await enqueue(t, place)
    await t.run_until(2 * HOUR)
    assert await t.scheduler.signal("job", "approved", "ann")
    await t.run_until(NOW)
    assert await value_of(t) == "ann"


async def test_code_after_one_of_two_waits_is_not_cancelled(t: TestScheduler, pool: asyncpg.Pool) -> None:
    """Neither completing() nor other calls of the library are, while the other wait lasts."""
    await pool.execute("CREATE TABLE effects (attempt integer)")

    async def place() -> None:
        me = current_job()
        waits = [asyncio.create_task(me.steps.wait(name)) for name in ("approved", "withdrawn")]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.05)  # work beside the other wait
        await me.scheduler.enqueue(answer_at_once, job_id="next")
        async with me.completing() as connection:
            await connection.execute("INSERT INTO effects VALUES ($1)", me.attempt)

    await enqueue(t, place)
    await t.run_until(NOW)
    assert await t.scheduler.signal("job", "withdrawn")
    await t.run_until(NOW)
    assert (await state(t)) == (JobStatus.COMPLETED, 2)
    assert [row["attempt"] for row in await pool.fetch("SELECT * FROM effects")] == [2]
    assert await t.scheduler.get_job("next")


async def test_branch_that_works_delays_the_suspension_and_its_end_allows_it(t: TestScheduler) -> None:
    log: list[str] = []

    async def place() -> None:
        async def branch() -> None:
            await asyncio.sleep(0.05)  # the work
            log.append("worked")

        await asyncio.gather(current_job().steps.sleep("rest", DAY), branch())

    await enqueue(t, place)
    await t.run_until(NOW)
    assert log == ["worked"]
    assert await state(t) == (JobStatus.PENDING, 1)


async def quick() -> int:
    return 7


async def wait_for_quick_in_memory() -> int:
    async with asyncio.timeout(PATIENCE):
        return await current_job().steps.child("quick", call(quick))


def wait_for_quick_in_a_thread() -> int:
    """The end of join() with a timeout is not known, so it counts as work."""
    steps, seen = current_steps(), list[int]()

    def wait() -> None:
        with suppress(AttemptEnded):
            seen.append(steps.child("quick", call(quick)))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(PATIENCE)
    return sum(seen)


async def wait_for_quick() -> int:
    return await current_job().steps.child("quick", call(quick))


@pytest.mark.parametrize("place", [wait_for_quick_in_memory, wait_for_quick_in_a_thread, wait_for_quick])
async def test_slots_that_all_have_jobs_which_wait_for_children_in_memory_are_named(
    make: Make, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, place: Callable[[], Any]
) -> None:
    scheduler = make(max_concurrent_jobs=2)
    inspector = Inspector(scheduler)
    for func in (quick, place):
        scheduler.register(func, name=func.__name__)

    def warnings() -> list[str]:
        return [text for text in caplog.messages if "wait for children in memory" in text]

    with caplog.at_level(logging.WARNING, "pg_scheduler"):
        await scheduler.start()
        for job_id in ("a", "b"):
            await scheduler.enqueue(place, job_id=job_id, keep_result=HOUR)
        if place is not wait_for_quick:
            children = "SELECT count(*) FROM scheduled_jobs WHERE job_name = 'quick'"
            while await pool.fetchval(children) < 2:  # noqa: ASYNC110 - the jobs insert them
                await asyncio.sleep(0.01)
            explanation = await inspector.explain_job("b:quick")
            assert [reason.code for reason in explanation.reasons] == [ReasonCode.SLOTS_FULL]
            assert explanation.reasons[0].text.startswith(
                "2 of 2 slots of 1 worker in use, 2 of them by jobs that wait for children in memory, "
                "among them the one that waits for this job; "
            )
            while not warnings():  # noqa: ASYNC110 - the worker logs it
                await asyncio.sleep(0.01)
            assert await scheduler.cancel_job("a")
        result = await scheduler.get_job_result("b", timeout=PATIENCE)
        assert result.unwrap() == 7
    if place is wait_for_quick:
        assert warnings() == []
    else:
        (warning,) = warnings()
        assert "have all slots of this worker (2), such as " in warning


async def test_slot_of_a_job_that_waits_for_no_child_any_more_is_no_such_slot(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """One after the other, two jobs wait in memory on a worker with two slots."""
    scheduler = make(max_concurrent_jobs=2)
    numbers: list[int] = []

    async def slow() -> None:
        await asyncio.sleep(1.5)

    async def place() -> None:
        async with asyncio.timeout(PATIENCE):
            await current_job().steps.child("slow", call(slow))
        numbers.append(current_job().attempt)

    for func in (slow, place):
        scheduler.register(func, name=func.__name__)
    await scheduler.start()
    with caplog.at_level(logging.WARNING, "pg_scheduler"):
        for job_id in ("a", "b"):
            await scheduler.enqueue("place", job_id=job_id, keep_result=HOUR)
            (await scheduler.get_job_result(job_id, timeout=PATIENCE)).unwrap()
    assert numbers == [1, 1], "they were not suspended"
    assert not [text for text in caplog.messages if "wait for children in memory" in text]


async def test_function_that_waits_beside_a_task_is_suspended_at_its_timeout_with_a_warning(
    t: TestScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    beats: list[asyncio.Task[None]] = []

    async def beat() -> None:
        await asyncio.Event().wait()

    async def place() -> str:
        if not beats:
            beats.append(asyncio.create_task(beat(), name="heartbeat"))
        return str(await current_job().steps.wait("approved", kind=str))

    with caplog.at_level(logging.WARNING, "pg_scheduler"):
        await enqueue(t, place, timeout=0.1, max_retries=0)
        await t.run_until(NOW)
    assert await state(t) == (JobStatus.PENDING, 1)
    (record,) = [entry for entry in caplog.records if "suspended at its timeout" in entry.getMessage()]
    assert "'heartbeat' at" in record.getMessage()
    assert not beats[0].done()
    beats[0].cancel()
    await t.scheduler.signal("job", "approved", "ann")
    await t.run_until(NOW)
    assert await value_of(t) == "ann"


async def test_attempt_that_works_beside_a_wait_ends_at_its_timeout(t: TestScheduler) -> None:
    async def place() -> None:
        await asyncio.gather(current_job().steps.wait("approved"), asyncio.Event().wait())

    await enqueue(t, place, timeout=0.1, max_retries=0)
    await t.run_until(NOW)
    with pytest.raises(JobFailedError, match="ran longer than its timeout"):
        await value_of(t)


# -- threads ---------------------------------------------------------------------------------------------


async def test_thread_that_works_between_steps_delays_the_suspension(t: TestScheduler) -> None:
    log: list[str] = []
    go, begun = threading.Event(), threading.Event()

    def place() -> None:
        steps = current_steps()

        def work() -> None:
            steps.run("a", lambda: None)
            begun.set()
            go.wait(PATIENCE)
            log.append("worked")
            steps.run("b", lambda: log.append("stored"))

        thread = threading.Thread(target=copy_context().run, args=(work,))
        thread.start()
        begun.wait(PATIENCE)
        threading.Timer(0.05, go.set).start()
        steps.sleep("rest", DAY)
        thread.join()

    await enqueue(t, place)
    await t.run_until(NOW)
    assert log == ["worked", "stored"]
    assert await state(t) == (JobStatus.PENDING, 1)


async def test_job_is_suspended_whose_thread_joins_threads_that_wait(t: TestScheduler) -> None:
    values: list[Any] = []

    def place() -> list[Any]:
        steps = current_steps()

        def wait(name: str) -> None:
            with suppress(AttemptEnded):
                values.append(steps.wait(name))

        threads = [threading.Thread(target=copy_context().run, args=(wait, name)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return values

    await enqueue(t, place)
    await t.run_until(NOW)
    assert await state(t) == (JobStatus.PENDING, 1)
    for name in "ab":
        assert await t.scheduler.signal("job", name, name)
    values.clear()
    await t.run_until(NOW)
    assert sorted(await value_of(t)) == ["a", "b"]


async def test_thread_gets_the_end_of_a_wait_beside_its_work(make: Make) -> None:
    scheduler = make()
    seen = Recorder(scheduler)

    def place() -> int:
        steps, got = current_steps(), threading.Event()

        def wait() -> None:
            assert steps.wait("stop") == 1
            got.set()

        thread = threading.Thread(target=copy_context().run, args=(wait,))
        thread.start()
        current_job().scheduler.signal("job", "stop", 1)  # type: ignore[unused-coroutine]
        assert got.wait(PATIENCE)
        thread.join()
        return current_job().attempt

    scheduler.register(place, name="place")
    await scheduler.start()
    await scheduler.enqueue("place", job_id="job", keep_result=HOUR)
    await seen.until(JobCompleted)
    result = await scheduler.get_job_result("job", wait=False)
    assert result
    assert result.unwrap() == 1


async def test_job_whose_child_ended_after_its_cancellation_continues_when_it_is_set_to_pending(
    t: TestScheduler,
) -> None:
    """It was suspended until the end of its sleep, and its child has woken no cancelled job."""

    async def answer() -> int:
        return 7

    async def place() -> Any:
        child = Child("ask", call(answer), {"delay": HOUR})
        return (await current_job().steps.first("answer", child, Sleep("limit", 30 * DAY))).value

    await enqueue(t, place)
    await t.run_until(NOW)
    assert await t.scheduler.cancel_job("job")
    await t.run_until(2 * HOUR)
    assert await t.scheduler.update_job_status("job", "pending")
    await t.run_until(3 * HOUR)
    assert await value_of(t) == 7
