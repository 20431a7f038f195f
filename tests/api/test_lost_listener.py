"""A worker without notifications acts on the changes of other nodes, from the moment of the loss on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from pg_scheduler.events import JobCancelled, JobCompleted, ListenerLost
from pg_scheduler.triggers import Every
from tests.api.conftest import Make
from tests.support.worker import Gate, Recorder, wire_to


@asynccontextmanager
async def losing_its_listener(make: Make, dsn: str, gate: Gate) -> AsyncIterator[tuple[Recorder, str]]:
    """Yield the events of a worker that runs a job and has lost its listener for good, and the id of the job.

    While it receives notifications, it heartbeats every hour and reads its schedules every two minutes.
    """
    async with wire_to(dsn) as wire:
        worker = make(direct_dsn=wire.dsn, keeper_dsn=dsn, lease=timedelta(hours=3))
        worker.register(gate.job, name="gated")
        seen = Recorder(worker)
        await worker.start()
        job_id = await worker.enqueue("gated")
        await gate.wait_begun()
        wire.cut()
        await seen.until(ListenerLost)
        yield seen, job_id
        gate.open.set()
        await worker.shutdown()


async def test_worker_notices_a_cancelled_job_after_it_lost_its_listener(
    make: Make, dsn: str, gate: Gate
) -> None:
    async with losing_its_listener(make, dsn, gate) as (seen, job_id):
        other = make()
        assert await other.cancel_job(job_id)
        await seen.until(JobCancelled, job_id=job_id)


async def test_worker_notices_a_new_schedule_after_it_lost_its_listener(
    make: Make, dsn: str, gate: Gate
) -> None:
    async with losing_its_listener(make, dsn, gate) as (seen, _job_id):
        other = make()
        gate.open.set()
        await other.schedules.add("gated", Every(seconds=1))
        await seen.until(JobCompleted, 2)
