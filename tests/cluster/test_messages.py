"""Notifications between nodes, and many nodes at once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import asyncpg

from pg_scheduler import JobStatus, PollingConfig, Scheduler
from pg_scheduler.events import Event, JobCompleted, ListenerConnected, ListenerLost
from tests.cluster.fleet import TIMEOUT_S, Fleet
from tests.support.worker import PROMPT, listening_pid

NODES = 20
NEVER_POLLS = PollingConfig(min_interval=60, max_interval=60, idle_start_interval=60)


async def ping() -> None:
    """Do nothing; only this process registers it."""


async def test_cancel_job_reaches_another_worker_between_its_heartbeats(
    fleet: Fleet, client: Scheduler
) -> None:
    runner = await fleet.start("--lease", "600")  # a heartbeat every 200 seconds
    job_id = await client.schedule_job("cluster.hold", datetime.now(UTC), {"args": [], "kwargs": {}})
    await fleet.wait_for("JobStarted", node=runner, job_id=job_id)
    assert await client.cancel_job(job_id)
    await fleet.wait_for("cancelled", node=runner, job_id=job_id)
    await fleet.wait_for("JobCancelled", node=runner, job_id=job_id)
    row = await client.get_job(job_id)
    assert row is not None
    assert row.status is JobStatus.CANCELLED
    assert not await client.cancel_job(job_id)
    await runner.stop()
    assert not fleet.records("ran")


async def test_twenty_nodes_start_concurrently_on_an_empty_database(empty_dsn: str) -> None:
    async with AsyncExitStack() as stack:
        pools = [
            await stack.enter_async_context(asyncpg.create_pool(empty_dsn, min_size=1, max_size=4))
            for _ in range(NODES)
        ]
        nodes = [Scheduler(pool) for pool in pools]
        try:
            await asyncio.gather(*(node.start() for node in nodes))
            workers = await nodes[0].workers()
            assert {worker.worker_id for worker in workers} == {node.worker_id for node in nodes}
            assert all(worker.is_alive for worker in workers)
            done: asyncio.Queue[Event] = asyncio.Queue()
            for node in nodes:
                node.register(ping)
                node.subscribe(done.put_nowait, JobCompleted)
            await nodes[-1].schedule(ping, execution_time=datetime.now(UTC))
            async with asyncio.timeout(TIMEOUT_S):
                await done.get()
        finally:
            await asyncio.gather(*(node.shutdown() for node in nodes))
        assert done.empty()  # twenty nodes ran the job once
        assert await pools[0].fetchval("SELECT count(*) FROM scheduler_workers") == 0


async def test_listener_reconnects_when_its_connection_is_killed(
    pool: asyncpg.Pool, client: Scheduler
) -> None:
    lost, connected, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with Scheduler(pool, polling_config=NEVER_POLLS) as node:
        node.register(ping)
        node.subscribe(lambda event: lost.set(), ListenerLost)
        node.subscribe(lambda event: connected.set(), ListenerConnected)
        node.subscribe(lambda event: done.set(), JobCompleted)
        listening = listening_pid(node)
        assert await pool.fetchval("SELECT pg_terminate_backend($1)", listening)
        async with asyncio.timeout(PROMPT):
            await lost.wait()
            await connected.wait()
        assert listening_pid(node) != listening
        # This node polls once a minute, so only a notification starts the job in time.
        await client.schedule(ping, execution_time=datetime.now(UTC))
        async with asyncio.timeout(PROMPT):
            await done.wait()
