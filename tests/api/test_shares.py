"""Shares of running Schedulers: tenants take turns, and nothing else changes."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    ConflictResolution,
    JobPriority,
    JobSpec,
    Limit,
    Scheduler,
    Share,
)
from pg_scheduler.events import JobCompleted, JobStarted
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.triggers import Every
from tests.api.conftest import Make, Pools
from tests.api.test_limits import until
from tests.support.codecs import KeyedCodec
from tests.support.executors import InThread
from tests.support.inside import worker_of
from tests.support.worker import Gate, Recorder, now

TENANT = Share(key=lambda tenant, *_, **__: tenant)


async def noop(*_: Any) -> None: ...


async def queue_of(pool: asyncpg.Pool, job_id: str) -> str | None:
    found: str | None = await pool.fetchval("SELECT blocked_on FROM scheduled_jobs WHERE job_id = $1", job_id)
    return found


@pytest.mark.slow
async def test_quiet_tenant_starts_among_the_first_jobs_behind_a_backlog(make: Make, gate: Gate) -> None:
    scheduler = make(max_concurrent_jobs=2)
    scheduler.register(gate.job, name="work", share=TENANT)
    record = Recorder(scheduler)
    start = now() - timedelta(minutes=1)
    await scheduler.schedule_bulk([JobSpec(gate.job, start, args=("loud",), misfire_grace_time=None)] * 300)
    await scheduler.start()
    await record.until(JobStarted, 2)
    await scheduler.enqueue("work", args=("quiet",))
    gate.open.set()
    await record.until(JobCompleted, 301)
    place = next(n for n, args in enumerate(gate.calls) if args == ("quiet",))
    assert place <= 5, "two ran, two had been moved, and two are moved at once"


async def test_workers_share_the_turns_and_run_each_job_once(
    make: Make, pools: Pools, pool: asyncpg.Pool
) -> None:
    schedulers = [make(await pools(5), max_concurrent_jobs=3) for _ in range(3)]
    records = []
    for scheduler in schedulers:
        scheduler.register(noop, name="work", share=TENANT)
        records.append(Recorder(scheduler))
        await scheduler.start()
    ids = await schedulers[0].schedule_bulk([JobSpec(noop, now(), args=(n % 7,)) for n in range(200)])
    await until(pool, "SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL", 0)
    assert await pool.fetchval("SELECT sum(attempt) FROM scheduled_jobs") == len(ids) == 200
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'completed'") == 200


async def test_idle_worker_starts_a_job_of_a_tenant_without_waiting_for_a_scan(scheduler: Scheduler) -> None:
    scheduler.register(noop, name="work", share=TENANT)
    record = Recorder(scheduler)
    worker_of(scheduler).feeder.scan_interval_s = 600
    for n in range(3):
        job_id = await scheduler.enqueue("work", args=(n,))
        await record.until(JobCompleted, job_id=job_id)


async def test_calls_compute_the_key_and_plain_jobs_have_none(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make(codec=KeyedCodec("k1"))
    scheduler.register(noop, name="work", share=TENANT)
    due = now() + timedelta(hours=1)
    await scheduler.enqueue("work", args=("a",), job_id="enqueued")
    await scheduler.schedule(noop, execution_time=due, args=("b",), job_id="scheduled")
    await scheduler.schedule_bulk([JobSpec(noop, due, args=("c",), job_id="bulk")])
    await scheduler.schedule_bulk([JobSpec(noop, due, args=("d",)) for _ in range(150)])
    await scheduler.enqueue("unknown here", job_id="unknown")
    await pool.execute("SELECT scheduler_add_job('work', '[\"e\"]', job_id => 'sql')")
    assert await queue_of(pool, "enqueued") == "share:work:a"
    assert await queue_of(pool, "scheduled") == "share:work:b"
    assert await queue_of(pool, "bulk") == "share:work:c"
    count = "SELECT count(*) FROM scheduled_jobs WHERE blocked_on = 'share:work:d'"
    assert await pool.fetchval(count) == 150
    assert await queue_of(pool, "unknown") is await queue_of(pool, "sql") is None


async def test_call_fails_before_it_writes_when_the_key_function_rejects_the_arguments(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    scheduler.register(noop, name="work", share=TENANT)
    for args in ((), (None,), ("x" * 201,)):
        with pytest.raises(ConfigurationError, match="the key function of the share 'work'"):
            await scheduler.enqueue("work", args=args)
        with pytest.raises(ConfigurationError, match="the key function of the share 'work'"):
            await scheduler.schedule_bulk(
                [JobSpec(noop, now(), args=("a",)), JobSpec(noop, now(), args=args)]
            )
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


async def test_jobs_of_schedules_wait_for_the_turn_of_their_tenant(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make(role="scheduler")
    scheduler.register(noop, name="work", share=TENANT)
    await scheduler.schedules.add("work", Every(hours=24), schedule_id="daily", args=("a",))
    job_id = await scheduler.schedules.trigger("daily")
    assert job_id is not None
    assert await queue_of(pool, job_id) == "share:work:a"


@pytest.mark.slow
async def test_job_after_another_one_waits_for_its_turn_when_that_has_ended(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    scheduler.register(noop, name="work", share=TENANT)
    parent = await scheduler.enqueue("elsewhere")
    child = await scheduler.enqueue("work", args=("a",), after=[parent], keep_result=timedelta(hours=1))
    assert await queue_of(pool, child) == "after"
    options = json.loads(await pool.fetchval("SELECT options FROM scheduled_jobs WHERE job_id = $1", child))
    assert options == {"keep_result": 3600.0, "share": "share:work:a"}
    await pool.execute("UPDATE scheduled_jobs SET job_name = 'done' WHERE job_id = $1", parent)
    scheduler.register(noop, name="done")
    record = Recorder(scheduler)
    await scheduler.start()
    await record.until(JobCompleted, job_id=child)


async def test_replaced_job_waits_for_the_turn_of_its_new_tenant(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    scheduler.register(noop, name="work", share=TENANT)
    for tenant in ("a", "b"):
        await scheduler.schedule(
            noop,
            execution_time=now(),
            args=(tenant,),
            job_id="job",
            conflict_resolution=ConflictResolution.REPLACE,
        )
    assert await queue_of(pool, "job") == "share:work:b"


def nothing(tenant: str) -> None: ...


@pytest.mark.parametrize("executor", ["thread", "process", "own"])
async def test_jobs_outside_of_the_event_loop_wait_for_their_turn(
    make: Make, pool: asyncpg.Pool, executor: str
) -> None:
    scheduler = make(executors={"own": InThread()})
    scheduler.register(nothing, name="work", share=TENANT, executor=executor)
    job_id = await scheduler.enqueue("work", args=("a",))
    assert await queue_of(pool, job_id) == "share:work:a"
    record = Recorder(scheduler)
    await scheduler.start()
    await record.until(JobCompleted, job_id=job_id)


async def test_sync_scheduler_computes_the_key(make: Make, dsn: str, pool: asyncpg.Pool) -> None:
    await make().initialize_db()

    def schedule() -> list[str]:
        with SyncScheduler(dsn) as scheduler:
            scheduler.register(nothing, name="work", share=TENANT)
            with pytest.raises(ConfigurationError, match="the key function of the share 'work'"):
                scheduler.enqueue("work", args=(None,))
            specs = [JobSpec(nothing, now(), args=("b",))]
            return [scheduler.enqueue("work", args=("a",)), *filter(None, scheduler.schedule_bulk(specs))]

    ids = await asyncio.to_thread(schedule)
    assert [await queue_of(pool, each) for each in ids] == ["share:work:a", "share:work:b"]


async def test_priorities_go_before_turns(make: Make) -> None:
    order: list[tuple[str, int]] = []

    async def work(tenant: str, n: int) -> None:
        order.append((tenant, n))

    scheduler = make(max_concurrent_jobs=1)
    scheduler.register(work, name="work", share=TENANT)
    record = Recorder(scheduler)
    start = now() - timedelta(minutes=1)
    specs = [JobSpec(work, start, args=("normal", n)) for n in range(5)]
    specs += [JobSpec(work, start, args=("high", n), priority=JobPriority.HIGH) for n in range(5)]
    await scheduler.schedule_bulk(specs)
    await scheduler.start()
    await record.until(JobCompleted, 10)
    assert [tenant for tenant, _ in order] == ["high"] * 5 + ["normal"] * 5


async def test_limits_hold_within_shares(make: Make, gate: Gate) -> None:
    scheduler = make(max_concurrent_jobs=6)
    one = Limit(max_running=1, key=lambda tenant: tenant)
    scheduler.register(gate.job, name="work", share=TENANT, limits=[one])
    record = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule_bulk([JobSpec(gate.job, now(), args=(tenant,)) for tenant in "aaaaabbbbb"])
    await record.until(JobStarted, 2)
    assert sorted(gate.calls) == [("a",), ("b",)]
    gate.open.set()
    await record.until(JobCompleted, 10)
    assert gate.most == 2


async def test_paused_task_moves_no_jobs_until_it_is_resumed(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    scheduler.register(noop, name="work", share=TENANT)
    record = Recorder(scheduler)
    await scheduler.tasks.pause("work")
    await until(pool, "SELECT count(*) FROM scheduler_tasks", 1)
    await worker_of(scheduler).pauses.run_once()
    job_id = await scheduler.enqueue("work", args=("a",))
    await worker_of(scheduler).feeder.run_once()
    assert await queue_of(pool, job_id) == "share:work:a"
    await scheduler.tasks.resume("work")
    await record.until(JobCompleted, job_id=job_id)


async def test_cancelled_job_leaves_its_queue(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    scheduler.register(noop, name="work", share=TENANT)
    job_id = await scheduler.enqueue("work", args=("a",))
    assert await scheduler.cancel_job(job_id)
    assert await queue_of(pool, job_id) is None
    assert await pool.fetchval("SELECT status FROM scheduled_jobs") == "cancelled"


async def test_late_job_of_a_paused_task_expires(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    scheduler.register(noop, name="work", share=TENANT)
    await scheduler.schedule(
        noop, execution_time=now() - timedelta(hours=1), args=("a",), misfire_grace_time=1
    )
    await scheduler.tasks.pause("work")
    await scheduler.start()
    await until(pool, "SELECT status FROM scheduled_jobs", "expired")


async def test_jobs_start_when_their_code_has_no_share_any_more(make: Make, pool: asyncpg.Pool) -> None:
    former = make()
    former.register(noop, name="work", share=TENANT)
    job_id = await former.enqueue("work", args=("a",))
    assert await queue_of(pool, job_id) == "share:work:a"
    scheduler = make()
    scheduler.register(noop, name="work")
    record = Recorder(scheduler)
    await scheduler.start()
    await record.until(JobCompleted, job_id=job_id)


async def test_jobs_of_tasks_with_one_share_take_turns(make: Make) -> None:
    order: list[str] = []

    async def one(tenant: str) -> None:
        order.append(tenant)

    async def other(tenant: str) -> None:
        order.append(tenant)

    scheduler = make(max_concurrent_jobs=1)
    share = Share("both", key=lambda tenant: tenant)
    scheduler.register(one, share=share)
    scheduler.register(other, share=share)
    record = Recorder(scheduler)
    start = now() - timedelta(minutes=1)
    await scheduler.schedule_bulk([JobSpec(one, start, args=("a",)) for _ in range(10)])
    await scheduler.schedule_bulk([JobSpec(other, now(), args=("b",)) for _ in range(10)])
    await scheduler.start()
    await record.until(JobCompleted, 20)
    assert order.index("b") < 3
