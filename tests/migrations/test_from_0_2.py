"""Migrating a database of pg-scheduler 0.2.x, up and down."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler, current_job
from pg_scheduler.migrate import migrate, verify
from tests.migrations.dump import CHECKED_IN, describe
from tests.support.catalogues import clear_registrations
from tests.support.inside import load_queries
from tests.support.world import World
from tools.upgrade import legacy

WAITING_ARGS = [1, 2.5, "žluť", None, True, [1, {"deep": []}]]
MAIL = json.dumps({"args": [12345], "kwargs": {"to": "someone@example.org", "subject": "Your order"}})
ALL_ROWS = "SELECT * FROM scheduled_jobs"
BACKLOG = 3000

Rows = Mapping[str, Mapping[str, Any]]


async def rows_by_id(connection: asyncpg.Connection) -> Rows:
    return {row["job_id"]: dict(row) for row in await connection.fetch(ALL_ROWS)}


@pytest.fixture
async def old_database(
    empty_dsn: str, connection: asyncpg.Connection, old_environment: dict[str, str]
) -> asyncpg.Connection:
    """A connection to a database in which 0.2.3 was killed while a job was running."""
    assert await legacy.fill(empty_dsn, old_environment) == [{"args": ["done"], "kwargs": {}}]
    return connection


async def test_migrate_keeps_every_job_of_0_2_and_fills_the_new_columns(
    old_database: asyncpg.Connection,
) -> None:
    await old_database.execute(
        "INSERT INTO vacuum_stats (stat_date, deleted_completed) VALUES ('2020-01-01', 7)"
    )
    async with old_database.transaction():
        # Wait until the statements of the killed process have ended.
        await old_database.execute("LOCK TABLE scheduled_jobs")
        now = await old_database.fetchval("SELECT now()")
        before = await rows_by_id(old_database)
        await migrate(old_database)
        after = await rows_by_id(old_database)

    assert await describe(old_database, "public") == CHECKED_IN.read_text(encoding="utf-8")
    assert {
        job_id: row.keys() - before[job_id].keys() for job_id, row in after.items()
    }.keys() == before.keys()
    for job_id, old in before.items():
        kept = {column: after[job_id][column] for column in old}
        assert kept == old
        assert {column: value for column, value in after[job_id].items() if column not in old} == {
            "function": None,
            "attempt": 1 if old["status"] == "running" else 0,
            "timeout_seconds": 3600,
            "lock_key": None,
            "expires_at": expiry(old) if old["status"] == "pending" else None,
            "started_at": old["last_heartbeat"] if old["status"] == "running" else None,
            "finished_at": (old["last_heartbeat"] or now) if is_finished(old) else None,
            "on_end": None,
            "blocked_on": None,
            "unique_key": None,
            "options": None,
            "progress": None,
            "errors": None,
            "crash_count": 0,
        }

    assert {job_id: row["status"] for job_id, row in after.items() if not job_id.startswith("periodic:")} == {
        "waiting": "pending",
        "patient": "pending",
        "bulk": "pending",
        "retrying": "pending",
        "stuck": "running",
        "done": "completed",
        "broken": "failed",
        "late": "expired",
        "cancelled": "cancelled",
    }
    assert {row["status"] for row in after.values() if row["job_name"] == "periodic_tick"} >= {
        "completed",
        "pending",
    }
    assert json.loads(after["waiting"]["task_data"]) == {"args": WAITING_ARGS, "kwargs": {"key": "value"}}
    assert after["patient"]["expires_at"] is None
    assert after["broken"]["error_message"] == after["retrying"]["error_message"] == "as planned"
    statistics = await old_database.fetchrow("SELECT * FROM vacuum_stats WHERE stat_date = '2020-01-01'")
    assert statistics is not None
    assert (statistics["deleted_completed"], statistics["deleted_expired"]) == (7, 0)


def expiry(row: Mapping[str, Any]) -> datetime | None:
    grace = row["misfire_grace_time"]
    moment: datetime = row["execution_time"]
    return None if grace is None else moment + timedelta(seconds=grace)


def is_finished(row: Mapping[str, Any]) -> bool:
    return row["status"] not in {"pending", "running"}


async def test_migrated_backlog_of_0_2_is_claimed_with_hot_updates_only(
    connection: asyncpg.Connection,
) -> None:
    await migrate(connection)
    await migrate(connection, target=0)
    await connection.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, task_data, misfire_grace_time)"
        f" SELECT 'job-' || n, 'backlog.mail', now(), 'pending', '{MAIL}', 300"
        f" FROM generate_series(1, {BACKLOG}) AS n"
    )
    await migrate(connection)
    await World(connection).worker("w1")  # type: ignore[arg-type] # a connection is enough
    statement = load_queries("public")["exchange_jobs"].text
    since, after = [None] * 4, [""] * 4
    hot = "SELECT pg_stat_get_xact_tuples_hot_updated('scheduled_jobs'::regclass)"
    async with connection.transaction():
        before = await connection.fetchval(hot)
        for _ in range(BACKLOG // 100):
            await connection.fetch(
                statement, "w1", ["backlog.mail"], 100, None, [], 0, *since, True, after, True, None, 1
            )
        assert await connection.fetchval(hot) - before == BACKLOG


async def test_scheduler_runs_the_migrated_jobs_of_0_2(
    old_database: asyncpg.Connection, empty_dsn: str
) -> None:
    # The bare names of 0.2 resolve while one function has them; other tests declare functions of these names.
    clear_registrations()
    await migrate(old_database)
    await old_database.execute(
        """
        UPDATE scheduled_jobs SET execution_time = now(), expires_at = NULL WHERE finished_at IS NULL;
        UPDATE scheduled_jobs SET lease_until = now() - interval '1 second' WHERE status = 'running';
        """
    )
    waiting = "SELECT job_id, job_name FROM scheduled_jobs WHERE finished_at IS NULL"
    names = {row["job_id"]: row["job_name"] for row in await old_database.fetch(waiting)}
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    all_called = asyncio.Event()

    def called(name: str, *args: Any, **kwargs: Any) -> None:
        calls.append((name, args, kwargs))
        if len(calls) == len(names):
            all_called.set()

    async def note(*args: Any, **kwargs: Any) -> None:
        called("note", *args, **kwargs)

    async def fail() -> None:
        called("fail")

    async def hang() -> None:
        called("hang")

    async def tick() -> None:
        called("tick")

    async with asyncpg.create_pool(empty_dsn, min_size=1, max_size=10) as pool:
        scheduler = Scheduler(pool)
        for function in (note, fail, hang):
            scheduler.register(function)
        scheduler.register(tick, aliases=("periodic_tick",))
        await scheduler.start()
        try:
            await scheduler.recover_orphaned_jobs()
            await asyncio.wait_for(all_called.wait(), 30)
        finally:
            await scheduler.shutdown()

    ended = await rows_by_id(old_database)
    assert {job_id: ended[job_id]["status"] for job_id in names} == dict.fromkeys(names, "completed")
    assert sorted(name for name, _, _ in calls) == sorted(
        name.removeprefix("periodic_") for name in names.values()
    )
    assert ("note", tuple(WAITING_ARGS), {"key": "value"}) in calls


async def test_producers_of_0_2_insert_jobs_during_and_after_the_migration(
    connection: asyncpg.Connection,
    empty_dsn: str,
    old_environment: dict[str, str],
) -> None:
    clear_registrations()
    await migrate(connection)
    await migrate(connection, target=0)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(legacy.PROGRAM), "produce", empty_dsn),
        env=old_environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin
    assert stdout
    try:
        async with asyncio.timeout(30):
            stdin.write(b"before\n")
            produced = json.loads(await stdout.readline())
            async with connection.transaction():
                await migrate(connection)
                stdin.write(b"during\n")
                waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
                while not await connection.fetchval(waits):  # noqa: ASYNC110 - a lock wait raises no event
                    await asyncio.sleep(0.01)
            produced += json.loads(await stdout.readline())
            stdin.write(b"after\n")
            produced += json.loads(await stdout.readline())
    finally:
        stdin.close()
        await process.wait()
    assert len(produced) == 12

    calls: list[str] = []
    all_called = asyncio.Event()

    async def note() -> None:
        calls.append(current_job().job_id)
        if len(calls) == len(produced):
            all_called.set()

    async with asyncpg.create_pool(empty_dsn, min_size=1, max_size=10) as pool:
        scheduler = Scheduler(pool)
        scheduler.register(note)
        async with scheduler:
            await asyncio.wait_for(all_called.wait(), 30)
    assert sorted(calls) == sorted(produced)


async def test_old_release_runs_all_jobs_after_migrating_down_to_0(
    old_database: asyncpg.Connection,
    empty_dsn: str,
    old_environment: dict[str, str],
) -> None:
    # Other tests of the process may have registered a function "note" with other parameters.
    clear_registrations()
    async with old_database.transaction():
        # Wait until the statements of the killed process have ended.
        await old_database.execute("LOCK TABLE scheduled_jobs")
        shape, before = await describe(old_database, "public"), await rows_by_id(old_database)
        await migrate(old_database)
    await old_database.execute(
        """
        INSERT INTO scheduled_jobs (job_id, job_name, function, execution_time, task_data)
        VALUES ('ours', 'Our report', 'shop.reports.note', now(), '{"args": ["ours"], "kwargs": {}}');
        INSERT INTO scheduled_jobs (job_id, job_name, execution_time, blocked_on, on_end)
        VALUES ('blocked', 'shop.note', now(), 'after', '{"child": true}')
        """
    )
    async with asyncpg.create_pool(empty_dsn, min_size=1) as pool:
        client = Scheduler(pool)
        await client.enqueue("note", args=("ours too",), job_id="described", metadata={"tenant": "ada"})
    await migrate(old_database, target=0)
    after = await rows_by_id(old_database)
    assert {job_id: after[job_id] for job_id in before} == before
    await old_database.execute("DROP TABLE scheduler_migrations")
    assert await describe(old_database, "public") == shape
    await old_database.execute(
        """
        UPDATE scheduled_jobs SET execution_time = now() WHERE job_id IN ('waiting', 'patient');
        UPDATE scheduled_jobs SET last_heartbeat = now() - interval '1 hour' WHERE status = 'running';
        """
    )
    due = ("waiting", "patient", "stuck", "ours", "blocked", "described")
    calls = await legacy.run(empty_dsn, old_environment, *due)
    assert {"args": WAITING_ARGS, "kwargs": {"key": "value"}} in calls
    assert {"args": ["ours"], "kwargs": {}} in calls
    assert {"args": ["ours too"], "kwargs": {}} in calls  # it ignores metadata, as every later release does
    assert len(calls) == len(due)

    await migrate(old_database)
    assert await describe(old_database, "public") == CHECKED_IN.read_text(encoding="utf-8")


async def test_migrate_down_succeeds_when_an_old_node_recreated_its_indexes(
    connection: asyncpg.Connection,
) -> None:
    await migrate(connection)
    await connection.execute("CREATE INDEX idx_jobs_worker_cleanup ON scheduled_jobs (worker_id, status)")
    await migrate(connection, target=0)


async def test_migrate_corrects_rows_that_violate_the_constraints_and_keeps_them_when_reverted(
    connection: asyncpg.Connection,
) -> None:
    """The oldest 0.2.x had no misfire_grace_time and, without metrics, no vacuum_stats."""
    await connection.execute(
        """
        CREATE TABLE scheduled_jobs (
            job_id text PRIMARY KEY DEFAULT gen_random_uuid()::text, job_name text NOT NULL,
            execution_time timestamptz NOT NULL, status text DEFAULT 'pending', task_data jsonb,
            created_at timestamptz DEFAULT CURRENT_TIMESTAMP, last_heartbeat timestamptz,
            lease_until timestamptz, priority integer DEFAULT 5, retry_count integer DEFAULT 0,
            max_retries integer DEFAULT 0, worker_id text, error_message text
        );
        INSERT INTO scheduled_jobs
            (job_id, job_name, execution_time, status, task_data, created_at,
             priority, retry_count, max_retries)
        VALUES
            ('empty', 'f', 'infinity', NULL, NULL, NULL, NULL, NULL, NULL),
            ('odd', 'f', now(), 'paused', '{}', now(), 4, -1, -2),
            ('alone', 'f', now(), 'running', '{}', now(), 1, 1, 2),
            ('early', repeat('n', 70000), '-infinity', 'pending', '{}', NULL, 5, 0, 0);
        """
    )
    await migrate(connection)
    await verify(connection)
    assert await describe(connection, "public") == CHECKED_IN.read_text(encoding="utf-8")
    rows = await rows_by_id(connection)
    empty, odd, alone, early = rows["empty"], rows["odd"], rows["alone"], rows["early"]
    assert (empty["status"], empty["priority"], empty["retry_count"], empty["max_retries"]) == (
        "pending",
        5,
        0,
        0,
    )
    assert json.loads(empty["task_data"]) == {"args": [], "kwargs": {}}
    assert empty["created_at"] > datetime(2020, 1, 1, tzinfo=UTC)
    assert (odd["status"], odd["priority"], odd["retry_count"], odd["max_retries"]) == ("failed", 5, 0, 0)
    assert odd["error_message"] == "unknown status 'paused' met by the migration"
    assert (alone["status"], alone["worker_id"], alone["attempt"]) == ("running", "unknown", 1)
    assert (len(early["job_name"]), early["execution_time"]) == (70_000, early["created_at"])
    await migrate(connection, target=0)
    assert (await rows_by_id(connection)).keys() == rows.keys()
