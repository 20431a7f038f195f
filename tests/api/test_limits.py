"""Limits of running Schedulers: exact across pools, harmless for other jobs, and never stuck."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    Codec,
    ConflictResolution,
    JobPriority,
    JobSpec,
    JobStatus,
    Limit,
    PollingConfig,
    RetryPolicy,
)
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import JobBlocked, JobCompleted, JobExpired, JobFailed, JobStarted
from pg_scheduler.inspect import Inspector
from pg_scheduler.worker.worker_rows import DRAIN
from tests.api.conftest import Make, Pools
from tests.support import inside
from tests.support.codecs import KeyedCodec
from tests.support.inside import store_of, worker_of
from tests.support.worker import PATIENCE, Gate, Recorder, now

LOCK_CLASS = inside.internal_setting("class_of_advisory_locks")

ONE = [Limit(max_running=1)]

PRINTABLE = [chr(number) for number in range(33, 127)]

TWO_BYTES = [chr(number) for number in range(0x100, 0x800)]
"""Characters of two bytes in UTF-8, and of six in ``blocked_on``."""


async def noop(*_: Any) -> None: ...


def specs(func: Any, count: int, *args: Any) -> list[JobSpec]:
    return [JobSpec(func, now(), args=args) for _ in range(count)]


async def until(pool: asyncpg.Pool, query: str, expected: object) -> None:
    """Wait for a state of the tables that no event announces."""
    async with asyncio.timeout(PATIENCE):
        while await pool.fetchval(query) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # no event announces a state of the tables


BLOCKED = "SELECT count(*) FROM scheduled_jobs WHERE blocked_on IS NOT NULL"
LEFT = "SELECT count(*) FROM scheduled_jobs WHERE finished_at IS NULL"


async def test_jobs_of_a_paused_task_keep_no_limit_from_jobs_of_other_tasks(
    make: Make, gate: Gate, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, scan_interval_of_unblocker_s=3600)
    inside.replace(monkeypatch, batch_of_unblocker=5)
    scheduler = make(max_concurrent_jobs=5)
    scheduler.register(gate.job, name="pages", limits=[Limit("api", max_running=1)])
    scheduler.register(noop, name="users", limits=[Limit("api", max_running=1)])
    record = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule_bulk(specs(gate.job, 20))
    await until(pool, BLOCKED, 19)
    await scheduler.tasks.pause("pages")
    await worker_of(scheduler).pauses.run_once()
    gate.open.set()
    await record.until(JobCompleted)
    await scheduler.schedule_bulk(specs(noop, 3))
    await record.until(JobCompleted, 4)
    assert len(gate.calls) == 1, "the others are paused"
    assert await pool.fetchval(BLOCKED) == 0
    await scheduler.tasks.resume("pages")
    await record.until(JobCompleted, 23)
    assert gate.most == 1


async def test_jobs_that_are_moved_to_the_future_leave_the_queue_of_their_limit(
    make: Make, gate: Gate, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have a higher priority than the jobs that are due."""
    inside.replace(monkeypatch, scan_interval_of_unblocker_s=3600)
    scheduler = make(max_concurrent_jobs=5)
    api = [Limit("api", max_running=1)]
    scheduler.register(gate.job, name="pages", limits=api, priority=JobPriority.HIGH)
    scheduler.register(noop, name="users", limits=api)
    record = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule_bulk(specs(gate.job, 20))
    await until(pool, BLOCKED, 19)
    async for _ in Inspector(scheduler).move_jobs(where="name:pages", by=timedelta(hours=1)):
        pass
    assert await pool.fetchval(BLOCKED) == 0
    gate.open.set()
    await scheduler.schedule_bulk(specs(noop, 3))
    await record.until(JobCompleted, 4)
    assert len(gate.calls) == 1


