"""Schedulers on a real database.

Their fallback polling is too slow to help: what a test waits for must follow from a wake-up, a timer or a
notification, or the test fails.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Protocol

import asyncpg
import pytest

from pg_scheduler import PollingConfig, Scheduler
from pg_scheduler.jobs.registry import TaskRegistry, catalogue
from tests.support.catalogues import clear_registrations
from tests.support.worker import PATIENCE, Gate, Recorder
from tests.support.world import world  # noqa: F401 - a fixture of this folder

HAS_RESET = "reset" in inspect.signature(asyncpg.create_pool).parameters
NEEDS_RESET = pytest.mark.skipif(not HAS_RESET, reason="asyncpg 0.29 has no reset=")

SLOW_POLLING = PollingConfig(idle_start_interval=600, max_interval=600, semaphore_full_interval=600)


class Make(Protocol):
    """Create a Scheduler that is shut down at the end of the test."""

    def __call__(self, own_pool: asyncpg.Pool | None = None, /, **settings: Any) -> Scheduler: ...


class Pools(Protocol):
    """Open a pool that is closed at the end of the test."""

    async def __call__(self, size: int) -> asyncpg.Pool: ...


@pytest.fixture
def own_catalogue() -> TaskRegistry:
    """Empty the catalogue of the process."""
    clear_registrations()
    return catalogue


@pytest.fixture
async def pools(dsn: str) -> AsyncIterator[Pools]:
    async with AsyncExitStack() as stack:

        async def make(size: int) -> asyncpg.Pool:
            pool = await asyncpg.create_pool(dsn, min_size=1, max_size=size)
            stack.push_async_callback(asyncio.wait_for, pool.close(), PATIENCE)
            return pool

        yield make


@pytest.fixture
async def make(pool: asyncpg.Pool, pools: Pools) -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        def build(own_pool: asyncpg.Pool | None = None, /, **settings: Any) -> Scheduler:
            defaults: dict[str, Any] = {"polling_config": SLOW_POLLING, "shutdown_timeout": 0.05}
            scheduler = Scheduler(own_pool or pool, **(defaults | settings))
            stack.push_async_callback(scheduler.shutdown)
            return scheduler

        yield build


@pytest.fixture
async def scheduler(make: Make) -> Scheduler:
    """Return a running Scheduler."""
    scheduler = make()
    await scheduler.start()
    return scheduler


@pytest.fixture
def seen(scheduler: Scheduler) -> Recorder:
    return Recorder(scheduler)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def open_gate() -> Gate:
    """Return a gate whose job ends at once."""
    gate = Gate()
    gate.open.set()
    return gate
