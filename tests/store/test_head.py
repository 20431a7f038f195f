"""The index entries that claims read, and the search for jobs in front of the position of claims."""

from __future__ import annotations

from datetime import datetime
from functools import partial

import pytest

from pg_scheduler.worker.claims import FROM_THE_START, NO_IDS
from tests.support.inside import Outcome, Store
from tests.support.store import LEASE, NAME, NOW, SECOND, Pool, new_job, running, worker

HOUR = 3600 * SECOND
CROWD = 500
AFTER_ALL = (NOW,) * 4


async def fill(pool: Pool, status: str = "pending", name: str = "nobody.knows") -> None:
    """Insert rows of normal priority, one per millisecond from an hour ago."""
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, priority, execution_time, status, worker_id, attempt)"
        " SELECT 'row-' || n, $4, 5, $1::timestamptz + n * interval '1 ms', $2,"
        " CASE WHEN $2 = 'running' THEN 'dead' END, 1 FROM generate_series(1, $3) AS n",
        NOW - HOUR,
        status,
        CROWD,
        name,
    )


async def overlooked(store: Store, since: datetime, after: str = "") -> datetime | None:
    return (await store.claims.find_claimable([NAME], (since,) * 4, (after,) * 4)).due


@pytest.mark.parametrize("status", ["pending", "running"])
async def test_claim_counts_the_entries_that_it_reads_from_its_position_if_it_is_asked_to(
    store: Store, pool: Pool, status: str
) -> None:
    await store.workers.register(worker(), LEASE)
    await fill(pool, status)
    claim = partial(store.claims.exchange, "w1", [NAME], 10)
    assert (await claim()).read == 0
    # They are read once more for the time of the next job.
    assert CROWD <= (await claim(counts=True)).read <= 2 * CROWD
    assert (await claim(since=AFTER_ALL, counts=True)).read == 0
    await store.inserts.insert([new_job(str(n)) for n in range(5)])
    found = await claim(since=AFTER_ALL, counts=True)
    assert (len(found.jobs), found.at) == (5, NOW)
    assert 5 <= found.read <= 10


async def test_claim_counts_the_entries_of_dead_rows_that_a_snapshot_keeps(store: Store, pool: Pool) -> None:
    await store.workers.register(worker(), LEASE)
    async with pool.acquire() as other, other.transaction(isolation="repeatable_read"):
        await other.fetchval("SELECT count(*) FROM scheduled_jobs")
        await fill(pool, name=NAME)
        await pool.execute("UPDATE scheduled_jobs SET status = 'completed', finished_at = $1", NOW)
        for _ in range(2):
            assert (await store.claims.exchange("w1", [NAME], 10, counts=True)).read >= CROWD
    await pool.execute("VACUUM scheduled_jobs")
    assert (await store.claims.exchange("w1", [NAME], 10, counts=True)).read == 0


async def test_find_claimable_finds_the_first_claimable_job_in_front_of_a_position(store: Store) -> None:
    await running(store, new_job("running", execution_time=NOW - 9 * SECOND))
    await store.inserts.insert(
        [
            new_job("unknown", job_name="nobody.knows", execution_time=NOW - 8 * SECOND),
            new_job("b", execution_time=NOW - 5 * SECOND),
            new_job("low", priority=8, execution_time=NOW - 6 * SECOND),
            new_job("critical", priority=1, execution_time=NOW - 4 * SECOND),
        ]
    )
    assert await overlooked(store, NOW) == NOW - 6 * SECOND
    assert await overlooked(store, NOW - 6 * SECOND) is None
    assert await overlooked(store, NOW - 6 * SECOND, "z") == NOW - 6 * SECOND
    assert await overlooked(store, NOW - 5 * SECOND, "a") == NOW - 6 * SECOND
    since = (NOW, NOW, NOW - 5 * SECOND, None)
    assert (await store.claims.find_claimable([NAME], since, NO_IDS)).due == NOW - 4 * SECOND
    assert await store.claims.find_claimable([NAME], FROM_THE_START, NO_IDS) == (None, 0)


async def test_find_claimable_leaves_out_locked_jobs_and_counts_all_entries(store: Store, pool: Pool) -> None:
    await fill(pool)
    await store.inserts.insert([new_job("locked", execution_time=NOW - SECOND)])
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM scheduled_jobs WHERE job_id = 'locked' FOR UPDATE")
        assert await store.claims.find_claimable([NAME], AFTER_ALL, NO_IDS) == (None, CROWD + 1)
    assert await overlooked(store, NOW) == NOW - SECOND


async def test_find_claimable_leaves_out_crashed_jobs_when_it_is_asked_to(store: Store) -> None:
    (claim,) = await running(store, new_job("crashed", execution_time=NOW - SECOND))
    await store.results.settle("w1", [(claim, Outcome.crash("no", None))])
    find = store.claims.find_claimable
    assert (await find([NAME], AFTER_ALL, NO_IDS, crashed=True, isolated_from=1)).due == NOW - SECOND
    assert (await find([NAME], AFTER_ALL, NO_IDS, crashed=False, isolated_from=2)).due == NOW - SECOND
    assert (await find([NAME], AFTER_ALL, NO_IDS, crashed=False, isolated_from=1)).due is None
