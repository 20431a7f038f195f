"""Batches with a callback, while nodes are killed."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import asyncpg

from pg_scheduler import JobSpec, Scheduler
from tests.cluster.fleet import Fleet

LEASE = ("--lease", "2")
BATCH = 400
KILLS = 3


async def note() -> None:
    """Stands for the function of the nodes."""


async def test_callback_of_a_batch_runs_once_after_all_jobs_while_nodes_are_killed(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    client.register(note, name="cluster.note")
    nodes = [await fleet.start(*LEASE, "--slots", "5") for _ in range(2)]
    async with pool.acquire() as connection, connection.transaction():
        ids = await client.schedule_bulk(
            [JobSpec(note, datetime.now(UTC)) for _ in range(BATCH)], connection=connection
        )
        callback = await client.enqueue("cluster.note", after=ids, connection=connection)
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
