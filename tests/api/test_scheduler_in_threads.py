"""current_job().scheduler: asynchronous in the event loop of the worker, blocking in other threads."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import asyncpg
import pytest

from pg_scheduler import Scheduler, current_job
from pg_scheduler.errors import JobCancelledError, NotRunningError
from pg_scheduler.events import Event, JobCompleted, JobReleased
from pg_scheduler.sync import current_scheduler
from pg_scheduler.triggers import Every
from pg_scheduler.worker.runners.jobs_view import SchedulerOfJobs
from tests.api.conftest import Make
from tests.support.facets import Face
from tests.support.worker import PATIENCE, Recorder, now

pytestmark = pytest.mark.usefixtures("debugged_loop")

HOUR = timedelta(hours=1)


async def nothing(*args: Any) -> None: ...


async def run(scheduler: Scheduler, func: Callable[[], Any]) -> Any:
    """Run a function as a job, and return its value."""
    if not inspect.iscoroutinefunction(func):
        scheduler.register(func, name="test.job")
    return await scheduler.run_job(func, wait_timeout=timedelta(seconds=PATIENCE))


async def test_job_in_a_thread_schedules_and_reads_with_blocking_methods(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    scheduler.register(nothing, name="test.other")
    threads: set[str] = set()

    def job() -> list[Any]:
        mine = current_scheduler()
        mine.enqueue("test.other", args=(1,), delay=HOUR)
        mine.schedules.add("test.other", Every(HOUR), schedule_id="every")
        threads.update(each.name for each in threading.enumerate())
        assert current_job().pool is pool
        assert cast("object", current_job().scheduler) is mine
        return [
            [each.args for each in mine.list_jobs(job_name="test.other")],
            [each.schedule_id for each in mine.schedules.list()],
            mine.worker_id,
            mine.is_running,
            repr(mine),
        ]

    args, schedules, worker_id, is_running, text = await run(scheduler, job)
    assert (args, schedules, worker_id, is_running) == ([[1]], ["every"], scheduler.worker_id, True)
    assert text.startswith("<blocking methods of ")
    assert "pg_scheduler portal" not in threads


async def test_async_job_has_the_scheduler_and_its_threads_the_blocking_one(scheduler: Scheduler) -> None:
    def count() -> tuple[bool, int]:
        return current_scheduler().is_running, current_scheduler().count_jobs().total

    async def job() -> tuple[bool, int]:
        assert current_job().scheduler is scheduler
        with pytest.raises(RuntimeError, match=r"an async job awaits the methods of current_job\(\)"):
            current_scheduler()
        return await asyncio.to_thread(count)

    assert await run(scheduler, job) == [True, 1]


async def test_blocking_call_raises_in_a_thread_with_an_event_loop(scheduler: Scheduler) -> None:
    kept: list[Any] = []

    async def job() -> str:
        kept.append(current_job().scheduler)
        with pytest.raises(RuntimeError) as raised:
            current_scheduler().count_jobs()
        return str(raised.value)

    scheduler.register(job, name="test.job", executor="thread")
    expected = "count_jobs() of current_job().scheduler in a thread would block the event loop of this thread"
    assert expected in await scheduler.run_job("test.job", wait_timeout=timedelta(seconds=PATIENCE))
    with pytest.raises(RuntimeError, match=r"await asyncio\.to_thread\(scheduler\.tasks\.list, \.\.\.\)"):
        kept[0].tasks.list()
    assert await asyncio.to_thread(kept[0].tasks.list)


async def test_job_in_a_thread_registers_functions_and_subscribes(scheduler: Scheduler) -> None:
    events: list[Event] = []
    noted = threading.Event()

    def note(event: Event) -> None:
        events.append(event)
        noted.set()

    def job() -> None:
        mine = current_scheduler()

        @mine.register(name="test.registered")
        async def registered() -> None: ...

        unsubscribe = mine.subscribe(note, JobCompleted)
        mine.run_job("test.registered", wait_timeout=timedelta(seconds=PATIENCE))
        assert noted.wait(PATIENCE)
        unsubscribe()
        mine.run_job("test.registered", wait_timeout=timedelta(seconds=PATIENCE))

    await run(scheduler, job)
    assert [type(event) for event in events] == [JobCompleted]


async def test_end_of_a_subscription_raises_in_a_thread_with_an_event_loop(scheduler: Scheduler) -> None:
    """It would wait for the event loop that waits for it."""
    ends: list[Callable[[], None]] = []

    def job() -> None:
        ends.append(current_scheduler().subscribe(print, JobCompleted))

    await run(scheduler, job)
    with pytest.raises(
        RuntimeError, match=r"unsubscribe\(\) of .* would block the event loop of this thread"
    ):
        ends[0]()
    await asyncio.to_thread(ends[0])


async def test_blocking_methods_run_on_a_connection_of_the_job(
    scheduler: Scheduler, dsn: str, pool: asyncpg.Pool
) -> None:
    psycopg2 = pytest.importorskip("psycopg2")

    def job() -> list[str]:
        connection = psycopg2.connect(dsn)
        lost = current_scheduler().enqueue(nothing, delay=HOUR, connection=connection)
        connection.rollback()
        kept = current_scheduler().enqueue(nothing, delay=HOUR, connection=connection)
        connection.commit()
        connection.close()
        return [lost, kept]

    lost, kept = await run(scheduler, job)
    assert await scheduler.get_job(lost) is None
    assert await scheduler.get_job(kept) is not None


async def test_cancellation_interrupts_the_call_that_waits_and_no_later_one(
    scheduler: Scheduler, seen: Recorder
) -> None:
    waits, ended = threading.Event(), threading.Event()
    caught: list[Any] = []

    def job() -> None:
        waits.set()
        try:
            current_scheduler().get_job_result(blocked)  # for ever
        except JobCancelledError as error:
            caught.extend((str(error), current_scheduler().count_jobs().total))
        ended.set()

    blocked = await scheduler.schedule(nothing, execution_time=now() + HOUR, keep_result=HOUR)
    scheduler.register(job, name="test.job")
    job_id = await scheduler.enqueue("test.job")
    assert await asyncio.to_thread(waits.wait, PATIENCE)
    assert await scheduler.cancel_job(job_id)
    assert await asyncio.to_thread(ended.wait, PATIENCE)
    assert "cancelled during a call of current_job().scheduler" in caught[0]
    assert caught[1] == 2


async def test_shutdown_interrupts_the_call_of_a_thread_and_releases_its_job(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make(stop_grace=PATIENCE)
    seen = Recorder(scheduler)
    waits = threading.Event()

    def job() -> None:
        waits.set()
        current_scheduler().wait()

    scheduler.register(job, name="test.job")
    await scheduler.start()
    job_id = await scheduler.enqueue("test.job")
    assert await asyncio.to_thread(waits.wait, PATIENCE)
    await asyncio.wait_for(scheduler.shutdown(), PATIENCE)
    assert seen.of(JobReleased, job_id=job_id)
    assert await pool.fetchval("SELECT status FROM scheduled_jobs WHERE job_id = $1", job_id) == "pending"


async def test_job_in_a_thread_can_shut_its_scheduler_down(make: Make) -> None:
    scheduler = make(shutdown_timeout=PATIENCE)

    def job() -> None:
        current_scheduler().shutdown()

    scheduler.register(job, name="test.job")
    await scheduler.start()
    await scheduler.enqueue("test.job")
    await asyncio.wait_for(scheduler.wait(), PATIENCE)


# -- the end of the event loop -------------------------------------------------------------------------


class Endless(Face):
    """Has a method that never returns."""

    def __init__(self, begun: threading.Event) -> None:
        super().__init__()
        self.begun = begun

    async def wait(self) -> None:
        self.begun.set()
        await asyncio.Event().wait()


def blocking_face(begun: threading.Event) -> Any:
    """Return the blocking view of an object; called in an event loop, used in another thread."""
    get = SchedulerOfJobs(cast("Scheduler", Endless(begun)))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(get()))
    thread.start()
    thread.join()
    return found[0]


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    raised: list[BaseException] = []

    def target() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - the test judges it
            raised.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    return thread, raised


def test_call_ends_when_the_event_loop_is_cancelled() -> None:
    begun = threading.Event()

    async def main() -> tuple[threading.Thread, list[BaseException]]:
        found = in_thread(blocking_face(begun).wait)
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        return found

    thread, raised = asyncio.run(main())  # cancels all tasks
    thread.join(PATIENCE)
    (error,) = raised
    assert isinstance(error, NotRunningError)
    assert "the event loop of the worker has ended" in str(error)


def test_call_ends_when_the_event_loop_stops_or_is_closed() -> None:
    begun = threading.Event()
    loop = asyncio.new_event_loop()

    async def main() -> Any:
        return blocking_face(begun)

    async def wait_begun() -> None:
        assert await asyncio.to_thread(begun.wait, PATIENCE)

    face = loop.run_until_complete(main())
    thread, raised = in_thread(face.wait)
    loop.run_until_complete(wait_begun())
    thread.join(PATIENCE)  # the loop has stopped and is not closed
    assert isinstance(raised[0], NotRunningError)
    loop.run_until_complete(asyncio.sleep(0))  # the call is cancelled
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    thread, raised = in_thread(face.inherited)
    thread.join(PATIENCE)
    assert isinstance(raised[0], NotRunningError)


# -- what threads find in their context ----------------------------------------------------------------


class JobIds(logging.Filter):
    """Adds the id of the running job to log records, as an application does."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.job = current_job().job_id
        return True


async def test_logging_and_metadata_of_a_job_are_available_in_its_thread(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("tests.threads")
    logger.addFilter(ids := JobIds())

    def job() -> Any:
        logger.warning("from the thread")
        return current_job().metadata

    scheduler.register(job, name="test.job", metadata={"team": "a"})
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    await scheduler.schedule_job(
        "test.job", now(), {}, job_id="mine", metadata={"trace": trace}, keep_result=timedelta(hours=1)
    )
    result = await scheduler.get_job_result("mine", timeout=timedelta(seconds=PATIENCE))
    assert result is not None
    found = result.unwrap()
    logger.removeFilter(ids)
    assert found == {"team": "a", "trace": trace}
    (record,) = [each for each in caplog.records if each.name == "tests.threads"]
    assert record.job == "mine"  # type: ignore[attr-defined]
