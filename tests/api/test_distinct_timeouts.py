"""Many jobs, each with a timeout of its own."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import JobPriority, JobSpec, PollingConfig, job
from pg_scheduler.events import JobCompleted
from tests.api.conftest import Make
from tests.support.inside import worker_of
from tests.support.worker import Recorder, now

pytestmark = pytest.mark.slow

COUNT = 20_000
MAX_LATENESS_S = 3.0


@job(name="timed")
async def timed() -> None: ...


@pytest.mark.timeout(240)
async def test_twenty_thousand_distinct_timeouts_delay_no_other_job(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make(polling_config=PollingConfig())
    seen = Recorder(scheduler)
    specs = [
        JobSpec(timed, now(), priority=JobPriority.LOW, timeout=timedelta(seconds=1000 + n))
        for n in range(COUNT)
    ]
    await scheduler.schedule_bulk(specs)
    await scheduler.start()
    probes = 0
    while await pool.fetchval("SELECT EXISTS (SELECT FROM scheduled_jobs WHERE status = 'pending')"):
        began = time.monotonic()
        probe = await scheduler.schedule(timed, execution_time=now(), priority=JobPriority.CRITICAL)
        await seen.until(JobCompleted, job_id=probe)
        assert time.monotonic() - began < MAX_LATENESS_S
        probes += 1
        await asyncio.sleep(0.2)  # the jobs run meanwhile
    await seen.until(JobCompleted, COUNT + probes)
    assert probes > 1
    executor = worker_of(scheduler).executor
    assert len(executor._runner._timeouts._timers) <= 150
