"""Real processes on a real server, in real time: the subjects are leases that expire, signals, and
notifications between nodes. Tests wait for records of the nodes, not for a time to pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.embedded import EmbeddedPostgres, server_dsn
from tests.cluster.fleet import TIMEOUT_S, Fleet
from tests.conftest import FAST, database, run_on


@pytest.fixture
async def fleet(dsn: str) -> AsyncIterator[Fleet]:
    """Worker processes on the test's database."""
    fleet = Fleet(dsn)
    yield fleet
    await fleet.close()


@pytest.fixture
def client(pool: asyncpg.Pool) -> Scheduler:
    """A Scheduler that is not started: it only enqueues and reads."""
    return Scheduler(pool)


@pytest.fixture
async def warmed_up_server(pool: asyncpg.Pool) -> None:
    """Wait until ten seconds after the server's start; before that, only leases detect dead workers."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await pool.fetchval(  # noqa: ASYNC110
            "SELECT clock_timestamp() - pg_postmaster_start_time() > '10 s'"
        ):
            await asyncio.sleep(0.5)  # nothing reports the age of a server


@pytest.fixture(scope="module")
def private_server(scratch: Path | None) -> Iterator[EmbeddedPostgres]:
    """A server that tests may stop, freeze and kill."""
    if server_dsn() is not None:
        pytest.skip("tests must not break an external server")
    with EmbeddedPostgres(settings=FAST | {"max_connections": "80"}, scratch=scratch) as server:
        yield server


@pytest.fixture
def private_dsn(private_server: EmbeddedPostgres) -> Iterator[str]:
    """The DSN of an empty database on the private server."""
    # A held connection would break with the server.
    with database(partial(run_on, private_server.dsn())) as name:
        yield private_server.dsn(name)
        private_server.thaw()
        private_server.start()
