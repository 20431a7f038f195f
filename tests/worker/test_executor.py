"""Executing jobs: results, timeouts, revocations and advisory locks."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import weakref
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobFunction, JobStatus, current_job
from pg_scheduler.database.options import ConnectionOptions
from pg_scheduler.events import (
    EventBus,
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobLost,
    JobReleased,
    JobRetried,
    JobStarted,
    ServiceFaulted,
)
from pg_scheduler.jobs.payload import encode
from pg_scheduler.worker.executor import LOOP_ENDED, Executor
from tests.support.inside import Completer, Connections, Revocation, Store
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, Gate, Recorder, claim, new_job, now, statuses

LOCK = 4711


class Bench:
    """Runs jobs with an executor, and writes their results with a completer."""

    def __init__(self, parts: Parts, seen: Recorder, **settings: Any) -> None:
        self.parts = parts
        self.seen = seen
        self.completer: Completer = parts.completer()
        self.executor: Executor = parts.executor(self.completer, **settings)

    async def submit(self, func: JobFunction, job_id: str = "a", **values: Any) -> asyncio.Task[None]:
        self.parts.tasks.register(func, name="test.job")
        (held,) = await claim(self.parts.store, new_job(job_id, **values))
        return self.executor.submit(held)

    async def run(self, func: JobFunction, **values: Any) -> JobEvent:
        """Run one job to its end and return its last event."""
        await asyncio.wait_for(await self.submit(func, **values), PATIENCE)
        return await self.written()

    async def written(self) -> JobEvent:
        await self.completer.run_once()
        event = self.seen.events[-1]
        assert isinstance(event, JobEvent)
        assert self.executor.free == 5
        assert not self.parts.faults
        return event


@pytest.fixture
def bench(parts: Parts, seen: Recorder) -> Bench:
    return Bench(parts, seen)


async def test_executor_runs_a_job_with_its_arguments(bench: Bench) -> None:
    got: list[Any] = []

    async def job(*args: Any, **kwargs: Any) -> None:
        got.append((args, kwargs))

    event = await bench.run(job, task_data=encode((1, "zwei", [3.5]), {"key": None}))
    assert got == [((1, "zwei", [3.5]), {"key": None})]
    assert event == JobCompleted("a", "test.job", 1)
    assert [type(each) for each in bench.seen.events] == [JobStarted, JobCompleted]
    assert bench.parts.calls == []  # there were free slots all the time, and no job is pending again


async def test_attempt_leaves_nothing_to_the_garbage_collector(bench: Bench) -> None:
    """Thousands of jobs a second would keep it busy."""
    tasks: list[weakref.ref[Any]] = []

    async def job() -> None:
        await asyncio.sleep(0)
        tasks.append(weakref.ref(asyncio.current_task()))

    gc.disable()
    try:
        assert isinstance(await bench.run(job), JobCompleted)
        assert [task() for task in tasks] == [None]
    finally:
        gc.enable()


async def test_current_job_is_set_in_a_job_and_in_tasks_that_it_starts(bench: Bench) -> None:
    async def job() -> None:
        me = current_job()
        assert (me.job_id, me.job_name, me.attempt, me.execution_time) == ("a", "test.job", 1, due)
        assert me.deadline is not None
        assert timedelta(seconds=55) < me.deadline - now() <= timedelta(seconds=60)
        async with asyncio.TaskGroup() as group:
            child = group.create_task(child_of_it())
        assert child.result() == "a"

    async def child_of_it() -> str:
        return current_job().job_id

    due = now() - timedelta(seconds=2)
    assert isinstance(await bench.run(job, timeout_seconds=60.0, execution_time=due), JobCompleted)
    with pytest.raises(LookupError):
        current_job()


@pytest.mark.parametrize("seconds", [None, 1e300])
async def test_current_job_deadline_is_none_only_without_a_timeout(
    bench: Bench, seconds: float | None
) -> None:
    async def job() -> None:
        assert (current_job().deadline is None) == (seconds is None)

    assert isinstance(await bench.run(job, timeout_seconds=seconds), JobCompleted)


async def test_executor_fails_a_job_with_the_text_of_its_exception(bench: Bench) -> None:
    async def job() -> None:
        raise ValueError("no \x00 \udc80 good")

    event = await bench.run(job)
    assert event == JobFailed("a", "test.job", 1, "ValueError: no \\x00 \\udc80 good")


async def test_executor_retries_a_job_while_retries_are_left(bench: Bench) -> None:
    async def job() -> None:
        raise ValueError("no")

    event = await bench.run(job, max_retries=1)
    assert isinstance(event, JobRetried)
    assert timedelta(seconds=54) <= event.delay <= timedelta(seconds=66)


async def test_executor_fails_a_job_that_exceeds_its_timeout(bench: Bench) -> None:
    gate = Gate()
    event = await bench.run(gate.job, timeout_seconds=0.01)
    assert isinstance(event, JobFailed)
    assert event.error == "TimeoutError: the job ran longer than its timeout of 0.01 seconds"
    assert gate.cancelled == 1


async def test_executor_reports_a_timeout_error_raised_by_the_job_as_its_exception(bench: Bench) -> None:
    async def job() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    assert await bench.run(job, timeout_seconds=60.0) == JobFailed("a", "test.job", 1, "TimeoutError")


async def test_executor_completes_a_job_that_returns_after_its_timeout(bench: Bench) -> None:
    async def job() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    assert isinstance(await bench.run(job, timeout_seconds=0.01), JobCompleted)


async def test_executor_fails_a_job_that_awaits_a_cancelled_task(bench: Bench) -> None:
    async def job() -> None:
        other = asyncio.create_task(asyncio.Event().wait())
        other.cancel()
        await other

    assert await bench.run(job) == JobFailed("a", "test.job", 1, "CancelledError")


class Odd(BaseException):
    """Neither an Exception nor one of Python's own."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (Odd("no"), "Odd: no"),
        (GeneratorExit("no"), "GeneratorExit: no"),
        (KeyboardInterrupt("no"), "KeyboardInterrupt: no"),
    ],
    ids=["exit", "odd", "generator", "interrupt"],
)
@pytest.mark.parametrize("suspends", [False, True])
async def test_executor_fails_only_the_job_that_raises_a_base_exception(
    bench: Bench, error: BaseException, text: str, suspends: bool
) -> None:
    async def job() -> None:
        if suspends:
            await asyncio.sleep(0)
        if isinstance(error, SystemExit):
            sys.exit(error.code)
        raise error

    assert await bench.run(job) == JobFailed("a", "test.job", 1, text)


