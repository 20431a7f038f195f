"""The result of an earlier end does not come back when the row of a later one is deleted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from pg_scheduler import JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.database.queries import DELETING, load_variant
from pg_scheduler.jobs.outcome import RowChange
from pg_scheduler.jobs.result import KeptResult
from pg_scheduler.jobs.rows import EPOCH
from tests.support.inside import COMPLETE, Claim, ExtendedJob, Extras, Outcome, Store, load_queries
from tests.support.store import LEASE, NAME, NOW, SECOND, Pool, column, new_job, worker

KEEPS = Extras(options='{"keep_result": 3600}')
DELETES_JOBS = re.compile(r'DELETE FROM "?app"?\.scheduled_jobs\b')

Add = Callable[[Store, Pool], Awaitable[object]]
Delete = Callable[[Store, FakeClock], Awaitable[object]]


async def claim(store: Store) -> Claim:
    await store.workers.register(worker(), LEASE)
    (job,) = (await store.claims.exchange("w1", [NAME], 5)).jobs
    return job


async def end_with(store: Store, change: RowChange) -> None:
    assert await store.results.settle("w1", [(await claim(store), Outcome(change, None))]) == {"a"}


def completion(value: str) -> RowChange:
    """Return the completion of a job that keeps a value."""
    return RowChange(JobStatus.COMPLETED, kept=KeptResult(3600.0, f'"{value}"'))


async def status_of_result(store: Store) -> JobStatus | None:
    result = (await store.kept_results.get(["a"])).get("a")
    return None if result is None else result.status


# -- ways in -------------------------------------------------------------------------------------------


async def insert(store: Store, _pool: Pool) -> object:
    return await store.inserts.insert([new_job("a")])


async def insert_many(store: Store, _pool: Pool) -> object:
    return await store.inserts.insert([new_job("a"), new_job("b", job_name="other")])


async def enqueue(store: Store, _pool: Pool) -> object:
    return await store.inserts.enqueue([new_job("a", execution_time=EPOCH)])


async def enqueue_extended(store: Store, _pool: Pool) -> object:
    job = ExtendedJob(new_job("a", execution_time=EPOCH), Extras(unique_key="key"))
    return await store.inserts.enqueue_extended([job])


async def replace(store: Store, _pool: Pool) -> None:
    await store.inserts.replace([new_job("a")])


async def replace_extended(store: Store, _pool: Pool) -> None:
    await store.inserts.replace_extended([ExtendedJob(new_job("a"), Extras(unique_key="key"))])


async def call_sql_function(_store: Store, pool: Pool) -> object:
    query = "SELECT scheduler_add_job($1, execution_time => $2, job_id => 'a')"
    return await pool.fetchval(query, NAME, NOW)


async def insert_by_hand(_store: Store, pool: Pool) -> object:
    query = "INSERT INTO scheduled_jobs (job_id, job_name, execution_time) VALUES ('a', $1, $2)"
    return await pool.execute(query, NAME, NOW)


WAYS_IN: dict[str, Add] = {
    "insert": insert,
    "insert, with others": insert_many,
    "enqueue": enqueue,
    "enqueue, extended": enqueue_extended,
    "replace": replace,
    "replace, extended": replace_extended,
    "scheduler_add_job": call_sql_function,
    "by hand": insert_by_hand,
}


# -- ways out ------------------------------------------------------------------------------------------


async def vacuum_blocks(store: Store, clock: FakeClock) -> None:
    blocks = await store.retention.table_blocks()
    cutoffs = {JobStatus.COMPLETED: clock.now, JobStatus.FAILED: clock.now}
    assert sum((await store.retention.vacuum_blocks(0, blocks, cutoffs)).values()) == 1


async def vacuum_unlocked(store: Store, clock: FakeClock) -> None:
    blocks = await store.retention.table_blocks()
    args = (0, 0), (blocks, 0), "completed", clock.now
    assert await store.statements.number("vacuum_unlocked", *args) == 1


async def vacuum_surplus(store: Store, _clock: FakeClock) -> None:
    assert (await store.retention.vacuum_surplus(JobStatus.COMPLETED, 0, 10)).deleted == 1


async def delete_jobs(store: Store, _clock: FakeClock) -> None:
    (touched,) = await store.jobs.delete(["a"])
    assert touched.changed


DELETIONS: dict[str, Delete] = {
    "vacuum_blocks": vacuum_blocks,
    "vacuum_unlocked": vacuum_unlocked,
    "vacuum_surplus": vacuum_surplus,
    "delete_jobs": delete_jobs,
}
"""The deletions of a job that has ended."""


def after(end: RowChange, deletion: Delete) -> Delete:
    async def end_and_delete(store: Store, clock: FakeClock) -> None:
        await end_with(store, end)
        await deletion(store, clock)

    return end_and_delete


async def settle_and_delete(store: Store, job: Claim, outcome: Outcome) -> None:
    deleted = Counter[JobStatus]()
    assert await store.results.settle("w1", [(job, outcome)], deleted=deleted) == {"a"}
    assert deleted == {JobStatus.COMPLETED: 1}


async def delete_completed(store: Store, _clock: FakeClock) -> None:
    await settle_and_delete(store, await claim(store), COMPLETE)


async def exchange_jobs(store: Store, _clock: FakeClock) -> None:
    job = await claim(store)
    exchanged = await store.claims.exchange("w1", [NAME], 5, completed=[job], keep=False)
    assert exchanged.refused == {"a"}
    await settle_and_delete(store, job, COMPLETE)


async def complete_unlocked(store: Store, _clock: FakeClock) -> None:
    job = await claim(store)
    assert await store.claims.complete("w1", [job], keep=False) == {"a"}
    await settle_and_delete(store, job, COMPLETE)


async def free_fire_times(store: Store, clock: FakeClock) -> None:
    """Delete the job as a cancelled one of a schedule that was removed and added again."""
    await store.connections.pool.execute(
        "UPDATE scheduled_jobs SET status = 'cancelled', attempt = 0, finished_at = $1, on_end = NULL,"
        " options = jsonb_build_object('schedule_id', 'S') WHERE job_id = 'a'",
        clock.now,
    )
    async with store.connections.transaction() as connection:
        assert await store.jobs.free_fire_times(["a"], {"S": clock.now}, connection) == {"a"}


WAYS_OUT: dict[str, Delete] = {
    **{name: after(COMPLETE.change, deletion) for name, deletion in DELETIONS.items()},
    "vacuum_blocks, failed": after(Outcome.fail("no luck").change, vacuum_blocks),
    "delete_jobs, failed": after(Outcome.fail("no luck").change, delete_jobs),
    "delete_jobs, pending": delete_jobs,
    "delete_completed": delete_completed,
    "exchange_jobs": exchange_jobs,
    "complete_unlocked": complete_unlocked,
    "free_fire_times": free_fire_times,
}


def test_every_statement_that_deletes_jobs_regards_results_of_earlier_ends() -> None:
    queries = load_queries("app")
    deleting = {name for name, query in queries.items() if DELETES_JOBS.search(query.text)}
    assert deleting == {name.partition(",")[0] for name in WAYS_OUT}
    for name in deleting:
        query = load_variant("app", name, deletes=name in DELETING)
        assert "scheduler_results" in query.text, name


def test_statements_that_keep_the_jobs_that_they_complete_do_not_read_results() -> None:
    """Plain jobs do not pay for the results of others."""
    for name in DELETING:
        assert "scheduler_results" not in load_queries("app")[name].text


@pytest.mark.parametrize("way_out", WAYS_OUT)
@pytest.mark.parametrize("way_in", WAYS_IN)
async def test_result_of_an_earlier_job_does_not_come_back_when_a_later_one_is_deleted(
    store: Store, pool: Pool, clock: FakeClock, way_in: str, way_out: str
) -> None:
    await store.inserts.insert_extended([ExtendedJob(new_job("a"), KEEPS)])
    await end_with(store, completion("old"))
    if not way_in.startswith("replace"):
        await store.jobs.delete(["a"])
    assert await status_of_result(store) is JobStatus.COMPLETED, "the result of the last end stays"
    clock.advance(SECOND)
    await WAYS_IN[way_in](store, pool)
    await WAYS_OUT[way_out](store, clock)
    assert "a" not in await column(pool, "status")
    assert await store.kept_results.get(["a"]) == {}
    assert await pool.fetchval("SELECT count(*) FROM scheduler_results") == 0


@pytest.mark.parametrize("deletion", [*DELETIONS, "delete_completed"])
async def test_result_of_the_last_end_outlives_the_deletion_of_its_row(
    store: Store, pool: Pool, clock: FakeClock, deletion: str
) -> None:
    await store.inserts.insert_extended([ExtendedJob(new_job("a"), KEEPS)])
    await end_with(store, completion("old"))
    clock.advance(SECOND)
    await store.inserts.replace_extended([ExtendedJob(new_job("a"), KEEPS)])
    if deletion == "delete_completed":
        await settle_and_delete(store, await claim(store), Outcome(completion("new"), None))
    else:
        await end_with(store, completion("new"))
        await DELETIONS[deletion](store, clock)
    assert await column(pool, "status") == {}
    result = (await store.kept_results.get(["a"]))["a"]
    assert result is not None
    assert (result.value, result.finished_at) == ("new", clock.now)


async def test_result_of_an_end_before_a_retry_goes_with_the_row(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await store.inserts.insert_extended([ExtendedJob(new_job("a"), KEEPS)])
    await end_with(store, completion("old"))
    assert (await store.jobs.set_status("a", JobStatus.PENDING, LEASE)).changed
    await delete_jobs(store, clock)
    assert await store.kept_results.get(["a"]) == {}


async def test_outcome_replaces_the_result_of_an_earlier_job_that_ended_at_the_same_instant(
    store: Store,
) -> None:
    for value in ("old", "new"):
        await store.inserts.insert_extended([ExtendedJob(new_job("a"), KEEPS)])
        await end_with(store, completion(value))
        await store.jobs.delete(["a"])
    result = (await store.kept_results.get(["a"]))["a"]
    assert result is not None
    assert result.value == "new"


async def test_vacuum_deletes_a_job_whose_earlier_result_another_session_holds(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await store.inserts.insert_extended([ExtendedJob(new_job("a"), KEEPS)])
    await end_with(store, completion("old"))
    clock.advance(SECOND)
    await store.inserts.replace([new_job("a")])
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT FROM scheduler_results FOR UPDATE")
        await WAYS_OUT["vacuum_blocks"](store, clock)
    assert await column(pool, "status") == {}
