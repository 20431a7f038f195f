"""A worker does not start in a copy of the database of its rows, unless it is told to."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, DatabaseCopyError, Scheduler
from pg_scheduler.events import JobCompleted
from pg_scheduler.inspect import FindingCode, Inspector
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import Every
from tests.support.inside import store_of, worker_of
from tests.support.logs import warnings_of
from tests.support.worker import PATIENCE, Recorder

LATER = timedelta(hours=1)
OTHER_SERVER = "UPDATE scheduler_database SET system = '1'"
OTHER_DATABASE = "UPDATE scheduler_database SET database = 1"
UNREADABLE = "UPDATE scheduler_database SET system = NULL"
RESTORED = (
    "CREATE TABLE records AS TABLE scheduler_migrations; DELETE FROM scheduler_migrations; "
    "INSERT INTO scheduler_migrations SELECT * FROM records; DROP TABLE records"
)
"""What a restored dump does to the row that shows its origin."""


async def bill() -> None: ...


async def remind() -> None: ...


async def archive() -> None: ...


def connect(pool: asyncpg.Pool, **settings: Any) -> Scheduler:
    return Scheduler(pool, **{"shutdown_timeout": 0.05, **settings})


@pytest.fixture
async def original(pool: asyncpg.Pool) -> Scheduler:
    """A Scheduler that has run here, and left a job and a schedule."""
    async with connect(pool) as scheduler:
        await scheduler.enqueue("bill", delay=LATER, job_id="bill")
        await scheduler.schedules.add("copies.report", Every(hours=1), schedule_id="report")
    return scheduler


async def make_copy(pool: asyncpg.Pool, *changes: str) -> None:
    for change in changes or (OTHER_SERVER,):
        await pool.execute(change)


@pytest.mark.parametrize(
    "changes", [[OTHER_SERVER], [OTHER_DATABASE], [UNREADABLE, RESTORED], [UNREADABLE, OTHER_DATABASE]]
)
@pytest.mark.usefixtures("original")
async def test_worker_does_not_start_in_a_copy(pool: asyncpg.Pool, changes: list[str]) -> None:
    await make_copy(pool, *changes)
    for role in ("both", "worker", "scheduler", "observer"):
        with pytest.raises(
            DatabaseCopyError, match=r"is a copy of '.+'; .*execute pg-scheduler adopt|adopt --hold"
        ):
            await connect(pool, role=role).start()
    copy = connect(pool)
    await copy.enqueue("bill", job_id="enqueued on a copy", delay=LATER)
    assert await pool.fetchval("SELECT count(*) FROM scheduler_workers") == 0


@pytest.mark.usefixtures("original")
async def test_worker_starts_again_in_its_own_database(pool: asyncpg.Pool) -> None:
    await pool.execute(UNREADABLE)
    for _ in range(2):
        async with connect(pool):
            pass
    system = "SELECT system_identifier::text FROM pg_control_system()"
    await pool.execute(f"UPDATE scheduler_database SET system = ({system})")
    await pool.execute(RESTORED)
    async with connect(pool):
        pass


async def test_worker_whose_role_may_not_read_the_record_starts_with_a_warning(
    pool: asyncpg.Pool, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So it is before the grants of an upgrade are repeated."""
    role = f"worker_{uuid.uuid4().hex}"
    await pool.execute(
        f"CREATE ROLE {role}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}; "
        f"REVOKE ALL ON scheduler_database FROM {role}"
    )
    try:
        async with (
            asyncpg.create_pool(dsn, min_size=1, server_settings={"role": role}) as own_pool,
            connect(own_pool, migrations="verify") as scheduler,
        ):
            assert scheduler.is_running
    finally:
        await pool.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    (message,) = warnings_of(caplog)
    assert message.startswith("copies of this database are not recognised: ")


@pytest.mark.parametrize("has_run", [False, True])
async def test_copy_of_a_template_without_work_is_adopted_in_silence(
    dsn: str, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, has_run: bool
) -> None:
    if has_run:
        async with connect(pool):
            pass
    source = await pool.fetchval("SELECT current_database()")
    await pool.close()
    name = f"copy_{uuid.uuid4().hex[:8]}"
    admin = await asyncpg.connect(dsn, database="postgres")
    await admin.execute(f'CREATE DATABASE {name} TEMPLATE "{source}"')
    try:
        async with (
            asyncpg.create_pool(dsn, database=name, min_size=1, max_size=4) as copied,
            connect(copied),
        ):
            assert await copied.fetchval("SELECT name FROM scheduler_database") == name
    finally:
        await admin.execute(f"DROP DATABASE {name}")
        await admin.close()
    assert warnings_of(caplog) == []


