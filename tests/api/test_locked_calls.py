"""A call that waits for a lock of the application leaves the connections of the pool to other calls.

``CALLS`` has each kind of call that waits for a row. More of them than the pool has connections wait for an
open transaction, while other calls must end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import asyncpg
import pytest

from pg_scheduler import (
    ConflictResolution,
    DatabaseUnavailableError,
    JobSpec,
    JobStatus,
    Scheduler,
    call,
    current_job,
    job,
)
from pg_scheduler.events import JobCompleted, JobStarted
from pg_scheduler.triggers import Every
from tests.api.conftest import Make, Pools
from tests.store.test_steps import until_a_lock_is_awaited
from tests.support import inside
from tests.support.inside import store_of
from tests.support.logs import warnings_of
from tests.support.store import use_options
from tests.support.worker import PATIENCE, Recorder, now

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

LATER: Final = timedelta(hours=1)
SIZE: Final = 3
WAITING: Final = 2 * SIZE
SOON_S: Final = 12.0
"""Less than half of the time for which a call waits."""

HELD_JOB: Final = "SELECT FROM scheduled_jobs WHERE job_id = 'held' FOR UPDATE"
SHARED_JOB: Final = "SELECT FROM scheduled_jobs WHERE job_id = 'held' FOR SHARE"
HELD_STEPS: Final = "SELECT FROM scheduled_jobs WHERE job_name = 'locked.step' FOR UPDATE"
HELD_SCHEDULE: Final = "SELECT FROM scheduler_schedules WHERE schedule_id = 'held' FOR UPDATE"
HELD_TASK: Final = "SELECT FROM scheduler_tasks WHERE name = 'held' FOR UPDATE"
HELD_KEY: Final = """
    INSERT INTO scheduled_jobs (job_id, job_name, execution_time, task_data, unique_key)
    VALUES ('new', 'raw', now() + interval '1 hour', '{"args": [], "kwargs": {}}', 'key')
"""
TRIGGER: Final = """
    CREATE TABLE counts (tenant text PRIMARY KEY, jobs integer NOT NULL);
    INSERT INTO counts VALUES ('a', 0), ('b', 0);
    CREATE FUNCTION count_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE counts SET jobs = jobs + 1 WHERE tenant = NEW.task_data #>> '{args,0}';
        RETURN NULL;
    END $$;
    CREATE TRIGGER count_jobs AFTER INSERT ON scheduled_jobs FOR EACH ROW EXECUTE FUNCTION count_jobs()
"""
HELD_COUNT: Final = "UPDATE counts SET jobs = 0 WHERE tenant = 'a'"

REPLACE: Final = ConflictResolution.REPLACE


@job(name="locked.work")
async def work(tenant: str = "") -> None: ...


@job(name="locked.durable")
async def durable() -> None:
    await current_job().steps.run("a", note, 1)


async def note(value: int) -> int:
    return value


class LockedCall(NamedTuple):
    """A call that waits for a lock.

    Attributes:
        lock: The statement that takes it.
        make: Calls, with a number of its own.
        prepare: A statement that prepares the row.
    """

    lock: str
    make: Callable[[Scheduler, int], Coroutine[Any, Any, object]]
    prepare: str = "SELECT"


def insert_bulk(
    resolution: ConflictResolution, scheduler: Scheduler, number: int
) -> Coroutine[Any, Any, object]:
    """Insert a job with the key that is held, after one with a key that is free."""
    jobs = [JobSpec(work, now() + LATER, unique=key) for key in (f"free {number}", "key")]
    return scheduler.schedule_bulk(jobs, conflict_resolution=resolution)


ENDED: Final = "UPDATE scheduled_jobs SET status = 'failed', finished_at = now() WHERE job_id = 'held'"
SLEEPING: Final = """
    UPDATE scheduled_jobs SET options = '{"steps": 1, "suspended": {"attempt": 0, "steps": ["nap"]}}'
    WHERE job_id = 'held';
    INSERT INTO scheduler_steps (job_id, name, kind, attempt, started_at, until)
    VALUES ('held', 'nap', 'sleep', 0, now(), '2099-01-01');
