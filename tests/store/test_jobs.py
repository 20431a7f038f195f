"""Inserting, replacing, cancelling, changing and reading jobs."""

from __future__ import annotations

import asyncio
from datetime import UTC, timedelta
from typing import Any

import pytest
from hypothesis import given, settings

from pg_scheduler import Connection, JobCounts, JobPriority, JobStatus
from pg_scheduler.clock import FakeClock
from pg_scheduler.jobs.payload import encode
from pg_scheduler.queue.jobs import StatusChange
from tests.support.inside import COMPLETE, Outcome, Store
from tests.support.store import (
    LEASE,
    NAME,
    NOW,
    SECOND,
    Pool,
    claim_on,
    column,
    new_job,
    row,
    running,
    worker,
)
from tests.unit.jobs.test_payload import values

NO_FILTERS: dict[str, Any] = dict.fromkeys(
    ("after", "statuses", "names", "worker_id", "due_from", "due_before")
)

# -- insert --------------------------------------------------------------------------------------------


async def test_insert_returns_the_ids_that_were_free(store: Store, pool: Pool) -> None:
    assert await store.inserts.insert([new_job("a")]) == {"a"}
    assert await store.inserts.insert([new_job("a", priority=1), new_job("b")]) == {"b"}
    assert await store.inserts.insert([new_job("c", priority=3), new_job("c", priority=8)]) == {"c"}
    assert await store.inserts.insert([]) == set()
    assert await column(pool, "priority") == {"a": 5, "b": 5, "c": 3}


async def test_insert_writes_a_pending_row(store: Store, pool: Pool) -> None:
    await store.inserts.insert([new_job(misfire_grace_time=60)])
    found = await row(pool)
    assert (found["status"], found["attempt"], found["retry_count"]) == ("pending", 0, 0)
    assert (found["created_at"], found["expires_at"]) == (NOW, NOW + 60 * SECOND)
    assert found["function"] is None


async def test_insert_joins_the_transaction_of_the_caller(store: Store, pool: Pool) -> None:
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await store.inserts.insert([new_job("a")], connection=connection)
        await store.inserts.replace([new_job("b")], connection=connection)
        assert await store.jobs.statuses_of(["a", "b", "c"], connection=connection) == {
            "a": JobStatus.PENDING,
            "b": JobStatus.PENDING,
        }
        assert await store.jobs.statuses_of(["a"]) == {}, "others do not see it before the commit"
        await transaction.rollback()
    assert await store.jobs.statuses_of(["a", "b"]) == {}


async def test_transaction_rolls_back_when_the_block_raises(store: Store, pool: Pool) -> None:
    async def fail(connection: Connection | None) -> None:
        async with store.statements.transaction(within=connection) as transaction:
            await store.inserts.insert([new_job("a")], connection=transaction.connection)
            raise LookupError

    with pytest.raises(LookupError):
        await fail(None)
    async with pool.acquire() as connection, connection.transaction():
        await store.inserts.insert([new_job("b")], connection=connection)
        with pytest.raises(LookupError):
            await fail(connection)
    assert await column(pool, "status") == {"b": "pending"}, "the caller's own rows remain"


