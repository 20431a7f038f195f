"""Parts with a real database under them, built one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.database.options import ConnectionOptions
from pg_scheduler.database.pool import Connections
from pg_scheduler.events import EventBus
from pg_scheduler.scheduler.store import Store
from tests.support import inside
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, Recorder, now


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


@pytest.fixture
def seen(bus: EventBus) -> Recorder:
    return Recorder(bus)


@pytest.fixture
async def connections(pool: asyncpg.Pool) -> AsyncIterator[Connections]:
    options = ConnectionOptions(hot_timeout_s=30)  # under load, a claim of a huge row takes ten seconds
    connections = Connections(pool, options=options)
    yield connections
    await connections.release_held()


@pytest.fixture
def store(connections: Connections) -> Store:
    return Store(connections)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now())


@pytest.fixture
def clocked(connections: Connections, clock: FakeClock) -> Store:
    """A store whose now is the clock's."""
    return Store(connections, clock=clock)


@pytest.fixture
async def touchy(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """A store that waits for no lock: what another session holds is a transient fault at once."""
    inside.replace(monkeypatch, shared_lock_timeout_ms=20)
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=5, server_settings={"lock_timeout": "20ms"})
    connections = Connections(pool)
    yield Store(connections)
    await connections.release_held()
    await asyncio.wait_for(pool.close(), PATIENCE)


@pytest.fixture
def parts(store: Store, bus: EventBus) -> Parts:
    return Parts(store, bus)
