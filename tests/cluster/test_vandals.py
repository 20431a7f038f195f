"""Jobs that damage their own worker do not damage the rows of other jobs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from datetime import UTC, datetime

import asyncpg
import pytest

from pg_scheduler import Scheduler
from tests.cluster.fleet import TIMEOUT_S, Fleet, Node
from tests.support.stories import NIGHTLY

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("warmed_up_server")]

NO_ARGUMENTS: dict[str, object] = {"args": [], "kwargs": {}}
OPTIONS = ("--lease", "2", "--max-loop-block", "3", "--jobs", "tests.cluster.vandals")
HELD = [f"held {n}" for n in range(5)]
NOTES = [f"note {n}" for n in range(30)]
COMPLETED = "SELECT job_id FROM scheduled_jobs WHERE status = 'completed'"


async def enqueue(client: Scheduler, name: str, job_id: str) -> None:
    await client.schedule_job(name, datetime.now(UTC), NO_ARGUMENTS, job_id=job_id)


async def until_completed(pool: asyncpg.Pool, job_ids: list[str]) -> None:
    """Wait until the table has these jobs as completed: reports of a damaged worker prove nothing."""
    async with asyncio.timeout(2 * TIMEOUT_S):
        while {*job_ids} - {  # noqa: ASYNC110 - nothing reports it
            row["job_id"] for row in await pool.fetch(COMPLETED)
        }:
            await asyncio.sleep(0.1)


@NIGHTLY
@pytest.mark.parametrize(
    "name",
    ["clock_stopped", "clock_ahead", "clock_behind", "random", "fork", "loop_stopped", "loop_closed"],
)
async def test_job_that_damages_its_worker_leaves_the_rows_of_other_jobs_intact(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, name: str
) -> None:
    victim = await fleet.start(*OPTIONS)
    for job_id in HELD:
        await enqueue(client, "cluster.hold", job_id)
    await fleet.wait_for("JobStarted", node=victim, count=len(HELD))
    await enqueue(client, f"vandal.{name}", "vandal")
    await fleet.wait_for("ran", node=victim, job_id="vandal")
    try:
        other = await fleet.start(*OPTIONS)
        for job_id in NOTES:
            await enqueue(client, "cluster.note", job_id)
        await until_completed(pool, ["vandal", *NOTES])
    finally:  # the child has a copy of the standard output, whose end the victim's end waits for
        if forked := fleet.records("forked"):
            os.kill(forked[0].details["child"], signal.SIGKILL)
    if victim.process.returncode is None:
        await victim.kill()
    await until_completed(pool, HELD)
    await assert_intact(fleet, pool, victim, other)
    if name == "fork":
        [completed] = fleet.records("JobCompleted", job_id="vandal")
        assert (completed.node, completed.details["attempt"]) == (victim, 1)


async def assert_intact(fleet: Fleet, pool: asyncpg.Pool, victim: Node, other: Node) -> None:
    attempts = Counter((each.job_id, each.details["attempt"]) for each in fleet.records("ran"))
    assert set(attempts.values()) == {1}
    rows = {row["job_id"]: row for row in await pool.fetch("SELECT * FROM scheduled_jobs")}
    assert {*rows} == {"vandal", *HELD, *NOTES}
    for job_id, row in rows.items():
        assert row["status"] == "completed", job_id
        assert (job_id, row["attempt"]) in attempts, job_id
        assert row["worker_id"] in {victim.worker_id, other.worker_id}
        assert row["finished_at"] >= row["started_at"] >= row["execution_time"]
        completed = fleet.records("JobCompleted", job_id=job_id)
        assert len(completed) <= 1, job_id  # none if the worker ended before it could report
        for each in completed:
            assert (each.details["attempt"], each.node.worker_id) == (row["attempt"], row["worker_id"])
    for job_id in HELD:
        assert rows[job_id]["worker_id"] == other.worker_id
