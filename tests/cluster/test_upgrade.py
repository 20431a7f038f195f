"""An upgrade from the previous version of the library: its nodes stop, and the present version takes over.

The previous version is unpacked and runs in separate processes. Both cannot run together, because migration
0010 changes what the previous version uses.
"""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import JobSpec, Scheduler, SchemaMissingError
from pg_scheduler.migrate import Migration, migrate, shipped_migrations
from pg_scheduler.migrate.apply import apply
from tests.cluster.fleet import ROOT, TICK, Fleet, Node, environment
from tests.cluster.previous import head, unpack

SCHEDULES = ("--tick", "0.5")
SHORT = ("--lease", "3")
NO_ARGUMENTS: dict[str, object] = {"args": [], "kwargs": {}}
HEAD = shipped_migrations()[-1].version


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("previous"))


@pytest.fixture
def dsn(empty_dsn: str) -> str:
    """An empty database, which the test migrates."""
    return empty_dsn


async def schema_version(pool: asyncpg.Pool) -> int:
    found: int = await pool.fetchval("SELECT max(version) FROM scheduler_migrations")
    return found


async def enqueue(client: Scheduler, name: str, *job_ids: str) -> list[str]:
    return [
        await client.schedule_job(
            f"cluster.{name}", datetime.now(UTC), NO_ARGUMENTS, max_retries=1, job_id=job_id
        )
        for job_id in job_ids
    ]


async def start_held_jobs(fleet: Fleet, client: Scheduler, node: Node, *job_ids: str) -> None:
    """Start jobs that do not end on this node, the only one with a free slot."""
    await enqueue(client, "hold", *job_ids)
    for job_id in job_ids:
        await fleet.wait_for("JobStarted", node=node, job_id=job_id)


async def rows_of(pool: asyncpg.Pool, status: str) -> dict[str, dict[str, object]]:
    """Return the rows of a status by job id, without the columns that the present version lacks."""
    rows = await pool.fetch("SELECT * FROM scheduled_jobs WHERE status = $1", status)
    return {row["job_id"]: {name: row[name] for name in {*row.keys()} - {"replacement"}} for row in rows}


async def old_rows(pool: asyncpg.Pool) -> tuple[list[asyncpg.Record], list[asyncpg.Record]]:
    """Return the jobs and schedules on the schema of the previous version."""
    jobs = await pool.fetch("SELECT * FROM scheduled_jobs ORDER BY job_id")
    schedules = await pool.fetch("SELECT * FROM scheduler_periodic_jobs ORDER BY dedup_key")
    return jobs, schedules


def job_ids(fleet: Fleet, event: str) -> set[str]:
    return {record.job_id for record in fleet.records(event)}


def assert_fire_times_ran_once(fleet: Fleet) -> None:
    """Assert that every planned fire time ran once, on the grid that the previous version began.

    Those that passed while no node ran are caught up by one.
    """
    due = sorted(datetime.fromisoformat(record.details["due"]) for record in fleet.records("ticked"))
    assert len(due) == len(set(due)) == len(fleet.records("PeriodicJobPlanned"))
    assert {(instant - due[0]) % timedelta(seconds=0.5) for instant in due} == {timedelta(0)}


async def assert_nothing_failed(fleet: Fleet, pool: asyncpg.Pool) -> None:
    """Assert that no error was reported, and that all jobs ended and all leases are released."""
    for event in ("ServiceFaulted", "LeaseLost", "JobLost", "JobFailed", "PeriodicJobBroken"):
        assert fleet.records(event) == []
    assert (
        await pool.fetch("SELECT * FROM scheduled_jobs WHERE status NOT IN ('completed', 'cancelled')") == []
    )
    assert await pool.fetch("SELECT * FROM scheduled_jobs WHERE lease_until IS NOT NULL") == []
    assert await pool.fetch("SELECT * FROM scheduler_workers") == []


async def test_jobs_and_schedules_of_the_previous_version_continue(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, previous: Path
) -> None:
    old = await fleet.start(*SCHEDULES, "--slots", "8", library=previous)
    assert await schema_version(pool) == head(previous / "migrations") < HEAD
    old.send("enqueue cluster.hold hold 0 5")
    await fleet.wait_for("JobStarted", node=old, job_id="hold-4")
    old.send("enqueue cluster.note note 0 100")
    old.send("enqueue cluster.stumble stumble 0 20")
    for job_id in ("note-99", *(f"stumble-{number}" for number in range(20))):
        await fleet.wait_for("JobCompleted", node=old, job_id=job_id)
    await fleet.wait_for("ticked", node=old, count=2)
    old.send("replace cluster.note hold-1")
    await fleet.wait_for("done", node=old, line="replace cluster.note hold-1")
    await old.stop()
    finished = await rows_of(pool, "completed")

    new = await fleet.start(*SCHEDULES)
    assert await schema_version(pool) == HEAD
    after = await rows_of(pool, "completed")
    for job_id, row in finished.items():
        assert {name: after[job_id][name] for name in row} == row
    for number in range(5):
        await fleet.wait_for("JobCompleted", node=new, job_id=f"hold-{number}")
    await fleet.wait_for("ticked", node=new, count=2)
    # Disabled first, because no node would run a fire time that is planned right before the end.
    new.send(f"disable {TICK}")
    await fleet.wait_for("switched", node=new, key=TICK, enabled=False)
    await fleet.wait_until(lambda: job_ids(fleet, "PeriodicJobPlanned") <= job_ids(fleet, "JobCompleted"))
    await new.stop()

    ran = Counter(record.job_id for record in fleet.records("ran"))
    notes, stumbles = [f"note-{n}" for n in range(100)], [f"stumble-{n}" for n in range(20)]
    assert ran == Counter([*notes, *(f"hold-{n}" for n in range(5)), *2 * stumbles])
    assert_fire_times_ran_once(fleet)
    await assert_nothing_failed(fleet, pool)


