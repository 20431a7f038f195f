"""Dashboards of a database with jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.dashboard import Access, dashboard
from tests.dashboard.client import App
from tests.support.world import world  # noqa: F401 - a fixture of this folder


def read_all(_request: object) -> Access:
    """Let everybody read everything, without a warning."""
    return Access("ada")


@pytest.fixture
async def scheduler(pool: asyncpg.Pool) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(pool)
    yield scheduler
    await scheduler.shutdown()


@pytest.fixture
def build(scheduler: Scheduler) -> Callable[..., App]:
    """Return a dashboard of the Scheduler."""

    def build(**arguments: Any) -> App:
        return dashboard(scheduler, **{"authorize": read_all, **arguments})

    return build


@pytest.fixture
def app(build: Callable[..., App]) -> App:
    return build()
