"""Durable steps on a node that is wrongly declared dead."""

from __future__ import annotations

from datetime import UTC, datetime

import asyncpg

from pg_scheduler import JobStatus, Scheduler
from tests.cluster.fleet import Fleet

OPTIONS = ("--lease", "2", "--jobs", "tests.cluster.durable")


async def test_node_that_stood_still_in_a_step_while_another_one_finished_stores_nothing(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    stopped = await fleet.start(*OPTIONS, "--max-loop-block", "3")
    arguments: dict[str, object] = {"args": [], "kwargs": {}}
    job_id = await client.schedule_job("durable.freeze", datetime.now(UTC), arguments, job_id="one")
    await fleet.wait_for("JobStarted", node=stopped, job_id=job_id)
    winner = await fleet.start(*OPTIONS)
    await fleet.wait_for("JobCompleted", node=winner, job_id=job_id)
    stopped.resume()
    await fleet.wait_for("JobLost", node=stopped, job_id=job_id, attempt=1)
    rows = await pool.fetch("SELECT name, value::text AS value, attempt FROM scheduler_steps")
    assert [tuple(row) for row in rows] == [("stop", "2", 2)]
    found = await client.get_job(job_id)
    assert found is not None
    assert (found.status, found.attempt, found.worker_id) == (JobStatus.COMPLETED, 2, winner.worker_id)