async def test_present_version_reclaims_the_jobs_of_a_killed_node_of_the_previous_one(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, previous: Path
) -> None:
    old = await fleet.start(*SHORT, "--slots", "4", library=previous)
    await start_held_jobs(fleet, client, old, *(f"old-{n}" for n in range(4)))
    old.send("replace cluster.note old-1")
    await fleet.wait_for("done", node=old, line="replace cluster.note old-1")
    await old.kill()
    new = await fleet.start(*SHORT)
    [reclaimed] = await fleet.wait_for("JobsReclaimed", node=new)
    assert reclaimed.details["dead_workers"] == [old.worker_id]
    assert set(reclaimed.details["job_ids"]) == {f"old-{n}" for n in range(4)}
    for number in range(4):
        await fleet.wait_for("JobCompleted", node=new, job_id=f"old-{number}")
    await new.stop()
    job = await client.get_job("old-1")
    assert job is not None
    assert (job.job_name, job.retry_count, job.crash_count) == ("cluster.note", 0, 0)
    await assert_nothing_failed(fleet, pool)


async def test_schedule_stays_disabled_when_the_schema_goes_up_down_and_up(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, previous: Path
) -> None:
    old = await fleet.start(*SCHEDULES, library=previous)
    await fleet.wait_for("ticked", node=old)
    old.send(f"disable {TICK}")
    await fleet.wait_for("switched", node=old, key=TICK, enabled=False)
    old.send("enqueue cluster.note note 0 5")
    await fleet.wait_for("JobCompleted", node=old, job_id="note-4")
    await fleet.wait_until(lambda: job_ids(fleet, "PeriodicJobPlanned") <= job_ids(fleet, "JobCompleted"))
    await old.stop()
    jobs, schedules = await old_rows(pool)
    async with pool.acquire() as connection:
        await migrate(connection)
        await migrate(connection, target=head(previous / "migrations"))
        await connection.reload_schema_state()
    assert await old_rows(pool) == (jobs, schedules)

    new = await fleet.start(*SCHEDULES)
    new.send(f"enable {TICK}")
    await fleet.wait_for("switched", node=new, key=TICK, enabled=True)
    await fleet.wait_for("ticked", node=new)
    await new.stop()


async def test_new_code_migrates_the_old_schema_or_raises_with_the_remedy(
    client: Scheduler, pool: asyncpg.Pool, previous: Path
) -> None:
    async with pool.acquire() as connection:
        await migrate(connection, target=head(previous / "migrations"))
    # Enqueueing works before the migration.
    await client.schedule_job("x", datetime.now(UTC), NO_ARGUMENTS, job_id="x")
    remedy = r'column "\w+" .*does not exist.* call await scheduler.initialize_db\(\)'
    with pytest.raises(SchemaMissingError, match=remedy):
        await client.cancel_job("x")
    async with client:
        assert await schema_version(pool) == HEAD
        assert await client.cancel_job("x")


async def test_old_code_is_refused_on_the_new_schema_with_the_remedy(
    client: Scheduler, empty_dsn: str, previous: Path
) -> None:
    await client.initialize_db()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "tests.cluster.node", empty_dsn),
        cwd=ROOT,
        env=environment(previous),
        stderr=PIPE,
    )
    _, output = await process.communicate()
    assert process.returncode == 1
    assert re.search(rf"SchemaTooNewError: .*schema version {HEAD}.*upgrade", output.decode())


async def test_this_version_runs_on_the_expanded_schema_of_the_next(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    await client.initialize_db()
    next_release = Migration(
        HEAD + 1,
        "next_release",
        "-- expand\n"
        "ALTER TABLE {schema}scheduled_jobs ADD COLUMN more text NOT NULL DEFAULT 'x';"
        "ALTER TABLE {schema}scheduler_workers ADD COLUMN more text NOT NULL DEFAULT 'x';"
        "ALTER TABLE {schema}scheduler_schedules ADD COLUMN more text NOT NULL DEFAULT 'x';"
        "ALTER TABLE {schema}vacuum_stats ADD COLUMN more text NOT NULL DEFAULT 'x';"
        "ALTER TABLE {schema}scheduler_migrations ADD COLUMN more text NOT NULL DEFAULT 'x';",
        "SELECT 1;",
    )
    async with pool.acquire() as connection:
        await apply(connection, [*shipped_migrations(), next_release])
    node = await fleet.start(*SCHEDULES)
    node.send("enqueue cluster.stumble stumble 0 5")
    await fleet.wait_for("JobCompleted", node=node, job_id="stumble-4")
    await fleet.wait_for("ticked", count=2)
    node.send("vacuum")
    await fleet.wait_for("done", line="vacuum")
    assert await client.schedule_bulk([JobSpec(do_nothing, datetime.now(UTC)) for _ in range(200)])
    assert (await client.workers())[0].worker_id == node.worker_id
    await node.stop()
    assert fleet.records("ServiceFaulted") == []


async def do_nothing() -> None: ...
