"""Sequences of running Schedulers: the jobs of a key run one after the other, in their order."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    ConflictResolution,
    JobFailedError,
    JobPriority,
    JobSpec,
    Limit,
    RetryPolicy,
    Scheduler,
    Sequence,
    Share,
    Snooze,
    call,
    current_job,
)
from pg_scheduler.events import JobCompleted, JobStarted
from pg_scheduler.inspect import Inspector
from tests.api.conftest import Make, Pools
from tests.api.test_limits import LEFT, until
from tests.support import inside
from tests.support.stories import NIGHTLY
from tests.support.worker import PATIENCE, Gate, Recorder, now

BY_KEY = Sequence(key=lambda key, *_, **__: key)
SKIP = Sequence(key=lambda key, *_, **__: key, on_failure="skip")
SOON = RetryPolicy(base=timedelta(milliseconds=10))
HEADS = "SELECT count(*) FROM scheduler_sequences"
WAITING = "SELECT count(*) FROM scheduled_jobs WHERE blocked_on IS NOT NULL"
STOPPED = "SELECT count(*) FROM scheduler_sequences WHERE stopped_at IS NOT NULL"


@pytest.fixture(autouse=True)
def scans_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no scan find what a notification or a hand-over should have started."""
    inside.replace(monkeypatch, scan_interval_of_sequencer_s=600)


class Course:
    """A function that records the order of its attempts by key, and whether two of a key ran at once."""

    def __init__(self) -> None:
        self.ran: defaultdict[str, list[int]] = defaultdict(list)
        self.running: defaultdict[str, int] = defaultdict(int)
        self.overlaps = 0

    async def job(self, key: str, number: int) -> None:
        self.running[key] += 1
        self.overlaps += self.running[key] > 1
        try:
            await asyncio.sleep(0)
        finally:
            self.running[key] -= 1
        self.ran[key].append(number)


