"""Unique jobs through the public methods, one at a time and when calls meet."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    ConflictResolution,
    Job,
    JobConflictError,
    JobFailedError,
    JobFunction,
    JobSpec,
    JobStatus,
    RetryPolicy,
    Scheduler,
    Unique,
    call,
)
from pg_scheduler.events import JobCompleted, JobFailed, JobRetried, JobScheduled
from pg_scheduler.testing import TestScheduler
from tests.api.conftest import Make, Pools
from tests.support import inside
from tests.support.inside import store_of
from tests.support.worker import PATIENCE, Gate, Recorder, now

MAX_ROUNDS = inside.internal_setting("rounds_of_unique_keys")

RAISE, IGNORE, REPLACE = ConflictResolution
START = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def sync_user(user_id: int, reason: str = "none") -> None: ...


async def other(user_id: int) -> None: ...


@pytest.fixture
async def idle(make: Make) -> Scheduler:
    """Return a Scheduler that runs nothing."""
    scheduler = make()
    await scheduler.initialize_db()
    return scheduler


@pytest.fixture
async def t(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START) as test_scheduler:
        yield test_scheduler


async def the_job(scheduler: Scheduler, job_id: str) -> Job:
    found = await scheduler.get_job(job_id)
    assert found is not None
    return found


async def settled(scheduler: Scheduler, job_id: str) -> Job:
    """Return a job as it is when it no longer runs."""
    async with asyncio.timeout(PATIENCE):
        while (found := await the_job(scheduler, job_id)).status is JobStatus.RUNNING:
            pass
    return found


async def ids(pool: asyncpg.Pool, condition: str = "true") -> list[str]:
    rows = await pool.fetch(f"SELECT job_id FROM scheduled_jobs WHERE {condition} ORDER BY job_id")
    return [row["job_id"] for row in rows]


# -- one at a time -----------------------------------------------------------------------------------------


async def test_second_job_of_a_key_is_rejected_until_the_first_has_ended(t: TestScheduler) -> None:
    scheduler = t.scheduler
    first = await scheduler.enqueue(sync_user, args=(7,), unique=Unique())
    with pytest.raises(JobConflictError, match="is taken by job") as raised:
        await scheduler.enqueue(sync_user, kwargs={"user_id": 7}, unique=Unique())
    key = (await the_job(scheduler, first)).unique_key
    assert (raised.value.job_id, raised.value.status, raised.value.unique_key) == (first, "pending", key)
    assert await scheduler.enqueue(sync_user, args=(8,), unique=Unique())
    assert await scheduler.enqueue(other, args=(7,), unique=Unique())
    await t.drain()
    assert t.ran(sync_user) == 2
    assert await scheduler.enqueue(sync_user, args=(7,), unique=Unique()) != first


async def test_explicit_key_is_shared_by_all_tasks(idle: Scheduler) -> None:
    first = await idle.enqueue(sync_user, args=(7,), unique="user 7")
    assert (await the_job(idle, first)).unique_key == "user 7"
    assert await idle.enqueue(other, args=(7,), unique="user 7", conflict_resolution=IGNORE) == first
    assert await idle.enqueue(other, args=(7,), unique="user 8") != first
    assert await idle.enqueue("unregistered", unique="user 7", conflict_resolution=IGNORE) == first


async def test_rejected_job_publishes_no_event_and_stores_nothing(
    idle: Scheduler, pool: asyncpg.Pool
) -> None:
    seen = Recorder(idle)
    first = await idle.enqueue(sync_user, args=(7,), unique="k")
    assert await idle.enqueue(sync_user, args=(7,), unique="k", conflict_resolution=IGNORE) == first
    assert [event.job_id for event in seen.of(JobScheduled)] == [first]
    assert await ids(pool) == [first]


async def test_none_makes_a_job_of_a_unique_task_not_unique(idle: Scheduler) -> None:
    async def work(user_id: int) -> None: ...

    idle.register(work, name="work", unique=Unique(args=("user_id",)))
    first = await idle.enqueue(work, args=(7,))
    with pytest.raises(JobConflictError):
        await idle.schedule(work, execution_time=now(), args=(7,))
    with pytest.raises(JobConflictError):
        await idle.schedule_job("work", now(), {"args": [7]})
    with pytest.raises(JobConflictError):
        await idle.schedule_bulk([JobSpec(work, now(), (7,))], conflict_resolution=RAISE)
    plain = await idle.enqueue(work, args=(7,), unique=None)
    assert (await the_job(idle, plain)).unique_key is None
    assert await idle.enqueue(call(work, 7), conflict_resolution=IGNORE) == first
    (info,) = [each for each in await idle.tasks.list() if each.name == "work"]
    assert info.unique == Unique(args=("user_id",))


def logged(func: JobFunction) -> JobFunction:
    """Decorate a function as tracing libraries do."""

    @functools.wraps(func)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await func(*args, **kwargs)

    return wrapper


def with_session(func: JobFunction) -> JobFunction:
    """Decorate a function by a wrapper that passes an argument before the others."""

    @functools.wraps(func)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await func("session", *args, **kwargs)

    return wrapper


@logged
@logged
async def decorated(user_id: int, reason: str = "none") -> None: ...


@logged
async def by_all_arguments(user_id: int, reason: str = "none") -> None: ...


@with_session
async def store_user(session: str, user_id: int) -> None: ...


async def test_arguments_of_a_decorated_function_have_the_names_of_the_function(idle: Scheduler) -> None:
    idle.register(decorated, unique=Unique(args=("user_id",)))
    idle.register(by_all_arguments, unique=Unique())
    idle.register(sync_user, unique=Unique())

    async def add(func: JobFunction, *args: Any, **kwargs: Any) -> str:
        return await idle.enqueue(func, args=args, kwargs=kwargs, conflict_resolution=IGNORE)

    users = [await add(decorated, user_id) for user_id in (1, 2, 3)]
    assert len({*users}) == 3
    assert await add(decorated, user_id=1, reason="other") == users[0]
    second, fourth = await idle.schedule_bulk(
        [JobSpec(decorated, args=(2,)), JobSpec(decorated, args=(4,))], conflict_resolution=IGNORE
    )
    assert second is None
    assert fourth is not None
    for func in by_all_arguments, sync_user:
        forms = [await add(func, 1), await add(func, user_id=1), await add(func, 1, "none")]
        assert len({*forms}) == 1
        assert await add(func, 1, "other") not in forms


async def test_argument_that_a_wrapper_hides_is_refused_unless_it_is_given_by_its_name(
    idle: Scheduler, pool: asyncpg.Pool
) -> None:
    idle.register(store_user, unique=Unique(args=("user_id",)))
    with pytest.raises(ConfigurationError, match=r"unique names the argument 'user_id', .* kwargs="):
        await idle.enqueue(store_user, args=(1,))
    with pytest.raises(ConfigurationError, match="unique names the argument 'user_id'"):
        await idle.schedule_bulk([JobSpec(store_user, kwargs={"user_id": 1}), JobSpec(store_user, args=(1,))])
    assert await ids(pool) == []
    await idle.enqueue(store_user, kwargs={"user_id": 1})
    await idle.enqueue(store_user, kwargs={"user_id": 2})


async def test_alias_and_name_of_a_task_have_the_same_key(idle: Scheduler) -> None:
    idle.register(other, name="other", aliases=["former"], unique=Unique())
    first = await idle.enqueue("other", args=(7,))
    assert await idle.enqueue("former", kwargs={"user_id": 7}, conflict_resolution=IGNORE) == first


async def test_unique_values_are_checked_at_the_call(idle: Scheduler, pool: asyncpg.Pool) -> None:
    with pytest.raises(ValueError, match="'account'"):
        await idle.enqueue(other, args=(7,), unique=Unique(args=("account",)))
    with pytest.raises(ValueError, match="1 to 200 bytes"):
        await idle.schedule(other, execution_time=now(), args=(7,), unique="")
    with pytest.raises(ValueError, match="is derived from its time span"):
        await idle.enqueue(other, args=(7,), job_id="own", unique=Unique(per=HOUR))
    with pytest.raises(ValueError, match="not registered"):
        await idle.enqueue("unregistered", args=(7,), unique=Unique())
    with pytest.raises(TypeError, match=r"pass Unique\(\)"):
        await idle.schedule_bulk([JobSpec(other, now(), (7,), unique=True)])  # type: ignore[arg-type]
    assert await ids(pool) == []


async def test_key_stays_taken_through_failure_and_retry_while_another_call_is_rejected(make: Make) -> None:
    scheduler = make(retry_policy=RetryPolicy(timedelta(milliseconds=1), 1.0, timedelta(milliseconds=1)))
    seen = Recorder(scheduler)
    gates = [Gate(), Gate()]

    async def work() -> None:
        gate = gates[len(seen.of(JobRetried))]
        await gate.job()
        if gate is gates[0]:
            raise ConnectionError("the first attempt fails")

    await scheduler.start()
    first = await scheduler.enqueue(work, unique="k", max_retries=1)
    for gate in gates:
        await gate.wait_begun()
        for resolution in (RAISE, IGNORE):
            rejected = scheduler.enqueue(work, unique="k", conflict_resolution=resolution)
            if resolution is RAISE:
                with pytest.raises(JobConflictError) as raised:
                    await rejected
                assert (raised.value.job_id, raised.value.status) == (first, "running")
            else:
                assert await rejected == first
        gate.open.set()
    await seen.until(JobCompleted, job_id=first)
    found = await the_job(scheduler, first)
    assert (found.status, found.retry_count, found.attempt) == (JobStatus.COMPLETED, 1, 2)
    assert seen.of(JobFailed) == []
    assert await scheduler.enqueue(work, unique="k", conflict_resolution=IGNORE) != first
    assert scheduler.is_running


async def test_key_stays_taken_while_a_retry_waits(t: TestScheduler) -> None:
    async def work() -> None:
        raise ConnectionError("always")

    first = await t.scheduler.enqueue(work, unique="k", max_retries=1)
    await t.run_one()
    assert (await the_job(t.scheduler, first)).retry_count == 1
    with pytest.raises(JobConflictError, match="'pending'"):
        await t.scheduler.enqueue(work, unique="k")
    await t.run_until(timedelta(days=1))
    assert await t.scheduler.enqueue(work, unique="k") != first


async def test_key_stays_taken_while_a_job_of_a_dead_worker_waits_and_is_free_after_quarantine(
    pool: asyncpg.Pool,
) -> None:
    async def poison() -> None:
        kit.crash()

    async with TestScheduler(pool, now=START, max_crashes=2) as kit:
        first = await kit.scheduler.enqueue(poison, unique="k")
        await kit.drain()
        with pytest.raises(JobConflictError, match="'running'"):
            await kit.scheduler.enqueue(poison, unique="k")
        await kit.run_until(timedelta(hours=1))
        assert (await the_job(kit.scheduler, first)).status is JobStatus.FAILED
        assert await kit.scheduler.enqueue(poison, unique="k") != first


@pytest.mark.parametrize("ended", ["cancelled", "expired", "deleted by hand"])
async def test_key_is_free_however_the_job_ended(t: TestScheduler, pool: asyncpg.Pool, ended: str) -> None:
    first = await t.scheduler.enqueue(sync_user, args=(7,), unique="k", misfire_grace_time=60)
    if ended == "cancelled":
        await t.scheduler.cancel_job(first)
    elif ended == "expired":
        t.advance(HOUR)
        await t.drain()
        assert (await the_job(t.scheduler, first)).status is JobStatus.EXPIRED
    else:
        await pool.execute("DELETE FROM scheduled_jobs")
    assert await t.scheduler.enqueue(sync_user, args=(7,), unique="k") != first


# -- replacing ---------------------------------------------------------------------------------------------


async def test_replace_debounces_a_pending_job(t: TestScheduler) -> None:
    job_ids = set()
    for number in range(3):
        job_ids.add(
            await t.scheduler.enqueue(
                sync_user,
                args=(7, f"change {number}"),
                delay=60,
                unique=Unique(args=("user_id",)),
                conflict_resolution=REPLACE,
            )
        )
        t.advance(30)
        await t.drain()
    assert len(job_ids) == 1
    assert t.ran(sync_user) == 0
    await t.run_until(timedelta(minutes=5))
    (row,) = t.jobs(sync_user)
    assert (row.status, row.args, row.execution_time) == (
        JobStatus.COMPLETED,
        (7, "change 2"),
        START + timedelta(seconds=120),
    )


async def test_replace_lets_a_running_job_run_once_more(make: Make, gate: Gate) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(gate.job, name="gate")
    await scheduler.start()
    first = await scheduler.enqueue("gate", args=(1,), unique="k")
    await gate.wait_begun()
    for number in (2, 3):
        assert (
            await scheduler.enqueue("gate", args=(number,), unique="k", conflict_resolution=REPLACE) == first
        )
    found = await the_job(scheduler, first)
    assert (found.status, found.replacement, found.unique_key) == (JobStatus.RUNNING, True, "k")
    with pytest.raises(JobConflictError):
        await scheduler.enqueue("gate", args=(4,), unique="k")
    gate.open.set()
    await seen.until(JobCompleted, 2, job_id=first)
    assert gate.calls == [(1,), (3,)]
    assert gate.most == 1
    assert (await the_job(scheduler, first)).status is JobStatus.COMPLETED


async def test_replace_keeps_the_row_of_a_finished_job(t: TestScheduler) -> None:
    first = await t.scheduler.enqueue(sync_user, args=(7,), unique="k", conflict_resolution=REPLACE)
    await t.drain()
    second = await t.scheduler.enqueue(sync_user, args=(7,), unique="k", conflict_resolution=REPLACE)
    assert second != first
    assert (await the_job(t.scheduler, first)).status is JobStatus.COMPLETED


async def test_replace_with_an_id_follows_the_key_unless_both_are_taken(idle: Scheduler) -> None:
    async def put(job_id: str | None, key: str | None) -> str:
        return await idle.schedule(
            sync_user,
            execution_time=now() + HOUR,
            args=(7,),
            job_id=job_id,
            unique=key,
            conflict_resolution=REPLACE,
        )

    assert await put("a", "k") == "a"
    assert await put("a", "k") == "a"
    assert await put("new", "k") == "a", "the id is free, the key is not"
    assert await put("b", None) == "b"
    with pytest.raises(JobConflictError) as raised:
        await put("b", "k")
    assert (raised.value.job_id, raised.value.unique_key) == ("a", "k")
    assert (await the_job(idle, "b")).unique_key is None
    assert await put("b", "free") == "b"
    assert (await the_job(idle, "b")).unique_key == "free"
    assert await put("b", "another") == "b"
    assert await put(None, "free") not in {"a", "b"}, "the key was given up"


async def test_new_definition_of_a_running_job_takes_its_key_at_once(make: Make, gate: Gate) -> None:
    scheduler = make()
    scheduler.register(gate.job, name="gate")
    await scheduler.start()
    await scheduler.enqueue("gate", job_id="a")
    await gate.wait_begun()
    await scheduler.enqueue("gate", job_id="a", unique="k", conflict_resolution=REPLACE)
    with pytest.raises(JobConflictError, match="'running'"):
        await scheduler.enqueue("gate", unique="k")


async def test_new_definition_that_waited_with_another_key_fails_if_that_was_taken(
    make: Make, gate: Gate
) -> None:
    scheduler = make()
    scheduler.register(gate.job, name="gate")
    await scheduler.start()
    await scheduler.enqueue("gate", job_id="a", unique="old")
    await gate.wait_begun()
    await scheduler.enqueue("gate", job_id="a", unique="new", conflict_resolution=REPLACE)
    await scheduler.enqueue("gate", job_id="b", unique="new", delay=HOUR)
    gate.open.set()
    found = await settled(scheduler, "a")
    assert found.status is JobStatus.FAILED
    assert "new definition" in (found.error_message or "")
    assert (await the_job(scheduler, "b")).status is JobStatus.PENDING


async def test_replace_waits_for_other_jobs_as_its_definition_says(t: TestScheduler) -> None:
    first = await t.scheduler.enqueue(sync_user, args=(1,), delay=HOUR)
    unique = await t.scheduler.enqueue(sync_user, args=(7,), unique="k", after=[first])
    again = await t.scheduler.enqueue(
        sync_user, args=(8,), unique="k", after=[first], conflict_resolution=REPLACE
    )
    assert again == unique
    with pytest.raises(JobConflictError):
        await t.scheduler.enqueue(sync_user, args=(9,), unique="k", after=[first])
    with pytest.raises(ValueError, match="wait for itself"):
        await t.scheduler.enqueue(
            sync_user, args=(8,), unique="k", after=[unique], conflict_resolution=REPLACE
        )
    await t.drain()
    assert t.ran(sync_user) == 0
    await t.run_until(HOUR)
    assert t.ran(sync_user) == 2


# -- a time span -------------------------------------------------------------------------------------------


async def test_span_counts_finished_jobs_and_starts_at_full_hours_in_utc(t: TestScheduler) -> None:
    rule = Unique(args=("user_id",), per=HOUR)
    first = await t.scheduler.enqueue(sync_user, args=(7,), unique=rule)
    assert first.endswith(":2030-01-01T00:00:00+00:00")
    assert first.startswith("unique:")
    await t.drain()
    t.advance(timedelta(minutes=59))
    with pytest.raises(JobConflictError, match="'completed'"):
        await t.scheduler.enqueue(sync_user, args=(7, "other reason"), unique=rule)
    assert await t.scheduler.enqueue(sync_user, args=(7,), unique=rule, conflict_resolution=IGNORE) == first
    assert await t.scheduler.enqueue(sync_user, args=(8,), unique=rule) != first
    next_hour = await t.scheduler.enqueue(sync_user, args=(7,), delay=60, unique=rule)
    assert next_hour.endswith(":2030-01-01T01:00:00+00:00")
    same_hour = START + timedelta(minutes=90)
    with pytest.raises(JobConflictError):
        await t.scheduler.schedule(sync_user, execution_time=same_hour, args=(7,), unique=rule)
    await t.run_until(HOUR)
    assert t.ran(sync_user) == 3


async def test_span_of_a_retried_job_is_that_of_its_first_due_time(t: TestScheduler) -> None:
    async def work() -> None:
        raise ConnectionError("always")

    rule = Unique(per=timedelta(seconds=2))
    first = await t.scheduler.enqueue(work, max_retries=2, unique=rule)
    await t.run_until(timedelta(hours=1))
    (row,) = t.jobs(work)
    assert (row.job_id, row.retry_count) == (first, 2)


# -- many at once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["k", Unique(), Unique(per=timedelta(days=366))])
async def test_concurrent_calls_of_two_nodes_insert_one_job(
    make: Make, pools: Pools, pool: asyncpg.Pool, rule: str | Unique
) -> None:
    nodes = [make(await pools(4)), make(await pools(4))]
    due = now() + HOUR

    async def enqueue(node: Scheduler, resolution: ConflictResolution) -> str | None:
        try:
            return await node.schedule(
                sync_user, execution_time=due, args=(7,), unique=rule, conflict_resolution=resolution
            )
        except JobConflictError:
            return None

    answers = await asyncio.gather(
        *(enqueue(node, each) for _ in range(10) for node in nodes for each in (RAISE, IGNORE, REPLACE))
    )
    (job_id,) = await ids(pool)
    assert set(answers) <= {job_id, None}
    assert answers.count(job_id) >= 40


async def test_concurrent_bulk_calls_with_the_same_keys_in_other_orders_insert_each_once(
    make: Make, pools: Pools, pool: asyncpg.Pool
) -> None:
    nodes = [make(await pools(4)), make(await pools(4))]
    due = now() + HOUR
    keys = [f"k{number}" for number in range(60)]

    async def insert(node: Scheduler, order: list[str], resolution: ConflictResolution) -> object:
        specs = [JobSpec(sync_user, due, (7,), unique=key) for key in order]
        try:
            return await node.schedule_bulk(specs, conflict_resolution=resolution, batch_size=7)
        except JobConflictError as error:
            return error

    calls = [
        insert(node, keys[::direction], resolution)
        for node in nodes
        for direction in (1, -1)
        for resolution in (IGNORE, REPLACE, RAISE)
    ]
    await asyncio.gather(*calls)
    found = await pool.fetch("SELECT unique_key FROM scheduled_jobs")
    assert sorted(row["unique_key"] for row in found) == sorted(keys)


async def test_insert_is_repeated_when_the_holder_ended_in_between(
    idle: Scheduler, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await idle.enqueue(sync_user, args=(7,), unique="k")
    keys = store_of(idle).unique_keys
    find, lock = keys.find_conflicts, keys.lock_holders

    async def end_first(*args: Any, **options: Any) -> Any:
        await pool.execute("UPDATE scheduled_jobs SET status = 'cancelled', finished_at = now()")
        return await find(*args, **options)

    monkeypatch.setattr(keys, "find_conflicts", end_first)
    second = await idle.enqueue(sync_user, args=(7,), unique="k", conflict_resolution=IGNORE)
    assert second != first
    specs = [JobSpec(sync_user, now(), (7,), unique="k"), JobSpec(sync_user, now(), (7,), unique="l")]
    third, _ = await idle.schedule_bulk(specs, conflict_resolution=RAISE)
    assert await ids(pool, "unique_key = 'k'") == sorted({first, second, third or ""})

    async def end_before(*args: Any) -> Any:
        await pool.execute("UPDATE scheduled_jobs SET status = 'cancelled', finished_at = now()")
        return await lock(*args)

    monkeypatch.setattr(keys, "lock_holders", end_before)
    fourth = await idle.enqueue(sync_user, args=(7,), unique="k", conflict_resolution=REPLACE)
    assert fourth not in {first, second, third}


@pytest.mark.parametrize("resolution", [RAISE, IGNORE, REPLACE])
async def test_call_gives_up_when_the_key_changes_hands_in_every_round(
    idle: Scheduler, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, resolution: ConflictResolution
) -> None:
    await idle.enqueue(sync_user, args=(7,), unique="k", job_id="holder")
    rounds = []

    async def nothing(*_args: Any, **_options: Any) -> Any:
        rounds.append(1)
        return {} if resolution is REPLACE else []

    monkeypatch.setattr(store_of(idle).unique_keys, "find_conflicts", nothing)
    monkeypatch.setattr(store_of(idle).unique_keys, "lock_holders", nothing)
    with pytest.raises(JobConflictError, match="'k'"):
        await idle.enqueue(sync_user, args=(7,), unique="k", conflict_resolution=resolution)
    assert len(rounds) == MAX_ROUNDS
    if resolution is RAISE:
        with pytest.raises(JobConflictError, match="'k'"):
            await idle.schedule_bulk(
                [JobSpec(sync_user, now(), (7,), unique="k")], conflict_resolution=resolution
            )
    assert await ids(pool) == ["holder"]


async def test_replace_is_repeated_when_another_job_takes_the_key_of_a_finished_one(
    idle: Scheduler, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await idle.enqueue(sync_user, args=(7,), job_id="a")
    keys = store_of(idle).unique_keys
    lock = keys.lock_holders
    taken: list[str] = []

    async def take_after(*args: Any) -> Any:
        holders = await lock(*args)
        if not taken:
            taken.append(await idle.enqueue(other, args=(7,), unique="k", job_id="b"))
        return holders

    monkeypatch.setattr(keys, "lock_holders", take_after)
    with pytest.raises(JobConflictError) as raised:
        await idle.enqueue(sync_user, args=(8,), job_id="a", unique="k", conflict_resolution=REPLACE)
    assert (raised.value.job_id, raised.value.unique_key) == ("b", "k")
    assert (await the_job(idle, "a")).args == (7,)


# -- bulk --------------------------------------------------------------------------------------------------


def spec(key: str | None, user: int, **options: Any) -> JobSpec:
    return JobSpec(sync_user, now() + HOUR, (user,), unique=key, **options)


async def stored(pool: asyncpg.Pool) -> dict[str | None, list[int]]:
    rows = await pool.fetch(
        "SELECT unique_key, (task_data -> 'args' ->> 0)::int AS user FROM scheduled_jobs ORDER BY 1, 2"
    )
    found: dict[str | None, list[int]] = {}
    for row in rows:
        found.setdefault(row["unique_key"], []).append(row["user"])
    return found


@pytest.mark.parametrize("batch_size", [1, 2, 1000])
async def test_bulk_ignore_keeps_the_existing_job_and_the_first_of_each_key(
    idle: Scheduler, pool: asyncpg.Pool, batch_size: int
) -> None:
    await idle.enqueue(sync_user, args=(1,), unique="b")
    specs = [spec("c", 2), spec("b", 3), spec("a", 4), spec("c", 5), spec(None, 6), spec("a", 7)]
    job_ids = await idle.schedule_bulk(specs, batch_size=batch_size)
    assert [job_id is None for job_id in job_ids] == [False, True, False, True, False, True]
    assert await stored(pool) == {"a": [4], "b": [1], "c": [2], None: [6]}


async def test_bulk_raise_inserts_nothing_when_a_key_is_taken_or_occurs_twice(
    idle: Scheduler, pool: asyncpg.Pool
) -> None:
    first = await idle.enqueue(sync_user, args=(1,), unique="b")
    with pytest.raises(JobConflictError) as raised:
        await idle.schedule_bulk(
            [spec("a", 2), spec("b", 3), *(spec(None, user) for user in range(200))],
            conflict_resolution=RAISE,
        )
    assert (raised.value.job_id, raised.value.unique_key) == (first, "b")
    with pytest.raises(JobConflictError, match="'a' occurs more than once in this call") as raised:
        await idle.schedule_bulk([spec("a", 2), spec("a", 3)], conflict_resolution=RAISE)
    assert raised.value.status is None
    await idle.enqueue(sync_user, args=(4,), job_id="own")
    with pytest.raises(JobConflictError, match="'own' already exists"):
        await idle.schedule_bulk([spec("z", 5, job_id="own")], conflict_resolution=RAISE)
    assert await stored(pool) == {"b": [1], None: [4]}
    many = [spec(f"k{user}", user) for user in range(5, 10)]
    assert len({*await idle.schedule_bulk(many, conflict_resolution=RAISE, batch_size=2)}) == 5


async def test_bulk_replace_gives_each_key_its_last_definition(idle: Scheduler, pool: asyncpg.Pool) -> None:
    seen = Recorder(idle)
    first = await idle.enqueue(sync_user, args=(1,), delay=HOUR, unique="b")
    await idle.enqueue(sync_user, args=(1,), delay=HOUR, job_id="parent")
    specs = [
        spec("c", 2),
        spec("b", 3),
        spec("a", 4, after=["parent"]),
        spec("c", 5),
        spec(None, 6),
        spec(None, 7, after=["parent"]),
    ]
    job_ids = await idle.schedule_bulk(specs, conflict_resolution=REPLACE, batch_size=1)
    assert job_ids[1] == first
    assert job_ids[0] == job_ids[3]
    assert len(set(job_ids)) == 5
    assert await stored(pool) == {"a": [4], "b": [3], "c": [5], None: [1, 6, 7]}
    assert {event.job_id for event in seen.of(JobScheduled)} == {first, "parent", *job_ids}
    again = [spec("a", 8), spec(None, 9, after=[job_ids[2]])]
    replaced, _ = await idle.schedule_bulk(again, conflict_resolution=REPLACE)
    assert replaced == job_ids[2]


CHAINS = {
    "both unique": ["A", "B<A"],
    "a third one waits": ["A", "b<A", "C<x"],
    "the third one waits for the chain": ["A", "b<A", "C<b"],
    "by turns": ["A", "b<A", "C<b", "d<C", "E<d"],
    "backwards by name": ["E", "d<E", "C<d", "b<C", "A<b"],
    "one waits for both kinds": ["A", "b<x", "C<A,b,x", "d<C"],
}
WAITING: dict[str, list[str]] = {
    "none": [],
    "the first": ["A<y"],
    "the second": ["B<y"],
    "the third": ["C<y"],
    "two": ["A<y", "B<y"],
    "all": ["A<y", "B<y", "C<y"],
    "the first one for the second": ["B", "A<b"],
    "the second one for the third": ["C<y", "B<c"],
}


def chain(jobs: list[str], user_id: int) -> list[JobSpec]:
    """Return jobs that are unique if their names are capitals, after the jobs behind "<"."""
    specs = []
    for job in jobs:
        name, _, parents = job.partition("<")
        after = [parent.lower() for parent in parents.split(",") if parent]
        unique = f"key {name}" if name.isupper() else None
        specs.append(
            JobSpec(sync_user, START, args=(user_id,), job_id=name.lower(), unique=unique, after=after)
        )
    return specs


@pytest.mark.parametrize("waiting", WAITING.values(), ids=WAITING)
@pytest.mark.parametrize("jobs", CHAINS.values(), ids=CHAINS)
async def test_bulk_replace_writes_a_chain_as_single_calls_do_whatever_waits_already(
    idle: Scheduler, pool: asyncpg.Pool, jobs: list[str], waiting: list[str]
) -> None:
    async def replace_all(*, in_bulk: bool) -> object:
        await pool.execute("DELETE FROM scheduled_jobs")
        await pool.execute("DELETE FROM scheduler_after")
        await idle.enqueue(sync_user, args=(0,), delay=HOUR, job_id="x")
        await idle.enqueue(sync_user, args=(0,), delay=HOUR, job_id="y")
        await idle.schedule_bulk(chain(waiting, 1))
        specs = chain(jobs, 2)
        if in_bulk:
            assert await idle.schedule_bulk(specs, conflict_resolution=REPLACE) == [
                spec.job_id for spec in specs
            ]
        else:
            for spec in specs:
                await idle.schedule_bulk([spec], conflict_resolution=REPLACE)
        return [
            await pool.fetch(query)
            for query in (
                "SELECT job_id, unique_key, blocked_on, task_data FROM scheduled_jobs ORDER BY job_id",
                "SELECT parent_id, child_id, outcome, definition FROM scheduler_after ORDER BY 1, 2",
            )
        ]

    assert await replace_all(in_bulk=True) == await replace_all(in_bulk=False)


# -- transactions, control, results --------------------------------------------------------------------------


@pytest.mark.parametrize("resolution", [RAISE, IGNORE, REPLACE])
async def test_unique_job_of_a_rolled_back_transaction_leaves_the_key_free(
    idle: Scheduler, pool: asyncpg.Pool, resolution: ConflictResolution
) -> None:
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await idle.enqueue(
            sync_user, args=(7,), unique="k", conflict_resolution=resolution, connection=connection
        )
        with pytest.raises(JobConflictError):
            await idle.schedule_bulk([spec("k", 7)], conflict_resolution=RAISE, connection=connection)
        assert await connection.fetchval("SELECT count(*) FROM scheduled_jobs") == 1, "it goes on"
        await transaction.rollback()
    assert await ids(pool) == []
    job_id = await idle.enqueue(sync_user, args=(7,), unique="k")
    async with pool.acquire() as connection, connection.transaction():
        given = {"args": (7,), "unique": "k", "connection": connection}
        assert await idle.enqueue(sync_user, conflict_resolution=IGNORE, **given) == job_id  # type: ignore[arg-type]
        assert await idle.enqueue(sync_user, conflict_resolution=REPLACE, **given) == job_id  # type: ignore[arg-type]
    assert await ids(pool) == [job_id]


@pytest.mark.parametrize("commits", [True, False])
async def test_call_waits_for_the_transaction_that_holds_the_key(
    make: Make, pool: asyncpg.Pool, pools: Pools, commits: bool
) -> None:
    scheduler = make(await pools(3))
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        first = await scheduler.enqueue(sync_user, args=(7,), unique="k", connection=connection)
        waiting = asyncio.create_task(
            scheduler.enqueue(sync_user, args=(7,), unique="k", conflict_resolution=IGNORE)
        )
        plain = await scheduler.enqueue(sync_user, args=(7,), keep_result=HOUR)
        assert not waiting.done()
        await (transaction.commit() if commits else transaction.rollback())
    assert (await waiting == first) is commits
    assert len(await ids(pool)) == 2
    assert plain


async def test_retry_and_status_by_hand_raise_while_another_job_has_the_key(
    t: TestScheduler, pool: asyncpg.Pool
) -> None:
    first = await t.scheduler.enqueue(sync_user, args=(7,), unique="k")
    await t.drain()
    second = await t.scheduler.enqueue(sync_user, args=(7,), delay=HOUR, unique="k")
    for change in (
        t.scheduler.retry_job(first),
        t.scheduler.update_job_status(first, "pending"),
        t.scheduler.update_job_status(first, "running"),
    ):
        with pytest.raises(JobConflictError) as raised:
            await change
        assert (raised.value.job_id, raised.value.status, raised.value.unique_key) == (second, "pending", "k")
    assert (await the_job(t.scheduler, first)).status is JobStatus.COMPLETED
    await t.scheduler.cancel_job(second)
    assert await t.scheduler.retry_job(first)
    with pytest.raises(JobConflictError):
        await t.scheduler.enqueue(sync_user, args=(7,), unique="k")
    with pytest.raises(asyncpg.UniqueViolationError):
        await pool.execute("UPDATE scheduled_jobs SET status = 'pending', finished_at = NULL")


async def test_retry_gives_up_when_the_holder_cannot_be_found(
    t: TestScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await t.scheduler.enqueue(sync_user, args=(7,), unique="k")
    await t.drain()
    await t.scheduler.enqueue(sync_user, args=(7,), delay=HOUR, unique="k")
    statements = store_of(t.scheduler).statements
    fetch = statements.fetch

    async def find_nothing(name: str, *args: Any, **options: Any) -> Any:
        return [] if name == "find_key_holder" else await fetch(name, *args, **options)

    monkeypatch.setattr(statements, "fetch", find_nothing)
    with pytest.raises(JobConflictError, match="'ended'"):
        await t.scheduler.retry_job(first)


async def test_run_job_returns_the_value_of_the_existing_job_under_ignore(make: Make, gate: Gate) -> None:
    scheduler = make()

    async def work() -> int:
        await gate.job()
        return len(gate.calls)

    async def fail() -> None:
        raise LookupError("always")

    await scheduler.start()
    options: dict[str, Any] = {"unique": "k", "conflict_resolution": IGNORE}
    first = asyncio.create_task(scheduler.run_job(work, **options))
    await gate.wait_begun()
    second = asyncio.create_task(scheduler.run_job(work, **options))
    gate.open.set()
    assert await first == 1
    assert await second in {1, 2}
    with pytest.raises(JobFailedError) as raised:
        await scheduler.run_job(fail, unique=Unique(per=HOUR))
    assert isinstance(raised.value.__cause__, LookupError)


# -- rows written by hand ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", " ", "unique:x:y", "\n", "ä" * 900, "'; DROP TABLE scheduled_jobs; --"])
async def test_key_written_by_hand_is_read_and_respected(
    t: TestScheduler, pool: asyncpg.Pool, key: str
) -> None:
    job_id = await t.scheduler.enqueue(sync_user, args=(7,), delay=60)
    await pool.execute("UPDATE scheduled_jobs SET unique_key = $1", key)
    assert (await the_job(t.scheduler, job_id)).unique_key == key
    assert [each.unique_key for each in await t.scheduler.list_jobs()] == [key]
    if 0 < len(key.encode()) <= 200:
        with pytest.raises(JobConflictError, match="taken by job"):
            await t.scheduler.enqueue(sync_user, args=(7,), unique=key)
    await t.run_until(HOUR)
    assert t.ran(sync_user) == 1
    assert await t.scheduler.retry_job(job_id)


async def test_default_of_a_typed_argument_counts_as_it_is_stored(make: Make) -> None:
    day, tags = date(2030, 1, 1), frozenset({"a", "b"})

    async def report(
        customer: int,
        day: date = day,
        rate: Decimal = Decimal("0.10"),
        tags: frozenset[str] = tags,
        order: object = object(),
    ) -> None: ...

    scheduler = make()
    await scheduler.initialize_db()
    scheduler.register(report, name="report", typed=True, unique=Unique(), misfire_grace_time=None)
    calls: list[dict[str, Any]] = [
        {"customer": 7},
        {"customer": 7, "day": day},
        {"customer": 7, "rate": Decimal("0.10"), "tags": {"b", "a"}},
    ]
    ids = set()
    for arguments in calls:
        ids.add(await scheduler.enqueue("report", kwargs=arguments, conflict_resolution=IGNORE))
    assert len(ids) == 1
    next_day = {"customer": 7, "day": date(2030, 1, 2)}
    assert await scheduler.enqueue("report", kwargs=next_day, conflict_resolution=IGNORE) not in ids
