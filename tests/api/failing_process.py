"""A worker whose jobs fail, and that is killed as soon as so many failures are written: ``DSN JOBS``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import asyncpg

from pg_scheduler import Scheduler
from pg_scheduler.events import Event, JobFailed
from pg_scheduler.jobs.task import JobSpec
from tests.support.worker import now


async def decline(account: int) -> None:
    """Fail, so that each job counts."""
    raise ValueError(f"card of account {account} declined")


async def main(dsn: str, jobs: int) -> None:
    """Run jobs until a quarter of them have failed."""
    failed = 0

    def kill(_: Event) -> None:
        nonlocal failed
        failed += 1
        if failed >= jobs // 4:
            os.kill(os.getpid(), signal.SIGKILL)

    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool:
        scheduler = Scheduler(pool)
        scheduler.subscribe(kill, JobFailed)
        scheduler.register(decline, name="charge")
        await scheduler.schedule_bulk([JobSpec(decline, now(), args=(n,)) for n in range(jobs)])
        await scheduler.start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
