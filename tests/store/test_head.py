"""Walks over the unclaimable rows at the head of the claim index, and the rows that claims read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pg_scheduler.store.connections.options import HOT_TRANSACTION_SETTINGS
from pg_scheduler.store.queries import load_queries
from pg_scheduler.store.store import Store
from pg_scheduler.store.types import FROM_THE_START, NO_IDS, HeadPosition
from tests.support.store import LEASE, NAME, NOW, SECOND, Pool, new_job, running, worker

STEP = 2000
"""The rows that one call of skip_head walks."""
LEVELS = range(4)
NORMAL = 2
HOUR = 3600 * SECOND


async def fill(pool: Pool, count: int, status: str = "pending", name: str = "nobody.knows") -> None:
    """Insert rows of NORMAL priority, one per millisecond from an hour ago."""
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, priority, execution_time, status, worker_id, attempt)"
        " SELECT 'row-' || n, $4, 5, $1::timestamptz + n * interval '1 ms', $2,"
        " CASE WHEN $2 = 'running' THEN 'dead' END, 1 FROM generate_series(1, $3) AS n",
        NOW - HOUR,
        status,
        count,
        name,
    )


async def walk(store: Store) -> HeadPosition:
    """Walk until the priority NORMAL ends; return where."""
    since, after = list(FROM_THE_START), list(NO_IDS)
    while True:
        stop = (await store.claims.skip_head([NAME], [NORMAL], since, after))[NORMAL]
        if stop.ended:
            return stop
        since[NORMAL], after[NORMAL] = stop.due, stop.job_id


async def rows_read(
    store: Store, pool: Pool, since: list[Any], after: list[str], *, check: bool = False
) -> float:
    """Return the number of rows that a claim from this position reads through the claim index."""
    args = ("w1", [NAME], 10, NOW, [], 0, *since, True, after, True, check, 1)
    query = load_queries("public")["exchange_jobs"].text
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(HOT_TRANSACTION_SETTINGS)
        text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", *args)
        await transaction.rollback()
    return _read(json.loads(text)[0]["Plan"])


def _read(node: dict[str, Any]) -> float:
    read: float = sum(_read(child) for child in node.get("Plans", ()))
    if node.get("Index Name") == "scheduled_jobs_claim":
        read += (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return read


async def test_skip_head_stops_at_the_first_claimable_row_of_each_priority(store: Store) -> None:
    at = NOW - HOUR
    await running(store, new_job("running", execution_time=at))
    await store.jobs.insert(
        [
            new_job("unknown", job_name="nobody.knows", execution_time=at),
            new_job("z", execution_time=at + SECOND),
            new_job("later", execution_time=at + 2 * SECOND),
            new_job("high", priority=3, execution_time=at),
            new_job("critical", job_name="nobody.knows", priority=1, execution_time=at),
        ]
    )
    assert await store.claims.skip_head([NAME], LEVELS, FROM_THE_START, NO_IDS) == {
        0: (at, "critical", True),
        1: (at, "high", True),
        2: (at + SECOND, "z", True),
    }
    assert await store.claims.skip_head([NAME], [1], FROM_THE_START, NO_IDS) == {1: (at, "high", True)}
    since = [None, None, at + SECOND, None]
    assert await store.claims.skip_head([NAME], [2], since, ["", "", "zz", ""]) == {
        2: (at + 2 * SECOND, "later", True)
    }


async def test_skip_head_stops_at_a_claimable_row_that_is_locked(store: Store, pool: Pool) -> None:
    await fill(pool, 5)
    await store.jobs.insert([new_job("locked", execution_time=NOW - HOUR)])
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM scheduled_jobs WHERE job_id = 'locked' FOR UPDATE")
        assert await walk(store) == (NOW - HOUR, "locked", True)


async def test_skip_head_walks_a_bounded_number_of_rows(store: Store, pool: Pool) -> None:
    await fill(pool, STEP + 5)
    first = (await store.claims.skip_head([NAME], LEVELS, FROM_THE_START, NO_IDS))[NORMAL]
    assert (first.job_id, first.ended) == (f"row-{STEP}", False)
    assert await walk(store) == (first.due + SECOND / 200, f"row-{STEP + 5}", True)


async def test_skip_head_ends_when_the_last_row_is_the_last_of_a_step(store: Store, pool: Pool) -> None:
    await fill(pool, STEP)
    assert (await walk(store)).job_id == f"row-{STEP}"


async def test_skip_head_leaves_jobs_of_the_last_second_to_the_claims(store: Store) -> None:
    ages = {"second": SECOND, "older": 1.001 * SECOND, "now": 0 * SECOND, "future": -SECOND}
    await store.jobs.insert(
        [new_job(each, job_name="nobody.knows", execution_time=NOW - age) for each, age in ages.items()]
    )
    assert (await walk(store)).job_id == "older"


@pytest.mark.parametrize("status", ["pending", "running"])
async def test_claim_after_the_head_reads_the_same_rows_however_long_the_head_is(
    store: Store, pool: Pool, status: str
) -> None:
    await store.workers.register(worker(), LEASE)
    await fill(pool, 10_000, status)
    await store.jobs.insert([new_job(str(n)) for n in range(5)])
    assert await rows_read(store, pool, list(FROM_THE_START), list(NO_IDS)) >= 20_000
    stop = await walk(store)
    since, after = [None, None, stop.due, None], ["", "", stop.job_id, ""]
    # Five jobs, the last row of the head, and both once more for the time of the next job. EXPLAIN rounds the
    # rows of each of the four probes.
    assert await rows_read(store, pool, since, after) <= 12 + 4
    assert await rows_read(store, pool, since, after, check=True) <= 18 + 4


async def test_exchange_reports_a_crowd_of_due_rows_when_it_is_asked_to(store: Store, pool: Pool) -> None:
    await store.workers.register(worker(), LEASE)
    await fill(pool, STEP)
    assert not (await store.claims.exchange("w1", [NAME], 5, check_crowd=True)).crowded
    await store.jobs.insert([new_job("more", job_name="nobody.knows", execution_time=NOW - HOUR)])
    assert (await store.claims.exchange("w1", [NAME], 5, check_crowd=True)).crowded
    assert not (await store.claims.exchange("w1", [NAME], 5)).crowded
    since = (None, None, NOW - HOUR, None)
    assert not (
        await store.claims.exchange("w1", [NAME], 5, since=since, after=("", "", "n", ""), check_crowd=True)
    ).crowded
    await store.jobs.insert([new_job("known")])
    full = await store.claims.exchange("w1", [NAME], 1, check_crowd=True)
    assert [claim.job_id for claim in full.jobs] == ["known"]
    assert not full.crowded, "a full claim is followed by another one"


async def test_exchange_reads_a_bounded_number_of_rows_to_detect_a_crowd(store: Store, pool: Pool) -> None:
    start, ids = list(FROM_THE_START), list(NO_IDS)
    await store.workers.register(worker(), LEASE)
    await fill(pool, 10_000)
    without = await rows_read(store, pool, start, ids)
    assert await rows_read(store, pool, start, ids, check=True) == without + STEP + 1