@pytest.mark.usefixtures("original")
async def test_copy_that_is_adopted_runs_its_jobs(
    pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    await make_copy(pool)
    scheduler = connect(pool, on_copy="adopt")
    seen = Recorder(scheduler)

    async def bill() -> None: ...

    scheduler.register(bill, name="bill")
    async with scheduler:
        await scheduler.run_job_now("bill")
        await seen.until(JobCompleted, job_id="bill")
    assert any("adopted database" in warning for warning in warnings_of(caplog))
    async with connect(pool):
        pass


@pytest.mark.usefixtures("original")
async def test_copy_that_is_held_has_paused_all_tasks_and_schedules(pool: asyncpg.Pool) -> None:
    await make_copy(pool)
    async with connect(pool, on_copy="hold") as scheduler:
        paused = {task.name for task in await scheduler.tasks.list() if task.is_paused}
        assert paused == {"bill", "copies.report"}
        schedule = await scheduler.schedules.get("report")
        assert schedule is not None
        assert schedule.paused_at is not None
    record = await pool.fetchrow("SELECT action, details FROM scheduler_audit ORDER BY id DESC LIMIT 1")
    assert record is not None
    assert record["action"] == "adopt_database"


NOT_NAMED = {"job_id", "status", "worker_id", "error_message", "blocked_on", "unique_key"}
"""The columns of jobs with text that is no name of a task."""


async def test_copy_that_is_held_has_paused_the_tasks_that_only_other_jobs_name(
    pool: asyncpg.Pool, original: Scheduler
) -> None:
    for name, function in (("bill", bill), ("reminder", remind), ("archive", archive)):
        original.register(function, name=name, on_failure=f"alert of {name}")
    await original.enqueue("bill", delay=LATER)
    await original.enqueue("archive", delay=LATER, job_id="replaced")
    await pool.execute(
        """UPDATE scheduled_jobs SET status = 'running', attempt = 1, worker_id = 'gone', lease_until = now()
           WHERE job_id = 'replaced'"""
    )
    await original.enqueue(
        "reminder", delay=LATER, job_id="replaced", conflict_resolution=ConflictResolution.REPLACE
    )
    await pool.execute(
        """UPDATE scheduled_jobs SET function = 'copies.function' WHERE job_id = 'bill';
           INSERT INTO scheduled_jobs (job_name, execution_time, status, finished_at, on_end)
           VALUES ('copies.report', now(), 'failed', now(), '{"on_failure": "alert of an ended job"}')"""
    )
    columns = await pool.fetch(
        """SELECT column_name FROM information_schema.columns
           WHERE table_name = 'scheduled_jobs' AND data_type = 'text'"""
    )
    assert {row[0] for row in columns} - NOT_NAMED == {"job_name", "function"}, "see hold_tasks"
    await make_copy(pool)
    async with connect(pool, on_copy="hold") as scheduler:
        paused = {task.name for task in await scheduler.tasks.list() if task.is_paused}
    assert paused == {
        *("bill", "archive", "reminder", "copies.function", "copies.report"),
        *("alert of bill", "alert of archive", "alert of reminder", "alert of an ended job"),
    }


@pytest.mark.usefixtures("original")
async def test_doctor_names_a_copy(pool: asyncpg.Pool) -> None:
    assert (await Inspector(pool).doctor(only=[FindingCode.DB_COPY])).findings == ()
    await make_copy(pool)
    (finding,) = (await Inspector(pool).doctor(only=[FindingCode.DB_COPY])).findings
    assert "pg-scheduler adopt --hold" in (finding.remedy or "")


@pytest.mark.usefixtures("original")
async def test_test_scheduler_does_not_look_for_copies(pool: asyncpg.Pool) -> None:
    await make_copy(pool)
    async with TestScheduler(pool):
        pass
    assert await pool.fetchval("SELECT system FROM scheduler_database") == "1"


@pytest.fixture
async def running(pool: asyncpg.Pool, request: pytest.FixtureRequest) -> AsyncIterator[Scheduler]:
    """A Scheduler that runs, with the ``on_copy=`` of the test."""
    scheduler = connect(pool, on_copy=getattr(request, "param", "refuse"))
    await scheduler.start()
    yield scheduler
    await scheduler.shutdown()


async def exchange(pool: asyncpg.Pool, scheduler: Scheduler) -> None:
    """Restore tables with work over those of a running worker, which registers again."""
    await pool.execute(f"{OTHER_SERVER}, name = 'production'; DELETE FROM scheduler_workers")
    await connect(pool).enqueue("bill", delay=LATER)
    worker_of(scheduler).heartbeat.wake()


async def test_worker_ends_when_tables_of_another_database_are_restored_under_it(
    pool: asyncpg.Pool, running: Scheduler
) -> None:
    await exchange(pool, running)
    with pytest.raises(DatabaseCopyError, match="is a copy of 'production'"):
        await running.wait()
    assert await pool.fetchval("SELECT count(*) FROM scheduler_workers") == 0


@pytest.mark.parametrize("running", ["hold"], indirect=True)
async def test_worker_holds_tables_of_another_database_that_are_restored_under_it(
    pool: asyncpg.Pool, running: Scheduler
) -> None:
    async with asyncio.timeout(PATIENCE):
        await exchange(pool, running)
        while not await pool.fetchval("SELECT count(*) FROM scheduler_workers"):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    assert {task.name for task in await running.tasks.list() if task.is_paused} == {"bill"}
    assert running.is_running


async def test_worker_whose_tables_have_moved_to_another_server_goes_on(
    pool: asyncpg.Pool, running: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """After pg_upgrade or a switch to a replica, the record is that of its start, on another server."""
    identity = store_of(running).identity
    assert identity.started_in is not None
    identity.started_in = identity.started_in._replace(system="1")
    async with asyncio.timeout(PATIENCE):
        await exchange(pool, running)
        while not await pool.fetchval("SELECT count(*) FROM scheduler_workers"):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    assert running.is_running
    assert any("has moved to another server" in warning for warning in warnings_of(caplog))
