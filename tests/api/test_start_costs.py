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
from tests.support.statements import Sent, Statements

FRAMES = ("BEGIN", "COMMIT", "RESET")
"""What begins and ends a transaction, and what a pool sends when it gets a connection back."""


async def work() -> None: ...


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
        # The first pass of the vacuum is due at a random instant, which can be that of the next start.
        await pool.execute("UPDATE scheduler_vacuum_passes SET ended_at = now()")
        await sent.take()
        yield pool


def statements(sent: Sent) -> int:
    """Count statements, without transactions and resets.

    Those of the library count once each, because a service makes a second pass if the machine is busy.
    """
    frames = sum(sent.counts[frame] for frame in FRAMES)
    return len(sent.named) + sum(sent.counts.values()) - sum(sent.named.values()) - frames


async def test_start_and_stop_of_a_worker_send_few_statements(pool: asyncpg.Pool, sent: Statements) -> None:
    async with Scheduler(pool):
        started = await sent.take()
    stopped = await sent.take()
    assert statements(started) <= 14
    assert started.counts["RESET"] <= 3
    assert (started.named["read_identity_with_system"], started.named["read_system"]) == (1, 0)
    assert statements(stopped) <= 2
    assert stopped.counts["RESET"] <= 3


async def test_client_looks_up_the_schema_on_the_connection_of_its_first_call(
    pool: asyncpg.Pool, sent: Statements
) -> None:
    scheduler = Scheduler(pool)
    call = await sent.of(scheduler.enqueue(work))
    assert call.counts == {"SELECT": 1, "enqueue_job": 1}
    call = await sent.of(scheduler.enqueue(work))
    assert call.counts == {"enqueue_job": 1}
    await sent.take()
    await scheduler.shutdown()
    stopped = await sent.take()
    assert stopped.counts["RESET"] <= 2
    assert stopped.named.keys() <= {"notify"}
