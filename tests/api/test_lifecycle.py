"""Start and shutdown, in every order and company."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from pg_scheduler import (
    ConfigurationError,
    ConflictResolution,
    DatabaseUnavailableError,
    JobSpec,
    JobStatus,
    NotRunningError,
    PollingConfig,
    PoolClosedError,
    Scheduler,
    SchemaTooNewError,
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
from pg_scheduler.worker.pipeline.claimer import Claimer
from tests.api.conftest import Make, Pools
from tests.support.worker import PATIENCE, Gate, Recorder, holds, kill_backends, listening_pid, new_job, now


async def test_start_returns_when_jobs_are_being_claimed(make: Make, opened: Gate) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    assert (scheduler.is_running, scheduler.is_shutting_down) == (False, False)
    await scheduler.schedule(opened.job, execution_time=now())
    await scheduler.start()
    assert (scheduler.is_running, scheduler.is_shutting_down) == (True, False)
    (row,) = await scheduler.list_jobs()
    assert row.status in {JobStatus.RUNNING, JobStatus.COMPLETED}
    await seen.until(JobCompleted)
    (worker,) = await scheduler.workers()
    assert (worker.worker_id, worker.is_alive, worker.max_concurrent_jobs) == (scheduler.worker_id, True, 25)
    assert seen.of(WorkerStarted) == [WorkerStarted(scheduler.worker_id)]


async def test_start_and_shutdown_twice_are_no_ops(make: Make) -> None:
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


async def test_start_and_shutdown_at_once_are_one(make: Make) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    await asyncio.gather(*(scheduler.start() for _ in range(5)))
    await asyncio.gather(*(scheduler.shutdown() for _ in range(5)))
    assert len(seen.of(WorkerStarted)) == len(seen.of(WorkerStopped)) == 1


async def test_it_starts_again_after_a_shutdown(make: Make, opened: Gate) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    for run in range(1, 4):
        await scheduler.start()
        await scheduler.schedule(opened.job, execution_time=now())
        await seen.until(JobCompleted, run)
        await scheduler.shutdown()
    assert len(opened.calls) == 3


async def test_a_shutdown_during_the_start_comes_after_it(make: Make) -> None:
    scheduler = make()
    starting = asyncio.create_task(scheduler.start())
    await asyncio.sleep(0)
    await scheduler.shutdown()
    await starting
    assert not holds(scheduler.is_running)
    assert await scheduler.workers() == []


async def test_a_start_during_the_shutdown_comes_after_it(make: Make, gate: Gate) -> None:
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


async def test_a_start_that_is_cancelled_leaves_nothing_running(make: Make) -> None:
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


@pytest.mark.parametrize("fails_in", ["_until_next", "start"])
async def test_a_start_that_fails_gives_every_connection_back(
    dsn: str, monkeypatch: pytest.MonkeyPatch, fails_in: str
) -> None:
    """Even after the first claim, which takes the connection of the hot path for long."""

    async def broken_start(self: Claimer) -> None:
        await start(self)
        raise LookupError("mine")

    def broken(*_args: object, **_values: object) -> float:
        raise LookupError("mine")

    start = Claimer.start
    monkeypatch.setattr(Claimer, fails_in, broken_start if fails_in == "start" else broken)
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=5)
    scheduler = Scheduler(pool)
    with pytest.raises(LookupError):
        await scheduler.start()
    await asyncio.wait_for(pool.close(), PATIENCE)


async def test_a_shutdown_gives_every_connection_back(dsn: str, gate: Gate) -> None:
    """Also when the last results were written by others than the claimer."""
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=5)
    scheduler = Scheduler(pool, shutdown_timeout=0)
    await scheduler.start()
    await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    assert pool.get_size() - pool.get_idle_size() >= 2, "LISTEN and the hot path"
    await scheduler.shutdown()
    await asyncio.wait_for(pool.close(), PATIENCE)


async def test_two_schedulers_share_a_pool_of_four(make: Make, pools: Pools, opened: Gate) -> None:
    """Each would like to hold two connections; one has to be left to work with."""
    pool = await pools(4)
    one, two, both = make(pool), make(pool), EventBus()
    seen = Recorder(both)
    for scheduler in (one, two):
        scheduler.subscribe(both.publish)
        await scheduler.start()
    await one.schedule_bulk([JobSpec(opened.job, now()) for _ in range(50)])
    await seen.until(JobCompleted, 50)
    assert seen.of(ServiceRetrying) == []


async def test_what_was_not_heard_while_the_listener_was_away_is_looked_for(
    make: Make, pool: asyncpg.Pool, opened: Gate
) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(opened.job, name="app.work")
    await scheduler.start()
    await scheduler._store.insert([new_job("unheard", "app.work")])  # without a word to anybody
    assert await pool.fetchval("SELECT pg_terminate_backend($1)", listening_pid(scheduler))
    await seen.until(JobCompleted, job_id="unheard")


async def test_a_new_definition_that_waited_runs_as_soon_as_the_old_run_has_ended(
    make: Make, gate: Gate
) -> None:
    """Its row is pending again without a notification, and no poll may be needed to find it."""
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


async def test_a_shutdown_that_is_cancelled_goes_on(make: Make, gate: Gate) -> None:
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


async def test_shutdown_lets_jobs_end_in_time(make: Make, gate: Gate) -> None:
    scheduler = make(shutdown_timeout=PATIENCE)
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    stopping = asyncio.create_task(scheduler.shutdown())
    await asyncio.wait([stopping], timeout=0.02)  # real time: it must wait
    assert not stopping.done()
    late = await scheduler.schedule(gate.job, execution_time=now())  # not claimed any more
    gate.open.set()
    await stopping
    assert len(seen.of(JobCompleted)) == 1
    row = await scheduler.get_job(late)
    assert row is not None
    assert (row.status, row.attempt) == (JobStatus.PENDING, 0)


async def test_shutdown_hands_back_what_does_not_end_in_time(make: Make, gate: Gate) -> None:
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


async def test_another_node_takes_what_shutdown_hands_back_without_waiting_for_a_poll(
    make: Make, gate: Gate
) -> None:
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


async def test_a_job_may_shut_its_scheduler_down(make: Make) -> None:
    """It cannot wait for itself; it must neither hang, nor be interrupted and run again."""
    scheduler = make(shutdown_timeout=PATIENCE)
    seen = Recorder(scheduler)
    after: list[str] = []

    async def last() -> None:
        await scheduler.shutdown()
        after.append("ended")

    await scheduler.start()
    job_id = await scheduler.schedule(last, execution_time=now())
    async with asyncio.timeout(5):
        await scheduler.wait()
    assert after == ["ended"]
    assert [event.job_id for event in seen.of(JobCompleted)] == [job_id]
    assert not holds(scheduler.is_running)


async def test_a_job_of_one_scheduler_may_shut_another_one_down(make: Make, gate: Gate) -> None:
    scheduler, other = make(), make()
    seen = Recorder(scheduler)

    async def stop_the_other() -> None:
        await other.shutdown()
        assert not holds(other.is_running)

    await scheduler.start()
    await other.start()
    scheduler_only = await scheduler.schedule(stop_the_other, execution_time=now())
    await seen.until(JobCompleted, job_id=scheduler_only)


async def test_the_block_starts_and_shuts_down(pool: asyncpg.Pool) -> None:
    async with Scheduler(pool) as scheduler:
        assert holds(scheduler.is_running)
        waiting = asyncio.create_task(scheduler.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
    assert not holds(scheduler.is_running)
    await waiting
    await scheduler.wait()  # at once


async def test_two_schedulers_in_one_process_share_the_work(make: Make, gate: Gate) -> None:
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


async def test_twenty_schedulers_start_at_once_on_an_empty_database(empty_dsn: str) -> None:
    pools = [await asyncpg.create_pool(empty_dsn, min_size=1, max_size=2) for _ in range(20)]
    schedulers = [Scheduler(pool) for pool in pools]
    await asyncio.gather(*(scheduler.start() for scheduler in schedulers))
    assert len(await schedulers[0].workers()) == 20
    await asyncio.gather(*(scheduler.shutdown() for scheduler in schedulers))
    for pool in pools:
        await pool.close()


async def test_a_database_of_a_newer_version_is_refused(make: Make, pool: asyncpg.Pool) -> None:
    await pool.execute(
        "INSERT INTO scheduler_migrations (version, name, checksum) VALUES (9999, 'future', 'x')"
    )
    scheduler = make()
    for call in (scheduler.start, scheduler.initialize_db):
        with pytest.raises(SchemaTooNewError):
            await call()
    assert not holds(scheduler.is_running)


async def test_a_start_without_the_database_fails_and_can_be_tried_again(dsn: str, make: Make) -> None:
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=3)
    scheduler = make(pool)
    await pool.close()
    with pytest.raises(PoolClosedError, match=r"shutdown\(\) before pool\.close\(\)"):
        await scheduler.start()
    assert not holds(scheduler.is_running)
    scheduler._store.connections._pool = await asyncpg.create_pool(dsn, min_size=1, max_size=3)
    await scheduler.start()
    assert holds(scheduler.is_running)
    await scheduler.shutdown()
    await scheduler._store.connections._pool.close()


async def test_it_outlives_the_loss_of_every_connection(
    make: Make, pools: Pools, dsn: str, opened: Gate
) -> None:
    """Real time: a backoff or two of a tenth of a second."""
    scheduler = make(await pools(5))
    seen = Recorder(scheduler)
    await scheduler.start()
    await kill_backends(dsn)
    await seen.until(ListenerLost)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                job_id = await scheduler.schedule(opened.job, execution_time=now())
                break
            except DatabaseUnavailableError:  # the first use of each broken connection
                continue
    await seen.until(JobCompleted, job_id=job_id)


# -- small pools ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_a_small_pool_runs_jobs_and_schedules(
    make: Make, pools: Pools, opened: Gate, size: int
) -> None:
    @periodic(every=timedelta(seconds=0.2), job_name="often")
    async def often() -> None: ...

    scheduler = make(await pools(size))
    seen = Recorder(scheduler)
    await scheduler.start()
    for _ in range(50):
        await scheduler.schedule(opened.job, execution_time=now())
    await scheduler.schedule(opened.job, execution_time=now() + timedelta(seconds=0.1), job_id="later")
    await seen.until(JobCompleted, job_id="later")
    await seen.until(JobCompleted, 2, job_name="often")
    await seen.until(JobCompleted, 53)
    assert len(seen.of(ListenerLost)) == (size < 3)


async def test_a_cancel_reaches_a_node_that_hears_nothing(make: Make, pools: Pools, gate: Gate) -> None:
    """Real time: within a second."""
    deaf, other = make(await pools(1)), make()
    seen = Recorder(deaf)
    await deaf.start()
    await other.start()
    job_id = await deaf.schedule(gate.job, execution_time=now())
    await gate.wait_begun()
    async with asyncio.timeout(1.5):
        assert await other.cancel_job(job_id)
        await seen.until(JobCancelled, job_id=job_id)


async def test_a_lock_that_the_pool_cannot_hold_is_refused_at_the_start(make: Make, pools: Pools) -> None:
    @periodic(every=timedelta(hours=1), use_advisory_lock=True, dedup_key="locked")
    async def locked() -> None: ...

    scheduler = make(await pools(1))
    with pytest.raises(ConfigurationError, match=r"locked.*max_size"):
        await scheduler.start()
    assert not holds(scheduler.is_running)
    await make(await pools(2)).start()


async def test_a_connection_of_its_own_holds_the_lock_of_the_smallest_pool(
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


async def test_locked_runs_leave_the_pool_a_connection_to_live_on(make: Make, pools: Pools) -> None:
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
        async with asyncio.timeout(2):
            for _ in range(20):
                await scheduler.count_jobs()
    finally:
        gate.open.set()
    await seen.until(JobCompleted, 2)


# -- parts of it that need a start ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    ["recover_orphaned_jobs", "periodic_orphan_recovery", "monitor_heartbeats", "listen_for_jobs"],
)
async def test_building_blocks_need_a_start(make: Make, call: str) -> None:
    with pytest.raises(NotRunningError, match="start"):
        await getattr(make(), call)()


async def test_polling_alone_is_enough(make: Make, pools: Pools, opened: Gate) -> None:
    """Another process schedules, and this one cannot hear it. Real time: a few polls."""
    deaf = make(await pools(1), polling_config=PollingConfig(max_interval=0.05))
    seen = Recorder(deaf)
    deaf.register(opened.job)
    await deaf.start()
    await make().schedule(opened.job, execution_time=now())
    await seen.until(JobCompleted)


async def test_the_length_of_the_worker_id_may_be_set_on_an_instance(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)
    assert len(scheduler.worker_id) == 8
    scheduler.WORKER_ID_LENGTH = 41  # type: ignore[misc] # promised for an instance too
    async with scheduler:
        assert len(scheduler.worker_id) == 41
        assert [worker.worker_id for worker in await scheduler.workers()] == [scheduler.worker_id]
