"""Results that are passed to another job, while nodes are killed."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import asyncpg

from pg_scheduler import JobSpec, Scheduler
from tests.cluster.fleet import TIMEOUT_S, Fleet
from tests.cluster.predecessors import add, number
from tests.support.stories import NIGHTLY

OPTIONS = ("--lease", "2", "--jobs", "tests.cluster.predecessors", "--slots", "50")
JOBS = 10_000
KILLS = 2
"""Less than ``max_crashes``, or a job that ran on each of the killed nodes fails."""


@NIGHTLY
async def test_each_of_many_results_is_passed_once_while_nodes_are_killed(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    """The job that reads them kills its node when it has read half of them."""
    nodes = [await fleet.start(*OPTIONS) for _ in range(2)]
    now, second = datetime.now(UTC), timedelta(seconds=1)
    async with pool.acquire() as connection, connection.transaction():
        ids = await client.schedule_bulk(
            [JobSpec(number, now, (each,), keep_result=second) for each in range(JOBS)], connection=connection
        )
        reader = await client.enqueue(
            add,
            args=(JOBS // 2,),
            after=ids,
            pass_results=True,
            keep_result=timedelta(hours=1),
            connection=connection,
        )
    for kill in range(1, KILLS + 1):
        await fleet.wait_for("JobCompleted", count=kill * JOBS // (KILLS + 1))
        victim = nodes.pop(random.randrange(len(nodes)))
        await victim.kill()
        nodes.append(await fleet.start(*OPTIONS))
    result = await client.get_job_result(reader, timeout=2 * TIMEOUT_S)
    assert result is not None
    assert result.unwrap() == [JOBS, JOBS, sum(range(JOBS))]
    assert result.attempts == 2
    assert await pool.fetchval("SELECT count(*) FROM scheduler_after") == 0
