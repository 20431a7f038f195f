"""A Scheduler whose search path names a schema of another role calls nothing of that role."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import (
    ConflictResolution,
    JobSpec,
    RetryPolicy,
    Scheduler,
    VacuumConfig,
    VacuumPolicy,
    current_job,
    periodic,
)
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import JobCompleted, JobExpired, JobRetried, JobsReclaimed
from pg_scheduler.migrate import migrate
from tests.store.test_statements import use_path, use_schedules, use_vacuum
from tests.support.inside import Connections, Store
from tests.support.store import NOW
from tests.support.traps import PATHS, SPRUNG, calls_of_statements, create_traps
from tests.support.worker import PATIENCE, Recorder, now

pytestmark = pytest.mark.slow

PASSWORD = "open sesame"


async def introspect(connection: asyncpg.Connection) -> None:
    """Have asyncpg query the array types with another search path: its own statements qualify no names."""
    await connection.execute("SET search_path = pg_catalog")
    await connection.prepare("SELECT $1::int4[], $2::int8[], $3::float8[], $4::timestamptz[], $5::oid[]")
    await connection.execute("RESET search_path")


class Victim:
    """A role whose search path begins with the schema of a hostile role.

    Attributes:
        admin: A connection of a superuser.
        dsn: The database, as the role.
    """

    def __init__(self, admin: asyncpg.Connection, dsn: str, role: str, path: str) -> None:
        self.admin = admin
        self.dsn = dsn
        self.role = role
        self.path = path

    async def connect(self, stack: AsyncExitStack) -> asyncpg.Pool:
        """Return a pool of the role."""
        settings = {"search_path": self.path}
        pool = await asyncpg.create_pool(
            self.dsn,
            min_size=0,
            max_size=6,
            user=self.role,
            password=PASSWORD,
            server_settings=settings,
            init=introspect,
        )
        stack.push_async_callback(asyncio.wait_for, pool.close(), 20)
        return pool

    async def sprung(self) -> list[str]:
        """Return the traps that were called."""
        return [row[0] for row in await self.admin.fetch(SPRUNG)]


@pytest.fixture(params=PATHS)
async def victim(empty_dsn: str, request: pytest.FixtureRequest) -> AsyncIterator[Victim]:
    admin = await asyncpg.connect(empty_dsn)
    suffix = uuid.uuid4().hex
    hostile, role = f"hostile_{suffix}", f"victim_{suffix}"
    try:
        await admin.execute(
            f"CREATE ROLE {hostile}; CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}';"
            f"CREATE SCHEMA trap AUTHORIZATION {hostile}; CREATE SCHEMA jobs AUTHORIZATION {role};"
            f"CREATE SCHEMA other AUTHORIZATION {role}; GRANT USAGE ON SCHEMA jobs TO PUBLIC"
        )
        await admin.execute(f"SET ROLE {role}")
        await migrate(admin, schema="jobs")
        await admin.execute("RESET ROLE")
        calls = await calls_of_statements(admin, "jobs")
        await admin.execute(f"SET ROLE {hostile}")
        await create_traps(admin, calls)
        await admin.execute("RESET ROLE")
        yield Victim(admin, empty_dsn, role, request.param)
    finally:
        await admin.execute("RESET ROLE")
        await admin.execute(f"DROP OWNED BY {hostile}, {role} CASCADE; DROP ROLE {hostile}, {role}")
        await admin.close()


async def test_traps_are_called_by_statements_that_do_not_qualify_names(victim: Victim) -> None:
    async with AsyncExitStack() as stack:
        pool = await victim.connect(stack)
        with pytest.raises(asyncpg.RaiseError, match="sprung: function make_interval"):
            await pool.fetchval("SELECT make_interval(secs => 1)")
    assert await victim.sprung() == ["sprung function make_interval"]


async def test_migrations_and_repairs_call_no_trap(victim: Victim) -> None:
    async with AsyncExitStack() as stack:
        pool = await victim.connect(stack)
        async with pool.acquire() as connection:
            path = await connection.fetchval("SHOW search_path")
            assert await migrate(connection, schema="jobs", target=0)
            async with connection.transaction():
                assert await migrate(connection, schema="jobs")
                assert await connection.fetchval("SHOW search_path") == path
            assert await connection.fetchval("SHOW search_path") == path
            await connection.execute("DELETE FROM jobs.scheduler_migrations")
            await migrate(connection, schema="jobs")
            await connection.execute("DROP TABLE jobs.scheduled_jobs, jobs.scheduler_workers")
            await migrate(connection, schema="jobs")
            assert await migrate(connection, schema="other")
    assert await victim.sprung() == []


async def test_store_calls_no_trap(victim: Victim) -> None:
    async with AsyncExitStack() as stack:
        pool = await victim.connect(stack)
        for use in (use_vacuum, use_schedules, use_path):
            store = Store(Connections(pool), schema="jobs", clock=FakeClock(NOW))
            await use(store)
            await store.connections.release_held()
    assert await victim.sprung() == []


async def work(*args: object) -> None: ...


async def fail_once() -> None:
    if current_job().attempt == 1:
        raise ValueError("once")


async def wait_long() -> None:
    await asyncio.sleep(60)  # it is cancelled


async def test_scheduler_calls_no_trap(victim: Victim) -> None:
    ran = asyncio.Event()

    @periodic(every=timedelta(seconds=1), use_advisory_lock=True, dedup_key="often")
    async def often() -> None:
        ran.set()

    async with AsyncExitStack() as stack:
        pool = await victim.connect(stack)
        scheduler = Scheduler(
            pool,
            schema="jobs",
            retry_policy=RetryPolicy(base=timedelta(milliseconds=10)),
            vacuum_config=VacuumConfig(
                completed=VacuumPolicy.after_days(1), failed=VacuumPolicy.keep_last(1), track_metrics=True
            ),
            shutdown_timeout=1,
        )
        seen = Recorder(scheduler)
        for function in (work, fail_once, wait_long):
            scheduler.register(function)
        await victim.admin.execute(
            "INSERT INTO jobs.scheduled_jobs"
            " (job_id, job_name, execution_time, status, worker_id, attempt, lease_until, expires_at) VALUES"
            " ('orphan', $1, now() - interval '1 hour', 'running', 'gone', 1, now() - interval '1 hour',"
            " NULL),"
            " ('late', 'nobody.knows', now() - interval '1 hour', 'pending', NULL, 0, NULL,"
            " now() - interval '1 minute')",
            f"{work.__module__}.work",
        )
        stack.push_async_callback(scheduler.shutdown)
        await scheduler.start()
        await scheduler.schedule(work, execution_time=now(), job_id="job")
        await scheduler.schedule(fail_once, execution_time=now(), job_id="retried", max_retries=1)
        await scheduler.schedule_bulk([JobSpec(work, execution_time=now()) for _ in range(1500)])
        await scheduler.schedule_bulk([JobSpec(work, execution_time=now(), job_id="named")])
        async with pool.acquire() as connection, connection.transaction():
            await scheduler.schedule(work, execution_time=now(), job_id="mine", connection=connection)
        await scheduler.schedule(wait_long, execution_time=now(), job_id="long")
        await scheduler.schedule(
            work,
            execution_time=now() + timedelta(hours=1),
            job_id="job 2",
            conflict_resolution=ConflictResolution.REPLACE,
        )
        await seen.until(JobCompleted, 1500 + 5)
        await seen.until(JobRetried, job_id="retried")
        await seen.until(JobsReclaimed)
        await seen.until(JobExpired, job_id="late")
        assert await scheduler.cancel_job("long")
        assert await scheduler.retry_job("job")
        await seen.until(JobCompleted, 2, job_id="job")
        await asyncio.wait_for(ran.wait(), PATIENCE)
        assert (await scheduler.count_jobs()).completed > 1500
        assert await scheduler.list_jobs(job_name=f"{work.__module__}.work", limit=3)
        assert await scheduler.workers()
        scheduler.disable_periodic_job("often")
    assert await victim.sprung() == []
