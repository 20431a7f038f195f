"""The test kits look at jobs, and run them, in the transaction of a test."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import timedelta
from random import Random
from typing import Any
from unittest.mock import ANY

import asyncpg
import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from pg_scheduler import (
    Abort,
    ConnectionAdapter,
    JobConflictError,
    JobLostError,
    JobPriority,
    JobStatus,
    NotRunningError,
    PayloadError,
    Retry,
    Scheduler,
    Share,
    Sleep,
    Snooze,
    Wait,
    call,
    current_job,
    job,
)
from pg_scheduler.sync import SyncScheduler, current_scheduler, current_steps
from pg_scheduler.testing import AsyncTestKit, DrainResult, TestKit, TestScheduler
from pg_scheduler.triggers import Cron
from tests.support.inside import run_at_once
from tests.support.patience import PATIENCE
from tests.support.transactions import ASYNC_KINDS, KINDS, SYNC_KINDS, Application, application, settled

DAY = timedelta(days=1)
Pool = asyncpg.Pool
Scenario = Callable[[Application, Any], Coroutine[Any, Any, None]]

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@job(name="kit.note")
async def note(value: Any = None) -> Any:
    ran.append(value)
    return value


@job(name="kit.note_plainly")
def note_plainly(value: Any = None) -> Any:
    ran.append((value, threading.current_thread()))
    return value


@job(name="kit.fail")
async def fail(message: str = "no") -> None:
    raise ValueError(message)


@job(name="kit.chain")
async def chain(left: int) -> None:
    ran.append(left)
    if left:
        await current_job().scheduler.enqueue(chain, args=(left - 1,))


@job(name="kit.chain_plainly")
def chain_plainly(left: int) -> None:
    ran.append(left)
    if left:
        current_scheduler().enqueue(chain_plainly, args=(left - 1,))


@contextmanager
def plain_application(kind: str, dsn: str, **settings: Any) -> Iterator[Application]:
    """Yield an application without an event loop."""
    opened: Any = application(kind, dsn, None, **settings)  # type: ignore[arg-type] # for async ones
    app = run_at_once(opened.__aenter__())
    try:
        yield app
    finally:
        run_at_once(opened.__aexit__(None, None, None))


def committed(dsn: str) -> int:
    """Return the number of committed jobs."""

    async def count() -> int:
        connection = await asyncpg.connect(dsn)
        try:
            found: int = await connection.fetchval("SELECT count(*) FROM scheduled_jobs")
        finally:
            await connection.close()
        return found

    return asyncio.run(count())


# -- every kind of connection --------------------------------------------------------------------------------


@asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[Any]:
    """Enter a context manager, which may be asynchronous."""
    if isinstance(manager, AbstractAsyncContextManager):
        async with manager as value:
            yield value
    else:
        with manager as value:
            yield value


async def run_jobs(app: Application, kit: Any) -> None:
    async with entered(kit.scheduling()) as jobs:
        await app.call("enqueue", note, args=(1,), job_id="one")
        await settled(kit.scheduler.enqueue(note_plainly, args=(2,), job_id="two", delay=DAY))
    assert [each.job_id for each in jobs] == ["one", "two"]
    await settled(kit.assert_scheduled(note, args=(1,)))
    await settled(kit.assert_scheduled(note_plainly, after=DAY))
    await settled(kit.assert_not_scheduled(note, after=DAY))
    with pytest.raises(JobConflictError):  # at once: nobody else has the id
        await app.call("enqueue", note, job_id="one")
    with pytest.raises(JobConflictError):
        await settled(kit.scheduler.enqueue(note, job_id="one"))
    assert await settled(kit.drain()) == DrainResult(completed=1)
    kit.advance(days=1)
    assert await settled(kit.drain()) == DrainResult(completed=1)
    assert ran == [1, (2, ANY)]
    for job_id in ("one", "two"):
        row = await app.call("get_job", job_id)
        assert (row.status, row.attempt, row.worker_id) == (JobStatus.COMPLETED, 1, kit.scheduler.worker_id)
    await settled(app.rollback())
    assert await settled(kit.scheduled()) == []
    assert await settled(kit.scheduler.get_job("one")) is None


async def keep_the_transaction(app: Application, kit: Any) -> None:
    await app.execute("CREATE TABLE notes (number integer UNIQUE)")

    async def broken() -> None:
        await app.execute("INSERT INTO notes VALUES (1)")
        await app.execute("INSERT INTO notes VALUES (1)")

    async def stops() -> None:
        await app.execute("INSERT INTO notes VALUES (2)")
        raise ValueError("after a write")

    for function in (broken, stops, note):
        await app.call("enqueue", function, max_retries=0)
    result = await settled(kit.drain(raises=False))
    assert result == DrainResult(failed=2, completed=1)
    await app.execute("DO $$ BEGIN ASSERT (SELECT array_agg(number) FROM notes) = ARRAY[2]; END $$")


@pytest.mark.parametrize("scenario", [run_jobs, keep_the_transaction])
@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_async_kit_runs_jobs_on_each_kind_of_connection(
    kind: str, scenario: Scenario, dsn: str, pool: Pool
) -> None:
    async with application(kind, dsn, pool) as app:
        await scenario(app, AsyncTestKit(app.connection, scheduler=app.scheduler))
        await settled(app.rollback())
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


@pytest.mark.parametrize("kind", ASYNC_KINDS)
async def test_durable_job_waits_again_after_a_timeout_on_each_kind_of_connection(
    kind: str, dsn: str, pool: Pool
) -> None:
    async def remind() -> list[str]:
        steps = current_job().steps
        first = await steps.first("a", Wait("approved", str), Sleep("short", 1800))
        second = await steps.first("b", Wait("approved", str), Sleep("long", 86400))
        return [first.name, second.name]

    async with application(kind, dsn, pool) as app:
        kit = AsyncTestKit(app.connection)
        kit.scheduler.register(remind, name="remind")
        await kit.scheduler.enqueue("remind", job_id="job", keep_result=timedelta(days=9))
        await kit.drain()
        kit.advance(hours=1)
        await kit.drain(timeout=PATIENCE)
        assert await kit.scheduler.signal("job", "approved", "ann")
        await kit.drain()
        result = await kit.scheduler.get_job_result("job", wait=False)
        assert result is not None
        assert result.unwrap() == ["short", "approved"]
        await settled(app.rollback())


@pytest.mark.parametrize("kind", SYNC_KINDS)
def test_kit_runs_jobs_on_each_kind_of_connection(kind: str, dsn: str) -> None:
    with plain_application(kind, dsn) as app:
        run_at_once(run_jobs(app, TestKit(app.connection, scheduler=app.scheduler)))
        app.rollback()
    assert committed(dsn) == 0


@pytest.mark.parametrize("kind", SYNC_KINDS)
def test_plain_job_of_a_kit_has_no_durable_steps(kind: str, dsn: str) -> None:
    def place() -> None:
        with pytest.raises(NotRunningError, match=r"no durable steps .*; use a TestScheduler"):
            current_steps()
        with pytest.raises(NotRunningError, match="cannot complete in a transaction"):
            current_job().completing()

    with plain_application(kind, dsn) as app:
        kit = TestKit(app.connection, scheduler=app.scheduler)
        kit.scheduler.register(place, name="kit.steps")
        kit.run(place)


@pytest.mark.parametrize("kind", SYNC_KINDS)
def test_error_of_a_plain_job_leaves_the_transaction_usable(kind: str, dsn: str) -> None:
    with plain_application(kind, dsn) as app:
        app.run("CREATE TABLE notes (number integer UNIQUE)")

        @job(name=f"kit.broken.{kind}")
        def broken() -> None:
            app.run("INSERT INTO notes VALUES (1)")
            app.run("INSERT INTO notes VALUES (1)")

        @job(name=f"kit.stops.{kind}")
        def stops() -> None:
            app.run("INSERT INTO notes VALUES (2)")
            raise ValueError("after a write")

        kit = TestKit(app.connection)
        for function in (broken, stops, note_plainly):
            kit.scheduler.enqueue(function)
        assert kit.drain(raises=False) == DrainResult(failed=2, completed=1)
        app.run("DO $$ BEGIN ASSERT (SELECT array_agg(number) FROM notes) = ARRAY[2]; END $$")
        assert ran == [(None, threading.current_thread())]


def test_plain_jobs_run_in_the_thread_of_the_test_and_async_ones_call_its_connection(dsn: str) -> None:
    with plain_application("psycopg", dsn) as app:
        kit = TestKit(app.connection)
        kit.scheduler.enqueue(chain_plainly, args=(2,))
        kit.scheduler.enqueue(chain, args=(2,))
        kit.scheduler.enqueue(note_plainly, priority=JobPriority.CRITICAL)
        assert kit.drain() == DrainResult(completed=7)
        assert ran[0] == (None, threading.current_thread())
        assert sorted(ran[1:]) == [0, 0, 1, 1, 2, 2]
        app.rollback()
    assert committed(dsn) == 0


# -- what runs, in which order -------------------------------------------------------------------------------


@pytest.fixture
def kit(dsn: str) -> Iterator[TestKit]:
    with plain_application("psycopg", dsn) as app:
        yield TestKit(app.connection)


def test_jobs_run_in_the_order_of_claims(kit: TestKit) -> None:
    due = kit.now - timedelta(seconds=10)
    for name, seconds, priority in (
        ("c", 2, "normal"),
        ("b", 1, "normal"),
        ("a", 1, "normal"),
        ("z", 5, "high"),
    ):
        kit.scheduler.schedule(
            note,
            execution_time=due + timedelta(seconds=seconds),
            args=(name,),
            job_id=name,
            priority=JobPriority(priority),
        )
    kit.drain()
    assert ran == ["z", "a", "b", "c"]


def test_run_due_runs_each_job_once_and_drain_runs_what_they_schedule(kit: TestKit) -> None:
    kit.scheduler.enqueue(chain, args=(3,))
    assert kit.run_due() == DrainResult(completed=1)
    assert ran == [3]
    assert kit.drain() == DrainResult(completed=3)
    assert ran == [3, 2, 1, 0]


def test_jobs_of_all_tenants_of_a_share_run(kit: TestKit) -> None:
    @job(name="kit.export", share=Share(key=lambda tenant: tenant), max_retries=1)
    async def export(tenant: str) -> None:
        ran.append(tenant)
        if current_job().attempt == 1:
            raise Retry(60)

    parent = kit.scheduler.enqueue(note)
    for tenant in ("a", "b", "a"):
        kit.scheduler.enqueue(export, args=(tenant,), after=[parent] if tenant == "b" else ())
    assert kit.run_due() == DrainResult(completed=1, retried=2)
    assert kit.drain() == DrainResult(retried=1)
    kit.advance(minutes=1)
    assert kit.drain() == DrainResult(completed=3)
    assert Counter(ran) == {None: 1, "a": 4, "b": 2}


def test_jobs_of_a_sequence_run_in_their_order_whatever_their_priority(kit: TestKit) -> None:
    @job(name="kit.book", sequence=lambda account, *_: account, max_retries=1)
    async def book(account: str, number: int) -> None:
        if number == 1 and current_job().attempt == 1:
            raise Retry(60)
        ran.append((account, number))

    for number, priority in enumerate((JobPriority.LOW, JobPriority.NORMAL, JobPriority.HIGH)):
        kit.scheduler.enqueue(book, args=("a", number), priority=priority)
    assert kit.drain() == DrainResult(completed=1, retried=1)
    kit.advance(minutes=1)
    assert kit.drain() == DrainResult(completed=2)
    assert ran == [("a", 0), ("a", 1), ("a", 2)]


def test_expired_job_of_a_share_has_ended(kit: TestKit) -> None:
    @job(name="kit.export", share=Share(key=lambda tenant: tenant))
    async def export(tenant: str) -> None: ...

    kit.scheduler.enqueue(export, args=("a",), delay=60, misfire_grace_time=30, job_id="late")
    kit.advance(minutes=2)
    assert kit.drain() == DrainResult(expired=1)
    late = kit.scheduler.get_job("late")
    assert late is not None
    assert (late.status, late.blocked_on) == (JobStatus.EXPIRED, None)


def test_late_job_expires_as_a_claim_would_find_it(kit: TestKit) -> None:
    kit.scheduler.enqueue(note, delay=60, misfire_grace_time=30, job_id="late")
    kit.scheduler.enqueue(note, delay=60, misfire_grace_time=None)
    kit.advance(minutes=2)
    assert kit.drain() == DrainResult(completed=1, expired=1)
    late = kit.scheduler.get_job("late")
    assert late is not None
    assert late.status is JobStatus.EXPIRED
    assert late.error_message is not None
    assert late.error_message.startswith("not started between ")


def test_error_of_a_job_is_raised_after_its_outcome_is_written(kit: TestKit) -> None:
    kit.scheduler.enqueue(fail, args=("first",), job_id="a")
    kit.scheduler.enqueue(note, job_id="b")
    with pytest.raises(ValueError, match="first"):
        kit.drain()
    failed, left = kit.scheduler.get_job("a"), kit.scheduler.get_job("b")
    assert failed is not None
    assert left is not None
    assert (failed.status, failed.error_message) == (JobStatus.FAILED, "ValueError: first")
    assert left.status is JobStatus.PENDING
    assert kit.drain() == DrainResult(completed=1)


def test_retries_follow_the_clock_of_the_kit_without_jitter(kit: TestKit) -> None:
    kit.scheduler.enqueue(fail, max_retries=2)
    with pytest.raises(ValueError, match="no"):
        kit.drain()
    kit.assert_scheduled(fail, after=timedelta(minutes=1))
    assert kit.drain() == DrainResult()
    kit.advance(minutes=1)
    assert kit.drain(raises=False) == DrainResult(retried=1)
    kit.advance(minutes=2)
    assert kit.drain(raises=False) == DrainResult(failed=1)


def test_retry_and_snooze_are_no_errors(kit: TestKit) -> None:
    @job(name="kit.again", max_retries=1)
    async def again() -> None:
        raise Retry(60) if current_job().attempt > 1 else Snooze(60)

    kit.scheduler.enqueue(again)
    assert kit.drain() == DrainResult(snoozed=1)
    kit.advance(60)
    assert kit.drain() == DrainResult(retried=1)


def test_what_ends_a_task_does_not_end_the_test(kit: TestKit) -> None:
    @job(name="kit.exit")
    async def leave(kind: str) -> None:
        raise {"exit": SystemExit, "cancel": asyncio.CancelledError}[kind]("no")

    for kind in ("exit", "cancel"):
        kit.scheduler.enqueue(leave, args=(kind,))
        with pytest.raises(RuntimeError, match=r"a job raised .*: no"):
            kit.drain()


def test_plain_job_that_exceeds_its_timeout_fails_when_it_returns(kit: TestKit) -> None:
    @job(name="kit.slow", timeout=0.05)
    def slow() -> None:
        while not current_job().is_cancelled:
            threading.Event().wait(0.01)

    kit.scheduler.enqueue(slow)
    with pytest.raises(TimeoutError, match="longer than its timeout"):
        kit.drain()


def test_consequences_of_jobs_follow_in_the_transaction(kit: TestKit) -> None:
    @job(name="kit.alert")
    async def alert(**failure: Any) -> None:
        ran.append(failure["job_id"])

    @job(name="kit.watched", on_failure="kit.alert")
    async def watched() -> None:
        raise ValueError("no")

    first = kit.scheduler.enqueue(watched, job_id="watched")
    kit.scheduler.enqueue(note, args=("after",), after=[first], after_outcome="ended")
    assert kit.drain(raises=False) == DrainResult(failed=1, completed=2)
    assert sorted(ran) == ["after", "watched"]


def test_paused_task_and_unregistered_name_stay_pending(kit: TestKit) -> None:
    kit.scheduler.enqueue("billing.charge")
    kit.scheduler.enqueue(note)
    kit.scheduler.tasks.pause("kit.note")
    assert kit.drain() == DrainResult(unregistered=("billing.charge",))
    kit.scheduler.tasks.resume("kit.note")
    assert kit.drain() == DrainResult(completed=1, unregistered=("billing.charge",))


def test_pause_that_suspends_expiry_ends_at_its_time(kit: TestKit) -> None:
    kit.scheduler.tasks.pause("kit.note", until=kit.now + timedelta(minutes=10), suspend_expiry=True)
    kit.scheduler.enqueue(note, misfire_grace_time=30)
    assert kit.drain() == DrainResult()
    kit.advance(minutes=20)
    assert kit.drain() == DrainResult(completed=1)


def test_result_is_kept_in_the_transaction(kit: TestKit) -> None:
    kit.scheduler.enqueue(note, keep_result=DAY, job_id="kept", args=([1, 2],))
    with pytest.raises(TimeoutError, match=r"'kept' has not ended; call drain\(\) of the test kit first"):
        kit.scheduler.get_job_result("kept")
    with pytest.raises(RuntimeError, match=r"run_job\(\) would never return"):
        kit.scheduler.run_job(note)
    kit.drain()
    result = kit.scheduler.get_job_result("kept")
    assert result is not None
    assert result.value == [1, 2]


def test_job_cannot_run_jobs(kit: TestKit) -> None:
    @job(name="kit.nested")
    def nested() -> None:
        kit.drain()

    @job(name="kit.nested_async")
    async def nested_async() -> None:
        kit.drain()

    for function in (nested, nested_async):
        kit.scheduler.enqueue(function)
        with pytest.raises(RuntimeError, match="a job cannot run jobs"):
            kit.drain()


async def test_job_of_the_async_kit_cannot_run_jobs(dsn: str, pool: Pool) -> None:
    async with pool.acquire() as connection, connection.transaction():
        kit = AsyncTestKit(connection)

        async def nested() -> None:
            await kit.drain()

        await kit.scheduler.enqueue(nested)
        with pytest.raises(RuntimeError, match="a job cannot run jobs"):
            await kit.drain()


# -- run() ---------------------------------------------------------------------------------------------------


def test_run_calls_a_function_as_a_job_without_a_row(kit: TestKit) -> None:
    @job(name="kit.about", metadata={"tenant": "acme"}, keep_result=DAY)
    def about(*values: Any) -> Any:
        me = current_job()
        return [*values, me.job_name, me.attempt, me.deadline is None, threading.current_thread()]

    assert kit.run(about, (1, 2)) == [[1, 2], "kit.about", 1, False, threading.current_thread()]
    assert kit.run(note, 7) == 7
    assert kit.scheduled() == []
    with pytest.raises(ValueError, match="wrong"):
        kit.run(fail, "wrong")
    with pytest.raises(PayloadError):
        kit.run(note, object())
    with pytest.raises(TypeError):
        kit.run(fail, 1, 2, 3)  # type: ignore[call-overload]


@pytest.mark.parametrize("error", [Snooze(5), Retry(5), SystemExit("no"), TimeoutError("own")], ids=repr)
def test_run_raises_what_the_function_raises(kit: TestKit, error: BaseException) -> None:
    @job(name="kit.raises", max_retries=1)
    def raises() -> None:
        raise error

    expected = type(error) if isinstance(error, Exception) else RuntimeError
    with pytest.raises(expected) as raised:
        kit.run(raises)
    assert error in {raised.value, raised.value.__cause__}


async def test_run_stores_neither_steps_nor_a_completion_without_a_row(pool: Pool) -> None:
    async def step() -> None:
        await current_job().steps.run("a", note, 1)

    async def complete() -> None:
        async with current_job().completing():
            pass

    async with pool.acquire() as connection, connection.transaction():
        for func in (step, complete):
            with pytest.raises(JobLostError):
                await AsyncTestKit(connection).run(func)


async def test_run_has_the_middleware_of_the_application(pool: Pool) -> None:
    async def twice(call: Any, call_next: Any) -> Any:
        await asyncio.sleep(0)
        return 2 * await call_next()

    app = Scheduler(pool, middleware=[twice])
    async with pool.acquire() as connection, connection.transaction():
        kit = AsyncTestKit(connection, scheduler=app)
        assert await kit.run(note, 4) == 8
        assert await kit.run(note_plainly, 4) == 8
    with plain_application("psycopg", dsn_of(pool)) as other:
        assert await asyncio.to_thread(TestKit(other.connection, scheduler=app).run, note_plainly, 4) == 8


def dsn_of(pool: Pool) -> str:
    found: str = pool._connect_args[0]  # type: ignore[attr-defined]
    return found


def test_run_raises_the_timeout(kit: TestKit) -> None:
    @job(name="kit.waits", timeout=0.05)
    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"longer than its timeout of 0\.05"):
        kit.run(waits)


# -- the client ----------------------------------------------------------------------------------------------


async def test_client_uses_the_connection_in_all_of_its_methods_and_cannot_start(pool: Pool) -> None:
    app = Scheduler(pool, misfire_grace_time=77, only=["nothing.*"])
    app.register(note, name="kit.other_name")
    async with pool.acquire() as connection, connection.transaction():
        kit = AsyncTestKit(connection, scheduler=app)
        job_id = await kit.scheduler.schedule(note, execution_time=kit.now, args=(1,))
        found = await kit.scheduler.get_job(job_id)
        assert found is not None
        assert (found.misfire_grace_time, found.job_name) == (77, "kit.other_name")
        assert await kit.scheduler.cancel_job(job_id)
        assert await kit.scheduler.retry_job(job_id)
        assert (await kit.scheduler.count_jobs()).pending == 1
        assert await kit.drain() == DrainResult(completed=1)
        assert await kit.scheduler.workers() == []
        for start in (kit.scheduler.start, kit.scheduler.__aenter__):
            with pytest.raises(
                RuntimeError, match=r"cannot start, because the kit runs its jobs; call drain"
            ):
                await start()
        assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


def test_blocking_client_uses_the_connection_and_starts_no_thread(kit: TestKit) -> None:
    before = set(threading.enumerate())
    client: SyncScheduler = kit.scheduler
    job_id = client.enqueue(note)
    assert [each.job_id for each in client.list_jobs()] == [job_id]
    client.schedules.add(note, Cron("0 2 * * *"), schedule_id="nightly")
    assert [each.schedule_id for each in client.schedules.list()] == ["nightly"]
    assert client.cancel_job(job_id)
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeError, match="cannot start"):
        client.start()
    client.close()


def test_settings_of_a_sync_scheduler_apply(dsn: str) -> None:
    app = SyncScheduler(misfire_grace_time=55)
    with plain_application("psycopg2", dsn) as other:
        kit = TestKit(other.connection, scheduler=app)
        kit.scheduler.enqueue(note, delay=1, job_id="a")
        found = kit.scheduler.get_job("a")
        assert found is not None
        assert found.misfire_grace_time == 55


async def test_wrong_connections_are_rejected_with_the_other_kit(dsn: str, pool: Pool) -> None:
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg2://"))
    with (
        Session(engine) as session,
        pytest.raises(TypeError, match="Session blocks; use TestKit for it, not Async"),
    ):
        AsyncTestKit(session)  # type: ignore[arg-type]
    async_engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    async with AsyncSession(async_engine) as other:
        with pytest.raises(TypeError, match="asynchronous; use AsyncTestKit for it, not TestKit"):
            TestKit(other)  # type: ignore[arg-type]
    for given in (None, engine, pool, 7):
        for kind in (AsyncTestKit, TestKit):
            with pytest.raises(TypeError, match="pass a connection of asyncpg, psycopg"):
                kind(given)  # type: ignore[arg-type]
    async with pool.acquire() as connection:
        with pytest.raises(ValueError, match="not in a transaction"):
            AsyncTestKit(connection)


async def test_own_adapter_is_accepted(pool: Pool) -> None:
    async with pool.acquire() as connection, connection.transaction():

        async def run(statement: str, texts: Any) -> list[str]:
            return [row[0] for row in await connection.fetch(statement, *texts)]

        kit = AsyncTestKit(ConnectionAdapter(run))
        await kit.scheduler.enqueue(note)
        assert await kit.drain() == DrainResult(completed=1)


def test_kit_works_without_a_transaction(dsn: str) -> None:
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        kit = TestKit(connection)
        kit.scheduler.enqueue(note)
        kit.scheduler.enqueue(fail)
        assert kit.drain(raises=False) == DrainResult(completed=1, failed=1)
        assert not connection.info.transaction_status
    assert committed(dsn) == 2


# -- assertions ----------------------------------------------------------------------------------------------


def test_assertions_list_all_jobs_when_they_fail(kit: TestKit) -> None:
    kit.scheduler.enqueue("mail.send", kwargs={"to": "ada", "tries": 1}, job_id="hello", delay=DAY)
    kit.assert_scheduled("mail.send", kwargs={"to": "ada"}, after=DAY)
    kit.assert_scheduled("mail.send", kwargs={"to": ANY}, at=kit.now + DAY + timedelta(seconds=5))
    kit.assert_not_scheduled("mail.send", after=DAY, tolerance=0)
    assert [each.job_id for each in kit.scheduled(kwargs={"tries": 1})] == ["hello"]
    with pytest.raises(
        AssertionError, match=r"(?s)no such job of kit.note .*mail.send \(id hello\), pending .*ada"
    ):
        kit.assert_scheduled(note)
    with pytest.raises(AssertionError, match=r"(?s)jobs of any task are pending at .*mail.send"):
        kit.assert_not_scheduled()
    with pytest.raises(TypeError, match="exclude each other"):
        kit.scheduled(after=1, at=kit.now)
    with pytest.raises(ValueError, match="days must"):
        kit.advance(days=-1)


def test_scheduling_finds_jobs_of_sql_and_no_others(dsn: str) -> None:
    with plain_application("psycopg", dsn) as app:
        kit = TestKit(app.connection)
        kit.scheduler.enqueue(note, job_id="before")
        with kit.scheduling() as jobs:
            app.run("SELECT scheduler_add_job('mail.send', job_id => 'in SQL')")
            app.run("SAVEPOINT own")
            kit.scheduler.enqueue(note, job_id="undone")
            app.run("ROLLBACK TO SAVEPOINT own")
            assert jobs == []
        assert [each.job_id for each in jobs] == ["in SQL"]


# -- rollback fixtures of SQLAlchemy -------------------------------------------------------------------------


@pytest.fixture
def outer(dsn: str) -> Iterator[Connection]:
    """The connection of SQLAlchemy's recipe for test suites, with a transaction that the test rolls back."""
    engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg2://"))
    with engine.connect() as connection:
        transaction = connection.begin()
        connection.execute(text("CREATE TABLE orders (number integer UNIQUE)"))
        yield connection
        transaction.rollback()
    engine.dispose()


