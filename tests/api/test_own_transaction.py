"""A job whose open transaction has stored a step: its calls that need the same lock do not wait for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobFailedError, Scheduler, Sleep, Wait, call, current_job
from tests.api.conftest import Make
from tests.support import inside
from tests.support.patience import PATIENCE


async def reserve(connection: asyncpg.Connection) -> int:
    await connection.execute("INSERT INTO stock VALUES (1)")
    return 1


async def nothing() -> None: ...


async def complete() -> None:
    async with current_job().completing():
        pass


async def set_cursor() -> None:
    async with current_job().steps.cursor("cursor") as cursor:
        await cursor.set(1)


async def flush() -> None:
    stream = current_job().stream("log")
    await stream.append(1)
    await stream.flush()


CALLS: dict[str, Callable[[], Awaitable[Any]]] = {
    "publish()": lambda: current_job().publish("state", "reserved"),
    "flush()": flush,
    "append()": lambda: current_job().stream("log").append(1),
    "completing()": complete,
    "step 'run'": lambda: current_job().steps.run("run", nothing),
    "step 'transaction'": lambda: current_job().steps.transaction("transaction", reserve),
    "step 'cursor'": set_cursor,
    "step 'sleep'": lambda: current_job().steps.sleep("sleep", 60),
    "step 'wait'": lambda: current_job().steps.wait("wait"),
    "step 'box#1'": lambda: current_job().steps.receive("box"),
    "step 'child'": lambda: current_job().steps.child("child", call(nothing)),
    "step 'gather'": lambda: current_job().steps.gather("gather", [call(nothing)]),
    "step 'first'": lambda: current_job().steps.first("first", Wait("one"), Sleep("two", timedelta(hours=1))),
}
"""The calls of a job that write to its rows, by what the error names."""

WAITS = {"step 'sleep'", "step 'wait'", "step 'box#1'", "step 'first'"}
"""Those of them that wait, for what no test sends."""


@pytest.fixture
async def scheduler(make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    await pool.execute("CREATE TABLE stock (item integer)")
    inside.replace(monkeypatch, items_of_batch_of_stream=1)  # so that append() writes, too
    scheduler = make()
    await scheduler.start()
    return scheduler


@pytest.mark.parametrize("what", CALLS)
async def test_call_that_needs_the_lock_of_its_own_transaction_raises_at_once(
    scheduler: Scheduler, pool: asyncpg.Pool, what: str
) -> None:
    async def job() -> None:
        async with pool.acquire() as connection, connection.transaction():
            await current_job().steps.transaction("reserve", reserve, connection=connection)
            await CALLS[what]()

    subject = "append()" if what == "flush()" else what
    with pytest.raises(JobFailedError, match="would wait for the transaction with which step") as raised:
        await scheduler.run_job(job, timeout=PATIENCE, wait_timeout=PATIENCE)
    assert f"RuntimeError: {subject} of job" in str(raised.value), str(raised.value)
    assert await pool.fetchval("SELECT count(*) FROM stock") == 0


@pytest.mark.parametrize("what", sorted(CALLS.keys() - WAITS))
async def test_call_after_the_commit_is_no_mistake(
    scheduler: Scheduler, pool: asyncpg.Pool, what: str
) -> None:
    async def job() -> None:
        async with pool.acquire() as connection, connection.transaction():
            await current_job().steps.transaction("reserve", reserve, connection=connection)
        await CALLS[what]()

    await scheduler.run_job(job, timeout=PATIENCE, wait_timeout=PATIENCE)
    assert await pool.fetchval("SELECT count(*) FROM stock") >= 1


async def test_values_that_were_published_before_the_step_are_committed_with_it(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    async def job() -> None:
        async with current_job().completing() as connection:
            await current_job().publish("state", "reserved")
            await current_job().steps.transaction("reserve", reserve, connection=connection)

    job_id = await scheduler.enqueue(job)
    await scheduler.get_job_result(job_id, timeout=PATIENCE)
    assert await scheduler.get_value(job_id, "state") == "reserved"
    assert await pool.fetchval("SELECT count(*) FROM stock") == 1


@pytest.mark.parametrize("kind", ["run", "transaction"])
async def test_function_of_a_step_cannot_complete_the_job(
    scheduler: Scheduler, pool: asyncpg.Pool, kind: str
) -> None:
    async def book(connection: asyncpg.Connection | None = None) -> None:
        if connection is not None:
            await connection.execute("INSERT INTO stock VALUES (1)")
        await complete()

    async def job() -> None:
        await getattr(current_job().steps, kind)("book", book)

    with pytest.raises(JobFailedError, match=r"completing\(\) within the function of step 'book' would end"):
        await scheduler.run_job(job, timeout=PATIENCE, wait_timeout=PATIENCE)
    assert await pool.fetchval("SELECT count(*) FROM stock") == 0


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("command", ["COMMIT", "ROLLBACK"])
async def test_function_of_a_step_cannot_end_its_transaction(
    scheduler: Scheduler, pool: asyncpg.Pool, command: str, is_own: bool
) -> None:
    async def book(connection: asyncpg.Connection) -> None:
        await connection.execute(command)

    async def job() -> None:
        if is_own:
            await current_job().steps.transaction("book", book)
            return
        async with pool.acquire() as connection:
            await connection.execute("BEGIN")
            try:
                await current_job().steps.transaction("book", book, connection=connection)
            finally:
                await connection.execute("ROLLBACK")

    with pytest.raises(JobFailedError) as raised:
        await scheduler.run_job(job, timeout=PATIENCE, wait_timeout=PATIENCE)
    assert "ValueError: the transaction of step 'book' has ended within its function" in str(raised.value)
