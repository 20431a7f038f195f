"""pass_results=: jobs that read the results of those after which they run, through the public methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    ConflictResolution,
    JobEndedError,
    JobFailedError,
    JobResult,
    JobSpec,
    JobStatus,
    NotRunningError,
    ResultUnavailableError,
    Scheduler,
    call,
    current_job,
)
from pg_scheduler.sync import SyncScheduler, current_steps
from pg_scheduler.testing import TestScheduler, job_context
from tests.api.conftest import Make
from tests.store.test_steps import until_a_lock_is_awaited
from tests.support.codecs import KeyedCodec
from tests.support.executors import InThread
from tests.support.inside import load_query
from tests.support.statements import Statements
from tests.support.transactions import KINDS, application, settled
from tests.support.worker import PATIENCE, now

RAISE, IGNORE, REPLACE = ConflictResolution
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


async def number(value: int) -> int:
    return value


async def fail() -> None:
    raise ValueError("no paper")


async def collect() -> list[list[Any]]:
    """Return what the predecessors returned, with their ids and statuses."""
    return [
        [result.job_id, result.status.value, result.value] async for result in current_job().predecessors()
    ]


@pytest.fixture
async def t(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool) as kit:
        yield kit


@asynccontextmanager
async def recorded(dsn: str, sent: Statements) -> AsyncIterator[TestScheduler]:
    """Yield a TestScheduler whose statements are recorded."""
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=5, init=sent.listen) as pool,
        TestScheduler(pool) as t,
    ):
        yield t


async def collected(scheduler: Scheduler, job_id: str) -> Any:
    result = await scheduler.get_job_result(job_id, wait=False)
    assert result is not None
    return result.unwrap()


async def test_result_kept_for_a_second_is_read_a_day_later(t: TestScheduler, pool: asyncpg.Pool) -> None:
    first = await t.scheduler.enqueue(number, args=(7,), keep_result=SECOND, job_id="first")
    last = await t.scheduler.enqueue(number, args=(8,), keep_result=SECOND, job_id="last", delay=DAY)
    reader = await t.scheduler.enqueue(collect, after=[last, first], pass_results=True, keep_result=DAY)
    await t.run_until(DAY + HOUR)
    await pool.execute("DELETE FROM scheduler_results WHERE job_id = ANY ($1)", [first, last])
    assert await collected(t.scheduler, reader) == [["first", "completed", 7], ["last", "completed", 8]]
    assert await t.scheduler.retry_job(reader)
    await t.drain()
    assert await collected(t.scheduler, reader) == [["first", "completed", 7], ["last", "completed", 8]]


async def test_predecessor_that_is_named_twice_counts_once(t: TestScheduler) -> None:
    ended = await t.scheduler.enqueue(number, args=(7,), keep_result=DAY, job_id="ended")
    await t.drain()
    waiting = await t.scheduler.enqueue(number, args=(8,), keep_result=DAY, job_id="waiting", delay=HOUR)
    reader = await t.scheduler.enqueue(
        collect, after=[ended, waiting, ended, waiting], pass_results=True, keep_result=DAY
    )
    await t.run_until(DAY)
    assert await collected(t.scheduler, reader) == [["ended", "completed", 7], ["waiting", "completed", 8]]


async def test_job_whose_edge_is_committed_while_an_end_waits_for_a_lock_gets_the_result(
    t: TestScheduler, pool: asyncpg.Pool
) -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def finish() -> None:
        async with current_job().completing():
            current_job().set_result(7)
            has_begun.set()
            await may_end.wait()

    await t.scheduler.enqueue(finish, keep_result=DAY, job_id="first")
    after: dict[str, Any] = {"after": ["first"], "pass_results": True, "keep_result": DAY}
    await t.scheduler.enqueue(collect, job_id="locked", **after)
    draining = asyncio.create_task(t.drain())
    async with asyncio.timeout(PATIENCE), pool.acquire() as connection:
        await has_begun.wait()
        async with connection.transaction():
            await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = 'locked' FOR UPDATE")
            await t.scheduler.enqueue(collect, job_id="new", connection=connection, **after)
            may_end.set()
            await until_a_lock_is_awaited(pool)
        await draining
    for reader in ("locked", "new"):
        assert await collected(t.scheduler, reader) == [["first", "completed", 7]]


async def test_each_end_is_passed_as_it_is(t: TestScheduler) -> None:
    expiring = await t.scheduler.schedule(
        number, execution_time=t.now - HOUR, args=(1,), misfire_grace_time=1, keep_result=SECOND, job_id="a"
    )
    cancelled = await t.scheduler.enqueue(number, args=(2,), keep_result=SECOND, job_id="b", delay=DAY)
    failing = await t.scheduler.enqueue(fail, keep_result=SECOND, job_id="c")
    completing = await t.scheduler.enqueue(number, args=(4,), keep_result=SECOND, job_id="d")

    async def describe() -> list[str]:
        found: list[str] = []
        async for result in current_job().predecessors():
            try:
                found.append(f"{result.job_id} {result.unwrap(int)}")
            except JobEndedError as error:
                found.append(f"{type(error).__name__}: {error}")
        return found

    reader = await t.scheduler.enqueue(
        describe,
        after=[failing, expiring, completing, cancelled],
        after_outcome="ended",
        pass_results=True,
        keep_result=DAY,
    )
    await t.drain()
    await t.scheduler.cancel_job(cancelled)
    await t.drain()
    found = await collected(t.scheduler, reader)
    assert found[0].startswith("JobExpiredError: job 'a' expired: not started between")
    assert found[1].startswith("JobCancelledError: job 'b' cancelled: cancelled by ")
    assert found[2:] == ["JobFailedError: job 'c' failed: ValueError: no paper", "d 4"]


@pytest.mark.parametrize("end", ["completed", "failed", "expired", "cancelled"])
async def test_last_predecessor_is_passed_as_it_ended(t: TestScheduler, end: str) -> None:
    """Its result exists when its end lets the job begin."""
    first = await t.scheduler.enqueue(number, args=(1,), keep_result=SECOND, job_id="a")
    last = await t.scheduler.enqueue(
        fail if end == "failed" else number,
        args=() if end == "failed" else (2,),
        keep_result=SECOND,
        job_id="b",
        delay=HOUR,
        misfire_grace_time=1,
    )
    reader = await t.scheduler.enqueue(
        collect, after=[first, last], after_outcome="ended", pass_results=True, keep_result=DAY
    )
    await t.drain()
    assert await t.scheduler.get_job_result(reader, wait=False) is None, "it waits for the last one"
    if end == "cancelled":
        assert await t.scheduler.cancel_job(last)
    elif end == "expired":
        t.advance(2 * HOUR)
    await t.run_until(HOUR)
    value = 2 if end == "completed" else None
    assert await collected(t.scheduler, reader) == [["a", "completed", 1], ["b", end, value]]


async def test_job_cancelled_because_one_failed_has_the_results_when_it_is_retried(t: TestScheduler) -> None:
    ids = [
        await t.scheduler.enqueue(number, args=(1,), keep_result=SECOND, job_id="a"),
        await t.scheduler.enqueue(fail, keep_result=SECOND, job_id="b"),
    ]
    reader = await t.scheduler.enqueue(collect, after=ids, pass_results=True, keep_result=DAY)
    await t.drain()
    job = await t.scheduler.get_job(reader)
    assert job is not None
    assert job.status is JobStatus.CANCELLED
    await t.scheduler.retry_job(reader)
    await t.drain()
    assert await collected(t.scheduler, reader) == [["a", "completed", 1], ["b", "failed", None]]


async def test_cancelled_job_leaves_its_predecessors_and_has_their_results_when_it_is_retried(
    t: TestScheduler,
) -> None:
    first = await t.scheduler.enqueue(number, args=(7,), keep_result=SECOND, job_id="a", delay=HOUR)
    reader = await t.scheduler.enqueue(collect, after=[first], pass_results=True, keep_result=DAY)
    assert await t.scheduler.cancel_job(reader)
    await t.run_until(2 * HOUR)
    job = await t.scheduler.get_job(reader)
    assert job is not None
    assert job.status is JobStatus.CANCELLED
    assert await t.scheduler.retry_job(reader)
    await t.drain()
    assert await collected(t.scheduler, reader) == [["a", "completed", 7]]


async def test_each_attempt_reads_the_same_results(t: TestScheduler) -> None:
    """The predecessor runs again meanwhile, with another result; an attempt fails, and a worker dies."""
    values, seen = [7, 8], list[Any]()

    async def next_value() -> int:
        return values.pop(0)

    async def read() -> None:
        seen.append(await collect())
        if current_job().attempt == 1:
            assert await current_job().scheduler.retry_job(first)
            raise ValueError
        if current_job().attempt == 2:
            t.crash()

    first = await t.scheduler.enqueue(next_value, keep_result=DAY, job_id="a")
    await t.scheduler.enqueue(read, after=[first], pass_results=True, max_retries=1)
    await t.run_until(HOUR)
    assert await collected(t.scheduler, first) == 8
    assert seen == [[["a", "completed", 7]]] * 3


async def test_results_live_as_long_as_the_row_of_the_job_that_reads_them(
    t: TestScheduler, pool: asyncpg.Pool
) -> None:
    first = await t.scheduler.enqueue(number, args=(7,), keep_result=SECOND, job_id="a")
    reader = await t.scheduler.enqueue(
        collect, after=[first], pass_results=True, keep_result=DAY, delay=30 * DAY
    )
    await t.run_until(30 * DAY)
    assert await t.scheduler.get_job(first) is None, "the vacuum has deleted its row"
    assert await collected(t.scheduler, reader) == [["a", "completed", 7]]
    await t.run_until(30 * DAY)
    assert await t.scheduler.get_job(reader) is None
    assert await pool.fetch("SELECT FROM scheduler_steps") == []


async def test_results_of_many_come_in_the_order_of_the_calls_a_hundred_a_statement(
    dsn: str,
) -> None:
    sent = Statements()
    async with recorded(dsn, sent) as t:
        specs = [JobSpec(number, t.now, (each,), keep_result=SECOND) for each in range(250)]
        ids = await t.scheduler.schedule_bulk(specs)
        reader = await t.scheduler.enqueue(collect, after=ids, pass_results=True, keep_result=DAY)
        await t.drain()
        expected = [[job_id, "completed", each] for each, job_id in enumerate(ids)]
        assert await collected(t.scheduler, reader) == expected
        named = (await sent.take()).named
    assert (named["passed_names"], named["passed_results"]) == (1, 3)


async def test_results_of_many_children_are_read_a_hundred_a_statement(dsn: str) -> None:
    sent = Statements()
    async with recorded(dsn, sent) as t:

        async def place() -> Any:
            return await current_job().steps.gather("all", [call(number, each) for each in range(250)])

        reader = await t.scheduler.enqueue(place, keep_result=DAY)
        await t.drain()
        result = await t.scheduler.get_job_result(reader, wait=False)
        assert result is not None
        assert result.unwrap() == list(range(250))
        named = (await sent.take()).named
    assert named["passed_results"] == 3


async def test_completion_in_a_transaction_passes_its_result_in_the_same_commit(
    t: TestScheduler, pool: asyncpg.Pool
) -> None:
    async def charge() -> None:
        async with current_job().completing() as connection:
            current_job().set_result({"charged": 5})
            await connection.execute("SELECT 1")

    first = await t.scheduler.enqueue(charge, keep_result=SECOND, job_id="charge")
    reader = await t.scheduler.enqueue(collect, after=[first], pass_results=True, keep_result=DAY)
    await t.drain()
    assert await collected(t.scheduler, reader) == [["charge", "completed", {"charged": 5}]]


async def test_encoded_results_are_decoded(pool: asyncpg.Pool) -> None:
    async with TestScheduler(pool, codec=KeyedCodec("k1")) as t:
        first = await t.scheduler.enqueue(number, args=(424242,), keep_result=SECOND, job_id="a")
        reader = await t.scheduler.enqueue(collect, after=[first], pass_results=True, keep_result=DAY)
        await t.drain()
        assert await collected(t.scheduler, reader) == [["a", "completed", 424242]]
        stored = await pool.fetchval("SELECT value::text FROM scheduler_steps")
        assert "424242" not in stored


async def test_steps_and_results_of_a_job_do_not_meet(t: TestScheduler) -> None:
    """A signal, a step and a suspension come between, and each attempt reads the same results."""
    seen: list[Any] = []

    async def work() -> None:
        steps = current_job().steps
        seen.append(await collect())
        await steps.run("result:a", number, 1)
        await steps.sleep("pause", HOUR)
        seen.append(await steps.wait("go"))

    first = await t.scheduler.enqueue(number, args=(7,), keep_result=SECOND, job_id="a")
    reader = await t.scheduler.enqueue(work, after=[first], pass_results=True)
    assert await t.scheduler.signal(reader, "go", 9)
    await t.run_until(DAY)
    assert seen == [[["a", "completed", 7]], [["a", "completed", 7]], 9]


async def test_job_without_pass_results_has_none(t: TestScheduler) -> None:
    first = await t.scheduler.enqueue(number, args=(7,), keep_result=SECOND)
    for options in (
        {"after": [first]},
        {"after": [], "pass_results": True},
        {"after": [None], "pass_results": True},
    ):
        job_id = await t.scheduler.enqueue(collect, **options, keep_result=DAY)
        await t.drain()
        assert await collected(t.scheduler, job_id) == []


@pytest.mark.parametrize("executor", ["thread", "own"])
async def test_jobs_outside_of_the_event_loop_read_results_by_the_blocking_method(
    pool: asyncpg.Pool, executor: str
) -> None:
    def plain() -> list[Any]:
        with pytest.raises(NotRunningError, match="current_steps"):
            current_job().predecessors()
        return [result.unwrap(int) for result in current_steps().predecessors()]

    async with TestScheduler(pool, executors={"own": InThread()}) as t:
        registered: Any = t.scheduler.register(plain, executor=executor)
        after = [await t.scheduler.enqueue(number, args=(n,), keep_result=DAY) for n in range(120)]
        job_id = await t.scheduler.enqueue(registered, after=after, pass_results=True, keep_result=DAY)
        await t.drain()
        assert await collected(t.scheduler, job_id) == list(range(120))


def read_in_a_process() -> str:
    try:
        current_job().predecessors()
    except NotRunningError as error:
        return str(error)
    return ""


@pytest.mark.slow
async def test_job_in_a_process_has_no_results_of_others(make: Make) -> None:
    scheduler = make()
    scheduler.register(read_in_a_process, name="passed.in_a_process", executor="process")
    await scheduler.start()
    found = await scheduler.run_job("passed.in_a_process", wait_timeout=PATIENCE)
    assert "runs in a process, where it has no durable steps, no streams, no predecessors()" in found


async def test_unit_tests_give_the_results() -> None:
    results = [JobResult("a", JobStatus.COMPLETED, 3)]
    with job_context(predecessors=results):
        assert await collect() == [["a", "completed", 3]]
    with job_context():
        assert await collect() == []


@pytest.mark.parametrize("kind", KINDS)
async def test_results_are_passed_in_the_transaction_of_the_caller(
    kind: str, dsn: str, pool: asyncpg.Pool
) -> None:
    async with application(kind, dsn, pool) as app:
        first = await app.call("enqueue", number, args=(1,), keep_result=HOUR, job_id="a")
        options: dict[str, Any] = {"after": [first], "after_outcome": "ended", "pass_results": True}
        await app.call("enqueue", number, args=(1,), job_id="waits", **options)
        assert await app.call("cancel_job", first)
        await app.call("enqueue", number, args=(1,), job_id="begins", **options)
        spec = JobSpec(
            number, now(), (1,), job_id="bulk", after=[first], after_outcome="ended", pass_results=True
        )
        await app.call("schedule_bulk", [spec])
        await app.call("enqueue", number, args=(1,), job_id="waits", **options, conflict_resolution=REPLACE)
        await settled(app.commit())
    rows = await pool.fetch(
        "SELECT job_id, kind, value ->> 'job_id' AS of, value ->> 'status' AS status FROM scheduler_steps"
    )
    assert {tuple(row) for row in rows} == {
        (job_id, "result", "a", "cancelled") for job_id in ("waits", "begins", "bulk")
    }


def test_sync_scheduler_passes_results(dsn: str) -> None:
    with SyncScheduler(dsn) as scheduler:
        scheduler.initialize_db()
        first = scheduler.enqueue(number, args=(1,), keep_result=HOUR, job_id="a")
        reader = scheduler.enqueue(number, args=(1,), after=[first], after_outcome="ended", pass_results=True)
        assert scheduler.cancel_job(first)
        job = scheduler.get_job(reader)
        assert job is not None
        assert job.blocked_on is None


Calls = Callable[..., Awaitable[object]]


def calls(scheduler: Scheduler) -> list[Calls]:
    """Return each method that schedules jobs, with the options of the job as its arguments."""

    async def schedule(**options: Any) -> object:
        return await scheduler.schedule(number, execution_time=now(), args=(1,), **options)

    async def enqueue(**options: Any) -> object:
        return await scheduler.enqueue(number, args=(1,), **options)

    async def schedule_job(**options: Any) -> object:
        return await scheduler.schedule_job("passed.number", now(), {"args": [1]}, **options)

    async def run_job(**options: Any) -> object:
        return await scheduler.run_job(number, args=(1,), **options)

    def bulk(resolution: ConflictResolution) -> Calls:
        async def schedule_bulk(**options: Any) -> object:
            specs = [JobSpec(number, now(), (2,), job_id="other"), JobSpec(number, now(), (1,), **options)]
            return await scheduler.schedule_bulk(specs, conflict_resolution=resolution)

        return schedule_bulk

    return [schedule, enqueue, schedule_job, run_job, *map(bulk, ConflictResolution)]


async def test_each_method_that_schedules_passes_results(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await scheduler.initialize_db()
    await scheduler.enqueue(number, args=(1,), job_id="a", keep_result=DAY)
    assert await scheduler.cancel_job("a")
    options: dict[str, Any] = {"after": ["a"], "after_outcome": "ended", "pass_results": True}
    await scheduler.schedule(number, execution_time=now(), args=(1,), job_id="schedule", **options)
    await scheduler.enqueue(number, args=(1,), job_id="enqueue", **options)
    await scheduler.schedule_job("passed.number", now(), {"args": [1]}, job_id="schedule_job", **options)
    await scheduler.schedule_bulk([JobSpec(number, now(), (1,), job_id="schedule_bulk", **options)])
    with pytest.raises(TimeoutError):
        await scheduler.run_job(number, args=(1,), job_id="run_job", wait_timeout=0, **options)
    rows = await pool.fetch("SELECT job_id, value ->> 'status' AS status FROM scheduler_steps")
    methods = ("schedule", "enqueue", "schedule_job", "schedule_bulk", "run_job")
    assert {tuple(row) for row in rows} == {(method, "cancelled") for method in methods}


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"pass_results": True},
            ValueError,
            r"pass_results=True needs the jobs .* as after=\[",
        ),
        ({"pass_results": 1, "after": ["keeps"]}, TypeError, "pass_results must be a bool, not int: 1"),
        ({"pass_results": None}, TypeError, "pass_results must be a bool, not NoneType: None"),
        (
            {"pass_results": True, "after": ["keeps", "none"], "job_id": "reader"},
            ValueError,
            "job 'none' keeps no result that could be passed to job 'reader'; pass keep_result= to the",
        ),
        (
            {"pass_results": True, "after": ["gone"]},
            LookupError,
            "job 'gone' does not exist; schedule it first",
        ),
    ],
)
async def test_invalid_pass_results_is_rejected_and_nothing_is_stored(
    make: Make, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    scheduler = make()
    await scheduler.initialize_db()
    await scheduler.enqueue(number, args=(1,), job_id="keeps", keep_result=SECOND)
    await scheduler.enqueue(number, args=(1,), job_id="none")
    for each in calls(scheduler):
        with pytest.raises(kind, match=message):
            await each(**options)
    assert (await scheduler.count_jobs()).total == 2


@pytest.mark.parametrize("resolution", ConflictResolution)
async def test_bulk_jobs_pass_results_to_one_another(
    t: TestScheduler, resolution: ConflictResolution
) -> None:
    specs = [
        JobSpec(collect, t.now, job_id="c", after=["a", "b"], pass_results=True, keep_result=DAY),
        JobSpec(number, t.now, (1,), job_id="a", keep_result=SECOND),
        JobSpec(number, t.now, (2,), job_id="b", keep_result=SECOND),
    ]
    await t.scheduler.schedule_bulk(specs, conflict_resolution=resolution)
    await t.drain()
    assert await collected(t.scheduler, "c") == [["a", "completed", 1], ["b", "completed", 2]]
    none = [
        JobSpec(collect, t.now, job_id="d", after=["e", "b"], pass_results=True),
        JobSpec(number, t.now, (1,), job_id="e"),
    ]
    jobs = (await t.scheduler.count_jobs()).total
    with pytest.raises(ValueError, match="job 'e' keeps no result"):
        await t.scheduler.schedule_bulk(none, conflict_resolution=resolution)
    assert (await t.scheduler.count_jobs()).total == jobs


# -- the price for others --------------------------------------------------------------------------------


async def test_end_of_a_job_after_which_others_run_sends_the_same_statements_as_before(dsn: str) -> None:
    """Only jobs with pass_results= pay for it."""
    sent = Statements()
    async with recorded(dsn, sent) as t:
        first = await t.scheduler.enqueue(number, args=(1,), keep_result=HOUR)
        await sent.take()
        second = await t.scheduler.enqueue(number, args=(2,), after=[first])
        inserted = (await sent.take()).named
        await t.drain()
        ended = (await sent.take()).named
        await t.scheduler.enqueue(number, args=(2,), after=[first, second])
        after_ended = (await sent.take()).named
    statements = ["insert_extended_jobs", "delete_edges", "lock_parents", "insert_edges", "mark_parents"]
    assert inserted == dict.fromkeys(["clock", *statements], 1)
    once = ["keep_results", "lock_ended", "clear_consequences", "lock_children", "take_edges", "unblock_jobs"]
    assert {name: ended[name] for name in once} == dict.fromkeys(once, 1)
    passing = ("pass_results", "clear_steps", "take_over_results", "keeping_jobs")
    assert not any(ended[name] + inserted[name] + after_ended[name] for name in passing)


def test_insert_claim_and_completion_do_not_mention_results_of_others() -> None:
    for name in ("insert_jobs", "exchange_jobs", "complete_own", "claim_jobs"):
        assert "result:" not in load_query("public", name).text


# -- values as types -------------------------------------------------------------------------------------


class Odd: ...


@dataclass
class Receipt:
    day: date
    amount: int


async def test_value_of_a_result_is_returned_as_a_type() -> None:
    result = JobResult("a", JobStatus.COMPLETED, {"day": "2030-01-01", "amount": 5})
    assert result.unwrap() == {"day": "2030-01-01", "amount": 5}
    assert result.unwrap(Receipt) == Receipt(date(2030, 1, 1), 5)
    assert result.unwrap(dict[str, str | int]) == result.value
    with pytest.raises(
        ResultUnavailableError, match=r"the value of job 'a' does not fit kind=<class 'int'>: "
    ) as raised:
        result.unwrap(int)
    assert raised.value.result is result
    with pytest.raises(ConfigurationError, match="is no type for pydantic"):
        result.unwrap(Odd)
    with pytest.raises(JobFailedError):
        JobResult("a", JobStatus.FAILED).unwrap(int)
