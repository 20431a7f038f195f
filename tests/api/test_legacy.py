"""The documented building blocks, and the vacuum."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobStatus, NotRunningError, Scheduler, VacuumConfig, VacuumPolicy
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import JobCompleted, JobFailed, JobsReclaimed, JobsVacuumed, PassFinished
from tests.api.conftest import Make
from tests.support.worker import Gate, Recorder, now


async def work() -> None: ...


async def fail() -> None:
    raise RuntimeError("no")


async def claim_by_hand(scheduler: Scheduler, pool: asyncpg.Pool, job_id: str) -> dict[str, Any]:
    """Claim a job for this worker by a statement and return its row."""
    row = await pool.fetchrow(
        "UPDATE scheduled_jobs SET status = 'running', worker_id = $2, attempt = attempt + 1, "
        "lease_until = now() + interval '1 minute' WHERE job_id = $1 RETURNING *",
        job_id,
        scheduler.worker_id,
    )
    assert row is not None
    return dict(row)


@pytest.mark.parametrize("call", ["recover_orphaned_jobs", "periodic_orphan_recovery", "monitor_heartbeats"])
async def test_recovery_reclaims_the_jobs_of_dead_workers(make: Make, pool: asyncpg.Pool, call: str) -> None:
    clock = FakeClock(now())
    scheduler = make(clock=clock)
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.schedule_job("unknown.function", clock.now, {})
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'running', worker_id = 'dead', attempt = 1, lease_until = $1",
        clock.now + timedelta(seconds=10),
    )
    clock.advance(timedelta(seconds=11))
    await scheduler.send_heartbeat(job_id)
    await getattr(scheduler, call)()
    assert [event.job_ids for event in seen.of(JobsReclaimed)] == [(job_id,)]
    row = await scheduler.get_job(job_id)
    assert row is not None
    assert (row.status, row.worker_id) == (JobStatus.PENDING, None)


async def test_listen_for_jobs_claims_due_jobs_at_once(make: Make, open_gate: Gate) -> None:
    clock = FakeClock(now())
    scheduler = make(clock=clock)
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule(open_gate.job, execution_time=clock.now + timedelta(seconds=30))
    clock.advance(timedelta(seconds=30))
    await scheduler.listen_for_jobs()
    await seen.until(JobCompleted)


async def test_send_heartbeat_renews_the_lease_of_the_job(make: Make, gate: Gate) -> None:
    clock = FakeClock(now())
    scheduler = make(clock=clock)
    await scheduler.start()
    job_id = await scheduler.schedule(gate.job, execution_time=clock.now)
    await gate.wait_begun()
    clock.advance(timedelta(seconds=30))
    await scheduler.send_heartbeat(job_id)
    row = await scheduler.get_job(job_id)
    assert row is not None
    assert row.last_heartbeat == clock.now
    assert row.lease_until == clock.now + timedelta(seconds=60)
    gate.open.set()
    with pytest.raises(TypeError):
        await scheduler.send_heartbeat(7)  # type: ignore[arg-type]


async def test_execute_job_runs_one_claimed_row_at_once(
    make: Make, pool: asyncpg.Pool, open_gate: Gate
) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    due = now() + timedelta(hours=1)
    job_id = await scheduler.schedule(open_gate.job, execution_time=due, args=(1,))
    await scheduler.execute_job(await claim_by_hand(scheduler, pool, job_id))
    assert open_gate.calls == [(1,)]
    await seen.until(JobCompleted, job_id=job_id)


async def test_execute_job_with_concurrency_control_waits_for_a_slot(
    make: Make, pool: asyncpg.Pool, gate: Gate
) -> None:
    scheduler = make(max_concurrent_jobs=1)
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule(gate.job, execution_time=now(), args=("first",))
    await gate.wait_begun()
    job_id = await scheduler.schedule(gate.job, execution_time=now() + timedelta(hours=1), args=("second",))
    row = await claim_by_hand(scheduler, pool, job_id)
    waiting = asyncio.create_task(scheduler.execute_job_with_concurrency_control(row))
    done, _ = await asyncio.wait([waiting], timeout=0.05)  # real time: it must wait
    assert not done
    assert gate.calls == [("first",)]
    gate.open.set()
    await waiting
    assert gate.most == 1
    await seen.until(JobCompleted, job_id=job_id)


async def test_execute_job_rejects_a_job_without_a_claim_of_this_worker(
    scheduler: Scheduler, gate: Gate
) -> None:
    job_id = await scheduler.schedule(gate.job, execution_time=now() + timedelta(hours=1))
    for call in (scheduler.execute_job, scheduler.execute_job_with_concurrency_control):
        with pytest.raises(ValueError, match="is not claimed by worker"):
            await call({"job_id": job_id})
        with pytest.raises(ValueError, match="is not claimed by worker"):
            await call({"job_id": "unknown"})
        with pytest.raises(ValueError, match=r"no job_id, but the keys \['id'\]; pass the row of a job"):
            await call({"id": job_id})
    assert not gate.calls


async def test_execute_job_rejects_a_job_that_is_already_running(
    scheduler: Scheduler, seen: Recorder, gate: Gate
) -> None:
    job_id = await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    with pytest.raises(ValueError, match="is already running on this worker"):
        await scheduler.execute_job({"job_id": job_id})
    gate.open.set()
    await seen.until(JobCompleted, job_id=job_id, attempt=1)
    assert (len(gate.calls), gate.cancelled) == (1, 0)


async def test_execute_job_with_concurrency_control_raises_when_shutdown_precedes_a_free_slot(
    make: Make, pool: asyncpg.Pool, gate: Gate
) -> None:
    scheduler = make(max_concurrent_jobs=1)
    await scheduler.start()
    await scheduler.schedule(gate.job, execution_time=now(), args=("first",))
    await gate.wait_begun()
    job_id = await scheduler.schedule(gate.job, execution_time=now() + timedelta(hours=1), args=("second",))
    row = await claim_by_hand(scheduler, pool, job_id)
    waiting = asyncio.create_task(scheduler.execute_job_with_concurrency_control(row))
    await asyncio.wait([waiting], timeout=0.05)  # until it waits for the slot
    await scheduler.shutdown()
    with pytest.raises(NotRunningError, match=job_id):
        await waiting
    assert gate.calls == [("first",)]


# -- vacuum --------------------------------------------------------------------------------------------


async def create_finished_jobs(scheduler: Scheduler, **counts: int) -> None:
    for status, count in counts.items():
        for _ in range(count):
            job_id = await scheduler.schedule(work, execution_time=now() + timedelta(hours=1))
            await scheduler.update_job_status(job_id, status)


IMMEDIATE = VacuumPolicy.immediate()


async def test_vacuum_deletes_and_counts_completed_jobs_at_once_with_the_immediate_policy(make: Make) -> None:
    config = VacuumConfig(completed=IMMEDIATE, failed=VacuumPolicy.never(), track_metrics=True)
    scheduler = make(vacuum_config=config)
    seen = Recorder(scheduler)
    await scheduler.start()
    failed = await scheduler.schedule(fail, execution_time=now())
    deleted = {await scheduler.schedule(work, execution_time=now()) for _ in range(3)}
    assert {event.job_id for event in await seen.until(JobCompleted, 3)} == deleted
    await seen.until(JobFailed)
    assert [job.job_id for job in await scheduler.list_jobs()] == [failed]
    await scheduler.shutdown()  # writes the counts since the last pass
    assert (await scheduler.get_total_vacuum_stats())["total_completed"] == 3


async def test_completed_jobs_with_results_and_consequences_are_deleted_with_the_immediate_policy(
    make: Make,
) -> None:
    scheduler = make(vacuum_config=VacuumConfig(completed=IMMEDIATE, track_metrics=True))
    seen = Recorder(scheduler)
    parent = await scheduler.schedule(work, execution_time=now())
    child = await scheduler.schedule(work, execution_time=now(), after=[parent])
    kept = await scheduler.schedule(work, execution_time=now(), keep_result=timedelta(hours=1))
    await scheduler.start()
    assert {event.job_id for event in await seen.until(JobCompleted, 3)} == {parent, child, kept}
    assert await scheduler.list_jobs() == []
    result = await scheduler.get_job_result(kept)
    assert result is not None
    assert (result.status, result.attempts) == (JobStatus.COMPLETED, 1)
    await scheduler.shutdown()
    assert (await scheduler.get_total_vacuum_stats())["total_completed"] == 3


async def test_completed_jobs_are_kept_when_the_vacuum_is_disabled(make: Make) -> None:
    scheduler = make(vacuum_config=VacuumConfig(completed=IMMEDIATE), vacuum_enabled=False)
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.schedule(work, execution_time=now())
    await seen.until(JobCompleted)
    assert [job.job_id for job in await scheduler.list_jobs()] == [job_id]


async def test_run_vacuum_deletes_and_counts_by_status(make: Make) -> None:
    scheduler = make(vacuum_config=VacuumConfig(IMMEDIATE, IMMEDIATE, IMMEDIATE, expired=IMMEDIATE))
    await scheduler.initialize_db()
    await create_finished_jobs(scheduler, completed=3, failed=2, cancelled=1, expired=4, pending=1)
    assert await scheduler.run_vacuum() == {"completed": 3, "failed": 2, "cancelled": 1, "expired": 4}
    assert await scheduler.run_vacuum() == {"completed": 0, "failed": 0, "cancelled": 0, "expired": 0}
    assert (await scheduler.count_jobs()).total == 1
    assert await scheduler.get_vacuum_stats() == []
    assert await scheduler.get_total_vacuum_stats() == {}


async def test_vacuum_stats_have_the_documented_keys(make: Make) -> None:
    clock = FakeClock(now())
    config = VacuumConfig(IMMEDIATE, IMMEDIATE, IMMEDIATE, track_metrics=True, expired=IMMEDIATE)
    scheduler = make(vacuum_config=config, clock=clock)
    await scheduler.initialize_db()
    for _ in range(3):
        await create_finished_jobs(scheduler, completed=2, failed=1)
        await scheduler.run_vacuum()
        clock.advance(timedelta(days=1))
    clock.advance(timedelta(days=-1))
    days = await scheduler.get_vacuum_stats()
    assert [day["stat_date"] for day in days] == [
        (clock.now - timedelta(days=age)).date() for age in range(3)
    ]
    assert days[0] == {
        "stat_date": clock.now.date(),
        "deleted_completed": 2,
        "deleted_failed": 1,
        "deleted_cancelled": 0,
        "deleted_expired": 0,
        "last_run": clock.now,
        "worker_id": scheduler.worker_id,
    }
    assert all(key in (Scheduler.get_vacuum_stats.__doc__ or "") for key in days[0])
    assert len(await scheduler.get_vacuum_stats(days=2)) == 2
    assert await scheduler.get_total_vacuum_stats() == {
        "total_completed": 6,
        "total_failed": 3,
        "total_cancelled": 0,
        "total_expired": 0,
        "last_vacuum_run": clock.now,
    }


async def test_total_vacuum_stats_are_zero_when_nothing_was_deleted(make: Make) -> None:
    scheduler = make(vacuum_config=VacuumConfig(track_metrics=True))
    total = await scheduler.get_total_vacuum_stats()
    assert (total["total_completed"], total["last_vacuum_run"]) == (0, None)


@pytest.mark.parametrize("days", [0, -1, 1.5, True])
async def test_get_vacuum_stats_rejects_an_invalid_number_of_days(make: Make, days: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        await make().get_vacuum_stats(days)


@pytest.mark.parametrize("enabled", [True, False])
async def test_vacuum_service_runs_unless_disabled(make: Make, enabled: bool) -> None:
    config = VacuumConfig(IMMEDIATE, interval_minutes=1e-4)
    scheduler = make(vacuum_config=config, vacuum_enabled=enabled)
    seen = Recorder(scheduler)
    await create_finished_jobs(scheduler, completed=1)
    await scheduler.start()
    assert bool(seen.of(PassFinished, service="vacuum")) is enabled
    if enabled:
        await seen.until(JobsVacuumed)
    assert (await scheduler.count_jobs()).completed == (not enabled)
    assert sum((await scheduler.run_vacuum()).values()) == (not enabled)
