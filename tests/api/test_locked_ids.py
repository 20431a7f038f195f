"""Calls whose id or unique key an open transaction has inserted: they wait, and no other call does."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError, JobConflictError, Scheduler
from tests.api.conftest import Make
from tests.support.store import as_user, use_options
from tests.support.worker import PATIENCE, now

KEY = "the key"
INSERT = """
    INSERT INTO scheduled_jobs (job_id, job_name, execution_time, task_data, unique_key)
    VALUES ($1, 'raw', now() + interval '1 hour', '{"args": [], "kwargs": {}}', $2)
"""
LATER = timedelta(hours=1)


async def succeed() -> None: ...


async def enqueue(scheduler: Scheduler, **options: Any) -> str:
    return await scheduler.enqueue(succeed, delay=LATER, **options)


async def schedule(scheduler: Scheduler, **options: Any) -> str:
    return await scheduler.schedule(succeed, execution_time=now() + LATER, **options)


@asynccontextmanager
async def holder(dsn: str, job_id: str, key: str | None = None) -> AsyncIterator[asyncpg.Connection]:
    """Yield a connection whose open transaction has inserted a job."""
    connection = await asyncpg.connect(dsn, server_settings={"application_name": "holder"})
    try:
        await connection.execute("BEGIN")
        await connection.execute(INSERT, job_id, key)
        yield connection
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("call", "conflict"),
    [(enqueue, {"job_id": "x"}), (enqueue, {"unique": KEY}), (schedule, {"job_id": "x"})],
    ids=["enqueue-id", "enqueue-key", "schedule-id"],
)
@pytest.mark.parametrize("size", [1, 2, 8])
async def test_calls_for_other_jobs_end_while_a_call_waits_for_an_open_transaction(
    dsn: str, make: Make, call: Callable[..., Any], conflict: dict[str, Any], size: int
) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=size) as pool,
        holder(dsn, "x", KEY) as connection,
    ):
        scheduler = make(pool)
        waiting = [asyncio.create_task(call(scheduler, **conflict)) for _ in range(3)]
        async with asyncio.timeout(PATIENCE):
            for number in range(3):
                await asyncio.gather(
                    call(scheduler),
                    call(scheduler, keep_result=LATER),
                    call(scheduler, job_id=f"other {number}"),
                    call(scheduler, unique=f"other key {number}"),
                )
        assert not any(each.done() for each in waiting)
        await connection.execute("COMMIT")
        async with asyncio.timeout(PATIENCE):
            results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [JobConflictError] * 3


async def test_call_for_an_id_for_which_another_call_waits_shares_no_statement_with_others(
    dsn: str, make: Make
) -> None:
    """It would meet the same lock, and delay all calls of that statement."""
    sent: list[str] = []

    async def listen(connection: asyncpg.Connection) -> None:
        connection.add_query_logger(lambda record: sent.append(f"{record.args}"))

    async with asyncpg.create_pool(dsn, min_size=1, init=listen) as pool, holder(dsn, "x") as connection:
        scheduler = make(pool)
        waiting = [asyncio.create_task(enqueue(scheduler, job_id="x"))]
        async with asyncio.timeout(PATIENCE):
            await asyncio.create_task(enqueue(scheduler, job_id="other"))  # after that call began to wait
            # The statement of the first of these calls makes the others share the next one.
            calls = [asyncio.create_task(enqueue(scheduler, job_id=job_id)) for job_id in ("y", "x", "z")]
            waiting.append(calls.pop(1))
            assert await asyncio.gather(*calls) == ["y", "z"]
            await connection.execute("ROLLBACK")
            results = await asyncio.gather(*waiting, return_exceptions=True)
    assert results.count("x") == 1
    shared = [args for args in sent if "'z'" in args]
    assert shared
    assert not [args for args in shared if "'x'" in args]


async def test_one_of_the_waiting_calls_inserts_its_job_when_the_transaction_is_rolled_back(
    dsn: str, make: Make
) -> None:
    scheduler = make()
    async with holder(dsn, "x") as connection:
        waiting = [asyncio.create_task(enqueue(scheduler, job_id="x")) for _ in range(3)]
        async with asyncio.timeout(PATIENCE):
            await asyncio.create_task(enqueue(scheduler, job_id="other"))
            await connection.execute("ROLLBACK")
            results = await asyncio.gather(*waiting, return_exceptions=True)
    assert results.count("x") == 1
    assert [type(result) for result in results if result != "x"] == [JobConflictError] * 2
    assert await scheduler.get_job("x") is not None


async def test_waiting_call_can_be_cancelled_and_leaves_the_others_waiting(dsn: str, make: Make) -> None:
    scheduler = make()
    async with holder(dsn, "x") as connection:
        waiting = [asyncio.create_task(enqueue(scheduler, job_id="x")) for _ in range(2)]
        async with asyncio.timeout(PATIENCE):
            await asyncio.create_task(enqueue(scheduler, job_id="other"))  # after the others began to wait
            waiting[0].cancel()
            await asyncio.wait(waiting[:1])
            await connection.execute("ROLLBACK")
            results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1] == "x"


@pytest.mark.slow
@pytest.mark.parametrize("sees", ["all", "names"])
async def test_waiting_call_raises_after_its_timeout_and_names_the_transaction(
    dsn: str, make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, sees: str
) -> None:
    use_options(monkeypatch, call_timeout_s=3)  # real time: the timeout is the subject
    role = f"enqueuer_{secrets.token_hex(4)}"
    await pool.execute(f"CREATE ROLE {role} LOGIN; GRANT INSERT, SELECT ON scheduled_jobs TO {role}")
    if sees == "all":
        await pool.execute(f"GRANT pg_read_all_stats TO {role}")
    try:
        async with (
            asyncpg.create_pool(as_user(dsn, role), min_size=1, max_size=5) as own,
            holder(dsn, "x") as connection,
        ):
            with pytest.raises(DatabaseUnavailableError, match="with the job id 'x'") as raised:
                await enqueue(make(own), job_id="x")
            found = f"pid {connection.get_server_pid()}, application 'holder'"
            since = ", in transaction since 2" if sees == "all" else ";"
            assert found + since in str(raised.value)
            assert isinstance(raised.value.__cause__, asyncpg.LockNotAvailableError)
    finally:
        await pool.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("options", [{}, {"job_id": "x"}, {"unique": KEY}])
async def test_call_keeps_the_lock_timeout_of_the_callers_transaction(
    make: Make, pool: asyncpg.Pool, options: dict[str, str]
) -> None:
    scheduler = make()
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL lock_timeout = '7s'")
        await enqueue(scheduler, connection=connection, **options)
        assert await connection.fetchval("SHOW lock_timeout") == "7s"
