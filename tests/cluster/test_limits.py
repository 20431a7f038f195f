"""A limit is exact and never loses capacity, while workers are killed and jobs are cancelled."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import JobPriority, Scheduler
from tests.cluster.fleet import ROOT, environment
from tests.cluster.limited import OBSERVED
from tests.support.inside import PlainJob, store_of
from tests.support.worker import now

TIMEOUT_S = 60.0
RUNNING = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = {OBSERVED} AND granted"
CANCELLED_NEXT = "SELECT job_id FROM scheduled_jobs WHERE status = 'running' ORDER BY started_at DESC LIMIT 2"
CLEANUP_S = 0.3
"""Seconds that a job takes to end after its cancellation: less than the 2 seconds for which it counts."""
LEFT = "SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL"

Start = Callable[..., Awaitable[Process]]


@pytest.fixture
async def start(dsn: str) -> AsyncIterator[Start]:
    processes: list[Process] = []

    async def launch(most: int, slots: int = 10) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "tests.cluster.limited", dsn),
            *("--most", str(most), "--slots", str(slots)),
            cwd=ROOT,
            env=environment(),
            stdin=PIPE,
            stdout=PIPE,
        )
        processes.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            assert await process.stdout.readline() == b"started\n"
        return process

    yield launch
    for process in processes:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def enqueue(
    client: Scheduler,
    count: int,
    *arguments: float,
    prefix: str = "job",
    delay: timedelta = timedelta(0),
) -> None:
    """Insert jobs without a notification; the arguments are those of the observed job."""
    task_data = json.dumps({"args": arguments, "kwargs": {}})
    due = now() + delay
    jobs = [
        PlainJob(f"{prefix}-{n}", task_data, due, "observed", JobPriority.NORMAL.db_value, 0, None, None)
        for n in range(count)
    ]
    await store_of(client).inserts.insert(jobs)


class Observer:
    """Counts the jobs that run, as the most at one time."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool
        self.most = 0

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        await self.pool.execute("CREATE TABLE excess (at timestamptz DEFAULT clock_timestamp())")
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()

    async def _watch(self) -> None:
        while True:
            self.most = max(self.most, await self.pool.fetchval(RUNNING))
            await asyncio.sleep(0.01)  # it samples, as an observer from outside

    async def excess(self) -> int:
        return int(await self.pool.fetchval("SELECT count(*) FROM excess"))

    async def until(self, query: str, reached: Callable[[int], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not reached(await self.pool.fetchval(query)):  # noqa: ASYNC110 - nothing reports it
                await asyncio.sleep(0.02)


async def test_limit_is_exact_while_workers_are_killed_and_jobs_are_cancelled(
    start: Start, client: Scheduler, pool: asyncpg.Pool
) -> None:
    """Jobs of a wave become due at one instant, at which all workers are idle and the limit has room."""
    observer = Observer(pool)
    workers = [await start(7) for _ in range(3)]
    async with observer.watching():
        for wave in range(5):
            delay = timedelta(seconds=1 + 0.6 * wave)
            await enqueue(client, 24, 0.05, prefix=f"wave-{wave}", delay=delay)
        await observer.until(LEFT, lambda count: count == 0)
        assert await observer.excess() == 0
        await enqueue(client, 200, 0.1, 0.002, CLEANUP_S)
        for left in (150, 100, 50):
            for goal in (left + 30, left + 20, left + 10, left):
                await observer.until(LEFT, lambda count, goal=goal: count <= goal)  # type: ignore[misc]
                for job_id in [row[0] for row in await pool.fetch(CANCELLED_NEXT)]:
                    await client.cancel_job(job_id)
            workers.pop().kill()
            workers.insert(0, await start(7))
        await observer.until(LEFT, lambda count: count == 0)
    assert await observer.excess() == 0
    assert observer.most == 7
    statuses = {row[0] for row in await pool.fetch("SELECT DISTINCT status FROM scheduled_jobs")}
    assert statuses == {"completed", "cancelled"}


async def test_capacity_of_a_limit_returns_after_workers_died(
    start: Start, client: Scheduler, pool: asyncpg.Pool
) -> None:
    observer = Observer(pool)
    await enqueue(client, 20, 60)
    for _ in range(3):
        worker = await start(2, 5)
        await observer.until(RUNNING, lambda count: count == 2)
        worker.kill()
        await observer.until(RUNNING, lambda count: count == 0)
    await start(2, 5)
    await observer.until(RUNNING, lambda count: count == 2)
