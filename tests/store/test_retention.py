"""Late jobs expire, old ones are deleted, and the deletions are counted."""

from __future__ import annotations

from datetime import date, timedelta

from pg_scheduler import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.worker.retention import VacuumDay, VacuumTotal
from tests.support.inside import COMPLETE, Store
from tests.support.store import LEASE, NAME, NOW, SECOND, Pool, column, new_job, row, running, worker

DAY = timedelta(days=1)


async def finished(
    store: Store, clock: FakeClock, *jobs: tuple[str, JobStatus, timedelta], name: str = "n"
) -> None:
    """Insert jobs that finished that long ago."""
    now = clock.now
    for job_id, status, age in jobs:
        clock.now = now - age
        await store.inserts.insert([new_job(job_id, job_name=name)])
        await store.jobs.set_status(job_id, status, LEASE)
    clock.now = now


# -- expire --------------------------------------------------------------------------------------------


async def test_expire_expires_pending_jobs_past_their_grace_time(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await running(store, new_job("running", misfire_grace_time=0))
    await store.inserts.insert(
        [
            new_job("in time", misfire_grace_time=10),
            new_job("late", misfire_grace_time=9, job_name="unknown"),
            new_job("never"),
            new_job("future", misfire_grace_time=0, execution_time=NOW + 60 * SECOND),
        ]
    )
    clock.advance(10 * SECOND)
    (expired,) = await store.jobs.expire("w1", [NAME], 100)
    assert expired[:3] == ("late", "unknown", 0)
    assert expired.reason == (await row(pool, "late"))["error_message"]
    assert [job_id for job_id, status in (await column(pool, "status")).items() if status == "expired"] == [
        "late"
    ]
    assert (await row(pool, "late"))["finished_at"] == clock.now
    assert await store.jobs.expire("w1", [NAME], 100) == []


async def test_expire_stops_at_its_limit(store: Store, clock: FakeClock) -> None:
    await store.inserts.insert(
        [new_job(f"{p}{n}", priority=p, misfire_grace_time=0) for p in (1, 3, 5, 8) for n in range(3)]
    )
    clock.advance(SECOND)
    counts = []
    while gone := await store.jobs.expire("w1", [NAME], 5):
        counts.append(len(gone))
    assert counts == [5, 5, 2]


async def test_expire_skips_a_job_that_is_being_claimed(store: Store, pool: Pool, clock: FakeClock) -> None:
    await store.inserts.insert([new_job(misfire_grace_time=0)])
    clock.advance(SECOND)
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM scheduled_jobs FOR UPDATE")
        assert await store.jobs.expire("w1", [NAME], 10) == []


# -- vacuum --------------------------------------------------------------------------------------------


async def whole_table(
    store: Store, cutoffs: dict[JobStatus, timedelta], clock: FakeClock
) -> dict[JobStatus, int]:
    instants = {status: clock.now - age for status, age in cutoffs.items()}
    return await store.retention.vacuum_blocks(0, await store.retention.table_blocks(), instants)


async def test_vacuum_blocks_deletes_jobs_that_finished_before_their_cutoff(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await finished(
        store,
        clock,
        ("old", JobStatus.COMPLETED, 2 * DAY),
        ("edge", JobStatus.COMPLETED, DAY),
        ("young", JobStatus.COMPLETED, DAY - SECOND),
        ("failed", JobStatus.FAILED, 2 * DAY),
        ("kept", JobStatus.CANCELLED, 1000 * DAY),
        ("expired", JobStatus.EXPIRED, 8 * DAY),
        ("pending", JobStatus.PENDING, 1000 * DAY),
        ("running", JobStatus.RUNNING, 1000 * DAY),
    )
    cutoffs = {JobStatus.COMPLETED: DAY, JobStatus.FAILED: 7 * DAY, JobStatus.EXPIRED: 7 * DAY}
    instants = {status: clock.now - age for status, age in cutoffs.items()}
    blocks = await store.retention.table_blocks()
    counted = await store.retention.count_in_blocks(0, blocks, instants)
    assert counted == await whole_table(store, cutoffs, clock)
    assert counted == {JobStatus.COMPLETED: 2, JobStatus.EXPIRED: 1}
    assert set(await column(pool, "status")) == {"young", "failed", "kept", "pending", "running"}
    assert await whole_table(store, cutoffs, clock) == {}
    assert await whole_table(store, {}, clock) == {}


async def test_vacuum_blocks_reaches_every_row_when_it_walks_in_steps(store: Store, clock: FakeClock) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job(f"{n:04}") for n in range(500)])
    for claim in (await store.claims.exchange("w1", [new_job().job_name], 500)).jobs[::50]:
        await store.jobs.cancel(claim.job_id)
    await store.jobs.cancel("0499")
    blocks = await store.retention.table_blocks()
    assert blocks > 10
    found = []
    for first in range(0, blocks, 3):
        gone = await store.retention.vacuum_blocks(first, 3, {JobStatus.CANCELLED: NOW})
        found.append(gone.get(JobStatus.CANCELLED, 0))
    assert sum(found) == 11
    assert max(found) < 11, "each step deletes only in its blocks"
    assert await store.retention.vacuum_blocks(blocks, 1, {JobStatus.CANCELLED: NOW}) == {}


