"""A call whose job was committed and whose answer was lost, as the guide on scheduling tells it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, DatabaseUnavailableError, JobConflictError, Scheduler
from pg_scheduler.embedded import EmbeddedPostgres
from tests.support.worker import now

END_ITS_WAIT = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def work() -> None: ...


async def test_a_call_that_raised_may_have_scheduled_the_job(victim: EmbeddedPostgres, address: str) -> None:
    """The server has committed, and waits for a standby that never comes, when the connection ends."""
    async with (
        asyncpg.create_pool(address, min_size=0, server_settings={"synchronous_commit": "on"}) as pool,
        asyncpg.create_pool(victim.dsn(), min_size=1, max_size=1) as besides,
    ):
        scheduler = Scheduler(pool)
        await scheduler.initialize_db()
        later = now() + timedelta(hours=1)
        await besides.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        try:
            await besides.execute("SELECT pg_reload_conf()")
            call = asyncio.create_task(scheduler.schedule(work, execution_time=later, job_id="one"))
            async with asyncio.timeout(20):
                while not await besides.fetchval(END_ITS_WAIT):
                    pass
                with pytest.raises(DatabaseUnavailableError):
                    await call
        finally:
            await besides.execute("ALTER SYSTEM RESET synchronous_standby_names")
            await besides.execute("SELECT pg_reload_conf()")

        with pytest.raises(JobConflictError):
            await scheduler.schedule(work, execution_time=later, job_id="one")
        again = await scheduler.schedule(
            work, execution_time=later, job_id="one", conflict_resolution=ConflictResolution.IGNORE
        )
        assert again == "one"
        assert (await scheduler.count_jobs()).total == 1
