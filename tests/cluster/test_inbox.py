"""The guide's job per key applies each message once and in order, wherever its workers die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler, embedded
from pg_scheduler.testing import crash_everywhere
from pg_scheduler.testing.databases import temporary_database
from tests.cluster import inbox
from tests.cluster.fleet import TIMEOUT_S, Fleet
from tests.support.stories import LONG, NIGHTLY

Pool = asyncpg.Pool

OPTIONS = ("--lease", "2", "--jobs", "tests.cluster.inbox")
POINTS = ("after 1", "before 4", "after 6", "before 9", "after 12")
KEYS = 5
WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
job: Any = inbox
"""The module, whose names come from the page."""


async def arrange(pool: Pool) -> None:
    """Create the tables, with three messages for a job that takes two at once."""
    await pool.execute(inbox.TABLES)
    await pool.execute("INSERT INTO orders VALUES (7)")
    await pool.execute("INSERT INTO inbox (key, event) VALUES (7, 'placed'), (7, 'paid'), (7, 'packed')")


async def read(pool: Pool) -> tuple[list[str], int]:
    """Return what the job has applied, and how many messages are left."""
    return (
        await pool.fetchval("SELECT history FROM orders"),
        await pool.fetchval("SELECT count(*) FROM inbox"),
    )


async def ship(scheduler: Scheduler) -> None:
    async with scheduler.db_pool.acquire() as connection, connection.transaction():
        await job.receive(scheduler, 7, "shipped", connection)


@NIGHTLY
@pytest.mark.timeout(600)
async def test_crash_at_any_statement_neither_loses_nor_repeats_nor_reorders_a_message(
    server: embedded.Server, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "LIMIT", 2)
    seen: list[tuple[list[str], int]] = []

    @contextmanager
    def database() -> Any:
        with temporary_database(server, template) as name:
            yield server.dsn(name)

    async def observe(pool: Pool) -> tuple[list[str], int]:
        seen.append(await read(pool))
        return seen[-1]

    report = await crash_everywhere(
        database,
        job.drain_inbox,
        args=(7,),
        arrange=arrange,
        observe=observe,
        at={timedelta(hours=1): ship} if LONG else {},
        until=timedelta(hours=2),
    )
    assert report.points > 40
    assert seen[0] == (["placed", "paid", "packed", *(["shipped"] if LONG else [])], 0)


async def test_message_has_its_position_after_those_that_commit_before_it(
    client: Scheduler, pool: Pool
) -> None:
    """Send a message while the transaction of another one is open: it waits before it takes a position."""
    await pool.execute(inbox.TABLES)
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await job.receive(client, 7, "placed", connection)
        shipping = asyncio.create_task(ship(client))
        async with asyncio.timeout(TIMEOUT_S):
            while not await pool.fetchval(WAITS):  # noqa: ASYNC110 - a lock raises no event
                await asyncio.sleep(0)
        assert await pool.fetchval("SELECT last_value FROM inbox_position_seq") == 1
        await transaction.commit()
        await shipping
    events = await pool.fetch("SELECT event FROM inbox ORDER BY position")
    assert [row["event"] for row in events] == ["placed", "shipped"]


@NIGHTLY
async def test_messages_are_applied_in_the_order_of_their_commits_while_nodes_are_killed(
    fleet: Fleet, client: Scheduler, pool: Pool
) -> None:
    """Let four senders write to the keys until each node has killed itself in the middle of a job."""
    await pool.execute(inbox.TABLES)
    await pool.execute("CREATE TABLE sent (position bigint, key integer, event text)")
    await pool.execute("INSERT INTO orders SELECT generate_series(1, $1::integer)", KEYS)
    nodes = [await fleet.start(*OPTIONS, variables={"KILL": point}) for point in POINTS]
    died = asyncio.gather(*(node.process.wait() for node in nodes))
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*(send(client, pool, sender, died) for sender in range(4)))
    await fleet.start(*OPTIONS)
    async with asyncio.timeout(TIMEOUT_S):
        while await pool.fetchval(  # noqa: ASYNC110
            "SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL"
        ):
            await asyncio.sleep(0.1)  # the record of a completion may have died with its node
    applied = await pool.fetch("SELECT key, history FROM orders ORDER BY key")
    sent = await pool.fetch("SELECT key, array_agg(event ORDER BY position) FROM sent GROUP BY 1 ORDER BY 1")
    assert len(sent) == KEYS
    assert [tuple(row) for row in applied] == [tuple(row) for row in sent]
    assert await pool.fetchval("SELECT max(attempt) FROM scheduled_jobs WHERE status <> 'completed'") is None


async def send(client: Scheduler, pool: Pool, sender: int, died: Awaitable[Any]) -> None:
    """Send messages to all keys in turn until the nodes have died, and keep a copy of each."""
    assert isinstance(died, asyncio.Future)
    for number in count():
        if died.done():
            return
        key, event = number % KEYS + 1, f"{sender} {number}"
        async with pool.acquire() as connection, connection.transaction():
            await job.receive(client, key, event, connection)
            await connection.execute(
                "INSERT INTO sent SELECT position, key, event FROM inbox WHERE event = $1", event
            )
