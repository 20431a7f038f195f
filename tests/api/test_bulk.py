"""schedule_bulk(): the order of ids, conflict modes, atomicity."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    ConflictResolution,
    JobConflictError,
    JobPriority,
    JobSpec,
    JobStatus,
    PayloadError,
    Scheduler,
    Unique,
)
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import JobCompleted
from tests.api.conftest import Make, Pools
from tests.support.worker import Gate, Recorder, now

RAISE, IGNORE, REPLACE = ConflictResolution
LATER = timedelta(hours=1)


async def work(*args: Any, **kwargs: Any) -> None: ...


def spec(job_id: str | None = None, *args: Any, **values: Any) -> JobSpec:
    return JobSpec(work, now() + LATER, args, job_id=job_id, **values)


async def args_of(scheduler: Scheduler, *job_ids: str) -> list[Any]:
    rows = [await scheduler.get_job(job_id) for job_id in job_ids]
    return [row and row.args for row in rows]


async def total(scheduler: Scheduler) -> int:
    return (await scheduler.count_jobs()).total


async def test_bulk_returns_ids_in_the_order_of_the_jobs(make: Make) -> None:
    scheduler = make()
    ids = await scheduler.schedule_bulk([spec(None, n) for n in range(2500)])
    assert len(set(ids)) == 2500
    rows = await scheduler.list_jobs(limit=10_000)  # by id: generated ids sort by creation time
    assert [(row.job_id, row.args) for row in rows] == [(job_id, (n,)) for n, job_id in enumerate(ids)]


@pytest.mark.parametrize("batch_size", [1, 2, 1000])
async def test_bulk_returns_none_for_existing_ids_when_ignoring(make: Make, batch_size: int) -> None:
    scheduler = make()
    await scheduler.schedule_bulk([spec("b", "old"), spec("d", "old")])
    ids = await scheduler.schedule_bulk(
        [spec(job_id, "new") for job_id in "abcde"], conflict_resolution=IGNORE, batch_size=batch_size
    )
    assert ids == ["a", None, "c", None, "e"]
    assert await args_of(scheduler, *"abcde") == [("new",), ("old",), ("new",), ("old",), ("new",)]


@pytest.mark.parametrize("batch_size", [1, 2, 1000])
async def test_bulk_inserts_the_first_of_duplicate_ids_when_ignoring(make: Make, batch_size: int) -> None:
    scheduler = make()
    ids = await scheduler.schedule_bulk(
        [spec("a", 1), spec("b", 2), spec("a", 3), spec("a", 4)], batch_size=batch_size
    )
    assert ids == ["a", "b", None, None]
    assert await args_of(scheduler, "a", "b") == [(1,), (2,)]


@pytest.mark.parametrize("batch_size", [1, 2, 1000])
async def test_bulk_inserts_the_last_of_duplicate_ids_when_replacing(make: Make, batch_size: int) -> None:
    scheduler = make()
    await scheduler.schedule_bulk([spec("b", "old")])
    ids = await scheduler.schedule_bulk(
        [spec("a", 1), spec("b", 2), spec("a", 3), spec("c", 4), spec("a", 5)],
        conflict_resolution=REPLACE,
        batch_size=batch_size,
    )
    assert ids == ["a", "b", "a", "c", "a"]
    assert await args_of(scheduler, *"abc") == [(5,), (2,), (4,)]
    assert await total(scheduler) == 3


@pytest.mark.parametrize("batch_size", [1, 2, 1000])
async def test_bulk_inserts_nothing_when_raising_on_an_existing_id(make: Make, batch_size: int) -> None:
    scheduler = make()
    await scheduler.schedule_bulk([spec("c")])
    await scheduler.update_job_status("c", "completed")
    with pytest.raises(JobConflictError, match=r"'c'.*'completed'") as raised:
        await scheduler.schedule_bulk(
            [spec(job_id) for job_id in "abcd"], conflict_resolution=RAISE, batch_size=batch_size
        )
    assert isinstance(raised.value, ValueError)
    assert await total(scheduler) == 1
    ids = await scheduler.schedule_bulk([spec("a"), spec("b")], conflict_resolution=RAISE)
    assert ids == ["a", "b"]


async def test_bulk_inserts_nothing_when_raising_on_duplicate_ids(make: Make) -> None:
    scheduler = make()
    with pytest.raises(JobConflictError, match=r"'a'.*more than once") as raised:
        await scheduler.schedule_bulk([spec("a"), spec("b"), spec("a")], conflict_resolution=RAISE)
    assert raised.value.status is None
    assert await total(scheduler) == 0


async def test_bulk_keeps_the_callers_transaction_usable_after_a_conflict(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    await scheduler.schedule_bulk([spec("c")])
    async with pool.acquire() as connection, connection.transaction():
        await scheduler.schedule_bulk([spec("before")], conflict_resolution=RAISE, connection=connection)
        with pytest.raises(JobConflictError, match="'c'"):
            await scheduler.schedule_bulk(
                [spec(job_id) for job_id in "abc"],
                conflict_resolution=RAISE,
                batch_size=1,
                connection=connection,
            )
        await scheduler.schedule_bulk([spec("after")], connection=connection)
    jobs = await scheduler.list_jobs()
    assert [job.job_id for job in jobs] == ["after", "before", "c"]


@pytest.mark.parametrize("mode", ConflictResolution)
async def test_bulk_stores_nothing_when_the_callers_transaction_rolls_back(
    make: Make, pool: asyncpg.Pool, mode: ConflictResolution
) -> None:
    scheduler = make()
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await scheduler.schedule_bulk([spec(), spec()], conflict_resolution=mode, connection=connection)
        await transaction.rollback()
    assert await total(scheduler) == 0


@pytest.mark.parametrize("mode", ConflictResolution)
async def test_bulk_succeeds_with_a_pool_of_one_connection(
    make: Make, pools: Pools, mode: ConflictResolution
) -> None:
    scheduler = make(await pools(1))  # never started: the schema has not been looked up
    assert len(await scheduler.schedule_bulk([spec(), spec()], conflict_resolution=mode)) == 2


@pytest.mark.parametrize("mode", ConflictResolution)
async def test_bulk_returns_an_empty_list_for_no_jobs(make: Make, mode: ConflictResolution) -> None:
    assert await make().schedule_bulk([], conflict_resolution=mode) == []


@pytest.mark.parametrize(
    ("invalid", "error"),
    [
        (JobSpec(work, datetime(2030, 1, 1)), ValueError),  # noqa: DTZ001 - the subject
        (JobSpec(work, now(), args=(math.nan,)), PayloadError),
        (JobSpec(print, now()), TypeError),
        (JobSpec(work, now(), max_retries=-1), ValueError),
        (JobSpec(work, now(), timeout=0), ValueError),
        ("not a spec", TypeError),
    ],
)
async def test_bulk_stores_nothing_when_one_job_is_invalid(
    make: Make, invalid: Any, error: type[Exception]
) -> None:
    scheduler = make()
    with pytest.raises(error):
        await scheduler.schedule_bulk([spec(), invalid], batch_size=1)
    assert await total(scheduler) == 0


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"batch_size": 0}, ValueError),
        ({"batch_size": 1.5}, TypeError),
        ({"conflict_resolution": 1}, TypeError),
    ],
)
async def test_bulk_rejects_invalid_options(
    make: Make, settings: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await make().schedule_bulk([spec()], **settings)


async def test_bulk_stores_the_values_of_each_spec(make: Make) -> None:
    scheduler = make(misfire_grace_time=11)
    await scheduler.schedule_bulk(
        [
            spec("a", priority=JobPriority.HIGH, max_retries=2, misfire_grace_time=None, timeout=5),
            spec("b", kwargs={"x": 1}),
        ]
    )
    first, second = [await scheduler.get_job(job_id) for job_id in "ab"]
    assert first is not None
    assert second is not None
    assert (first.priority, first.max_retries, first.misfire_grace_time) == (JobPriority.HIGH, 2, None)
    assert first.timeout == timedelta(seconds=5)
    assert (second.kwargs, second.misfire_grace_time) == ({"x": 1}, 11)


@pytest.mark.parametrize("mode", ConflictResolution)
@pytest.mark.parametrize("count", [1, 150])  # 100 and more are copied
async def test_bulk_jobs_without_a_time_are_due_now_by_the_clock_of_the_database(
    make: Make, mode: ConflictResolution, count: int
) -> None:
    start = datetime(2040, 1, 1, tzinfo=UTC)  # far from the clock of the machine
    scheduler = make(clock=FakeClock(start), misfire_grace_time=60)
    timed = [datetime(1960, 1, 1, tzinfo=UTC), datetime.fromtimestamp(0, UTC), start + timedelta(days=1)]
    specs = [JobSpec(work, each) for each in [*timed, *[None] * count]]
    specs.append(JobSpec(work, unique=Unique(per=timedelta(hours=1))))
    ids = await scheduler.schedule_bulk(specs, conflict_resolution=mode)
    jobs = {job.job_id: job for job in await scheduler.list_jobs(limit=1000)}
    found = [jobs[str(job_id)] for job_id in ids]
    assert [job.execution_time for job in found] == [*timed, *[start] * (count + 1)]
    grace = timedelta(seconds=60)
    assert [job.expires_at for job in found] == [*(each + grace for each in timed), *[None] * (count + 1)]
    assert "2040-01-01T00" in found[-1].job_id, "the id of a time span follows from the due time"


async def test_bulk_job_without_a_time_is_due_in_the_transaction_of_the_caller(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    async with pool.acquire() as connection, connection.transaction():
        began = await connection.fetchval("SELECT now()")
        await scheduler.schedule_bulk([JobSpec(work, job_id="a")], connection=connection)
        row = await connection.fetchrow("SELECT execution_time, clock_timestamp() AS now FROM scheduled_jobs")
    assert row is not None
    assert began < row["execution_time"] <= row["now"]


async def test_bulk_jobs_all_run_when_due(scheduler: Scheduler, seen: Recorder, open_gate: Gate) -> None:
    """There are more jobs than slots, and polling is too slow to help: each claim must trigger the next."""
    ids = await scheduler.schedule_bulk([JobSpec(open_gate.job, now(), (n,)) for n in range(500)])
    await seen.until(JobCompleted, 500)
    assert sorted(args[0] for args in open_gate.calls) == [*range(500)]
    assert {event.job_id for event in seen.of(JobCompleted)} == set(ids)
    assert open_gate.most <= 25


async def test_bulk_replaces_running_jobs_after_they_finish(
    scheduler: Scheduler, seen: Recorder, gate: Gate
) -> None:
    jobs = [JobSpec(gate.job, now(), ("old",), job_id=job_id) for job_id in "abc"]
    await scheduler.schedule_bulk(jobs)
    while len(gate.calls) < 3:
        await gate.wait_begun()
    for job in jobs:
        job.args = ("new",)
    await scheduler.schedule_bulk(jobs, conflict_resolution=REPLACE)
    gate.open.set()
    for job_id in "abc":
        await seen.until(JobCompleted, job_id=job_id, attempt=2)
    assert gate.calls == [("old",)] * 3 + [("new",)] * 3
    assert (await scheduler.count_jobs()).completed == 3
    assert [job.status for job in await scheduler.list_jobs()] == [JobStatus.COMPLETED] * 3


@pytest.mark.parametrize("mode", list(ConflictResolution))
async def test_bulk_calls_do_not_deadlock_when_their_ids_are_in_different_orders(
    make: Make, mode: ConflictResolution
) -> None:
    names = [f"{n:03}" for n in range(300)]
    schedulers = [make() for _ in range(3)]
    await schedulers[0].initialize_db()
    orders = [names, names[::-1], names[150:] + names[:150]]
    for _ in range(5):
        answers = await asyncio.gather(
            *(
                scheduler.schedule_bulk(
                    [spec(name) for name in order],
                    conflict_resolution=mode,
                    batch_size=70,
                )
                for scheduler, order in zip(schedulers, orders, strict=True)
            ),
            return_exceptions=True,
        )
        assert all(isinstance(answer, list | JobConflictError) for answer in answers), answers
    assert (await schedulers[0].count_jobs()).pending == 300
