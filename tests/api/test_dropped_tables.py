"""Start after tables were dropped, as test suites written for pg-scheduler 0.2 do between two tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import Scheduler, SchemaMismatchError, SchemaMissingError, periodic
from pg_scheduler.events import JobCompleted, JobsReclaimed, PassFinished, PeriodicJobPlanned
from pg_scheduler.inspect import Inspector
from pg_scheduler.migrate import verify
from tests.api.conftest import Make, Pools
from tests.support.inside import worker_of
from tests.support.logs import warnings_of
from tests.support.worker import PATIENCE, Gate, Recorder, holds, now

DROP = "DROP TABLE IF EXISTS scheduled_jobs CASCADE; DROP TABLE IF EXISTS vacuum_stats CASCADE"
KEY = "the key"
REMEDY = "; call scheduler.initialize_db() or start(), or run pg-scheduler migrate"


@pytest.mark.parametrize("call", [Scheduler.initialize_db, Scheduler.start])
async def test_initialize_db_and_start_recreate_dropped_tables(
    make: Make,
    pool: asyncpg.Pool,
    open_gate: Gate,
    call: Callable[[Scheduler], Awaitable[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for run in (1, 2):
        await pool.execute(DROP)
        scheduler = make()
        seen = Recorder(scheduler)
        await call(scheduler)
        (warning,) = warnings_of(caplog)
        assert "missing in schema 'public': scheduled_jobs, vacuum_stats;" in warning
        caplog.clear()
        await scheduler.start()
        await scheduler.schedule(open_gate.job, execution_time=now(), job_id="job")
        await seen.until(JobCompleted, job_id="job")
        assert warnings_of(caplog) == []
        assert len(open_gate.calls) == run
        await scheduler.shutdown()


async def test_initialize_db_recreates_tables_that_were_dropped_after_the_scheduler_used_them(
    make: Make, pool: asyncpg.Pool, open_gate: Gate
) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.shutdown()
    await pool.execute(DROP)
    await scheduler.initialize_db()
    await scheduler.schedule(open_gate.job, execution_time=now())
    await scheduler.start()
    await seen.until(JobCompleted)


@pytest.mark.slow
async def test_twenty_schedulers_start_at_once_after_tables_were_dropped(
    make: Make, pool: asyncpg.Pool, pools: Pools, open_gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    await pool.execute(DROP)
    schedulers = [make(await pools(2)) for _ in range(20)]
    await asyncio.gather(*(scheduler.start() for scheduler in schedulers))
    assert all(scheduler.is_running for scheduler in schedulers)
    assert len([text for text in warnings_of(caplog) if text.startswith("recreated")]) == 1
    await schedulers[0].schedule(open_gate.job, execution_time=now(), job_id="job")
    async with asyncio.timeout(PATIENCE):
        while not (job := await schedulers[0].get_job("job")) or not job.finished_at:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # the event occurs on any of the twenty
    assert len(open_gate.calls) == 1


async def test_schedule_starts_over_when_the_jobs_were_dropped(make: Make, pool: asyncpg.Pool) -> None:
    @periodic(every=timedelta(hours=1), dedup_key=KEY)
    async def sweep() -> None: ...

    first = make()
    await first.start()
    await first.shutdown()
    await pool.execute(
        "UPDATE scheduler_schedules "
        "SET anchor = now() - interval '119 minutes', next_fire_at = now() - interval '59 minutes'"
    )
    await pool.execute(DROP)

    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    assert seen.of(PassFinished, service="planner")
    assert seen.of(PeriodicJobPlanned) == []
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0
    next_fire_at = await pool.fetchval("SELECT next_fire_at FROM scheduler_schedules")
    assert timedelta(minutes=59) < next_fire_at - now() <= timedelta(minutes=60)
    assert await scheduler.trigger_periodic_job(KEY)
    await seen.until(JobCompleted)


async def test_disabled_schedule_remains_disabled_when_the_jobs_were_dropped(
    make: Make, pool: asyncpg.Pool
) -> None:
    @periodic(every=timedelta(hours=1), dedup_key=KEY)
    async def sweep() -> None: ...

    first = make()
    await first.start()
    assert first.disable_periodic_job(KEY)
    await first.shutdown()
    await pool.execute(DROP)
    scheduler = make()
    await scheduler.start()
    status = scheduler.get_periodic_job_status(KEY)
    assert status is not None
    assert (status["enabled"], status["next_fire_at"]) == (False, None)


@pytest.mark.slow
async def test_row_of_a_dead_worker_is_deleted_when_the_jobs_were_dropped(
    make: Make, pool: asyncpg.Pool, open_gate: Gate
) -> None:
    await pool.execute(
        "INSERT INTO scheduler_workers "
        "VALUES ('dead', 'gone', 1, '1.0', 10, 3, now(), now(), now() - interval '1 minute')"
    )
    await pool.execute(DROP)
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule(open_gate.job, execution_time=now(), job_id="dead")
    (reclaimed,) = await seen.until(JobsReclaimed)
    assert (reclaimed.job_ids, reclaimed.dead_workers) == ((), ("dead",))
    await seen.until(JobCompleted, job_id="dead")
    assert [worker.worker_id for worker in await scheduler.workers()] == [scheduler.worker_id]


async def test_running_scheduler_stops_when_a_table_is_dropped_and_starts_again(
    make: Make, pool: asyncpg.Pool, open_gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    await pool.execute("DROP TABLE scheduled_jobs CASCADE")
    worker_of(scheduler).node.signals.due()
    with pytest.raises(SchemaMissingError, match=r"initialize_db\(\) or start\(\)"):
        await asyncio.wait_for(scheduler.wait(), PATIENCE)
    assert not holds(scheduler.is_running)

    await scheduler.start()
    await scheduler.schedule(open_gate.job, execution_time=now(), job_id="job")
    await seen.until(JobCompleted, job_id="job")
    assert "missing in schema 'public': scheduled_jobs;" in caplog.text


async def test_every_way_to_miss_a_table_names_the_same_remedy(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await scheduler.get_job("none")  # looks up the schema
    await pool.execute(DROP)
    async with pool.acquire() as connection:
        for call in (scheduler.get_job("none"), verify(connection), Inspector(pool).search_jobs("")):
            with pytest.raises(SchemaMissingError) as raised:
                await call
            assert str(raised.value) == raised.value.problem + REMEDY


@pytest.mark.parametrize("call", [Scheduler.initialize_db, Scheduler.start])
async def test_scheduler_starts_after_the_remedy_for_a_dropped_index(
    make: Make, pool: asyncpg.Pool, open_gate: Gate, call: Callable[[Scheduler], Awaitable[None]]
) -> None:
    await pool.execute("DROP INDEX scheduled_jobs_claim")
    scheduler = make()
    seen = Recorder(scheduler)
    with pytest.raises(SchemaMismatchError, match="index scheduled_jobs_claim of scheduled_jobs") as caught:
        await call(scheduler)
    assert not holds(scheduler.is_running)
    await pool.execute(str(caught.value).partition("execute as their owner: ")[2])
    await scheduler.start()
    await scheduler.schedule(open_gate.job, execution_time=now(), job_id="job")
    await seen.until(JobCompleted, job_id="job")


async def test_run_vacuum_names_the_missing_table(make: Make, pool: asyncpg.Pool) -> None:
    await pool.execute(DROP)
    with pytest.raises(SchemaMissingError, match=r"scheduled_jobs.* does not exist.*initialize_db"):
        await make().run_vacuum()
