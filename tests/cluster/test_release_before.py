"""Nodes of earlier releases beside those of this one: an upgrade and its roll-back.

Most are those of the release before durable steps. The history of the repository has the files of each.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, JobStatus, Scheduler
from pg_scheduler.migrate import migrate
from tests.cluster import durable, durable_options
from tests.cluster.fleet import Fleet, environment
from tests.support.stories import NIGHTLY
from tools.upgrade.releases import LIBRARY, HistoryError, commit_before, extract

STEPS = "migrations/0002_steps.up.sql"
"""The file that the first commit after that release has added."""

IN_VAIN = ("-S", "'in_vain'", "--", "pg_scheduler/queue/dependencies.sql")
"""What finds the first commit that keeps a new definition which has waited in vain."""

RETRIES = "pg_scheduler/jobs/step_retries.py"
"""The file that a commit has added before which there were no options of durable jobs."""

JOBS = ("--jobs", "tests.cluster.durable")
OPTIONS = ("--jobs", "tests.cluster.durable_options")


@pytest.fixture(scope="module")
def release_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the library and the tests of the release before durable steps."""
    root = extract_before(("--diff-filter=A", "--", STEPS), tmp_path_factory.mktemp("release_before"))
    assert not (root / STEPS).exists()
    return root


@pytest.fixture(scope="module")
def release_of_migration_4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with those of a release that ignores why a new definition has waited in vain."""
    root = extract_before(IN_VAIN, tmp_path_factory.mktemp("release_of_migration_4"))
    migrations = {path.name[:4] for path in (root / "migrations").glob("*.sql")}
    assert migrations == {"0001", "0002", "0003", "0004"}
    return root


@pytest.fixture(scope="module")
def release_before_options(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a release that has steps, but none of the options of durable jobs.

    Its nodes run the present code of the jobs, as if the library was upgraded after the application.
    """
    root = extract_before(
        ("--diff-filter=A", "--", RETRIES), tmp_path_factory.mktemp("release_before_options")
    )
    assert not (root / "migrations" / "0006_durable.up.sql").exists()
    shutil.copy(durable_options.__file__, root / "tests" / "cluster")
    return root


def extract_before(search: Sequence[str], root: Path) -> Path:
    """Extract the files from before the first commit that a search finds; skip the test without history."""
    try:
        extract(commit_before(*search), root, (*LIBRARY, "tests"))
    except HistoryError as error:
        pytest.skip(f"the history of the repository is absent here: {error}")
    command = (sys.executable, "-P", "-c", "import pg_scheduler; print(pg_scheduler.__path__[0])")
    found = subprocess.run(command, cwd=root, env=environment(root), capture_output=True, check=True)
    assert found.stdout.decode().strip() == str(root / "pg_scheduler")
    return root


@pytest.fixture(autouse=True)
async def effects(pool: asyncpg.Pool) -> None:
    await pool.execute("CREATE TABLE effects (job_id text)")


async def enqueue(client: Scheduler, job_ids: Sequence[str], name: str = "durable.order") -> None:
    for job_id in job_ids:
        await client.enqueue(name, job_id=job_id)


async def done(fleet: Fleet, line: str, *, count: int = 1) -> None:
    await fleet.wait_for("done", line=line, count=count)


