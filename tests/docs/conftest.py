"""Fixtures for the snippets: empty catalogues and a started Scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.jobs.registry import TaskRegistry, catalogue
from pg_scheduler.schedules.catalogue import periodic_catalogue
from tests.support.triggers import own_kinds


@pytest.fixture(autouse=True)
def empty_catalogues() -> Iterator[None]:
    """Limit the functions and kinds of triggers that a page decorates to that page."""
    names = [name for name in TaskRegistry().__dict__ if name != "_parent"]
    saved = {name: getattr(catalogue, name) for name in names}
    for name, value in TaskRegistry().__dict__.items():
        if name != "_parent":
            setattr(catalogue, name, value)
    catalogue._version = saved["_version"] + 1
    periodic = periodic_catalogue.configs()
    periodic_catalogue.clear()
    with own_kinds():
        yield
    for name, value in saved.items():
        setattr(catalogue, name, value)
    catalogue._version += 2
    periodic_catalogue.clear()
    for config in periodic.values():
        periodic_catalogue._configs[config.dedup_key] = config


@pytest.fixture
async def scheduler(pool: asyncpg.Pool[asyncpg.Record]) -> AsyncIterator[Scheduler]:
    """Return a started Scheduler."""
    async with Scheduler(pool, shutdown_timeout=5) as scheduler:
        yield scheduler