"""
AWAITING: Final = """
    UPDATE scheduled_jobs SET options = '{"steps": 1, "suspended": {"attempt": 0, "steps": ["go"]}}'
    WHERE job_id = 'held';
    INSERT INTO scheduler_steps (job_id, name, kind, attempt, started_at, until)
    VALUES ('held', 'go', 'signal', 0, now(), '2099-01-01');
"""
PAUSED: Final = "UPDATE scheduler_schedules SET paused_at = now() WHERE schedule_id = 'held'"

CALLS: Final = {
    "cancel": LockedCall(HELD_JOB, lambda it, _: it.cancel_job("held")),
    "cancel several": LockedCall(HELD_JOB, lambda it, _: it.cancel_jobs(job_name="locked.work")),
    "cancel with children": LockedCall(HELD_JOB, lambda it, _: it.cancel_job("held", children=True)),
    "cancel several with children": LockedCall(
        HELD_JOB, lambda it, _: it.cancel_jobs(job_name="locked.work", children=True)
    ),
    "retry": LockedCall(HELD_JOB, lambda it, _: it.retry_job("held"), ENDED),
    "retry with children": LockedCall(HELD_JOB, lambda it, _: it.retry_job("held", children=True), ENDED),
    "run now": LockedCall(HELD_JOB, lambda it, _: it.run_job_now("held")),
    "set a status": LockedCall(HELD_JOB, lambda it, _: it.update_job_status("held", JobStatus.FAILED)),
    "end a sleep": LockedCall(HELD_JOB, lambda it, _: it.end_sleep("held"), SLEEPING),
    "signal": LockedCall(HELD_JOB, lambda it, number: it.signal("held", f"s{number}")),
    "message": LockedCall(HELD_JOB, lambda it, _: it.send("held", "mailbox")),
    "broadcast": LockedCall(HELD_JOB, lambda it, _: it.broadcast("go"), AWAITING),
    "replace": LockedCall(
        HELD_JOB, lambda it, _: it.enqueue(work, delay=LATER, job_id="held", conflict_resolution=REPLACE)
    ),
    "replace with options": LockedCall(
        HELD_JOB,
        lambda it, _: it.enqueue(
            work, delay=LATER, job_id="held", keep_result=LATER, conflict_resolution=REPLACE
        ),
    ),
    "wait for another": LockedCall(HELD_JOB, lambda it, _: it.enqueue(work, after=["held"])),
    "unique": LockedCall(
        HELD_KEY,
        lambda it, _: it.enqueue(
            work, delay=LATER, unique="key", conflict_resolution=ConflictResolution.IGNORE
        ),
    ),
    "replace unique": LockedCall(
        HELD_KEY, lambda it, _: it.enqueue(work, delay=LATER, unique="key", conflict_resolution=REPLACE)
    ),
    **{
        f"bulk, {resolution.value}": LockedCall(HELD_KEY, partial(insert_bulk, resolution))
        for resolution in ConflictResolution
    },
    "bulk of ids": LockedCall(
        HELD_KEY,
        lambda it, _: it.schedule_bulk(
            [JobSpec(work, now() + LATER, job_id="new")], conflict_resolution=ConflictResolution.IGNORE
        ),
    ),
    "insert with a trigger": LockedCall(
        HELD_COUNT, lambda it, _: it.enqueue(work, args=("a",), delay=LATER), TRIGGER
    ),
    "schedule with a trigger": LockedCall(
        HELD_COUNT, lambda it, _: it.schedule(work, args=("a",), execution_time=now() + LATER), TRIGGER
    ),
    "bulk with a trigger": LockedCall(
        HELD_COUNT,
        lambda it, _: it.schedule_bulk([JobSpec(work, now() + LATER, ("a",)) for _ in range(2)]),
        TRIGGER,
    ),
    "add a schedule": LockedCall(
        HELD_SCHEDULE,
        lambda it, number: it.schedules.add(
            work, Every(hours=1 + number), schedule_id="held", conflict_resolution=REPLACE
        ),
    ),
    "update a schedule": LockedCall(
        HELD_SCHEDULE, lambda it, number: it.schedules.update("held", trigger=Every(hours=2 + number))
    ),
    "pause a schedule": LockedCall(HELD_SCHEDULE, lambda it, _: it.schedules.pause("held")),
    "resume a schedule": LockedCall(HELD_SCHEDULE, lambda it, _: it.schedules.resume("held"), PAUSED),
    "trigger a schedule": LockedCall(HELD_SCHEDULE, lambda it, _: it.schedules.trigger("held")),
    "backfill a schedule": LockedCall(
        HELD_SCHEDULE, lambda it, _: it.schedules.backfill("held", now() - LATER, now())
    ),
    "remove a schedule": LockedCall(HELD_SCHEDULE, lambda it, _: it.schedules.remove("held")),
    "pause a task": LockedCall(HELD_TASK, lambda it, _: it.tasks.pause("held", note="why")),
    "resume a task": LockedCall(HELD_TASK, lambda it, _: it.tasks.resume("held")),
}


@asynccontextmanager
async def holding(dsn: str, *locks: str) -> AsyncIterator[asyncpg.Connection]:
    """Yield a connection whose open transaction holds locks."""
    connection = await asyncpg.connect(dsn, server_settings={"application_name": "holder"})
    try:
        await connection.execute("BEGIN")
        for lock in locks:
            await connection.execute(lock)
        yield connection
    finally:
        await connection.close()


async def raised_by(call: Coroutine[Any, Any, object]) -> DatabaseUnavailableError:
    with pytest.raises(DatabaseUnavailableError) as raised:
        await call
    return raised.value


@pytest.mark.parametrize("name", CALLS)
async def test_other_calls_end_while_calls_wait_for_a_lock(
    dsn: str, make: Make, pools: Pools, pool: Pool, name: str
) -> None:
    lock, call_once, prepare = CALLS[name]
    scheduler, patient = make(await pools(SIZE)), make()
    await patient.enqueue(work, delay=LATER, job_id="held")
    await patient.schedules.add(work, Every(hours=1), schedule_id="held")
    await patient.tasks.pause("held")
    await pool.execute(prepare)
    async with holding(dsn, lock) as connection:
        waiting = [asyncio.create_task(call_once(scheduler, number)) for number in range(WAITING)]
        await until_a_lock_is_awaited(pool)
        async with asyncio.timeout(SOON_S):
            await scheduler.enqueue(work, args=("b",), delay=LATER)
            await scheduler.schedule(work, args=("b",), execution_time=now() + LATER)
            await scheduler.schedule_bulk([JobSpec(work, now() + LATER, ("b",), job_id="beside")])
            await scheduler.get_job("held")
            assert await scheduler.cancel_job("beside")
        assert not any(task.done() for task in waiting), "each waits for the transaction"
        await connection.execute("ROLLBACK")
        async with asyncio.timeout(PATIENCE):
            results = await asyncio.gather(*waiting, return_exceptions=True)
    assert not any(isinstance(result, DatabaseUnavailableError) for result in results), results


@pytest.fixture
async def worker(make: Make, pools: Pools) -> Scheduler:
    """Return a Scheduler with more slots than connections."""
    return make(await pools(8), max_concurrent_jobs=40)


async def until_started(scheduler: Scheduler, seen: Recorder, count: int) -> None:
    await scheduler.start()
    for number in range(count):
        await scheduler.enqueue("locked.step", args=(number,))
    await seen.until(JobStarted, count=count, job_name="locked.step")


STEPS: Final[dict[str, Callable[[int], Coroutine[Any, Any, object]]]] = {
    "run": lambda number: current_job().steps.run("a", note, number),
    "sleep": lambda _: current_job().steps.sleep("a", 0),
    "wait": lambda _: current_job().steps.wait("early"),
    "child": lambda number: current_job().steps.child("a", call(note, number)),
}


@pytest.mark.parametrize("kind", [*STEPS, "cursor"])
@pytest.mark.parametrize("lock", [HELD_STEPS, "LOCK TABLE scheduler_steps"], ids=["rows", "table"])
async def test_other_jobs_end_while_steps_wait_for_a_lock(
    dsn: str, worker: Scheduler, pool: Pool, kind: str, lock: str
) -> None:
    gate, seen = asyncio.Event(), Recorder(worker)

    async def step(number: int) -> None:
        await gate.wait()
        if kind == "cursor":
            async with current_job().steps.cursor("a", start=0) as cursor:
                await cursor.save(number + 1)
        else:
            await STEPS[kind](number)

    worker.register(step, name="locked.step")
    worker.register(note)
    await until_started(worker, seen, 20)
    if kind == "wait":
        for row in await pool.fetch("SELECT job_id FROM scheduled_jobs WHERE job_name = 'locked.step'"):
            await worker.signal(row["job_id"], "early")
    async with holding(dsn, lock) as connection:
        gate.set()
        await until_a_lock_is_awaited(pool)
        async with asyncio.timeout(SOON_S):
            # A lock of the table stops the steps of all jobs.
            others = [work, work, durable] if lock == HELD_STEPS else [work, work]
            job_ids = [await worker.enqueue(other) for other in others]
            await asyncio.gather(*(seen.until(JobCompleted, job_id=job_id) for job_id in job_ids))
            assert await worker.get_job(job_ids[0])
        assert not seen.of(JobCompleted, job_name="locked.step")
        await connection.execute("ROLLBACK")
    await seen.until(JobCompleted, count=20, job_name="locked.step")


async def test_call_that_waits_for_a_lock_names_its_holder_once(
    dsn: str, make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, lock_report_delay_s=0.2)
    scheduler = make()
    await scheduler.enqueue(work, delay=LATER, job_id="held")
    async with holding(dsn, HELD_JOB) as connection:
        waiting = [asyncio.create_task(scheduler.cancel_job("held")) for _ in range(3)]
        async with asyncio.timeout(PATIENCE):
            while not warnings_of(caplog):  # noqa: ASYNC110 - a record raises no event
                await asyncio.sleep(0.01)
        pid = connection.get_server_pid()
        await connection.execute("ROLLBACK")
        await asyncio.gather(*waiting)
    (message,) = warnings_of(caplog)
    assert f"(cancel_job): pid {pid}, application 'holder', in transaction since 2" in message


async def test_call_that_waits_for_transactions_in_turn_blames_none_of_them(
    dsn: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Each one begins to share the lock before the former one ends, so the row is never free."""
    scheduler = make()
    await scheduler.enqueue(work, delay=LATER, job_id="held")
    async with asyncio.timeout(PATIENCE), AsyncExitStack() as turn:
        await turn.enter_async_context(holding(dsn, SHARED_JOB))
        cancelling = asyncio.create_task(scheduler.cancel_job("held"))
        while not warnings_of(caplog):
            async with turn.pop_all():
                await turn.enter_async_context(holding(dsn, SHARED_JOB))
            await asyncio.sleep(0.25)
    assert await cancelling
    (message,) = warnings_of(caplog)
    assert "for a lock that transactions hold one after the other (cancel_job), such as pid " in message
    assert ", application 'holder', in transaction since 2" in message


