"""Jobs that complete in a transaction of their own, on nodes that die or are wrongly declared dead."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import asyncpg
import pytest

from pg_scheduler import Scheduler
from tests.cluster.completing import POINTS
from tests.cluster.fleet import TIMEOUT_S, Fleet, overtake
from tests.support.stories import NIGHTLY

OPTIONS = ("--lease", "2", "--jobs", "tests.cluster.completing")
NO_ARGUMENTS: dict[str, object] = {"args": [], "kwargs": {}}


@pytest.fixture(autouse=True)
async def effects(pool: asyncpg.Pool) -> None:
    await pool.execute("CREATE TABLE effects (job_id text)")


async def run_until_killed(fleet: Fleet, point: str) -> bool:
    """Run a node until it has died or completed its job; return whether it has died."""
    node = await fleet.start(*OPTIONS, variables={"KILL": point})
    died = asyncio.create_task(node.process.wait())
    completed = asyncio.create_task(fleet.wait_for("JobCompleted", node=node, job_id=point))
    await asyncio.wait([died, completed], timeout=TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    was_killed = died.done()
    completed.cancel()
    if not was_killed:
        await node.kill()
    await died
    return was_killed


@NIGHTLY
async def test_each_job_has_one_effect_when_its_process_is_killed_before_or_after_any_statement(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    for point in POINTS:
        await client.schedule_job(point, datetime.now(UTC), NO_ARGUMENTS, job_id=point)
    turns = asyncio.Semaphore(4)

    async def kill(point: str) -> bool:
        async with turns:
            return await run_until_killed(fleet, point)

    killed = await asyncio.gather(*map(kill, POINTS))
    assert sum(killed) >= 10, killed  # BEGIN, two INSERTs, the completion and COMMIT
    await fleet.start(*OPTIONS)
    async with asyncio.timeout(TIMEOUT_S):
        while await pool.fetchval(  # noqa: ASYNC110
            "SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL"
        ):
            await asyncio.sleep(0.1)  # the record of a completion may have died with its node
    rows = await pool.fetch("SELECT job_id FROM effects")
    assert sorted(row["job_id"] for row in rows) == sorted(POINTS)
    counts = await client.count_jobs()
    assert (counts.completed, counts.total) == (2 * len(POINTS), 2 * len(POINTS))
    attempts = await pool.fetch("SELECT attempt FROM scheduled_jobs WHERE job_id = ANY ($1)", POINTS)
    assert {row["attempt"] for row in attempts} == {1, 2}  # a kill after the commit repeats nothing


async def test_node_that_was_declared_dead_in_the_block_rolls_back(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    await overtake(fleet, client, "completing.freeze", OPTIONS)
    assert [each["job_id"] for each in await pool.fetch("SELECT job_id FROM effects")] == ["one 2"]
