"""A job that completes in the transaction of a session or connection of SQLAlchemy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from pg_scheduler import Scheduler, current_job
from pg_scheduler.events import JobCompleted, JobFailed, JobLost
from tests.integrations.conftest import url_of
from tests.support.worker import Recorder

EFFECT = text("INSERT INTO effects VALUES (1)")


@pytest.fixture
async def engine(dsn: str, pool: asyncpg.Pool) -> AsyncIterator[AsyncEngine]:
    await pool.execute("CREATE TABLE effects (number integer)")
    engine = create_async_engine(url_of(dsn))
    yield engine
    await engine.dispose()


@pytest.fixture
async def scheduler(pool: asyncpg.Pool) -> AsyncIterator[Scheduler]:
    async with Scheduler(pool) as scheduler:
        yield scheduler


async def effects(pool: asyncpg.Pool) -> int:
    return int(await pool.fetchval("SELECT count(*) FROM effects"))


def opening(engine: AsyncEngine, kind: str) -> Callable[[], Any]:
    """Return what opens a session or a connection."""
    sessions = async_sessionmaker(engine)
    match kind:
        case "connection":
            return engine.connect
        case "session":
            return sessions
    return async_scoped_session(sessions, asyncio.current_task)


async def run(scheduler: Scheduler, function: Callable[[], Any]) -> Recorder:
    """Run a job until it has ended, and return the events."""
    seen = Recorder(scheduler)
    await scheduler.enqueue(function, job_id="one")
    await seen.until(JobFailed if function.__name__ == "fail" else JobCompleted)
    return seen


@pytest.mark.parametrize("kind", ["connection", "session", "scoped session"])
@pytest.mark.parametrize("commits", [True, False])
async def test_commit_and_rollback_apply_to_the_effect_and_the_completion(
    engine: AsyncEngine, scheduler: Scheduler, pool: asyncpg.Pool, kind: str, commits: bool
) -> None:
    open_one, states = opening(engine, kind), list[str]()

    async def complete() -> None:
        source = open_one()
        async with source as given:
            async with current_job().completing(connection=given or source) as yielded:
                await yielded.execute(EFFECT)
            await (yielded.commit() if commits else yielded.rollback())
            states.append(await pool.fetchval("SELECT status FROM scheduled_jobs"))

    seen = await run(scheduler, complete)
    assert states == ["completed" if commits else "running"]
    assert await effects(pool) == commits
    assert len(seen.of(JobCompleted)) == 1
    assert not seen.of(JobLost)


async def test_savepoint_that_is_rolled_back_undoes_the_completion_too(
    engine: AsyncEngine, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    states: list[str] = []

    async def complete() -> None:
        async with AsyncSession(engine) as session, session.begin():
            nested = await session.begin_nested()
            async with current_job().completing(connection=session):
                await session.execute(EFFECT)
            await nested.rollback()
            await session.commit()
            states.append(await pool.fetchval("SELECT status FROM scheduled_jobs"))

    await run(scheduler, complete)
    assert states == ["running"]
    assert await effects(pool) == 0


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"])
async def test_other_isolation_levels_are_refused(
    engine: AsyncEngine, scheduler: Scheduler, pool: asyncpg.Pool, level: str
) -> None:
    async def fail() -> None:
        async with AsyncSession(engine.execution_options(isolation_level=level)) as session:
            async with current_job().completing(connection=session):
                await session.execute(EFFECT)
            await session.commit()

    seen = await run(scheduler, fail)
    [failed] = seen.of(JobFailed)
    assert isinstance(failed.exception, ValueError)
    assert await effects(pool) == 0


@pytest.mark.parametrize("driver", ["psycopg", "psycopg_async"])
async def test_other_drivers_are_refused(
    dsn: str, scheduler: Scheduler, pool: asyncpg.Pool, driver: str
) -> None:
    other = create_async_engine(dsn.replace("postgresql://", f"postgresql+{driver}://", 1))

    async def fail() -> None:
        async with other.connect() as connection, current_job().completing(connection=connection):
            pass

    seen = await run(scheduler, fail)
    [failed] = seen.of(JobFailed)
    assert isinstance(failed.exception, TypeError)
    await other.dispose()


async def test_session_that_commits_within_the_block_does_not_complete_the_job(
    engine: AsyncEngine, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    async def fail() -> None:
        async with AsyncSession(engine) as session, current_job().completing(connection=session):
            await session.commit()

    seen = await run(scheduler, fail)
    [failed] = seen.of(JobFailed)
    assert "has ended within the block" in failed.error
