"""Debounced jobs: each call postpones the job that waits, up to a limit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    ConflictResolution,
    Job,
    JobSpec,
    JobStatus,
    Scheduler,
    Unique,
    call,
    current_job,
    job,
    periodic,
)
from pg_scheduler.errors import SchedulerError
from pg_scheduler.events import JobScheduled
from pg_scheduler.inspect import Inspector, ReasonCode
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import Every
from tests.api.conftest import Make, Pools
from tests.support.inside import store_of
from tests.support.worker import PATIENCE, Gate, Recorder

RAISE, IGNORE, REPLACE = ConflictResolution
START = datetime(2030, 1, 1, tzinfo=UTC)
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
DEBOUNCED = "it is debounced: each call with its unique key postpones it"
RULE = Unique(args=("document",), debounce=30, max_wait=100)


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


async def index(document: int, version: int) -> None: ...


async def other(document: int) -> None: ...


async def fails(document: int, version: int) -> None:
    raise ValueError("broken")


@pytest.fixture
async def t(pool: asyncpg.Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START) as test_scheduler:
        yield test_scheduler


@pytest.fixture
async def idle(make: Make) -> Scheduler:
    """Return a Scheduler that runs nothing."""
    scheduler = make()
    await scheduler.initialize_db()
    return scheduler


async def the_job(scheduler: Scheduler, job_id: str) -> Job:
    row = await scheduler.get_job(job_id)
    assert row is not None
    return row


# -- due times ---------------------------------------------------------------------------------------------


async def test_each_call_postpones_the_job_and_the_last_arguments_count(t: TestScheduler) -> None:
    seen = Recorder(t.scheduler)
    job_ids = set()
    for version in range(3):
        job_ids.add(await t.scheduler.enqueue(index, args=(7, version), unique=RULE))
        t.advance(20)
        await t.drain()
    assert len(job_ids) == 1
    assert t.ran(index) == 0
    await t.run_until(timedelta(hours=1))
    (job,) = t.jobs(index)
    assert (job.status, job.args, job.execution_time) == (JobStatus.COMPLETED, (7, 2), START + seconds(70))
    due_times = [event.execution_time - START for event in seen.of(JobScheduled)]
    assert due_times == [seconds(30), seconds(50), seconds(70)]


async def test_calls_that_never_pause_postpone_a_job_to_its_longest_wait(t: TestScheduler) -> None:
    seen = Recorder(t.scheduler)
    due_times = []
    # A call every 20 seconds, over two series: the second one begins after the first job has run.
    for version in range(10):
        await t.scheduler.enqueue(index, args=(7, version), unique=RULE)
        due_times.append(seen.of(JobScheduled)[-1].execution_time - START)
        await t.run_until(seconds(20))
    expected = [30, 50, 70, 90, 100, 130, 150, 170, 190, 200]
    assert due_times == [seconds(due) for due in expected]
    await t.run_until(seconds(60))
    ran = [(job.args, job.execution_time - START) for job in t.jobs(index)]
    assert ran == [((7, 4), seconds(100)), ((7, 9), seconds(200))]


async def test_job_without_a_longest_wait_is_postponed_by_each_call(t: TestScheduler) -> None:
    for version in range(50):
        await t.scheduler.enqueue(index, args=(7, version), unique=Unique(("document",), debounce=30))
        await t.run_until(seconds(29))
    assert t.ran(index) == 0
    (job,) = t.jobs(index)
    assert job.execution_time == START + seconds(49 * 29 + 30)


async def test_keys_are_debounced_apart(t: TestScheduler) -> None:
    await t.scheduler.enqueue(index, args=(1, 0), unique=RULE)
    t.advance(20)
    await t.scheduler.enqueue(index, args=(2, 0), unique=RULE)
    due_times = sorted(job.execution_time - START for job in t.jobs(index))
    assert due_times == [seconds(30), seconds(50)]


async def test_job_that_is_overdue_stays_due_since_its_longest_wait(t: TestScheduler) -> None:
    """It keeps its place among the due jobs, and its misfire grace time begins with the call."""
    job_id = await t.scheduler.enqueue(index, args=(7, 0), unique=RULE, misfire_grace_time=3600)
    t.advance(seconds(600))
    await t.scheduler.enqueue(index, args=(7, 1), unique=RULE, misfire_grace_time=10)
    job = await the_job(t.scheduler, job_id)
    assert job.execution_time == START + seconds(100)
    assert job.expires_at == START + seconds(610)
    await t.drain()
    assert (await the_job(t.scheduler, job_id)).status is JobStatus.COMPLETED


async def test_longest_wait_of_the_last_call_counts(t: TestScheduler) -> None:
    job_id = await t.scheduler.enqueue(index, args=(7, 0), unique=RULE)
    t.advance(20)
    sooner = Unique(args=("document",), debounce=30, max_wait=40)
    assert await t.scheduler.enqueue(index, args=(7, 1), unique=sooner) == job_id
    assert (await the_job(t.scheduler, job_id)).execution_time == START + seconds(40)


# -- when a series begins anew -----------------------------------------------------------------------------


async def test_series_begins_anew_with_the_first_call_after_the_start(make: Make, gate: Gate) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(gate.job, name="gate", unique=Unique(args=(), debounce=0.05, max_wait=0.05))
    await scheduler.start()
    first = await scheduler.enqueue("gate", args=(0,))
    await gate.wait_begun()
    # The attempt runs. The definitions of these calls wait for its end, as one series of their own.
    slow = Unique(args=(), debounce=60, max_wait=100)
    assert await scheduler.enqueue("gate", args=(1,), unique=slow) == first
    begun_at = seen.of(JobScheduled)[-1].execution_time - seconds(60)
    limited = Unique(args=(), debounce=60, max_wait=60)
    assert await scheduler.enqueue("gate", args=(2,), unique=limited) == first
    assert abs(seen.of(JobScheduled)[-1].execution_time - (begun_at + seconds(60))) < seconds(0.001)
    job = await the_job(scheduler, first)
    assert (job.status, job.replacement) == (JobStatus.RUNNING, True)
    gate.open.set()
    async with asyncio.timeout(PATIENCE):
        while (job := await the_job(scheduler, first)).status is JobStatus.RUNNING:
            pass
    assert job.args == (2,)
    assert abs(job.execution_time - (begun_at + seconds(60))) < seconds(0.001)
    assert gate.calls == [(0,)]


async def test_series_begins_anew_while_a_failed_job_waits_for_its_retry(t: TestScheduler) -> None:
    job_id = await t.scheduler.enqueue(fails, args=(7, 0), unique=RULE, max_retries=5)
    await t.run_until(seconds(31))
    assert (await the_job(t.scheduler, job_id)).retry_count == 1
    called_at = t.now
    assert await t.scheduler.enqueue(fails, args=(7, 1), unique=RULE, max_retries=5) == job_id
    job = await the_job(t.scheduler, job_id)
    assert (job.execution_time, job.retry_count) == (called_at + seconds(30), 0)
    t.advance(90)
    await t.scheduler.enqueue(fails, args=(7, 2), unique=RULE, max_retries=5)
    assert (await the_job(t.scheduler, job_id)).execution_time == called_at + seconds(100)


async def test_job_of_another_rule_begins_no_series(t: TestScheduler) -> None:
    """A node whose code has no debounce yet replaces so. The next debounced call begins a series."""
    plain = Unique(args=("document",))
    job_id = await t.scheduler.enqueue(index, args=(7, 0), unique=RULE)
    t.advance(20)
    await t.scheduler.enqueue(index, args=(7, 1), unique=plain, delay=80, conflict_resolution=REPLACE)
    t.advance(20)
    await t.scheduler.enqueue(index, args=(7, 2), unique=RULE)
    t.advance(20)
    assert await t.scheduler.enqueue(index, args=(7, 3), unique=RULE) == job_id
    assert (await the_job(t.scheduler, job_id)).execution_time == START + seconds(90)
    t.advance(20)
    limited = Unique(args=("document",), debounce=30, max_wait=50)
    await t.scheduler.enqueue(index, args=(7, 4), unique=limited)
    assert (await the_job(t.scheduler, job_id)).execution_time == START + seconds(90)


@pytest.mark.parametrize("since", ["null", '"yesterday"', "1e300", "-1", "{}", "4e9"])
async def test_begin_that_was_written_by_hand_prevents_no_call(
    t: TestScheduler, pool: asyncpg.Pool, since: str
) -> None:
    job_id = await t.scheduler.enqueue(index, args=(7, 0), unique=RULE)
    await pool.execute(
        "UPDATE scheduled_jobs SET options = jsonb_set(options, '{debounce,since}', $1::text::jsonb)", since
    )
    assert await t.scheduler.enqueue(index, args=(7, 1), unique=RULE) == job_id
    due_time = (await the_job(t.scheduler, job_id)).execution_time
    # A begin in the future counts as now, and one long ago makes the job due at once.
    expected = datetime(1970, 1, 1, tzinfo=UTC) + seconds(100) if since == "-1" else START + seconds(30)
    assert due_time == expected


# -- ways in -----------------------------------------------------------------------------------------------


async def test_bulk_call_debounces_each_key(t: TestScheduler) -> None:
    t.scheduler.register(index, name="index", unique=RULE)
    seen = Recorder(t.scheduler)
    first, second = await t.scheduler.schedule_bulk(
        [JobSpec(index, args=(1, 0)), JobSpec(index, args=(2, 0))], conflict_resolution=REPLACE
    )
    t.advance(80)
    specs = [
        JobSpec(index, args=(1, 1)),
        JobSpec(other, args=(1,)),
        JobSpec(index, args=(1, 2)),
        JobSpec(index, args=(3, 0)),
    ]
    ids = await t.scheduler.schedule_bulk(specs, conflict_resolution=REPLACE)
    assert (ids[0], ids[2]) == (first, first)
    jobs = {job.args: job.execution_time - START for job in t.jobs(index)}
    assert jobs == {(1, 2): seconds(100), (2, 0): seconds(30), (3, 0): seconds(110)}
    (plain,) = t.jobs(other)
    assert plain.execution_time == START + seconds(80)
    assert second != first
    assert len(seen.of(JobScheduled)) == 5


async def test_rolled_back_call_postpones_nothing(idle: Scheduler, pool: asyncpg.Pool) -> None:
    job_id = await idle.enqueue(index, args=(7, 0), unique=RULE)
    before = await the_job(idle, job_id)
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        assert await idle.enqueue(index, args=(7, 1), unique=RULE, connection=connection) == job_id
        await transaction.rollback()
        assert await the_job(idle, job_id) == before
        async with connection.transaction():
            await idle.enqueue(index, args=(7, 2), unique=RULE, connection=connection)
    after = await the_job(idle, job_id)
    assert after.args == (7, 2)
    assert after.execution_time > before.execution_time


async def test_job_waits_for_others_and_for_its_delay(t: TestScheduler) -> None:
    before = await t.scheduler.enqueue(other, args=(7,), delay=200)
    job_id = await t.scheduler.enqueue(index, args=(7, 0), unique=RULE, after=[before])
    t.advance(90)
    assert await t.scheduler.enqueue(index, args=(7, 1), unique=RULE, after=[before]) == job_id
    job = await the_job(t.scheduler, job_id)
    assert (job.execution_time, job.blocked_on) == (START + seconds(100), "after")
    await t.run_until(seconds(200))
    assert (await the_job(t.scheduler, job_id)).status is JobStatus.COMPLETED


async def test_blocking_scheduler_debounces(pool: asyncpg.Pool, dsn: str, idle: Scheduler) -> None:
    def call_twice() -> set[str]:
        with SyncScheduler(dsn) as scheduler:
            return {scheduler.enqueue(index, args=(7, version), unique=RULE) for version in range(2)}

    (job_id,) = await asyncio.to_thread(call_twice)
    assert (await the_job(idle, job_id)).args == (7, 1)


async def test_concurrent_calls_leave_one_job_within_its_longest_wait(pools: Pools, make: Make) -> None:
    """Fifty calls of two Schedulers meet on one key."""
    schedulers = [make(await pools(5)) for _ in range(2)]
    await schedulers[0].initialize_db()
    seen = [Recorder(scheduler) for scheduler in schedulers]
    rule = Unique(args=("document",), debounce=60, max_wait=60)

    async def call(version: int) -> str:
        return await schedulers[version % 2].enqueue(index, args=(7, version), unique=rule)

    first = await call(0)
    begun_at = seen[0].of(JobScheduled)[0].execution_time - seconds(60)
    job_ids = await asyncio.gather(*map(call, range(1, 51)))
    assert {first, *job_ids} == {first}
    assert (await schedulers[0].count_jobs()).total == 1
    job = await the_job(schedulers[0], first)
    assert abs(job.execution_time - (begun_at + seconds(60))) < seconds(0.001)
    due_times = {event.execution_time for recorder in seen for event in recorder.of(JobScheduled)}
    assert max(due_times) - min(due_times) < seconds(0.001)


async def test_concurrent_first_calls_begin_one_series(pools: Pools, make: Make) -> None:
    scheduler = make(await pools(8))
    await scheduler.initialize_db()
    job_ids = await asyncio.gather(
        *(scheduler.enqueue(index, args=(7, version), unique=RULE) for version in range(50))
    )
    assert len(set(job_ids)) == 1
    assert (await scheduler.count_jobs()).total == 1


async def test_call_that_waits_for_a_claim_begins_a_series(idle: Scheduler, pool: asyncpg.Pool) -> None:
    """Its job has started when it gets the row, so its definition is not limited by the series before."""
    seen = Recorder(idle)
    rule = Unique(args=("document",), debounce=60, max_wait=60)
    job_id = await idle.enqueue(index, args=(7, 0), unique=rule)
    await pool.execute(
        "UPDATE scheduled_jobs SET options = jsonb_set(options, '{debounce,since}', '1'),"
        " execution_time = now() - interval '1 hour'"
    )
    async with pool.acquire() as connection:
        claim = connection.transaction()
        await claim.start()
        await connection.execute(
            "UPDATE scheduled_jobs SET status = 'running', attempt = 1, worker_id = 'w', started_at = now(),"
            " lease_until = now() + interval '1 hour' WHERE job_id = $1",
            job_id,
        )
        called_at = await connection.fetchval("SELECT clock_timestamp()")
        enqueued = asyncio.create_task(idle.enqueue(index, args=(7, 1), unique=rule))
        async with asyncio.timeout(PATIENCE):
            while not await pool.fetchval(WAITING):
                pass
        await claim.commit()
        assert await enqueued == job_id
    definition = json.loads(await pool.fetchval("SELECT on_end ->> 'replacement' FROM scheduled_jobs"))
    due_time = datetime.fromisoformat(definition["execution_time"])
    assert due_time >= called_at + seconds(60)
    assert due_time == seen.of(JobScheduled)[-1].execution_time
    assert definition["options"]["debounce"]["since"] == pytest.approx((due_time - seconds(60)).timestamp())


async def test_no_worker_claims_a_job_while_a_call_postpones_it(
    idle: Scheduler, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is locked before the statement that postpones it reads when the series began."""
    inserts = store_of(idle).inserts
    postpone = inserts.replace_debounced
    claimable: list[int] = []

    async def postpone_after_a_claim(*args: Any, **options: Any) -> Any:
        rows = await pool.fetch("SELECT job_id FROM scheduled_jobs FOR NO KEY UPDATE SKIP LOCKED")
        claimable.append(len(rows))
        return await postpone(*args, **options)

    monkeypatch.setattr(inserts, "replace_debounced", postpone_after_a_claim)
    job_id = await idle.enqueue(index, args=(7, 0), unique=RULE)
    assert await idle.enqueue(index, args=(7, 1), unique=RULE) == job_id
    assert claimable[-1:] == [0]


