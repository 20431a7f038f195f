"""current_job().completing(): a job that completes in a transaction of its own code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import asyncpg
import psycopg
import pytest

from pg_scheduler import (
    ConflictResolution,
    DatabaseUnavailableError,
    JobLostError,
    JobResult,
    Limit,
    NotRunningError,
    ResultUnavailableError,
    RetryPolicy,
    Scheduler,
    Unique,
    VacuumConfig,
    VacuumPolicy,
    current_job,
    job,
)
from pg_scheduler.database.session import is_open
from pg_scheduler.events import (
    JobCompleted,
    JobFailed,
    JobLost,
    JobProgressed,
    JobReleased,
    JobRetried,
    JobStarted,
)
from pg_scheduler.triggers import FixedDelay
from pg_scheduler.worker.in_flight import Attempt, Completion, End
from tests.api.conftest import Make, Pools
from tests.support.executors import InThread
from tests.support.inside import AttemptRunner, Revocation, worker_of
from tests.support.store import row, use_options
from tests.support.worker import PATIENCE, Recorder, Wire, now, wire_to

EFFECT = "INSERT INTO effects VALUES ($1)"
NO_DELAY = RetryPolicy(base=timedelta(milliseconds=1), maximum=timedelta(milliseconds=1))

WAITING_PIDS = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'advisory'"
WAITING = f"SELECT count(*) FROM ({WAITING_PIDS}) AS held"
SLOW_COMMIT = """
CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION wait_at_commit();
"""
"""Makes a commit with an effect wait for those who hold a lock."""


@pytest.fixture(autouse=True)
async def effects(pool: asyncpg.Pool) -> None:
    await pool.execute("CREATE TABLE effects (job_id text)")


@asynccontextmanager
async def commits_held(pool: asyncpg.Pool) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Hold commits with effects during the block; yield what returns when one waits."""
    await pool.execute(SLOW_COMMIT)

    async def until_held() -> None:
        async with asyncio.timeout(PATIENCE):
            while not await pool.fetchval(WAITING):
                pass

    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(7)")
        yield until_held


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a state of the worker that no event announces."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def effects_of(pool: asyncpg.Pool) -> list[str]:
    return [each["job_id"] for each in await pool.fetch("SELECT job_id FROM effects ORDER BY job_id")]


async def add_effect(connection: Any) -> None:
    await connection.execute(EFFECT, current_job().job_id)


def attempt_of(scheduler: Scheduler, job_id: str) -> Attempt:
    """Return the attempt of a job that runs."""
    runtime = worker_of(scheduler)
    return runtime.node.in_flight.attempts[job_id]


async def renew(scheduler: Scheduler, times: int = 3) -> None:
    """Make heartbeats, which revoke the attempts that the worker has lost."""
    runtime = worker_of(scheduler)
    for _ in range(times):
        await runtime.heartbeat.run_once()


async def work() -> None:
    async with current_job().completing() as connection:
        await add_effect(connection)


async def later(name: str) -> str:
    return name