def session_of(connection: Connection) -> Session:
    return Session(bind=connection, join_transaction_mode="create_savepoint")


shared: list[Connection] = []


@job(name="kit.orders.add")
def add_order(number: int) -> None:
    with session_of(shared[0]) as session:
        session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
        session.commit()


def place_order(session: Session, scheduler: SyncScheduler, number: int) -> None:
    session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
    scheduler.enqueue(add_order, args=(number + 1,), job_id=f"order:{number}", connection=session)
    session.commit()


@pytest.mark.parametrize("given", ["session", "connection", "scoped_session"])
def test_rollback_fixture_of_sqlalchemy_sees_and_runs_jobs(given: str, outer: Connection, dsn: str) -> None:
    shared[:] = [outer]
    app = SyncScheduler()
    with session_of(outer) as session:
        passed: Any = {
            "session": session,
            "connection": outer,
            "scoped_session": scoped_session(
                sessionmaker(bind=outer, join_transaction_mode="create_savepoint")
            ),
        }[given]
        kit = TestKit(passed, scheduler=app)
        with kit.scheduling() as jobs:
            place_order(session, app, 1)
        assert [each.job_id for each in jobs] == ["order:1"]
        with pytest.raises(JobConflictError):  # without waiting for a lock
            kit.scheduler.enqueue(add_order, args=(9,), job_id="order:1")
        assert kit.drain() == DrainResult(completed=1)
        place_order(session, app, 10)
        kit.scheduler.enqueue(add_order, args=(1,))
        assert kit.drain(raises=False) == DrainResult(completed=1, failed=1)
        numbers = session.execute(text("SELECT number FROM orders ORDER BY number")).scalars().all()
        assert list(numbers) == [1, 2, 10, 11]
        session.rollback()
    assert committed(dsn) == 0


