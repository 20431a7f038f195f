"""What holds a connection of the pool takes no second one: many that do would wait for one another.

Each case runs with a pool of one connection, and fails as soon as a task wants one while it holds one.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, DatabaseUnavailableError, Scheduler, call, current_job
from pg_scheduler.events import JobCompleted, JobFailed, JobProgressed, JobRetried
from pg_scheduler.triggers import Every
from tests.api.conftest import Make, Pools
from tests.support.guards import guard
from tests.support.store import use_options
from tests.support.worker import Recorder, now

LATER: Final = timedelta(days=1)


@pytest.fixture
def second_connections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the places where a task wanted a connection while it held one, which raises there."""
    places: list[str] = []
    holders: dict[int, object] = {}
    acquire: Any = asyncpg.Pool._acquire  # type: ignore[attr-defined] # acquire() and fetch() call it
    release = asyncpg.Pool.release

    async def acquire_first(pool: asyncpg.Pool, timeout: float | None) -> Any:
        task = asyncio.current_task()
        if task in holders.values():
            places.append("".join(traceback.format_stack()))
            raise AssertionError("the task that wants this connection holds one")
        connection = await acquire(pool, timeout)
        holders[id(connection)] = task
        return connection

    async def release_it(pool: asyncpg.Pool, connection: Any, **options: Any) -> None:
        holders.pop(id(connection), None)
        await release(pool, connection, **options)

    monkeypatch.setattr(asyncpg.Pool, "_acquire", acquire_first)
    monkeypatch.setattr(asyncpg.Pool, "release", release_it)
    return places


async def end(x: int = 0) -> int:
    return x


async def child() -> str:
    return "ä"


async def completing_with_progress() -> None:
    current_job().progress(1, 2)
    async with current_job().completing():
        current_job().progress(2, 2, note="ä")


async def completing_with_calls() -> str:
    scheduler = current_job().scheduler
    async with current_job().completing() as connection:
        await call_all(scheduler, connection)
        current_job().set_result("ä")
    return "ä"


async def completing_on_a_connection_of_the_job() -> None:
    pool = current_job().scheduler.db_pool
    async with (
        pool.acquire() as connection,
        connection.transaction(),
        current_job().completing(connection=connection),
    ):
        current_job().progress(1)


async def completing_in_a_transaction_of_a_statement() -> None:
    pool = current_job().scheduler.db_pool
    async with pool.acquire() as connection:
        await connection.execute("BEGIN")
        async with current_job().completing(connection=connection):
            current_job().progress(1, note="ä")
        await connection.execute("COMMIT")


async def steps() -> None:
    current_job().progress(1)
    run = current_job().steps

    async def write(connection: Any) -> None:
        current_job().progress(2)
        await call_all(current_job().scheduler, connection)

    await run.run("first", end, 1)
    await run.transaction("second", write)
    await run.child("third", call(child))
    await run.sleep("fourth", timedelta(milliseconds=1))


async def call_all(scheduler: Scheduler, connection: Any) -> None:
    """Call what takes a connection with one."""
    await scheduler.enqueue(end, connection=connection)
    await scheduler.enqueue(end, job_id="id", connection=connection)
    await scheduler.enqueue(end, unique="key", connection=connection)
    await scheduler.schedule(
        end,
        execution_time=now() + LATER,
        job_id="replaced",
        conflict_resolution=ConflictResolution.REPLACE,
        connection=connection,
    )
    await scheduler.enqueue(end, after=["replaced"], job_id="after", connection=connection)
    await scheduler.signal("replaced", "go", connection=connection)
    await scheduler.get_job("replaced", connection=connection)
    await scheduler.cancel_job("after", connection=connection)
    await scheduler.schedules.add(end, trigger=Every(LATER), schedule_id="every", connection=connection)
    await scheduler.schedules.trigger("every", connection=connection)
    await scheduler.schedules.remove("every", connection=connection)


JOBS: Final[list[Callable[[], Awaitable[object]]]] = [
    completing_with_progress,
    completing_with_calls,
    completing_on_a_connection_of_the_job,
    completing_in_a_transaction_of_a_statement,
    steps,
]


@pytest.mark.parametrize("work", JOBS)
async def test_job_that_holds_the_only_connection_waits_for_no_other(
    work: Callable[[], Awaitable[object]], make: Make, pools: Pools, second_connections: list[str]
) -> None:
    scheduler = make(await pools(1))
    scheduler.register(end)
    scheduler.register(child)
    scheduler.register(work)
    await scheduler.start()
    seen = Recorder(scheduler)
    job_id = await scheduler.enqueue(work, keep_result=LATER)
    await seen.until(JobCompleted, job_id=job_id)
    assert "\n".join(second_connections) == ""
    assert seen.of(JobRetried) == []


async def test_progress_of_a_block_is_that_of_the_row_and_of_the_event(make: Make, pools: Pools) -> None:
    scheduler = make(await pools(1))
    await scheduler.start()
    seen = Recorder(scheduler)
    job_id = await scheduler.enqueue(completing_with_progress)
    await seen.until(JobCompleted, job_id=job_id)
    (last,) = seen.of(JobProgressed, done=2)
    assert last.note == "ä"
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert job.progress is not None
    assert (job.progress.done, job.progress.note) == (2, "ä")


async def test_progress_of_a_block_that_is_rolled_back_is_written_with_the_outcome(
    make: Make, pools: Pools
) -> None:
    async def fail() -> None:
        pool = current_job().scheduler.db_pool
        async with pool.acquire() as connection, connection.transaction():
            async with current_job().completing(connection=connection):
                current_job().progress(1)
            raise asyncpg.UniqueViolationError("rolled back")

    scheduler = make(await pools(2))
    await scheduler.start()
    seen = Recorder(scheduler)
    job_id = await scheduler.enqueue(fail, max_retries=0)
    await seen.until(JobFailed, job_id=job_id)
    job = await scheduler.get_job(job_id)
    assert job is not None
    assert job.progress is not None
    assert job.progress.done == 1


async def test_progress_that_a_trigger_refuses_does_not_refuse_the_block(
    make: Make, pools: Pools, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make(await pools(1))
    await scheduler.initialize_db()
    refusal = "IF NEW.progress IS NOT NULL THEN RAISE EXCEPTION 'no progress'; END IF; RETURN NEW;"
    await guard(pool, refusal, on="UPDATE", is_deferred=False)
    await scheduler.start()
    seen = Recorder(scheduler)
    job_id = await scheduler.enqueue(completing_with_progress)
    await seen.until(JobCompleted, job_id=job_id)
    assert "refused by the table: RaiseError: no progress" in caplog.text


async def test_call_that_finds_no_free_connection_says_that_the_pool_is_used_up(
    make: Make, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_options(monkeypatch, call_timeout_s=0.2)
    pool = await pools(1)
    scheduler = make(pool)
    await scheduler.initialize_db()
    async with pool.acquire():
        with pytest.raises(DatabaseUnavailableError, match=r"no connection .*\(max_size=1\) was free for"):
            await scheduler.get_job("any")
    assert await scheduler.get_job("any") is None