async def test_jobs_of_a_key_run_in_the_order_of_their_calls(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    course = Course()
    scheduler.register(course.job, name="work", sequence=BY_KEY)
    record = Recorder(scheduler)
    for number in range(20):
        await scheduler.enqueue("work", args=("a", number))
    await record.until(JobCompleted, 20)
    assert course.ran == {"a": list(range(20))}
    assert course.overlaps == 0
    await until(pool, HEADS, 0)


async def test_bulk_jobs_of_many_keys_run_in_order(make: Make, pools: Pools, pool: asyncpg.Pool) -> None:
    course = Course()
    schedulers = [make(await pools(5), max_concurrent_jobs=slots) for slots in (1, 5)]
    for each in schedulers:
        each.register(course.job, name="work", sequence=BY_KEY)
    jobs = [JobSpec(course.job, now(), args=(f"k{n % 20}", n // 20)) for n in range(200)]
    await schedulers[0].schedule_bulk(jobs)
    for each in schedulers:
        await each.start()
    await until(pool, LEFT, 0)
    assert all(numbers == list(range(10)) for numbers in course.ran.values())
    assert len(course.ran) == 20
    assert course.overlaps == 0
    assert await pool.fetchval("SELECT max(attempt) FROM scheduled_jobs") == 1
    await until(pool, HEADS, 0)


async def test_retries_and_snoozes_keep_the_place_of_their_job(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    attempts: list[int] = []

    async def flaky(key: str, number: int) -> None:
        attempts.append(number)
        if attempts.count(number) == 1:
            raise Snooze(0.01)
        if attempts.count(number) == 2:
            raise ValueError(number)

    scheduler.register(flaky, name="work", sequence=BY_KEY, max_retries=1, retry=SOON)
    for number in range(4):
        await scheduler.enqueue("work", args=("a", number))
    await until(pool, LEFT, 0)
    assert attempts == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


async def test_sequence_stops_at_a_failed_job_until_it_is_retried(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    course, broken = Course(), {1}

    async def work(key: str, number: int) -> None:
        if number in broken:
            raise ValueError(number)
        await course.job(key, number)

    scheduler.register(work, name="work", sequence=BY_KEY)
    ids = [await scheduler.enqueue("work", args=("a", number)) for number in range(4)]
    await until(pool, STOPPED, 1)
    assert course.ran == {"a": [0]}
    assert await pool.fetchval(WAITING) == 2
    other = await scheduler.enqueue("work", args=("b", 7))
    await until(pool, f"SELECT status FROM scheduled_jobs WHERE job_id = '{other}'", "completed")
    assert course.ran == {"a": [0], "b": [7]}, "another key does not wait"
    broken.clear()
    assert await scheduler.retry_job(ids[1])
    await until(pool, LEFT, 0)
    assert course.ran["a"] == [0, 1, 2, 3], "the failed job precedes those behind it"
    await until(pool, HEADS, 0)


async def test_sequence_continues_behind_a_failed_job_by_option(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    course = Course()

    async def work(key: str, number: int) -> None:
        await course.job(key, number)
        if number % 2:
            raise ValueError(number)

    scheduler.register(work, name="work", sequence=SKIP)
    for number in range(6):
        await scheduler.enqueue("work", args=("a", number))
    await until(pool, LEFT, 0)
    assert course.ran == {"a": [0, 1, 2, 3, 4, 5]}
    await until(pool, HEADS, 0)


@pytest.mark.parametrize("age", [timedelta(hours=1), timedelta(hours=-1)])
@pytest.mark.parametrize("retries", ["all", "single"])
async def test_retried_jobs_run_in_the_order_of_their_former_due_times(
    make: Make, pool: asyncpg.Pool, age: timedelta, retries: str
) -> None:
    # The ids, which decide at the same instant, have another order than the due times. So have the retries.
    course, scheduler = Course(), make()
    scheduler.register(course.job, name="work", sequence=BY_KEY, misfire_grace_time=None)
    numbers = [*range(10, 0, -1)]
    jobs = [
        JobSpec(course.job, now() - age + timedelta(seconds=place), args=("a", number), job_id=f"n{number}")
        for place, number in enumerate(numbers)
    ]
    await scheduler.schedule_bulk(jobs)
    await scheduler.cancel_jobs(job_name="work")
    if retries == "all":
        assert [step.done async for step in Inspector(scheduler).retry_jobs(where="status:cancelled")] == [10]
    else:
        # A job that is not due yet becomes due at its retry.
        for number in numbers if age < timedelta(0) else sorted(numbers):
            assert await scheduler.retry_job(f"n{number}")
    await scheduler.start()
    await until(pool, LEFT, 0)
    assert course.ran == {"a": numbers}


async def test_cancelled_head_gives_its_place_to_the_next_job_when_its_attempt_has_ended(
    scheduler: Scheduler, pool: asyncpg.Pool, gate: Gate
) -> None:
    scheduler.register(gate.job, name="work", sequence=BY_KEY)
    record = Recorder(scheduler)
    ids = [await scheduler.enqueue("work", args=("a", number)) for number in range(4)]
    await record.until(JobStarted, 1)
    assert await scheduler.cancel_job(ids[1]), "it waits"
    assert await pool.fetchval("SELECT job_id FROM scheduler_sequences") == ids[0]
    assert await scheduler.cancel_job(ids[0]), "it runs"
    gate.open.set()
    await until(pool, LEFT, 0)
    assert [args[1] for args in gate.calls] == [0, 2, 3]
    await until(pool, HEADS, 0)


async def test_cancellation_by_another_process_starts_the_next_job(
    make: Make, pools: Pools, pool: asyncpg.Pool
) -> None:
    scheduler, client, course = make(), make(await pools(2), role="scheduler"), Course()

    async def work(key: str, number: int) -> None:
        await course.job(key, number)
        if not number:
            raise Snooze(3600)

    for each in (scheduler, client):
        each.register(work, name="work", sequence=BY_KEY)
    await scheduler.start()
    ids = [await client.enqueue("work", args=("a", number)) for number in range(3)]
    await until(pool, "SELECT count(*) FROM scheduled_jobs WHERE status = 'pending' AND attempt = 1", 1)
    assert await client.cancel_job(ids[0])
    await until(pool, LEFT, 0)
    assert course.ran == {"a": [0, 1, 2]}


async def test_priority_does_not_change_the_order_within_a_key(make: Make, pool: asyncpg.Pool) -> None:
    scheduler, course = make(), Course()
    scheduler.register(course.job, name="work", sequence=BY_KEY)
    due = now()
    for number, priority in enumerate(JobPriority):
        await scheduler.schedule(
            course.job,
            execution_time=due + number * timedelta(microseconds=1),
            args=("a", number),
            priority=priority,
        )
    await scheduler.start()
    await until(pool, LEFT, 0)
    assert course.ran == {"a": list(range(len(JobPriority)))}


async def test_job_is_due_at_its_time_and_has_its_grace_time_from_its_turn_on(
    scheduler: Scheduler, pool: asyncpg.Pool, gate: Gate
) -> None:
    scheduler.register(gate.job, name="work", sequence=BY_KEY)
    record = Recorder(scheduler)
    await scheduler.enqueue("work", args=("a", 0))
    await record.until(JobStarted, 1)
    due = now() + timedelta(seconds=0.2)
    job_id = await scheduler.schedule(gate.job, execution_time=due, args=("a", 1), misfire_grace_time=1)
    # Without the rule it would be late by now.
    await pool.execute(
        "UPDATE scheduled_jobs SET expires_at = now() - interval '1 hour', execution_time = $2"
        " WHERE job_id = $1",
        job_id,
        due - timedelta(hours=2),
    )
    gate.open.set()
    await record.until(JobCompleted, 2)
    late = await scheduler.schedule(gate.job, execution_time=now() + timedelta(seconds=0.3), args=("a", 2))
    await record.until(JobStarted, job_id=late)
    row = await pool.fetchrow("SELECT * FROM scheduled_jobs WHERE job_id = $1", late)
    assert row is not None
    assert row["started_at"] >= row["execution_time"]
    assert row["started_at"] - row["execution_time"] < timedelta(seconds=1)


async def test_replaced_job_takes_its_new_place(scheduler: Scheduler, pool: asyncpg.Pool, gate: Gate) -> None:
    scheduler.register(gate.job, name="work", sequence=BY_KEY)
    record = Recorder(scheduler)
    for number in range(3):
        await scheduler.enqueue("work", args=("a", number), job_id=f"j{number}")
    await record.until(JobStarted, 1)
    replace = ConflictResolution.REPLACE
    await scheduler.enqueue("work", args=("a", 10), job_id="j1", conflict_resolution=replace)
    await scheduler.enqueue("work", args=("a", 11), job_id="j0", conflict_resolution=replace)
    gate.open.set()
    await until(pool, LEFT, 0)
    assert [args[1] for args in gate.calls] == [0, 2, 10, 11]
    await until(pool, HEADS, 0)


async def test_job_with_a_limit_is_the_head_while_the_limit_holds_it(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    course = Course()
    scheduler.register(course.job, name="work", sequence=BY_KEY, limits=[Limit("one", max_running=1)])
    for number in range(12):
        await scheduler.enqueue("work", args=("ab"[number % 2], number))
    await until(pool, LEFT, 0)
    assert course.ran == {"a": [0, 2, 4, 6, 8, 10], "b": [1, 3, 5, 7, 9, 11]}


async def test_paused_task_keeps_its_heads_and_their_order(scheduler: Scheduler, pool: asyncpg.Pool) -> None:
    course = Course()
    scheduler.register(course.job, name="work", sequence=BY_KEY)
    await scheduler.tasks.pause("work")
    for number in range(5):
        await scheduler.enqueue("work", args=("a", number))
    await until(pool, WAITING, 4)
    await scheduler.tasks.resume("work")
    await until(pool, LEFT, 0)
    assert course.ran == {"a": [0, 1, 2, 3, 4]}


async def test_combinations_without_a_meaning_are_refused(make: Make, pool: asyncpg.Pool) -> None:
    scheduler, course = make(), Course()
    with pytest.raises(ConfigurationError, match="a share and a sequence"):
        scheduler.register(course.job, name="work", sequence=BY_KEY, share=Share(key=BY_KEY.key))
    with pytest.raises(ConfigurationError, match="must be 'stop' or 'skip', not 'halt'"):
        Sequence(key=BY_KEY.key, on_failure="halt")  # type: ignore[arg-type]
    scheduler.register(course.job, name="work", sequence=lambda key, *_: key)
    parent = await scheduler.enqueue("work", args=("a", 1))
    with pytest.raises(ConfigurationError, match="cannot wait for other jobs by after="):
        await scheduler.enqueue("work", args=("a", 2), after=[parent])
    with pytest.raises(ConfigurationError, match="the key function of the sequence 'work' returned"):
        await scheduler.enqueue("work", args=(None, 2))
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 1


async def test_status_by_hand_sends_a_job_to_its_place(
    scheduler: Scheduler, pool: asyncpg.Pool, gate: Gate
) -> None:
    scheduler.register(gate.job, name="work", sequence=BY_KEY)
    record = Recorder(scheduler)
    ids = [await scheduler.enqueue("work", args=("a", number)) for number in range(3)]
    await record.until(JobStarted, 1)
    await scheduler.update_job_status(ids[2], "pending")
    assert await pool.fetchval("SELECT blocked_on FROM scheduled_jobs WHERE job_id = $1", ids[2])
    gate.open.set()
    await until(pool, LEFT, 0)
    assert [args[1] for args in gate.calls] == [0, 1, 2]
    await scheduler.retry_job(ids[0])
    await record.until(JobCompleted, 4)
    await until(pool, HEADS, 0)


async def test_head_that_was_deleted_by_hand_is_found_by_a_scan(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, scan_interval_of_sequencer_s=0.1)
    scheduler, course = make(), Course()
    scheduler.register(course.job, name="work", sequence=BY_KEY)
    for number in range(3):
        await scheduler.enqueue("work", args=("a", number))
    key = await pool.fetchval("SELECT DISTINCT blocked_on FROM scheduled_jobs")
    await pool.execute("INSERT INTO scheduler_sequences (key, job_id) VALUES ($1, 'deleted')", key)
    await scheduler.start()
    await until(pool, LEFT, 0)
    assert course.ran == {"a": [0, 1, 2]}
    await until(pool, HEADS, 0)


async def test_next_job_that_is_locked_starts_when_it_is_free(
    scheduler: Scheduler, pool: asyncpg.Pool, gate: Gate
) -> None:
    scheduler.register(gate.job, name="work", sequence=BY_KEY)
    record = Recorder(scheduler)
    ids = [await scheduler.enqueue("work", args=("a", number)) for number in range(3)]
    await record.until(JobStarted, 1)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = $1 FOR UPDATE", ids[1])
        gate.open.set()
        await record.until(JobCompleted, 1)
        assert await pool.fetchval("SELECT status FROM scheduled_jobs WHERE job_id = $1", ids[2]) == "pending"
    await record.until(JobCompleted, 3)
    assert [args[1] for args in gate.calls] == [0, 1, 2]


async def test_sequence_keeps_no_slot_from_a_more_urgent_job(
    make: Make, pool: asyncpg.Pool, gate: Gate
) -> None:
    scheduler = make(max_concurrent_jobs=1)
    scheduler.register(gate.job, name="work", sequence=BY_KEY)

    async def urgent() -> None:
        gate.calls.append(("urgent",))

    scheduler.register(urgent, name="urgent", priority=JobPriority.CRITICAL)
    record = Recorder(scheduler)
    await scheduler.start()
    for number in range(3):
        await scheduler.enqueue("work", args=("a", number))
    await record.until(JobStarted, 1)
    await scheduler.enqueue("urgent")
    gate.open.set()
    await record.until(JobCompleted, 4)
    assert [args[-1] for args in gate.calls] == [0, "urgent", 1, 2]


@NIGHTLY
@pytest.mark.slow
async def test_random_outcomes_on_three_workers_keep_every_order(
    make: Make, pools: Pools, pool: asyncpg.Pool
) -> None:
    chance = random.Random(6)
    course = Course()

    async def work(key: str, number: int) -> None:
        draw = chance.random()
        course.running[key] += 1
        course.overlaps += course.running[key] > 1
        try:
            await asyncio.sleep(0)
            if draw < 0.1:
                raise Snooze(0.01)
            if draw < 0.3:
                raise ValueError(number)
        finally:
            course.running[key] -= 1
        course.ran[key].append(number)

    schedulers = [make(await pools(6), max_concurrent_jobs=slots) for slots in (1, 4, 20)]
    for each in schedulers:
        each.register(work, name="work", sequence=SKIP, max_retries=1, retry=SOON)
    jobs = [JobSpec(work, now(), args=(f"k{n % 200}", n // 200)) for n in range(200 * 50)]
    await schedulers[0].schedule_bulk(jobs)
    for each in schedulers:
        await each.start()
    async with asyncio.timeout(300):
        while await pool.fetchval(LEFT):  # noqa: ASYNC110 - no event announces a state of the tables
            await asyncio.sleep(0.1)
    assert course.overlaps == 0
    for key, numbers in course.ran.items():
        assert numbers == sorted(set(numbers)), key
    ran = sum(map(len, course.ran.values()))
    assert ran == await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'completed'")
    assert ran + await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'failed'") == 10_000
    await until(pool, HEADS, 0)


async def test_child_with_the_key_of_its_parent_is_refused(make: Make) -> None:
    """The parent keeps its place while it waits, so the child would never be the head."""

    async def account(key: str, number: int) -> str:
        steps = current_job().steps
        if number:
            await steps.child("other", call(account, "b", 0))
            await steps.child("same", call(account, key, 0))
        return key

    scheduler = make()
    scheduler.register(account, sequence=SKIP)
    await scheduler.start()
    with pytest.raises(JobFailedError, match="would wait for itself: its child has the key of its sequence"):
        await scheduler.run_job(account, args=("a", 1), wait_timeout=PATIENCE)
    assert await scheduler.run_job(account, args=("a", 0), wait_timeout=PATIENCE) == "a", "the next one runs"
