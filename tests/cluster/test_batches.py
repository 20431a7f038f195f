"""Batches, some with a callback, while nodes are killed."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta

import asyncpg

from pg_scheduler import JobSpec, Scheduler
from tests.cluster.fleet import TIMEOUT_S, Fleet
from tests.cluster.node import note

LEASE = ("--lease", "2")
BATCH = 400
KILLS = 2
"""A job that runs during three of them is quarantined."""


async def test_callback_of_a_batch_runs_once_after_all_jobs_while_nodes_are_killed(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    nodes = [await fleet.start(*LEASE, "--slots", "5") for _ in range(2)]
    async with pool.acquire() as connection, connection.transaction():
        ids = await client.schedule_bulk(
            [JobSpec(note, datetime.now(UTC)) for _ in range(BATCH)], connection=connection
        )
        callback = await client.enqueue(note, after=ids, connection=connection)
    for kill in range(1, KILLS + 1):
        await fleet.wait_for("ran", count=kill * BATCH // (KILLS + 1))
        victim = nodes.pop(random.randrange(len(nodes)))
        await victim.kill()
        nodes.append(await fleet.start(*LEASE, "--slots", "5"))
    await fleet.wait_for("JobCompleted", job_id=callback)

    assert len(fleet.records("ran", job_id=callback)) == 1
    rows = await pool.fetch("SELECT * FROM scheduled_jobs")
    assert {row["status"] for row in rows} == {"completed"}
    assert len(rows) == BATCH + 1
    ends = {row["job_id"]: row["finished_at"] for row in rows}
    starts = {row["job_id"]: row["started_at"] for row in rows}
    assert starts[callback] >= max(ends[job_id] for job_id in ids if job_id is not None)
    assert await pool.fetchval("SELECT count(*) FROM scheduler_after") == 0


async def test_no_completed_job_is_left_with_the_immediate_policy_while_nodes_are_killed(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    options = (*LEASE, "--slots", "5", "--immediate")
    nodes = [await fleet.start(*options) for _ in range(4)]  # their first vacuum precedes the jobs
    plain = [JobSpec(note, datetime.now(UTC)) for _ in range(BATCH)]
    kept = [JobSpec(note, datetime.now(UTC), keep_result=timedelta(hours=1)) for _ in range(BATCH // 2)]
    async with pool.acquire() as connection, connection.transaction():
        ids = await client.schedule_bulk([*plain, *kept], connection=connection)
        await client.enqueue(note, after=ids[: BATCH // 2], connection=connection)
    for kill, victim in enumerate(nodes[:2], 1):
        await fleet.wait_for("ran", count=kill * BATCH // 4)
        await victim.kill()
    async with asyncio.timeout(TIMEOUT_S):
        while await pool.fetchval(  # noqa: ASYNC110 - the killed nodes reported no end of their last jobs
            "SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL"
        ):
            await asyncio.sleep(0.05)
    assert await pool.fetch("SELECT status, job_id FROM scheduled_jobs") == []
    assert await pool.fetchval("SELECT count(*) FROM scheduler_results") == len(kept)
    assert await pool.fetchval("SELECT count(*) FROM scheduler_after") == 0
