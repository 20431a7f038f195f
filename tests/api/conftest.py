"""Schedulers on a real database.

Their fallback polling is so slow that it never helps: whatever a test waits for has to come by a wake-up, a
timer or a notification, as promised, or the test fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any, Protocol

import asyncpg
import pytest

from pg_scheduler import PollingConfig, Scheduler
from pg_scheduler.schedules.catalogue import periodic_catalogue
from tests.support.worker import PATIENCE, Gate, Recorder

NEVER_BY_POLLING = PollingConfig(idle_start_interval=600, max_interval=600, semaphore_full_interval=600)


class Make(Protocol):
    """Builds Schedulers that are shut down at the end of the test."""

    def __call__(self, own_pool: asyncpg.Pool | None = None, /, **settings: Any) -> Scheduler: ...


class Pools(Protocol):
    """Opens pools that are closed at the end of the test."""

    async def __call__(self, size: int) -> asyncpg.Pool: ...


@pytest.fixture(autouse=True)
def _no_schedules_of_other_tests() -> Iterator[None]:
    periodic_catalogue.clear()
    yield
    periodic_catalogue.clear()


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
            defaults: dict[str, Any] = {"polling_config": NEVER_BY_POLLING, "shutdown_timeout": 0.05}
            scheduler = Scheduler(own_pool or pool, **(defaults | settings))
            stack.push_async_callback(scheduler.shutdown)
            return scheduler

        yield build


@pytest.fixture
async def scheduler(make: Make) -> Scheduler:
    """One that runs."""
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
def opened() -> Gate:
    """A job that ends at once."""
    gate = Gate()
    gate.open.set()
    return gate
