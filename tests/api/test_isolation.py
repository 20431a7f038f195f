"""Isolation levels other than READ COMMITTED: the default of a role, and those of the application."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal, TypeAlias

import asyncpg
import pytest

import pg_scheduler
from pg_scheduler import DatabaseUnavailableError, JobStatus, Scheduler
from pg_scheduler.database.callers.adapter import COMMANDS
from tests.api.conftest import Make
from tests.support.inside import store_of
from tests.support.worker import PATIENCE, now

LATER: Final = timedelta(hours=1)
Isolation: TypeAlias = Literal["repeatable_read", "serializable"]
SNAPSHOTS: Final[tuple[Isolation, ...]] = ("repeatable_read", "serializable")

BLOCKED_ON: Final = "SELECT blocked_on FROM scheduled_jobs WHERE job_id = $1"


async def succeed() -> None: ...


def begun_elsewhere(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that begin a transaction at the default level of the role."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="transaction", value=owner), keywords=keywords):
                is_of_asyncpg = ast.unparse(owner).endswith("connection")
                if is_of_asyncpg and "isolation" not in {keyword.arg for keyword in keywords}:
                    yield node.lineno
            case ast.Constant(value=str(text)) if text.startswith("BEGIN"):
                if "ISOLATION LEVEL READ COMMITTED" not in text:
                    yield node.lineno


def test_every_transaction_of_the_library_begins_with_its_level() -> None:
    root = Path(pg_scheduler.__file__).parent
    lines = {
        f"{path.relative_to(root)}: {text[number - 1].strip()}"
        for path in root.rglob("*.py")
        for text in [path.read_text(encoding="utf-8").splitlines()]
        for number in begun_elsewhere(ast.parse("\n".join(text)))
    }
    assert lines == {
        # The beginnings of commands, a probe of a pooler that reads nothing, a script for psql that creates
        # functions, and an example of an application.
        f"database/callers/adapter.py: COMMANDS: Final = {COMMANDS}".replace("'", '"'),
        'database/opening.py: await sessions[-1].execute("BEGIN", timeout=PROBE_TIMEOUT_S)',
        'inspect/store/senders.py: return f"BEGIN;\\n\\n{script}\\nCOMMIT;\\n"',
        "cli/demo/jobs.py: async with self._pool.acquire() as connection, connection.transaction():",
    }


@pytest.fixture(params=["repeatable read", "serializable"])
async def default_level(request: pytest.FixtureRequest, pool: asyncpg.Pool) -> AsyncIterator[str]:
    """Another default of the database, which new sessions have."""
    database = await pool.fetchval("SELECT quote_ident(current_database())")
    setting = "default_transaction_isolation"
    await pool.execute(f"ALTER DATABASE {database} SET {setting} = '{request.param}'")
    await pool.expire_connections()
    yield request.param
    await pool.execute(f"ALTER DATABASE {database} RESET {setting}")


async def test_job_is_unblocked_by_two_that_end_together_when_the_role_has_another_level(
    default_level: str, make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    assert await pool.fetchval("SHOW default_transaction_isolation") == default_level
    parents = [await scheduler.schedule(succeed, execution_time=now() + LATER) for _ in range(2)]
    child = await scheduler.enqueue(succeed, after=parents)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = $1 FOR UPDATE", child)
        endings = [
            asyncio.create_task(scheduler.update_job_status(parent, JobStatus.COMPLETED))
            for parent in parents
        ]
        async with asyncio.timeout(PATIENCE):
            while await waiting_transactions(pool) < len(parents):
                pass
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*endings)
    assert await pool.fetchval(BLOCKED_ON, child) is None


async def waiting_transactions(pool: asyncpg.Pool) -> int:
    """The number of sessions that wait for a lock of a row."""
    count: int = await pool.fetchval(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return count


async def test_held_session_reads_committed_rows_when_the_role_has_another_level(
    default_level: str, scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    connections = store_of(scheduler).connections
    async with connections.dedicated_connection as connection:
        assert connection is not None
        assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
    await connections.release_held()
    assert await pool.fetchval("SHOW transaction_isolation") == default_level


# -- transactions of the application -----------------------------------------------------------------------


@pytest.mark.parametrize("isolation", SNAPSHOTS)
async def test_job_is_unblocked_after_a_cancellation_in_a_snapshot_that_lacks_another_end(
    make: Make, pool: asyncpg.Pool, isolation: Isolation
) -> None:
    scheduler = make()
    cancelled, ended = [await scheduler.schedule(succeed, execution_time=now() + LATER) for _ in range(2)]
    child = await scheduler.schedule(
        succeed, execution_time=now() + LATER, after=[cancelled, ended], after_outcome="ended"
    )
    async with scheduler:
        async with pool.acquire() as connection, connection.transaction(isolation=isolation):
            await connection.fetchval("SELECT count(*) FROM scheduled_jobs")
            await scheduler.update_job_status(ended, JobStatus.COMPLETED)
            assert await scheduler.cancel_job(cancelled, connection=connection)
        await until_unblocked(pool, child)


@pytest.mark.parametrize("isolation", SNAPSHOTS)
async def test_job_is_unblocked_that_waits_since_the_snapshot_of_a_cancellation(
    make: Make, pool: asyncpg.Pool, isolation: Isolation
) -> None:
    scheduler = make()
    mark = {"cancelled": True}
    cancelled = await scheduler.schedule(succeed, execution_time=now() + LATER, metadata=mark)
    await scheduler.schedule(succeed, execution_time=now() + LATER, after=[cancelled], after_outcome="ended")
    async with scheduler:
        async with pool.acquire() as connection, connection.transaction(isolation=isolation):
            await connection.fetchval("SELECT count(*) FROM scheduled_jobs")
            child = await scheduler.schedule(
                succeed, execution_time=now() + LATER, after=[cancelled], after_outcome="ended"
            )
            await scheduler.cancel_jobs(metadata=mark, connection=connection)
        await until_unblocked(pool, child)


async def until_unblocked(pool: asyncpg.Pool, job_id: str) -> None:
    """Wait for less than the scan of jobs that wait takes to come."""
    async with asyncio.timeout(10):
        while await pool.fetchval(BLOCKED_ON, job_id) is not None:
            pass


async def test_call_in_a_read_only_transaction_names_the_transaction(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    async with pool.acquire() as connection, connection.transaction(readonly=True):
        with pytest.raises(DatabaseUnavailableError, match="begin your own transaction READ WRITE"):
            await scheduler.enqueue(succeed, connection=connection)


async def test_serialization_failure_of_the_mark_of_a_job_is_one_of_the_database(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    parent = await scheduler.schedule(succeed, execution_time=now() + LATER)
    async with pool.acquire() as connection:
        transaction = connection.transaction(isolation="repeatable_read")
        await transaction.start()
        # The trigger that marks the other job fires within the call, and not at the commit.
        await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        await connection.fetchval("SELECT count(*) FROM scheduled_jobs")
        await scheduler.update_job_status(parent, JobStatus.COMPLETED)
        with pytest.raises(DatabaseUnavailableError) as caught:
            await scheduler.enqueue(succeed, after=[parent], connection=connection)
        assert isinstance(caught.value.__cause__, asyncpg.SerializationError)
        await transaction.rollback()