def test_job_that_ends_the_savepoint_of_a_session_leaves_the_transaction_usable(outer: Connection) -> None:
    session = session_of(outer)

    @job(name="kit.orders.commits")
    def commits() -> None:
        try:
            session.execute(text("INSERT INTO orders VALUES (5)"))
            session.commit()  # releases the savepoint in which the kit has set its own
        except IntegrityError:
            session.rollback()
            raise

    kit = TestKit(session)
    session.execute(text("INSERT INTO orders VALUES (4)"))
    kit.scheduler.enqueue(commits)
    kit.scheduler.enqueue(commits)
    with pytest.raises(IntegrityError):
        kit.drain()
    assert session.execute(text("SELECT number FROM orders ORDER BY 1")).scalars().all() == [4, 5]


def test_job_that_rolls_back_its_own_claim_is_reported(outer: Connection) -> None:
    session = session_of(outer)
    kit = TestKit(session)

    @job(name="kit.orders.rolls_back")
    def rolls_back() -> None:
        session.rollback()

    kit.scheduler.enqueue(rolls_back)
    session.execute(
        text("INSERT INTO orders VALUES (4)")
    )  # the session is in a savepoint when the job is claimed
    with pytest.raises(RuntimeError, match="has rolled back its own claim, since it shares a transaction"):
        kit.drain()


