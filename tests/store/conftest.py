from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.database.pool import Connections
from pg_scheduler.scheduler.store import Store
from tests.support.store import NOW

if TYPE_CHECKING:
    from tests.support.store import Pool


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands at NOW until it is advanced."""
    return FakeClock(NOW)


@pytest.fixture
async def store(pool: Pool, clock: FakeClock) -> AsyncIterator[Store]:
    """A store on the database of the test, with its clock."""
    connections = Connections(pool)
    yield Store(connections, clock=clock)
    await connections.release_held()
