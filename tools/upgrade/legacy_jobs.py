"""The functions of ``tests/migrations/legacy.py``, whose jobs 0.2.3 leaves to workers of this release."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg

from pg_scheduler import Scheduler, job, periodic
from tools.upgrade.ledger import DSN_VARIABLE


@job()
async def note(*args: object, **kwargs: object) -> None:
    """Complete at once."""


@job()
async def fail() -> None:
    """Complete at once, too: its jobs failed under 0.2.3."""


@job()
async def hang() -> None:
    """Complete what a worker of 0.2.3 ran when it was killed."""


@periodic(every=timedelta(seconds=1))
async def tick() -> None:
    """Continue the schedule of 0.2.3."""


@asynccontextmanager
async def open_scheduler() -> AsyncIterator[Scheduler]:
    """Open the Scheduler of a worker, which deletes no jobs, so that they can be counted."""
    async with asyncpg.create_pool(os.environ[DSN_VARIABLE], min_size=1, max_size=8) as pool:
        yield Scheduler(pool, vacuum_enabled=False, batch_claim_limit=100, max_concurrent_jobs=100)