async def test_rollback_fixture_of_async_sqlalchemy_sees_and_runs_jobs(dsn: str, pool: Pool) -> None:
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    app = Scheduler(pool)

    async with engine.connect() as connection:
        transaction = await connection.begin()
        await connection.execute(text("CREATE TABLE orders (number integer UNIQUE)"))

        def new_session() -> AsyncSession:
            return AsyncSession(bind=connection, join_transaction_mode="create_savepoint")

        async def add(number: int) -> None:
            async with new_session() as own:
                await own.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
                await own.commit()

        async with new_session() as session:
            kit = AsyncTestKit(session, scheduler=app)
            async with kit.scheduling() as jobs:
                await app.enqueue(add, args=(1,), job_id="one", connection=session)
                await session.commit()
            assert [each.job_id for each in jobs] == ["one"]
            with pytest.raises(JobConflictError):
                await kit.scheduler.enqueue(add, args=(1,), job_id="one")
            await kit.scheduler.enqueue(add, args=(1,))
            assert await kit.drain(raises=False) == DrainResult(completed=1, failed=1)
            assert (await session.execute(text("SELECT number FROM orders"))).scalars().all() == [1]
        await transaction.rollback()
    await engine.dispose()
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 0


async def test_async_job_that_ends_the_savepoint_of_a_session_leaves_the_transaction_usable(dsn: str) -> None:
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    async with engine.connect() as connection, connection.begin():
        session = AsyncSession(bind=connection, join_transaction_mode="create_savepoint")

        @job(name="kit.orders.rolls_back_async")
        async def rolls_back() -> None:
            await session.execute(text("SELECT 1"))
            await session.rollback()  # ends the savepoint of the session, in which the kit would be

        kit = AsyncTestKit(session)
        await kit.scheduler.enqueue(rolls_back, job_id="one")
        assert await kit.drain() == DrainResult(completed=1)
        row = await kit.scheduler.get_job("one")
        assert row is not None
        assert row.status is JobStatus.COMPLETED
    await engine.dispose()


