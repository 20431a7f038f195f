"""Workers that fork: the children inherit the sockets of the worker's connections."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import asyncpg
import pytest

from pg_scheduler import JobStatus, Scheduler
from tests.cluster.fleet import TIMEOUT_S, Fleet

NO_ARGUMENTS: dict[str, object] = {"args": [], "kwargs": {}}


async def enqueue(client: Scheduler, name: str) -> str:
    return await client.schedule_job(f"cluster.{name}", datetime.now(UTC), NO_ARGUMENTS)


async def sessions(pool: asyncpg.Pool) -> set[int]:
    """Return the process ids of the sessions of the database, without those of the pool."""
    rows = await pool.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name <> 'test' AND backend_type = 'client backend'"
    )
    return {row["pid"] for row in rows}


@pytest.fixture
async def observer(dsn: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool whose sessions ``sessions()`` leaves out."""
    async with asyncpg.create_pool(
        dsn, min_size=1, max_size=5, server_settings={"application_name": "test"}
    ) as pool:
        yield pool


@pytest.mark.usefixtures("warmed_up_server")
async def test_jobs_of_a_killed_worker_are_reclaimed_before_its_lease_expires_when_its_forked_child_lives(
    fleet: Fleet, observer: asyncpg.Pool
) -> None:
    client = Scheduler(observer)
    others = await sessions(observer)
    victim = await fleet.start("--lease", "600")  # longer than the test
    job_id = await enqueue(client, "fork")
    [forked] = await fleet.wait_for("forked", node=victim)
    child = forked.details["child"]
    try:
        of_victim = await sessions(observer) - others
        assert len(of_victim) >= 3  # LISTEN, claims and the liveness lock
        other = await fleet.start()
        await victim.kill()
        await fleet.wait_for("JobCompleted", node=other, job_id=job_id, attempt=2)
        os.kill(child, 0)  # it lives
        async with asyncio.timeout(TIMEOUT_S):
            while of_victim & await sessions(observer):  # noqa: ASYNC110 - nothing reports it
                await asyncio.sleep(0.05)
    finally:
        os.kill(child, signal.SIGKILL)
    row = await client.get_job(job_id)
    assert row is not None
    assert (row.status, row.worker_id) == (JobStatus.COMPLETED, other.worker_id)


async def test_forked_child_that_terminates_its_connections_does_not_disturb_the_worker(
    fleet: Fleet, observer: asyncpg.Pool
) -> None:
    client = Scheduler(observer)
    node = await fleet.start()
    first = await enqueue(client, "note")
    await fleet.wait_for("JobCompleted", node=node, job_id=first)
    before = await sessions(observer)
    node.send("fork")
    await fleet.wait_for("done", node=node, line="fork")
    after = [await enqueue(client, "note") for _ in range(3)]
    await fleet.wait_for("JobCompleted", node=node, count=1 + len(after))
    assert await sessions(observer) >= before
    for event in ("ListenerLost", "KeeperLost", "ServiceRetrying", "LeaseLost"):
        assert not fleet.records(event)
    await node.stop()
