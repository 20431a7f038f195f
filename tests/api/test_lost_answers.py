"""Calls that share a statement: each gets a result or an error, whatever happens to the statement."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeAlias

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    ConnectionRejectedError,
    JobNotFoundError,
    JobResult,
    Scheduler,
    SchemaForbiddenError,
    SchemaMissingError,
    ServiceCancelledError,
)
from tests.api.conftest import NEEDS_RESET, Make
from tests.support.inside import store_of
from tests.support.worker import PATIENCE, now

Waiter: TypeAlias = asyncio.Task[JobResult]

CALLERS = 5


async def succeed() -> None: ...


async def errors_of(*calls: Awaitable[object]) -> list[type[BaseException] | None]:
    """Return the classes of the errors of concurrent calls; None for a call that succeeded."""
    async with asyncio.timeout(PATIENCE):
        results = await asyncio.gather(*calls, return_exceptions=True)
    return [type(result) if isinstance(result, BaseException) else None for result in results]


async def schedule_many(scheduler: Scheduler) -> list[type[BaseException] | None]:
    return await errors_of(*(scheduler.schedule(succeed, execution_time=now()) for _ in range(CALLERS)))


async def discard_all(connection: asyncpg.Connection) -> None:
    await connection.execute("DISCARD ALL")


@asynccontextmanager
async def two_waiters(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Waiter]]:
    """Yield two callers that wait for the result of a pending job, and have queried once."""
    queried = asyncio.Event()
    results = store_of(scheduler).kept_results
    get = results.get

    async def observed(job_ids: Sequence[str]) -> dict[str, JobResult | None]:
        found = await get(job_ids)
        queried.set()
        return found

    monkeypatch.setattr(results, "get", observed)
    job_id = await scheduler.schedule(succeed, execution_time=now() + timedelta(hours=1))
    waiters = [asyncio.create_task(scheduler.get_job_result(job_id)) for _ in range(2)]
    async with asyncio.timeout(PATIENCE):
        await queried.wait()
    yield waiters


@NEEDS_RESET
async def test_concurrent_schedule_calls_all_end_when_the_pool_drops_prepared_statements(
    dsn: str, make: Make
) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1, reset=discard_all) as pool:
        scheduler = make(pool)
        errors = {error for _ in range(3) for error in await schedule_many(scheduler)}
    assert errors == {None, ConfigurationError}


async def test_concurrent_schedule_calls_all_raise_when_the_table_is_missing(
    make: Make, pool: asyncpg.Pool
) -> None:
    await pool.execute("DROP TABLE scheduled_jobs CASCADE")
    assert await schedule_many(make()) == [SchemaMissingError] * CALLERS


@pytest.mark.parametrize("raised", [GeneratorExit, asyncio.CancelledError, RuntimeError])
async def test_concurrent_schedule_calls_all_end_when_a_callable_of_the_pool_raises(
    dsn: str, make: Make, raised: type[BaseException]
) -> None:
    uses = 0

    async def set_up(_: Any) -> None:
        nonlocal uses
        uses += 1
        if uses == 3:  # the schema is looked up, the first call has its own statement, the others share one
            raise raised

    async with asyncpg.create_pool(dsn, min_size=1, max_size=2, setup=set_up) as pool:
        scheduler = make(pool)
        errors = await schedule_many(scheduler)
        assert errors[0] is None
        expected = ConnectionRejectedError if raised is RuntimeError else ServiceCancelledError
        assert errors[1:] == [expected] * (CALLERS - 1)
        assert await schedule_many(scheduler) == [None] * CALLERS


async def test_get_job_result_raises_for_every_waiter_when_the_table_is_dropped(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_waiters(make(), monkeypatch) as waiters:
        await pool.execute("DROP TABLE scheduler_results")
        assert await errors_of(*waiters) == [SchemaMissingError] * 2


async def test_get_job_result_raises_when_the_role_may_not_read_results(dsn: str, make: Make) -> None:
    admin = await asyncpg.connect(dsn)
    role = f"enqueuer_{secrets.token_hex(4)}"
    try:
        await admin.execute(f"CREATE ROLE {role} LOGIN; GRANT INSERT, SELECT ON scheduled_jobs TO {role}")
        async with asyncpg.create_pool(dsn, user=role, min_size=1, max_size=3) as pool:
            scheduler = make(pool)
            job_id = await scheduler.schedule(succeed, execution_time=now())
            calls = [scheduler.get_job_result(job_id) for _ in range(2)]
            assert await errors_of(*calls) == [SchemaForbiddenError] * 2
    finally:
        await admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await admin.close()


async def test_get_job_result_raises_for_every_waiter_when_its_task_is_cancelled(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_waiters(make(), monkeypatch) as waiters:
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "pg_scheduler result waiters"]
        task.cancel()
        assert await errors_of(*waiters) == [ServiceCancelledError] * 2


async def test_get_job_result_ends_for_the_other_waiter_when_one_is_cancelled(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_waiters(make(), monkeypatch) as waiters:
        waiters[0].cancel()
        await pool.execute("DELETE FROM scheduled_jobs")
        assert await errors_of(*waiters) == [asyncio.CancelledError, JobNotFoundError]
