from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.store.pool import Connections
from pg_scheduler.store.store import Store
from tests.store.kit import NOW

if TYPE_CHECKING:
    from tests.store.kit import Pool


@pytest.fixture
def clock() -> FakeClock:
    """Stands at NOW until it is moved."""
    return FakeClock(NOW)


@pytest.fixture
def store(pool: Pool, clock: FakeClock) -> Store:
    """A store on the test's database, by the test's clock."""
    return Store(Connections(pool), clock=clock)