# -- the same rows as a worker -------------------------------------------------------------------------------

VARYING = (
    *("execution_time", "created_at", "last_heartbeat", "lease_until"),
    *("expires_at", "started_at", "finished_at"),
)
"""Columns that must be NULL in both rows, or in none."""

JOBS = st.lists(
    st.fixed_dictionaries(
        {
            "args": st.sampled_from(["value", "error", "snooze", "retry", "abort"]).map(lambda kind: (kind,)),
            "kwargs": st.dictionaries(st.just("value"), st.none() | st.text('a"é', max_size=3)),
            "priority": st.sampled_from(JobPriority),
            "max_retries": st.integers(0, 2),
            "keep_result": st.sampled_from([None, DAY]),
            "metadata": st.none() | st.just({"tenant": 1}),
            "after_outcome": st.sampled_from(["completed", "ended"]),
        },
    ),
    min_size=1,
    max_size=8,
)


@job(name="kit.row.failed")
async def alert(**failure: Any) -> None:
    """Receive how a job failed."""


@job(name="kit.row", on_failure="kit.row.failed")
async def make_row(kind: str, value: Any = None) -> Any:
    current_job().progress(1, 2)
    match kind:
        case "error":
            raise ValueError("no")
        case "snooze" if current_job().attempt == 1:
            raise Snooze(60)
        case "retry":
            raise Retry(60)
        case "abort":
            raise Abort("never")
    return value


