"""Middleware runs around every attempt, and gives headers to every job that is stored."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    UNSET,
    Abort,
    JobCall,
    JobSpec,
    JobStatus,
    PayloadError,
    ProcessExecutor,
    RetryPolicy,
    ScheduledCall,
    Scheduler,
    Snooze,
    Unique,
    call,
    current_job,
    periodic,
)
from pg_scheduler.events import JobCancelled, JobCompleted, JobFailed, JobRetried, JobSnoozed
from pg_scheduler.sync import SyncScheduler
from pg_scheduler.testing import TestScheduler
from pg_scheduler.triggers import Every
from tests.api.conftest import Make
from tests.support.inside import is_enqueuer_wrapped
from tests.support.worker import PATIENCE, Recorder, now
from tests.worker import processes

Next = Callable[[], Awaitable[Any]]

AT_ONCE = RetryPolicy(base=timedelta(milliseconds=1), maximum=timedelta(milliseconds=1))


class Trail:
    """Records what it surrounds."""

    def __init__(self, name: str = "a", steps: list[str] | None = None) -> None:
        self.name = name
        self.steps = [] if steps is None else steps
        self.calls: list[JobCall] = []
        self.scheduled: list[ScheduledCall] = []

    async def __call__(self, call: JobCall, call_next: Next) -> Any:
        self.calls.append(call)
        assert call.job == current_job()
        self.steps.append(f"+{self.name}")
        try:
            return await call_next()
        except BaseException as error:
            self.steps.append(type(error).__name__)
            raise
        finally:
            self.steps.append(f"-{self.name}")

    def headers(self, call: ScheduledCall) -> Mapping[str, str]:
        self.scheduled.append(call)
        return {"number": str(len(self.scheduled)), self.name: call.job_name}


async def run(make: Make, function: Any, *middleware: Any, name: str, **options: Any) -> tuple[Recorder, str]:
    """Run a job to its end; return the events and its id."""
    scheduler = make(middleware=middleware, shutdown_timeout=PATIENCE)
    seen = Recorder(scheduler)
    scheduler.register(function, name=name, **options)
    await scheduler.start()
    job_id = await scheduler.enqueue(name, keep_result=timedelta(hours=1))
    await scheduler.get_job_result(job_id, timeout=PATIENCE)
    return seen, job_id


# -- around attempts -----------------------------------------------------------------------------------


async def test_middleware_surrounds_the_attempt_in_its_order_and_sees_the_job(make: Make) -> None:
    steps: list[str] = []
    outer, inner = Trail("outer", steps), Trail("inner", steps)
    scheduler = make(middleware=[outer, inner])
    seen = Recorder(scheduler)

    async def job(value: int, *, key: str) -> None:
        steps.append(f"{value} {key} {current_job().job_id}")

    scheduler.register(job, name="middleware.order", metadata={"area": "mail"})
    await scheduler.start()
    await scheduler.enqueue(call(job, 1, key="x"), job_id="mine")
    await seen.until(JobCompleted)
    assert steps == ["+outer", "+inner", "1 x mine", "-inner", "-outer"]
    (found,) = outer.calls
    assert (found.func, found.args, dict(found.kwargs)) == (job, (1,), {"key": "x"})
    assert (found.job.job_id, found.job.attempt, found.metadata["area"]) == ("mine", 1, "mail")


async def test_plain_function_is_middleware_and_what_it_returns_is_the_value(make: Make) -> None:
    async def double(_call: JobCall, call_next: Next) -> Any:
        assert current_job().job_name == "middleware.value"
        return 2 * await call_next()

    async def job() -> int:
        return 21

    seen, job_id = await run(make, job, double, name="middleware.value")
    result = await seen.source.get_job_result(job_id)
    assert result.unwrap() == 42


async def test_middleware_adds_arguments_for_functions_in_the_event_loop_and_in_threads(make: Make) -> None:
    async def add(call: JobCall, call_next: Next) -> Any:
        call.kwargs = {**call.kwargs, "session": object}
        return await call_next()

    async def in_loop(session: Any = None) -> bool:
        return session is object

    def in_thread(session: Any = None) -> bool:
        return session is object

    for name, function in {"middleware.loop": in_loop, "middleware.thread": in_thread}.items():
        seen, job_id = await run(make, function, add, name=name)
        assert (await seen.source.get_job_result(job_id)).unwrap() is True


@pytest.mark.parametrize("value", [5, object()])
async def test_middleware_adds_json_for_functions_in_processes(make: Make, value: Any) -> None:
    trail = Trail()

    async def add(call: JobCall, call_next: Next) -> Any:
        call.kwargs = {**call.kwargs, "ndigits": value}
        return await call_next()

    scheduler = make(middleware=[trail, add], shutdown_timeout=PATIENCE)
    scheduler.register(round_it, name="middleware.process", executor="process")
    await scheduler.start()
    job_id = await scheduler.enqueue(round_it, args=(1.23456789,), keep_result=timedelta(hours=1))
    result = await scheduler.get_job_result(job_id, timeout=PATIENCE)
    assert result is not None
    if value == 5:
        assert result.unwrap() == 1.23457
        assert trail.steps == ["+a", "-a"]
    else:
        assert result.error is not None
        assert "kwargs that middleware added['ndigits'] is a builtins.object" in result.error.message
        assert trail.steps == ["+a", "PayloadError", "-a"]


@pytest.mark.slow
async def test_process_is_kept_when_middleware_adds_what_json_cannot_represent(make: Make) -> None:
    async def add(call: JobCall, call_next: Next) -> Any:
        if call.job.job_id == "bad":
            call.kwargs = {**call.kwargs, "added": {1, 2}}
        return await call_next()

    scheduler = make(middleware=[add], executors={"process": ProcessExecutor(1)}, shutdown_timeout=PATIENCE)
    scheduler.register(own_pid, name="middleware.pid", executor="process", max_retries=0)
    await scheduler.start()
    results = []
    for job_id in ("before", "bad", "after"):
        await scheduler.enqueue(own_pid, job_id=job_id, keep_result=timedelta(hours=1))
        results.append(await scheduler.get_job_result(job_id, timeout=PATIENCE))
    before, bad, after = results
    assert before.unwrap() == after.unwrap()
    assert bad.error is not None
    assert "kwargs that middleware added['added'] is a builtins.set" in bad.error.message


def own_pid() -> int:
    """A job of a child process."""
    return os.getpid()


def round_it(number: float, ndigits: int = 0) -> float:
    """A job of a child process."""
    return round(number, ndigits)


def fail_in_thread() -> None:
    raise ValueError("no") from KeyError("cause")


async def fail_in_loop() -> None:
    raise ValueError("no") from KeyError("cause")


@pytest.mark.parametrize("function", [fail_in_loop, fail_in_thread])
async def test_exception_of_the_job_reaches_the_middleware_and_is_the_outcome(
    make: Make, function: Any
) -> None:
    trail = Trail()
    seen, job_id = await run(make, function, trail, name=f"middleware.{function.__name__}")
    (failed,) = await seen.until(JobFailed, job_id=job_id)
    assert (failed.error, type(failed.exception)) == ("ValueError: no", ValueError)
    assert failed.exception is not None
    assert isinstance(failed.exception.__cause__, KeyError)
    assert trail.steps == ["+a", "ValueError", "-a"]


@pytest.mark.parametrize("function", [fail_in_loop, fail_in_thread])
async def test_middleware_that_swallows_an_exception_completes_the_job(make: Make, function: Any) -> None:
    async def swallow(_call: JobCall, call_next: Next) -> str:
        try:
            return str(await call_next())
        except ValueError as error:
            return f"swallowed {error}"

    seen, job_id = await run(make, function, swallow, name=f"middleware.swallow_{function.__name__}")
    assert (await seen.source.get_job_result(job_id)).unwrap() == "swallowed no"


async def test_exception_of_middleware_is_the_outcome_and_is_retried(make: Make) -> None:
    raised = [Snooze(0.001), ValueError("first"), Abort("enough")]

    async def fail(_call: JobCall, _next: Next) -> Any:
        raise raised.pop(0)

    async def job() -> None: ...

    scheduler = make(middleware=[fail], retry_policy=AT_ONCE)
    seen = Recorder(scheduler)
    scheduler.register(job, name="middleware.fails")
    await scheduler.start()
    job_id = await scheduler.enqueue(job, max_retries=5)
    await seen.until(JobFailed, job_id=job_id)
    assert len(seen.of(JobSnoozed)) == len(seen.of(JobRetried)) == 1
    assert not raised


async def test_job_that_cannot_run_skips_middleware(make: Make, pool: asyncpg.Pool) -> None:
    trail = Trail()
    scheduler = make(middleware=[trail])
    seen = Recorder(scheduler)

    async def job() -> None: ...

    scheduler.register(job, name="middleware.unreadable")
    await scheduler.initialize_db()
    await scheduler.enqueue(job, job_id="mine")
    await pool.execute("""UPDATE scheduled_jobs SET task_data = '{"args": 1}'""")
    await scheduler.start()
    await seen.until(JobFailed, job_id="mine")
    assert trail.steps == []


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        *((kind, place) for kind in ("loop", "thread") for place in ("before", "inside", "after")),
        ("process", "inside"),
    ],
)
async def test_timeout_counts_in_middleware_and_ends_it(make: Make, kind: str, place: str) -> None:
    ended: list[str] = []

    async def wait(_call: JobCall, call_next: Next) -> Any:
        try:
            if place == "before":
                await asyncio.Event().wait()
            value = await call_next()
            if place == "after":
                await asyncio.Event().wait()
        except BaseException as error:
            ended.append(type(error).__name__)
            raise
        return value

    async def in_loop() -> None:
        if place == "inside":
            await asyncio.Event().wait()

    def in_thread() -> None:
        while place == "inside" and not current_job().is_cancelled:
            time.sleep(0.01)  # a job in a thread asks now and then

    function = {"loop": in_loop, "thread": in_thread, "process": sleep}[kind]
    scheduler = make(middleware=[wait], shutdown_timeout=PATIENCE)
    seen = Recorder(scheduler)
    name = f"middleware.timeout_{kind}"
    scheduler.register(function, name=name, executor="process" if kind == "process" else UNSET)
    await scheduler.start()
    job_id = await scheduler.enqueue(name, timeout=0.3)
    (failed,) = await seen.until(JobFailed, job_id=job_id)
    assert failed.error.startswith("TimeoutError: the job ran longer")
    assert ended == ["CancelledError"]


def sleep() -> None:
    """A job of a child process."""
    time.sleep(60)  # its timeout ends the process


@pytest.mark.slow
async def test_process_runs_on_when_its_former_attempt_is_cancelled_in_middleware(make: Make) -> None:
    """The attempt no longer has the process, which may run another job."""
    returned = asyncio.Event()

    async def wait(_call: JobCall, call_next: Next) -> Any:
        value = await call_next()
        if not returned.is_set():
            returned.set()
            await asyncio.Event().wait()
        return value

    scheduler = make(middleware=[wait], shutdown_timeout=PATIENCE)
    seen = Recorder(scheduler)
    scheduler.register(processes.pid, name="middleware.pid", executor="process")
    await scheduler.start()
    first = await scheduler.enqueue("middleware.pid")
    await asyncio.wait_for(returned.wait(), PATIENCE)
    await scheduler.cancel_job(first)
    await seen.until(JobCancelled, job_id=first)
    assert await scheduler.run_job("middleware.pid", wait_timeout=PATIENCE)
    assert not seen.of(JobRetried)


@pytest.mark.slow
async def test_thread_that_runs_on_at_shutdown_keeps_its_job_under_middleware(make: Make) -> None:
    begun, released = threading.Event(), threading.Event()

    def ignore() -> None:
        begun.set()
        released.wait(PATIENCE)

    trail = Trail()
    scheduler = make(middleware=[trail], stop_grace=0.05)
    scheduler.register(ignore, name="middleware.thread_runs_on")
    await scheduler.start()
    job_id = await scheduler.enqueue("middleware.thread_runs_on")
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    await scheduler.shutdown()
    found = await scheduler.get_job(job_id)
    released.set()
    assert found is not None
    assert found.status is JobStatus.RUNNING
    assert trail.steps == ["+a", "CancelledError", "-a"]


async def give_up(call: JobCall, call_next: Next) -> Any:
    """Stop waiting for a job as soon as it is started."""
    async with asyncio.timeout(0):
        return await call_next()


async def swallow(call: JobCall, call_next: Next) -> Any:
    """Go on without a job that was cancelled."""
    with suppress(asyncio.CancelledError):
        await call_next()


async def test_thread_that_middleware_does_not_wait_for_keeps_the_next_attempt_away(make: Make) -> None:
    begun, running, most = threading.Semaphore(0), [0], [0]
    released = threading.Event()

    def block() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        begun.release()
        released.wait(PATIENCE)
        running[0] -= 1

    scheduler = make(middleware=[give_up], retry_policy=AT_ONCE)
    seen = Recorder(scheduler)
    scheduler.register(block, name="middleware.given_up")
    await scheduler.start()
    job_id = await scheduler.enqueue("middleware.given_up", max_retries=1)
    assert await asyncio.to_thread(begun.acquire, timeout=PATIENCE)
    assert not await asyncio.to_thread(begun.acquire, timeout=0.3), "the next attempt waits"
    found = await scheduler.get_job(job_id)
    assert found is not None
    assert (found.status, found.attempt) == (JobStatus.RUNNING, 1)
    released.set()
    await seen.until(JobFailed, job_id=job_id)
    found = await scheduler.get_job(job_id)
    assert found is not None
    assert [error.error_type for error in found.errors] == ["TimeoutError", "TimeoutError"]
    assert most == [1]


@pytest.mark.slow
async def test_shutdown_leaves_a_thread_whose_middleware_ignores_the_cancellation(make: Make) -> None:
    begun, released = threading.Event(), threading.Event()

    def ignore() -> None:
        begun.set()
        released.wait(PATIENCE)

    scheduler = make(middleware=[swallow], stop_grace=0.05)
    scheduler.register(ignore, name="middleware.swallowed")
    await scheduler.start()
    job_id = await scheduler.enqueue("middleware.swallowed")
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    async with asyncio.timeout(PATIENCE):
        await scheduler.shutdown()
    found = await scheduler.get_job(job_id)
    released.set()
    assert found is not None
    assert found.status is JobStatus.RUNNING, "no other worker may start it while the thread runs"


async def test_headers_of_an_attempt_are_stored_with_its_error(make: Make) -> None:
    async def stamp(call: JobCall, call_next: Next) -> Any:
        call.trace = {"attempt": str(call.job.attempt), "text": "\x00 é", "number": 1}  # type: ignore[dict-item]
        return await call_next()

    async def job() -> None:
        if current_job().attempt == 1:
            await asyncio.Event().wait()
        if current_job().attempt == 2:
            raise ValueError("no")

    scheduler = make(middleware=[stamp], retry_policy=AT_ONCE)
    seen = Recorder(scheduler)
    scheduler.register(job, name="middleware.trace", timeout=0.1)
    await scheduler.start()
    job_id = await scheduler.enqueue(job, max_retries=2)
    await seen.until(JobCompleted, job_id=job_id)
    found = await scheduler.get_job(job_id)
    assert found is not None
    assert [(error.outcome, error.trace) for error in found.errors] == [
        ("timeout", {"attempt": "1", "text": "\\x00 é"}),
        ("error", {"attempt": "2", "text": "\\x00 é"}),
    ]


@pytest.mark.parametrize("trace", ["1", "[]", '{"a": 1}', '"x"'])
async def test_history_with_other_headers_is_read(make: Make, pool: asyncpg.Pool, trace: str) -> None:
    async def job() -> None: ...

    scheduler = make()
    scheduler.register(job, name="middleware.history")
    await scheduler.enqueue(job, job_id="mine")
    entry = f'[{{"attempt": 1, "outcome": "error", "trace": {trace}}}]'
    await pool.execute("UPDATE scheduled_jobs SET errors = $1::text::jsonb", entry)
    found = await scheduler.get_job("mine")
    assert found is not None
    assert [each.trace for each in found.errors] == [None]


# -- headers of jobs -----------------------------------------------------------------------------------


async def nothing(*_args: object, **_kwargs: object) -> None: ...


async def trace_of(scheduler: Scheduler, job_id: str | None) -> object:
    found = await scheduler.get_job(job_id or "")
    assert found is not None
    return found.metadata.get("trace")


async def test_every_way_to_store_a_job_adds_the_headers(make: Make, pool: asyncpg.Pool) -> None:
    trail = Trail("a")
    scheduler = make(middleware=[trail, Trail("b")])
    scheduler.register(nothing, name="middleware.stored", metadata={"area": "mail"})
    await scheduler.initialize_db()
    later = now() + timedelta(hours=1)
    ids: list[str | None] = [
        await scheduler.schedule(nothing, execution_time=later, args=(1,), metadata={"tenant": 7}),
        await scheduler.schedule(call(nothing, 1, key=2), execution_time=later),
        await scheduler.schedule_job("middleware.stored", later, {"kwargs": {"metadata": {}}}),
        await scheduler.enqueue(nothing, delay=3600),
        await scheduler.enqueue("middleware.unknown", delay=3600),
        await scheduler.enqueue(nothing, delay=3600, unique="one"),
        await scheduler.enqueue(nothing, delay=3600, job_id="x"),
        await scheduler.schedule(nothing, execution_time=later, after=["x"]),
        *await scheduler.schedule_bulk([JobSpec(nothing, later), JobSpec(nothing, later, job_id="y")]),
        *await scheduler.schedule_bulk([JobSpec(nothing, later)] * 120),  # by COPY
    ]
    async with pool.acquire() as connection, connection.transaction():
        ids.append(await scheduler.schedule(nothing, execution_time=later, connection=connection))
    await scheduler.schedules.add(nothing, Every(hours=1), schedule_id="s")
    triggered = await scheduler.schedules.trigger("s")
    ids.append(triggered)
    assert len(trail.scheduled) == len(ids) == 132
    for number, (job_id, scheduled) in enumerate(zip(ids, trail.scheduled, strict=True), 1):
        assert scheduled.job_id == job_id
        name = scheduled.job_name
        assert scheduled.schedule_id == ("s" if job_id == triggered else None)
        assert await trace_of(scheduler, job_id) == {"number": str(number), "a": name, "b": name}
    first, second = trail.scheduled[:2]
    assert (first.args, first.kwargs, first.metadata) == ((1,), {}, {"area": "mail", "tenant": 7})
    assert (second.args, second.kwargs, second.execution_time) == ((1,), {"key": 2}, later)
    (blocked,) = [each for each in await scheduler.list_jobs() if each.blocked_on is not None]
    assert blocked.job_id == ids[7]  # the headers cost it none of its other values
    unique = await scheduler.get_job(ids[5] or "")
    assert unique is not None
    assert unique.unique_key == "one"


async def test_headers_receive_the_id_of_the_time_span_of_a_delayed_job(make: Make) -> None:
    trail = Trail()
    scheduler = make(middleware=[trail])
    scheduler.register(nothing, name="middleware.unique", unique=Unique(per=timedelta(hours=1)))
    await scheduler.initialize_db()
    job_id = await scheduler.enqueue("middleware.unique", delay=7200)
    stored = await scheduler.get_job(job_id)
    assert stored is not None
    (scheduled,) = trail.scheduled
    assert (scheduled.job_id, scheduled.execution_time) == (job_id, stored.execution_time)


async def test_headers_receive_the_id_of_the_time_span_of_a_fire_time(make: Make) -> None:
    trail = Trail()
    scheduler = make(middleware=[trail])
    scheduler.register(nothing, name="middleware.span", unique=Unique(per=timedelta(hours=1)))
    await scheduler.initialize_db()
    await scheduler.schedules.add("middleware.span", Every(hours=1), schedule_id="s")
    job_id = await scheduler.schedules.trigger("s")
    assert [each.job_id for each in trail.scheduled] == [job_id]


async def test_periodic_job_that_is_triggered_before_its_schedule_is_stored_asks_for_headers_once(
    make: Make,
) -> None:
    trail = Trail("a")
    periodic(every=timedelta(hours=1), dedup_key="hourly")(nothing)
    scheduler = make(middleware=[trail])
    await scheduler.initialize_db()
    job_id = await scheduler.trigger_periodic_job("hourly")
    (scheduled,) = trail.scheduled
    assert (scheduled.job_id, scheduled.schedule_id) == (job_id, "hourly")
    assert await trace_of(scheduler, job_id) == {"number": "1", "a": scheduled.job_name}


async def test_jobs_of_schedules_and_of_run_job_have_the_headers(pool: asyncpg.Pool) -> None:
    traces: list[Any] = []

    async def job() -> str:
        traces.append(current_job().metadata["trace"])
        return "value"

    trail = Trail("a")
    periodic(every=timedelta(hours=1), dedup_key="hourly")(job)
    async with TestScheduler(pool, middleware=[trail]) as t:
        await t.run_until(timedelta(hours=2, minutes=1))
    assert len(traces) >= 2
    assert traces[0] == {"number": "1", "a": trail.scheduled[0].job_name}
    assert {each.schedule_id for each in trail.scheduled} == {"hourly"}


async def test_headers_are_read_in_the_context_of_the_caller_by_both_classes(dsn: str) -> None:
    trail = Trail("a")

    def schedule() -> object:
        with SyncScheduler(dsn, middleware=[trail]) as scheduler:
            job_id = scheduler.enqueue("middleware.sync")
            found = scheduler.get_job(job_id)
            assert found is not None
            return found.metadata

    metadata = await asyncio.to_thread(schedule)
    assert metadata == {"trace": {"number": "1", "a": "middleware.sync"}}


async def test_headers_of_another_program_stay(make: Make) -> None:
    scheduler = make(middleware=[Trail("a")])
    trace = {"traceparent": "00-1"}
    job_id = await scheduler.schedule_job("middleware.other", now(), {}, metadata={"trace": trace})
    assert await trace_of(scheduler, job_id) == trace


async def test_reserved_metadata_are_rejected_wherever_a_user_passes_them(make: Make) -> None:
    scheduler = make()
    metadata: Any = {"trace": {"traceparent": "00-1"}}
    due: datetime = now()
    with pytest.raises(PayloadError, match=r"metadata\['trace'\] is reserved"):
        await scheduler.schedule(nothing, execution_time=due, metadata=metadata)
    with pytest.raises(PayloadError, match="is reserved"):
        await scheduler.enqueue("middleware.reserved", metadata=metadata)
    with pytest.raises(PayloadError, match="is reserved"):
        await scheduler.schedule_bulk([JobSpec(nothing, due, metadata=metadata)])
    with pytest.raises(PayloadError, match="is reserved"):
        await scheduler.schedules.add(nothing, Every(hours=1), metadata=metadata)
    with pytest.raises(PayloadError, match="is reserved"):
        scheduler.register(nothing, name="middleware.reserved", metadata=metadata)
    assert await scheduler.list_jobs() == []


async def test_invalid_headers_raise_at_the_call_and_store_nothing(make: Make) -> None:
    found: list[Any] = []

    class Bad(Trail):
        def headers(self, call: ScheduledCall) -> Any:
            return found[-1]

    scheduler = make(middleware=[Bad()])
    for headers, error in [
        (None, r"headers\(\) of Bad must return strings by name, not None"),
        ({"a": 1}, r"headers\(\) of Bad must return strings by name, not {'a': 1}"),
        ({"a": "x" * 9000}, r"the headers of middleware have 9008 bytes of JSON, more than 8192"),
        ({"a": "\x00"}, "contains a NUL character"),
    ]:
        found.append(headers)
        with pytest.raises(TypeError, match=error):
            await scheduler.enqueue(nothing)
        with pytest.raises(TypeError, match=error):
            await scheduler.schedule_bulk([JobSpec(nothing, now())])
    assert await scheduler.list_jobs() == []


async def test_exception_of_headers_does_not_stop_a_schedule(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Bad(Trail):
        def headers(self, call: ScheduledCall) -> Any:
            raise ValueError(f"no headers for {call.schedule_id}")

    scheduler = make(middleware=[Bad()])
    await scheduler.schedules.add(nothing, Every(hours=1), schedule_id="s")
    job_id = await scheduler.schedules.trigger("s")
    assert await trace_of(scheduler, job_id) is None
    assert "headers() of a middleware raised an exception; job 'schedule:s:manual" in caplog.text


# -- mistakes ------------------------------------------------------------------------------------------


class NotAsync:
    def __call__(self, call: JobCall, call_next: Next) -> Any: ...


class AsyncHeaders(Trail):
    async def headers(self, call: ScheduledCall) -> Mapping[str, str]: ...  # type: ignore[override, empty-body]


async def one_argument(call: JobCall) -> None: ...


async def test_invalid_middleware_is_rejected_at_the_constructor(make: Make, dsn: str) -> None:
    mistakes: list[tuple[Any, str]] = [
        (nothing, r"middleware must be a list, not <function nothing.*; pass middleware=\["),
        ({Trail()}, "middleware must be a list"),
        ([nothing, Trail], r"middleware\[1\] must be an object, not the class Trail; pass Trail\(\)"),
        ([NotAsync()], r"middleware\[0\] must be a coroutine function or an object with async def __call__"),
        (["name"], r"middleware\[0\] must be a coroutine function .* not 'name'"),
        ([one_argument], r"middleware\[0\] must take two arguments, call and call_next"),
        ([AsyncHeaders()], r"headers of middleware\[0\] must be a plain method"),
    ]
    for middleware, error in mistakes:
        with pytest.raises(TypeError, match=error):
            make(middleware=middleware)
        with pytest.raises(TypeError, match=error):
            await asyncio.to_thread(SyncScheduler, dsn, middleware=middleware)


async def test_attempt_without_middleware_is_awaited_by_the_worker_itself(make: Make) -> None:
    callers: list[str] = []

    async def job() -> None:
        callers.append(sys._getframe(1).f_code.co_filename)

    async def only_around(_call: JobCall, call_next: Next) -> Any:
        return await call_next()

    await run(make, job, name="middleware.plain")
    await run(make, job, only_around, name="middleware.around")
    assert [Path(caller).name for caller in callers] == ["attempt_runner.py", "middleware.py"]


async def test_other_methods_of_middleware_are_left_to_their_owner(make: Make) -> None:
    class Mailer:
        async def __call__(self, _call: JobCall, call_next: Next) -> Any:
            return await call_next()

        def sending(self) -> bool:
            return True

    scheduler = make(middleware=[Mailer()])
    ids = [await scheduler.enqueue(nothing), *await scheduler.schedule_bulk([JobSpec(nothing, now())])]
    for job_id in ids:
        assert await trace_of(scheduler, job_id) is None


async def test_scheduler_without_headers_stores_jobs_as_without_middleware(make: Make) -> None:
    async def only_around(_call: JobCall, call_next: Next) -> Any:
        return await call_next()

    for middleware in ([], [only_around]):
        scheduler = make(middleware=middleware)
        assert not is_enqueuer_wrapped(scheduler)
        job_id = await scheduler.enqueue(nothing)
        found = await scheduler.get_job(job_id)
        assert found is not None
        assert (found.status, found.metadata) == (JobStatus.PENDING, {})
