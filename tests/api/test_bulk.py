"""schedule_bulk(): ids in order, each conflict mode, all or nothing."""

from __future__ import annotations

import asyncio
import math
from datetime import datetime, timedelta
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
)
from pg_scheduler.events import JobCompleted
from tests.api.conftest import Make, Pools
from tests.support.worker import Gate, Recorder, now

RAISE, IGNORE, REPLACE = ConflictResolution
LATER = timedelta(hours=1)


async def work(*args: Any) -> None: ...


def spec(job_id: str | None = None, *args: Any, **values: Any) -> JobSpec:
    return JobSpec(work, now() + LATER, args, job_id=job_id, **values)


async def args_of(scheduler: Scheduler, *job_ids: str) -> list[Any]:
    rows = [await scheduler.get_job(job_id) for job_id in job_ids]
    return [row and row.args for row in rows]


async def total(scheduler: Scheduler) -> int:
    return (await scheduler.count_jobs()).total


async def test_ids_come_in_the_order_of_the_jobs(make: Make) -> None:
    scheduler = make()
    ids = await scheduler.schedule_bulk([spec(None, n) for n in range(2500)])
    assert len(set(ids)) == 2500
    rows = await scheduler.list_jobs(limit=10_000)  # by id: they sort by the time they were made
    assert [(row.job_id, row.args) for row in rows] == [(job_id, (n,)) for n, job_id in enumerate(ids)]


@pytest.mark.parametrize("batch_size", [1, 2, 1000])
async def test_ignore_gives_none_where_nothing_was_inserted(make: Make, batch_size: int) -> None:
    scheduler = make()
    await scheduler.schedule_bulk([spec("b", "old"), spec("d", "old")])
    ids = await scheduler.schedule_bulk(
        [spec(job_id, "new") for job_id in "abcde"], conflict_resolution=IGNORE, batch_size=batch_size
    )
    assert ids == ["a", None, "c", None, "e"]
    assert await args_of(scheduler, *"abcde") == [("new",), ("old",), ("new",), ("old",), ("new",)]


@pytest.mark.parametrize("batch_size", [1, 2, 1000])
async def test_ignore_takes_the_first_of_an_id_that_comes_twice(make: Make, batch_size: int) -> None:
    scheduler = make()
    ids = await scheduler.schedule_bulk(
        [spec("a", 1), spec("b", 2), spec("a", 3), spec("a", 4)], batch_size=batch_size
    )
    assert ids == ["a", "b", None, None]
    assert await args_of(scheduler, "a", "b") == [(1,), (2,)]


@pytest.mark.parametrize("batch_size", [1, 2, 1000])
async def test_replace_takes_the_last_of_an_id_that_comes_twice(make: Make, batch_size: int) -> None:
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
async def test_raise_is_all_or_nothing(make: Make, batch_size: int) -> None:
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


async def test_raise_refuses_an_id_that_comes_twice(make: Make) -> None:
    scheduler = make()
    with pytest.raises(JobConflictError, match=r"'a'.*more than once") as raised:
        await scheduler.schedule_bulk([spec("a"), spec("b"), spec("a")], conflict_resolution=RAISE)
    assert raised.value.status is None
    assert await total(scheduler) == 0


async def test_raise_on_the_callers_connection_leaves_its_transaction_alone(
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
async def test_a_rolled_back_transaction_leaves_nothing(
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
async def test_a_pool_of_one_connection_is_enough(make: Make, pools: Pools, mode: ConflictResolution) -> None:
    scheduler = make(await pools(1))  # never started: not even the schema is known yet
    assert len(await scheduler.schedule_bulk([spec(), spec()], conflict_resolution=mode)) == 2


@pytest.mark.parametrize("mode", ConflictResolution)
async def test_nothing_to_do_is_done_at_once(make: Make, mode: ConflictResolution) -> None:
    assert await make().schedule_bulk([], conflict_resolution=mode) == []


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (JobSpec(work, datetime(2030, 1, 1)), ValueError),  # noqa: DTZ001 - the subject
        (JobSpec(work, now(), args=(math.nan,)), PayloadError),
        (JobSpec(print, now()), TypeError),  # type: ignore[arg-type]
        (JobSpec(work, now(), max_retries=-1), ValueError),
        (JobSpec(work, now(), timeout=0), ValueError),
        ("no spec", TypeError),
    ],
)
async def test_one_bad_job_and_none_is_stored(make: Make, bad: Any, error: type[Exception]) -> None:
    scheduler = make()
    with pytest.raises(error):
        await scheduler.schedule_bulk([spec(), bad], batch_size=1)
    assert await total(scheduler) == 0


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"batch_size": 0}, ValueError),
        ({"batch_size": 1.5}, TypeError),
        ({"conflict_resolution": 1}, TypeError),
    ],
)
async def test_bad_settings_are_refused(make: Make, settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        await make().schedule_bulk([spec()], **settings)


async def test_each_spec_has_its_own_values(make: Make) -> None:
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


async def test_many_due_jobs_all_run(scheduler: Scheduler, seen: Recorder, opened: Gate) -> None:
    """More than slots and claim limits: without polling, so each claim leads to the next."""
    ids = await scheduler.schedule_bulk([JobSpec(opened.job, now(), (n,)) for n in range(500)])
    await seen.until(JobCompleted, 500)
    assert sorted(args[0] for args in opened.calls) == [*range(500)]
    assert {event.job_id for event in seen.of(JobCompleted)} == set(ids)
    assert opened.most <= 25


async def test_running_jobs_are_replaced_in_bulk_too(
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
async def test_calls_with_the_same_ids_in_other_orders_do_not_deadlock(
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
