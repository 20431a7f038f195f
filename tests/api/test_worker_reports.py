"""What a running worker reports about itself, and the requests that it obeys."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg

from pg_scheduler import Limit, Scheduler, Worker
from pg_scheduler.events import JobCompleted, ListenerConnected
from pg_scheduler.inspect import FindingCode, Inspector, ReasonCode
from tests.api.conftest import Make
from tests.support.inside import store_of, worker_of
from tests.support.worker import PATIENCE, Gate, Recorder


async def work() -> None: ...


async def other() -> None: ...


async def only_worker(scheduler: Scheduler) -> Worker:
    (found,) = await scheduler.workers()
    return found


async def test_worker_reports_its_names_settings_and_health(make: Make, dsn: str) -> None:
    scheduler = make(keeper_dsn=dsn, skip=["*other", "*.*"], lease=timedelta(seconds=45))
    limit = Limit("stripe", max_starts=3, per=timedelta(seconds=1), key=lambda: 1)
    scheduler.register(work, name="work", limits=[limit])
    scheduler.register(other, name="other")
    await scheduler.start()
    worker = await only_worker(scheduler)
    assert (worker.state, worker.wanted) == ("running", None)
    assert worker.names is not None
    assert "work" in worker.names, "beside those of other modules"
    assert set(worker.health) == {"pool", "loop_lag_s", "is_listening", "has_liveness_lock"}
    assert worker.health["pool"]["max"] >= worker.health["pool"]["size"] >= worker.health["pool"]["idle"]
    assert worker.settings["lease_seconds"] == 45
    assert worker.settings["skip"] == ["*other", "*.*"]
    declared = {
        "task": "work",
        "name": "stripe",
        "by_key": True,
        "max_running": None,
        "max_starts": 3,
        "per_s": 1.0,
        "spread": False,
    }
    assert declared in worker.settings["limits"]
    assert dsn not in str(worker)
    await worker_of(scheduler).heartbeat.run_once()
    health = (await only_worker(scheduler)).health
    assert (health["is_listening"], health["has_liveness_lock"]) == (True, True)
    assert abs(health["clock_offset_s"]) < PATIENCE, (
        "it is measured by the registration, and by each heartbeat"
    )
    await scheduler.shutdown()


async def test_job_whose_executor_is_missing_is_explained_by_that(make: Make) -> None:
    scheduler = make()
    await scheduler.start()
    scheduler.register(work, name="train", executor="gpu")
    await worker_of(scheduler).heartbeat.run_once()
    job_id = await scheduler.enqueue("train", misfire_grace_time=None)
    (reason,) = (await Inspector(scheduler).explain_job(job_id)).reasons
    assert reason.code is ReasonCode.NAME_UNKNOWN
    text = f"no live worker claims 'train': the executor 'gpu' is missing on {scheduler.worker_id} on "
    assert reason.text.startswith(text)
    assert reason.remedy == "pass executors={'gpu': ...} to the Scheduler of a worker"
    diagnosis = await Inspector(scheduler).doctor(only=[FindingCode.NAME_UNKNOWN])
    (finding,) = diagnosis.findings
    assert finding.evidence.endswith("claims that name: the executor 'gpu' is missing")
    assert finding.remedy == reason.remedy


async def test_worker_that_runs_no_jobs_reports_no_names(make: Make) -> None:
    scheduler = make(role="scheduler")
    scheduler.register(work, name="work")
    await scheduler.start()
    assert (await only_worker(scheduler)).names == ()
    await scheduler.shutdown()


async def test_draining_worker_claims_no_job_until_it_resumes(make: Make) -> None:
    scheduler = make()
    gate = Gate()
    scheduler.register(gate.job, name="gate")
    scheduler.register(work, name="work")
    seen = Recorder(scheduler)
    await scheduler.start()
    await seen.until(ListenerConnected)
    running = await scheduler.enqueue("gate")
    await gate.wait_begun()
    workers = store_of(scheduler).workers
    async with asyncio.timeout(PATIENCE):
        assert await workers.request_state([scheduler.worker_id, "unknown"], "drain") == [scheduler.worker_id]
        while (await only_worker(scheduler)).state != "draining":  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # no event reports that a worker drains
        waiting = await scheduler.enqueue("work")
        gate.open.set()
        await seen.until(JobCompleted, job_id=running)
        assert await worker_of(scheduler).claimer.run_once() >= 0
        job = await scheduler.get_job(waiting)
        assert job is not None
        assert job.status == "pending"
        worker = await only_worker(scheduler)
        assert worker.wanted == "drain"
        assert worker.names is not None
        assert {"gate", "work"} <= {*worker.names}
        await workers.request_state([scheduler.worker_id], None)
        await seen.until(JobCompleted, job_id=waiting)
    assert (await only_worker(scheduler)).wanted is None
    await scheduler.shutdown()


async def test_worker_whose_row_was_deleted_goes_on_draining(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await scheduler.start()
    runtime = worker_of(scheduler)
    await store_of(scheduler).workers.request_state([scheduler.worker_id], "drain")
    await runtime.heartbeat.run_once()
    await pool.execute("DELETE FROM scheduler_workers")
    await runtime.heartbeat.run_once()
    await runtime.heartbeat.run_once()
    assert runtime.node.routing.names() == []
    worker = await only_worker(scheduler)
    assert (worker.state, worker.wanted) == ("draining", "drain")
    assert not scheduler.health().ready
    await scheduler.shutdown()


async def test_worker_reports_that_it_is_stopping(make: Make) -> None:
    scheduler = make()
    gate = Gate()
    scheduler.register(gate.job, name="gate")
    await scheduler.start()
    await scheduler.enqueue("gate")
    await gate.wait_begun()
    runtime = worker_of(scheduler)
    stopping = asyncio.create_task(scheduler.shutdown())
    async with asyncio.timeout(PATIENCE):
        while not runtime.reporter.is_stopping:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # no event reports that a shutdown has begun
        await runtime.heartbeat.run_once()
        assert (await only_worker(scheduler)).state == "stopping"
        gate.open.set()
        await stopping
    assert await scheduler.workers() == []


async def test_row_of_an_earlier_release_has_no_report(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    await scheduler.initialize_db()
    await pool.execute(
        "INSERT INTO scheduler_workers VALUES ('old', 'host', 1, '0.9', 10, 0, now(), now(), now())"
    )
    worker = await only_worker(scheduler)
    assert (worker.state, worker.wanted, worker.names, worker.health, worker.settings) == (
        None,
        None,
        None,
        {},
        {},
    )
