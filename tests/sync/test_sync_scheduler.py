"""SyncScheduler against a database, in this process."""

from __future__ import annotations

import asyncio
import contextvars
import multiprocessing
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from pg_scheduler import (
    ConfigurationError,
    ConflictResolution,
    ConnectionRejectedError,
    JobConflictError,
    JobSpec,
    JobStatus,
    NameConflictError,
    NotRunningError,
    PayloadError,
    SchemaMissingError,
    periodic,
)
from pg_scheduler.base.blocking import Crossing
from pg_scheduler.events import Event, JobCompleted, WorkerStarted
from pg_scheduler.sync import SyncScheduler, portal
from pg_scheduler.sync import scheduler as scheduler_module
from pg_scheduler.sync.portal import Portal
from tests.support.inside import periodic_catalogue

IGNORE = ConflictResolution.IGNORE
LATER = datetime(2030, 1, 1, tzinfo=UTC)
TIMEOUT_S = 30
THREADS = 16
NOTHING = "postgresql://nobody@localhost:1/none"


async def work(number: int = 0) -> None: ...


@pytest.fixture
def scheduler(dsn: str) -> Iterator[SyncScheduler]:
    with SyncScheduler(dsn, shutdown_timeout=5) as scheduler:
        yield scheduler


def portal_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "pg_scheduler portal"]


# -- calls -----------------------------------------------------------------------------------------------


def test_schedule_stores_a_job_when_it_returns(scheduler: SyncScheduler) -> None:
    job_id = scheduler.schedule(work, execution_time=LATER, args=(7,))
    job = scheduler.get_job(job_id)
    assert job is not None
    assert (job.status, job.args) == (JobStatus.PENDING, (7,))
    assert scheduler.schedule_bulk([JobSpec(work, LATER), JobSpec(work, LATER)])[0] is not None
    assert scheduler.count_jobs().pending == 3
    assert scheduler.cancel_job(job_id, children=True) == 1
    assert scheduler.retry_job(job_id, children=True) == 1
    assert scheduler.cancel_job(job_id) is True


def test_errors_of_the_scheduler_reach_the_caller(scheduler: SyncScheduler) -> None:
    with pytest.raises(PayloadError, match=r"args\[0\]"):
        scheduler.schedule(work, execution_time=LATER, args=(object(),))
    scheduler.schedule(work, execution_time=LATER, job_id="one")
    with pytest.raises(JobConflictError):
        scheduler.schedule(work, execution_time=LATER, job_id="one")


def test_schedule_raises_when_the_tables_are_missing(empty_dsn: str) -> None:
    with SyncScheduler(empty_dsn) as scheduler:
        with pytest.raises(SchemaMissingError):
            scheduler.schedule(work, execution_time=LATER)
        scheduler.initialize_db()
        assert scheduler.schedule(work, execution_time=LATER)


def test_many_threads_share_one_portal(scheduler: SyncScheduler) -> None:
    barrier = threading.Barrier(THREADS)

    def enqueue(number: int) -> list[str]:
        barrier.wait(TIMEOUT_S)
        return [
            scheduler.schedule(work, execution_time=LATER, job_id=f"{number}-{each}") for each in range(10)
        ]

    before = len(portal_threads())
    with ThreadPoolExecutor(THREADS) as threads:
        job_ids = {each for found in threads.map(enqueue, range(THREADS)) for each in found}
    assert len(job_ids) == THREADS * 10 == scheduler.count_jobs().pending
    assert len(portal_threads()) == before + 1


def test_threads_enqueue_other_jobs_while_one_waits_for_an_open_transaction(
    dsn: str, scheduler: SyncScheduler
) -> None:
    async def insert_and_call() -> list[str]:
        connection = await asyncpg.connect(dsn)
        try:
            async with connection.transaction():
                await connection.execute(
                    "INSERT INTO scheduled_jobs (job_id, job_name, execution_time) VALUES ('x', 'raw', now())"
                )
                waiting = threads.submit(scheduler.enqueue, work, job_id="x", conflict_resolution=IGNORE)
                others = [threads.submit(scheduler.enqueue, work, job_id=f"own {n}") for n in range(THREADS)]
                found = await asyncio.to_thread(lambda: [each.result(TIMEOUT_S / 2) for each in others])
                assert not waiting.done()
            return [*found, await asyncio.wrap_future(waiting)]
        finally:
            await connection.close()

    with ThreadPoolExecutor(THREADS + 1) as threads:
        assert asyncio.run(insert_and_call()) == [*(f"own {n}" for n in range(THREADS)), "x"]