async def test_error_names_the_transaction_that_holds_the_lock_at_the_end(
    dsn: str, make: Make, pool: Pool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_options(monkeypatch, call_timeout_s=3)  # real time: the timeout is the subject
    inside.replace(monkeypatch, lock_report_delay_s=0.2)
    scheduler = make()
    await scheduler.enqueue(work, delay=LATER, job_id="held")
    async with holding(dsn) as last_holder, asyncio.TaskGroup() as group:
        async with holding(dsn, HELD_JOB):
            taking = group.create_task(last_holder.execute(HELD_JOB))
            await until_a_lock_is_awaited(pool)
            calling = group.create_task(raised_by(scheduler.cancel_job("held")))
            async with asyncio.timeout(PATIENCE):
                while not warnings_of(caplog):  # noqa: ASYNC110 - a record raises no event
                    await asyncio.sleep(0.01)
        await taking
        error = await calling
    assert "for 3 s (cancel_job) for a lock of another transaction: pid " in str(error)
    assert f"pid {last_holder.get_server_pid()}, application 'holder'" in str(error)


@pytest.mark.parametrize("name", ["cancel", "signal", "insert with a trigger"])
async def test_call_that_waits_for_a_lock_raises_after_its_time_limit_and_names_the_holder(
    dsn: str, make: Make, pool: Pool, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    use_options(monkeypatch, call_timeout_s=3)  # real time: the timeout is the subject
    lock, call_once, prepare = CALLS[name]
    scheduler = make()
    await scheduler.enqueue(work, delay=LATER, job_id="held")
    await pool.execute(prepare)
    async with holding(dsn, lock) as connection:
        with pytest.raises(DatabaseUnavailableError, match="end that transaction") as raised:
            await call_once(scheduler, 0)
        assert f"pid {connection.get_server_pid()}, application 'holder'" in str(raised.value)
        assert isinstance(raised.value.__cause__, asyncpg.LockNotAvailableError)


# -- transactions of jobs ------------------------------------------------------------------------------


class Gate:
    """Jobs whose transactions stay open until the test lets them end."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.left = asyncio.Event()

    async def hold(self, _connection: Any = None) -> None:
        self.entered.set()
        await self.left.wait()

    async def completing(self) -> None:
        async with current_job().completing():
            await self.hold()

    async def step(self) -> None:
        await current_job().steps.transaction("a", self.hold)


@pytest.mark.parametrize("kind", ["completing", "step"])
async def test_transaction_of_a_job_waits_for_a_lock_without_its_own_and_names_the_holder(
    dsn: str, worker: Scheduler, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    gate, seen = Gate(), Recorder(worker)
    worker.register(getattr(gate, kind), name="locked.step")
    store_of(worker).statements.lock_reports.report_after_s = 0.2
    await worker.start()
    job_id = await worker.enqueue("locked.step")
    async with asyncio.timeout(PATIENCE):
        await gate.entered.wait()
        async with holding(dsn, f"SELECT FROM scheduled_jobs WHERE job_id = '{job_id}' FOR UPDATE"):
            gate.left.set()
            while not any("has waited" in text for text in warnings_of(caplog)):  # noqa: ASYNC110 - a record
                await asyncio.sleep(0.02)
    (warning,) = [text for text in warnings_of(caplog) if "has waited" in text]
    assert "application 'holder'" in warning
    await seen.until(JobCompleted, job_id=job_id)


async def test_job_that_completes_itself_gives_way_to_a_transaction_that_triggers_its_schedule(
    dsn: str, worker: Scheduler, pool: Pool
) -> None:
    """The caller locks the schedule and then the job, the end of the job takes them the other way round."""
    gate, seen = Gate(), Recorder(worker)
    worker.register(gate.completing, name="locked.beat")
    await worker.start()
    await worker.schedules.add("locked.beat", Every(hours=1), schedule_id="beat", pause_after_failures=1)
    job_id = await worker.schedules.trigger("beat")
    assert job_id is not None
    await asyncio.wait_for(gate.entered.wait(), PATIENCE)
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await worker.schedules.trigger("beat", connection=connection)
            gate.left.set()
            await until_a_lock_is_awaited(pool)
    finally:
        await connection.close()
    await seen.until(JobCompleted, job_id=job_id)
    schedule = await worker.schedules.get("beat")
    assert schedule is not None
    assert schedule.paused_at is None
