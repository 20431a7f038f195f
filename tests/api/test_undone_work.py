"""A job or a subscriber that returns its work in place of doing it fails with the remedy, however it runs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from pg_scheduler import Abort, JobCall, JobExecutor, ProcessExecutor, Retry, Scheduler, Snooze, job
from pg_scheduler.base.lazy import LAZY
from pg_scheduler.events import Event, JobCompleted, JobFailed
from tests.api.conftest import Make
from tests.support.worker import Recorder


def logged(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function without awareness of what it returns, as many decorators do."""

    @functools.wraps(func)
    def wrapper(*args: Any) -> Any:
        return func(*args)

    return wrapper


async def work() -> None: ...


@logged
async def decorated(_: str) -> None: ...


@logged
def generator(_: str) -> Iterator[int]:
    yield 1


@logged
async def async_generator(_: str) -> AsyncIterator[int]:
    yield 1


@contextmanager
def context_manager(_: str) -> Iterator[None]:
    yield


@asynccontextmanager
async def async_context_manager(_: str) -> AsyncIterator[None]:
    yield


UNDONE: dict[str, tuple[Callable[[str], Any], str]] = {
    "decorated": (
        decorated,
        "returned a value of the type coroutine, whose work is not done; await it in the function; in a",
    ),
    "coroutine": (lambda _: work(), "returned a value of the type coroutine, "),
    "generator": (
        generator,
        "returned a value of the type generator, whose work is not done; iterate or enter it",
    ),
    "async generator": (async_generator, "returned a value of the type async_generator, "),
    "context manager": (context_manager, "returned a value of the type _GeneratorContextManager, "),
    "async context manager": (
        async_context_manager,
        "returned a value of the type _AsyncGeneratorContextManager, ",
    ),
    "map": (lambda _: map(print, "abc"), "returned a value of the type map, "),
    "filter": (lambda _: filter(print, "abc"), "returned a value of the type filter, "),
    "snooze": (lambda _: Snooze(60), "returned Snooze, which has no effect; raise it"),
    "retry": (lambda _: Retry(60), "returned Retry, which has no effect; raise it"),
    "abort": (lambda _: Abort("closed"), "returned Abort, which has no effect; raise it"),
}


def test_each_class_of_values_that_have_not_done_their_work_has_a_case() -> None:
    values = [make(kind) for kind, (make, _) in UNDONE.items()]
    for value in values:
        if asyncio.iscoroutine(value):
            value.close()
    assert [kind for kind in LAZY if not any(isinstance(value, kind) for value in values)] == []


def undone_work(kind: str) -> Any:
    return UNDONE[kind][0](kind)


async def undone_work_in_loop(kind: str) -> Any:
    return undone_work(kind)


class Custom(JobExecutor):
    """Runs functions in the event loop."""

    async def run(self, call: JobCall) -> Any:
        return call.func(*call.args, **call.kwargs)


async def drop_value(_call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> None:
    """Middleware that drops what the job returned."""
    await call_next()


EXECUTORS: dict[str, Callable[[], dict[str, JobExecutor]]] = {
    "async": dict,
    "thread": dict,
    "process": lambda: {"process": ProcessExecutor(1)},
    "custom": lambda: {"custom": Custom()},
}


@pytest.mark.parametrize("middleware", [[], [drop_value]], ids=["bare", "middleware"])
@pytest.mark.parametrize(
    "executor", [pytest.param(e, marks=pytest.mark.slow) if e == "process" else e for e in EXECUTORS]
)
async def test_job_that_returns_undone_work_fails(make: Make, executor: str, middleware: list[Any]) -> None:
    scheduler = make(executors=EXECUTORS[executor](), middleware=middleware)
    seen = Recorder(scheduler)
    func = undone_work_in_loop if executor == "async" else undone_work
    scheduler.register(func, name="undone", executor=executor)
    await scheduler.start()
    for kind, (_, message) in UNDONE.items():
        job_id = await scheduler.enqueue("undone", args=(kind,))
        (failure,) = await seen.until(JobFailed, job_id=job_id)
        assert failure.error.startswith(f"TypeError: the function {message}")
    assert seen.of(JobCompleted) == []


@pytest.mark.parametrize("func", [decorated, generator])
async def test_decorated_function_that_runs_nothing_fails(make: Make, func: Callable[..., Any]) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(func, name="undone")
    await scheduler.start()
    job_id = await scheduler.enqueue(func, args=("a",))
    await seen.until(JobFailed, job_id=job_id)


async def test_job_that_returns_a_task_fails_unless_the_task_has_ended(make: Make) -> None:
    scheduler = make()
    seen = Recorder(scheduler)

    @job(name="tasks")
    async def tasks(*, is_awaited: bool) -> Any:
        task = asyncio.create_task(work())
        if is_awaited:
            await task
        return task

    await scheduler.start()
    job_id = await scheduler.enqueue(tasks, kwargs={"is_awaited": False})
    (failure,) = await seen.until(JobFailed, job_id=job_id)
    assert (
        "returned a value of the type Task, whose work is not done; await it in the function" in failure.error
    )
    await seen.until(JobCompleted, job_id=await scheduler.enqueue(tasks, kwargs={"is_awaited": True}))


async def test_middleware_that_returns_what_it_should_await_fails_the_job(make: Make) -> None:
    async def forgetful(_call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:
        return call_next()

    scheduler = make(middleware=[forgetful])
    seen = Recorder(scheduler)
    await scheduler.start()
    await seen.until(JobFailed, job_id=await scheduler.enqueue(work))


def subscribe_by_lambda(scheduler: Scheduler, handle: Callable[[Event], Any]) -> None:
    scheduler.subscribe(lambda event: handle(event), JobCompleted)  # noqa: PLW0108 - the mistake


def subscribe_by_async_function(scheduler: Scheduler, handle: Callable[[Event], Any]) -> None:
    async def forgetful(event: Any) -> Any:
        return handle(event)

    scheduler.subscribe(forgetful, JobCompleted)


@pytest.mark.parametrize("subscribe", [subscribe_by_lambda, subscribe_by_async_function])
async def test_subscriber_that_returns_a_coroutine_is_logged(
    make: Make,
    subscribe: Callable[[Scheduler, Callable[[Event], Any]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(event: Event) -> None: ...

    scheduler = make()
    seen = Recorder(scheduler)
    subscribe(scheduler, handle)
    await scheduler.start()
    await seen.until(JobCompleted, job_id=await scheduler.enqueue(work))
    await scheduler.shutdown()
    assert (
        "the subscriber returned a value of the type coroutine, whose work is not done; subscribe the async"
        in caplog.text
    )


async def test_subscriber_may_return_a_task(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    tasks: list[asyncio.Task[None]] = []

    def begin_task(_: Event) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(work()))
        return tasks[0]

    scheduler = make()
    scheduler.subscribe(begin_task, JobCompleted)
    seen = Recorder(scheduler)
    await scheduler.start()
    await seen.until(JobCompleted, job_id=await scheduler.enqueue(work))
    await asyncio.gather(*tasks)
    assert "subscriber" not in caplog.text
