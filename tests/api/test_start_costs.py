"""The cost of a start and a stop to the server: every statement of every connection is counted.

The database has the tables of this release, as at each start but the first one. What connections send by
themselves, such as settings, LISTEN and the reset of the pool, counts as any other statement.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from pg_scheduler import Scheduler
from tests.support.catalogues import clear_registrations
from tests.support.statements import Statements


@pytest.fixture(autouse=True)
def _no_tasks() -> None:
    """Let no task of other tests, such as one with a limit, need statements of its own."""
    clear_registrations()


@pytest.fixture
def sent() -> Statements:
    """Return the record of what all connections send, that of the lease keeper included."""
    return Statements()


@pytest.fixture
async def pool(dsn: str, sent: Statements) -> AsyncIterator[asyncpg.Pool]:
    """Replace the usual pool by one that records its statements, on a database in which a worker has run."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5, init=sent.listen) as pool:
        async with Scheduler(pool):
            pass
        yield pool


async def test_start_of_a_worker_reads_the_server_the_tables_and_the_database_by_a_statement_each(
    pool: asyncpg.Pool, sent: Statements
) -> None:
    await sent.take()
    async with Scheduler(pool):
        started = await sent.take()
    assert sum(started.counts.values()) <= 42
    assert started.counts["SELECT"] <= 7
    assert started.named["read_identity_with_system"] == 1
    assert started.named["read_system"] == 0
    stopped = await sent.take()
    assert sum(stopped.counts.values()) <= 11
