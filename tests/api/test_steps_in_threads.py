"""current_steps(): durable steps of jobs in threads, whose calls block, and what ends their attempts."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    DuplicateStepError,
    JobLostError,
    JobStatus,
    NotRunningError,
    PayloadError,
    Scheduler,
    ThreadExecutor,
    call,
    current_job,
)
from pg_scheduler.events import (
    JobCompleted,
    JobFailed,
    JobReleased,
    JobRetried,
    JobSuspended,
    ThreadAbandoned,
)
from pg_scheduler.steps.attempt import AttemptSteps
from pg_scheduler.sync import (
    AttemptEnded,
    StepConnection,
    current_scheduler,
    current_steps,
)
from pg_scheduler.testing import TestScheduler, job_context
from pg_scheduler.worker.in_flight import Attempt
from tests.api.conftest import Make
from tests.support.executors import InThread
from tests.support.inside import AttemptRunner, worker_of
from tests.support.worker import PATIENCE, Recorder, wire_to

Pool = asyncpg.Pool

START = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
NAME = "threads.steps"

VARIABLE: ContextVar[str] = ContextVar("variable", default="unset")


class Log(list[Any]):
    """What happened, and steps that note it."""

    def note(self, what: Any) -> Any:
        self.append(what)
        return what

    def fail(self, what: Any) -> None:
        self.append(what)
        raise ValueError(f"no {what}")


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def t(pool: Pool) -> AsyncIterator[TestScheduler]:
    async with TestScheduler(pool, now=START, max_result_bytes=1000) as scheduler:
        yield scheduler


async def begin(t: TestScheduler, func: Callable[..., Any], **options: Any) -> str:
    """Enqueue a plain function, and run it until it ends or is suspended."""
    t.scheduler.register(func, name=NAME, executor="thread")
    job_id = await t.scheduler.enqueue(NAME, **options)
    await t.drain()
    return job_id


async def run(t: TestScheduler, func: Callable[..., Any], **options: Any) -> Any:
    """Run a plain function as a job until no attempt is due within a year, and return its value."""
    job_id = await begin(t, func, keep_result=timedelta(days=3650), **options)
    await t.run_until(365 * DAY)
    result = await t.scheduler.get_job_result(job_id, wait=False)
    assert result
    return result.unwrap()


# -- run() -----------------------------------------------------------------------------------------------


async def test_stored_step_is_not_called_again_and_is_called_in_the_thread_of_the_job(
    t: TestScheduler, log: Log
) -> None:
    def place() -> list[Any]:
        steps = current_steps()
        log.append("outside")
        thread = steps.run("first", threading.get_ident)
        if current_job().attempt == 1:
            assert thread == threading.get_ident()
        second = steps.run("second", log.note, "two")
        if current_job().attempt < 3:
            raise ValueError
        return [second]

    assert await run(t, place, max_retries=2) == ["two"]
    assert log == ["outside", "two", "outside", "outside"]


async def test_failed_step_raises_its_exception_and_may_be_repeated(t: TestScheduler, log: Log) -> None:
    def place() -> None:
        with pytest.raises(ValueError, match="no 1") as raised:
            current_steps().run("a", log.fail, 1)
        assert raised.value.__cause__ is None
        current_steps().run("a", log.note, 2)
        with pytest.raises(DuplicateStepError):
            current_steps().run("a", log.note, 3)

    await run(t, place)
    assert log == [1, 2]


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration(1), asyncio.CancelledError()]
)
async def test_exception_that_would_end_the_worker_in_a_step_fails_the_attempt_only(
    t: TestScheduler, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    def place() -> None:
        current_steps().run("a", fail)

    seen = Recorder(t.scheduler)
    await begin(t, place)
    (failed,) = seen.of(JobFailed)
    assert failed.exception is error


@dataclass
class Quote:
    price: float
    at: datetime


class Shop:
    """Methods, a decorated one, and an object that is called."""

    def quote(self, order: int, *, factor: float) -> Quote:
        return Quote(order * factor, START)

    @functools.cache  # noqa: B019 - any decorator
    def decorated(self, order: int) -> Quote:
        return Quote(order, START)

    def __call__(self, order: int) -> Quote:
        return Quote(order, START)


async def test_step_returns_the_annotated_type_the_first_time_and_later(t: TestScheduler) -> None:
    def place() -> None:
        steps, shop = current_steps(), Shop()
        assert steps.run("method", shop.quote, 2, factor=1.5) == Quote(3, START)
        assert steps.run("decorated", shop.decorated, 3) == Quote(3, START)
        assert steps.run("partial", functools.partial(shop.quote, factor=2), 2) == Quote(4, START)
        assert steps.run("object", shop, 7) == Quote(7, START)
        assert list(steps.run("plain", lambda: (1, 2))) == [1, 2]
        if current_job().attempt == 1:
            raise ValueError

    await run(t, place, max_retries=1)


async def test_value_that_cannot_be_stored_is_a_payload_error(t: TestScheduler) -> None:
    def place() -> None:
        with pytest.raises(PayloadError, match="step 'a': the value"):
            current_steps().run("a", object)

    await run(t, place)


async def test_function_that_a_thread_cannot_call_is_refused(t: TestScheduler) -> None:
    async def fetch() -> None: ...

    def place() -> None:
        wrong: Any
        for wrong in (fetch, functools.partial(fetch), fetch(), 3):
            with pytest.raises(TypeError, match="a step of a job in a thread needs a plain function"):
                current_steps().run("a", wrong)
            with pytest.raises(TypeError, match="needs a plain function"):
                current_steps().transaction("b", wrong)
            if asyncio.iscoroutine(wrong):
                wrong.close()

    await run(t, place)


async def test_function_of_a_step_has_the_context_variables_of_the_job(t: TestScheduler) -> None:
    def place() -> None:
        VARIABLE.set("set")
        assert current_steps().run("a", VARIABLE.get) == "set"
        assert current_steps().run("b", lambda: current_job().job_id) == current_job().job_id

    await run(t, place)


async def test_steps_of_several_threads_of_a_job_run_at_once(t: TestScheduler) -> None:
    def place() -> list[Any]:
        steps, meeting, values = current_steps(), threading.Barrier(2), list[Any]()

        def work(name: str) -> None:
            values.append(steps.run(name, lambda: bool(meeting.wait(PATIENCE)) or True))

        threads = [threading.Thread(target=copy_context().run, args=(work, name)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return values

    assert await run(t, place) == [True, True]


async def test_version_is_that_of_the_first_step(t: TestScheduler) -> None:
    versions: list[int] = []

    def place() -> None:
        versions.append(current_steps().version)
        current_steps().run("a", int)
        if current_job().attempt == 1:
            raise ValueError

    t.scheduler.register(place, name=NAME, executor="thread", version=3)
    await t.scheduler.enqueue(NAME, max_retries=1)
    await t.run_until(DAY)
    assert versions == [3, 3]


# -- sleep() and wait() ----------------------------------------------------------------------------------


async def test_sleep_ends_the_attempt_and_continues_on_time(t: TestScheduler, log: Log) -> None:
    def place() -> str:
        log.append(t.now - START)
        current_steps().run("a", log.note, "a")
        current_steps().sleep("cool-off", 3 * DAY)
        current_steps().sleep("until", until=START + 5 * DAY)
        return "done"

    seen = Recorder(t.scheduler)
    assert await run(t, place) == "done"
    assert log == [timedelta(0), "a", 3 * DAY, 5 * DAY]
    assert [each.step for each in seen.of(JobSuspended)] == ["cool-off", "until"]


async def test_suspension_passes_except_exception_and_runs_finally_blocks(t: TestScheduler, log: Log) -> None:
    def place() -> None:
        try:
            current_steps().sleep("a", HOUR)
            log.append("slept")
        except Exception:  # noqa: BLE001 - which does not catch it
            log.append("caught")
        finally:
            log.append("finally")

    seen = Recorder(t.scheduler)
    await begin(t, place)
    assert log == ["finally"]
    assert seen.of(JobSuspended)
    await t.run_until(DAY)
    assert log == ["finally", "slept", "finally"]


@pytest.mark.parametrize("end", ["returns", "raises", "runs another step", "exits"])
async def test_suspension_that_is_swallowed_suspends_the_job_nevertheless(
    t: TestScheduler, log: Log, end: str
) -> None:
    def place() -> str:
        try:
            current_steps().sleep("a", HOUR)
        except BaseException as error:  # noqa: BLE001 - swallows it
            log.append(type(error))
            if end == "raises":
                raise ValueError from None
            if end == "exits":
                raise SystemExit from None
            if end == "runs another step":
                with pytest.raises(AttemptEnded, match=r"this attempt of job .* ends: it is suspended"):
                    current_steps().run("b", log.note, "b")
            return "too early"
        return "slept"

    assert await run(t, place) == "slept"
    assert log == [AttemptEnded]


async def test_suspension_waits_for_the_steps_of_other_threads(t: TestScheduler, log: Log) -> None:
    def place() -> None:
        steps, began = current_steps(), threading.Event()

        def work() -> None:
            began.set()
            found = running(t.scheduler).steps
            assert isinstance(found, AttemptSteps)
            while not found._waits._calls:
                pass
            log.append("worked")

        if current_job().attempt == 1:
            threading.Thread(target=copy_context().run, args=(steps.run, "work", work)).start()
            assert began.wait(PATIENCE)
        steps.sleep("a", HOUR)
        steps.run("work", work)

    await run(t, place)
    assert log == ["worked"]


async def test_suspended_jobs_use_no_thread(pool: Pool) -> None:
    """Many of them are suspended by one thread, which runs another job then."""

    def place(seconds: int) -> int:
        if seconds:
            current_steps().sleep("rest", seconds)
        return threading.get_ident()

    executor = ThreadExecutor(threads=1)
    async with TestScheduler(pool, now=START, executors={"thread": executor}) as t:
        seen = Recorder(t.scheduler)
        t.scheduler.register(place, name=NAME, executor="thread")
        for _ in range(100):
            await t.scheduler.enqueue(NAME, args=(3600,))
        await t.drain()
        assert len(seen.of(JobSuspended)) == 100
        await t.scheduler.enqueue(NAME, args=(0,))
        assert await t.drain() == 1
        assert len(seen.of(JobCompleted)) == 1


async def test_job_in_a_thread_waits_for_other_jobs(t: TestScheduler) -> None:
    def double(number: int) -> int:
        return 2 * number

    def place() -> list[int]:
        steps = current_steps()
        first = steps.child("first", call(double, 1), delay=HOUR)
        others = [call(double, 2), call(double, 3)]
        return [first, *steps.gather("others", others, detached=True)]

    t.scheduler.register(double, name="threads.double")
    seen = Recorder(t.scheduler)
    assert await run(t, place) == [2, 4, 6]
    assert [event.step for event in seen.of(JobSuspended)] == ["first", "others"]


async def test_sleep_within_the_function_of_a_step_is_refused(t: TestScheduler) -> None:
    def sleep() -> None:
        with pytest.raises(RuntimeError, match="step 'inner' waits within the function of step 'outer'"):
            current_steps().sleep("inner", 1)

    def place() -> None:
        current_steps().run("outer", sleep)

    await run(t, place)


async def test_wait_returns_the_signal_in_a_later_attempt(t: TestScheduler) -> None:
    def place() -> str:
        quote = current_steps().wait("quote", kind=Quote)
        assert quote == Quote(2, START)
        return current_steps().wait("approval", timeout=DAY)  # type: ignore[no-any-return]

    job_id = await begin(t, place, keep_result=DAY)
    assert await t.scheduler.signal(job_id, "quote", {"price": 2, "at": START.isoformat()})
    await t.drain()
    assert await t.scheduler.signal(job_id, "approval", "ann")
    await t.drain()
    result = await t.scheduler.get_job_result(job_id, wait=False)
    assert result
    assert result.unwrap() == "ann"


async def test_wait_times_out(t: TestScheduler) -> None:
    def place() -> str:
        with pytest.raises(TimeoutError, match="no signal 'approval' came"):
            current_steps().wait("approval", timeout=DAY)
        return "rejected"

    assert await run(t, place) == "rejected"


# -- transaction() ---------------------------------------------------------------------------------------


@pytest.fixture
async def stock(pool: Pool) -> None:
    await pool.execute("CREATE TABLE stock (item integer)")


async def items(pool: Pool) -> list[int]:
    return [row["item"] for row in await pool.fetch("SELECT item FROM stock ORDER BY item")]


def store(connection: StepConnection, item: int) -> int:
    assert connection.execute("INSERT INTO stock VALUES ($1)", item) == "INSERT 0 1"
    return item


@pytest.mark.usefixtures("stock")
async def test_transaction_commits_the_writes_of_its_function_with_the_step(
    t: TestScheduler, pool: Pool
) -> None:
    def place() -> int:
        found = current_steps().transaction("store", store, 1)
        if current_job().attempt == 1:
            raise ValueError
        return found

    assert await run(t, place, max_retries=1) == 1
    assert await items(pool) == [1]


@pytest.mark.usefixtures("stock")
async def test_connection_of_a_step_has_the_methods_of_asyncpg(t: TestScheduler, pool: Pool) -> None:
    def read(connection: StepConnection) -> list[Any]:
        connection.executemany("INSERT INTO stock VALUES ($1)", [(1,), (2,)])
        with pytest.raises(asyncpg.DivisionByZeroError):
            connection.fetchval("SELECT 1 / 0")
        return []

    def read_all(connection: StepConnection) -> list[Any]:
        connection.executemany("INSERT INTO stock VALUES ($1)", [(1,), (2,)])
        row = connection.fetchrow("SELECT max(item), min(item) FROM stock WHERE item > $1", 0)
        return [
            [row["item"] for row in connection.fetch("SELECT item FROM stock ORDER BY item")],
            [*row],
            connection.fetchval("SELECT 1, 2", column=1, timeout=PATIENCE),
            connection.fetchrow("SELECT 1 WHERE false"),
        ]

    def place() -> list[Any]:
        with pytest.raises(asyncpg.InFailedSQLTransactionError):  # as in every transaction after an error
            current_steps().transaction("failed", read)
        return current_steps().transaction("read", read_all)

    assert await run(t, place) == [[1, 2], [2, 1], 2, None]
    assert await items(pool) == [1, 2]


@pytest.mark.usefixtures("stock")
async def test_transaction_whose_function_fails_writes_nothing(t: TestScheduler, pool: Pool) -> None:
    def fail(connection: StepConnection) -> None:
        store(connection, 1)
        raise SystemExit

    def place() -> None:
        with pytest.raises(SystemExit):
            current_steps().transaction("a", fail)

    await run(t, place)
    assert await items(pool) == []


@pytest.mark.usefixtures("stock")
async def test_transaction_of_an_attempt_that_lost_its_job_is_rolled_back(
    t: TestScheduler, pool: Pool
) -> None:
    def lose(connection: StepConnection) -> None:
        store(connection, 1)
        connection.execute("SELECT set_config('lock_timeout', '10s', true)")
        loop.call_soon_threadsafe(lambda: tasks.append(asyncio.ensure_future(change())))
        assert changed.wait(PATIENCE)

    async def change() -> None:
        await pool.execute("UPDATE scheduled_jobs SET attempt = attempt + 1")
        changed.set()

    def place() -> None:
        with pytest.raises(JobLostError):
            current_steps().transaction("a", lose)

    loop, changed, tasks = asyncio.get_running_loop(), threading.Event(), list[Any]()
    await begin(t, place)
    assert await items(pool) == []


@pytest.mark.usefixtures("stock")
async def test_job_that_a_transaction_enqueues_exists_if_the_step_is_stored(
    t: TestScheduler, pool: Pool
) -> None:
    def enqueue(connection: StepConnection, fails: bool) -> None:
        store(connection, int(fails))
        current_scheduler().enqueue(
            "threads.later", delay=DAY, job_id=f"later-{fails}", connection=connection
        )
        if fails:
            raise ValueError

    def place() -> None:
        current_steps().transaction("a", enqueue, fails=False)
        with pytest.raises(ValueError, match=r"^$"):
            current_steps().transaction("b", enqueue, fails=True)

    async def later() -> None: ...

    t.scheduler.register(later, name="threads.later")
    await begin(t, place)
    assert await items(pool) == [0]
    assert [job.job_id for job in await t.scheduler.list_jobs(job_name="threads.later")] == ["later-False"]


@pytest.mark.usefixtures("stock")
async def test_steps_and_cursors_commit_with_the_step_whose_connection_they_are_given(
    t: TestScheduler, pool: Pool
) -> None:
    def place() -> list[Any]:
        with current_steps().cursor("lines", start=0) as cursor:

            def write(connection: StepConnection) -> None:
                current_steps().transaction("inner", store, 1, connection=connection)
                cursor.save(7, connection=connection)
                if current_job().attempt == 1:
                    raise ValueError

            found = cursor.value
            current_steps().transaction("outer", write)
            return [found, cursor.value]

    assert await run(t, place, max_retries=1) == [0, 7]
    assert await items(pool) == [1]


async def test_connection_of_another_library_is_refused(t: TestScheduler, dsn: str) -> None:
    psycopg = pytest.importorskip("psycopg")

    def place() -> None:
        with psycopg.connect(dsn) as connection, current_steps().cursor("lines") as cursor:
            expected = (
                "with, not of the type Connection; other connections cannot commit together with a step"
            )
            with pytest.raises(TypeError, match=expected):
                current_steps().transaction("a", store, 1, connection=connection)
            with pytest.raises(TypeError, match=expected):
                cursor.save(1, connection=connection)

    await run(t, place)


# -- cursor() --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "dropped"])
async def test_cursor_of_a_generator_that_is_left_early_is_written(
    t: TestScheduler, log: Log, closes: bool
) -> None:
    def ship_lines() -> Generator[int, None, None]:
        with current_steps().cursor("lines", start=0) as cursor:
            for line in range(cursor.value, 6):
                log.append(line)
                cursor.set(line + 1)
                yield line

    def ship() -> None:
        lines = ship_lines()
        for line in lines:
            if line % 2:
                break
        if closes:
            lines.close()
        del lines
        if current_job().attempt == 1:
            raise ValueError

    await run(t, ship, max_retries=1)
    assert log == [0, 1, 2, 3]


async def test_cursor_continues_where_the_attempt_before_ended(t: TestScheduler, log: Log) -> None:
    def ship() -> None:
        with current_steps().cursor("lines", start=0) as cursor:
            for line in range(cursor.value, 4):
                log.append(line)
                cursor.set(line + 1)
                if line == 1:
                    raise ValueError

    await run(t, ship, max_retries=1)
    assert log == [0, 1, 2, 3]


async def test_sleep_within_the_block_of_a_cursor_keeps_its_value(t: TestScheduler, log: Log) -> None:
    def ship() -> None:
        with current_steps().cursor("lines", start=0) as cursor:
            for line in range(cursor.value, 3):
                log.append(line)
                cursor.set(line + 1)
                current_steps().sleep(f"rest-{line}", HOUR)

    await run(t, ship)
    assert log == [0, 1, 2]


async def test_cursor_writes_at_once_when_it_is_saved(t: TestScheduler, pool: Pool) -> None:
    def ship() -> None:
        with current_steps().cursor("lines") as cursor:
            cursor.save({"line": 3})
            values.append(current_scheduler().get_job(current_job().job_id) is not None)
            cursor.set(4)
            cursor.save()

    values: list[bool] = []
    job_id = await begin(t, ship)
    assert values == [True]
    assert await pool.fetchval("SELECT value FROM scheduler_steps WHERE job_id = $1", job_id) == "4"


# -- cancellation, timeout, shutdown ---------------------------------------------------------------------


class Blocker:
    """A step that says when it has begun and returns when it may, whatever its flag says."""

    def __init__(self) -> None:
        self.calls = 0
        self.began = threading.Event()
        self.open = threading.Event()

    def work(self) -> str:
        self.calls += 1
        self.began.set()
        assert self.open.wait(PATIENCE)
        return "worked"

    async def wait_begun(self) -> None:
        assert await asyncio.to_thread(self.began.wait, PATIENCE)


async def test_shutdown_stores_the_step_that_returns_and_ends_the_attempt_at_the_next(
    make: Make, log: Log
) -> None:
    blocker = Blocker()

    def place() -> None:
        log.append(current_steps().run("a", blocker.work))
        try:
            current_steps().run("b", log.note, "b")
        except Exception:  # noqa: BLE001 - which does not catch it
            log.append("undone")

    first = make(stop_grace=PATIENCE)
    seen = Recorder(first)
    first.register(place, name=NAME)
    await first.start()
    await first.enqueue(NAME)
    await blocker.wait_begun()
    stopping = asyncio.ensure_future(first.shutdown())
    await asyncio.wait_for(flagged(first), PATIENCE)
    blocker.open.set()
    await asyncio.wait_for(stopping, PATIENCE)
    assert len(seen.of(JobReleased)) == 1
    assert log == ["worked"]

    second = make()
    second.register(place, name=NAME)
    again = Recorder(second)
    await second.start()
    await again.until(JobCompleted)
    assert log == ["worked", "worked", "b"]
    assert blocker.calls == 1


def running(scheduler: Scheduler) -> Attempt:
    """Return the only attempt."""
    runtime = worker_of(scheduler)
    (attempt,) = runtime.node.in_flight.attempts.values()
    return attempt


async def flagged(scheduler: Scheduler) -> None:
    """Wait until the only attempt should end."""
    attempt = running(scheduler)
    while not (attempt.call and attempt.call.is_cancelled):  # noqa: ASYNC110 - nothing reports it
        await asyncio.sleep(0)


async def test_shutdown_writes_the_cursor_and_ends_its_loop(make: Make, log: Log) -> None:
    began, may_go_on = threading.Event(), threading.Event()

    def ship() -> None:
        with current_steps().cursor("lines", start=0) as cursor:
            for line in range(cursor.value, 4):
                log.append(line)
                if line == 2 and not began.is_set():
                    began.set()
                    assert may_go_on.wait(PATIENCE)
                cursor.set(line + 1)

    first = make(stop_grace=PATIENCE)
    first.register(ship, name=NAME)
    await first.start()
    await first.enqueue(NAME)
    assert await asyncio.to_thread(began.wait, PATIENCE)
    stopping = asyncio.ensure_future(first.shutdown())
    await asyncio.wait_for(flagged(first), PATIENCE)
    may_go_on.set()
    await asyncio.wait_for(stopping, PATIENCE)
    assert log == [0, 1, 2]
    second = make()
    second.register(ship, name=NAME)
    again = Recorder(second)
    await second.start()
    await again.until(JobCompleted)
    assert log == [0, 1, 2, 3]


async def test_timeout_stores_the_step_that_returns_and_the_retry_skips_it(
    t: TestScheduler, log: Log
) -> None:
    loop = asyncio.get_running_loop()

    def work() -> str:
        log.append("worked")
        loop.call_soon_threadsafe(AttemptRunner.time_out, running(t.scheduler))
        while not current_job().is_cancelled:
            pass
        return "late"

    def place() -> None:
        log.append(current_steps().run("a", work))
        current_steps().run("b", log.note, "b")

    seen = Recorder(t.scheduler)
    await run(t, place, timeout=HOUR, max_retries=1)
    (retried,) = seen.of(JobRetried)
    assert "TimeoutError" in retried.error
    assert log == ["worked", "late", "late", "b"]


async def test_cancelled_job_ends_at_its_next_step_and_stores_nothing(
    scheduler: Scheduler, pool: Pool, log: Log
) -> None:
    blocker = Blocker()
    ended = threading.Event()

    def place() -> None:
        try:
            with pytest.raises(JobLostError):
                current_steps().run("a", blocker.work)
            current_steps().run("b", log.note, "b")
        except AttemptEnded:
            log.append("ended")
        finally:
            ended.set()

    scheduler.register(place, name=NAME)
    job_id = await scheduler.enqueue(NAME)
    await blocker.wait_begun()
    assert await scheduler.cancel_job(job_id)
    await asyncio.wait_for(flagged(scheduler), PATIENCE)
    blocker.open.set()
    assert await asyncio.to_thread(ended.wait, PATIENCE)
    assert log == ["ended"]
    assert await pool.fetch("SELECT name FROM scheduler_steps") == []


async def test_cancellation_interrupts_the_statement_of_a_transaction(
    scheduler: Scheduler, pool: Pool, log: Log
) -> None:
    began, ended = threading.Event(), threading.Event()

    def lock(connection: StepConnection) -> None:
        began.set()
        connection.execute("SELECT pg_advisory_xact_lock(7)")

    def place() -> None:
        try:
            current_steps().transaction("a", lock)
        except AttemptEnded:
            log.append("ended")
        finally:
            ended.set()

    scheduler.register(place, name=NAME)
    async with pool.acquire() as other:
        await other.execute("SELECT pg_advisory_lock(7)")
        job_id = await scheduler.enqueue(NAME)
        assert await asyncio.to_thread(began.wait, PATIENCE)
        assert await scheduler.cancel_job(job_id)
        assert await asyncio.to_thread(ended.wait, PATIENCE)
        await other.execute("SELECT pg_advisory_unlock(7)")
    assert log == ["ended"]


async def test_thread_that_runs_on_after_its_suspension_is_reported_and_suspended_at_its_end(
    make: Make, pool: Pool
) -> None:
    blocker = Blocker()

    def place() -> None:
        try:
            current_steps().sleep("a", HOUR)
        finally:
            blocker.work()

    scheduler = make(stop_grace=0.0)
    seen = Recorder(scheduler)
    scheduler.register(place, name=NAME)
    await scheduler.start()
    await scheduler.enqueue(NAME)
    await seen.until(ThreadAbandoned)
    assert not seen.of(JobSuspended)
    blocker.open.set()
    await seen.until(JobSuspended)
    assert await pool.fetchval("SELECT status FROM scheduled_jobs") == "pending"


@pytest.mark.slow
async def test_step_before_an_outage_of_the_database_runs_once(dsn: str, log: Log) -> None:
    """The connections break within the function, and no new one is accepted for a while."""
    async with wire_to(dsn) as wire, asyncpg.create_pool(wire.dsn, min_size=1, max_size=5) as pool:
        loop, healing = asyncio.get_running_loop(), asyncio.Event()

        def break_down() -> str:
            loop.call_soon_threadsafe(cut)
            return "kept"

        def cut() -> None:
            wire.cut()
            loop.call_later(1.0, healing.set)

        def place() -> None:
            log.append(current_steps().run("a", break_down))

        async with Scheduler(pool) as scheduler:
            seen = Recorder(scheduler)
            scheduler.register(place, name=NAME)
            await scheduler.enqueue(NAME)
            await healing.wait()
            await wire.heal()
            await seen.until(JobCompleted)
    assert log == ["kept"]


@pytest.mark.slow
def test_step_ends_the_attempt_when_the_event_loop_of_the_worker_has_ended(dsn: str, log: Log) -> None:
    blocker = Blocker()
    ended = threading.Event()

    def place() -> None:
        try:
            current_steps().run("a", blocker.work)
        except AttemptEnded:
            log.append("ended in the step")
        try:
            current_steps().run("b", int)
        except AttemptEnded:
            log.append("ended before the step")
        ended.set()

    async def work() -> None:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool:
            scheduler = Scheduler(pool, shutdown_timeout=0, stop_grace=0)
            scheduler.register(place, name=NAME)
            await scheduler.start()
            await scheduler.enqueue(NAME)
            await blocker.wait_begun()
            await scheduler.shutdown()

    asyncio.run(work())
    blocker.open.set()
    assert ended.wait(PATIENCE)
    assert log == ["ended in the step", "ended before the step"]


# -- where there are none --------------------------------------------------------------------------------


async def test_steps_work_in_an_executor_of_the_application(make: Make, log: Log) -> None:
    def place() -> None:
        log.append(current_steps().run("a", log.note, "a"))
        try:
            current_steps().sleep("nap", 0.01)
        except Exception:  # noqa: BLE001 - which does not catch it
            log.append("caught")

    scheduler = make(executors={"own": InThread()})
    seen = Recorder(scheduler)
    scheduler.register(place, name=NAME, executor="own")
    await scheduler.start()
    await scheduler.enqueue(NAME)
    await seen.until(JobCompleted)
    assert log == ["a", "a", "a"]
    assert len(seen.of(JobSuspended)) == 1


async def test_asynchronous_steps_and_completions_name_the_blocking_ones_in_a_thread(
    t: TestScheduler,
) -> None:
    def plain() -> None:
        with pytest.raises(NotRunningError, match=r"call pg_scheduler\.sync\.current_steps\(\)"):
            _ = current_job().steps
        with pytest.raises(NotRunningError, match="cannot complete in a transaction"):
            current_job().completing()
        with pytest.raises(NotRunningError, match="cannot complete in a transaction"):
            current_job().set_result(1)

    await run(t, plain)


async def test_async_job_is_referred_to_the_asynchronous_steps(t: TestScheduler) -> None:
    async def place() -> None:
        with pytest.raises(RuntimeError, match=r"an async job awaits the methods of current_job\(\)\.steps"):
            current_steps()

    t.scheduler.register(place, name=NAME)
    await t.scheduler.enqueue(NAME, job_id="a")
    await t.drain()
    job = await t.scheduler.get_job("a")
    assert job
    assert job.status is JobStatus.COMPLETED


async def test_coroutine_function_in_a_thread_blocks_no_event_loop(t: TestScheduler) -> None:
    async def place() -> Any:
        steps = current_steps()
        with pytest.raises(RuntimeError, match=r"call await asyncio\.to_thread\(steps\.sleep, \.\.\.\)"):
            steps.sleep("a", HOUR)
        with pytest.raises(RuntimeError, match="would block the event loop of this thread"):
            _ = steps.version
        return await asyncio.to_thread(steps.run, "b", lambda: "b")

    assert await run(t, place) == "b"


def outside() -> None:
    current_steps()


@pytest.mark.slow
async def test_process_has_no_steps(make: Make) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(outside, name="threads.outside", executor="process")
    await scheduler.start()
    await scheduler.enqueue("threads.outside")
    (failed,) = await seen.until(JobFailed)
    assert "NotRunningError" in failed.error
    assert "runs in a process, where it has no durable steps" in failed.error


def test_caller_outside_of_a_job_has_no_steps() -> None:
    with pytest.raises(LookupError, match="outside of a running job"):
        current_steps()
    with job_context(), pytest.raises(NotRunningError, match=r"has no durable steps .* use a"):
        current_steps()
