"""Run middleware around an attempt, the first one outermost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from pg_scheduler.base.foreign import is_a
from pg_scheduler.jobs.call import CrashedError, JobCall, JobExecutor, RaisedError, check_returned
from pg_scheduler.jobs.middleware import Middleware
from pg_scheduler.jobs.task import Task
from pg_scheduler.worker.in_flight import Attempt

CHECK_INTERVAL_S: Final = 0.02
"""Seconds between two looks at a thread that middleware has stopped waiting for."""


def run_in_loop(
    middleware: Sequence[Middleware],
    attempt: Attempt,
    task: Task,
    func: Callable[..., Awaitable[Any]],
    /,
    *args: Any,
    **kwargs: Any,
) -> Awaitable[Any]:
    """Run the coroutine function of an attempt in the event loop, inside the middleware.

    Return what the caller has to await for the value. ``args`` and ``kwargs`` are those of the function.
    ``func`` is that of the task, or what waits for the outcome of the job in a chunk. The middleware sees the
    function of the task.
    """
    call = JobCall(attempt.claim, task.func, args, kwargs, is_typed=task.typed is not None)
    attempt.call = call
    return _run(middleware, call, partial(_call, call, None if func is task.func else func))


async def run_in_executor(middleware: Sequence[Middleware], executor: JobExecutor, call: JobCall) -> Any:
    """Run an attempt in an executor, inside the middleware, and return the value of the outermost one."""
    try:
        # Middleware may change the keyword arguments, so the call has a dict of its own.
        call.kwargs = dict(call.kwargs)
        value = await _run(middleware, call, partial(_execute, executor, call))
    except asyncio.CancelledError:
        # _execute() has raised it because the call was cancelled, and not this task. The caller decides the
        # outcome by the flag of the call.
        if call.was_cancelled:
            return None
        raise
    except BaseException:
        # If middleware has raised it, as at a timeout of its own, the function may still run in its thread.
        await _end_of_thread(call)
        raise
    await _end_of_thread(call)
    return value


def _run(
    middleware: Sequence[Middleware], call: JobCall, call_next: Callable[[], Awaitable[Any]]
) -> Awaitable[Any]:
    """Call the middleware, the first one outermost and ``call_next`` innermost."""
    # Each layer gets the call of the next one within it, so this begins with the innermost.
    for layer in reversed(middleware):
        call_next = partial(layer, call, call_next)
    return call_next()


async def _call(call: JobCall, func: Callable[..., Awaitable[Any]] | None) -> Any:
    """Call the coroutine function of an attempt. Middleware may drop the value, so it is checked here.

    ``func`` replaces the function of the call, which middleware may have changed; None to call that.
    """
    value = await (func or call.func)(*call.args, **call.kwargs)
    check_returned(value)
    return value


async def _end_of_thread(call: JobCall) -> None:
    """Wait for the end of a function in a thread that middleware has stopped waiting for.

    The function is asked to return. Until it does, the job keeps its slot, so that no other attempt runs at
    the same time. If this wait is cancelled, at a shutdown, the job stays with its thread.
    """
    has_waited = False
    while call.is_unstoppable:
        call.cancel("middleware")
        has_waited = True
        await asyncio.sleep(CHECK_INTERVAL_S)  # until the function returns
    if has_waited:
        call.was_cancelled = False  # the outcome is that of the middleware
        call.detach()


async def _execute(executor: JobExecutor, call: JobCall) -> Any:
    """Run the function of an attempt in an executor, as the innermost call of the middleware.

    Return its value or raise its exception. If the attempt was cancelled before the end of the function,
    raise CancelledError, so that the middleware ends too.
    """
    value, raised = None, None
    try:
        value = await executor.run(call)
    except (RaisedError, CrashedError) as error:
        raised = error
    # If this task was cancelled instead, the call keeps its callbacks, because its thread may run on.
    call.detach()
    if call.was_cancelled:
        raise asyncio.CancelledError
    if raised is None:
        check_returned(value)
        return value
    if isinstance(raised, RaisedError) and is_a(raised.error, Exception):
        raise raised.error
    # SystemExit itself would end the worker, so it stays within its wrapper.
    raise raised
