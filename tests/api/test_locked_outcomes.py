"""A transaction of the application that holds a row delays the outcome of that job, and of no other one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, ClassVar, Final, TypeAlias

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError, JobFailedError, current_job
from pg_scheduler.events import (
    JobCompleted,
    JobExpired,
    JobFailed,
    JobStarted,
    OutcomesDelayed,
    ServiceRetrying,
)
from pg_scheduler.triggers import Every
from tests.api.conftest import Make
from tests.support import inside
from tests.support.guards import guard
from tests.support.inside import store_of, worker_of
from tests.support.store import use_options
from tests.support.worker import PATIENCE, Gate, Recorder

KEPT = timedelta(hours=1)

Hold: TypeAlias = "Callable[[World, asyncpg.Connection], Awaitable[object]]"


async def quick(value: int) -> int:
    return value


async def breaks() -> None:
    raise ValueError("as it must")


async def sleeps() -> int:
    await current_job().steps.sleep("nap", 0.05)
    return 1


async def dependent(**_failure: object) -> None: ...


async def cancel(world: World, connection: asyncpg.Connection) -> None:
    await world.client.cancel_job(world.job_id, connection=connection)


async def signal(world: World, connection: asyncpg.Connection) -> None:
    await world.client.signal(world.job_id, "go", 1, connection=connection)


async def cancel_dependent(world: World, connection: asyncpg.Connection) -> None:
    await world.client.cancel_job("dependent", connection=connection)


async def trigger_schedule(world: World, connection: asyncpg.Connection) -> None:
    await world.client.schedules.trigger("schedule", connection=connection)


class Locks:
    """Statements of an application that lock what an outcome of the job changes."""

    texts: ClassVar[dict[str, str]] = {
        "row": "SELECT FROM scheduled_jobs WHERE job_id = $1 FOR UPDATE",
        "share of the row": "SELECT FROM scheduled_jobs WHERE job_id = $1 FOR SHARE",
        "dependent": "SELECT FROM scheduled_jobs WHERE job_id = 'dependent' AND $1 <> '' FOR UPDATE",
        "edge": "SELECT FROM scheduler_after WHERE parent_id = $1 FOR UPDATE",
        "id of the alert": """
            INSERT INTO scheduled_jobs (job_id, job_name, execution_time, task_data)
            VALUES ($1 || ':failed', 'other', now(), '{}')
        """,
        "result": """
            INSERT INTO scheduler_results (job_id, status, attempts, finished_at, expires_at)
            VALUES ($1, 'failed', 7, now(), now())
        """,
    }

    @classmethod
    def hold(cls, name: str) -> Hold:
        async def run(world: World, connection: asyncpg.Connection) -> None:
            await connection.execute(cls.texts[name], world.job_id)

        return run


HOLDS: dict[str, Hold] = {
    "cancel_job()": cancel,
    "signal()": signal,
    "cancel_job() of a dependent": cancel_dependent,
    "schedules.trigger()": trigger_schedule,
    **{name: Locks.hold(name) for name in Locks.texts},
}


OWN_ROWS: Final = {"cancel_job()", "signal()", "row", "share of the row", "result"}
"""The holds of rows without which the outcome itself cannot be written."""


class World:
    """A worker whose job is about to end, and an application that holds a row meanwhile."""

    def __init__(self, dsn: str, make: Make, gate: Gate) -> None:
        self.scheduler = make(shutdown_timeout=0.3, stop_grace=0.1)
        self.client = make()
        self.gate = gate
        self.dsn = dsn
        self.job_id = ""

    async def begin(self) -> None:
        """Run a job that waits, with everything that may follow from its end."""
        scheduler = self.scheduler
        for observer in (scheduler, self.client):
            observer.register(self.work, name="work", on_failure="dependent")
            for function in (quick, breaks, sleeps, dependent):
                observer.register(function, name=function.__name__)
        await scheduler.start()
        options: dict[str, Any] = {"pause_after_failures": 3, "keep_result": KEPT}
        await scheduler.schedules.add("work", Every(days=300), schedule_id="schedule", **options)
        job_id = await self.client.schedules.trigger("schedule")
        assert job_id is not None
        self.job_id = job_id
        await self.gate.wait_begun()
        await self.client.enqueue("dependent", job_id="dependent", after=[self.job_id], after_outcome="ended")

    async def work(self) -> None:
        await self.gate.job()
        raise ValueError("its alert follows")

    @asynccontextmanager
    async def holding(self, hold: Hold) -> AsyncIterator[None]:
        """Hold the rows in a transaction, and let the job end within it."""
        connection = await asyncpg.connect(self.dsn, server_settings={"application_name": "debugger"})
        try:
            transaction = connection.transaction()
            await transaction.start()
            await hold(self, connection)
            self.gate.open.set()
            yield
            await transaction.rollback()
        finally:
            await connection.close()

    async def check_others(self) -> None:
        """Run jobs of each kind whose end waits for nothing."""
        client = self.client
        async with asyncio.timeout(PATIENCE):
            for number in range(3):
                assert await client.run_job("quick", args=(number,), keep_result=KEPT) == number
                with pytest.raises(JobFailedError, match="as it must"):
                    await client.run_job("breaks")
                assert await client.run_job("sleeps", keep_result=KEPT) == 1

    async def has_ended(self) -> bool:
        job = await self.client.get_job(self.job_id)
        return job is not None and job.finished_at is not None


@pytest.fixture
async def world(dsn: str, make: Make, gate: Gate) -> World:
    world = World(dsn, make, gate)
    await world.begin()
    return world


@pytest.mark.parametrize("name", HOLDS)
async def test_outcomes_of_other_jobs_are_written_while_the_application_holds_a_row(
    world: World, name: str
) -> None:
    async with world.holding(HOLDS[name]):
        await world.check_others()
        assert not await world.has_ended(), "it waits for the transaction"
    async with asyncio.timeout(PATIENCE):
        assert (await world.client.get_job_result(world.job_id, timeout=PATIENCE)).error is not None


@pytest.mark.parametrize("name", [name for name in HOLDS if name not in OWN_ROWS])
async def test_outcome_is_written_without_its_consequences_when_only_their_rows_are_locked(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    inside.replace(monkeypatch, waiting_outcomes=0)
    inside.replace(monkeypatch, pause_of_locked_consequences_s=0.05)
    seen = Recorder(world.scheduler)
    async with world.holding(HOLDS[name]):
        await seen.until(JobFailed, job_id=world.job_id)
        assert await world.has_ended()
        await world.check_others()
    await seen.until(JobCompleted, job_id="dependent")
    await seen.until(JobCompleted, job_id=f"{world.job_id}:failed")


@pytest.mark.parametrize("hold", ["UPDATE counter SET number = 0", "LOCK scheduler_results"])
async def test_shutdown_ends_while_many_outcomes_wait_for_one_lock_of_a_trigger_or_of_a_table(
    dsn: str, make: Make, pool: asyncpg.Pool, gate: Gate, hold: str
) -> None:
    scheduler = make(shutdown_timeout=0.5, max_concurrent_jobs=20)
    await scheduler.initialize_db()
    await pool.execute("CREATE TABLE counter AS SELECT 0 AS number")
    await guard(
        pool,
        "IF NEW.job_name = 'counted' AND NEW.status = 'completed' THEN "
        "UPDATE counter SET number = number + 1; END IF; RETURN NEW;",
        is_deferred=False,
    )
    seen = Recorder(scheduler)
    scheduler.register(gate.job, name="counted", keep_result=KEPT)
    await scheduler.start()
    runtime = worker_of(scheduler)
    runtime.completer.report_after_s = 0.5
    for number in range(20):
        await scheduler.enqueue("counted", job_id=f"counted {number}")
    await seen.until(JobStarted, 20)
    stranger = await asyncpg.connect(dsn)
    async with stranger.transaction():
        await stranger.execute(hold)
        gate.open.set()
        await seen.until(OutcomesDelayed)
        with pytest.raises(DatabaseUnavailableError, match="could not be written"):
            await asyncio.wait_for(scheduler.shutdown(), PATIENCE)
    await stranger.close()


async def test_job_continues_soon_after_one_that_expired_while_its_row_was_locked(
    dsn: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, interval_of_deadline_scanner_s=3 * PATIENCE)
    scheduler = make(lease=6 * PATIENCE)
    scheduler.register(quick, name="quick")
    seen = Recorder(scheduler)
    await scheduler.start()
    # A claim finds that it has expired, and then meets the lock.
    await scheduler.enqueue("quick", args=(1,), job_id="late", delay=1, misfire_grace_time=0)
    await scheduler.enqueue("quick", args=(2,), job_id="waiting", after=["late"], after_outcome="ended")
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = 'waiting' FOR UPDATE")
        await seen.until(JobExpired, job_id="late")
    await seen.until(JobCompleted, job_id="waiting")
    await connection.close()


async def test_worker_continues_when_many_jobs_end_that_precede_a_locked_one(
    dsn: str, make: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, waiting_outcomes=2)
    inside.replace(monkeypatch, capacity_of_result_buffer=8)
    inside.replace(monkeypatch, pause_of_locked_consequences_s=0.05)
    inside.replace(monkeypatch, interval_of_deadline_scanner_s=3 * PATIENCE)
    scheduler = make(max_concurrent_jobs=100, lease=6 * PATIENCE)
    for function in (gate.job, quick, dependent):
        scheduler.register(function, name="gate" if function == gate.job else function.__name__)
    seen = Recorder(scheduler)
    await scheduler.start()
    ids = [await scheduler.enqueue("gate", args=(n,), job_id=f"part {n}") for n in range(20)]
    await scheduler.enqueue("dependent", job_id="dependent", after=ids)
    await seen.until(JobStarted, len(ids))
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        await connection.execute(Locks.texts["dependent"], "x")
        gate.open.set()
        await seen.until(JobCompleted, len(ids))
        later = await scheduler.enqueue("quick", args=(5,))
        await seen.until(JobCompleted, job_id=later)
    await seen.until(JobCompleted, job_id="dependent")
    await connection.close()


async def test_holder_of_the_row_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inside.replace(monkeypatch, report_delay_of_unwritten_outcomes_s=0.0)
    seen = Recorder(world.scheduler)
    with caplog.at_level(logging.WARNING, "pg_scheduler"):
        async with world.holding(HOLDS["row"]):
            (event,) = await seen.until(OutcomesDelayed)
    assert (event.job_id, event.attempt, event.number) == (world.job_id, 1, 1)
    (holder,) = event.holders
    assert "application 'debugger', in transaction since" in holder
    assert any(f"locked: {holder}; end that transaction" in record.message for record in caplog.records)


async def test_shutdown_ends_in_time_and_names_the_jobs_whose_rows_are_locked(world: World) -> None:
    async with world.holding(HOLDS["row"]):
        await world.check_others()
        with pytest.raises(
            DatabaseUnavailableError, match=r"because rows are locked \(pid .*debugger.*: schedule:"
        ):
            await world.scheduler.shutdown()


@pytest.mark.slow
async def test_shutdown_does_not_wait_for_a_call_that_waits_for_a_lock(dsn: str, make: Make) -> None:
    scheduler = make(shutdown_timeout=1)
    scheduler.register(quick, name="quick")
    await scheduler.start()
    await scheduler.run_job("quick", args=(5,), keep_result=KEPT)
    connection = await asyncpg.connect(dsn)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("LOCK TABLE scheduled_jobs")
    call = asyncio.create_task(scheduler.enqueue("quick", args=(5,)))
    sticky = store_of(scheduler).connections.sticky_connection
    assert sticky is not None
    async with asyncio.timeout(PATIENCE):
        while not sticky.is_in_use:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
    await scheduler.shutdown()
    assert not call.done()
    await transaction.rollback()
    await call
    await connection.close()


async def test_many_outcomes_whose_rows_are_locked_delay_no_other_one(
    dsn: str, make: Make, gate: Gate
) -> None:
    number = 40
    scheduler = make(max_concurrent_jobs=2 * number)
    scheduler.register(quick, name="quick")
    scheduler.register(gate.job, name="gate")
    await scheduler.start()
    ids = [await scheduler.enqueue("gate", args=(n,), keep_result=KEPT) for n in range(number)]
    async with asyncio.timeout(PATIENCE):
        while len(gate.calls) < number:
            await gate.wait_begun()
    connection = await asyncpg.connect(dsn)
    query = "SELECT FROM scheduled_jobs WHERE job_id = ANY ($1) FOR UPDATE"
    async with connection.transaction():
        await connection.execute(query, ids[::2])
        gate.open.set()
        for job_id in ids[1::2]:
            await scheduler.get_job_result(job_id, timeout=PATIENCE)
        assert await scheduler.run_job("quick", args=(5,), keep_result=KEPT) == 5
    for job_id in ids[::2]:
        await scheduler.get_job_result(job_id, timeout=PATIENCE)
    await connection.close()


@pytest.mark.parametrize("held_jobs", [1, 20])
@pytest.mark.parametrize("is_deferred", [False, True])
async def test_completions_for_which_a_trigger_waits_delay_no_other_one(
    dsn: str, make: Make, gate: Gate, is_deferred: bool, held_jobs: int
) -> None:
    scheduler = make(max_concurrent_jobs=100)
    scheduler.register(gate.job, name="gate")
    scheduler.register(quick, name="quick")
    seen = Recorder(scheduler)
    await scheduler.start()
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE counter AS SELECT 0 AS ends")
    await guard(
        connection,
        "IF NEW.job_id LIKE 'bad%' AND NEW.status = 'completed' THEN "
        "UPDATE counter SET ends = ends + 1; END IF; RETURN NEW;",
        is_deferred=is_deferred,
    )
    good = [await scheduler.enqueue("gate", args=(n,)) for n in range(20)]
    bad = [await scheduler.enqueue("gate", args=(n,), job_id=f"bad {n}") for n in range(held_jobs)]
    await seen.until(JobStarted, len(good) + len(bad))
    async with connection.transaction():
        await connection.execute("UPDATE counter SET ends = 0")
        gate.open.set()
        await seen.until(JobCompleted, len(good))
        later = await scheduler.enqueue("quick", args=(5,))
        await seen.until(JobCompleted, len(good) + 1)
        assert {event.job_id for event in seen.of(JobCompleted)} == {*good, later}
    await seen.until(JobCompleted, len(good) + 1 + len(bad))
    assert await connection.fetchval("SELECT ends FROM counter") == len(bad)
    await connection.close()


async def test_completions_that_a_lock_of_the_table_stops_stay_together(
    dsn: str, make: Make, gate: Gate
) -> None:
    scheduler = make(max_concurrent_jobs=100)
    scheduler.register(gate.job, name="gate")
    seen = Recorder(scheduler)
    await scheduler.start()
    ids = [await scheduler.enqueue("gate", args=(n,)) for n in range(20)]
    await seen.until(JobStarted, len(ids))
    runtime = worker_of(scheduler)
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        await connection.execute("LOCK TABLE scheduled_jobs IN SHARE MODE")
        gate.open.set()
        async with asyncio.timeout(PATIENCE):
            while not any("pid " in str(retry.holders) for retry in seen.of(ServiceRetrying)):
                await seen.until(ServiceRetrying, len(seen.of(ServiceRetrying)) + 1)
        assert not runtime.node.result_buffer.late.groups
        assert not runtime.node.result_buffer.has_others
    await seen.until(JobCompleted, len(ids))
    await connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("waits_by", ["a step", "completing()"])
async def test_job_that_holds_its_own_row_delays_no_other_job(
    make: Make, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, waits_by: str
) -> None:
    """It waits for its own transaction until its timeout, and keeps its lease meanwhile."""
    use_options(monkeypatch, call_timeout_s=2.5)  # for which its timeout waits in completing()
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    waits = asyncio.Event()

    async def holds_its_row() -> None:
        me = current_job()
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("SELECT FROM scheduled_jobs WHERE job_id = $1 FOR UPDATE", me.job_id)
            waits.set()
            if waits_by == "a step":
                await me.steps.run("step", quick, 1)
            else:
                async with me.completing():
                    pass

    await scheduler.enqueue(holds_its_row, job_id="own", timeout=2)
    await asyncio.wait_for(waits.wait(), PATIENCE)
    others = [await scheduler.enqueue(quick, args=(number,)) for number in range(20)]
    await seen.until(JobCompleted, len(others))
    runtime = worker_of(scheduler)
    for _ in range(3):
        await runtime.heartbeat.run_once()
    assert not seen.of(JobFailed), "the other jobs have completed before the timeout"
    [failed] = await seen.until(JobFailed, job_id="own")
    assert isinstance(failed.exception, TimeoutError)
    assert len(seen.of(JobStarted, job_id="own")) == 1
