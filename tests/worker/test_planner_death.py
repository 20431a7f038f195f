"""A planner that is killed between any two statements leaves exactly one job per fire time."""

from __future__ import annotations

import asyncio
import signal
import sys
from datetime import timedelta

import asyncpg
import pytest

from tests.support.inside import Store, fire_time_job_id
from tests.support.parts import Parts
from tests.support.store import new_schedule
from tests.support.stories import LONG
from tests.support.worker import PATIENCE, now
from tests.worker.planner_process import work

pytestmark = pytest.mark.slow

MOST_STATEMENTS = 60


async def plan_until_killed(dsn: str, number: int) -> bool:
    """Make a pass in a process that dies after so many statements; return whether it died."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.worker.planner_process", dsn, str(number)
    )
    status = await asyncio.wait_for(process.wait(), PATIENCE)
    assert status in {0, -signal.SIGKILL}
    return status != 0


async def sessions_ended(pool: asyncpg.Pool, own: int) -> None:
    """Wait until the server has ended the sessions of the killed process."""
    async with asyncio.timeout(PATIENCE):
        while (  # noqa: ASYNC110 - the server notifies nobody of it
            await pool.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND backend_type = 'client backend'"
            )
            > own
        ):
            await asyncio.sleep(0)  # the query takes its time


CANCELLED = """
    INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, finished_at, options)
    VALUES ($1, 'app.work', $2, 'cancelled', $2, '{"schedule_id": "s"}')
"""


@pytest.mark.parametrize("has_obsolete_job", [False, True] if LONG else [True])
async def test_planner_that_is_killed_between_any_two_statements_leaves_one_job_per_fire_time(
    parts: Parts, store: Store, pool: asyncpg.Pool, dsn: str, has_obsolete_job: bool
) -> None:
    parts.tasks.register(work, name="app.work")
    number, has_died = 0, True
    while has_died:
        number += 1
        assert number < MOST_STATEMENTS
        due = now() - timedelta(seconds=1)
        schedule = new_schedule(
            "s", anchor=due, next_fire_at=due, created_at=due, updated_at=due, overlap="queue_all"
        )
        assert await store.schedules.insert(schedule, ["every"])
        if has_obsolete_job:
            # It was cancelled with an earlier schedule.
            await pool.execute(CANCELLED, fire_time_job_id("s", due), due)
        own = pool.get_size()
        has_died = await plan_until_killed(dsn, number)
        await sessions_ended(pool, own)
        jobs = await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'pending'")
        # The pending ones have run, and the vacuum has deleted them.
        await pool.execute("DELETE FROM scheduled_jobs WHERE status = 'pending'")
        await parts.planner().run_once()
        jobs += await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'pending'")
        planned = await store.schedules.get("s")
        assert planned is not None
        assert (number, jobs, planned.runs, planned.last_fire_at) == (number, 1, 1, due)
        assert planned.next_fire_at == due + timedelta(hours=1)
        await pool.execute("DELETE FROM scheduled_jobs")
        await store.schedules.remove("s")
    assert number > 6, "one pass has more statements"
