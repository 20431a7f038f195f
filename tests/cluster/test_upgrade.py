"""The previous and the present version of the library on one schema, as in a rolling upgrade.

The previous version is unpacked and runs in separate processes. A migration that removes something that it
uses fails here.
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

from pg_scheduler import ConflictResolution, JobSpec, JobStatus, Scheduler, SchemaMissingError
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


def job_ids(fleet: Fleet, event: str) -> set[str]:
    return {record.job_id for record in fleet.records(event)}


def assert_fire_times_are_complete(fleet: Fleet) -> None:
    """Assert that every fire time of the schedule was planned once and ran once."""
    due = sorted(datetime.fromisoformat(record.details["due"]) for record in fleet.records("ticked"))
    assert due == [due[0] + number * timedelta(seconds=0.5) for number in range(len(due))]
    assert set(Counter(record.job_id for record in fleet.records("PeriodicJobPlanned")).values()) == {1}


async def assert_nothing_failed(fleet: Fleet, pool: asyncpg.Pool) -> None:
    """Assert that no error was reported, and that all jobs ended and all leases are released."""
    for event in ("ServiceFaulted", "LeaseLost", "JobLost", "JobFailed", "PeriodicJobBroken"):
        assert fleet.records(event) == []
    assert (
        await pool.fetch("SELECT * FROM scheduled_jobs WHERE status NOT IN ('completed', 'cancelled')") == []
    )
    assert await pool.fetch("SELECT * FROM scheduled_jobs WHERE lease_until IS NOT NULL") == []
    assert await pool.fetch("SELECT * FROM scheduler_workers") == []


async def test_nodes_of_two_versions_work_concurrently(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, previous: Path
) -> None:
    old = await fleet.start(*SCHEDULES, "--slots", "8", library=previous)
    assert await schema_version(pool) == head(previous / "migrations") < HEAD
    old.send("enqueue cluster.hold old-hold 0 5")
    await fleet.wait_for("JobStarted", node=old, job_id="old-hold-4")

    # The old node runs under load while the schema is migrated.
    old.send("enqueue cluster.note before 0 300")
    await fleet.wait_for("JobCompleted", node=old, job_id="before-20")
    await client.initialize_db()
    assert await schema_version(pool) == HEAD
    old.send("enqueue cluster.stumble stumble 0 20")
    await fleet.wait_for("done", line="enqueue cluster.stumble stumble 0 20")

    # Both nodes enqueue and run jobs.
    new = await fleet.start(*SCHEDULES)
    old.send("enqueue cluster.note from-old 0 200")
    old.send("enqueue cluster.stumble stumble-old 0 20")
    new.send("enqueue cluster.note from-new 0 200")
    new.send("enqueue cluster.stumble stumble-new 0 20")
    for job_id in ("from-old-199", "from-new-199", *(f"stumble-{n}" for n in range(20))):
        await fleet.wait_for("JobCompleted", job_id=job_id)
    for side in ("old", "new"):
        for number in range(20):
            await fleet.wait_for("JobCompleted", job_id=f"stumble-{side}-{number}")

    # One version cancels and replaces jobs that the other runs.
    assert await client.cancel_job("old-hold-0")
    await fleet.wait_for("cancelled", node=old, job_id="old-hold-0")
    await client.schedule_job(
        "cluster.note",
        datetime.now(UTC),
        NO_ARGUMENTS,
        job_id="old-hold-1",
        conflict_resolution=ConflictResolution.REPLACE,
    )

    # The old node shuts down and releases its jobs; one of them has a new definition.
    ticked = len(fleet.records("ticked", node=new))
    await old.stop()
    for number in (1, 2, 3, 4):
        await fleet.wait_for("JobCompleted", node=new, job_id=f"old-hold-{number}")
    await fleet.wait_for("ticked", node=new, count=ticked + 2)
    # Disabled first, because no node would run a fire time that is planned right before the end.
    new.send(f"disable {TICK}")
    await fleet.wait_for("switched", node=new, key=TICK, enabled=False)
    await fleet.wait_until(lambda: job_ids(fleet, "PeriodicJobPlanned") <= job_ids(fleet, "JobCompleted"))
    await new.stop()

    ran = Counter(record.job_id for record in fleet.records("ran"))
    notes = [f"before-{n}" for n in range(300)] + [
        f"from-{side}-{n}" for side in ("old", "new") for n in range(200)
    ]
    stumbles = [f"{prefix}-{n}" for prefix in ("stumble", "stumble-old", "stumble-new") for n in range(20)]
    holds = [f"old-hold-{n}" for n in range(1, 5)]
    assert ran == Counter(notes + holds + 2 * stumbles)
    done = Counter(record.job_id for record in fleet.records("JobCompleted"))
    assert done == Counter(
        [*notes, *holds, *stumbles, *(record.job_id for record in fleet.records("ticked"))]
    )
    assert {record.node for record in fleet.records("JobCompleted") if record.job_id in notes} == {old, new}
    assert_fire_times_are_complete(fleet)
    await assert_nothing_failed(fleet, pool)


async def test_each_version_reclaims_the_jobs_of_a_killed_node_of_the_other(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, previous: Path
) -> None:
    old = await fleet.start(*SHORT, "--slots", "4", library=previous)
    await start_held_jobs(fleet, client, old, *(f"old-{n}" for n in range(4)))
    await client.initialize_db()
    new = await fleet.start(*SHORT)
    await start_held_jobs(fleet, client, new, *(f"new-{n}" for n in range(4)))

    old.send("cancel new-0")
    await fleet.wait_for("cancelled", node=new, job_id="new-0")
    old.send("replace cluster.note new-1")
    new.send("replace cluster.note old-1")
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, finished_at)"
        " SELECT 'past-' || n, 'x', now() - interval '9 days', 'completed', now() - interval '9 days'"
        " FROM generate_series(1, 2000) AS n"
    )
    for node in (old, new):
        for command in ("vacuum", "reclaim"):
            node.send(command)
    for node in (old, new):
        await fleet.wait_for("done", node=node, line="reclaim")
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE job_id LIKE 'past-%'") == 0
    assert sum(record.details["completed"] for record in fleet.records("JobsVacuumed")) == 2000
    assert fleet.records("JobsReclaimed") == []

    await new.kill()
    [reclaimed] = await fleet.wait_for("JobsReclaimed", node=old)
    assert reclaimed.details["dead_workers"] == [new.worker_id]
    assert set(reclaimed.details["job_ids"]) == {"new-1", "new-2", "new-3"}
    assert await client.cancel_job("old-0")  # to free a slot for them
    for number in (1, 2, 3):
        await fleet.wait_for("JobCompleted", node=old, job_id=f"new-{number}")

    newer = await fleet.start(*SHORT)
    await old.kill()
    [reclaimed] = await fleet.wait_for("JobsReclaimed", node=newer)
    assert reclaimed.details["dead_workers"] == [old.worker_id]
    assert set(reclaimed.details["job_ids"]) == {"old-1", "old-2", "old-3"}
    for number in (1, 2, 3):
        await fleet.wait_for("JobCompleted", node=newer, job_id=f"old-{number}")
    await newer.stop()

    for number in (1, 2, 3):
        for side in ("old", "new"):
            job = await client.get_job(f"{side}-{number}")
            assert job is not None
            assert (job.status, job.retry_count) == (JobStatus.COMPLETED, 0)
            assert job.job_name == ("cluster.note" if number == 1 else "cluster.hold")
    counts = Counter(record.job_id for record in fleet.records("ran"))
    assert counts == Counter(f"{side}-{number}" for side in ("old", "new") for number in (1, 2, 3))
    await assert_nothing_failed(fleet, pool)


async def test_new_code_migrates_the_old_schema_or_raises_with_the_remedy(
    client: Scheduler, pool: asyncpg.Pool, previous: Path
) -> None:
    async with pool.acquire() as connection:
        await migrate(connection, target=head(previous / "migrations"))
    for name in ("x", "y"):
        await client.schedule_job(
            name, datetime.now(UTC), NO_ARGUMENTS, job_id=name
        )  # enqueueing works before the migration
    assert await client.cancel_job("x")
    with pytest.raises(
        SchemaMissingError, match=r'"crash_count".* [Cc]all await scheduler.initialize_db\(\)'
    ):
        await client.retry_job("x")
    async with client:
        assert await schema_version(pool) == HEAD
        assert await client.retry_job("x")


async def test_old_code_is_refused_on_the_new_schema_with_the_remedy(
    client: Scheduler, empty_dsn: str, previous: Path
) -> None:
    """The previous version ignores the declarations of migrations; the next test is about the present one."""
    await client.initialize_db()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "tests.cluster.node", empty_dsn),
        cwd=ROOT,
        env=environment(previous),
        stderr=PIPE,
    )
    _, output = await process.communicate()
    assert process.returncode == 1
    assert re.search(rf"SchemaTooNewError: .*schema version {HEAD}.*Upgrade", output.decode())


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
        "ALTER TABLE {schema}scheduler_periodic_jobs ADD COLUMN more text NOT NULL DEFAULT 'x';"
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