# -- what is refused ---------------------------------------------------------------------------------------


async def test_calls_that_contradict_the_rule_are_refused(idle: Scheduler) -> None:
    with pytest.raises(ConfigurationError, match=r"debounce=, so its due time follows .* enqueue"):
        await idle.enqueue(index, args=(7, 0), unique=RULE, delay=5)
    with pytest.raises(ConfigurationError, match="so its due time follows"):
        await idle.schedule(index, execution_time=datetime.now(UTC), args=(7, 0), unique=RULE)
    with pytest.raises(ConfigurationError, match="omit job_id="):
        await idle.enqueue(index, args=(7, 0), unique=RULE, job_id="mine")
    with pytest.raises(ConfigurationError, match="cannot be IGNORE; omit conflict_resolution="):
        await idle.enqueue(index, args=(7, 0), unique=RULE, conflict_resolution=IGNORE)
    for resolution in (IGNORE, RAISE):
        with pytest.raises(ConfigurationError, match=f"cannot be {resolution.name}; pass conflict"):
            await idle.schedule_bulk(
                [JobSpec(other, args=(1,)), JobSpec(index, args=(7, 0), unique=RULE)],
                conflict_resolution=resolution,
            )
    assert (await idle.count_jobs()).total == 0
    assert issubclass(ConfigurationError, SchedulerError)
    assert await idle.enqueue(index, args=(7, 0), unique=RULE, conflict_resolution=REPLACE)
    assert await idle.enqueue(index, args=(7, 0), unique=RULE, conflict_resolution=RAISE)