class Collector:
    """Collect the examples of a property, so that one statement sends them all."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    @settings(max_examples=200, database=None)
    @given(values)
    def collect(self, value: Any) -> None:
        self.found.append(value)


def large_floats_aside(value: Any) -> Any:
    """jsonb does not record that 1e16 was a float."""
    match value:
        case float() if abs(value) >= 1e16:
            return 0
        case list():
            return [large_floats_aside(each) for each in value]
        case dict():
            return {key: large_floats_aside(each) for key, each in value.items()}
    return value


@pytest.mark.slow
async def test_arguments_survive_a_round_trip(store: Store) -> None:
    collector = Collector()
    collector.collect()
    sent = {f"{n}": large_floats_aside(value) for n, value in enumerate(collector.found)}
    await store.inserts.insert(
        [new_job(n, task_data=encode((value,), {"k": value})) for n, value in sent.items()]
    )
    back = {job.job_id: job for job in await store.jobs.list_jobs(**NO_FILTERS, limit=1000)}
    assert len(back) == len(sent) >= 100
    for n, value in sent.items():
        assert (back[n].args, back[n].kwargs) == ((value,), {"k": value})


@pytest.mark.parametrize("number", [9e15, -9e15, 5e-324, 0.1, 1.0, 0.0, -2.5e-7])
async def test_float_argument_survives_a_round_trip(store: Store, number: float) -> None:
    await store.inserts.insert([new_job(task_data=encode((number,), None))])
    job = await store.jobs.get_job("job")
    assert job
    assert job.args == (number,)
    assert type(job.args[0]) is float


@pytest.mark.parametrize("number", [1e16, 1e23, -1.7976931348623157e308])
async def test_large_float_argument_returns_as_an_int(store: Store, number: float) -> None:
    await store.inserts.insert([new_job(task_data=encode((number,), None))])
    job = await store.jobs.get_job("job")
    assert job
    assert type(job.args[0]) is int
    assert float(job.args[0]) == number


# -- replace -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [status for status in JobStatus if status is not JobStatus.RUNNING])
async def test_replace_changes_a_job_at_once_when_it_is_not_running(
    store: Store, pool: Pool, clock: FakeClock, status: JobStatus
) -> None:
    (claim,) = await running(store, new_job(max_retries=1, misfire_grace_time=1))
    await store.results.settle("w1", [(claim, Outcome.fail("no"))])
    await store.jobs.set_status("job", status, LEASE)
    clock.advance(SECOND)
    definition = new_job(
        job_name="app.other",
        execution_time=NOW + 30 * SECOND,
        task_data='{"args": ["new"], "kwargs": {}}',
        priority=1,
        max_retries=9,
        misfire_grace_time=None,
        timeout_seconds=None,
        function="app.moved",
        lock_key=1,
    )
    await store.inserts.replace([definition])
    job_row = await row(pool)
    written = definition._asdict()
    assert {name: job_row[name] for name in written} == written
    assert (job_row["status"], job_row["retry_count"], job_row["attempt"]) == ("pending", 0, 1)
    for name in ("worker_id", "started_at", "finished_at", "lease_until", "error_message"):
        assert job_row[name] is None
    assert job_row["last_heartbeat"] is not None, "when it got its due time"
    assert (job_row["expires_at"], job_row["on_end"]) == (None, None)


async def test_replace_inserts_a_missing_job(store: Store, pool: Pool) -> None:
    await store.inserts.replace([new_job("a"), new_job("b", misfire_grace_time=5)])
    assert await column(pool, "expires_at") == {"a": None, "b": NOW + 5 * SECOND}


async def test_concurrent_replacements_of_the_same_jobs_succeed(store: Store) -> None:
    jobs = [new_job(f"{n:03}") for n in range(300)]
    await store.inserts.insert(jobs)
    await asyncio.gather(*(store.inserts.replace(order) for order in (jobs, jobs[::-1]) * 4))


# -- cancel --------------------------------------------------------------------------------------------


async def test_cancel_cancels_pending_and_running_jobs(store: Store, pool: Pool, clock: FakeClock) -> None:
    await running(store, new_job("running"))
    await store.inserts.insert([new_job("pending")])
    await store.inserts.replace([new_job("running", priority=1)])
    clock.advance(SECOND)
    assert await store.jobs.cancel("pending") == StatusChange(True, None)
    assert await store.jobs.cancel("running") == StatusChange(True, "w1")
    assert await store.jobs.cancel("running") == StatusChange(False, None)
    assert await store.jobs.cancel("missing") == StatusChange(False, None)
    found = await row(pool, "running")
    assert (found["status"], found["finished_at"], found["lease_until"]) == ("cancelled", NOW + SECOND, None)
    assert found["on_end"] is None, "its replacement is cancelled too"
    assert found["worker_id"] == "w1", "the last worker"


@pytest.mark.parametrize("status", [status for status in JobStatus if status.is_finished])
async def test_cancel_does_not_change_a_finished_job(store: Store, pool: Pool, status: JobStatus) -> None:
    await store.inserts.insert([new_job()])
    await store.jobs.set_status("job", status, LEASE)
    before = await row(pool)
    assert await store.jobs.cancel("job") == StatusChange(False, None)
    assert await row(pool) == before


@pytest.mark.parametrize("verb", ["cancel", "set_status"])
async def test_cancel_and_set_status_wait_for_a_claim_in_progress(
    store: Store, pool: Pool, verb: str
) -> None:
    """It returns the worker that has just claimed the job, although its own snapshot is older."""
    await store.inserts.insert([new_job()])
    await store.workers.register(worker(), LEASE)
    await store.statements.read_clock()
    async with pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await claim_on(other, store, 1)
        change = asyncio.create_task(
            store.jobs.cancel("job")
            if verb == "cancel"
            else store.jobs.set_status("job", JobStatus.FAILED, LEASE)
        )
        blocked = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        async with asyncio.timeout(10):
            while not await other.fetchval(blocked):  # the server reports that it waits
                await other.execute("SELECT pg_stat_clear_snapshot()")
        await transaction.commit()
    assert await change == StatusChange(True, "w1")
    assert (await row(pool))["finished_at"] == NOW


# -- set a status --------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", JobStatus)
@pytest.mark.parametrize("after", JobStatus)
async def test_set_status_moves_a_job_between_any_two_statuses(
    store: Store, pool: Pool, clock: FakeClock, before: JobStatus, after: JobStatus
) -> None:
    await store.inserts.insert([new_job(misfire_grace_time=10, max_retries=1)])
    if before is JobStatus.RUNNING:
        await store.workers.register(worker(), LEASE)
        await store.claims.exchange("w1", [NAME], 1)
        await store.inserts.replace([new_job(priority=1)])
    else:
        await store.jobs.set_status("job", before, LEASE)
    old = await row(pool)
    clock.advance(5 * SECOND)
    later = NOW + 5 * SECOND

    change = await store.jobs.set_status("job", after, LEASE)

    assert change == StatusChange(True, "w1" if before is JobStatus.RUNNING else None)
    found = await row(pool)
    assert found["status"] == after
    assert found["on_end"] is None
    assert found["finished_at"] == (later if after.is_finished else None)
    reserved = after is JobStatus.RUNNING
    assert found["attempt"] == old["attempt"] + reserved
    assert found["lease_until"] == (later + LEASE * SECOND if reserved else None)
    if after is JobStatus.PENDING:
        assert found["worker_id"] is found["started_at"] is found["last_heartbeat"] is None
        assert found["expires_at"] == later + 10 * SECOND, "its whole grace time"
    elif reserved:
        assert (found["worker_id"], found["started_at"]) == ("set by hand", later)


async def test_set_status_returns_not_changed_for_a_missing_job(store: Store) -> None:
    assert await store.jobs.set_status("missing", JobStatus.PENDING, LEASE) == StatusChange(False, None)


async def test_rescue_releases_a_reserved_job_when_its_lease_expires(
    store: Store, pool: Pool, clock: FakeClock
) -> None:
    await store.inserts.insert([new_job()])
    await store.jobs.set_status("job", JobStatus.RUNNING, LEASE)
    assert (await store.workers.rescue(120)).job_ids == []
    clock.advance(LEASE * SECOND + SECOND)
    assert (await store.workers.rescue(120)).job_ids == ["job"]
    assert (await row(pool))["status"] == "pending"


# -- read ----------------------------------------------------------------------------------------------


async def test_get_job_returns_every_column(store: Store, clock: FakeClock) -> None:
    assert await store.jobs.get_job("job") is None
    (claim,) = await running(
        store,
        new_job(
            task_data='{"args": [1], "kwargs": {"a": [2]}}',
            priority=3,
            max_retries=2,
            misfire_grace_time=60,
            timeout_seconds=1.5,
        ),
    )
    await store.inserts.replace([new_job()])
    job = await store.jobs.get_job("job")
    assert job
    assert (job.args, job.kwargs) == ((1,), {"a": [2]})
    assert (job.status, job.priority, job.timeout) == (
        JobStatus.RUNNING,
        JobPriority.HIGH,
        timedelta(seconds=1.5),
    )
    assert (job.attempt, job.retry_count, job.max_retries, job.misfire_grace_time) == (1, 0, 2, 60)
    assert job.execution_time == job.created_at == job.started_at == job.last_heartbeat == NOW
    assert (job.lease_until, job.expires_at) == (NOW + LEASE * SECOND, NOW + 60 * SECOND)
    assert (job.finished_at, job.worker_id, job.error_message, job.replacement) == (None, "w1", None, True)
    assert job.execution_time.tzinfo is UTC
    await store.results.settle("w1", [(claim, COMPLETE)])
    after = await store.jobs.get_job("job")
    assert after
    assert (after.status, after.replacement) == (JobStatus.PENDING, False)


@pytest.mark.parametrize("task_data", ["[1]", "null", '{"args": 5}', '"text"'])
async def test_get_job_omits_arguments_in_another_format(store: Store, pool: Pool, task_data: str) -> None:
    await store.inserts.insert([new_job(timeout_seconds=None)])
    await pool.execute("UPDATE scheduled_jobs SET task_data = $1", task_data)
    job = await store.jobs.get_job("job")
    assert job
    assert (job.args, job.kwargs, job.timeout) == ((), {}, None)


async def page(store: Store, **filters: object) -> list[str]:
    return [job.job_id for job in await store.jobs.list_jobs(**{**NO_FILTERS, "limit": 100, **filters})]


async def test_list_jobs_pages_by_id_when_jobs_change(store: Store) -> None:
    jobs = [new_job(f"{n:02}", execution_time=NOW + n * SECOND) for n in range(10)]
    await store.inserts.insert(jobs[::-1])
    seen = await page(store, limit=4)
    await store.jobs.cancel("01")
    await store.inserts.replace([jobs[5]._replace(execution_time=NOW - SECOND, priority=1)])
    await store.inserts.insert([new_job("03a"), new_job("055")])
    while more := await page(store, limit=4, after=seen[-1]):
        seen += more
    assert seen == ["00", "01", "02", "03", "03a", "04", "05", "055", "06", "07", "08", "09"]


async def test_list_jobs_applies_each_filter(store: Store) -> None:
    await running(store, new_job("a"))
    await running(store, new_job("b"), worker_id="w2")
    await store.inserts.insert([new_job("c", job_name="other"), new_job("d", execution_time=NOW + SECOND)])
    assert await page(store) == ["a", "b", "c", "d"]
    assert await page(store, statuses=[JobStatus.PENDING]) == ["c", "d"]
    assert await page(store, statuses=[JobStatus.PENDING, JobStatus.RUNNING], limit=3) == ["a", "b", "c"]
    assert await page(store, statuses=[]) == []
    assert await page(store, names=[NAME]) == ["a", "b", "d"]
    assert await page(store, worker_id="w2") == ["b"]
    assert await page(store, due_from=NOW + SECOND) == ["d"]
    assert await page(store, due_before=NOW + SECOND) == ["a", "b", "c"]
    assert await page(store, names=[NAME], statuses=[JobStatus.RUNNING], after="a") == ["b"]


async def test_count_jobs_counts_each_status(store: Store) -> None:
    assert await store.jobs.count_jobs(None) == JobCounts()
    statuses = list(JobStatus)
    for n, status in enumerate(statuses):
        for m in range(n + 1):
            await store.inserts.insert([new_job(f"{status}-{m}", job_name="even" if m % 2 == 0 else "odd")])
            await store.jobs.set_status(f"{status}-{m}", status, LEASE)
    assert await store.jobs.count_jobs(None) == JobCounts(1, 2, 3, 4, 5, 6)
    assert await store.jobs.count_jobs(["odd"]) == JobCounts(0, 1, 1, 2, 2, 3)
    assert await store.jobs.count_jobs(["missing"]) == JobCounts()
