"""A Scheduler keeps working while its jobs hold every connection of the pool."""

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
"""Jobs that acquire a connection; waiting ones take the place of a broken connection."""


@job(name="fails")
async def fails() -> None:
    raise LookupError("on purpose")


@job(name="works")
async def works() -> None: ...


async def use_up_pool(scheduler: Scheduler, gate: Gate) -> None:
    """Start the Scheduler and jobs that hold the rest of its pool until the gate opens."""
    pool, used_up = scheduler.db_pool, asyncio.Event()

    async def hog() -> None:
        async with pool.acquire(timeout=PATIENCE):
            if pool.get_size() == SIZE and pool.get_idle_size() == 0:
                used_up.set()
            await gate.job()

    await scheduler.start()
    for _ in range(CROWD):
        await scheduler.schedule(hog, execution_time=now())
    await asyncio.wait_for(used_up.wait(), PATIENCE)


@pytest.fixture
async def crowded(make: Make, pools: Pools) -> Scheduler:
    """Return a Scheduler that polls at the usual rate: it may have no connection for LISTEN."""
    no_wait = RetryPolicy(base=timedelta(milliseconds=1))
    return make(await pools(SIZE), polling_config=PollingConfig(), retry_policy=no_wait)


async def test_scheduler_claims_and_settles_jobs_when_jobs_hold_the_whole_pool(
    crowded: Scheduler, make: Make, gate: Gate
) -> None:
    await use_up_pool(crowded, gate)
    seen, caller = Recorder(crowded), make()
    failing = await caller.schedule(fails, execution_time=now(), max_retries=2)
    for _ in range(3):
        await caller.schedule(works, execution_time=now())
    await seen.until(JobFailed, job_id=failing)
    await seen.until(JobCompleted, count=3, job_name="works")
    row = await caller.get_job(failing)
    assert row is not None
    assert (row.status, row.retry_count) == (JobStatus.FAILED, 2)
    gate.open.set()
    await seen.until(JobCompleted, count=3 + CROWD)


@pytest.mark.slow
async def test_scheduler_recovers_from_lost_connections_when_jobs_hold_the_whole_pool(
    crowded: Scheduler, make: Make, gate: Gate, pool: asyncpg.Pool
) -> None:
    await use_up_pool(crowded, gate)
    seen, caller = Recorder(crowded), make()
    await pool.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    failing = await caller.schedule(fails, execution_time=now(), max_retries=1)
    await seen.until(JobFailed, job_id=failing)
    await seen.until(PassFinished, service="heartbeat")
    # The jobs that hold the pool, or wait for it, have not ended meanwhile.
    assert {event.job_id for event in seen.of(JobFailed)} == {failing}
    gate.open.set()


async def test_job_cancelled_elsewhere_is_stopped_when_jobs_hold_the_whole_pool(
    crowded: Scheduler, make: Make, gate: Gate
) -> None:
    await use_up_pool(crowded, gate)
    seen, caller = Recorder(crowded), make()
    page = await caller.list_jobs(status=JobStatus.RUNNING)
    assert await caller.cancel_job(page[0].job_id)
    await seen.until(JobCancelled, job_id=page[0].job_id)
    gate.open.set()


@pytest.mark.slow
async def test_periodic_jobs_are_enqueued_when_jobs_hold_the_whole_pool(
    crowded: Scheduler, gate: Gate
) -> None:
    @periodic(every=timedelta(seconds=1), job_name="tick")
    async def tick() -> None: ...

    await use_up_pool(crowded, gate)
    seen = Recorder(crowded)
    await seen.until(JobCompleted, job_name="tick")
    gate.open.set()
