"""Killed processes, blocked event loops, and jobs that kill their process."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from datetime import UTC, datetime

import asyncpg
import pytest

from pg_scheduler import JobPriority, JobStatus, Scheduler
from tests.cluster.fleet import TIMEOUT_S, Fleet, Node
from tests.support.store import as_user
from tests.support.stories import NIGHTLY

NO_ARGUMENTS: dict[str, object] = {"args": [], "kwargs": {}}
SHORT = ("--lease", "2")
LONG = ("--lease", "600")  # longer than any test


async def enqueue(client: Scheduler, name: str) -> str:
    return await client.schedule_job(f"cluster.{name}", datetime.now(UTC), NO_ARGUMENTS)


@pytest.mark.usefixtures("warmed_up_server")
async def test_jobs_of_a_killed_worker_are_reclaimed_before_its_lease_expires(
    fleet: Fleet, client: Scheduler
) -> None:
    victim = await fleet.start(*LONG)
    held = [await enqueue(client, "hold") for _ in range(3)]
    await fleet.wait_for("JobStarted", node=victim, count=3)
    other = await fleet.start()
    await victim.kill()
    done = await fleet.wait_for("JobCompleted", node=other, count=3)
    assert {record.job_id for record in done} == set(held)
    [reclaimed] = await fleet.wait_for("JobsReclaimed")
    assert reclaimed.details["dead_workers"] == [victim.worker_id]


@pytest.mark.usefixtures("warmed_up_server")
async def test_jobs_of_a_killed_worker_are_reclaimed_before_its_lease_expires_when_its_pool_sets_the_role(
    dsn: str, client: Scheduler, pool: asyncpg.Pool
) -> None:
    """The login role has no right on the tables."""
    suffix = uuid.uuid4().hex
    group, login = f"group_{suffix}", f"login_{suffix}"
    await pool.execute(
        f"CREATE ROLE {group}; CREATE ROLE {login} LOGIN NOINHERIT; GRANT {group} TO {login};"
        f" GRANT ALL ON ALL TABLES IN SCHEMA public TO {group}"
    )
    fleet = Fleet(as_user(dsn, login))
    try:
        victim = await fleet.start(*LONG, "--role", group)
        held = await enqueue(client, "hold")
        await fleet.wait_for("JobStarted", node=victim, job_id=held)
        other = await fleet.start("--role", group)
        await victim.kill()
        await fleet.wait_for("JobCompleted", node=other, job_id=held)
        [reclaimed] = await fleet.wait_for("JobsReclaimed")
        assert reclaimed.details["dead_workers"] == [victim.worker_id]
    finally:
        await fleet.close()
        await pool.execute(f"DROP OWNED BY {group}; DROP ROLE {group}, {login}")


@pytest.mark.usefixtures("warmed_up_server")
async def test_worker_keeps_its_jobs_when_it_loses_only_its_liveness_connection(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    busy = await fleet.start()
    held = await enqueue(client, "hold")
    await fleet.wait_for("JobStarted", node=busy, job_id=held)
    other = await fleet.start()
    key = await pool.fetchval(
        "SELECT liveness_key FROM scheduler_workers WHERE worker_id = $1", busy.worker_id
    )
    await pool.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        " AND classid::bigint << 32 | objid::bigint = $1",
        key,
    )
    async with asyncio.timeout(TIMEOUT_S):  # it reconnects with another key
        while key == await pool.fetchval(  # noqa: ASYNC110 - nothing reports it
            "SELECT liveness_key FROM scheduler_workers WHERE worker_id = $1", busy.worker_id
        ):
            await asyncio.sleep(0.05)
    after = [await enqueue(client, "note") for _ in range(3)]
    await fleet.wait_for("JobCompleted", count=len(after))
    assert not fleet.records("JobsReclaimed", node=other)
    row = await client.get_job(held)
    assert row is not None
    assert (row.status, row.worker_id, row.attempt) == (JobStatus.RUNNING, busy.worker_id, 1)


async def test_worker_keeps_its_lease_and_names_the_job_when_its_event_loop_is_blocked(
    fleet: Fleet, client: Scheduler
) -> None:
    """The job blocks for five seconds of real time; the lease is two seconds."""
    busy = await fleet.start(*SHORT)
    job_id = await enqueue(client, "block")
    await fleet.wait_for("blocks", node=busy, job_id=job_id)
    await fleet.start(*SHORT)
    await fleet.wait_for("JobCompleted", node=busy, job_id=job_id)
    assert len(fleet.records("blocks")) == 1
    assert not fleet.records("JobsReclaimed")
    assert not fleet.records("LeaseLost")
    [blocked] = await fleet.wait_for("LoopBlocked", node=busy)
    assert (blocked.job_id, blocked.details["job_name"]) == (job_id, "cluster.block")
    assert blocked.details["seconds"] > 4
    assert "in block" in blocked.details["stack"]


async def test_worker_revokes_its_lease_when_its_event_loop_is_blocked_too_long(
    fleet: Fleet, client: Scheduler
) -> None:
    both = {await fleet.start(*SHORT, "--max-loop-block", "1.5") for _ in range(2)}
    job_id = await enqueue(client, "block")
    [blocks] = await fleet.wait_for("blocks", job_id=job_id)
    node = blocks.node
    (other,) = both - {node}
    await fleet.wait_for("blocks", node=other, job_id=job_id)
    await fleet.wait_for("LeaseLost", node=node)
    await fleet.wait_for("JobLost", node=node, job_id=job_id, attempt=1)
    await fleet.wait_for("JobCompleted", node=other, job_id=job_id, attempt=2)


async def start_match(fleet: Fleet, client: Scheduler, *options: str) -> tuple[Node, str, list[str]]:
    """Start a node whose GIL one job holds for seven seconds while 20 others run, and a second node."""
    busy = await fleet.start(*options)
    neighbours = [await enqueue(client, "accompany") for _ in range(20)]
    await fleet.wait_for("JobStarted", node=busy, count=len(neighbours))
    culprit = await enqueue(client, "match")
    await fleet.wait_for("JobStarted", node=busy, job_id=culprit)
    await fleet.start(*options)
    busy.send("match")
    return busy, culprit, neighbours


@NIGHTLY
async def test_worker_keeps_its_jobs_when_one_holds_the_gil_for_longer_than_the_lease(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    """Real time: the lease is two seconds. The keeper's thread cannot renew it meanwhile."""
    busy, culprit, neighbours = await start_match(fleet, client, *SHORT)
    async with asyncio.timeout(TIMEOUT_S):
        while not await pool.fetchval(  # noqa: ASYNC110 - nothing reports it
            "SELECT lease_until < now() - interval '3 s' FROM scheduler_workers WHERE worker_id = $1",
            busy.worker_id,
        ):
            await asyncio.sleep(0.1)
    assert not fleet.records("ran"), "the job still holds the GIL, and a rescuer has had time to act"
    done = await fleet.wait_for("JobCompleted", node=busy, count=21)
    assert {record.job_id for record in done} == {culprit, *neighbours}
    assert Counter(record.job_id for record in fleet.records("JobStarted")) == Counter([culprit, *neighbours])
    for event in ("LeaseLost", "JobLost", "JobsReclaimed"):
        assert not fleet.records(event)


