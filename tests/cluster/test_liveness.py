"""Killed processes, blocked event loops, and jobs that kill their process."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import asyncpg
import pytest

from pg_scheduler import JobStatus, Scheduler
from tests.cluster.fleet import TIMEOUT_S, Fleet

NO_ARGUMENTS: dict[str, object] = {"args": [], "kwargs": {}}
SHORT = ("--lease", "2")


async def enqueue(client: Scheduler, name: str) -> str:
    return await client.schedule_job(f"cluster.{name}", datetime.now(UTC), NO_ARGUMENTS)


@pytest.fixture
async def warmed_up_server(pool: asyncpg.Pool) -> None:
    """Wait until ten seconds after the server's start; before that, only leases detect dead workers."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await pool.fetchval(  # noqa: ASYNC110 - nothing reports it
            "SELECT clock_timestamp() - pg_postmaster_start_time() > '10 s'"
        ):
            await asyncio.sleep(0.5)


@pytest.mark.usefixtures("warmed_up_server")
async def test_jobs_of_a_killed_worker_are_reclaimed_before_its_lease_expires(
    fleet: Fleet, client: Scheduler
) -> None:
    victim = await fleet.start()  # the lease is a minute, three times the timeout of the test
    held = [await enqueue(client, "hold") for _ in range(3)]
    await fleet.wait_for("JobStarted", node=victim, count=3)
    other = await fleet.start()
    await victim.kill()
    done = await fleet.wait_for("JobCompleted", node=other, count=3)
    assert {record.job_id for record in done} == set(held)
    [reclaimed] = fleet.records("JobsReclaimed")
    assert reclaimed.details["dead_workers"] == [victim.worker_id]


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
    node = await fleet.start(*SHORT, "--max-loop-block", "1.5")
    job_id = await enqueue(client, "block")
    await fleet.wait_for("blocks", node=node, job_id=job_id)
    other = await fleet.start(*SHORT)
    await fleet.wait_for("blocks", node=other, job_id=job_id)
    await fleet.wait_for("LeaseLost", node=node)
    await fleet.wait_for("JobLost", node=node, job_id=job_id, attempt=1)
    await fleet.wait_for("JobCompleted", node=other, job_id=job_id, attempt=2)


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
