"""Jobs in threads: outcomes, cancellation by a flag, and threads that ignore it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobCall, JobExecutor, JobStatus, Scheduler, ThreadExecutor, current_job
from pg_scheduler.errors import ConfigurationError, JobCancelledError
from pg_scheduler.events import (
    JobCancelled,
    JobCompleted,
    JobEvent,
    JobFailed,
    JobLost,
    JobReleased,
    JobRetried,
    JobStarted,
    ThreadAbandoned,
)
from pg_scheduler.jobs.payload import encode
from pg_scheduler.jobs.worker_report import AbandonedAttempt, ReportedHealth
from pg_scheduler.worker.executor import Executor
from pg_scheduler.worker.in_flight import ABANDONED_AFTER_S, Attempt
from pg_scheduler.worker.runners import thread as thread_module
from tests.support import inside
from tests.support.inside import AttemptRunner, Completer, Revocation, TaskOptions
from tests.support.parts import Parts
from tests.support.worker import PATIENCE, Recorder, claim, holds, new_job, now, statuses

pytestmark = pytest.mark.usefixtures("debugged_loop")

VARIABLE: ContextVar[str] = ContextVar("variable")


class Blocker:
    """A plain function that says when it has begun and returns when it may, whatever its flag says."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.open = threading.Event()

    def job(self) -> None:
        self.began.set()
        assert self.open.wait(PATIENCE)

    async def wait_begun(self) -> None:
        assert await asyncio.to_thread(self.began.wait, PATIENCE)