@pytest.mark.parametrize("max_retries", [0, 3])
async def test_executor_fails_a_job_without_retries_when_its_name_is_not_registered(
    bench: Bench, max_retries: int
) -> None:
    (held,) = await claim(bench.parts.store, new_job("a", "nobody.knows", max_retries=max_retries))
    await bench.executor.submit(held)
    event = await bench.written()
    assert isinstance(event, JobFailed)
    assert "nobody.knows" in event.error


@pytest.mark.parametrize("task_data", ["[]", "3", '{"args": 1}', '{"kwargs": []}'])
async def test_executor_fails_a_job_without_retries_when_its_arguments_cannot_be_decoded(
    bench: Bench, task_data: str
) -> None:
    gate = Gate()
    event = await bench.run(gate.job, task_data=task_data, max_retries=3)
    assert isinstance(event, JobFailed)
    assert event.error.startswith("PayloadError: task_data")
    assert not gate.calls


async def test_executor_fails_a_job_whose_arguments_do_not_fit_its_function(bench: Bench) -> None:
    async def job(needed: int) -> None: ...

    event = await bench.run(job)
    assert isinstance(event, JobFailed)
    assert "needed" in event.error


# -- stopping ------------------------------------------------------------------------------------------


async def test_executor_stop_waits_for_jobs_that_end_in_time(bench: Bench) -> None:
    gate = Gate()
    await bench.submit(gate.job)
    await gate.wait_begun()
    stopping = asyncio.create_task(bench.executor.stop())
    done, _ = await asyncio.wait([stopping], timeout=0.02)  # real time: it must wait
    assert not done
    gate.open.set()
    await stopping
    assert isinstance(await bench.written(), JobCompleted)


async def test_executor_stop_cancels_and_releases_a_job_without_counting_a_retry(
    parts: Parts, seen: Recorder
) -> None:
    bench, gate = Bench(parts, seen, shutdown_timeout=0.01), Gate()
    await bench.submit(gate.job, max_retries=1)
    await gate.wait_begun()
    await bench.executor.stop()
    assert isinstance(await bench.written(), JobReleased)
    job = await parts.store.jobs.get_job("a")
    assert job is not None
    assert (job.status, job.retry_count, job.worker_id, job.error_message) == ("pending", 0, None, None)
    assert gate.cancelled == 1


