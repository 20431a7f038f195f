"""Roles, identities and routing: what a started Scheduler does, and which jobs it claims."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobCall, JobExecutor, JobSpec, JobStatus, PollingConfig, Scheduler, periodic
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.events import JobCompleted, JobsReclaimed, JobStarted, PassFinished, WorkerStarted
from tests.api.conftest import Make
from tests.support.cases import each_case
from tests.support.inside import periodic_catalogue, set_server_start_grace, worker_of
from tests.support.worker import Gate, Recorder, now


async def work() -> None: ...


async def other() -> None: ...


@asynccontextmanager
async def started(pool: asyncpg.Pool, **settings: Any) -> AsyncIterator[tuple[Scheduler, Recorder]]:
    scheduler = Scheduler(pool, **settings)
    scheduler.register(work, name="reports.work")
    scheduler.register(other, name="mail.other")
    seen = Recorder(scheduler)
    async with scheduler:
        yield scheduler, seen


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Any:
    periodic_catalogue.clear()
    yield periodic(every=timedelta(hours=1), dedup_key="tick")(work)
    periodic_catalogue.clear()


def passes(seen: Recorder) -> set[str]:
    return {each.service for each in seen.of(PassFinished)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "runs", "plans"),
    [("both", True, True), ("worker", True, False), ("scheduler", False, True), ("observer", False, False)],
)
async def test_role_decides_which_services_run_and_all_do_maintenance(
    pool: asyncpg.Pool, role: str, runs: bool, plans: bool
) -> None:
    async with started(pool, role=role) as (scheduler, seen):
        assert scheduler.is_running
        (row,) = await scheduler.workers()
        assert row.role == role
        if not runs:
            await seen.until(PassFinished, 2, service="rescuer")  # it scans the liveness locks by itself
        found = passes(seen)
    assert ("claimer" in found, "planner" in found) == (runs, plans)
    assert {"heartbeat", "rescuer", "deadline_scanner"} <= found


async def test_scheduler_role_enqueues_and_worker_role_runs(
    dsn: str, pool: asyncpg.Pool, ticking: Any
) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=5) as second,
        started(pool, role="scheduler") as (planner, planned),
        started(second, role="worker") as (worker, ran),
    ):
        job_id = await planner.trigger_periodic_job("tick")
        await ran.until(JobCompleted, job_id=job_id)
        assert worker.disable_periodic_job("tick")
        await worker._periodic_jobs.wait_for_writes()
        assert not planned.of(JobCompleted)
        assert await second.fetchval("SELECT paused_at FROM scheduler_schedules") is not None


@pytest.mark.slow
async def test_observer_reclaims_the_jobs_of_a_worker_whose_process_has_ended(pool: asyncpg.Pool) -> None:
    await Scheduler(pool).initialize_db()
    await add_dead_worker(pool, "dead", "pod", "elsewhere")  # its lease is valid, its liveness lock is free
    polling = PollingConfig(max_interval=0.1)
    scheduler = Scheduler(pool, role="observer", polling_config=polling)
    set_server_start_grace(scheduler, 0.0)
    seen = Recorder(scheduler)
    async with scheduler:
        (reclaimed,) = await seen.until(JobsReclaimed)
        assert reclaimed == JobsReclaimed(("job of dead",), ("dead",))


async def add_dead_worker(pool: asyncpg.Pool, worker_id: str, identity: str, hostname: str) -> None:
    """Insert a worker whose liveness lock is free, with a running job."""
    await pool.execute(
        "INSERT INTO scheduler_workers (worker_id, hostname, pid, version, max_concurrent_jobs, identity,"
        " liveness_key, started_at, last_beat, lease_until)"
        " VALUES ($1, $3, 1, '1', 1, $2, 4711, now(), now(), now() + interval '1 hour')",
        worker_id,
        identity,
        hostname,
    )
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, worker_id, attempt,"
        " lease_until, last_heartbeat) VALUES ('job of ' || $1, 'no.such', now(), 'running', $1, 1,"
        " now() + interval '1 hour', now())",
        worker_id,
    )


async def test_start_releases_the_jobs_of_an_ended_worker_with_the_same_identity_and_host(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Scheduler(pool).initialize_db()
    monkeypatch.setattr("platform.node", lambda: "here")
    for worker_id, identity, hostname in [
        ("a", "pod", "here"),
        ("b", "pod", "there"),
        ("c", "other", "here"),
    ]:
        await add_dead_worker(pool, worker_id, identity, hostname)
    scheduler = Scheduler(pool, identity="pod", metadata={"zone": ["a", 1]})
    set_server_start_grace(scheduler, 0.0)
    seen = Recorder(scheduler)
    async with scheduler:
        reclaimed = seen.of(JobsReclaimed)[0]
        assert (reclaimed.job_ids, reclaimed.dead_workers) == (("job of a",), ("a",))
        (row,) = [each for each in await scheduler.workers() if each.worker_id == scheduler.worker_id]
        assert (row.identity, row.hostname, row.metadata) == ("pod", "here", {"zone": ["a", 1]})
        (event,) = seen.of(WorkerStarted)
        assert event.identity == "pod"


@pytest.mark.parametrize("ends", [False, True])
async def test_worker_without_a_free_slot_reclaims_the_jobs_of_one_that_was_killed(
    make: Make, gate: Gate, pool: asyncpg.Pool, ends: bool
) -> None:
    """Its slots are taken for long, or each claim gets as many jobs as it asks for."""
    scheduler = make(max_concurrent_jobs=2, polling_config=PollingConfig(max_interval=0.5))
    set_server_start_grace(scheduler, 0.0)
    seen = Recorder(scheduler)
    chain = asyncio.Event()

    async def follow() -> None:
        """Leave a job behind itself, so that no claim finds fewer jobs than there are slots."""
        if not chain.is_set():
            await scheduler.schedule_bulk([JobSpec(follow, now())] * 2)

    scheduler.register(follow)
    scheduler.register(gate.job)
    async with scheduler:
        await scheduler.schedule_bulk([JobSpec(follow if ends else gate.job, now())] * 4)
        await seen.until(JobStarted, 2)
        await add_dead_worker(pool, "killed", "pod", "there")
        await seen.until(JobsReclaimed)
        assert gate.cancelled == 0
        chain.set()
        gate.open.set()
    assert seen.of(JobsReclaimed)[0].dead_workers == ("killed",)


async def test_two_live_workers_with_one_identity_keep_their_jobs(dsn: str, pool: asyncpg.Pool) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=5) as second,
        started(pool, identity="pod") as (scheduler, _),
        started(second, identity="pod") as (_, seen),
    ):
        assert len(await scheduler.workers()) == 2
        assert not seen.of(JobsReclaimed)


@pytest.mark.parametrize("text", ["null", "[1]", '{"a": 1}', "1" * 5000])
async def test_workers_accepts_metadata_that_was_written_by_hand(pool: asyncpg.Pool, text: str) -> None:
    async with started(pool) as (scheduler, _):
        await pool.execute("UPDATE scheduler_workers SET metadata = $1::text::jsonb", text)
        (row,) = await scheduler.workers()
        assert row.metadata == ({"a": 1} if text.startswith("{") else {})


@pytest.mark.parametrize(
    ("settings", "claimed"),
    [
        ({}, {"reports.work", "mail.other"}),
        ({"only": ("reports.*",)}, {"reports.work"}),
        ({"skip": ["reports.*", "x"]}, {"mail.other"}),
        ({"only": ["*.*"], "skip": ("mail.other",)}, {"reports.work"}),
        ({"only": ("nothing",)}, set()),
    ],
)
async def test_worker_claims_the_names_that_its_patterns_select(
    pool: asyncpg.Pool, settings: dict[str, Any], claimed: set[str]
) -> None:
    async with started(pool, **settings) as (scheduler, _):
        names = set(worker_of(scheduler).node.routing.names())
    assert names & {"reports.work", "mail.other"} == claimed


async def test_job_that_is_skipped_runs_on_another_worker(dsn: str, pool: asyncpg.Pool) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=5) as second,
        started(pool, skip=("mail.*",)) as (one, first),
        started(second, only=("mail.*",)) as (two, seen),
    ):
        report = await one.schedule(work, execution_time=now())
        mail = await one.schedule(other, execution_time=now())
        await seen.until(JobCompleted, job_id=mail)
        await first.until(JobCompleted, job_id=report)
        job = await one.get_job(mail)
        assert job is not None
        assert job.worker_id == two.worker_id


class Gpu(JobExecutor):
    """Runs nothing."""

    async def run(self, call: JobCall) -> None: ...


def on_gpu() -> None: ...


async def test_function_of_a_missing_executor_is_reported_once_when_a_running_worker_registers_it(
    pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(pool) as (lacking, seen):
        with caplog.at_level(logging.WARNING, "pg_scheduler"):
            lacking.register(on_gpu, name="train", executor="gpu")
            for count in (1, 2):
                await lacking.enqueue(work)
                await seen.until(JobCompleted, count)
    warning = "executor 'gpu' is missing here, so jobs of train are left to other workers; pass executors="
    assert caplog.messages.count(warning) == 1


async def test_jobs_of_a_missing_executor_are_left_to_other_workers_with_a_warning(
    dsn: str, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    lacking = Scheduler(pool)
    lacking.register(on_gpu, name="train", executor="gpu")
    seen = Recorder(lacking)
    with caplog.at_level(logging.WARNING, "pg_scheduler"):
        await lacking.start()
    assert "executor 'gpu' is missing here, so jobs of train are left to other workers" in caplog.text
    job_id = await lacking.schedule(on_gpu, execution_time=now())
    lacking.register(work, name="reports.work")
    plain = await lacking.schedule(work, execution_time=now())
    await seen.until(JobCompleted, job_id=plain)
    job = await lacking.get_job(job_id)
    assert job is not None
    assert job.status is JobStatus.PENDING
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as second:
        able = Scheduler(second, executors={"gpu": Gpu()})
        able.register(on_gpu, name="train", executor="gpu")
        found = Recorder(able)
        async with able:
            await found.until(JobCompleted, job_id=job_id)
    await lacking.shutdown()


async def test_pattern_without_a_registered_function_is_a_warning(
    pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pg_scheduler"):
        async with started(pool, only=("reports.*", "nothing.*"), skip=("none",)):
            pass
    assert "only='nothing.*' matches no registered function" in caplog.text
    assert "skip='none' matches no registered function" in caplog.text
    assert "reports" not in caplog.text


@each_case(
    ("settings", "text"),
    [
        ({"role": "boss"}, "role must be 'both', 'scheduler', 'worker' or 'observer', not 'boss'"),
        ({"identity": ""}, "identity must have 1 to 200 characters"),
        ({"identity": "x" * 201}, "identity must have 1 to 200 characters"),
        ({"only": "reports.*"}, "only must be a valid tuple, not 'reports"),
        ({"skip": ("",)}, "skip.0 must have at least 1 character"),
        ({"only": None}, "only must be a valid tuple, not None"),
        ({"skip": 5}, "skip must be a valid tuple, not 5"),
        ({"identity": "\udcff"}, "identity must have .*no lone surrogate"),
        ({"metadata": "zone"}, "metadata must be a valid dictionary, not 'zone'"),
        ({"metadata": {"a": "\udcff"}}, "metadata must be .*without NUL and lone surrogates"),
        ({"metadata": {"a": object()}}, "metadata must be values of JSON"),
        ({"metadata": {"a": "x" * 10_000}}, "metadata must be at most 10000 characters"),
        ({"stop_grace": -1}, "stop_grace must be greater than or equal to 0"),
        ({"executors": {"": Gpu()}}, "executors must have names"),
        ({"executors": {"async": Gpu()}}, "executors cannot replace 'async'"),
        ({"executors": {"gpu": 5}}, r"executors\['gpu'\] must be a JobExecutor, not 5"),
    ],
)
async def test_scheduler_rejects_invalid_settings_of_workers(
    pool: asyncpg.Pool, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Scheduler(pool, **settings)