@pytest.mark.usefixtures("warmed_up_server")
async def test_release_before_harms_no_suspended_job_signal_or_share(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, release_before: Path
) -> None:
    """It vacuums, reclaims, cancels and runs its own jobs, while jobs sleep, wait and take turns."""
    former = await fleet.start("--tick", "0.5", "--immediate", root=release_before)
    dying = await fleet.start(*JOBS, "--slots", "2")
    orders = [f"order-{number}" for number in range(5)]
    await enqueue(client, orders)
    await fleet.wait_for("JobSuspended", kind="signal", count=5)
    await enqueue(client, ["held"], "durable.hold")
    await fleet.wait_for("charged", job_id="held")

    turns = [f"turn-{number}" for number in range(20)]
    for number, job_id in enumerate(turns):
        tenant = durable.TENANTS[number // 10]
        await client.enqueue(durable.turn, args=(tenant,), job_id=job_id, delay=timedelta(seconds=1))
    assert await client.signal("order-0", "approval", "ann")
    for command in (
        "enqueue cluster.note note 0 5",
        "vacuum",
        "cancel order-4",
        "reclaim",
        "enqueue cluster.stumble stumble 0 5",
    ):
        former.send(command)
        await done(fleet, command)
    await fleet.wait_for("ticked", node=former)
    await dying.kill()  # the release before reclaims its jobs

    node = await fleet.start(*JOBS, "--slots", "2")
    for job_id in orders[1:4]:
        assert await client.signal(job_id, "approval", "ann")
    for job_id in (*orders[:4], "held", *turns):
        await fleet.wait_for("JobCompleted", job_id=job_id)
    assert sorted([row["job_id"] for row in await pool.fetch("SELECT job_id FROM effects")]) == orders[:4]
    assert [len(fleet.records("charged", job_id=job_id)) for job_id in (*orders, "held")] == [1] * 6
    assert {each.node for each in fleet.records("JobCompleted", job_name="durable.order")} <= {dying, node}

    former.send("vacuum")  # deletes completed jobs, and does not know of their steps
    await done(fleet, "vacuum", count=2)
    assert await client.get_job("order-0") is None
    await enqueue(client, ["order-0"])
    await fleet.wait_for("charged", job_id="order-0", count=2)
    assert await client.signal("order-0", "approval", "ann")
    await fleet.wait_for("JobCompleted", job_id="order-0", count=2)
    await former.stop()
    await node.stop()
    assert fleet.records("ServiceFaulted") == []


@NIGHTLY
async def test_suspended_jobs_start_anew_after_a_roll_back_and_another_upgrade(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, release_before: Path
) -> None:
    node = await fleet.start(*JOBS)
    await enqueue(client, ["nap"], "durable.nap")
    await enqueue(client, ["order"])
    await fleet.wait_for("JobSuspended", job_id="nap")
    await fleet.wait_for("JobSuspended", job_id="order", kind="signal")
    await node.stop()

    async with pool.acquire() as connection:
        await migrate(connection, target=1)
    former = await fleet.start("--tick", "0.5", root=release_before)
    former.send("enqueue cluster.note note 0 5")
    await fleet.wait_for("JobCompleted", job_name="cluster.note", count=5)
    former.send("vacuum")
    await done(fleet, "vacuum")
    for job_id in ("nap", "order"):
        job = await client.get_job(job_id)
        assert job
        assert job.status is JobStatus.PENDING
    await former.stop()

    async with pool.acquire() as connection:
        await migrate(connection)
    await fleet.start(*JOBS)
    await fleet.wait_for("charged", job_id="nap", count=2)
    await fleet.wait_for("charged", job_id="order", count=2)
    assert await client.signal("order", "approval", "ann")
    await fleet.wait_for("JobCompleted", job_id="nap")
    await fleet.wait_for("JobCompleted", job_id="order")
    assert [row["job_id"] for row in await pool.fetch("SELECT job_id FROM effects")] == ["order"]
    assert fleet.records("ServiceFaulted") == []


async def test_node_of_migration_4_drops_a_new_definition_that_has_waited_in_vain(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, release_of_migration_4: Path
) -> None:
    """It does not know that the definition is to be cancelled. So it must find none, or it would run it."""
    old_node = await fleet.start(root=release_of_migration_4)
    await client.enqueue("cluster.freeze", job_id="job")  # stops the process of the node
    await fleet.wait_for("JobStarted", node=old_node, job_id="job")
    await client.enqueue("cluster.note", job_id="parent", delay=timedelta(hours=1))
    await client.enqueue(
        "cluster.note", job_id="job", after=["parent"], conflict_resolution=ConflictResolution.REPLACE
    )
    assert await client.cancel_job("parent")
    old_node.resume()
    await fleet.wait_for("JobCompleted", node=old_node, job_id="job")
    # A definition that had taken the row would run before a job that is due later.
    await client.enqueue("cluster.note", job_id="later")
    await fleet.wait_for("JobCompleted", node=old_node, job_id="later")
    assert [record.details["attempt"] for record in fleet.records("ran", job_id="job")] == [1]
    row = await pool.fetchrow("SELECT job_name, status, on_end FROM scheduled_jobs WHERE job_id = 'job'")
    assert row
    assert tuple(row) == ("cluster.freeze", "completed", None)


async def test_release_before_works_while_the_tables_of_the_options_are_added(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, release_before_options: Path
) -> None:
    async with pool.acquire() as connection:
        await migrate(connection, target=5)
        former = await fleet.start("--tick", "0.5", root=release_before_options)
        former.send("enqueue cluster.stumble before 0 5")
        await fleet.wait_for("JobCompleted", job_name="cluster.stumble", count=5)
        await fleet.wait_for("ticked", node=former)
        await migrate(connection)
    former.send("enqueue cluster.stumble after 0 5")
    await fleet.wait_for("JobCompleted", job_name="cluster.stumble", count=10)
    ticked = len(fleet.records("ticked"))
    await fleet.wait_for("ticked", node=former, count=ticked + 2)
    former.send("vacuum")
    await done(fleet, "vacuum")
    await former.stop()
    assert fleet.records("ServiceFaulted") == []


@NIGHTLY
async def test_release_before_breaks_no_job_with_an_option_that_it_does_not_have(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, release_before_options: Path
) -> None:
    """It runs what needs no option, fails what calls one, and leaves what waits because of one.

    The new node has one slot, which a job occupies. So the old node runs what is due.
    """
    node = await fleet.start(*OPTIONS, "--slots", "1")
    for name in ("attend", "family"):
        await client.enqueue(f"options.{name}", job_id=name)
    await fleet.wait_for("JobSuspended", job_id="attend")
    await fleet.wait_for("JobSuspended", job_id="family:member")
    await fleet.wait_for("booked", job_id="family:booking")
    await client.enqueue("cluster.hold", job_id="slot")
    await fleet.wait_for("JobStarted", node=node, job_id="slot")
    former = await fleet.start(*OPTIONS, root=release_before_options)

    # A sequence: the new node moves the heads, and the old one runs them as any jobs.
    for number in range(3):
        await client.enqueue(durable_options.turn, args=("acme", number), job_id=f"turn-{number}")
    # Debounced calls: one job with the last arguments.
    for version in (1, 2):
        await client.enqueue(durable_options.index, args=("report", version))
    # A broadcast and a cancellation of a family, by a new process.
    assert await client.broadcast("news", "today") == 1
    assert await client.cancel_job("family", children=True) == 2
    # A deadline: the old node ignores that of the job that it runs, and leaves one that waits.
    deadline = datetime.now(UTC) + timedelta(seconds=1)
    await client.enqueue("cluster.hold", job_id="bounded", deadline=deadline)
    await fleet.wait_for("JobStarted", node=former, job_id="bounded")
    await client.enqueue("cluster.note", job_id="behind", after=["slot"], deadline=deadline)
    # Code that calls what the old node does not have fails there, and is retried.
    failing = ("pay", "speak", "listen")
    for name in failing:
        await client.enqueue(f"options.{name}", job_id=name)
    for item in ("a", "b"):
        assert await client.send("listen", "items", item)

    turned = await fleet.wait_for("turned", node=former, count=3)
    assert [record.details["text"] for record in turned] == ["acme 0", "acme 1", "acme 2"]
    [indexed] = await fleet.wait_for("indexed", node=former)
    assert indexed.details["text"] == 2
    [attended] = await fleet.wait_for("attended", node=former)
    assert attended.details["text"] == "today"
    [cleaned] = await fleet.wait_for("cleaned", node=former)
    assert cleaned.details["text"] == ["family", "booking", "member"]
    for name in failing:
        await fleet.wait_for("JobRetried", node=former, job_id=name)
    former.send("vacuum")
    await done(fleet, "vacuum")
    await fleet.wait_for("JobDeadlineExceeded", node=node, job_id="behind")
    bounded = await client.get_job("bounded")
    assert bounded
    assert bounded.status is JobStatus.RUNNING
    assert await client.send("listen", "items", "c")

    await former.stop()
    await fleet.wait_for("JobDeadlineExceeded", node=node, job_id="bounded")
    assert await client.cancel_job("slot")
    for name in failing:
        await fleet.wait_for("JobCompleted", node=node, job_id=name)
    [received] = fleet.records("received")
    assert received.details["text"] == ["a", "b", "c"]
    assert [item.value async for item in client.stream("speak", "words")] == [
        f"word {number}" for number in (1, 2, 3)
    ]
    assert await client.get_value("speak", "name") == "speaker"
    assert len(fleet.records("charged")) == 1
    assert not await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL")
    await node.stop()
    assert fleet.records("ServiceFaulted") == []