class Hanging:
    """Jobs whose threads hang until they are let go, each by the id of its job."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.blockers: defaultdict[str, Blocker] = defaultdict(Blocker)
        self.tasks: dict[str, asyncio.Task[None]] = {}
        bench.parts.tasks.register(self.job, name="test.hanging", options=TaskOptions(executor="thread"))

    def job(self, job_id: str) -> None:
        self.blockers[job_id].job()

    async def start(self, job_id: str) -> Attempt:
        """Run a job until its thread hangs."""
        job = new_job(job_id, "test.hanging", task_data=encode((job_id,), {}))
        self.tasks[job_id] = self.bench.executor.submit(*await claim(self.bench.parts.store, job))
        await self.blockers[job_id].wait_begun()
        return self.bench.parts.in_flight.attempts[job_id]

    async def end(self, *job_ids: str) -> None:
        """Let the threads of jobs return, by default all, and wait for the ends of their attempts."""
        for job_id in job_ids or self.tasks:
            self.blockers[job_id].open.set()
        await asyncio.wait([self.tasks[job_id] for job_id in job_ids or self.tasks], timeout=PATIENCE)


def obedient(began: threading.Event) -> Callable[[], None]:
    """Return a function that raises an exception once it is cancelled."""

    def job() -> None:
        began.set()
        while True:
            current_job().raise_if_cancelled()

    return job


class Bench:
    """Runs jobs with an executor, and writes their results with a completer."""

    def __init__(self, parts: Parts, seen: Recorder, **settings: Any) -> None:
        self.parts = parts
        self.seen = seen
        self.completer: Completer = parts.completer()
        self.executor: Executor = parts.executor(self.completer, **settings)

    async def submit(
        self, func: Callable[..., Any], job_id: str = "a", executor: str = "thread", **values: Any
    ) -> asyncio.Task[None]:
        self.parts.tasks.register(func, name=f"test.{job_id}", options=TaskOptions(executor=executor))
        (held,) = await claim(self.parts.store, new_job(job_id, f"test.{job_id}", **values))
        return self.executor.submit(held)

    async def run(self, func: Callable[..., Any], **values: Any) -> JobEvent:
        await asyncio.wait_for(await self.submit(func, **values), PATIENCE)
        return await self.written()

    async def written(self) -> JobEvent:
        await self.completer.run_once()
        event = self.seen.events[-1]
        assert isinstance(event, JobEvent)
        assert not self.parts.faults
        return event


@pytest.fixture
def bench(parts: Parts, seen: Recorder) -> Bench:
    return Bench(parts, seen)


async def test_plain_function_runs_in_a_daemon_thread_with_its_arguments(bench: Bench) -> None:
    got: list[Any] = []

    def job(*args: Any, **kwargs: Any) -> None:
        got.append((args, kwargs, threading.current_thread()))

    event = await bench.run(job, task_data=encode((1, "zwei"), {"key": None}))
    assert event == JobCompleted("a", "test.a", 1)
    assert [type(each) for each in bench.seen.events] == [JobStarted, JobCompleted]
    ((args, kwargs, thread),) = got
    assert (args, kwargs) == ((1, "zwei"), {"key": None})
    assert thread is not threading.main_thread()
    assert thread.daemon
    await bench.executor.stop()
    await asyncio.to_thread(thread.join, PATIENCE)
    assert not thread.is_alive()


async def test_attempt_in_a_thread_leaves_nothing_to_the_garbage_collector(bench: Bench) -> None:
    def job() -> None:
        current_job().raise_if_cancelled()

    gc.disable()
    try:
        task = await bench.submit(job)
        reference = weakref.ref(task)
        await asyncio.wait_for(task, PATIENCE)
        del task
        assert isinstance(await bench.written(), JobCompleted)
        async with asyncio.timeout(PATIENCE):
            while reference() is not None:  # noqa: ASYNC110 - the thread may have it for a moment
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_context_variables_and_current_job_are_copied_into_the_thread(bench: Bench) -> None:
    seen: list[Any] = []

    def job() -> None:
        seen.append((VARIABLE.get(), current_job(), current_job().is_cancelled))
        current_job().raise_if_cancelled()
        VARIABLE.set("changed")

    VARIABLE.set("given")
    assert isinstance(await bench.run(job, timeout_seconds=60.0), JobCompleted)
    ((value, me, is_cancelled),) = seen
    assert (value, me.job_id, me.attempt, is_cancelled) == ("given", "a", 1, False)
    assert me.deadline is not None
    assert VARIABLE.get() == "given"


async def test_thread_is_used_again_for_the_next_job(bench: Bench) -> None:
    idents: list[int] = []

    def job() -> None:
        idents.append(threading.get_ident())

    for job_id in "abc":
        assert isinstance(await bench.run(job, job_id=job_id), JobCompleted)
    assert len(set(idents)) == 1


async def test_async_function_in_a_thread_runs_in_an_event_loop_of_its_own(bench: Bench) -> None:
    loops: list[object] = []

    async def job() -> None:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())

    assert isinstance(await bench.run(job), JobCompleted)
    assert loops[0] is not asyncio.get_running_loop()


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(1),
        asyncio.CancelledError(),
        JobCancelledError("no"),
    ],
    ids=repr,
)
async def test_exception_in_a_thread_fails_the_attempt_only(bench: Bench, error: BaseException) -> None:
    def job() -> None:
        raise error

    event = await bench.run(job)
    assert isinstance(event, JobFailed)
    assert event.exception is error


async def test_attempt_that_runs_on_after_its_cancellation_is_reported_until_it_ends(bench: Bench) -> None:
    parts, blocker = bench.parts, Blocker()
    heartbeat = parts.heartbeat()
    await heartbeat.prepare()
    task = await bench.submit(blocker.job)
    await blocker.wait_begun()
    usual_interval = await heartbeat.run_once()
    parts.in_flight.revoke("a", 1, Revocation.CANCELLED)
    assert 0 < await heartbeat.run_once() <= ABANDONED_AFTER_S < usual_interval

    async def abandoned() -> tuple[AbandonedAttempt, ...]:
        (row,) = await parts.store.workers.list_workers()
        return tuple(ReportedHealth.of(row.health).abandoned)

    assert not await abandoned(), "most threads end soon"
    (attempt,) = parts.in_flight.attempts.values()
    attempt.stopped_at -= 240
    assert await heartbeat.run_once() == usual_interval
    (reported,) = await abandoned()
    assert reported[:4] == ("a", "test.a", 1, "cancelled")
    assert reported.in_thread
    assert 239 <= (datetime.now(UTC) - reported.since).total_seconds() < 240 + PATIENCE
    parts.calls.clear()
    blocker.open.set()
    await asyncio.wait_for(task, PATIENCE)
    assert "heartbeat_requested" in parts.calls
    await heartbeat.run_once()
    assert not await abandoned()


async def test_timeout_sets_the_flag_and_fails_the_attempt_when_the_thread_has_returned(bench: Bench) -> None:
    flags: list[bool] = []

    def job() -> None:
        me = current_job()
        while not me.is_cancelled:
            pass
        flags.append(current_job().is_cancelled)

    event = await bench.run(job, timeout_seconds=0.01, max_retries=1)
    assert isinstance(event, JobRetried)
    assert event.error == "TimeoutError: the job ran longer than its timeout of 0.01 seconds"
    assert flags == [True]
    assert not bench.seen.of(ThreadAbandoned)


@pytest.mark.parametrize(
    ("reason", "kind"), [(Revocation.CANCELLED, JobCancelled), (Revocation.LOST, JobLost)]
)
async def test_revoked_attempt_writes_nothing_when_its_thread_has_returned(
    bench: Bench, reason: Revocation, kind: type[JobEvent]
) -> None:
    began = threading.Event()
    task = await bench.submit(obedient(began))
    await asyncio.to_thread(began.wait)
    bench.parts.in_flight.revoke("a", 1, reason)
    await asyncio.wait_for(task, PATIENCE)
    assert isinstance(bench.seen.events[-1], kind)
    assert not bench.parts.result_buffer.has_results


async def test_flag_decides_the_outcome_when_the_function_returns_normally(bench: Bench) -> None:
    blocker = Blocker()
    await bench.submit(blocker.job)
    await blocker.wait_begun()
    bench.parts.in_flight.revoke_all(Revocation.SHUTDOWN)
    blocker.open.set()
    await bench.executor.stop()
    assert isinstance(await bench.written(), JobReleased)
    assert await statuses(bench.parts.store, "a") == ["pending"]


async def test_thread_that_ignores_its_timeout_is_reported_and_keeps_its_slot(
    parts: Parts, seen: Recorder
) -> None:
    bench = Bench(parts, seen, stop_grace=0.0)
    blocker = Blocker()
    task = await bench.submit(blocker.job, timeout_seconds=60.0)
    await blocker.wait_begun()
    AttemptRunner.time_out(parts.in_flight.attempts["a"])
    (abandoned,) = await seen.until(ThreadAbandoned)
    assert (abandoned.job_id, abandoned.attempt) == ("a", 1)
    assert "in job\n" in abandoned.stack
    assert bench.executor.free == 4
    assert parts.in_flight.held() == {"a": 1}  # its lease is renewed
    assert await statuses(parts.store, "a") == ["running"]
    blocker.open.set()
    await asyncio.wait_for(task, PATIENCE)
    event = await bench.written()
    assert isinstance(event, JobFailed)
    assert event.error.startswith("TimeoutError")
    assert bench.executor.free == 5
    assert len(seen.of(ThreadAbandoned)) == 1


async def test_stuck_threads_release_their_slots_up_to_the_maximum(parts: Parts, seen: Recorder) -> None:
    executors = {"thread": ThreadExecutor(threads=3)}
    bench = Bench(parts, seen, slots=3, stop_grace=0.0, max_stuck_threads=2, executors=executors)
    hanging, executor = Hanging(bench), bench.executor
    attempts = [await hanging.start(job_id) for job_id in "abc"]
    assert executor.free == 0
    for attempt in attempts:
        AttemptRunner.time_out(attempt)
    await seen.until(ThreadAbandoned, 3)
    assert [event.has_slot for event in seen.of(ThreadAbandoned)] == [False, False, True]
    assert executor.free == 2
    assert {"slot_free", "heartbeat_requested"} <= set(parts.calls)
    # The jobs stay with this worker, so that no other attempt of them begins.
    assert parts.in_flight.held() == {"a": 1, "b": 1, "c": 1}
    # Their places in the executor are free too, so other jobs run in new threads.
    await hanging.start("d")
    await hanging.start("e")
    assert executor.free == 0
    # The end of a replaced thread frees no slot, but the next thread that runs on is replaced.
    await hanging.end("a")
    assert executor.free == 1
    assert attempts[2].is_replaced
    await hanging.end()
    assert executor.free == 3
    await bench.completer.run_once()
    assert sorted(event.job_id for event in seen.of(JobFailed)) == ["a", "b", "c"]
    assert sorted(event.job_id for event in seen.of(JobCompleted)) == ["d", "e"]


async def test_executor_has_as_many_places_as_before_when_a_stuck_thread_has_ended(
    parts: Parts, seen: Recorder
) -> None:
    executors = {"thread": ThreadExecutor(threads=1)}
    bench = Bench(parts, seen, slots=5, stop_grace=0.0, max_stuck_threads=1, executors=executors)
    hanging = Hanging(bench)
    AttemptRunner.time_out(await hanging.start("a"))
    await seen.until(ThreadAbandoned)
    await hanging.start("b")
    await hanging.end("a")
    # The second job has the only place, which the end of the first one does not release once more.
    room = bench.executor._runner._executors["thread"]._room
    assert room is not None
    assert room.locked()
    await hanging.end()
    assert not room.locked()
    assert bench.executor.free == 5


async def test_stuck_thread_of_a_job_that_runs_here_again_has_no_slot_to_release(
    parts: Parts, seen: Recorder
) -> None:
    bench = Bench(parts, seen, slots=2, stop_grace=0.0, max_stuck_threads=1)
    hanging = Hanging(bench)
    older = await hanging.start("a")
    older_task = hanging.tasks["a"]
    arguments = encode(("again",), {})
    hanging.tasks["again"] = bench.executor.submit(older.claim._replace(attempt=2, task_data=arguments))
    await hanging.blockers["again"].wait_begun()
    await seen.until(ThreadAbandoned)
    assert bench.executor.free == 1
    await hanging.end()
    await asyncio.wait_for(older_task, PATIENCE)
    assert bench.executor.free == 2


async def test_worker_reports_which_stuck_threads_have_slots(parts: Parts, seen: Recorder) -> None:
    bench = Bench(parts, seen, slots=2, stop_grace=0.0, max_stuck_threads=1)
    hanging, heartbeat = Hanging(bench), parts.heartbeat()
    await heartbeat.prepare()
    for job_id in "ab":
        attempt = await hanging.start(job_id)
        AttemptRunner.time_out(attempt)
        attempt.stopped_at -= 240
    await seen.until(ThreadAbandoned, 2)
    await heartbeat.run_once()
    (row,) = await parts.store.workers.list_workers()
    health = ReportedHealth.of(row.health)
    assert {attempt.job_id: attempt.has_slot for attempt in health.abandoned} == {"a": False, "b": True}
    assert health.replaced_threads == 1
    assert row.running_jobs == 2
    await hanging.end()


async def test_stuck_threads_without_slots_delay_no_shutdown(parts: Parts, seen: Recorder) -> None:
    bench = Bench(parts, seen, shutdown_timeout=0.0, stop_grace=0.01, max_stuck_threads=5)
    hanging = Hanging(bench)
    AttemptRunner.time_out(await hanging.start("a"))
    await seen.until(ThreadAbandoned)
    async with asyncio.timeout(PATIENCE / 2):
        await bench.executor.stop()
    assert parts.in_flight.held() == {"a": 1}, "its lease is renewed while the thread runs on"
    await hanging.end()


async def test_executor_stop_leaves_a_running_thread_its_job(parts: Parts, seen: Recorder) -> None:
    bench = Bench(parts, seen, shutdown_timeout=0.0, stop_grace=0.01)
    blocker = Blocker()
    task = await bench.submit(blocker.job)
    await blocker.wait_begun()
    await bench.executor.stop()
    assert task.done()
    assert holds(parts.in_flight.has_left)
    assert parts.in_flight.held() == {"a": 1}
    assert not parts.result_buffer.has_results
    assert await statuses(parts.store, "a") == ["running"]
    blocker.open.set()
    async with asyncio.timeout(PATIENCE):
        while parts.in_flight.has_left:  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0)
    assert parts.in_flight.held() == {}


async def test_end_of_the_event_loop_leaves_a_running_thread_its_job(bench: Bench) -> None:
    blocker = Blocker()
    task = await bench.submit(blocker.job)
    await blocker.wait_begun()
    task.cancel()  # as asyncio.run() does
    await asyncio.wait_for(task, PATIENCE)
    assert bench.parts.in_flight.has_left
    assert not bench.parts.result_buffer.has_results
    blocker.open.set()


def test_thread_ends_quietly_when_the_event_loop_is_closed_before_it_returns() -> None:
    blocker = Blocker()
    threads: list[threading.Thread] = []

    def job() -> None:
        threads.append(threading.current_thread())
        blocker.job()

    async def abandon() -> None:
        call = JobCall(None, job, (), {})  # type: ignore[arg-type] # not read
        running = asyncio.ensure_future(ThreadExecutor().run(call))
        await blocker.wait_begun()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(abandon())
    assert threads[0].is_alive()
    blocker.open.set()


@pytest.mark.slow
async def test_full_executor_delays_a_job_and_its_timeout_until_there_is_a_thread(
    parts: Parts, seen: Recorder
) -> None:
    bench = Bench(parts, seen, executors={"thread": ThreadExecutor(threads=1)})
    blocker = Blocker()
    first = await bench.submit(blocker.job)
    await blocker.wait_begun()
    second = await bench.submit(lambda_job, "b", timeout_seconds=1.0)
    await asyncio.wait([second], timeout=1.1)  # real time: longer than its timeout
    assert not seen.of(JobStarted, job_id="b")
    blocker.open.set()
    await asyncio.wait_for(asyncio.gather(first, second), PATIENCE)
    await bench.completer.run_once()
    assert len(seen.of(JobCompleted)) == 2


def lambda_job() -> None: ...


async def test_job_that_waits_for_a_thread_is_cancelled_without_one(parts: Parts, seen: Recorder) -> None:
    bench = Bench(parts, seen, executors={"thread": ThreadExecutor(threads=1)})
    blocker = Blocker()
    first = await bench.submit(blocker.job)
    await blocker.wait_begun()
    second = await bench.submit(lambda_job, "b")
    parts.in_flight.revoke("b", 1, Revocation.CANCELLED)
    await asyncio.wait_for(second, PATIENCE)
    assert seen.of(JobCancelled, job_id="b")
    assert not seen.of(JobStarted, job_id="b")
    blocker.open.set()
    await first


class Broken(JobExecutor):
    """Fails to start, or to run."""

    def __init__(self, *, starts: bool) -> None:
        self._starts = starts
        self.stopped = 0

    async def start(self) -> None:
        if not self._starts:
            raise RuntimeError("does not start")

    async def run(self, call: JobCall) -> None:
        raise RuntimeError("does not run")

    async def stop(self, grace: float) -> None:
        self.stopped += 1
        raise RuntimeError("does not stop")


@pytest.mark.parametrize("starts", [False, True])
async def test_broken_executor_fails_its_own_jobs_only(
    parts: Parts, seen: Recorder, caplog: pytest.LogCaptureFixture, starts: bool
) -> None:
    broken = Broken(starts=starts)
    bench = Bench(parts, seen, executors={"broken": broken, "thread": ThreadExecutor()})
    event = await bench.run(lambda_job, executor="broken")
    assert isinstance(event, JobFailed)
    assert event.error == f"RuntimeError: does not {'run' if starts else 'start'}"

    def good() -> None: ...

    assert isinstance(await bench.run(good, job_id="b"), JobCompleted)
    await bench.executor.stop()
    assert broken.stopped == starts
    assert ("executor 'broken' could not be stopped" in caplog.text) == starts


class Waiting(JobExecutor):
    """Awaits what the function returns."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def start(self) -> None:
        self.log.append("started")

    async def run(self, call: JobCall) -> Any:
        assert call.job is not None
        self.log.append(call.job.job_id)
        try:
            return await call.func(*call.args, **call.kwargs)
        except asyncio.CancelledError:
            self.log.append(f"cancelled {call.is_cancelled}")
            raise

    async def stop(self, grace: float) -> None:
        self.log.append(f"stopped {grace}")