async def test_executor_stop_cancels_at_once_when_it_is_hurried(parts: Parts, seen: Recorder) -> None:
    bench, gate = Bench(parts, seen, shutdown_timeout=3600), Gate()
    await bench.submit(gate.job, max_retries=1)
    await gate.wait_begun()
    stopping = asyncio.create_task(bench.executor.stop())
    await asyncio.sleep(0)
    bench.executor.hurry()
    await stopping
    bench.executor.hurry()  # a no-op after the shutdown
    assert isinstance(await bench.written(), JobReleased)
    assert gate.cancelled == 1


async def test_executor_stop_releases_a_job_that_raises_when_it_is_cancelled(
    parts: Parts, seen: Recorder
) -> None:
    async def job() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("gone while I was working") from None

    began = asyncio.Event()
    bench = Bench(parts, seen, shutdown_timeout=0.01)
    await bench.submit(job)
    await began.wait()
    await bench.executor.stop()
    assert isinstance(await bench.written(), JobReleased)


async def test_executor_stop_completes_a_job_that_returns_when_it_is_cancelled(
    parts: Parts, seen: Recorder
) -> None:
    async def job() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    began = asyncio.Event()
    bench = Bench(parts, seen, shutdown_timeout=0.01)
    await bench.submit(job)
    await began.wait()
    await bench.executor.stop()
    assert isinstance(await bench.written(), JobCompleted)


