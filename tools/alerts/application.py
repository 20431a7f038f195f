"""The jobs of the workers that the run examines, and a Scheduler whose pool is too small to listen."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import asyncpg

from pg_scheduler import Scheduler, job, periodic

CORRECTED: Final = "PG_SCHEDULER_ALERTS_CORRECTED"
"""Names the file that makes the faulty functions correct once it exists."""

SLOTS: Final = 4
SMALL_POOL: Final = 2


def _is_corrected() -> bool:
    return Path(os.environ[CORRECTED]).exists()


@job(name="quick")
async def quick() -> None:
    """End at once."""


@job(name="slow")
async def slow() -> None:
    """Keep a slot until the job is cancelled."""
    await asyncio.sleep(3600)


@job(name="fail")
async def fail() -> None:
    """Fail for good, until the function is corrected."""
    if not _is_corrected():
        raise ValueError("the function is not corrected yet")


@job(name="block")
async def block() -> None:
    """Block the event loop."""
    time.sleep(4)  # noqa: ASYNC251 - this is the fault


@job(name="die")
async def die() -> None:
    """Kill the worker, until the function is corrected."""
    if not _is_corrected():
        os.kill(os.getpid(), signal.SIGKILL)


@periodic(every=timedelta(seconds=5), dedup_key="tick")
@job(name="tick")
async def tick() -> None:
    """Fire as a healthy schedule does."""


@asynccontextmanager
async def small() -> AsyncIterator[Scheduler]:
    """Yield a Scheduler that cannot keep a connection for notifications."""
    async with asyncpg.create_pool(os.environ["PG_SCHEDULER_DSN"], min_size=1, max_size=SMALL_POOL) as pool:
        yield Scheduler(pool, max_concurrent_jobs=SLOTS)
