"""Jobs that take every connection of the pool do not starve the Scheduler."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import JobStatus, PollingConfig, RetryPolicy, Scheduler, job, periodic
from pg_scheduler.events import JobCancelled, JobCompleted, JobFailed, PassFinished
from tests.api.conftest import Make, Pools
from tests.support.worker import PATIENCE, Gate, Recorder, now

SIZE = 5
CROWD = 3 * SIZE
"""Jobs that want a connection: others wait for the place of one whose connection broke."""


@job(name="fails")
async def fails() -> None:
    raise LookupError("there is nobody of that name")


@job(name="works")
async def works() -> None: ...


async def used_up(scheduler: Scheduler, gate: Gate) -> None:
    """Start it, and have jobs hold what it leaves of its pool, and wait for more, until the gate opens."""
    pool, enough = scheduler.db_pool, asyncio.Event()

    async def hog() -> None:
        async with pool.acquire(timeout=PATIENCE):
            if pool.get_size() == SIZE and pool.get_idle_size() == 0:
                enough.set()
            await gate.job()

    await scheduler.start()
    for _ in range(CROWD):
        await scheduler.schedule(hog, execution_time=now())
    await asyncio.wait_for(enough.wait(), PATIENCE)


@pytest.fixture
async def crowded(make: Make, pools: Pools) -> Scheduler:
    """Its polling helps: it may have to do without LISTEN."""
    no_wait = RetryPolicy(base=timedelta(milliseconds=1))
    return make(await pools(SIZE), polling_config=PollingConfig(), retry_policy=no_wait)


async def test_claims_results_and_heartbeats_go_on(crowded: Scheduler, make: Make, gate: Gate) -> None:
    await used_up(crowded, gate)
    seen, caller = Recorder(crowded), make()
    failing = await caller.schedule(fails, execution_time=now(), max_retries=2)
    for _ in range(3):
        await caller.schedule(works, execution_time=now())
    await seen.until(JobFailed)
    await seen.until(JobCompleted, count=3)
    row = await caller.get_job(failing)
    assert row is not None
    assert (row.status, row.retry_count) == (JobStatus.FAILED, 2)
    gate.open.set()
    await seen.until(JobCompleted, count=3 + CROWD)


async def test_so_they_do_after_all_connections_broke(
    crowded: Scheduler, make: Make, gate: Gate, pool: asyncpg.Pool
) -> None:
    await used_up(crowded, gate)
    seen, caller = Recorder(crowded), make()
    await pool.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await caller.schedule(fails, execution_time=now(), max_retries=1)
    await seen.until(JobFailed)
    await seen.until(PassFinished, service="heartbeat")
    gate.open.set()


async def test_a_job_that_is_cancelled_elsewhere_is_stopped(
    crowded: Scheduler, make: Make, gate: Gate
) -> None:
    await used_up(crowded, gate)
    seen, caller = Recorder(crowded), make()
    page = await caller.list_jobs(status=JobStatus.RUNNING)
    assert await caller.cancel_job(page[0].job_id)
    await seen.until(JobCancelled, job_id=page[0].job_id)
    gate.open.set()


async def test_windows_are_enqueued(crowded: Scheduler, gate: Gate) -> None:
    @periodic(every=timedelta(seconds=1), job_name="tick")
    async def tick() -> None: ...

    await used_up(crowded, gate)
    seen = Recorder(crowded)
    await seen.until(JobCompleted, job_name="tick")
    gate.open.set()
