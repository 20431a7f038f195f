"""The test kit simulates crashes, blocked event loops and lost connections."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError, JobStatus, PoolClosedError, call, current_job
from pg_scheduler.events import JobCancelled
from pg_scheduler.testing import TestScheduler
from tests.support import inside
from tests.support.inside import store_of

Pool = asyncpg.Pool

START = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=60)
MICROSECOND = timedelta(microseconds=1)


async def test_another_worker_runs_the_job_of_a_crashed_one_when_the_lease_has_expired(pool: Pool) -> None:
    runs: list[tuple[datetime, str]] = []

    async def charge() -> None:
        runs.append((t.now, current_job().scheduler.worker_id))
        if len(runs) == 1:
            t.crash()
            runs.clear()  # not reached

    async with TestScheduler(pool, now=START) as t:
        job_id = await t.scheduler.enqueue(charge)
        await t.drain()
        (row,) = t.jobs(charge)
        assert (row.status, row.worker_id) == (JobStatus.RUNNING, runs[0][1])
        assert await t.run_until(timedelta(seconds=60)) == 0
        assert await t.run_until(MICROSECOND) == 1
        assert [time for time, _ in runs] == [START, START + LEASE + MICROSECOND]
        assert runs[0][1] != runs[1][1]
        job = await t.scheduler.get_job(job_id)
        assert job is not None
        assert (job.status, job.crash_count, t.ran(charge)) == (JobStatus.COMPLETED, 1, 2)


async def test_job_that_kills_every_worker_fails(pool: Pool) -> None:
    async def poison() -> None:
        t.crash()

    async with TestScheduler(pool, now=START, max_crashes=3) as t:
        await t.scheduler.enqueue(poison)
        await t.run_until(timedelta(hours=1))
        (row,) = t.jobs(poison)
        assert (row.status, t.ran(poison)) == (JobStatus.FAILED, 3)


async def test_crash_from_the_test_ends_running_attempts_without_a_result(pool: Pool) -> None:
    began = asyncio.Event()

    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    async with TestScheduler(pool, now=START, concurrency=2) as t:
        await t.scheduler.enqueue(wait)
        running = asyncio.create_task(t.run_one())
        await began.wait()
        t.crash()
        row = await running
        assert row is not None
        assert row.status is JobStatus.RUNNING
        t.crash()  # no worker runs


async def test_loop_blocked_for_three_leases_keeps_its_job(pool: Pool) -> None:
    async def block() -> None:
        await t.block(180)

    async with TestScheduler(pool, now=START) as t:
        await t.scheduler.enqueue(block)
        await t.run_until(timedelta(hours=1))
        (row,) = t.jobs(block)
        assert (row.status, t.ran(block)) == (JobStatus.COMPLETED, 1)
        assert row.finished_at == START + timedelta(seconds=180)


async def test_job_runs_again_after_the_loop_was_blocked_for_too_long(pool: Pool) -> None:
    async def block() -> None:
        if t.now == START:
            await t.block(timedelta(seconds=601))

    async with TestScheduler(pool, now=START, max_loop_block=600) as t:
        await t.scheduler.enqueue(block, misfire_grace_time=None)
        await t.run_until(timedelta(hours=1))
        (row,) = t.jobs(block)
        assert (row.status, row.crash_count, t.ran(block)) == (JobStatus.COMPLETED, 1, 2)


@pytest.mark.parametrize("name", ["plain", "step", "transaction", "child"])
async def test_job_that_blocked_the_loop_for_too_long_runs_again_at_once(pool: Pool, name: str) -> None:
    begins: list[datetime] = []

    async def block(*_connection: object) -> None:
        if len(begins) == 1:
            await t.block(1000)

    async def child() -> None: ...

    async def work() -> None:
        begins.append(t.now)
        steps = current_job().steps
        if name == "step":
            await steps.run("a", block)
        elif name == "transaction":
            await steps.transaction("a", block)
        else:
            await block()
        if name == "child":
            await steps.child("a", call(child))

    async with TestScheduler(pool, now=START) as t:
        await t.scheduler.enqueue(work, misfire_grace_time=None)
        await t.run_until(timedelta(hours=5))
        (row,) = t.jobs(work)
        assert row.status is JobStatus.COMPLETED
        assert begins[:2] == [START, START + timedelta(seconds=1000)]


async def test_scheduler_reconnects_after_it_has_lost_its_connections(pool: Pool) -> None:
    async def lose() -> None:
        t.lose_connection()

    async with TestScheduler(pool, now=START) as t:
        await t.scheduler.enqueue(lose)
        await t.scheduler.enqueue(lose, delay=timedelta(hours=1))
        t.lose_connection()
        assert await t.run_until(timedelta(hours=2)) == 2
        assert [each.status for each in t.jobs()] == [JobStatus.COMPLETED] * 2


async def test_open_transaction_of_a_job_rolls_back_when_the_connection_is_lost(pool: Pool) -> None:
    async def transfer() -> None:
        async with t.pool.acquire() as connection, connection.transaction():
            await connection.execute("SELECT 1")
            t.lose_connection()
            await connection.execute("SELECT 1")

    async with TestScheduler(pool, now=START) as t:
        await t.scheduler.enqueue(transfer)
        row = await t.run_one()
        assert row is not None
        assert row.status is JobStatus.FAILED


async def test_kit_raises_when_the_database_stays_unavailable(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TestScheduler(pool, now=START) as t:
        tries = 0

        async def unavailable(*_: object) -> None:
            nonlocal tries
            tries += 1
            raise DatabaseUnavailableError("down")

        with monkeypatch.context() as patch:
            inside.replace(patch, restart_of_leases=unavailable)
            with pytest.raises(DatabaseUnavailableError):
                await t.drain()
        assert tries == 10


async def test_kit_makes_a_pass_again_when_the_database_was_unavailable(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TestScheduler(pool, now=START) as t:
        workers = store_of(t.scheduler).workers
        restart = workers.restart_leases
        tries = 0

        async def unavailable(limit: int) -> None:
            nonlocal tries
            tries += 1
            if tries < 10:
                raise DatabaseUnavailableError("down")
            await restart(limit)

        with monkeypatch.context() as patch:
            patch.setattr(workers, "restart_leases", unavailable)
            await t.drain()
        assert tries >= 10


async def test_kit_raises_at_once_when_the_pool_is_closed(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TestScheduler(pool, now=START) as t:
        tries = 0

        async def closed(*_: object) -> None:
            nonlocal tries
            tries += 1
            raise PoolClosedError("closed")

        with monkeypatch.context() as patch:
            patch.setattr(store_of(t.scheduler).workers, "restart_leases", closed)
            with pytest.raises(PoolClosedError):
                await t.drain()
        assert tries == 1


async def test_job_that_the_test_cancels_stops_within_a_heartbeat(pool: Pool) -> None:
    began = asyncio.Event()
    cancelled: list[object] = []

    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    async with TestScheduler(pool, now=START) as t:
        t.scheduler.subscribe(cancelled.append, JobCancelled)
        job_id = await t.scheduler.enqueue(wait)
        running = asyncio.create_task(t.drain())
        await began.wait()
        await t.scheduler.cancel_job(job_id)
        assert await running == 1
        assert len(cancelled) == 1
