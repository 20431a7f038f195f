"""The order of sequences while nodes are killed."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import UTC, datetime

import asyncpg

from pg_scheduler import JobSpec, Scheduler
from tests.cluster.fleet import TIMEOUT_S, Fleet
from tests.cluster.sequences import book, count
from tests.support.stories import NIGHTLY

OPTIONS = ("--lease", "2", "--jobs", "tests.cluster.sequences", "--slots", "10")
ACCOUNTS = 20
JOBS = 40
"""Jobs of each account."""

KILLS = 2
LEFT = "SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL"


@NIGHTLY
async def test_jobs_of_each_account_run_in_their_order_while_nodes_are_killed(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool
) -> None:
    """The first attempts of two jobs kill their nodes in the transaction that completes them."""
    for table in ("bookings", "counts"):
        await pool.execute(
            f"CREATE TABLE {table} (place bigserial, account integer, number integer,"
            " at timestamptz DEFAULT clock_timestamp())"
        )
    now = datetime.now(UTC)
    places = [(account, number) for number in range(JOBS) for account in range(ACCOUNTS)]
    await client.schedule_bulk([JobSpec(book, now, place) for place in places])
    await client.schedule_bulk([JobSpec(count, now, place) for place in places])
    nodes = [await fleet.start(*OPTIONS) for _ in range(4)]
    for kill in range(1, KILLS + 1):
        await fleet.wait_for("JobCompleted", count=kill * ACCOUNTS * JOBS // (KILLS + 1))
        # A job may have killed the node already.
        with suppress(ProcessLookupError):
            await nodes.pop(random.randrange(len(nodes))).kill()
        nodes.append(await fleet.start(*OPTIONS))
    async with asyncio.timeout(2 * TIMEOUT_S):
        while await pool.fetchval(LEFT):  # noqa: ASYNC110 - no event announces a state of the tables
            await asyncio.sleep(0.1)
    completed = "SELECT count(*) FROM scheduled_jobs WHERE status = 'completed'"
    assert await pool.fetchval(completed) == 2 * ACCOUNTS * JOBS
    for account in range(ACCOUNTS):
        rows = await pool.fetch("SELECT number FROM bookings WHERE account = $1 ORDER BY place", account)
        assert [row["number"] for row in rows] == list(range(JOBS)), "each once, and in order"
        rows = await pool.fetch("SELECT number FROM counts WHERE account = $1 ORDER BY place", account)
        numbers = [row["number"] for row in rows]
        # A job whose node was killed after its effect ran twice, but nothing came in between.
        assert sorted(numbers) == numbers
        assert set(numbers) == set(range(JOBS))
    assert await pool.fetchval("SELECT count(*) FROM scheduler_sequences") == 0