async def test_custom_executor_is_started_once_cancelled_as_a_coroutine_and_stopped(
    parts: Parts, seen: Recorder
) -> None:
    mine = Waiting()
    bench = Bench(parts, seen, executors={"mine": mine}, stop_grace=1.5)

    async def short() -> None: ...

    async def long() -> None:
        await asyncio.Event().wait()

    assert isinstance(await bench.run(short, executor="mine"), JobCompleted)
    event = await bench.run(long, job_id="b", executor="mine", timeout_seconds=0.01)
    assert isinstance(event, JobFailed)
    assert event.error.startswith("TimeoutError")
    await bench.executor.stop()
    assert mine.log == ["started", "a", "b", "cancelled True", "stopped 1.5"]


async def test_job_of_an_executor_that_is_missing_fails_if_it_is_executed_here(bench: Bench) -> None:
    event = await bench.run(lambda_job, executor="gpu")
    assert isinstance(event, JobFailed)
    assert "no executor 'gpu'" in event.error


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, None])
def test_thread_executor_rejects_a_number_of_threads_that_is_not_positive(threads: Any) -> None:
    with pytest.raises(ConfigurationError, match="threads must be an int of 1 or more"):
        ThreadExecutor(threads)


@pytest.mark.slow
async def test_scheduler_restarts_as_another_worker_while_an_old_thread_runs(dsn: str) -> None:
    blocker = Blocker()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool:
        scheduler = Scheduler(pool, shutdown_timeout=0, stop_grace=0)
        scheduler.register(blocker.job, name="blocker")
        await scheduler.start()
        first = scheduler.worker_id
        job_id = await scheduler.schedule(blocker.job, execution_time=now())
        await blocker.wait_begun()
        await scheduler.shutdown()
        (row,) = await scheduler.workers()
        assert (row.worker_id, row.is_stopping) == (first, True)

        seen = Recorder(scheduler)
        async with scheduler:
            assert scheduler.worker_id != first
            await scheduler.recover_orphaned_jobs()
            job = await scheduler.get_job(job_id)
            assert job is not None
            assert (job.status, job.worker_id) == (JobStatus.RUNNING, first)
            blocker.open.set()
            await seen.until(JobCompleted, job_id=job_id)  # the lock is free, so the job runs again
        job = await scheduler.get_job(job_id)
        assert job is not None
        assert (job.attempt, job.crash_count) == (2, 0)