async def test_table_blocks_is_zero_when_the_table_is_empty(store: Store) -> None:
    assert await store.retention.table_blocks() == 0


async def test_vacuum_surplus_keeps_the_newest_of_each_name(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    for name in ("a", "b"):
        jobs = [(f"{name}{n}", JobStatus.COMPLETED, n * SECOND) for n in range(5)]
        await finished(store, clock, *jobs, name=name)
    await finished(
        store, clock, ("failed", JobStatus.FAILED, DAY), ("waits", JobStatus.PENDING, DAY), name="a"
    )
    assert (await store.retention.vacuum_surplus(JobStatus.COMPLETED, 3, 100)).deleted == 4
    assert set(await column(pool, "status")) == {"a0", "a1", "a2", "b0", "b1", "b2", "failed", "waits"}
    assert (await store.retention.vacuum_surplus(JobStatus.COMPLETED, 3, 100)).deleted == 0
    assert await store.retention.vacuum_surplus(JobStatus.COMPLETED, 0, 4) == (4, 4), "it stops at the limit"
    assert await store.retention.vacuum_surplus(JobStatus.COMPLETED, 0, 4) == (2, 2)
    assert set(await column(pool, "status")) == {"failed", "waits"}


async def test_vacuum_surplus_keeps_the_last_ids_of_one_instant(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    claims = await running(store, *(new_job(each) for each in "abcd"))
    await store.results.settle("w1", [(claim, COMPLETE) for claim in claims])
    assert (await store.retention.vacuum_surplus(JobStatus.COMPLETED, 1, 100)).deleted == 3
    assert set(await column(pool, "status")) == {"d"}


# -- counts --------------------------------------------------------------------------------------------


async def test_record_vacuum_adds_to_the_counts_of_the_day(store: Store, clock: FakeClock) -> None:
    assert await store.retention.vacuum_stats(7) == []
    assert await store.retention.total_vacuum_stats() == VacuumTotal(0, 0, 0, 0, None)
    await store.retention.record_vacuum({JobStatus.COMPLETED: 1, JobStatus.FAILED: 2}, "w1")
    clock.advance(SECOND)
    await store.retention.record_vacuum(
        {JobStatus.COMPLETED: 3, JobStatus.CANCELLED: 4, JobStatus.EXPIRED: 5}, "w2"
    )
    assert await store.retention.vacuum_stats(1) == [
        VacuumDay(date(2030, 1, 1), 4, 2, 4, 5, NOW + SECOND, "w2")
    ]
    clock.advance(2 * DAY)
    await store.retention.record_vacuum({JobStatus.COMPLETED: 10}, "w1")
    assert [day.stat_date for day in await store.retention.vacuum_stats(7)] == [
        date(2030, 1, 3),
        date(2030, 1, 1),
    ]
    assert [day.stat_date for day in await store.retention.vacuum_stats(2)] == [date(2030, 1, 3)]
    assert await store.retention.total_vacuum_stats() == VacuumTotal(14, 2, 4, 5, clock.now)


async def test_record_vacuum_counts_days_in_utc(store: Store, pool: Pool, clock: FakeClock) -> None:
    clock.now = NOW.replace(hour=23, minute=59)
    await pool.execute(
        "ALTER ROLE CURRENT_USER IN DATABASE "
        + await pool.fetchval("SELECT quote_ident(current_database())")
        + " SET TIME ZONE 'Asia/Kathmandu'"
    )
    await pool.expire_connections()
    await store.retention.record_vacuum({}, "w1")
    assert [day.stat_date for day in await store.retention.vacuum_stats(1)] == [date(2030, 1, 1)]


async def test_record_vacuum_adds_to_rows_of_0_2_with_null_counts(store: Store, pool: Pool) -> None:
    await pool.execute(
        "INSERT INTO vacuum_stats (stat_date, deleted_completed, deleted_failed, deleted_cancelled)"
        " VALUES ('2030-01-01', NULL, 5, NULL)"
    )
    await store.retention.record_vacuum({JobStatus.COMPLETED: 1}, "w1")
    assert await store.retention.vacuum_stats(1) == [VacuumDay(date(2030, 1, 1), 1, 5, 0, 0, NOW, "w1")]
