"""Processes that end at once, processes that are busy, and jobs that kill theirs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import asyncpg
import pytest

from pg_scheduler import JobStatus, Scheduler
from tests.cluster.fleet import PATIENCE, Fleet

NOTHING: dict[str, object] = {"args": [], "kwargs": {}}
SHORT = ("--lease", "2")


async def enqueue(client: Scheduler, name: str) -> str:
    return await client.schedule_job(f"cluster.{name}", datetime.now(UTC), NOTHING)


@pytest.fixture
async def settled(pool: asyncpg.Pool) -> None:
    """The server has run for a while: right after its start silence means nothing."""
    async with asyncio.timeout(PATIENCE):
        while not await pool.fetchval(  # noqa: ASYNC110 - nobody tells
            "SELECT clock_timestamp() - pg_postmaster_start_time() > '10 s'"
        ):
            await asyncio.sleep(0.5)


@pytest.mark.usefixtures("settled")
async def test_a_killed_nodes_jobs_do_not_wait_for_its_lease(fleet: Fleet, client: Scheduler) -> None:
    victim = await fleet.start()  # a lease of a minute, of which the test's patience is a third
    held = [await enqueue(client, "hold") for _ in range(3)]
    await fleet.sees("JobStarted", node=victim, count=3)
    other = await fleet.start()
    await victim.kill()
    done = await fleet.sees("JobCompleted", node=other, count=3)
    assert {seen.job_id for seen in done} == set(held)
    [rescued] = fleet.seen("JobsReclaimed")
    assert rescued.about["dead_workers"] == [victim.worker_id]


@pytest.mark.usefixtures("settled")
async def test_a_node_that_lost_its_connections_only_keeps_its_jobs(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    busy = await fleet.start()
    held = await enqueue(client, "hold")
    await fleet.sees("JobStarted", node=busy, job_id=held)
    other = await fleet.start()
    key = await pool.fetchval(
        "SELECT liveness_key FROM scheduler_workers WHERE worker_id = $1", busy.worker_id
    )
    await pool.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        " AND classid::bigint << 32 | objid::bigint = $1",
        key,
    )
    async with asyncio.timeout(PATIENCE):  # it comes back under another key
        while key == await pool.fetchval(  # noqa: ASYNC110 - the same
            "SELECT liveness_key FROM scheduler_workers WHERE worker_id = $1", busy.worker_id
        ):
            await asyncio.sleep(0.05)
    after = [await enqueue(client, "note") for _ in range(3)]
    await fleet.sees("JobCompleted", count=len(after))
    assert not fleet.seen("JobsReclaimed", node=other)
    row = await client.get_job(held)
    assert row is not None
    assert (row.status, row.worker_id, row.attempt) == (JobStatus.RUNNING, busy.worker_id, 1)


async def test_a_job_that_blocks_the_loop_keeps_its_lease_and_is_named(
    fleet: Fleet, client: Scheduler
) -> None:
    """Five seconds, with a lease of two. Real time is what this is about."""
    busy = await fleet.start(*SHORT)
    job_id = await enqueue(client, "block")
    await fleet.sees("blocks", node=busy, job_id=job_id)
    await fleet.start(*SHORT)
    await fleet.sees("JobCompleted", node=busy, job_id=job_id)
    assert len(fleet.seen("blocks")) == 1
    assert not fleet.seen("JobsReclaimed")
    assert not fleet.seen("LeaseLost")
    [blocked] = await fleet.sees("LoopBlocked", node=busy)
    assert (blocked.job_id, blocked.about["job_name"]) == (job_id, "cluster.block")
    assert blocked.about["seconds"] > 4
    assert "in block" in blocked.about["stack"]


async def test_a_wedged_node_gives_its_lease_up(fleet: Fleet, client: Scheduler) -> None:
    wedged = await fleet.start(*SHORT, "--max-loop-block", "1.5")
    job_id = await enqueue(client, "block")
    await fleet.sees("blocks", node=wedged, job_id=job_id)
    other = await fleet.start(*SHORT)
    await fleet.sees("blocks", node=other, job_id=job_id)
    await fleet.sees("LeaseLost", node=wedged)
    await fleet.sees("JobLost", node=wedged, job_id=job_id, attempt=1)
    await fleet.sees("JobCompleted", node=other, job_id=job_id, attempt=2)


async def test_a_job_that_kills_its_workers_is_put_aside(fleet: Fleet, client: Scheduler) -> None:
    for _ in range(4):
        await fleet.start(*SHORT)
    job_id = await enqueue(client, "die")
    [failed] = await fleet.sees("JobFailed", job_id=job_id)
    last = failed.node
    assert len({seen.node for seen in fleet.seen("dies", job_id=job_id)} - {last}) == 3
    assert failed.about["error"].startswith("quarantined: 3 workers died")
    row = await client.get_job(job_id)
    assert row is not None
    assert (row.status, row.attempt, row.retry_count) == (JobStatus.FAILED, 3, 0)
    assert row.error_message == failed.about["error"]
    assert await client.retry_job(job_id)
    await fleet.sees("dies", node=last, job_id=job_id)
