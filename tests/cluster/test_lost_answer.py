"""A call whose transaction was committed but whose answer was lost; see the guide on scheduling."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, DatabaseUnavailableError, JobConflictError, Scheduler
from pg_scheduler.embedded import EmbeddedPostgres
from tests.support.worker import now

TERMINATE_WAITING = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
)


async def work() -> None: ...


async def until_commits_wait(pool: asyncpg.Pool, other: asyncpg.Pool) -> None:
    """Return when the server has noticed that it has a standby to wait for."""

    async def commit() -> None:
        async with pool.acquire() as connection:
            while True:
                await connection.execute("SELECT pg_logical_emit_message(true, '', '')")

    with pytest.raises(asyncpg.PostgresConnectionError):
        await asyncio.gather(commit(), terminate_waiting(other))


async def terminate_waiting(pool: asyncpg.Pool) -> None:
    """Terminate a session whose commit waits for a standby."""
    while not await pool.fetchval(TERMINATE_WAITING):
        pass


async def test_schedule_raises_a_conflict_when_the_failed_call_had_committed(
    private_server: EmbeddedPostgres, private_dsn: str
) -> None:
    """The connection ends after the local commit, while the server waits for a missing standby."""
    async with (
        asyncpg.create_pool(private_dsn, min_size=0, server_settings={"synchronous_commit": "on"}) as pool,
        asyncpg.create_pool(private_server.dsn(), min_size=1, max_size=1) as other,
    ):
        scheduler = Scheduler(pool)
        await scheduler.initialize_db()
        later = now() + timedelta(hours=1)
        await other.execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'")
        try:
            await other.execute("SELECT pg_reload_conf()")
            async with asyncio.timeout(60):
                await until_commits_wait(pool, other)
                call = asyncio.create_task(scheduler.schedule(work, execution_time=later, job_id="one"))
                await terminate_waiting(other)
                with pytest.raises(DatabaseUnavailableError):
                    await call
        finally:
            await other.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await other.execute("SELECT pg_reload_conf()")

        with pytest.raises(JobConflictError):
            await scheduler.schedule(work, execution_time=later, job_id="one")
        again = await scheduler.schedule(
            work, execution_time=later, job_id="one", conflict_resolution=ConflictResolution.IGNORE
        )
        assert again == "one"
        assert (await scheduler.count_jobs()).total == 1
