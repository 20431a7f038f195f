"""A worker that is killed in the call for a chunk, once three of ten outcomes are written: ``DSN``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import asyncpg

from pg_scheduler import Chunk, JobSpec, Scheduler
from tests.support.worker import now

COMPLETED = "SELECT count(*) FROM scheduled_jobs WHERE status = 'completed'"


async def index(chunk: Chunk[int]) -> None:
    """Complete three jobs, and die when that is committed."""
    for job in chunk:
        if job.item < 3:
            chunk.complete(job)
    while await chunk.pool.fetchval(COMPLETED) < 3:  # noqa: ASYNC110 - nothing reports it here
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


async def main(dsn: str) -> None:
    """Run a chunk of ten jobs."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool:
        scheduler = Scheduler(pool)
        scheduler.register(index, name="index", chunk=10)
        await scheduler.schedule_bulk([JobSpec(index, now(), args=(n,)) for n in range(10)])
        await scheduler.start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