@NIGHTLY
async def test_worker_loses_its_jobs_when_one_holds_the_gil_for_longer_than_max_loop_block(
    fleet: Fleet, client: Scheduler
) -> None:
    busy, culprit, neighbours = await start_match(fleet, client, "--lease", "1", "--max-loop-block", "3")
    done = await fleet.wait_for("JobCompleted", count=21)
    assert {record.job_id for record in done} == {culprit, *neighbours}
    assert all(record.node is not busy for record in done)
    await fleet.wait_for("LeaseLost", node=busy)
    await fleet.wait_for("JobLost", node=busy, job_id=culprit, attempt=1)


async def test_job_is_quarantined_when_it_kills_its_workers(fleet: Fleet, client: Scheduler) -> None:
    for _ in range(4):
        await fleet.start(*SHORT)
    job_id = await enqueue(client, "die")
    [failed] = await fleet.wait_for("JobFailed", job_id=job_id)
    last = failed.node
    assert len({record.node for record in fleet.records("dies", job_id=job_id)} - {last}) == 3
    assert failed.details["error"].startswith("quarantined: 3 workers died")
    row = await client.get_job(job_id)
    assert row is not None
    assert (row.status, row.attempt, row.retry_count) == (JobStatus.FAILED, 3, 0)
    assert row.error_message == failed.details["error"]
    assert await client.retry_job(job_id)
    await fleet.wait_for("dies", node=last, job_id=job_id)


async def test_only_the_job_that_kills_its_workers_is_quarantined(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    """Workers die with up to 21 jobs. Later ones run at most one at a time that two of them died with."""
    first = await fleet.start(*SHORT)
    neighbours = [await enqueue(client, "accompany") for _ in range(20)]
    await fleet.wait_for("JobStarted", node=first, count=len(neighbours))
    culprit = await client.schedule_job(
        "cluster.die", datetime.now(UTC), NO_ARGUMENTS, JobPriority.CRITICAL
    )  # so that it is claimed again before the others
    await fleet.wait_for("dies", node=first)
    for deaths in (2, 3):
        await fleet.start(*SHORT)
        await fleet.wait_for("dies", count=deaths)
    last = await fleet.start(*SHORT)
    [failed] = await fleet.wait_for("JobFailed")
    assert failed.job_id == culprit
    done = await fleet.wait_for("JobCompleted", count=len(neighbours))
    assert Counter(record.job_id for record in done) == Counter(neighbours)
    rows = await pool.fetch("SELECT job_id, crash_count, attempt FROM scheduled_jobs")
    crashes = {row["job_id"]: row["crash_count"] for row in rows}
    assert crashes.pop(culprit) == 3
    assert 2 in crashes.values()
    assert crashes.keys() == set(neighbours)
    assert {tuple(row) for row in rows} >= {(job_id, count, count + 1) for job_id, count in crashes.items()}
    running = 0
    for record in fleet.received:
        if record.node is last and crashes.get(record.details.get("job_id", "")) == 2:
            running += (record.event == "JobStarted") - (record.event == "JobCompleted")
            assert running <= 1