async def written_rows(kit: Any, connection: Any, jobs: list[dict[str, Any]], random: Random) -> list[Any]:
    """Schedule jobs, let them run twice with three hours between, and return what they have written."""
    for number, options in enumerate(jobs):
        parents = random.sample(range(number), random.randint(0, min(number, 2)))
        await kit.scheduler.schedule(
            make_row,
            execution_time=kit.now - timedelta(minutes=random.randint(1, 9)),
            job_id=f"job {number}",
            misfire_grace_time=None,  # a worker expires jobs in two ways, which count attempts differently
            after=[f"job {parent}" for parent in parents],
            **options,
        )
    for _ in range(2):
        await (kit.drain(raises=False) if isinstance(kit, AsyncTestKit) else kit.drain())
        kit.advance(timedelta(hours=3))
    rows = [dict(row) for row in await connection.fetch("SELECT * FROM scheduled_jobs")]
    for row in rows:
        row |= {name: row[name] is None for name in VARYING}
        row["worker_id"] = row["worker_id"] == kit.scheduler.worker_id
        row["errors"] = [each["outcome"] for each in json.loads(row["errors"] or "[]")]
    results = await connection.fetch("SELECT job_id, status, value, attempts FROM scheduler_results")
    return sorted(map(repr, [*rows, *results]))


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@hypothesis.given(JOBS, st.integers())
async def test_kit_and_worker_write_equal_rows(pool: Pool, jobs: list[dict[str, Any]], seed: int) -> None:
    await pool.execute("TRUNCATE scheduled_jobs, scheduler_results, scheduler_after")
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        by_kit = await written_rows(AsyncTestKit(connection), connection, jobs, Random(seed))
        await transaction.rollback()
    async with TestScheduler(pool) as t:
        assert by_kit == await written_rows(t, pool, jobs, Random(seed))


