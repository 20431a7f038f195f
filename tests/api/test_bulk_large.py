"""Large calls of schedule_bulk(): jobs without an id of their own use COPY, with the same results."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    ConflictResolution,
    Job,
    JobConflictError,
    JobPriority,
    JobSpec,
    PayloadError,
    Scheduler,
)
from pg_scheduler.events import JobCompleted
from tests.api.conftest import Make, Pools
from tests.support import inside
from tests.support.cases import each_case
from tests.support.worker import Gate, Recorder, now

PREPARE_BATCH = inside.internal_setting("prepared_jobs")
MIN_COPY_JOBS = inside.internal_setting("copied_jobs")

RAISE, IGNORE, REPLACE = ConflictResolution
LATER = timedelta(hours=1)
MANY = MIN_COPY_JOBS
SPECIAL = "tab\tnew\nline\\ \"quoted\" 'single' \\N \\. žluť 🦉"


async def work(*args: Any, **kwargs: Any) -> None: ...


async def other(*args: Any) -> None: ...


def specs(count: int, *more: Any, **values: Any) -> list[JobSpec]:
    return [JobSpec(work, now() + LATER, (n, *more), **values) for n in range(count)]


def named(job_id: str, *args: Any) -> JobSpec:
    return JobSpec(work, now() + LATER, args, job_id=job_id)


async def stored(scheduler: Scheduler, ids: Sequence[str | None]) -> list[Job]:
    """Return the jobs in the order of the ids."""
    by_id = {job.job_id: job for job in await scheduler.list_jobs(limit=10_000)}
    return [by_id[str(job_id)] for job_id in ids]


async def total(scheduler: Scheduler) -> int:
    return (await scheduler.count_jobs()).total


@pytest.mark.parametrize("mode", ConflictResolution)
@pytest.mark.parametrize("count", [MANY - 1, MANY, PREPARE_BATCH, PREPARE_BATCH + 1, 2 * PREPARE_BATCH + 1])
async def test_large_bulk_returns_ids_in_the_order_of_the_jobs(
    make: Make, mode: ConflictResolution, count: int
) -> None:
    scheduler = make()
    ids = await scheduler.schedule_bulk(specs(count), conflict_resolution=mode, batch_size=300)
    assert [job.args for job in await stored(scheduler, ids)] == [(n,) for n in range(count)]
    assert await total(scheduler) == count


async def test_large_bulk_stores_the_values_of_each_spec(make: Make) -> None:
    scheduler = make(misfire_grace_time=11)
    due = now() + LATER
    kinds: list[dict[str, Any]] = [
        {"func": work, "execution_time": due},
        {"func": other, "execution_time": due},
        {"func": other, "execution_time": due + LATER},
        {"func": work, "execution_time": due, "priority": JobPriority.HIGH},
        {"func": work, "execution_time": due, "max_retries": 1000},
        {"func": work, "execution_time": due, "misfire_grace_time": None},
        {"func": work, "execution_time": due, "timeout": 5},
        {"func": work, "execution_time": due, "timeout": None},
    ]
    ids = await scheduler.schedule_bulk([JobSpec(**kind) for _ in range(MANY) for kind in kinds])
    small = await scheduler.schedule_bulk([JobSpec(**kind) for kind in kinds])

    def stored_values(job: Job) -> tuple[Any, ...]:
        terms = (job.priority, job.max_retries, job.misfire_grace_time, job.timeout)
        return (job.job_name, job.execution_time, job.expires_at, *terms)

    expected = [stored_values(job) for job in await stored(scheduler, small)]
    assert len(set(expected)) == len(kinds)
    assert [stored_values(job) for job in await stored(scheduler, ids)] == expected * MANY


@pytest.mark.parametrize("batch_size", [40, 1000])
async def test_large_bulk_skips_existing_and_duplicate_ids_when_ignoring(make: Make, batch_size: int) -> None:
    scheduler = make()
    await scheduler.schedule_bulk([named("b", "old")])
    jobs = [named("a", 1), *specs(MANY), named("b", 2), named("a", 3)]
    ids = await scheduler.schedule_bulk(jobs, conflict_resolution=IGNORE, batch_size=batch_size)
    assert (ids[0], ids[-2:]) == ("a", [None, None])
    assert [job.args for job in await stored(scheduler, ids[1:-2])] == [(n,) for n in range(MANY)]
    assert [job.args for job in await stored(scheduler, ["a", "b"])] == [(1,), ("old",)]


@pytest.mark.parametrize("batch_size", [40, 1000])
async def test_large_bulk_inserts_the_last_of_duplicate_ids_when_replacing(
    make: Make, batch_size: int
) -> None:
    scheduler = make()
    await scheduler.schedule_bulk([named("b", "old")])
    jobs = [named("a", 1), *specs(MANY), named("b", 2), named("a", 3)]
    ids = await scheduler.schedule_bulk(jobs, conflict_resolution=REPLACE, batch_size=batch_size)
    assert (ids[0], ids[-2:]) == ("a", ["b", "a"])
    assert [job.args for job in await stored(scheduler, ["a", "b"])] == [(3,), (2,)]
    assert await total(scheduler) == MANY + 2


@pytest.mark.parametrize("batch_size", [40, 1000])
async def test_large_bulk_inserts_nothing_when_raising_on_a_conflict(make: Make, batch_size: int) -> None:
    scheduler = make()
    await scheduler.schedule_bulk([named("b", "old")])
    jobs = [*specs(MANY), named("a"), named("b"), *specs(MANY)]
    with pytest.raises(JobConflictError, match=r"'b'.*'pending'"):
        await scheduler.schedule_bulk(jobs, conflict_resolution=RAISE, batch_size=batch_size)
    with pytest.raises(JobConflictError, match=r"'c'.*more than once"):
        await scheduler.schedule_bulk([named("c"), *specs(MANY), named("c")], conflict_resolution=RAISE)
    assert await total(scheduler) == 1
    ids = await scheduler.schedule_bulk(
        [*specs(MANY), named("a")], conflict_resolution=RAISE, batch_size=batch_size
    )
    assert ids[-1] == "a"
    assert await total(scheduler) == MANY + 2


@pytest.mark.parametrize("mode", ConflictResolution)
async def test_large_bulk_exists_only_after_the_callers_transaction_commits(
    make: Make, pool: asyncpg.Pool, mode: ConflictResolution
) -> None:
    scheduler = make()
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        jobs = [named("a"), *specs(MANY)]
        await scheduler.schedule_bulk(jobs, conflict_resolution=mode, connection=connection)
        assert await total(scheduler) == 0, "invisible to other connections before the commit"
        await transaction.rollback()
        assert await total(scheduler) == 0
        async with connection.transaction():
            await scheduler.schedule_bulk(jobs, conflict_resolution=mode, connection=connection)
    assert await total(scheduler) == MANY + 1


async def test_large_bulk_keeps_the_callers_transaction_usable_after_a_conflict(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    await scheduler.schedule_bulk([named("b")])
    async with pool.acquire() as connection, connection.transaction():
        await scheduler.schedule_bulk(specs(MANY), conflict_resolution=RAISE, connection=connection)
        with pytest.raises(JobConflictError, match="'b'"):
            await scheduler.schedule_bulk(
                [*specs(MANY), named("b")], conflict_resolution=RAISE, connection=connection
            )
        await scheduler.schedule_bulk(specs(MANY), connection=connection)
    assert await total(scheduler) == 1 + 2 * MANY


@each_case("mode", ConflictResolution)
@each_case(
    ("invalid", "error"),
    [
        (JobSpec(work, datetime(2030, 1, 1)), ValueError),  # noqa: DTZ001 - the subject
        (JobSpec(work, now(), args=(math.nan,)), PayloadError),
        (JobSpec(work, now(), max_retries=-1), ValueError),
        ("not a spec", TypeError),
    ],
)
async def test_large_bulk_stores_nothing_when_one_job_is_invalid(
    make: Make, mode: ConflictResolution, invalid: Any, error: type[Exception]
) -> None:
    scheduler = make()
    for jobs in ([*specs(2 * PREPARE_BATCH), invalid], [invalid, *specs(MANY)]):
        with pytest.raises(error):
            await scheduler.schedule_bulk(jobs, conflict_resolution=mode, batch_size=10)
    assert await total(scheduler) == 0


@pytest.mark.parametrize("format_", ["text", "binary"])
async def test_large_bulk_stores_special_characters_with_custom_codecs_and_session_settings(
    make: Make, dsn: str, format_: Any
) -> None:
    async def customize(connection: asyncpg.Connection) -> None:
        encode = json.dumps if format_ == "text" else lambda value: b"\x01" + json.dumps(value).encode()
        decode = json.loads if format_ == "text" else lambda value: json.loads(value[1:])
        await connection.set_type_codec(
            "jsonb", schema="pg_catalog", format=format_, encoder=encode, decoder=decode
        )
        await connection.execute("SET TIME ZONE 'Asia/Kathmandu'; SET DateStyle = 'German'")

    async with asyncpg.create_pool(dsn, min_size=1, max_size=5, init=customize) as pool:
        scheduler = make(pool)
        scheduler.register(work, name=SPECIAL)
        ids = await scheduler.schedule_bulk(specs(MANY, SPECIAL, kwargs={SPECIAL: [SPECIAL]}))
        jobs = await stored(scheduler, ids)
        await scheduler.shutdown()
    assert [job.args for job in jobs] == [(n, SPECIAL) for n in range(MANY)]
    assert {job.job_name for job in jobs} == {SPECIAL}
    assert all(job.kwargs == {SPECIAL: [SPECIAL]} for job in jobs)


async def test_large_bulk_quotes_the_schema_name(make: Make) -> None:
    scheduler = make(schema='the "odd" one')
    await scheduler.initialize_db()
    ids = await scheduler.schedule_bulk(specs(MANY))
    assert [job.args for job in await stored(scheduler, ids)] == [(n,) for n in range(MANY)]


@pytest.mark.parametrize("mode", ConflictResolution)
async def test_large_bulk_succeeds_with_a_pool_of_one_connection(
    make: Make, pools: Pools, mode: ConflictResolution
) -> None:
    scheduler = make(await pools(1))
    assert len(await scheduler.schedule_bulk(specs(MANY), conflict_resolution=mode)) == MANY


@pytest.mark.parametrize("mode", ConflictResolution)
async def test_large_bulk_calls_do_not_deadlock_when_concurrent(make: Make, mode: ConflictResolution) -> None:
    schedulers = [make() for _ in range(3)]
    await schedulers[0].initialize_db()
    jobs = [each for n in range(MANY) for each in (named(f"{n:03}"), JobSpec(work, now() + LATER))]
    for _ in range(3):
        answers = await asyncio.gather(
            *(each.schedule_bulk(jobs, conflict_resolution=mode, batch_size=30) for each in schedulers),
            return_exceptions=True,
        )
        assert all(isinstance(answer, list | JobConflictError) for answer in answers), answers
        assert mode is RAISE or all(isinstance(answer, list) for answer in answers)
    ids = {job.job_id for job in await schedulers[0].list_jobs(limit=10_000)}
    assert {f"{n:03}" for n in range(MANY)} <= ids


async def test_large_bulk_yields_to_the_event_loop_while_validating(make: Make) -> None:
    scheduler = make()
    await scheduler.initialize_db()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    invalid = JobSpec(work, now(), args=(math.nan,))  # detected before any statement
    counter = asyncio.create_task(count_turns())
    with pytest.raises(PayloadError):
        await scheduler.schedule_bulk([*specs(10 * PREPARE_BATCH), invalid])
    counter.cancel()
    assert turns >= 5


async def test_large_bulk_inserts_every_job_when_the_caller_clears_the_list(make: Make) -> None:
    scheduler = make()
    jobs = specs(3 * PREPARE_BATCH)
    call = asyncio.create_task(scheduler.schedule_bulk(jobs))
    await asyncio.sleep(0)
    jobs.clear()
    assert len(await call) == 3 * PREPARE_BATCH


async def test_large_bulk_jobs_all_run_when_due(
    scheduler: Scheduler, seen: Recorder, open_gate: Gate
) -> None:
    ids = await scheduler.schedule_bulk(
        [JobSpec(open_gate.job, now(), (n,)) for n in range(MANY)], batch_size=MANY // 2
    )
    await seen.until(JobCompleted, MANY)
    assert {event.job_id for event in seen.of(JobCompleted)} == set(ids)
