"""Threads that ignore their cancellation, and child processes, when their worker shuts down or ends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import asyncpg

from pg_scheduler import JobStatus, Scheduler
from tests.cluster import stubborn
from tests.cluster.fleet import TIMEOUT_S, Fleet
from tests.support.processes import is_alive

OPTIONS = ("--lease", "1.5", "--jobs", "tests.cluster.stubborn", "--stop-grace", "0.5")


async def enqueue(client: Scheduler, name: str) -> str:
    data: dict[str, object] = {"args": [], "kwargs": {}}
    return await client.schedule_job(f"{stubborn.PREFIX}{name}", datetime.now(UTC), data)


async def test_job_of_a_thread_that_ignores_its_timeout_starts_elsewhere_when_its_process_has_ended(
    fleet: Fleet, client: Scheduler, warmed_up_server: None
) -> None:
    first = await fleet.start(*OPTIONS)
    stuck = await enqueue(client, "ignore")
    await fleet.wait_for("began", node=first, job_id=stuck)
    other = await fleet.start(*OPTIONS)
    [abandoned] = await fleet.wait_for("ThreadAbandoned", node=first, job_id=stuck)
    assert "in ignore" in abandoned.details["stack"]

    # The worker runs other jobs, and the lease of this one is renewed, for as long as its thread runs.
    late = [await enqueue(client, "note") for _ in range(20)]
    await fleet.wait_for("JobCompleted", count=len(late))
    before = await client.get_job(stuck)
    assert before is not None
    assert (before.status, before.worker_id, before.attempt) == (JobStatus.RUNNING, first.worker_id, 1)

    # The shutdown is bounded, and so is the exit of the process: its status is 0.
    await first.stop()
    await fleet.wait_for("WorkerStopped", node=first)
    await fleet.wait_for("JobCompleted", node=other, job_id=stuck)
    assert fleet.records("ran", job_id=stuck, attempt=2)
    after = await client.get_job(stuck)
    assert after is not None
    assert (after.status, after.attempt) == (JobStatus.COMPLETED, 2)
    assert (after.crash_count, after.retry_count) == (0, 0)


async def test_job_of_a_running_thread_stays_with_its_process_after_the_shutdown(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, warmed_up_server: None
) -> None:
    first = await fleet.start(*OPTIONS)
    stuck = await enqueue(client, "ignore")
    await fleet.wait_for("began", node=first, job_id=stuck)
    other = await fleet.start(*OPTIONS)

    first.send("shutdown")
    await fleet.wait_for("WorkerStopped", node=first)
    [row] = [each for each in await client.workers() if each.worker_id == first.worker_id]
    assert row.is_stopping
    # Real time: several leases. The process renews its lease without a Scheduler and without its pool.
    for _ in range(3):
        seen = await pool.fetchval(
            "SELECT lease_until FROM scheduler_workers WHERE worker_id = $1", first.worker_id
        )
        async with pool.acquire() as connection:
            await connection.fetch("SELECT pg_sleep(1)")
        later = await pool.fetchval(
            "SELECT lease_until FROM scheduler_workers WHERE worker_id = $1", first.worker_id
        )
        assert later > seen
    assert not fleet.records("JobStarted", node=other)

    await first.kill()
    await fleet.wait_for("JobCompleted", node=other, job_id=stuck)
    after = await client.get_job(stuck)
    assert after is not None
    assert after.crash_count == 0


async def test_process_of_a_job_ends_with_its_killed_worker_and_the_job_runs_again(
    fleet: Fleet, client: Scheduler, warmed_up_server: None
) -> None:
    first = await fleet.start(*OPTIONS)
    stuck = await enqueue(client, "child")
    [began] = await fleet.wait_for("began", node=first, job_id=stuck)
    other = await fleet.start(*OPTIONS)
    await first.kill()
    await fleet.wait_for("JobCompleted", node=other, job_id=stuck)
    after = await client.get_job(stuck)
    assert after is not None
    assert (after.attempt, after.crash_count) == (2, 1)
    async with asyncio.timeout(TIMEOUT_S):
        while is_alive(began.details["pid"]):  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.05)
    await other.stop()