def test_kinds_are_covered() -> None:
    assert {*ASYNC_KINDS, *SYNC_KINDS} == {*KINDS}


async def shout(word: str) -> str:
    return word.upper()


async def select(connection: asyncpg.Connection, number: int) -> int:
    value: int = await connection.fetchval("SELECT $1::integer FROM pg_sleep(0.01)", number)
    return value


async def nested(connection: asyncpg.Connection, number: int) -> int:
    await current_job().scheduler.enqueue(shout, args=("later",), delay=DAY, metadata={"n": number})
    return await select(connection, number)


AT_ONCE: dict[str, Callable[[Any], list[Coroutine[Any, Any, Any]]]] = {
    "transactions": lambda steps: [steps.transaction(f"{n}", select, n) for n in range(3)],
    "transactions that enqueue": lambda steps: [steps.transaction(f"{n}", nested, n) for n in range(3)],
    "children": lambda steps: [steps.child(f"{n}", call(shout, "a")) for n in range(3)],
    "all": lambda steps: [
        steps.transaction("0", select, 0),
        steps.child("1", call(shout, "a")),
        steps.run("2", shout, "b"),
        steps.run("3", shout, "c"),
    ],
}


@pytest.mark.parametrize("case", AT_ONCE)
async def test_steps_that_run_at_once_use_the_connection_one_after_the_other(pool: Pool, case: str) -> None:
    returned: list[Any] = []

    async def parent() -> None:
        returned.append(await asyncio.gather(*AT_ONCE[case](current_job().steps)))

    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        kit = AsyncTestKit(connection)
        kit.scheduler.register(parent)
        kit.scheduler.register(shout)
        await kit.scheduler.enqueue(parent)
        await kit.drain()
        await transaction.rollback()
    expected = {
        "transactions": [0, 1, 2],
        "transactions that enqueue": [0, 1, 2],
        "children": ["A", "A", "A"],
        "all": [0, "A", "B", "C"],
    }
    assert returned == [expected[case]]
