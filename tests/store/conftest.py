from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.database.pool import Connections
from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.scheduler.store import Store
from tests.conftest import FAST
from tests.support.store import NOW
from tests.support.world import world  # noqa: F401 - a fixture of this folder

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.store import Pool


@pytest.fixture(scope="module")
def tcp_dsn(scratch: Path | None) -> Iterator[str]:
    """A server that listens on an address of the loopback network that no other process uses."""
    if sys.platform != "linux":
        pytest.skip("only Linux answers on every address of 127.0.0.0/8")
    address = f"127.77.{os.getpid() // 256 % 256}.{os.getpid() % 256}"
    with EmbeddedPostgres(settings=FAST | {"listen_addresses": address}, scratch=scratch):
        yield f"postgresql://postgres@{address}:5432/postgres"


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
