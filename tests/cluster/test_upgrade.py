"""Two versions of the library on one schema, as in a rolling upgrade: the previous one and this one.

The previous one is the real thing, unpacked and run in processes of its own. That this one's migrations leave
it in working order is tested by that: a migration that takes away what it uses fails here.
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
NOTHING: dict[str, object] = {"args": [], "kwargs": {}}
HEAD = shipped_migrations()[-1].version


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("previous"))


@pytest.fixture
def dsn(empty_dsn: str) -> str:
    """Nobody has migrated this database yet."""
    return empty_dsn


async def version(pool: asyncpg.Pool) -> int:
    found: int = await pool.fetchval("SELECT max(version) FROM scheduler_migrations")
    return found


async def enqueue(client: Scheduler, name: str, *job_ids: str) -> list[str]:
    return [
        await client.schedule_job(f"cluster.{name}", datetime.now(UTC), NOTHING, max_retries=1, job_id=job_id)
        for job_id in job_ids
    ]


async def hold(fleet: Fleet, client: Scheduler, node: Node, *job_ids: str) -> None:
    """Have that node, the only one with a free slot, run jobs that do not end."""
    await enqueue(client, "hold", *job_ids)
    for job_id in job_ids:
        await fleet.sees("JobStarted", node=node, job_id=job_id)


def job_ids(fleet: Fleet, event: str) -> set[str]:
    return {seen.job_id for seen in fleet.seen(event)}


def windows_are_whole(fleet: Fleet) -> None:
    """Every window of the schedule was planned once and ran once."""
    due = sorted(datetime.fromisoformat(seen.about["due"]) for seen in fleet.seen("ticked"))
    assert due == [due[0] + number * timedelta(seconds=0.5) for number in range(len(due))]
    assert set(Counter(seen.job_id for seen in fleet.seen("PeriodicJobPlanned")).values()) == {1}


async def all_is_well(fleet: Fleet, pool: asyncpg.Pool) -> None:
    """Nobody was stopped by an error, and no row says anything but how its job ended."""
    for trouble in ("ServiceFaulted", "LeaseLost", "JobLost", "JobFailed", "PeriodicJobBroken"):
        assert fleet.seen(trouble) == []
    assert (
        await pool.fetch("SELECT * FROM scheduled_jobs WHERE status NOT IN ('completed', 'cancelled')") == []
    )
    assert await pool.fetch("SELECT * FROM scheduled_jobs WHERE lease_until IS NOT NULL") == []
    assert await pool.fetch("SELECT * FROM scheduler_workers") == []


async def test_nodes_of_two_versions_work_side_by_side(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, previous: Path
) -> None:
    old = await fleet.start(*SCHEDULES, "--slots", "8", library=previous)
    assert await version(pool) == head(previous / "migrations") < HEAD
    old.say("enqueue cluster.hold old-hold 0 5")
    await fleet.sees("JobStarted", node=old, job_id="old-hold-4")

    # The old one goes on under load while the schema changes below it, and knows nothing of that.
    old.say("enqueue cluster.note before 0 300")
    await fleet.sees("JobCompleted", node=old, job_id="before-20")
    await client.initialize_db()
    assert await version(pool) == HEAD
    old.say("enqueue cluster.stumble stumble 0 20")
    await fleet.sees("done", line="enqueue cluster.stumble stumble 0 20")

    # Both, with load from both sides.
    new = await fleet.start(*SCHEDULES)
    old.say("enqueue cluster.note from-old 0 200")
    old.say("enqueue cluster.stumble stumble-old 0 20")
    new.say("enqueue cluster.note from-new 0 200")
    new.say("enqueue cluster.stumble stumble-new 0 20")
    for job_id in ("from-old-199", "from-new-199", *(f"stumble-{n}" for n in range(20))):
        await fleet.sees("JobCompleted", job_id=job_id)
    for side in ("old", "new"):
        for number in range(20):
            await fleet.sees("JobCompleted", job_id=f"stumble-{side}-{number}")

    # What one of them runs is cancelled and replaced by the other.
    assert await client.cancel_job("old-hold-0")
    await fleet.sees("cancelled", node=old, job_id="old-hold-0")
    await client.schedule_job(
        "cluster.note",
        datetime.now(UTC),
        NOTHING,
        job_id="old-hold-1",
        conflict_resolution=ConflictResolution.REPLACE,
    )

    # The old one leaves and hands back what it runs; the new definition takes its place.
    ticked = len(fleet.seen("ticked", node=new))
    await old.stop()
    for number in (1, 2, 3, 4):
        await fleet.sees("JobCompleted", node=new, job_id=f"old-hold-{number}")
    await fleet.sees("ticked", node=new, count=ticked + 2)
    new.say(f"disable {TICK}")  # a window that is planned right before the end would be left to nobody
    await fleet.sees("switched", node=new, key=TICK, enabled=False)
    await fleet.hears(lambda: job_ids(fleet, "PeriodicJobPlanned") <= job_ids(fleet, "JobCompleted"))
    await new.stop()

    ran = Counter(seen.job_id for seen in fleet.seen("ran"))
    notes = [f"before-{n}" for n in range(300)] + [
        f"from-{side}-{n}" for side in ("old", "new") for n in range(200)
    ]
    stumbles = [f"{prefix}-{n}" for prefix in ("stumble", "stumble-old", "stumble-new") for n in range(20)]
    holds = [f"old-hold-{n}" for n in range(1, 5)]
    assert ran == Counter(notes + holds + 2 * stumbles)
    done = Counter(seen.job_id for seen in fleet.seen("JobCompleted"))
    assert done == Counter([*notes, *holds, *stumbles, *(seen.job_id for seen in fleet.seen("ticked"))])
    assert {seen.node for seen in fleet.seen("JobCompleted") if seen.job_id in notes} == {old, new}
    windows_are_whole(fleet)
    await all_is_well(fleet, pool)


async def test_each_version_gives_back_what_a_killed_node_of_the_other_ran(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, previous: Path
) -> None:
    old = await fleet.start(*SHORT, "--slots", "4", library=previous)
    await hold(fleet, client, old, *(f"old-{n}" for n in range(4)))
    await client.initialize_db()
    new = await fleet.start(*SHORT)
    await hold(fleet, client, new, *(f"new-{n}" for n in range(4)))

    old.say("cancel new-0")
    await fleet.sees("cancelled", node=new, job_id="new-0")
    old.say("replace cluster.note new-1")
    new.say("replace cluster.note old-1")
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, finished_at)"
        " SELECT 'past-' || n, 'x', now() - interval '9 days', 'completed', now() - interval '9 days'"
        " FROM generate_series(1, 2000) AS n"
    )
    for node in (old, new):
        for command in ("vacuum", "rescue"):
            node.say(command)
    for node in (old, new):
        await fleet.sees("done", node=node, line="rescue")
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE job_id LIKE 'past-%'") == 0
    assert sum(seen.about["completed"] for seen in fleet.seen("JobsVacuumed")) == 2000
    assert fleet.seen("JobsReclaimed") == []

    await new.kill()
    [rescued] = await fleet.sees("JobsReclaimed", node=old)
    assert rescued.about["dead_workers"] == [new.worker_id]
    assert set(rescued.about["job_ids"]) == {"new-1", "new-2", "new-3"}
    assert await client.cancel_job("old-0")  # which leaves a slot for them
    for number in (1, 2, 3):
        await fleet.sees("JobCompleted", node=old, job_id=f"new-{number}")

    newer = await fleet.start(*SHORT)
    await old.kill()
    [rescued] = await fleet.sees("JobsReclaimed", node=newer)
    assert rescued.about["dead_workers"] == [old.worker_id]
    assert set(rescued.about["job_ids"]) == {"old-1", "old-2", "old-3"}
    for number in (1, 2, 3):
        await fleet.sees("JobCompleted", node=newer, job_id=f"old-{number}")
    await newer.stop()

    for number in (1, 2, 3):
        for side in ("old", "new"):
            job = await client.get_job(f"{side}-{number}")
            assert job is not None
            assert (job.status, job.retry_count) == (JobStatus.COMPLETED, 0)
            assert job.job_name == ("cluster.note" if number == 1 else "cluster.hold")
    counts = Counter(seen.job_id for seen in fleet.seen("ran"))
    assert counts == Counter(f"{side}-{number}" for side in ("old", "new") for number in (1, 2, 3))
    await all_is_well(fleet, pool)


async def test_new_code_on_the_old_schema_migrates_it_or_says_who_should(
    client: Scheduler, pool: asyncpg.Pool, previous: Path
) -> None:
    async with pool.acquire() as connection:
        await migrate(connection, target=head(previous / "migrations"))
    for name in ("x", "y"):
        await client.schedule_job(name, datetime.now(UTC), NOTHING, job_id=name)  # it can be enqueued already
    assert await client.cancel_job("x")
    with pytest.raises(
        SchemaMissingError, match=r'"crash_count".* [Cc]all await scheduler.initialize_db\(\)'
    ):
        await client.retry_job("x")
    async with client:
        assert await version(pool) == HEAD
        assert await client.retry_job("x")


async def test_old_code_that_starts_late_is_refused_with_the_remedy(
    client: Scheduler, empty_dsn: str, previous: Path
) -> None:
    """The previous version knows no marks of migrations; see the next test for what comes after it."""
    await client.initialize_db()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "tests.cluster.node", empty_dsn),
        cwd=ROOT,
        env=environment(previous),
        stderr=PIPE,
    )
    _, complaint = await process.communicate()
    assert process.returncode == 1
    assert re.search(rf"SchemaTooNewError: .*schema version {HEAD}.*Upgrade", complaint.decode())


async def test_this_version_starts_beside_the_next(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    await client.initialize_db()
    tomorrow = Migration(
        HEAD + 1,
        "tomorrow",
        "-- expand\n"
        "ALTER TABLE {schema}scheduled_jobs ADD COLUMN more text NOT NULL DEFAULT 'x';"
        "ALTER TABLE {schema}scheduler_workers ADD COLUMN more text NOT NULL DEFAULT 'x';"
        "ALTER TABLE {schema}scheduler_periodic_jobs ADD COLUMN more text NOT NULL DEFAULT 'x';"
        "ALTER TABLE {schema}vacuum_stats ADD COLUMN more text NOT NULL DEFAULT 'x';"
        "ALTER TABLE {schema}scheduler_migrations ADD COLUMN more text NOT NULL DEFAULT 'x';",
        "SELECT 1;",
    )
    async with pool.acquire() as connection:
        await apply(connection, [*shipped_migrations(), tomorrow])
    node = await fleet.start(*SCHEDULES)
    node.say("enqueue cluster.stumble stumble 0 5")
    await fleet.sees("JobCompleted", node=node, job_id="stumble-4")
    await fleet.sees("ticked", count=2)
    node.say("vacuum")
    await fleet.sees("done", line="vacuum")
    assert await client.schedule_bulk([JobSpec(nothing, datetime.now(UTC)) for _ in range(200)])
    assert (await client.workers())[0].worker_id == node.worker_id
    await node.stop()
    assert fleet.seen("ServiceFaulted") == []


async def nothing() -> None: ...
