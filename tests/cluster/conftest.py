"""Real processes on a real server, in real time: what these tests are about are leases that run out, signals
and words that travel between nodes. They wait for what the nodes say, never for a time to pass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.embedded import EmbeddedPostgres, server_dsn
from pg_scheduler.schedules.catalogue import PeriodicCatalogue
from tests.cluster.fleet import Fleet
from tests.conftest import FAST, database


@pytest.fixture
async def fleet(dsn: str) -> AsyncIterator[Fleet]:
    """Worker processes on the test's database."""
    fleet = Fleet(dsn)
    yield fleet
    await fleet.close()


@pytest.fixture(autouse=True)
def no_periodic_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedulers of this process know none, whatever other tests have decorated."""
    monkeypatch.setattr("pg_scheduler.scheduler.periodic_catalogue", PeriodicCatalogue())


@pytest.fixture
def client(pool: asyncpg.Pool) -> Scheduler:
    """A Scheduler that only enqueues and looks."""
    return Scheduler(pool)


@pytest.fixture(scope="module")
def victim(scratch: Path | None) -> Iterator[EmbeddedPostgres]:
    """A server that things may be done to."""
    if server_dsn() is not None:
        pytest.skip("the server is not ours to break")
    with EmbeddedPostgres(settings=FAST | {"max_connections": "80"}, scratch=scratch) as server:
        yield server


@pytest.fixture
def address(victim: EmbeddedPostgres) -> Iterator[str]:
    """An empty database there."""
    with database(victim) as name:
        yield victim.dsn(name)
        victim.thaw()
        victim.start()