async def test_worker_claims_a_job_for_the_slot_that_a_stuck_thread_has_released(dsn: str) -> None:
    blocker = Blocker()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool:
        scheduler = Scheduler(pool, 1, shutdown_timeout=0, stop_grace=0, max_stuck_threads=1)
        scheduler.register(blocker.job, name="blocker", timeout=0.01)
        scheduler.register(lambda_job, name="next", executor="thread")
        seen = Recorder(scheduler)
        async with scheduler:
            await scheduler.enqueue("blocker")
            await blocker.wait_begun()
            next_id = await scheduler.enqueue("next")
            await seen.until(JobCompleted, job_id=next_id)
            (abandoned,) = seen.of(ThreadAbandoned)
            assert not abandoned.has_slot
            job = await scheduler.get_job(abandoned.job_id)
            assert job is not None
            assert job.status is JobStatus.RUNNING
            assert scheduler.health().slots_busy == 0
            blocker.open.set()
            await seen.until(JobFailed, job_id=abandoned.job_id)


async def test_maximum_of_stuck_threads_is_checked(pool: asyncpg.Pool) -> None:
    maximum: Any
    for maximum in (-1, 10_001, 1.5, None):
        with pytest.raises(ConfigurationError, match="max_stuck_threads"):
            Scheduler(pool, max_stuck_threads=maximum)


