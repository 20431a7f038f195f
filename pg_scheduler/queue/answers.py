"""Futures that a task answers: each gets an answer, however the task ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias

from pg_scheduler.errors import ServiceCancelledError

Task: TypeAlias = asyncio.Task[None]
Future: TypeAlias = asyncio.Future[Any]


def start_answering(
    work: Coroutine[Any, Any, None], name: str, on_failure: Callable[[Task], Iterable[Future]]
) -> Task:
    """Run a coroutine that answers futures in a task. If the task fails, the futures get its error.

    Args:
        work: The coroutine. It returns when it has answered all futures.
        name: The name of the task.
        on_failure: Called if the task ended by an error or a cancellation, even before its first step. It
            returns the futures that get the error, and may start another task for the other futures.
    """
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(lambda task: _answer_after_failure(task, on_failure))
    return task


def fail(future: Future, error: BaseException) -> None:
    """Answer a future with an error, unless it has an answer or its caller was cancelled."""
    if not future.done():
        future.set_exception(error)


def _answer_after_failure(task: Task, on_failure: Callable[[Task], Iterable[Future]]) -> None:
    """Give the error of a task to the futures that it left unanswered; do nothing if the task returned.

    ``on_failure`` returns these futures.
    """
    # For a task that was cancelled, exception() raises the cancellation instead of returning it.
    error = None if task.cancelled() else task.exception()
    if error is None and not task.cancelled():
        return
    for future in on_failure(task):
        if isinstance(error, Exception):
            fail(future, error)
        else:
            # A cancellation or a SystemExit was meant for the task, and not for those who wait for an answer.
            fail(future, _interrupted(task, error))


def _interrupted(task: Task, cause: BaseException | None) -> ServiceCancelledError:
    """Return the error for callers whose task was cancelled, or ended by an exception such as SystemExit."""
    error = ServiceCancelledError(
        f"the task {task.get_name()!r} was cancelled, but not by the Scheduler; repeat the call, with the "
        "same job_id if it schedules a job, and cancel only tasks of your own"
    )
    error.__cause__ = cause
    return error