def test_context_variables_of_the_caller_reach_the_call(scheduler: SyncScheduler) -> None:
    request = contextvars.ContextVar("request", default="none")
    request.set("42")
    assert scheduler._portal().call(request.get) == "42"


@pytest.mark.parametrize("name", ["schedule", "count_jobs", "get_periodic_jobs", "close"])
async def test_call_raises_when_an_event_loop_runs_in_the_thread(dsn: str, name: str) -> None:
    scheduler = SyncScheduler(dsn)
    with pytest.raises(
        RuntimeError, match=rf"{name}\(\) of a SyncScheduler would block .*asyncio\.to_thread"
    ):
        getattr(scheduler, name)()
    assert await asyncio.to_thread(lambda: scheduler.count_jobs().pending) == 0
    await asyncio.to_thread(scheduler.close)


# -- starting and closing --------------------------------------------------------------------------------


def test_construction_and_declarations_start_no_thread(dsn: str) -> None:
    before = len(portal_threads())
    scheduler = SyncScheduler(dsn)
    scheduler.register(work, name="work")
    scheduler.subscribe(lambda event: None)
    assert len(portal_threads()) == before
    assert repr(scheduler) == "<SyncScheduler, not started>"
    with scheduler:
        assert scheduler.count_jobs().pending == 0
        assert repr(scheduler) == "<SyncScheduler, open>"
        assert len(portal_threads()) == before + 1
    assert repr(scheduler) == "<SyncScheduler, closed>"
    assert len(portal_threads()) == before


def test_call_raises_after_close(dsn: str) -> None:
    scheduler = SyncScheduler(dsn)
    scheduler.close()
    scheduler.close()
    for call in (
        scheduler.count_jobs,
        lambda: scheduler.register(work),
        lambda: scheduler.subscribe(lambda _: None),
    ):
        with pytest.raises(RuntimeError, match="was closed"):
            call()
    assert not scheduler.is_running