async def test_idle_thread_ends_after_a_while_and_the_next_job_gets_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def job() -> None:
        threads.append(threading.current_thread())

    inside.replace(monkeypatch, thread_idle_s=0.01)
    assert isinstance(await bench.run(job), JobCompleted)
    await asyncio.to_thread(threads[0].join, PATIENCE)
    assert not threads[0].is_alive()
    assert isinstance(await bench.run(job, job_id="b"), JobCompleted)
    assert threads[1] is not threads[0]


class Popped(list[Any]):
    """Idle threads, of which another one was just taken."""

    def __init__(self) -> None:
        super().__init__()
        self.was_searched = threading.Event()

    def remove(self, thread: object) -> None:
        self.was_searched.set()
        super().remove(thread)


class Work:
    """Counts its executions."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def execute(self) -> str:
        return "outcome"

    def end(self, outcome: str) -> None:
        assert outcome == "outcome"
        self.ended.set()


def test_idle_thread_waits_on_when_an_attempt_is_about_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is over between the moment it is taken from the idle ones and the arrival of the attempt."""
    monkeypatch.setattr(thread_module, "IDLE_S", 0.001)
    idle, work = Popped(), Work()
    thread = thread_module._Thread(idle, ThreadExecutor().leave)
    thread.start()
    assert idle.was_searched.wait(PATIENCE)
    thread.queue.put(work)  # type: ignore[arg-type] # it has what the thread uses
    assert work.ended.wait(PATIENCE)
    thread.join(PATIENCE)
    assert not thread.is_alive()