async def test_completing_commits_effects_the_end_the_value_and_new_jobs_together(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool
) -> None:
    states: list[Any] = []
    has_ended = asyncio.Event()

    async def order(number: int) -> str:
        me = current_job()
        async with me.completing() as connection:
            await add_effect(connection)
            await me.scheduler.enqueue(later, args=("receipt",), job_id="receipt", connection=connection)
            me.set_result({"number": number})
            states.append(await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE job_id = 'receipt'"))
        states.append((await row(pool, "order"))["status"])
        has_ended.set()
        return "ignored"

    job_id = await scheduler.enqueue(order, args=(7,), job_id="order", keep_result=timedelta(hours=1))
    await seen.until(JobCompleted, job_id="receipt")
    result = await scheduler.get_job_result(job_id, timeout=PATIENCE)
    assert isinstance(result, JobResult)
    assert result.unwrap() == {"number": 7}
    await asyncio.wait_for(has_ended.wait(), PATIENCE)  # the function continues after its job has ended
    assert states == [0, "completed"]
    assert await effects_of(pool) == ["order"]
    await seen.until(JobCompleted, 2)
    found = await row(pool, "order")
    assert (found["status"], found["attempt"], found["lease_until"]) == ("completed", 1, None)
    assert seen.of(JobCompleted, job_id="order") == [JobCompleted("order", found["job_name"], 1)]


async def test_job_ends_at_the_end_of_the_block_that_completes_it(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    times: list[Any] = []

    async def work_in_block() -> None:
        async with current_job().completing() as connection:
            times.append(await connection.fetchval("SELECT clock_timestamp()"))

    job_id = await scheduler.enqueue(work_in_block, keep_result=timedelta(hours=1))
    await scheduler.get_job_result(job_id, timeout=PATIENCE)
    assert (await row(pool, job_id))["finished_at"] > times[0]


async def test_completing_keeps_none_without_set_result(scheduler: Scheduler) -> None:
    async def give() -> str:
        async with current_job().completing():
            pass
        return "ignored"

    assert await scheduler.run_job(give, wait_timeout=PATIENCE) is None


async def test_completing_reports_a_value_that_cannot_be_stored(scheduler: Scheduler) -> None:
    async def give() -> None:
        async with current_job().completing():
            current_job().set_result(object())

    with pytest.raises(ResultUnavailableError, match="without a value"):
        await scheduler.run_job(give, wait_timeout=PATIENCE)


async def test_completing_rolls_back_and_the_job_is_retried_after_an_exception_in_the_block(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make(retry_policy=NO_DELAY)
    await scheduler.start()
    seen = Recorder(scheduler)

    async def fail_once() -> None:
        async with current_job().completing() as connection:
            await add_effect(connection)
            if current_job().attempt == 1:
                raise LookupError("on purpose")

    await scheduler.enqueue(fail_once, job_id="one", max_retries=1)
    [completed] = await seen.until(JobCompleted)
    [retried] = seen.of(JobRetried)
    assert isinstance(retried.exception, LookupError)
    assert completed.attempt == 2
    assert await effects_of(pool) == ["one"]


async def test_completing_may_be_repeated_after_a_rollback_but_not_after_a_commit(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool
) -> None:
    errors: list[str] = []

    async def block(*, fails: bool = False, nested: bool = False) -> None:
        try:
            async with current_job().completing() as connection:
                await add_effect(connection)
                if nested:
                    await block()
                if fails:
                    await connection.execute("SELECT 1 / 0")
        except (asyncpg.DivisionByZeroError, RuntimeError) as error:
            errors.append(str(error))

    async def repeat() -> None:
        await block(fails=True)
        await block(nested=True)
        await block()
        try:
            current_job().set_result(1)
        except RuntimeError as error:
            errors.append(str(error))

    await scheduler.enqueue(repeat, job_id="one")
    await seen.until(JobCompleted)
    assert await effects_of(pool) == ["one"]
    assert [error.partition(";")[0] for error in errors] == [
        "division by zero",
        "job 'one' has another block of completing(), which is open",
        "job 'one' has another block of completing(), which has completed the job",
        "set_result() was called outside of a block of completing()",
    ]


@pytest.mark.parametrize(
    "change",
    [
        "status = 'cancelled', finished_at = now(), lease_until = NULL",
        "worker_id = 'other'",
        "attempt = attempt + 1",
    ],
)
async def test_completing_rolls_back_when_the_job_was_cancelled_or_given_away_during_the_block(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool, change: str
) -> None:
    errors: list[BaseException] = []

    async def lose() -> None:
        try:
            async with current_job().completing() as connection:
                await add_effect(connection)
                await pool.execute(f"UPDATE scheduled_jobs SET {change} WHERE job_id = 'one'")
        except JobLostError as error:
            errors.append(error)
            raise

    await scheduler.enqueue(lose, job_id="one", max_retries=1)
    await seen.until(JobLost)
    [error] = errors
    assert isinstance(error, JobLostError)
    assert error.job_id == "one"
    assert await effects_of(pool) == []
    assert not seen.of(JobCompleted)


async def test_completing_rolls_back_when_a_caller_cancels_the_job_during_the_block(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool
) -> None:
    began = asyncio.Event()

    async def wait() -> None:
        async with current_job().completing() as connection:
            await add_effect(connection)
            began.set()
            await asyncio.Event().wait()

    job_id = await scheduler.enqueue(wait)
    await asyncio.wait_for(began.wait(), PATIENCE)
    assert await scheduler.cancel_job(job_id)
    await until(lambda: not worker_of(scheduler).node.in_flight.attempts)
    assert await effects_of(pool) == []
    assert (await row(pool, job_id))["status"] == "cancelled"


@pytest.mark.parametrize("stop", ["timeout", "shutdown"])
async def test_block_that_is_interrupted_rolls_back_and_the_job_runs_again(
    make: Make, pool: asyncpg.Pool, stop: str
) -> None:
    began = asyncio.Event()
    before: list[list[str]] = []

    async def wait() -> None:
        async with current_job().completing() as connection:
            before.append(await effects_of(pool))
            await add_effect(connection)
            if not began.is_set():
                began.set()
                await asyncio.Event().wait()

    schedulers = [make(retry_policy=NO_DELAY) for _ in range(2)]
    records = [Recorder(scheduler) for scheduler in schedulers]
    for scheduler in schedulers:
        scheduler.register(wait, name="completing.wait")
    first, second = schedulers
    await first.start()
    await first.enqueue("completing.wait", job_id="one", max_retries=1)
    await asyncio.wait_for(began.wait(), PATIENCE)
    if stop == "timeout":
        AttemptRunner.time_out(attempt_of(first, "one"))
        await records[0].until(JobCompleted)
        assert len(records[0].of(JobRetried)) == 1
    else:
        await first.shutdown()
        assert len(records[0].of(JobReleased)) == 1
        await second.start()
        await records[1].until(JobCompleted)
    assert before == [[], []]
    assert await effects_of(pool) == ["one"]


async def test_function_that_goes_on_after_completing_is_neither_lost_nor_asked_for_its_value(
    scheduler: Scheduler, seen: Recorder
) -> None:
    held: list[object] = []

    async def go_on() -> str:
        async with current_job().completing():
            current_job().set_result("kept")
        await renew(scheduler)
        current_job().progress(1)
        held.append(worker_of(scheduler).node.in_flight.held())
        return "ignored"

    assert await scheduler.run_job(go_on, wait_timeout=PATIENCE) == "kept"
    await until(lambda: not worker_of(scheduler).node.in_flight.attempts)
    await renew(scheduler)
    assert held == [{}]
    assert len(seen.of(JobCompleted)) == 1
    assert not seen.of(JobLost)
    assert not worker_of(scheduler).node.in_flight.unwritten()


async def test_exception_after_completing_is_logged_and_not_retried(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    ended = asyncio.Event()

    async def fail_late() -> None:
        async with current_job().completing() as connection:
            await add_effect(connection)
        try:
            raise LookupError("too late")
        finally:
            asyncio.get_running_loop().call_soon(ended.set)

    await scheduler.enqueue(fail_late, job_id="one", max_retries=3)
    await seen.until(JobCompleted)
    await asyncio.wait_for(ended.wait(), PATIENCE)
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "had completed when its function failed" in record.getMessage()
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "too late"
    assert len(seen.of(JobStarted)) == 1
    assert not seen.of(JobRetried)
    assert (await row(pool, "one"))["status"] == "completed"


@pytest.mark.parametrize("stop", ["timeout", "shutdown"])
async def test_timeout_and_shutdown_end_a_function_that_goes_on_after_completing(
    make: Make, pool: asyncpg.Pool, stop: str
) -> None:
    scheduler = make()
    await scheduler.start()
    seen = Recorder(scheduler)
    cancelled = asyncio.Event()

    async def go_on() -> None:
        async with current_job().completing() as connection:
            await add_effect(connection)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    await scheduler.enqueue(go_on, job_id="one", max_retries=3)
    await seen.until(JobCompleted)
    if stop == "timeout":
        AttemptRunner.time_out(attempt_of(scheduler, "one"))
    else:
        await scheduler.shutdown()
    await asyncio.wait_for(cancelled.wait(), PATIENCE)
    assert (await row(pool, "one"))["status"] == "completed"
    assert not [*seen.of(JobLost), *seen.of(JobReleased), *seen.of(JobFailed), *seen.of(JobRetried)]


async def test_dependent_starts_while_the_function_that_completed_goes_on(
    scheduler: Scheduler, seen: Recorder
) -> None:
    started = asyncio.Event()

    async def first() -> None:
        async with current_job().completing():
            pass
        await asyncio.wait_for(started.wait(), PATIENCE)

    async def second() -> None:
        started.set()

    job_id = await scheduler.enqueue(first, delay=timedelta(hours=1))
    await scheduler.enqueue(second, after=[job_id], job_id="second")
    assert await scheduler.run_job_now(job_id)
    await seen.until(JobCompleted, 2)


async def test_fixed_delay_counts_from_the_commit_while_the_function_goes_on(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool
) -> None:
    checked = asyncio.Event()

    async def go_on() -> None:
        await work()
        await asyncio.wait_for(checked.wait(), PATIENCE)

    hour = timedelta(hours=1)
    scheduler.register(go_on, name="completing.go_on")
    await scheduler.schedules.add("completing.go_on", FixedDelay(hour), start=now() - hour, schedule_id="s")
    [completed] = await seen.until(JobCompleted)
    schedule = await scheduler.schedules.get("s")
    assert schedule is not None
    assert schedule.next_fire_at is not None
    finished_at = (await row(pool, completed.job_id))["finished_at"]
    assert finished_at <= schedule.next_fire_at - hour <= await pool.fetchval("SELECT clock_timestamp()")
    checked.set()


async def test_replacement_starts_after_the_commit_while_the_function_goes_on(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool
) -> None:
    began, replaced = asyncio.Event(), asyncio.Event()

    async def old() -> str:
        async with current_job().completing() as connection:
            await add_effect(connection)
            began.set()
            await asyncio.wait_for(replaced.wait(), PATIENCE)
        await asyncio.wait_for(new_began.wait(), PATIENCE)
        return "old"

    new_began = asyncio.Event()

    async def new() -> None:
        new_began.set()

    scheduler.register(new)
    await scheduler.enqueue(old, job_id="one")
    await asyncio.wait_for(began.wait(), PATIENCE)
    await scheduler.enqueue(new, job_id="one", conflict_resolution=ConflictResolution.REPLACE)
    replaced.set()
    await seen.until(JobCompleted, 2)
    await renew(scheduler)
    assert await effects_of(pool) == ["one"]
    assert not seen.of(JobLost)
    await until(lambda: not worker_of(scheduler).node.in_flight.outlived)


async def test_unique_key_and_limit_are_free_after_the_commit_while_the_function_goes_on(
    make: Make,
) -> None:
    scheduler = make()
    other_began = asyncio.Event()

    async def one(number: int) -> None:
        me = current_job()
        if number:
            other_began.set()
            return
        async with me.completing():
            pass
        await me.scheduler.enqueue(one, args=(1,), unique=Unique(args=()))
        await asyncio.wait_for(other_began.wait(), PATIENCE)

    scheduler.register(one, limits=[Limit(max_running=1)])
    await scheduler.start()
    seen = Recorder(scheduler)
    await scheduler.enqueue(one, args=(0,), unique=Unique(args=()))
    await seen.until(JobCompleted, 2)


STATE = """
    SELECT (SELECT blocked_on FROM scheduled_jobs WHERE job_id = 'child') AS waits_on,
        (SELECT next_fire_at IS NOT NULL FROM scheduler_schedules) AS has_next_fire,
        (SELECT count(*) FROM scheduler_results) AS values
"""


@pytest.mark.parametrize("commits", [True, False])
async def test_dependents_the_schedule_and_the_kept_value_follow_in_the_transaction(
    scheduler: Scheduler, seen: Recorder, pools: Pools, pool: asyncpg.Pool, commits: bool
) -> None:
    own, hour = await pools(1), timedelta(hours=1)
    states: list[Any] = []

    async def complete() -> None:
        me = current_job()
        await scheduler.enqueue(later, args=("child",), job_id="child", after=[me.job_id], delay=hour)
        async with own.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            async with me.completing(connection=connection):
                me.set_result("kept")
            states.extend([await connection.fetchrow(STATE), await pool.fetchrow(STATE)])
            await (transaction.commit() if commits else transaction.rollback())
            states.append(await pool.fetchrow(STATE))

    scheduler.register(complete, name="completing.consequences", keep_result=hour)
    await scheduler.schedules.add(
        "completing.consequences", FixedDelay(hour), start=now() - hour, schedule_id="s"
    )
    await seen.until(JobCompleted)
    before, after = ("after", False, 0), (None, True, 1)
    assert [tuple(state) for state in states] == [after, before, after if commits else before]


async def test_replacement_is_in_the_row_with_the_commit(
    scheduler: Scheduler, seen: Recorder, pools: Pools, pool: asyncpg.Pool
) -> None:
    own, states = await pools(1), list[str]()

    async def old() -> None:
        again = ConflictResolution.REPLACE
        await scheduler.enqueue(
            later, args=("new",), job_id="one", conflict_resolution=again, delay=timedelta(hours=1)
        )
        async with own.acquire() as connection, connection.transaction():
            async with current_job().completing(connection=connection):
                pass
            query = "SELECT task_data FROM scheduled_jobs"
            states.extend([await connection.fetchval(query), await pool.fetchval(query)])

    await scheduler.enqueue(old, job_id="one")
    await seen.until(JobCompleted)
    assert ["new" in state for state in states] == [True, False]


@pytest.mark.parametrize("stop", ["timeout", "cancel", "shutdown", "lost lease"])
async def test_nothing_that_stops_the_attempt_during_its_commit_changes_the_outcome(
    make: Make, pool: asyncpg.Pool, stop: str
) -> None:
    scheduler, client = make(), make()
    await scheduler.start()
    seen = Recorder(scheduler)
    ends: list[str] = []
    scheduler.register(work, name="completing.work")

    async def go_on() -> None:
        await work()
        try:
            await asyncio.sleep(0)  # where an interruption that has waited arrives
        except asyncio.CancelledError:
            ends.append("interrupted")
            raise

    async with commits_held(pool) as until_held:
        await scheduler.enqueue(go_on, job_id="one", max_retries=3)
        await until_held()
        attempt = attempt_of(scheduler, "one")
        assert attempt.end is End.WRITING
        task: asyncio.Task[Any] | None = None
        match stop:
            case "timeout":
                AttemptRunner.time_out(attempt)
            case "cancel":
                task = asyncio.create_task(client.cancel_job("one"))
            case "shutdown":
                task = asyncio.create_task(scheduler.shutdown())
                await until(lambda: attempt.revocation is not None)
            case _:
                worker_of(scheduler).heartbeat._revoke_all()
        assert attempt.task is not None
        assert not attempt.task.cancelling()
    assert await (task or asyncio.sleep(0)) in {None, False}
    await seen.until(JobCompleted)
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait([attempt.task])
    assert await effects_of(pool) == ["one"]
    assert (await row(pool, "one"))["status"] == "completed"
    assert len(seen.of(JobCompleted)) == 1
    assert not [*seen.of(JobLost), *seen.of(JobReleased), *seen.of(JobRetried)]
    assert ends == (["interrupted"] if stop in {"timeout", "shutdown"} else [])


async def test_attempt_stops_waiting_for_its_commit_after_the_call_timeout(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_options(monkeypatch, call_timeout_s=0.2)
    scheduler = make()
    await scheduler.start()
    seen = Recorder(scheduler)
    failed = asyncio.Event()

    async def wait() -> None:
        try:
            await work()
        except DatabaseUnavailableError:
            failed.set()
            raise

    async with commits_held(pool):
        await scheduler.enqueue(wait, job_id="one", max_retries=3)
        await asyncio.wait_for(failed.wait(), PATIENCE)
    await seen.until(JobLost)  # the server has committed meanwhile
    assert await effects_of(pool) == ["one"]


async def test_interruption_of_an_attempt_waits_for_its_commit_no_longer_than_the_call_timeout(
    make: Make, pool: asyncpg.Pool, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_options(monkeypatch, call_timeout_s=0.2)
    own = await pools(2)
    scheduler = make()
    await scheduler.start()
    written, interrupted = asyncio.Event(), asyncio.Event()

    async def never_commit() -> None:
        async with own.acquire() as connection, connection.transaction():
            async with current_job().completing(connection=connection):
                pass
            written.set()
            try:
                await asyncio.Event().wait()
            finally:
                interrupted.set()

    await scheduler.enqueue(never_commit, job_id="one")
    await asyncio.wait_for(written.wait(), PATIENCE)
    AttemptRunner.time_out(attempt_of(scheduler, "one"))
    assert not interrupted.is_set()
    await asyncio.wait_for(interrupted.wait(), PATIENCE)


@asynccontextmanager
async def over_wire(dsn: str, make: Make) -> AsyncIterator[tuple[Wire, Scheduler]]:
    """Yield a started Scheduler whose connections a test can cut."""
    async with wire_to(dsn) as wire, asyncpg.create_pool(wire.dsn, min_size=1, max_size=5) as own:
        scheduler = make(own, retry_policy=NO_DELAY)
        async with scheduler:
            yield wire, scheduler


async def test_lost_answer_of_the_commit_causes_no_second_effect(
    dsn: str, make: Make, pool: asyncpg.Pool
) -> None:
    calls: list[int] = []

    async def repeat() -> None:
        calls.append(current_job().attempt)
        for _ in range(3):  # the wrong way: the error should end the attempt
            with suppress(DatabaseUnavailableError):
                await work()
                break

    async with over_wire(dsn, make) as (wire, scheduler):
        seen = Recorder(scheduler)
        async with commits_held(pool) as until_held:
            await scheduler.enqueue(repeat, job_id="one", max_retries=3)
            await until_held()
            wire.cut()
            await wire.heal()
        await seen.until(JobLost)
        assert calls == [1]
        assert await effects_of(pool) == ["one"]
        found = await row(pool, "one")
        assert (found["status"], found["attempt"]) == ("completed", 1)


async def test_commit_without_an_answer_does_not_complete_the_job_of_a_function_that_swallows_its_error(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make(retry_policy=NO_DELAY)
    await scheduler.start()
    seen = Recorder(scheduler)
    errors: list[str] = []

    async def swallow() -> None:
        try:
            await work()
        except DatabaseUnavailableError:  # the wrong way: the error should end the attempt
            for other in (partial(current_job().set_result, 1), partial(fail_in_block)):
                try:
                    await (other() or asyncio.sleep(0))
                except (RuntimeError, LookupError) as error:
                    errors.append(str(error).partition(";")[0])

    async def fail_in_block() -> None:
        async with current_job().completing():
            raise LookupError("on purpose")

    async with commits_held(pool) as until_held:
        await scheduler.enqueue(swallow, job_id="one", max_retries=1)
        await until_held()
        await pool.execute(f"SELECT pg_terminate_backend(pid) FROM ({WAITING_PIDS}) AS held")
        await seen.until(JobRetried)
    [retried] = seen.of(JobRetried)
    assert isinstance(retried.exception, DatabaseUnavailableError)
    [completed] = await seen.until(JobCompleted)
    assert completed.attempt == 2
    assert errors == ["set_result() was called outside of a block of completing()", "on purpose"]
    assert await effects_of(pool) == ["one"]


async def test_connection_that_ends_in_the_block_rolls_back_and_the_job_is_retried(
    dsn: str, make: Make, pool: asyncpg.Pool
) -> None:
    async with over_wire(dsn, make) as (wire, scheduler):
        seen = Recorder(scheduler)

        async def cut() -> None:
            async with current_job().completing() as connection:
                await add_effect(connection)
                if current_job().attempt == 1:
                    wire.cut()
                    await wire.heal()

        await scheduler.enqueue(cut, job_id="one", max_retries=3)
        [completed] = await seen.until(JobCompleted)
        assert completed.attempt == 2
        assert await effects_of(pool) == ["one"]


@pytest.mark.parametrize("use", ["statement", "nothing"])
async def test_connection_that_the_server_ends_while_the_block_is_idle_is_a_database_that_is_unavailable(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool, use: str
) -> None:
    errors: list[BaseException] = []

    async def wait() -> None:
        try:
            async with current_job().completing() as connection:
                pid = connection.get_server_pid()
                await pool.execute("SELECT pg_terminate_backend($1, 60000)", pid)
                while is_open(connection):  # noqa: ASYNC110 - asyncpg reports it to listeners of its own
                    await asyncio.sleep(0.01)
                if use == "statement":
                    await add_effect(connection)
        except Exception as error:
            errors.append(error)
            raise

    await scheduler.enqueue(wait, max_retries=0)
    await seen.until(JobFailed)
    (error,) = errors
    assert isinstance(error, DatabaseUnavailableError)
    assert "ended the connection while no statement ran" in str(error)


async def test_last_progress_is_written_before_the_completion(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool
) -> None:
    async def advance() -> None:
        for number in range(3):
            current_job().progress(number)
        async with current_job().completing():
            pass

    job_id = await scheduler.enqueue(advance)
    await seen.until(JobCompleted)
    assert seen.of(JobProgressed)[-1].done == 2
    found = await scheduler.get_job(job_id)
    assert found is not None
    assert found.progress is not None
    assert found.progress.done == 2


async def test_row_of_a_job_that_completed_itself_stays_until_the_next_vacuum(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make(vacuum_config=VacuumConfig(completed=VacuumPolicy.immediate()))
    await scheduler.start()
    seen = Recorder(scheduler)
    await scheduler.enqueue(work, job_id="one")
    await seen.until(JobCompleted)
    assert (await row(pool, "one"))["status"] == "completed"
    await scheduler.run_vacuum()
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


async def test_error_of_the_transaction_leaves_the_block_and_nothing_is_committed(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool
) -> None:
    await pool.execute("CREATE TABLE parents (id integer PRIMARY KEY)")
    await pool.execute("CREATE TABLE children (id integer REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")

    async def violate() -> None:
        async with current_job().completing() as connection:
            await add_effect(connection)
            await connection.execute("INSERT INTO children VALUES (1)")

    await scheduler.enqueue(violate, job_id="one")
    [failed] = await seen.until(JobFailed)
    assert isinstance(failed.exception, asyncpg.ForeignKeyViolationError)
    assert await effects_of(pool) == []
    assert (await row(pool, "one"))["status"] == "failed"


async def test_block_whose_transaction_was_ended_by_hand_does_not_complete_the_job(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool
) -> None:
    async def commit_early() -> None:
        async with current_job().completing() as connection:
            await connection.execute("COMMIT")

    await scheduler.enqueue(commit_early, job_id="one")
    [failed] = await seen.until(JobFailed)
    assert "has ended within the block" in failed.error


async def test_function_that_returns_before_its_block_ends_fails_and_the_block_completes_nothing(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool
) -> None:
    returned, tasks = asyncio.Event(), list[asyncio.Task[None]]()

    async def block() -> None:
        async with current_job().completing() as connection:
            await add_effect(connection)
            await returned.wait()

    async def leave() -> None:
        tasks.append(asyncio.create_task(block()))
        await asyncio.sleep(0)

    await scheduler.enqueue(leave, job_id="one")
    (event,) = await seen.until(JobFailed)
    assert "before its block of completing() had ended" in event.error
    returned.set()
    with pytest.raises(JobLostError) as caught:
        await asyncio.wait_for(tasks[0], PATIENCE)
    assert caught.value.__notes__ == [
        "its function has returned before this block ended; await the task that opened it"
    ]
    assert await effects_of(pool) == []


async def connections(closed: asyncio.Event) -> AsyncGenerator[asyncpg.Connection, None]:
    """Yield the connection of a block, and set an event when the block has ended."""
    try:
        async with current_job().completing() as connection:
            current_job().set_result("lost")
            yield connection
    finally:
        closed.set()


async def leave_open() -> None:
    """Return with an open block, or with one that the event loop closes meanwhile."""
    async for connection in connections(asyncio.Event()):
        await add_effect(connection)
        break


async def leave_to_the_loop() -> None:
    """Return after the event loop has closed the block."""
    closed = asyncio.Event()
    async for connection in connections(closed):
        await add_effect(connection)
        break
    await asyncio.wait_for(closed.wait(), PATIENCE)


async def close() -> None:
    async with contextlib.aclosing(connections(asyncio.Event())) as generator:
        async for connection in generator:
            await add_effect(connection)
            break


@pytest.mark.parametrize("function", [leave_open, leave_to_the_loop, close])
async def test_function_that_leaves_its_block_in_a_generator_fails(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool, function: Callable[[], Awaitable[None]]
) -> None:
    await scheduler.enqueue(function)
    (event,) = await seen.until(JobFailed)
    assert event.error.endswith(("that has it to the end", "open the block outside of it"))
    assert await effects_of(pool) == []


async def test_block_after_one_whose_generator_was_closed_completes_the_job(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool
) -> None:
    async def repeat() -> None:
        await close()
        await work()

    await scheduler.enqueue(repeat, job_id="one")
    await seen.until(JobCompleted)
    assert await effects_of(pool) == ["one"]


async def test_function_that_returns_during_the_write_of_a_block_of_its_caller_waits_for_the_write_only(
    make: Make, pool: asyncpg.Pool, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_options(monkeypatch, call_timeout_s=10 * PATIENCE)
    scheduler = make()
    await scheduler.start()
    seen = Recorder(scheduler)
    tasks: list[asyncio.Task[None]] = []
    connection = await asyncpg.connect(dsn)

    async def block() -> None:
        async with connection.transaction(), current_job().completing(connection=connection):
            await add_effect(connection)
            written.set()

    async def leave() -> None:
        tasks.append(asyncio.create_task(block()))
        await written.wait()

    written = asyncio.Event()
    await scheduler.enqueue(leave, job_id="one")
    await seen.until(JobCompleted)
    await asyncio.gather(*tasks)
    await connection.close()
    assert await effects_of(pool) == ["one"]
    assert not seen.of(JobLost)


@pytest.mark.parametrize("commits", [True, False])
async def test_function_that_returns_during_the_commit_of_its_block_ends_as_the_commit(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, *, commits: bool
) -> None:
    async def note_and_wait(completion: Completion) -> None:
        waits_for_write.set()
        await wait_for_write(completion)

    waits_for_write, wait_for_write = asyncio.Event(), Completion.wait_for_write
    monkeypatch.setattr(Completion, "wait_for_write", note_and_wait)
    scheduler = make(retry_policy=NO_DELAY)
    await scheduler.start()
    seen = Recorder(scheduler)
    await pool.execute("CREATE TABLE parents (id integer PRIMARY KEY)")
    await pool.execute("CREATE TABLE children (id integer REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
    tasks: list[asyncio.Task[None]] = []

    async def block() -> None:
        async with current_job().completing() as connection:
            current_job().set_result("paid")
            await add_effect(connection)
            if not commits and current_job().attempt == 1:
                await connection.execute("INSERT INTO children VALUES (1)")

    async def leave() -> None:
        tasks.append(asyncio.create_task(block()))
        if current_job().attempt > 1:
            await tasks[-1]
        else:
            await until_held()

    async with commits_held(pool) as until_held:
        await scheduler.enqueue(leave, job_id="one", max_retries=1, keep_result=timedelta(days=1))
        await asyncio.wait_for(waits_for_write.wait(), PATIENCE)
    await seen.until(JobCompleted)
    await asyncio.gather(*tasks, return_exceptions=True)
    result = await scheduler.get_job_result("one")
    assert result is not None
    assert result.value == "paid"
    assert await effects_of(pool) == ["one"]
    assert len(seen.of(JobRetried)) == (not commits)
    assert not seen.of(JobLost)


@job(name="completing.in_thread")
def in_thread() -> None:
    current_job().completing()


@job(name="completing.in_process", executor="process")
def in_process() -> None:
    current_job().set_result(1)


def in_own_executor() -> None:
    current_job().completing()


@pytest.mark.parametrize("function", [in_thread, in_process, in_own_executor])
async def test_completing_is_refused_outside_of_the_event_loop(
    make: Make, function: Callable[[], None]
) -> None:
    scheduler = make(executors={"own": InThread()})
    scheduler.register(in_own_executor, executor="own")
    await scheduler.start()
    seen = Recorder(scheduler)
    await scheduler.enqueue(function)
    [failed] = await seen.until(JobFailed)
    assert failed.error.startswith(NotRunningError.__name__)
    assert "make it an async function" in failed.error


# -- in a transaction of the caller --------------------------------------------------------------------


def with_connection(own: asyncpg.Pool, *, commits: bool = True, isolation: Any = None) -> Callable[[], Any]:
    """Return a job that completes on a connection of its own."""

    async def complete() -> str:
        async with own.acquire() as connection:
            transaction = connection.transaction(isolation=isolation)
            await transaction.start()
            async with current_job().completing(connection=connection) as given:
                assert given is connection
                await add_effect(connection)
                current_job().set_result("kept")
            await (transaction.commit() if commits else transaction.rollback())
        await renew(current_job().scheduler)
        return "ignored"

    return complete


@pytest.mark.parametrize("commits", [True, False])
async def test_job_completes_with_the_transaction_of_the_caller_or_when_the_function_returns(
    make: Make, pools: Pools, pool: asyncpg.Pool, commits: bool
) -> None:
    scheduler = make()
    await scheduler.start()
    seen = Recorder(scheduler)
    function = with_connection(await pools(2), commits=commits)
    await scheduler.enqueue(function, job_id="one", keep_result=timedelta(hours=1))
    await seen.until(JobCompleted)
    await renew(scheduler)
    result = await scheduler.get_job_result("one", timeout=PATIENCE)
    assert isinstance(result, JobResult)
    assert result.unwrap() == "kept"
    assert await effects_of(pool) == (["one"] if commits else [])
    assert len(seen.of(JobCompleted)) == 1
    assert not seen.of(JobLost)


@pytest.mark.parametrize("by", ["the pool", "the same connection", "another connection", "a savepoint"])
async def test_block_may_be_repeated_after_the_caller_has_rolled_back_its_transaction(
    make: Make, pools: Pools, pool: asyncpg.Pool, by: str
) -> None:
    job_pool = await pools(2)
    scheduler = make()
    await scheduler.start()
    seen = Recorder(scheduler)

    async def complete_on(connection: Any, value: str) -> None:
        async with current_job().completing(connection=connection) as block_connection:
            await add_effect(block_connection)
            current_job().set_result(value)

    async def repeat() -> None:
        async with job_pool.acquire() as first, job_pool.acquire() as second:
            outer = first.transaction()
            await outer.start()
            rolled_back = first.transaction() if by == "a savepoint" else outer
            if rolled_back is not outer:
                await rolled_back.start()
            await complete_on(first, "rolled back")
            await rolled_back.rollback()
            await renew(scheduler)
            if by == "the pool":
                await complete_on(None, "kept")
            elif by == "a savepoint":
                await complete_on(first, "kept")
                await outer.commit()
            else:
                connection = first if by == "the same connection" else second
                async with connection.transaction():
                    await complete_on(connection, "kept")

    await scheduler.enqueue(repeat, job_id="one", keep_result=timedelta(hours=1))
    await seen.until(JobCompleted)
    result = await scheduler.get_job_result("one", timeout=PATIENCE)
    assert isinstance(result, JobResult)
    assert result.unwrap() == "kept"
    assert await effects_of(pool) == ["one"]
    assert (await row(pool, "one"))["attempt"] == 1
    assert not seen.of(JobLost)


@pytest.mark.parametrize("by", ["the pool", "the same connection", "another connection"])
@pytest.mark.parametrize("commits", [True, False])
async def test_second_block_states_that_the_transaction_of_the_first_one_was_not_rolled_back(
    make: Make, pools: Pools, pool: asyncpg.Pool, by: str, commits: bool
) -> None:
    """It is open if ``commits`` is False; then it is committed afterwards."""
    job_pool = await pools(2)
    scheduler = make()
    await scheduler.start()
    seen = Recorder(scheduler)
    errors: list[str] = []

    async def repeat() -> None:
        async with job_pool.acquire() as first, job_pool.acquire() as second, second.transaction():
            transaction = first.transaction()
            await transaction.start()
            async with current_job().completing(connection=first):
                await add_effect(first)
            if commits:
                await transaction.commit()
                transaction = first.transaction()
                await transaction.start()
            second_connection = {
                "the pool": None,
                "the same connection": first,
                "another connection": second,
            }[by]
            try:
                async with current_job().completing(connection=second_connection):
                    pass
            except RuntimeError as error:
                errors.append(str(error))
            await transaction.commit()

    await scheduler.enqueue(repeat, job_id="one")
    await seen.until(JobCompleted)
    [error] = errors
    assert error.startswith(
        "job 'one' has another block of completing(), whose transaction was not rolled back; use one block"
    )
    assert await effects_of(pool) == ["one"]


async def test_steps_may_follow_a_block_whose_transaction_the_caller_has_rolled_back(
    make: Make, pools: Pools, pool: asyncpg.Pool
) -> None:
    job_pool = await pools(2)
    scheduler = make()
    await scheduler.start()
    seen = Recorder(scheduler)

    async def work_on() -> None:
        steps = current_job().steps
        async with steps.cursor("position") as cursor:
            async with job_pool.acquire() as connection:
                transaction = connection.transaction()
                await transaction.start()
                async with current_job().completing(connection=connection):
                    pass
                await transaction.rollback()
            await cursor.save(7)
        await steps.run("later", later, "value")

    await scheduler.enqueue(work_on, job_id="one")
    await seen.until(JobCompleted)
    names = await pool.fetch("SELECT name FROM scheduler_steps WHERE job_id = 'one' ORDER BY name")
    assert [name for (name,) in names] == ["later", "position"]


@pytest.mark.parametrize("commits", [True, False])
async def test_exception_after_the_commit_of_the_caller_is_logged_and_after_its_rollback_retried(
    make: Make, pools: Pools, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, commits: bool
) -> None:
    complete = with_connection(await pools(2), commits=commits)

    async def fail_late() -> None:
        await complete()
        if len(seen.of(JobStarted)) == 1:
            raise LookupError("too late")

    scheduler = make(retry_policy=NO_DELAY)
    await scheduler.start()
    seen = Recorder(scheduler)
    await scheduler.enqueue(fail_late, job_id="one", max_retries=1)
    await seen.until(JobCompleted)
    await until(lambda: not worker_of(scheduler).node.in_flight.attempts)
    errors = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert ["had completed when its function failed" in each for each in errors] == [True] * commits
    assert len(seen.of(JobRetried)) == (not commits)
    assert not seen.of(JobLost)
    assert (await row(pool, "one"))["error_message"] is None


async def test_replacement_starts_after_the_commit_of_the_caller_and_the_replaced_job_has_completed(
    scheduler: Scheduler, seen: Recorder, pools: Pools
) -> None:
    own = await pools(2)
    new_began = asyncio.Event()

    async def old() -> None:
        await scheduler.enqueue(new, job_id="one", conflict_resolution=ConflictResolution.REPLACE)
        await with_connection(own)()

    async def new() -> None:
        new_began.set()

    scheduler.register(new)
    await scheduler.enqueue(old, job_id="one")
    await asyncio.wait_for(new_began.wait(), PATIENCE)
    await seen.until(JobCompleted, 2)
    assert not seen.of(JobLost)


async def test_lease_is_renewed_while_the_transaction_of_the_caller_is_open(
    scheduler: Scheduler, seen: Recorder, pools: Pools, pool: asyncpg.Pool
) -> None:
    own = await pools(1)
    held: list[object] = []

    async def wait() -> None:
        async with own.acquire() as connection, connection.transaction():
            async with current_job().completing(connection=connection):
                pass
            await renew(scheduler)
            held.append(worker_of(scheduler).node.in_flight.held())
            status: str = (await row(pool, "one"))["status"]
            held.append(status)

    await scheduler.enqueue(wait, job_id="one")
    await seen.until(JobCompleted)
    assert held == [{"one": 1}, "running"]
    assert not seen.of(JobLost)


async def test_step_after_the_block_is_refused_instead_of_waiting_for_its_own_transaction(
    scheduler: Scheduler, pools: Pools, pool: asyncpg.Pool
) -> None:
    own = await pools(1)

    async def complete() -> None:
        async with own.acquire() as connection, connection.transaction():
            async with current_job().completing(connection=connection):
                await add_effect(connection)
            await current_job().steps.run("one", later, "late")

    error = await failure_of(scheduler, complete)
    assert isinstance(error, JobLostError)
    assert error.__notes__ == ["its block of completing() has ended; write steps before the end of the block"]
    assert await effects_of(pool) == []


async def test_attempt_that_swallowed_an_interruption_is_interrupted_again(
    make: Make, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_options(monkeypatch, call_timeout_s=0.2)
    own = await pools(2)
    scheduler = make()
    await scheduler.start()
    written = asyncio.Event()
    interrupted = [asyncio.Event(), asyncio.Event()]

    async def ignore() -> None:
        async with own.acquire() as connection, connection.transaction():
            async with current_job().completing(connection=connection):
                pass
            written.set()
            for each in interrupted:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    each.set()

    await scheduler.enqueue(ignore, job_id="one")
    await asyncio.wait_for(written.wait(), PATIENCE)
    attempt = attempt_of(scheduler, "one")
    AttemptRunner.time_out(attempt)
    await asyncio.wait_for(interrupted[0].wait(), PATIENCE)
    attempt.revoke(Revocation.SHUTDOWN)
    await asyncio.wait_for(interrupted[1].wait(), PATIENCE)


async def failure_of(scheduler: Scheduler, function: Callable[[], Any]) -> BaseException:
    """Return the exception with which a job fails."""
    seen = Recorder(scheduler)
    await scheduler.enqueue(function)
    [failed] = await seen.until(JobFailed)
    assert failed.exception is not None
    return failed.exception


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_completing_refuses_transactions_of_other_isolation_levels(
    scheduler: Scheduler, pools: Pools, pool: asyncpg.Pool, isolation: str
) -> None:
    error = await failure_of(scheduler, with_connection(await pools(1), isolation=isolation))
    assert isinstance(error, ValueError)
    assert "begin it at READ COMMITTED" in str(error)
    assert await effects_of(pool) == []


@pytest.mark.parametrize("is_awaited", [True, False])
@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_completing_refuses_a_block_that_sets_another_isolation_level(
    scheduler: Scheduler, seen: Recorder, pool: asyncpg.Pool, isolation: str, is_awaited: bool
) -> None:
    async def complete() -> None:
        async with current_job().completing() as connection:
            await connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            await add_effect(connection)

    scheduler.register(complete)
    await scheduler.enqueue(complete, job_id="parent", delay=timedelta(hours=1))
    if is_awaited:
        await scheduler.enqueue(later, args=("child",), after=["parent"])
    await scheduler.run_job_now("parent")
    [failed] = await seen.until(JobFailed, job_id="parent")
    assert isinstance(failed.exception, ValueError)
    assert "begin it at READ COMMITTED" in str(failed.exception)
    assert await effects_of(pool) == []


async def test_completing_refuses_a_connection_without_a_transaction(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    async def complete() -> None:
        async with pool.acquire() as connection, current_job().completing(connection=connection):
            pass

    error = await failure_of(scheduler, complete)
    assert isinstance(error, ValueError)
    assert "not in a transaction" in str(error)


async def test_completing_refuses_connections_that_are_not_of_asyncpg(scheduler: Scheduler, dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        for given in (connection, "default", object(), scheduler.db_pool):

            async def complete(given: object = given) -> None:
                async with current_job().completing(connection=given):
                    pass

            complete.__qualname__ = f"complete_with_{type(given).__name__}"
            error = await failure_of(scheduler, complete)
            assert isinstance(error, TypeError), given
            assert "AsyncSession or AsyncConnection of SQLAlchemy" in str(error)


async def test_completing_refuses_a_transaction_that_the_block_has_replaced(
    scheduler: Scheduler, pools: Pools, pool: asyncpg.Pool
) -> None:
    own = await pools(1)

    async def complete() -> None:
        async with own.acquire() as connection:
            first, second = connection.transaction(), connection.transaction()
            await first.start()
            try:
                async with current_job().completing(connection=connection):
                    await first.commit()
                    await second.start()
                    await add_effect(connection)
            finally:
                await second.rollback()

    error = await failure_of(scheduler, complete)
    assert isinstance(error, ValueError)
    assert "has ended within the block" in str(error)
    assert await effects_of(pool) == []
