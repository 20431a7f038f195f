"""Fixtures for the snippets: empty catalogues and a started Scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from pg_scheduler import Scheduler
from tests.support.catalogues import clear_registrations
from tests.support.triggers import own_kinds


@pytest.fixture(autouse=True)
def empty_catalogues() -> Iterator[None]:
    """Limit the functions and kinds of triggers that a page decorates to that page."""
    clear_registrations()
    with own_kinds():
        yield


@pytest.fixture
async def scheduler(pool: asyncpg.Pool[asyncpg.Record]) -> AsyncIterator[Scheduler]:
    """Return a started Scheduler."""
    async with Scheduler(pool, shutdown_timeout=5) as scheduler:
        yield scheduler