async def test_thread_executor_starts_a_thread_when_the_idle_ones_are_those_of_the_parent_of_a_fork(
    parts: Parts, seen: Recorder
) -> None:
    executor = ThreadExecutor()
    executor._idle.append(
        thread_module._Thread(executor._idle, executor.leave)
    )  # it is not alive, as after a fork
    bench = Bench(parts, seen, executors={"thread": executor})
    assert isinstance(await asyncio.wait_for(bench.run(lambda_job), PATIENCE), JobCompleted)
    assert [thread.is_alive() for thread in executor._idle] == [True]
    await bench.executor.stop()


def test_cancel_of_a_call_that_runs_as_a_coroutine_is_left_to_its_task() -> None:
    call = JobCall(None, lambda_job, (), {})  # type: ignore[arg-type] # not read
    assert not call.cancel()
    assert call.is_cancelled
    calls: list[int] = []
    call.on_cancel(lambda: calls.append(1))
    call.report_abandoned("")
    assert call.cancel()
    assert not call.is_unstoppable
    assert calls == []  # it was cancelled before


async def test_subclass_surrounds_functions_in_their_threads(pool: asyncpg.Pool) -> None:
    surrounded: list[int] = []
    left: list[int] = []
    has_left = threading.Event()

    class Surrounding(ThreadExecutor):
        def invoke(self, call: JobCall) -> Any:
            surrounded.append(threading.get_ident())
            return [super().invoke(call), "surrounded"]

        def leave(self) -> None:
            left.append(threading.get_ident())
            has_left.set()

    def identify() -> int:
        return threading.get_ident()

    async with Scheduler(pool, executors={"thread": Surrounding()}) as scheduler:
        scheduler.register(identify)
        value = await scheduler.run_job(identify, wait_timeout=PATIENCE)
    assert value == [surrounded[0], "surrounded"]
    assert await asyncio.to_thread(has_left.wait, PATIENCE)
    assert left == surrounded