@pytest.mark.usefixtures("own_catalogue")
async def test_task_that_is_debounced_has_no_schedule(t: TestScheduler) -> None:
    t.scheduler.register(index, name="index", unique=RULE)
    t.scheduler.register(other, name="other")
    schedules = t.scheduler.schedules
    with pytest.raises(ConfigurationError, match="task 'index' cannot have a schedule"):
        await schedules.add("index", Every(seconds(60)), schedule_id="s", args=(7, 0))
    await schedules.add("other", Every(seconds(60)), schedule_id="s", args=(7,))
    with pytest.raises(ConfigurationError, match="a fire time is fixed"):
        await schedules.update("s", func="index", args=(7, 0))

    @job(name="tick", unique=Unique(debounce=5))
    async def tick() -> None: ...

    with pytest.raises(ConfigurationError, match="task 'tick' cannot have a schedule"):
        periodic(every=seconds(60))(tick)


async def test_child_needs_a_rule_without_debounce(t: TestScheduler) -> None:
    async def parent() -> None:
        await current_job().steps.child("index", call(index, 7, 0), unique=RULE)

    job_id = await t.scheduler.enqueue(parent)
    await t.drain()
    job = await the_job(t.scheduler, job_id)
    assert job.status is JobStatus.FAILED
    assert "pass unique=None to child()" in (job.error_message or "")


# -- what people see ---------------------------------------------------------------------------------------


async def test_explanation_states_how_long_calls_may_postpone_the_job(t: TestScheduler) -> None:
    inspector = Inspector(t.scheduler)
    job_id = await t.scheduler.enqueue(index, args=(7, 0), unique=RULE)
    t.advance(10)
    explanation = await inspector.explain_job(job_id)
    assert [(reason.code, reason.text) for reason in explanation.reasons[:2]] == [
        (ReasonCode.NOT_DUE, "due at 2030-01-01 00:00:30 UTC, in 20 s"),
        (
            ReasonCode.DEBOUNCED,
            f"{DEBOUNCED}, at the latest until 2030-01-01 00:01:40 UTC",
        ),
    ]
    endless = await t.scheduler.enqueue(index, args=(8, 0), unique=Unique(debounce=30))
    explanation = await inspector.explain_job(endless)
    assert explanation.reasons[1].text == DEBOUNCED
