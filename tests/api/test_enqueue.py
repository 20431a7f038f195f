"""enqueue() and the defaults of tasks: due times by the clock of the database, and the stored options."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    ConflictResolution,
    JobConflictError,
    JobPriority,
    JobSpec,
    PayloadError,
    RetryPolicy,
    Scheduler,
    call,
    current_job,
    job,
)
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import JobCompleted, JobRetried
from tests.api.conftest import Make
from tests.support.inside import TaskRegistry
from tests.support.statements import Statements
from tests.support.worker import Gate, Recorder

START = datetime(2040, 1, 1, tzinfo=UTC)
"""Far from the clock of the machine."""


async def work(*args: Any, **kwargs: Any) -> None: ...


async def options_of(scheduler: Scheduler, job_id: str) -> tuple[object, ...]:
    found = await scheduler.get_job(job_id)
    assert found
    seconds = None if found.timeout is None else found.timeout.total_seconds()
    return found.priority, found.max_retries, found.misfire_grace_time, seconds


# -- due times -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delay", "later"),
    [(None, 0.0), (0, 0.0), (90, 90.0), (0.25, 0.25), (timedelta(days=400), 400 * 86400.0)],
)
@pytest.mark.parametrize("func", [work, "elsewhere.run"])
@pytest.mark.parametrize("resolution", list(ConflictResolution))
async def test_enqueue_is_due_a_delay_from_now_by_the_clock_of_the_database(
    make: Make, func: Any, delay: Any, later: float, resolution: ConflictResolution
) -> None:
    scheduler = make(clock=FakeClock(START), misfire_grace_time=60)
    job_id = await scheduler.enqueue(func, delay=delay, conflict_resolution=resolution)
    found = await scheduler.get_job(job_id)
    assert found
    due = START + timedelta(seconds=later)
    assert (found.execution_time, found.created_at) == (due, START)
    assert found.expires_at == (due + timedelta(seconds=60) if delay else None)


async def test_enqueue_is_due_now_when_the_transaction_began_long_before(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    async with pool.acquire() as connection, connection.transaction():
        began = await connection.fetchval("SELECT now()")
        for resolution in ConflictResolution:
            job_id = await scheduler.enqueue(work, conflict_resolution=resolution, connection=connection)
            due = await connection.fetchval(
                "SELECT execution_time FROM scheduled_jobs WHERE job_id = $1", job_id
            )
            assert began < due <= await connection.fetchval("SELECT clock_timestamp()")


async def test_enqueue_starts_the_job_at_once_on_another_node(make: Make, open_gate: Gate) -> None:
    worker, caller = make(), make()
    worker.register(open_gate.job, name="gate")
    seen = Recorder(worker)
    await worker.start()
    job_id = await caller.enqueue("gate", args=(1,))
    await seen.until(JobCompleted, job_id=job_id)
    job_id = await caller.enqueue("gate", args=[2], delay=0.01)
    await seen.until(JobCompleted, job_id=job_id)
    assert open_gate.calls == [(1,), (2,)]


@pytest.mark.parametrize(
    ("delay", "error", "rule"),
    [
        (-1, ValueError, "delay must be between 0 and 3153600000 seconds, not -1"),
        (float("nan"), ValueError, "delay must be between 0"),
        (1e18, ValueError, "delay must be between 0"),
        ("5", TypeError, "delay must be seconds, a timedelta or None, not str: '5'"),
        (True, TypeError, "delay must be seconds"),
    ],
)
async def test_enqueue_raises_when_the_delay_is_invalid(
    make: Make, delay: Any, error: type[Exception], rule: str
) -> None:
    with pytest.raises(error, match=rule):
        await make().enqueue(work, delay=delay)


async def test_enqueue_raises_when_the_function_or_an_argument_is_invalid(make: Make) -> None:
    scheduler = make()
    with pytest.raises(TypeError, match="Expected an async function"):
        await scheduler.enqueue(len)
    with pytest.raises(ValueError, match="job name '' is empty"):
        await scheduler.enqueue("")
    with pytest.raises(PayloadError, match=r"args\[0\] is a builtins.set"):
        await scheduler.enqueue("elsewhere.run", args=({1},))
    assert (await scheduler.count_jobs()).total == 0


# -- conflicts and transactions ------------------------------------------------------------------------


async def test_enqueue_resolves_conflicts_as_schedule_does(make: Make) -> None:
    scheduler = make(clock=FakeClock(START))
    assert await scheduler.enqueue(work, job_id="a", args=(1,)) == "a"
    with pytest.raises(JobConflictError, match="'a' already exists with status 'pending'"):
        await scheduler.enqueue(work, job_id="a", args=(2,))
    ignore, replace = ConflictResolution.IGNORE, ConflictResolution.REPLACE
    assert await scheduler.enqueue(work, job_id="a", args=(3,), conflict_resolution=ignore) == "a"
    found = await scheduler.get_job("a")
    assert found
    assert found.args == (1,)
    assert await scheduler.enqueue(work, job_id="a", args=(4,), delay=5, conflict_resolution=replace) == "a"
    found = await scheduler.get_job("a")
    assert found
    assert (found.args, found.execution_time) == ((4,), START + timedelta(seconds=5))


async def test_enqueue_inserts_nothing_when_the_callers_transaction_is_rolled_back(
    scheduler: Scheduler, pool: asyncpg.Pool, seen: Recorder
) -> None:
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        rolled_back = await scheduler.enqueue(work, connection=connection)
        await transaction.rollback()
        async with connection.transaction():
            job_id = await scheduler.enqueue(work, connection=connection)
    await seen.until(JobCompleted, job_id=job_id)
    assert await scheduler.get_job(rolled_back) is None
    with pytest.raises(JobConflictError):
        async with pool.acquire() as connection, connection.transaction():
            await scheduler.enqueue(work, job_id=job_id, connection=connection)


# -- costs ---------------------------------------------------------------------------------------------


@pytest.fixture
async def counted(dsn: str) -> AsyncIterator[tuple[Scheduler, Statements]]:
    """Return a Scheduler that was not started and has looked up its schema, and what its pool sends."""
    sent = Statements()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5, init=sent.listen) as pool:
        scheduler = Scheduler(pool)
        await scheduler.enqueue(work, delay=3600)
        await sent.take()
        yield scheduler, sent


async def test_enqueue_sends_one_statement_per_call(counted: tuple[Scheduler, Statements]) -> None:
    scheduler, sent = counted
    for _ in range(20):
        await scheduler.enqueue(work, delay=3600)
    calls = await sent.take()
    assert calls.named == {"enqueue_job": 20}
    assert calls.counts.keys() <= {"enqueue_job", "RESET"}


async def test_enqueue_sends_one_statement_for_a_job_with_options(
    counted: tuple[Scheduler, Statements],
) -> None:
    scheduler, sent = counted
    keep = timedelta(hours=1)
    await scheduler.enqueue(work, delay=3600, unique="a key", keep_result=keep)
    await asyncio.gather(*(scheduler.enqueue(work, delay=n, keep_result=keep) for n in range(3600, 3900)))
    calls = await sent.take()
    assert calls.named.keys() == {"enqueue_extended_jobs"}
    assert calls.named.total() <= 4


async def test_enqueue_calls_share_statements_when_concurrent(counted: tuple[Scheduler, Statements]) -> None:
    scheduler, sent = counted
    ids = await asyncio.gather(*(scheduler.enqueue(work, args=(n,), delay=3600 + n) for n in range(500)))
    calls = await sent.take()
    assert calls.named.keys() <= {"enqueue_job", "enqueue_jobs"}
    assert calls.named.total() <= 3
    jobs = [await scheduler.get_job(job_id) for job_id in (ids[0], ids[499])]
    assert [each and each.args for each in jobs] == [(0,), (499,)]
    first, last = (each.execution_time for each in jobs if each)
    assert timedelta(seconds=499) <= last - first < timedelta(seconds=530)


# -- defaults ------------------------------------------------------------------------------------------


async def test_options_are_taken_from_the_call_then_the_task_then_the_scheduler(
    make: Make, own_catalogue: TaskRegistry
) -> None:
    @job(name="app.tuned", timeout=7, misfire_grace_time=8, max_retries=9, priority=JobPriority.HIGH)
    async def tuned() -> None: ...

    async def plain() -> None: ...

    scheduler = make(misfire_grace_time=60)
    of_scheduler = (JobPriority.NORMAL, 0, 60, 3600.0)
    of_task = (JobPriority.HIGH, 9, 8, 7.0)
    of_call = (JobPriority.LOW, 0, None, None)
    given: dict[str, Any] = {
        "priority": JobPriority.LOW,
        "max_retries": 0,
        "misfire_grace_time": None,
        "timeout": None,
    }
    for function, name, expected in (
        (plain, "elsewhere.run", of_scheduler),
        (tuned, "app.tuned", of_task),
    ):
        for options, stored in (({}, expected), (given, of_call)):
            ids = [
                await scheduler.schedule(function, execution_time=START, **options),
                await scheduler.enqueue(function, delay=60, **options),
                await scheduler.enqueue(name, delay=60, **options),
                await scheduler.schedule_job(name, START, {}, **options),
                *await scheduler.schedule_bulk([JobSpec(function, START, **options)]),
            ]
            for job_id in ids:
                assert job_id
                assert await options_of(scheduler, job_id) == stored


async def test_register_sets_the_defaults_of_one_scheduler(make: Make, own_catalogue: TaskRegistry) -> None:
    @job(max_retries=3)
    async def tuned() -> None: ...

    one, other = make(), make()
    one.register(tuned, priority=JobPriority.CRITICAL, timeout=5)
    normal, critical = JobPriority.NORMAL, JobPriority.CRITICAL
    assert await options_of(one, await one.enqueue(tuned, delay=60)) == (critical, 3, 300, 5.0)
    assert await options_of(other, await other.enqueue(tuned, delay=60)) == (normal, 3, 300, 3600.0)


async def test_retries_are_delayed_by_the_policy_of_the_task_before_that_of_the_scheduler(make: Make) -> None:
    async def fail() -> None:
        raise RuntimeError("no")

    async def fail_too() -> None:
        raise RuntimeError("no")

    scheduler = make(retry_policy=RetryPolicy(base=timedelta(hours=1), maximum=timedelta(hours=1), jitter=0))
    hours = timedelta(hours=7)
    scheduler.register(fail, retry=RetryPolicy(base=hours, maximum=hours, jitter=0), max_retries=1)
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.enqueue(fail)
    await scheduler.enqueue(fail_too, max_retries=1)
    delays = {each.job_name.rpartition(".")[2]: each.delay for each in await seen.until(JobRetried, 2)}
    assert delays == {"fail": timedelta(hours=7), "fail_too": timedelta(hours=1)}


# -- the running job -----------------------------------------------------------------------------------


async def test_current_job_gives_the_scheduler_and_its_pool_so_that_jobs_can_enqueue_jobs(
    scheduler: Scheduler, seen: Recorder, open_gate: Gate
) -> None:
    scheduler.register(open_gate.job, name="child")
    found: list[object] = []

    async def parent() -> None:
        found.extend([current_job().scheduler, current_job().pool])
        async with current_job().pool.acquire() as connection, connection.transaction():
            await current_job().scheduler.enqueue("child", args=(7,), connection=connection)

    await scheduler.enqueue(parent)
    await seen.until(JobCompleted, job_name="child")
    assert open_gate.calls == [(7,)]
    assert found == [scheduler, scheduler.db_pool]


# -- arguments -----------------------------------------------------------------------------------------


async def send(to: str, *, copies: int = 1) -> None: ...


async def test_calls_are_accepted_wherever_a_function_is(make: Make) -> None:
    scheduler = make()
    made = call(send, "ada", copies=2)
    ids = [
        await scheduler.schedule(made, execution_time=START),
        await scheduler.enqueue(made),
        *await scheduler.schedule_bulk([JobSpec(made, START)]),
    ]
    for job_id in ids:
        found = await scheduler.get_job(str(job_id))
        assert found
        assert (found.args, found.kwargs) == (("ada",), {"copies": 2})
    with pytest.raises(TypeError, match=r"a call\(\) has its arguments"):
        await scheduler.enqueue(made, args=("ada",))


async def test_arguments_that_the_function_cannot_take_raise_type_error_and_nothing_is_stored(
    make: Make, own_catalogue: TaskRegistry
) -> None:
    scheduler = make()
    scheduler.register(send, name="mail.send", aliases=["old"])
    wrong = r"send\(\) cannot be called with the arguments of the job: missing a required argument: 'to'"
    with pytest.raises(TypeError, match=wrong):
        await scheduler.schedule(send, execution_time=START, kwargs={"copies": 2})
    with pytest.raises(TypeError, match=wrong):
        await scheduler.enqueue(send)
    for name in ("mail.send", "old"):
        with pytest.raises(TypeError, match=wrong):
            await scheduler.enqueue(name)
        with pytest.raises(TypeError, match=wrong):
            await scheduler.schedule_job(name, START, {"args": []})
    with pytest.raises(TypeError, match="too many positional arguments"):
        await scheduler.schedule_bulk([JobSpec(send, START, ("ada",)), JobSpec(send, START, ("ada", 2))])
    assert (await scheduler.count_jobs()).total == 0
    assert await scheduler.enqueue("elsewhere.send", args=(1, 2, 3)), "unknown in this process"