async def test_executor_stop_keeps_a_job_that_ignores_its_cancellation_in_flight_until_its_end(
    parts: Parts, seen: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    async def job() -> None:
        while not peace.is_set():
            try:
                began.set()
                await peace.wait()
            except asyncio.CancelledError:
                continue

    began, peace = asyncio.Event(), asyncio.Event()
    bench = Bench(parts, seen, shutdown_timeout=0.01, stop_grace=0.01)
    task = await bench.submit(job)
    await began.wait()
    await bench.executor.stop()
    in_flight = bench.executor.in_flight
    assert (in_flight.has_left, in_flight.held()) == (True, {"a": 1})
    assert "(id a, attempt 1) ignores its cancellation" in caplog.text
    peace.set()
    await task
    assert (in_flight.has_left, in_flight.held()) == (False, {})
    assert await bench.completer.run_once() == float("inf")  # its late result is ignored
    assert await statuses(parts.store, "a") == ["running"]  # until other workers release it


async def test_executor_counts_a_crash_when_the_end_of_the_event_loop_cancels_a_job(
    bench: Bench, pool: asyncpg.Pool[asyncpg.Record]
) -> None:
    """Its code may have ended the event loop, and would end that of each worker that gets it."""
    gate = Gate()
    task = await bench.submit(gate.job)
    await gate.wait_begun()
    await bench.completer.start()
    assert bench.completer._task is not None
    for each in (bench.completer._task, task):
        each.cancel()  # as asyncio.run() does with every task
    await task
    await bench.completer.run_once()
    [event] = bench.seen.of(JobRetried)
    assert event.error == LOOP_ENDED
    assert await pool.fetchval("SELECT crash_count FROM scheduled_jobs") == 1


async def test_executor_fails_a_job_that_cancels_itself(bench: Bench) -> None:
    """If it were released, it would run again without end."""

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    await (await bench.submit(work))
    ended = await bench.written()
    assert isinstance(ended, JobFailed)
    assert ended.error.startswith("CancelledError")


async def test_executor_writes_nothing_for_a_revoked_attempt(bench: Bench) -> None:
    gate = Gate()
    task = await bench.submit(gate.job)
    await gate.wait_begun()
    bench.executor.in_flight.revoke("a", 7, Revocation.LOST)  # another attempt
    assert bench.executor.in_flight.held() == {"a": 1}
    bench.executor.in_flight.revoke("a", 1, Revocation.CANCELLED)
    bench.executor.in_flight.revoke("a", 1, Revocation.LOST)  # the first reason counts
    await task
    assert await bench.written() == JobCancelled("a", "test.job", 1, "cancelled by a caller")
    assert await statuses(bench.parts.store, "a") == ["running"]  # the row belongs to another attempt by now


async def test_executor_publishes_job_lost_for_every_attempt_when_the_lease_is_lost(bench: Bench) -> None:
    gate = Gate()
    tasks = [await bench.submit(gate.job, job_id) for job_id in "ab"]
    await gate.wait_begun()
    bench.executor.in_flight.revoke_all(Revocation.LOST)
    await asyncio.wait(tasks)
    assert {event.job_id for event in bench.seen.of(JobLost)} == {"a", "b"}
    assert bench.executor.in_flight.held() == {}
    assert bench.parts.calls.count("attempt_lost") == 2, "their rows may still be under this worker's name"


@pytest.mark.parametrize("why", ["cancelled", "shut down"])
async def test_executor_frees_the_slot_of_an_attempt_that_is_cancelled_before_it_begins(
    parts: Parts, seen: Recorder, why: str
) -> None:
    bench, gate = Bench(parts, seen, shutdown_timeout=0), Gate()
    task = await bench.submit(gate.job)
    if why == "cancelled":
        bench.executor.in_flight.revoke("a", 1, Revocation.CANCELLED)
    else:
        await bench.executor.stop()
    await task
    assert not gate.calls or gate.cancelled
    assert isinstance(await bench.written(), JobCancelled if why == "cancelled" else JobReleased)


async def test_executor_revokes_the_old_attempt_when_a_new_one_is_claimed(bench: Bench) -> None:
    """The row was set to pending by hand, and the claimer ran before the heartbeat."""
    gate = Gate()
    old = await bench.submit(gate.job)
    await gate.wait_begun()
    await bench.parts.store.jobs.set_status("a", JobStatus.PENDING, 60)
    (again,) = (await bench.parts.store.claims.exchange("me", ["test.job"], 1)).jobs
    new = bench.executor.submit(again)
    await asyncio.wait_for(old, PATIENCE)
    assert bench.seen.of(JobLost) == [JobLost("a", "test.job", 1)]
    assert bench.executor.in_flight.held() == {"a": 2}
    gate.open.set()
    await new
    assert await bench.written() == JobCompleted("a", "test.job", 2)


async def test_submit_when_free_waits_for_a_slot(parts: Parts, seen: Recorder) -> None:
    gate = Gate()
    bench = Bench(parts, seen, slots=1)
    first = await bench.submit(gate.job)
    (held,) = await claim(parts.store, new_job("b"))
    waiting = asyncio.create_task(bench.executor.submit_when_free(held))
    done, _ = await asyncio.wait([waiting], timeout=0.02)  # real time: it must wait
    assert not done
    assert (bench.executor.free, bench.executor.in_flight.held()) == (0, {"a": 1})
    gate.open.set()
    await first
    await (await waiting)
    assert parts.calls == ["slot_free", "slot_free"]
    assert gate.most == 1
    assert len(gate.calls) == 2


async def test_executor_publishes_a_service_fault_when_its_own_code_raises(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(bench.parts.result_buffer, "put_completed", broken)
    gate = Gate()
    gate.open.set()
    task = await bench.submit(gate.job)
    await asyncio.wait([task])
    (fault,) = await bench.seen.until(ServiceFaulted, service="executor")
    assert isinstance(fault.error, KeyError)
    assert bench.parts.faults == [fault]
    assert bench.executor.free == 5


async def test_executor_publishes_no_fault_when_the_coroutine_of_an_attempt_is_closed(bench: Bench) -> None:
    """As Python does with the coroutines of an event loop that has ended."""
    gate = Gate()
    bench.parts.tasks.register(gate.job, name="test.job")
    (held,) = await claim(bench.parts.store, new_job("a", timeout_seconds=None))
    run = bench.executor._run(bench.executor.take_slot(held))
    run.send(None)
    assert gate.began.is_set()
    run.close()
    assert not bench.parts.faults
    assert not bench.seen.of(ServiceFaulted)


# -- advisory locks ------------------------------------------------------------------------------------


async def lock_holders(pool: asyncpg.Pool) -> list[int]:
    rows = await pool.fetch("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = $1", LOCK)
    return [row[0] for row in rows]


async def test_advisory_lock_is_held_on_one_connection_while_the_job_runs(
    bench: Bench, pool: asyncpg.Pool
) -> None:
    gate = Gate()
    task = await bench.submit(gate.job, lock_key=LOCK)
    await gate.wait_begun()
    (first,) = await lock_holders(pool)
    async with asyncio.TaskGroup() as others:  # the pool is busy meanwhile
        for _ in range(20):
            others.create_task(pool.fetchval("SELECT 1"))
    assert await lock_holders(pool) == [first]
    gate.open.set()
    await task
    assert isinstance(await bench.written(), JobCompleted)
    assert await lock_holders(pool) == []


async def test_executor_skips_a_job_when_its_advisory_lock_is_taken(bench: Bench, dsn: str) -> None:
    other = await asyncpg.connect(dsn)
    await other.execute("SELECT pg_advisory_lock($1)", LOCK)
    gate = Gate()
    event = await bench.run(gate.job, lock_key=LOCK, max_retries=3)
    assert event == JobCancelled("a", "test.job", 1, "skipped: another attempt holds the advisory lock")
    assert not gate.calls
    await other.close()
    gate.open.set()
    assert isinstance(await bench.run(gate.job, job_id="b", lock_key=LOCK), JobCompleted)


@pytest.mark.parametrize("ends", ["well", "badly", "interrupted"])
async def test_advisory_lock_is_released_however_the_job_ends(
    bench: Bench, pool: asyncpg.Pool, ends: str
) -> None:
    async def job() -> None:
        assert len(await lock_holders(pool)) == 1
        if ends == "badly":
            raise ValueError
        if ends == "interrupted":
            task.cancel()
            await asyncio.Event().wait()

    task = await bench.submit(job, lock_key=LOCK)
    await task
    await bench.written()
    assert await lock_holders(pool) == []


@pytest.mark.parametrize("noticed", [True, False])
async def test_executor_completes_a_job_whose_lock_connection_broke(
    bench: Bench, pool: asyncpg.Pool, dsn: str, noticed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def job() -> None:
        (holder,) = await lock_holders(pool)
        if noticed:
            assert await pool.fetchval("SELECT pg_terminate_backend($1, 5000)", holder)
            async with asyncio.timeout(PATIENCE):
                while not reports():  # noqa: ASYNC110 - in the middle of the attempt; a record sets no event
                    await asyncio.sleep(0.01)
        else:  # the loop does not come round between the break and the end of the run
            script = f"import asyncio, asyncpg\nasync def go():\n c = await asyncpg.connect({dsn!r})\n"
            script += f" await c.fetchval('SELECT pg_terminate_backend($1, 5000)', {holder})\n"
            script += " await c.close()\nasyncio.run(go())"
            import subprocess

            subprocess.run([sys.executable, "-c", script], check=True)  # noqa: ASYNC221 - on purpose

    def reports() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "without its advisory lock" in record.getMessage()]

    event = await bench.run(job, lock_key=LOCK)
    assert isinstance(event, JobCompleted)
    assert await statuses(bench.parts.store, "a") == ["completed"]
    assert await lock_holders(pool) == []
    (report,) = reports()
    assert report.levelname == "WARNING"
    assert (report.__dict__["job_id"], report.__dict__["attempt"]) == ("a", 1)
    assert "idle_session_timeout" in report.getMessage(), "with the possible reasons"


@pytest.mark.parametrize("is_taken", [True, False])
async def test_executor_reports_no_loss_of_a_lock_that_it_had_until_the_end_or_never(
    bench: Bench, pool: asyncpg.Pool, dsn: str, caplog: pytest.LogCaptureFixture, is_taken: bool
) -> None:
    async def job() -> None: ...

    other = await asyncpg.connect(dsn)
    if is_taken:
        await other.execute("SELECT pg_advisory_lock($1)", LOCK)
    event = await bench.run(job, lock_key=LOCK)
    assert isinstance(event, JobCancelled if is_taken else JobCompleted)
    await pool.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await asyncio.sleep(0.2)  # real time: the loop reads the end of the sessions
    assert "without its advisory lock" not in caplog.text
    other.terminate()


async def test_executor_releases_a_job_when_no_connection_for_its_lock_is_free(
    bus: EventBus, seen: Recorder, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(Parts(Store(Connections(pool)), bus), seen)
    gate = Gate()
    bench.parts.tasks.register(gate.job, name="test.job")
    (held,) = await claim(bench.parts.store, new_job("a", lock_key=LOCK, max_retries=1))
    await bench.parts.store.connections.release_held()
    connections = [await pool.acquire() for _ in range(5)]
    with monkeypatch.context() as patch:  # real time: no connection becomes free
        patch.setattr(bench.parts.store.connections, "options", ConnectionOptions(call_timeout_s=0.2))
        await bench.executor.submit(held)
    for connection in connections:
        await pool.release(connection)
    event = await bench.written()
    assert isinstance(event, JobReleased | JobRetried)
    assert not gate.calls