async def test_jobs_that_no_worker_claims_keep_no_limit_from_jobs_of_other_tasks(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service that has their task is down."""
    inside.replace(monkeypatch, batch_of_unblocker=5)
    inside.replace(monkeypatch, grace_of_unclaimed_jobs_s=0.0)
    scheduler = make()
    scheduler.register(noop, name="users", limits=[Limit("api", max_running=1)])
    record = Recorder(scheduler)
    for _ in range(20):
        await scheduler.schedule_job("crawl.pages", now(), {})
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'limit:api:'")
    await scheduler.start()
    await scheduler.schedule_bulk(specs(noop, 3))
    await record.until(JobCompleted, 3)
    await until(pool, BLOCKED, 0)


async def test_draining_worker_unblocks_as_many_jobs_as_their_limit_has_room_for(
    make: Make, gate: Gate, pool: asyncpg.Pool
) -> None:
    """It claims no names, but their tasks are not paused, and other workers may claim them soon."""
    scheduler = make(max_concurrent_jobs=5)
    scheduler.register(gate.job, name="pages", limits=ONE)
    record = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule_bulk(specs(gate.job, 5))
    await until(pool, BLOCKED, 4)
    runtime = worker_of(scheduler)
    await store_of(scheduler).workers.request_state([scheduler.worker_id], DRAIN)
    await until(pool, "SELECT state FROM scheduler_workers", "draining")
    gate.open.set()
    await record.until(JobCompleted)
    await until(pool, BLOCKED, 3)
    await runtime.unblocker.run_once()
    assert await pool.fetchval(BLOCKED) == 3


async def test_job_of_another_task_starts_at_once_when_a_limit_blocks_a_backlog(
    make: Make, gate: Gate, pool: asyncpg.Pool
) -> None:
    scheduler = make(max_concurrent_jobs=5)
    scheduler.register(gate.job, limits=ONE)
    scheduler.register(noop)
    record = Recorder(scheduler)
    await scheduler.schedule_bulk([JobSpec(gate.job, now() - timedelta(minutes=1))] * 20)
    await scheduler.schedule_bulk(specs(noop, 1))
    await scheduler.start()
    await record.until(JobCompleted)
    await record.until(JobBlocked, 19)
    assert gate.most == 1
    assert await pool.fetchval("SELECT max(retry_count) + max(crash_count) FROM scheduled_jobs") == 0
    gate.open.set()
    await record.until(JobCompleted, 21)
    assert gate.most == 1
    starts = record.of(JobStarted)
    assert len(starts) == len({start.job_id for start in starts}) == 21


async def test_jobs_with_the_longest_id_and_key_wait_for_a_limit_and_run(make: Make) -> None:
    random = Random(0)  # the index compresses repetitions
    name, key = ("".join(random.choices(TWO_BYTES, k=100)) for _ in range(2))
    scheduler = make()
    scheduler.register(noop, limits=[Limit(name, max_running=1, key=lambda _: key)])
    record = Recorder(scheduler)
    ids = ["".join(random.choices(PRINTABLE, k=2000)) for _ in range(3)]
    await scheduler.schedule_bulk([JobSpec(noop, now(), args=(1,), job_id=job_id) for job_id in ids])
    await scheduler.start()
    await record.until(JobCompleted, 3)
    assert record.of(JobBlocked)


async def test_backlog_of_a_full_task_is_blocked_without_claiming_each_job(
    make: Make, gate: Gate, pool: asyncpg.Pool
) -> None:
    scheduler = make(max_concurrent_jobs=5)
    scheduler.register(gate.job, name="limited", limits=[Limit(max_running=2)])
    scheduler.register(noop, name="other")
    record = Recorder(scheduler)
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time)"
        " SELECT 'job-' || n, 'limited', now() - interval '1 hour' FROM generate_series(1, 1300) AS n"
    )
    await scheduler.start()
    await record.until(JobBlocked, 1298)
    other = await scheduler.enqueue("other")
    await record.until(JobCompleted, job_id=other)
    claimed = "SELECT count(*) FROM scheduled_jobs WHERE attempt > 0 AND job_name = 'limited'"
    assert await pool.fetchval(claimed) <= 300, "not one after another"
    waiting = "SELECT count(*) FROM scheduled_jobs WHERE blocked_on = 'limit:limited:'"
    assert await pool.fetchval(waiting) == 1298
    gate.open.set()
    await record.until(JobCompleted, 20, job_name="limited")


@pytest.mark.slow
@pytest.mark.parametrize("codec", [None, KeyedCodec("k1")], ids=["plain", "encoded"])
async def test_backlog_of_full_keys_is_blocked_without_claiming_each_job(
    make: Make, gate: Gate, pool: asyncpg.Pool, codec: Codec | None
) -> None:
    scheduler = make(max_concurrent_jobs=5, codec=codec)
    limits = [Limit(max_running=1, key=lambda n: n % 3)]
    scheduler.register(gate.job, name="limited", limits=limits)
    scheduler.register(noop, name="other")
    record = Recorder(scheduler)
    due = now() - timedelta(hours=1)
    await scheduler.schedule_bulk(
        [JobSpec(gate.job, due, args=(n,), misfire_grace_time=None) for n in range(1500)]
    )
    await scheduler.start()
    await record.until(JobBlocked, 1497)
    other = await scheduler.enqueue("other")
    await record.until(JobCompleted, job_id=other)
    claimed = "SELECT count(*) FROM scheduled_jobs WHERE attempt > 0 AND job_name = 'limited'"
    assert await pool.fetchval(claimed) <= 500, "not one after another"
    waiting = "SELECT count(*) AS n FROM scheduled_jobs WHERE blocked_on IS NOT NULL GROUP BY blocked_on"
    assert [row["n"] for row in await pool.fetch(waiting)] == [499, 499, 499]
    gate.open.set()
    await record.until(JobCompleted, 20, job_name="limited")


async def test_backlog_of_a_full_key_leaves_the_other_keys(
    make: Make, gate: Gate, pool: asyncpg.Pool
) -> None:
    scheduler = make(max_concurrent_jobs=5)
    limits = [Limit(max_running=1, key=lambda *args: "".join(args))]
    scheduler.register(gate.job, name="limited", limits=limits)
    record = Recorder(scheduler)
    jobs = [JobSpec(gate.job, now(), args=(key,)) for key in ("", "", "", "a")]
    await scheduler.schedule_bulk(jobs)
    await scheduler.start()
    await record.until(JobStarted, 2)
    await record.until(JobBlocked, 2)
    assert await pool.fetchval("SELECT sum(attempt) FROM scheduled_jobs") == 4


async def test_blocked_jobs_start_in_order_when_attempts_end(make: Make) -> None:
    order: list[int] = []

    async def work(n: int) -> None:
        order.append(n)

    scheduler = make(max_concurrent_jobs=3)
    scheduler.register(work, limits=ONE)
    record = Recorder(scheduler)
    start = now() - timedelta(seconds=100)
    await scheduler.schedule_bulk([JobSpec(work, start + timedelta(seconds=n), args=(n,)) for n in range(30)])
    await scheduler.start()
    await record.until(JobCompleted, 30)
    assert sorted(order) == list(range(30))
    assert sum(abs(n - place) for place, n in enumerate(order)) <= 60  # neighbours may swap


async def test_keys_have_limits_of_their_own(make: Make, gate: Gate, pool: asyncpg.Pool) -> None:
    scheduler = make(max_concurrent_jobs=10)
    scheduler.register(gate.job, name="sync", limits=[Limit(max_running=1, key=lambda account: account)])
    record = Recorder(scheduler)
    await scheduler.schedule_bulk([JobSpec(gate.job, now(), args=(n % 3,)) for n in range(9)])
    await scheduler.start()
    await record.until(JobStarted, 3)
    found = await record.until(JobBlocked, 6)
    assert {event.blocked_on for event in found} == {"limit:sync:0", "limit:sync:1", "limit:sync:2"}
    assert sorted(gate.calls) == [(0,), (1,), (2,)]
    gate.open.set()
    await record.until(JobCompleted, 9)


@pytest.mark.slow
async def test_limit_holds_across_schedulers_on_several_pools(
    make: Make, pools: Pools, pool: asyncpg.Pool
) -> None:
    inside, most, runs = 0, 0, 0

    async def work() -> None:
        nonlocal inside, most, runs
        inside += 1
        most, runs = max(most, inside), runs + 1
        await asyncio.sleep(0.002)  # other attempts may start meanwhile
        inside -= 1

    schedulers = [make(await pools(6), max_concurrent_jobs=8) for _ in range(4)]
    for scheduler in schedulers:
        scheduler.register(work, name="shared", limits=[Limit(max_running=3)])
    await schedulers[0].schedule_bulk([JobSpec(work, now())] * 150)
    await asyncio.gather(*(scheduler.start() for scheduler in schedulers))
    await until(pool, LEFT, 0)
    assert (runs, most) == (150, 3)


async def most_in_any_span(pool: asyncpg.Pool, key: str, span: timedelta) -> int:
    found = await pool.fetchval(
        "SELECT max(n) FROM (SELECT count(*) OVER (ORDER BY at RANGE BETWEEN CURRENT ROW AND $2 FOLLOWING"
        " EXCLUDE NO OTHERS) AS n FROM scheduler_starts WHERE key = $1) AS spans",
        key,
        span - timedelta(microseconds=1),
    )
    return int(found)


@pytest.mark.slow
async def test_rate_is_never_exceeded_and_fully_used_across_schedulers(
    make: Make, pools: Pools, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers start the jobs that wait, not scans."""
    inside.replace(monkeypatch, scan_interval_of_unblocker_s=3600)
    per = timedelta(seconds=1)
    schedulers = [make(await pools(6), max_concurrent_jobs=10) for _ in range(3)]
    for scheduler in schedulers:
        # The second limit keeps the starts in the log until the test has read them.
        limits = [
            Limit("api", max_starts=10, per=per),
            Limit("api", max_starts=1000, per=timedelta(hours=1)),
        ]
        scheduler.register(noop, limits=limits)
    await schedulers[0].schedule_bulk(specs(noop, 35))
    await asyncio.gather(*(scheduler.start() for scheduler in schedulers))
    await until(pool, LEFT, 0)
    assert await pool.fetchval("SELECT count(*) FROM scheduler_starts") == 35
    assert await most_in_any_span(pool, "limit:api:", per) == 10


@pytest.mark.slow
async def test_starts_are_spread_over_the_time_span_when_a_limit_asks_for_it(
    make: Make, pools: Pools, pool: asyncpg.Pool
) -> None:
    schedulers = [make(await pools(6), max_concurrent_jobs=10) for _ in range(2)]
    for scheduler in schedulers:
        limits = [
            Limit("api", max_starts=10, per=timedelta(seconds=1), spread=True),
            Limit("api", max_starts=1000, per=timedelta(hours=1)),
        ]
        scheduler.register(noop, limits=limits)
    await schedulers[0].schedule_bulk(specs(noop, 8))
    await asyncio.gather(*(scheduler.start() for scheduler in schedulers))
    await until(pool, LEFT, 0)
    instants = [row[0] for row in await pool.fetch("SELECT at FROM scheduler_starts ORDER BY 1")]
    assert len(instants) == 8
    assert all(later - earlier >= timedelta(seconds=0.1) for earlier, later in pairwise(instants))


async def test_job_with_several_limits_waits_for_the_first_full_one(
    make: Make, gate: Gate, pool: asyncpg.Pool
) -> None:
    scheduler = make(max_concurrent_jobs=9)
    limits = [Limit("all", max_running=3), Limit("each", max_running=1, key=lambda account: account)]
    scheduler.register(gate.job, limits=limits)
    record = Recorder(scheduler)
    await scheduler.schedule_bulk([JobSpec(gate.job, now(), args=(n,)) for n in (1, 1, 2, 3, 4)])
    await scheduler.start()
    found = await record.until(JobBlocked, 2)
    assert sorted(event.blocked_on for event in found) == ["limit:all:", "limit:each:1"]
    gate.open.set()
    await record.until(JobCompleted, 5)


def broken(account: int) -> int:
    return {0: 0}[account]


async def test_broken_key_function_or_argument_fails_its_job_alone(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make(max_concurrent_jobs=20)
    scheduler.register(noop, limits=[Limit(max_running=50, key=broken)])
    record = Recorder(scheduler)
    await scheduler.schedule_bulk([JobSpec(noop, now(), args=(n % 2,), max_retries=5) for n in range(100)])
    first = "SELECT min(job_id) FROM scheduled_jobs WHERE task_data->'args' = '[0]'"
    await pool.execute(f"UPDATE scheduled_jobs SET task_data = '7' WHERE job_id = ({first})")
    await scheduler.start()
    await record.until(JobCompleted, 49)
    failed = await record.until(JobFailed, 51)
    assert sum("the key function of the limit" in event.error for event in failed) == 50
    assert sum("raised KeyError" in event.error for event in failed) == 50
    assert await pool.fetchval("SELECT max(attempt) FROM scheduled_jobs") == 1


async def test_jobs_of_a_limit_that_is_gone_from_the_code_run(make: Make, pool: asyncpg.Pool) -> None:
    await make().schedule_bulk(specs(noop, 5))
    await pool.execute("UPDATE scheduled_jobs SET blocked_on = 'limit:gone:'")
    scheduler = make()
    scheduler.register(noop)
    record = Recorder(scheduler)
    await scheduler.start()
    await record.until(JobCompleted, 5)


async def test_scan_unblocks_jobs_that_nothing_reported(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = make()
    inside.replace(monkeypatch, scan_interval_of_unblocker_s=0.05)
    inside.replace(monkeypatch, batch_of_unblocker=2)
    inside.replace(monkeypatch, cleanup_interval_of_unblocker_s=0)
    scheduler.register(noop, name="task", limits=[Limit(max_running=5, key=str)])
    record = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule_bulk([JobSpec(noop, now() + timedelta(hours=1), args=(n,)) for n in range(5)])
    await pool.execute(
        "UPDATE scheduled_jobs SET blocked_on = 'limit:task:' || (task_data->'args'->>0),"
        " execution_time = now()"
    )
    await record.until(JobCompleted, 5)


@pytest.mark.slow
async def test_blocked_job_expires_when_its_grace_time_elapses(
    make: Make, gate: Gate, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = make()
    inside.replace(monkeypatch, scan_interval_of_unblocker_s=0.05)
    scheduler.register(gate.job, limits=ONE)
    record = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    job_id = await scheduler.schedule(gate.job, execution_time=now(), misfire_grace_time=1)
    await record.until(JobBlocked, job_id=job_id)
    await record.until(JobExpired, job_id=job_id)
    gate.open.set()


async def test_cancelling_or_replacing_a_blocked_job_takes_effect_at_once(
    make: Make, gate: Gate, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    scheduler.register(gate.job, limits=ONE)
    record = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    cancelled = await scheduler.schedule(gate.job, execution_time=now())
    replaced = await scheduler.schedule(gate.job, execution_time=now(), args=(1,))
    await record.until(JobBlocked, 2)
    assert await scheduler.cancel_job(cancelled)
    await scheduler.schedule(
        gate.job,
        execution_time=now(),
        args=(2,),
        job_id=replaced,
        conflict_resolution=ConflictResolution.REPLACE,
    )
    await record.until(JobBlocked, 2, job_id=replaced)
    gate.open.set()
    await record.until(JobCompleted, 2)
    assert gate.calls == [(), (2,)]
    assert await scheduler.retry_job(cancelled)
    await record.until(JobCompleted, job_id=cancelled)


@pytest.mark.parametrize("change", ["retry", "replace", "replace extended", "set pending"])
async def test_job_starts_again_only_when_its_cancelled_attempt_counts_no_more(
    make: Make, change: str
) -> None:
    clock = FakeClock(now())  # 2 seconds pass when the test says so
    inside: list[int] = []
    began, cancelled, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow_to_stop() -> None:
        inside.append(len(inside))
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            await may_end.wait()
            raise

    scheduler = make(clock=clock, stop_grace=PATIENCE)
    scheduler.register(slow_to_stop, limits=ONE)
    record = Recorder(scheduler)
    await scheduler.start()
    async with asyncio.timeout(PATIENCE):
        job_id = await scheduler.enqueue(slow_to_stop)
        await began.wait()
        if change != "set pending":
            await scheduler.cancel_job(job_id)
        if change == "retry":
            await scheduler.retry_job(job_id)
        elif change == "set pending":
            await scheduler.update_job_status(job_id, JobStatus.PENDING)
        else:
            await scheduler.enqueue(
                slow_to_stop,
                job_id=job_id,
                keep_result=timedelta(hours=1) if change == "replace extended" else None,
                conflict_resolution=ConflictResolution.REPLACE,
            )
        await cancelled.wait()
        await record.until(JobBlocked, job_id=job_id)
    assert len(inside) == 1
    may_end.set()
    clock.advance(timedelta(seconds=2))
    await record.until(JobStarted, 2, job_id=job_id)


async def test_failed_attempt_makes_room_for_its_retry(make: Make, pool: asyncpg.Pool) -> None:
    ran: list[str] = []

    async def flaky(name: str) -> None:
        ran.append(name)
        if name == "bad" and len(ran) == 1:
            raise RuntimeError

    scheduler = make()
    scheduler.register(flaky, limits=ONE, retry=RetryPolicy(base=timedelta(milliseconds=1)))
    record = Recorder(scheduler)
    await scheduler.schedule(flaky, execution_time=now() - timedelta(seconds=9), args=("bad",), max_retries=1)
    await scheduler.schedule(flaky, execution_time=now() - timedelta(seconds=5), args=("good",))
    await scheduler.start()
    await record.until(JobCompleted, 2)
    assert sorted(ran) == ["bad", "bad", "good"]


@pytest.mark.slow
async def test_claims_are_released_when_another_session_keeps_the_lock_of_a_limit(
    make: Make, dsn: str, pool: asyncpg.Pool
) -> None:
    scheduler = make(polling_config=PollingConfig(min_interval=0.05, max_interval=0.1))
    scheduler.register(noop, name="task", limits=[Limit(max_running=5, key=str)])
    record = Recorder(scheduler)
    other = await asyncpg.connect(dsn)
    await other.execute(f"SELECT pg_advisory_lock({LOCK_CLASS}, hashtext('limit:task:locked'))")
    await scheduler.schedule_bulk([JobSpec(noop, now(), args=(key,)) for key in ("a", "locked", "b")])
    await scheduler.start()
    await record.until(JobCompleted, 2)  # those of the other keys
    await other.close()
    await record.until(JobCompleted, 3)
    assert await pool.fetchval("SELECT max(retry_count) FROM scheduled_jobs") == 0


async def test_limited_attempts_are_released_when_the_scheduler_shuts_down(
    make: Make, gate: Gate, pool: asyncpg.Pool
) -> None:
    scheduler = make(max_concurrent_jobs=5)
    scheduler.register(gate.job, limits=[Limit(max_running=2)])
    await scheduler.schedule_bulk([JobSpec(gate.job, now())] * 5)
    record = Recorder(scheduler)
    await scheduler.start()
    await record.until(JobStarted, 2)
    await record.until(JobBlocked, 3)
    await scheduler.shutdown()
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'pending'") == 5
    again = make()
    again.register(gate.job, limits=[Limit(max_running=2)])
    record = Recorder(again)
    gate.open.set()
    await again.start()
    await record.until(JobCompleted, 5)


async def test_limits_can_be_registered_while_the_scheduler_runs(make: Make, gate: Gate) -> None:
    scheduler = make()
    record = Recorder(scheduler)
    await scheduler.start()
    scheduler.register(gate.job, limits=ONE)
    await scheduler.schedule_bulk([JobSpec(gate.job, now())] * 2)
    await record.until(JobBlocked)
    gate.open.set()
    await record.until(JobCompleted, 2)


async def test_jobs_without_limits_write_nothing_about_limits(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    scheduler.register(noop)
    record = Recorder(scheduler)
    await scheduler.schedule_bulk(specs(noop, 50))
    await scheduler.start()
    await record.until(JobCompleted, 50)
    assert await pool.fetchval("SELECT count(*) FROM scheduler_starts") == 0
    assert worker_of(scheduler).unblocker._result_buffer.on_settled is None