def test_close_ends_calls_of_other_threads(dsn: str) -> None:
    scheduler = SyncScheduler(dsn, shutdown_timeout=5)
    errors: queue.Queue[BaseException] = queue.Queue()
    waits = threading.Event()

    async def wait() -> None:
        waits.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            scheduler._portal().call(wait)
        except RuntimeError as error:
            errors.put(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert waits.wait(TIMEOUT_S)
    scheduler.close()
    assert "was closed" in str(errors.get(timeout=TIMEOUT_S))
    thread.join(TIMEOUT_S)


def test_job_is_refused_to_close_its_own_scheduler_and_may_close_others(dsn: str) -> None:
    closed: list[str] = []

    with SyncScheduler(dsn, shutdown_timeout=5) as scheduler, SyncScheduler(dsn) as other:

        def close() -> None:
            other.count_jobs()
            other.close()
            for end in (scheduler.close, lambda: scheduler.__exit__(None, None, None)):
                with pytest.raises(
                    RuntimeError, match=r"would wait for the end of that job; call shutdown\(\) in"
                ):
                    end()
            closed.append("other")
            scheduler.shutdown()

        scheduler.register(close, name="sync.close")
        scheduler.start()
        job_id = scheduler.enqueue("sync.close", keep_result=timedelta(days=1))
        result = scheduler.get_job_result(job_id, timeout=TIMEOUT_S)
        assert result is not None
        assert result.status is JobStatus.COMPLETED
        scheduler.wait()
    assert closed == ["other"]
    assert not scheduler.is_running


def test_close_terminates_connections_that_are_not_returned(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "POOL_CLOSE_TIMEOUT_S", 0.1)
    scheduler = SyncScheduler(dsn)
    pool = scheduler.db_pool

    async def take() -> Any:
        proxy: Any = await pool.acquire()
        return proxy._con

    connection = scheduler._portal().call(take)
    scheduler.close()
    assert connection.is_closed()


def test_close_gives_up_when_a_subscriber_blocks_the_thread(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scheduler_module, "CLOSE_MARGIN_S", 0.1)
    scheduler = SyncScheduler(dsn, shutdown_timeout=0.1)
    portal = scheduler._portal()
    blocks, go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocks.set()
        go_on.wait(TIMEOUT_S)

    portal.submit(block)
    assert blocks.wait(TIMEOUT_S)
    scheduler.close()
    assert "did not end within" in caplog.text
    go_on.set()
    assert portal.close(TIMEOUT_S)


def test_error_of_opening_reaches_the_caller(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = SyncScheduler(dsn)
    monkeypatch.setitem(scheduler._settings, "max_concurrent_jobs", 0)  # not even a draft would accept it
    with pytest.raises(ConfigurationError):
        scheduler.count_jobs()


def test_next_call_starts_another_thread_when_the_thread_has_ended(
    scheduler: SyncScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    @scheduler.register(name="again")
    async def again() -> None: ...

    def cancel_all() -> None:
        for task in asyncio.all_tasks():
            task.cancel()

    portal = scheduler._portal()
    portal._loop.call_soon_threadsafe(cancel_all)
    portal._thread.join(TIMEOUT_S)
    assert "the thread of a SyncScheduler ended" in caplog.text
    assert scheduler.schedule(again, execution_time=LATER)
    assert scheduler._portal() is not portal
    job = scheduler.list_jobs()[0]
    assert job.job_name == "again"


@pytest.mark.parametrize(
    ("dsn", "error", "text"),
    [
        (5, TypeError, "dsn must be a str, not int"),
        ("localhost/app", ConfigurationError, "dsn must start with postgresql://"),
        ("mysql+psycopg://u:secret@h/app", ConfigurationError, "must start with postgresql://"),
    ],
)
def test_constructor_rejects_an_invalid_dsn_without_showing_it(
    dsn: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as raised:
        SyncScheduler(dsn)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "settings", [{"pool_size": 0}, {"max_concurrent_jobs": 0}, {"misfire_grace_time": -1}]
)
def test_constructor_rejects_an_invalid_setting(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        SyncScheduler(NOTHING, **settings)


def test_constructor_rejects_an_unknown_setting() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_jobs'"):
        SyncScheduler(NOTHING, max_jobs=5)  # type: ignore[call-arg]


def test_class_attributes_of_a_subclass_apply(dsn: str) -> None:
    class Ours(SyncScheduler):
        LEASE_DURATION = 30

    with Ours(dsn) as scheduler:
        assert scheduler._portal().resource.LEASE_DURATION == 30
        assert len(scheduler.worker_id) == SyncScheduler.WORKER_ID_LENGTH


def test_connection_errors_reach_the_caller(server: Any) -> None:
    with SyncScheduler(server.dsn("no_such_database")) as scheduler, pytest.raises(ConnectionRejectedError):
        scheduler.count_jobs()


# -- declarations, events and working --------------------------------------------------------------------


def test_registered_functions_and_subscribers_work_when_declared_before_and_after_the_first_call(
    scheduler: SyncScheduler,
) -> None:
    ran: queue.Queue[str] = queue.Queue()
    events: queue.Queue[tuple[Event, str]] = queue.Queue()

    @scheduler.register(name="first")
    async def first() -> None:
        ran.put("first")

    scheduler.subscribe(lambda event: events.put((event, threading.current_thread().name)), JobCompleted)
    scheduler.start()

    async def second() -> None:
        ran.put("second")

    scheduler.register(second, name="second", aliases=["other"])
    with pytest.raises(NameConflictError):
        scheduler.register(first, name="second")
    starts: queue.Queue[Event] = queue.Queue()
    unsubscribe = scheduler.subscribe(starts.put, WorkerStarted)
    unsubscribe()
    unsubscribe()
    for name in ("first", "other"):
        scheduler.schedule_job(name, datetime.now(UTC), {})
    assert {ran.get(timeout=TIMEOUT_S), ran.get(timeout=TIMEOUT_S)} == {"first", "second"}
    assert events.get(timeout=TIMEOUT_S)[1] == "pg_scheduler portal"
    scheduler.shutdown()
    assert not scheduler.is_running
    scheduler.start()
    assert starts.empty()


def test_subscriber_can_end_its_subscription_and_read_properties_in_the_thread(
    scheduler: SyncScheduler,
) -> None:
    seen: queue.Queue[bool | str] = queue.Queue()

    def once(event: Event) -> None:
        unsubscribe()
        seen.put(scheduler.is_running)
        try:
            scheduler.count_jobs()
        except RuntimeError as error:
            seen.put(str(error))
        scheduler.register(work, name="late")

    unsubscribe = scheduler.subscribe(once, WorkerStarted)
    scheduler.start()
    assert seen.get(timeout=TIMEOUT_S) is True
    assert "would block the event loop" in str(seen.get(timeout=TIMEOUT_S))
    scheduler.shutdown()
    scheduler.start()
    assert seen.empty()
    assert scheduler.schedule(work, execution_time=LATER)
    assert scheduler.list_jobs()[0].job_name == "late"


def test_subscription_can_end_before_the_first_call(scheduler: SyncScheduler) -> None:
    seen: queue.Queue[Event] = queue.Queue()
    scheduler.subscribe(seen.put, WorkerStarted)()
    scheduler.start()
    assert seen.empty()


def test_declarations_before_the_first_call_are_checked_at_once() -> None:
    scheduler = SyncScheduler(NOTHING)
    with pytest.raises(NotRunningError, match="is not running"):
        scheduler.subscribe(lambda _: None, cluster=True)
    with pytest.raises(TypeError, match="subscriber must be"):
        scheduler.subscribe(5)  # type: ignore[arg-type]
    scheduler.register(work, name="work")

    async def other() -> None: ...

    with pytest.raises(NameConflictError):
        scheduler.register(other, name="work")


def test_disabled_schedule_is_stored_when_the_scheduler_is_closed(dsn: str) -> None:
    @periodic(every=timedelta(hours=1), dedup_key="sync-report")
    async def report() -> None: ...

    try:
        with SyncScheduler(dsn) as scheduler:
            assert scheduler.disable_periodic_job("sync-report")
        with SyncScheduler(dsn) as scheduler, scheduler:
            scheduler.start()
            status = scheduler.get_periodic_job_status("sync-report")
            assert status is not None
            assert status["enabled"] is False
    finally:
        periodic_catalogue.clear()


def test_conflict_resolution_keeps_the_existing_job(scheduler: SyncScheduler) -> None:
    for _ in range(2):
        job_id = scheduler.schedule(
            work, execution_time=LATER, job_id="one", conflict_resolution=ConflictResolution.IGNORE
        )
        assert job_id == "one"
    assert scheduler.count_jobs().pending == 1


def test_portal_raises_the_cancellation_of_a_call_that_cancels_itself(scheduler: SyncScheduler) -> None:
    async def cancel() -> None:
        task = asyncio.current_task()
        assert task
        task.cancel()
        await asyncio.Event().wait()

    with pytest.raises(CancelledError):
        scheduler._portal().call(cancel)


def test_portal_raises_when_the_event_loop_ended_before_it_began_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closes, submitted = threading.Event(), threading.Event()

    class LateLoop(asyncio.SelectorEventLoop):
        """Is closed after another thread has submitted a call that it does not run."""

        def call_soon_threadsafe(  # type: ignore[override]
            self, *args: Any, **options: Any
        ) -> asyncio.Handle:
            handle = super().call_soon_threadsafe(*args, **options)
            if closes.is_set():
                submitted.set()
            return handle

        def close(self) -> None:
            closes.set()
            submitted.wait(TIMEOUT_S)
            super().close()

    monkeypatch.setattr(portal, "new_event_loop", LateLoop)
    monkeypatch.setattr(portal, "CHECK_INTERVAL_S", 0.01)
    late = Portal(nullcontext)
    closing = threading.Thread(target=late.close, args=(TIMEOUT_S,))
    closing.start()
    assert closes.wait(TIMEOUT_S)
    called: list[int] = []
    with pytest.raises(RuntimeError, match="the SyncScheduler was closed"):
        late.call(lambda: called.append(1))
    closing.join(TIMEOUT_S)
    assert not called


def test_crossing_does_not_call_a_function_that_is_cancelled_before_it_begins() -> None:
    called: list[int] = []
    with asyncio.Runner() as runner:
        crossing = Crossing(runner.get_loop(), lambda: called.append(1))
        crossing.cancel()
        assert not crossing.wait(0)
        runner.run(asyncio.sleep(0))
        assert crossing.wait(0)
        assert crossing.wait(0)
        with pytest.raises(CancelledError):
            crossing.result()
    crossing.cancel()  # without effect on a closed loop
    assert not called


def test_portal_raises_the_error_of_closing_its_resource() -> None:
    class Resource:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *_error: object) -> None:
            raise LookupError("not closed")

    portal = Portal(Resource)
    with pytest.raises(LookupError, match="not closed"):
        portal.close(TIMEOUT_S)


@pytest.mark.parametrize("module", ["uvloop", "asyncio"])
def test_scheduler_works_with_the_loops_of_uvloop_and_asyncio(
    dsn: str, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setattr(portal, "new_event_loop", pytest.importorskip(module).new_event_loop)
    with SyncScheduler(dsn) as scheduler:
        loop = scheduler._portal().call(asyncio.get_running_loop)
        assert type(loop).__module__.startswith(module)
        scheduler.start()
        assert scheduler.schedule(work, execution_time=LATER)


# -- connections of the caller ---------------------------------------------------------------------------


@pytest.fixture
def client() -> Iterator[SyncScheduler]:
    """A SyncScheduler without a DSN."""
    before = portal_threads()
    client = SyncScheduler()
    yield client
    assert portal_threads() == before


def test_call_without_connection_and_dsn_names_both(client: SyncScheduler) -> None:
    for call in (client.start, client.count_jobs, lambda: client.enqueue(work)):
        with pytest.raises(ConfigurationError, match="no DSN; pass connection=, or create"):
            call()


def test_call_with_a_connection_starts_no_thread_although_there_is_a_dsn(dsn: str) -> None:
    before = portal_threads()
    scheduler = SyncScheduler(dsn)
    with _psycopg2(dsn) as connection:
        scheduler.enqueue(work, connection=connection)
        assert portal_threads() == before
        connection.commit()
    assert scheduler.count_jobs().pending == 1
    scheduler.close()
    with _psycopg2(dsn) as connection, pytest.raises(RuntimeError, match="was closed"):
        scheduler.enqueue(work, connection=connection)


def test_options_of_registered_functions_apply_with_a_connection(dsn: str) -> None:
    with SyncScheduler(dsn) as scheduler, _psycopg2(dsn) as connection:
        scheduler.count_jobs()  # starts the portal
        scheduler.register(work, name="test.work", max_retries=4)
        job_id = scheduler.enqueue("test.work", connection=connection)
        found = scheduler.get_job(job_id, connection=connection)
        assert found is not None
        assert (found.job_name, found.max_retries) == ("test.work", 4)


def test_call_with_a_connection_works_in_a_forked_child(client: SyncScheduler, dsn: str) -> None:
    client.register(work, name="test.work")

    def enqueue() -> None:
        with _psycopg2(dsn) as connection:
            client.enqueue("test.work", args=(7,), connection=connection)
            connection.commit()

    child = multiprocessing.get_context("fork").Process(target=enqueue)
    child.start()
    child.join(TIMEOUT_S)
    assert child.exitcode == 0
    with SyncScheduler(dsn) as scheduler:
        assert scheduler.count_jobs().pending == 1


async def test_call_with_a_connection_works_inside_of_run_sync(
    client: SyncScheduler, dsn: str, pool: asyncpg.Pool
) -> None:
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))

    def enqueue(session: Session) -> str:
        first = client.enqueue(work, connection=session)
        client.schedule_bulk([JobSpec(work, LATER) for _ in range(1200)], connection=session)
        return client.enqueue(work, after=[first], connection=session)

    async with AsyncSession(engine) as session:
        await session.run_sync(enqueue)
        await session.rollback()
        job_id = await session.run_sync(enqueue)
        await session.commit()
    await engine.dispose()
    assert await pool.fetchval("SELECT blocked_on FROM scheduled_jobs WHERE job_id = $1", job_id) == "after"
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == 1202


def test_threads_may_share_a_scheduler_for_their_own_connections(client: SyncScheduler, dsn: str) -> None:
    def enqueue(_number: int) -> list[str]:
        with _psycopg2(dsn) as connection:
            ids = [client.enqueue(work, args=(n,), connection=connection) for n in range(20)]
            connection.commit()
            return ids

    with ThreadPoolExecutor(THREADS) as threads:
        ids = [each for found in threads.map(enqueue, range(THREADS)) for each in found]
    assert len(set(ids)) == THREADS * 20


@contextmanager
def _psycopg2(dsn: str) -> Iterator[Any]:
    psycopg2 = pytest.importorskip("psycopg2")
    connection = psycopg2.connect(dsn)
    try:
        yield connection
    finally:
        connection.close()


# -- addresses -------------------------------------------------------------------------------------------


def test_url_of_sqlalchemy_is_accepted(dsn: str) -> None:
    for driver in ("asyncpg", "psycopg2"):
        with SyncScheduler(dsn.replace("postgresql://", f"postgresql+{driver}://")) as scheduler:
            assert scheduler.count_jobs().total == 0
