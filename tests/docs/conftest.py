"""What the snippets find: catalogues of their own, and a started Scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.jobs.registry import TaskRegistry, catalogue
from pg_scheduler.schedules.catalogue import periodic_catalogue


@pytest.fixture(autouse=True)
def own_catalogues() -> Iterator[None]:
    """Functions that pages decorate are known on that page only."""
    names = [name for name in TaskRegistry().__dict__ if name != "_parent"]
    before = {name: getattr(catalogue, name) for name in names}
    for name, value in TaskRegistry().__dict__.items():
        if name != "_parent":
            setattr(catalogue, name, value)
    catalogue._version = before["_version"] + 1
    periodic = periodic_catalogue.configs()
    periodic_catalogue.clear()
    yield
    for name, value in before.items():
        setattr(catalogue, name, value)
    catalogue._version += 2
    periodic_catalogue.clear()
    for config in periodic.values():
        periodic_catalogue._configs[config.dedup_key] = config


@pytest.fixture
async def scheduler(pool: asyncpg.Pool[asyncpg.Record]) -> AsyncIterator[Scheduler]:
    """A started Scheduler."""
    async with Scheduler(pool, shutdown_timeout=5) as scheduler:
        yield scheduler
