"""Start and shutdown: order, concurrency, failures and small pools."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    ConflictResolution,
    DatabaseUnavailableError,
    JobFailedError,
    JobSpec,
    JobStatus,
    NotRunningError,
    PollingConfig,
    PoolClosedError,
    Scheduler,
    SchemaTooNewError,
    current_job,
    periodic,
)
from pg_scheduler.events import (
    EventBus,
    JobCancelled,
    JobCompleted,
    JobReleased,
    JobStarted,
    ListenerLost,
    ServiceRetrying,
    WorkerStarted,
    WorkerStopped,
)
from tests.api.conftest import Make, Pools
from tests.support.inside import Claimer, store_of
from tests.support.worker import (
    PATIENCE,
    PROMPT,
    Gate,
    Recorder,
    holds,
    kill_backends,
    listening_pid,
    new_job,
    now,
)


async def test_start_returns_when_jobs_are_being_claimed(make: Make, open_gate: Gate) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    assert (scheduler.is_running, scheduler.is_shutting_down) == (False, False)
    await scheduler.schedule(open_gate.job, execution_time=now())
    await scheduler.start()
    assert (scheduler.is_running, scheduler.is_shutting_down) == (True, False)
    (row,) = await scheduler.list_jobs()
    assert row.status in {JobStatus.RUNNING, JobStatus.COMPLETED}
    await seen.until(JobCompleted)
    (worker,) = await scheduler.workers()
    assert (worker.worker_id, worker.is_alive, worker.max_concurrent_jobs) == (scheduler.worker_id, True, 25)
    assert seen.of(WorkerStarted) == [WorkerStarted(scheduler.worker_id)]


async def test_worker_started_precedes_the_events_of_jobs_that_are_due(make: Make, open_gate: Gate) -> None:
    scheduler = make()
    scheduler.register(open_gate.job)
    seen = Recorder(scheduler)
    await scheduler.schedule(open_gate.job, execution_time=now())
    await scheduler.start()
    await seen.until(JobCompleted)
    kinds = [
        type(each) for each in seen.events if isinstance(each, WorkerStarted | JobStarted | JobCompleted)
    ]
    assert kinds == [WorkerStarted, JobStarted, JobCompleted]


async def test_worker_stopped_follows_worker_started_when_the_claimer_cannot_start(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> float:
        raise RuntimeError("no claim")

    monkeypatch.setattr(Claimer, "run_once", fail)
    scheduler = make()
    seen = Recorder(scheduler)
    with pytest.raises(RuntimeError, match="no claim"):
        await scheduler.start()
    kinds = [type(each) for each in seen.events if isinstance(each, WorkerStarted | WorkerStopped)]
    assert kinds == [WorkerStarted, WorkerStopped]
    assert not scheduler.is_running


async def test_start_and_shutdown_are_no_ops_when_repeated(make: Make) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.shutdown()
    await scheduler.start()
    await scheduler.start()
    await scheduler.shutdown()
    await scheduler.shutdown()
    assert len(seen.of(WorkerStarted)) == len(seen.of(WorkerStopped)) == 1
    assert (scheduler.is_running, scheduler.is_shutting_down) == (False, False)
    assert await scheduler.workers() == []


async def test_concurrent_starts_and_shutdowns_act_as_one(make: Make) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    await asyncio.gather(*(scheduler.start() for _ in range(5)))
    await asyncio.gather(*(scheduler.shutdown() for _ in range(5)))
    assert len(seen.of(WorkerStarted)) == len(seen.of(WorkerStopped)) == 1


async def test_scheduler_starts_again_after_a_shutdown(make: Make, open_gate: Gate) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    for run in range(1, 4):
        await scheduler.start()
        await scheduler.schedule(open_gate.job, execution_time=now())
        await seen.until(JobCompleted, run)
        await scheduler.shutdown()
    assert len(open_gate.calls) == 3


async def test_shutdown_waits_for_a_start_in_progress(make: Make) -> None:
    scheduler = make()
    starting = asyncio.create_task(scheduler.start())
    await asyncio.sleep(0)
    await scheduler.shutdown()
    await starting
    assert not holds(scheduler.is_running)
    assert await scheduler.workers() == []


async def test_start_waits_for_a_shutdown_in_progress(make: Make, gate: Gate) -> None:
    scheduler = make()
    await scheduler.start()
    await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    stopping = asyncio.create_task(scheduler.shutdown())
    await asyncio.sleep(0)
    gate.open.set()
    await scheduler.start()
    await stopping
    assert holds(scheduler.is_running)
    assert len(await scheduler.workers()) == 1


async def test_start_leaves_no_tasks_and_no_worker_row_when_cancelled(make: Make) -> None:
    scheduler = make()
    for turns in range(0, 60, 3):
        starting = asyncio.create_task(scheduler.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():
            await scheduler.shutdown()
        assert not holds(scheduler.is_running)
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert not {name for name in names if name.startswith("pg_scheduler")}
    assert await scheduler.workers() == []


@pytest.mark.parametrize("fails_in", ["_next_delay", "start"])
async def test_start_releases_every_connection_when_it_fails(
    dsn: str, monkeypatch: pytest.MonkeyPatch, fails_in: str
) -> None:
    """This includes a failure after the first claim, which keeps the connection of the hot path."""

    async def broken_start(self: Claimer) -> None:
        await start(self)
        raise LookupError("on purpose")

    def broken(*_args: object, **_values: object) -> float:
        raise LookupError("on purpose")

    start = Claimer.start
    monkeypatch.setattr(Claimer, fails_in, broken_start if fails_in == "start" else broken)
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=5)
    scheduler = Scheduler(pool)
    with pytest.raises(LookupError):
        await scheduler.start()
    await asyncio.wait_for(pool.close(), PATIENCE)


async def test_shutdown_releases_every_connection(dsn: str, gate: Gate) -> None:
    """This includes the case that another service than the claimer writes the last results."""
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=5)
    scheduler = Scheduler(pool, shutdown_timeout=0)
    await scheduler.start()
    await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    assert pool.get_size() - pool.get_idle_size() >= 2, "LISTEN and the hot path hold one each"
    await scheduler.shutdown()
    await asyncio.wait_for(pool.close(), PATIENCE)


async def test_two_schedulers_run_jobs_on_one_pool_of_four_connections(
    make: Make, pools: Pools, open_gate: Gate
) -> None:
    """Each prefers to hold two connections; one must stay free for work."""
    pool = await pools(4)
    one, two, both = make(pool), make(pool), EventBus()
    seen = Recorder(both)
    for scheduler in (one, two):
        scheduler.subscribe(both.publish)
        await scheduler.start()
    await one.schedule_bulk([JobSpec(open_gate.job, now()) for _ in range(50)])
    await seen.until(JobCompleted, 50)
    assert seen.of(ServiceRetrying) == []


async def test_due_job_runs_after_the_listener_reconnects_when_its_notification_was_lost(
    make: Make, pool: asyncpg.Pool, open_gate: Gate
) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(open_gate.job, name="app.work")
    await scheduler.start()
    unannounced = new_job("unannounced", "app.work")
    await store_of(scheduler).inserts.insert([unannounced])  # without a notification
    assert await pool.fetchval("SELECT pg_terminate_backend($1)", listening_pid(scheduler))
    await seen.until(JobCompleted, job_id="unannounced")


async def test_replacement_of_a_running_job_starts_without_a_poll_when_the_old_attempt_ends(
    make: Make, gate: Gate
) -> None:
    """The row becomes pending without a notification, and polling is too slow to help."""
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule(gate.job, execution_time=now(), args=("old",), job_id="job")
    await gate.wait_begun()
    await scheduler.schedule(
        gate.job,
        execution_time=now(),
        args=("new",),
        job_id="job",
        conflict_resolution=ConflictResolution.REPLACE,
    )
    gate.open.set()
    await seen.until(JobCompleted, 2, job_id="job")
    assert gate.calls == [("old",), ("new",)]


async def test_shutdown_continues_in_the_background_when_cancelled(make: Make, gate: Gate) -> None:
    scheduler = make(shutdown_timeout=PATIENCE)
    await scheduler.start()
    job_id = await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    stopping = asyncio.create_task(scheduler.shutdown())
    await asyncio.wait([stopping], timeout=0.02)  # until it waits for the job
    assert scheduler.is_shutting_down
    stopping.cancel()
    await asyncio.wait([stopping])
    gate.open.set()
    await scheduler.shutdown()
    row = await scheduler.get_job(job_id)
    assert row is not None
    assert row.status is JobStatus.COMPLETED


async def test_shutdown_waits_for_running_jobs_and_claims_no_more(make: Make, gate: Gate) -> None:
    scheduler = make(shutdown_timeout=PATIENCE)
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    stopping = asyncio.create_task(scheduler.shutdown())
    await asyncio.wait([stopping], timeout=0.02)  # real time: it must wait
    assert not stopping.done()
    late = await scheduler.schedule(gate.job, execution_time=now())  # no longer claimed
    gate.open.set()
    await stopping
    assert len(seen.of(JobCompleted)) == 1
    row = await scheduler.get_job(late)
    assert row is not None
    assert (row.status, row.attempt) == (JobStatus.PENDING, 0)


async def test_shutdown_releases_jobs_that_exceed_the_shutdown_timeout(make: Make, gate: Gate) -> None:
    scheduler, other = make(), make()
    seen, others = Recorder(scheduler), Recorder(other)
    await scheduler.start()
    job_id = await scheduler.schedule(gate.job, execution_time=now(), max_retries=1)
    await gate.wait_begun()
    await scheduler.shutdown()
    assert [event.job_id for event in seen.of(JobReleased)] == [job_id]
    assert type(seen.events[-1]) is WorkerStopped
    row = await scheduler.get_job(job_id)
    assert row is not None
    assert (row.status, row.retry_count, row.worker_id, row.lease_until) == (
        JobStatus.PENDING,
        0,
        None,
        None,
    )
    gate.open.set()
    other.register(gate.job)
    await other.start()
    await others.until(JobCompleted, job_id=job_id, attempt=2)


async def test_another_worker_claims_jobs_released_by_shutdown_without_a_poll(make: Make, gate: Gate) -> None:
    scheduler, other = make(), make()
    others = Recorder(other)
    await scheduler.start()
    job_id = await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    other.register(gate.job)
    await other.start()
    await scheduler.shutdown()
    await others.until(JobStarted, job_id=job_id, attempt=2)
    gate.open.set()
    await others.until(JobCompleted, job_id=job_id)


async def test_shutdown_completes_when_called_by_a_job_of_the_scheduler(make: Make) -> None:
    """The shutdown must not wait for the job that called it, nor interrupt and repeat that job."""
    scheduler = make(shutdown_timeout=PATIENCE)
    seen = Recorder(scheduler)
    completed: list[str] = []

    async def shut_down() -> None:
        await scheduler.shutdown()
        completed.append("job")

    await scheduler.start()
    job_id = await scheduler.schedule(shut_down, execution_time=now())
    async with asyncio.timeout(PROMPT):
        await scheduler.wait()
    assert completed == ["job"]
    assert [event.job_id for event in seen.of(JobCompleted)] == [job_id]
    assert not holds(scheduler.is_running)


async def test_job_cannot_enter_the_scheduler_that_runs_it(make: Make) -> None:
    scheduler, other = make(), make()

    async def enter() -> None:
        async with other:  # another one, as a script has it, can be entered
            pass
        async with current_job().scheduler:
            pass

    scheduler.register(enter, name="enter", max_retries=0)
    await scheduler.start()
    with pytest.raises(JobFailedError, match=r"use current_job\(\)\.scheduler without async with"):
        await scheduler.run_job(enter, wait_timeout=PATIENCE)
    assert scheduler.is_running
    assert not other.is_running


async def test_shutdown_completes_when_called_by_a_job_of_another_scheduler(make: Make, gate: Gate) -> None:
    scheduler, other = make(), make()
    seen = Recorder(scheduler)

    async def stop_the_other() -> None:
        await other.shutdown()
        assert not holds(other.is_running)

    await scheduler.start()
    await other.start()
    job_id = await scheduler.schedule(stop_the_other, execution_time=now())
    await seen.until(JobCompleted, job_id=job_id)


async def test_async_with_block_starts_and_shuts_down(pool: asyncpg.Pool) -> None:
    async with Scheduler(pool) as scheduler:
        assert holds(scheduler.is_running)
        waiting = asyncio.create_task(scheduler.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
    assert not holds(scheduler.is_running)
    await waiting
    await scheduler.wait()  # at once


async def test_two_schedulers_in_one_process_each_run_some_jobs(make: Make, gate: Gate) -> None:
    first, second = make(max_concurrent_jobs=1), make(max_concurrent_jobs=1)
    started = Recorder(first), Recorder(second)
    assert first.worker_id != second.worker_id
    await first.start()
    await second.start()
    second.register(gate.job)
    for _ in range(2):
        await first.schedule(gate.job, execution_time=now())
    await started[0].until(JobStarted)
    await started[1].until(JobStarted)
    assert len(await first.workers()) == 2
    gate.open.set()
    await started[0].until(JobCompleted)
    await started[1].until(JobCompleted)
    await first.shutdown()
    assert holds(second.is_running)
    assert [worker.worker_id for worker in await second.workers()] == [second.worker_id]


@pytest.mark.slow
async def test_twenty_schedulers_start_at_once_on_an_empty_database(empty_dsn: str) -> None:
    pools = [await asyncpg.create_pool(empty_dsn, min_size=1, max_size=2) for _ in range(20)]
    schedulers = [Scheduler(pool) for pool in pools]
    await asyncio.gather(*(scheduler.start() for scheduler in schedulers))
    assert len(await schedulers[0].workers()) == 20
    await asyncio.gather(*(scheduler.shutdown() for scheduler in schedulers))
    for pool in pools:
        await pool.close()


async def test_start_rejects_a_database_migrated_by_a_newer_version(make: Make, pool: asyncpg.Pool) -> None:
    await pool.execute(
        "INSERT INTO scheduler_migrations (version, name, checksum) VALUES (9999, 'future', 'x')"
    )
    scheduler = make()
    for call in (scheduler.start, scheduler.initialize_db):
        with pytest.raises(SchemaTooNewError):
            await call()
    assert not holds(scheduler.is_running)


async def test_start_fails_on_a_closed_pool_and_succeeds_later_on_an_open_one(dsn: str, make: Make) -> None:
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=3)
    scheduler = make(pool)
    await pool.close()
    with pytest.raises(PoolClosedError, match=r"shutdown\(\) before pool\.close\(\)"):
        await scheduler.start()
    assert not holds(scheduler.is_running)
    connections = store_of(scheduler).connections
    connections._pool = connections.share.held._pool = await asyncpg.create_pool(dsn, min_size=1, max_size=3)
    await scheduler.start()
    assert holds(scheduler.is_running)
    await scheduler.shutdown()
    await connections._pool.close()


async def test_scheduler_recovers_when_every_connection_is_lost(
    make: Make, pools: Pools, dsn: str, open_gate: Gate
) -> None:
    """Real time: one or two backoffs of a tenth of a second."""
    scheduler = make(await pools(5))
    seen = Recorder(scheduler)
    await scheduler.start()
    await kill_backends(dsn)
    await seen.until(ListenerLost)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                job_id = await scheduler.schedule(open_gate.job, execution_time=now())
                break
            except DatabaseUnavailableError:  # raised by the first use of each broken connection
                continue
    await seen.until(JobCompleted, job_id=job_id)


# -- small pools ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_scheduler_runs_jobs_and_schedules_with_a_small_pool(
    make: Make, pools: Pools, open_gate: Gate, size: int
) -> None:
    @periodic(every=timedelta(seconds=0.2), job_name="often")
    async def often() -> None: ...

    scheduler = make(await pools(size))
    seen = Recorder(scheduler)
    await scheduler.start()
    for _ in range(50):
        await scheduler.schedule(open_gate.job, execution_time=now())
    await scheduler.schedule(open_gate.job, execution_time=now() + timedelta(seconds=0.1), job_id="later")
    await seen.until(JobCompleted, job_id="later")
    await seen.until(JobCompleted, 2, job_name="often")
    await seen.until(JobCompleted, 53)
    assert len(seen.of(ListenerLost)) == (size < 3)


async def test_cancel_job_cancels_by_a_poll_on_a_worker_without_notifications(
    make: Make, pools: Pools, gate: Gate
) -> None:
    """Real time: such a worker polls every half second."""
    without_listen, other = make(await pools(1)), make()
    seen = Recorder(without_listen)
    await without_listen.start()
    await other.start()
    job_id = await without_listen.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    async with asyncio.timeout(PROMPT):
        assert await other.cancel_job(job_id)
        await seen.until(JobCancelled, job_id=job_id)


async def test_start_rejects_an_advisory_lock_with_a_pool_of_one_connection(make: Make, pools: Pools) -> None:
    @periodic(every=timedelta(hours=1), use_advisory_lock=True, dedup_key="locked")
    async def locked() -> None: ...

    scheduler = make(await pools(1))
    with pytest.raises(ConfigurationError, match=r"locked.*max_size"):
        await scheduler.start()
    assert not holds(scheduler.is_running)
    await make(await pools(2)).start()


async def test_advisory_lock_uses_the_direct_dsn_with_a_pool_of_one_connection(
    make: Make, pools: Pools, dsn: str
) -> None:
    @periodic(every=timedelta(hours=1), use_advisory_lock=True, dedup_key="locked")
    async def locked() -> None: ...

    scheduler = make(await pools(1), direct_dsn=dsn)
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.trigger_periodic_job("locked")
    await seen.until(JobCompleted, job_id=job_id)
    assert not seen.of(ListenerLost)


async def test_jobs_with_advisory_locks_leave_a_pool_connection_free(make: Make, pools: Pools) -> None:
    gate = Gate()

    @periodic(every=timedelta(hours=1), use_advisory_lock=True, dedup_key="one")
    async def one() -> None:
        await gate.job(1)

    @periodic(every=timedelta(hours=1), use_advisory_lock=True, dedup_key="two")
    async def two() -> None:
        await gate.job(2)

    scheduler = make(await pools(2))
    seen = Recorder(scheduler)
    await scheduler.start()
    for key in ("one", "two"):
        await scheduler.trigger_periodic_job(key)
    await gate.wait_begun()
    try:
        async with asyncio.timeout(PROMPT):  # else the calls wait for a connection for 30 seconds
            for _ in range(20):
                await scheduler.count_jobs()
    finally:
        gate.open.set()
    await seen.until(JobCompleted, 2)


# -- building blocks and polling -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    ["recover_orphaned_jobs", "periodic_orphan_recovery", "monitor_heartbeats", "listen_for_jobs"],
)
async def test_legacy_methods_raise_before_the_start(make: Make, call: str) -> None:
    with pytest.raises(NotRunningError, match="start"):
        await getattr(make(), call)()


async def test_jobs_run_by_polling_when_there_are_no_notifications(
    make: Make, pools: Pools, open_gate: Gate
) -> None:
    """Another process schedules, and this one cannot listen. Real time: a few polls."""
    without_listen = make(await pools(1), polling_config=PollingConfig(max_interval=0.05))
    seen = Recorder(without_listen)
    without_listen.register(open_gate.job)
    await without_listen.start()
    await make().schedule(open_gate.job, execution_time=now())
    await seen.until(JobCompleted)


async def test_worker_id_has_the_length_set_on_the_instance(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    assert len(scheduler.worker_id) == 8
    scheduler.WORKER_ID_LENGTH = 41  # type: ignore[misc] # documented for instances, too
    async with scheduler:
        assert len(scheduler.worker_id) == 41
        assert [worker.worker_id for worker in await scheduler.workers()] == [scheduler.worker_id]


async def test_shutdown_without_a_start_releases_the_connection_of_calls(
    make: Make, pool: asyncpg.Pool, gate: Gate
) -> None:
    scheduler = make()
    await scheduler.initialize_db()
    await scheduler.schedule(gate.job, execution_time=now())
    assert pool.get_idle_size() < pool.get_size()
    await scheduler.shutdown()
    assert pool.get_idle_size() == pool.get_size()
    await scheduler.schedule(gate.job, execution_time=now())


async def test_block_within_a_block_is_refused_and_leaves_the_worker_running(
    pool: asyncpg.Pool, gate: Gate
) -> None:
    scheduler = Scheduler(pool)
    scheduler.register(gate.job)
    for _ in range(2):  # one block after the other is no mistake
        async with scheduler:
            with pytest.raises(RuntimeError, match="another block of async with has started this Scheduler"):
                await scheduler.__aenter__()
            assert scheduler.is_running
    entered = await asyncio.gather(*(scheduler.__aenter__() for _ in range(2)), return_exceptions=True)
    assert [type(result) for result in entered] == [Scheduler, RuntimeError], "also if both begin at once"
    await scheduler.__aexit__(None, None, None)
    await scheduler.start()
    async with scheduler:  # a Scheduler that start() has started belongs to the block
        assert scheduler.is_running
    assert not scheduler.is_running
