"""Run attempts outside of the event loop: in threads, in processes, or in an executor of the user.

A full executor makes a claimed attempt wait for its place. Its timeout begins with its code.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.events import JobStarted, ThreadAbandoned
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.foreign import current_task, ends_task, message_of
from pg_scheduler.jobs.context import Report, cancellation, current
from pg_scheduler.jobs.outcome import (
    CrashResult,
    ErrorResult,
    InterruptResult,
    Result,
    ReturnResult,
    UnrunnableResult,
)
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.jobs.task import Task
from pg_scheduler.worker.in_flight import Attempt
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.runners.call import CrashedError, JobCall, JobExecutor, RaisedError
from pg_scheduler.worker.runners.middleware import MiddlewareChain
from pg_scheduler.worker.runners.timeouts import TimeoutQueue

_RETURNED: Final = ReturnResult()


class CallRunner:
    """The executors of a worker."""

    def __init__(
        self,
        node: Node,
        timeouts: TimeoutQueue[Attempt],
        middleware: MiddlewareChain | None,
        report_progress: Report,
    ) -> None:
        self._events = node.events
        self._places = {name: _Place(executor) for name, executor in node.executors.items()}
        self._timeouts = timeouts
        self._get_scheduler = node.get_scheduler
        self._report_progress = report_progress
        self._stop_grace = node.config.stop_grace
        self._max_crashes = node.config.max_crashes
        self._meter = node.meter
        self._middleware = middleware

    async def run(
        self, attempt: Attempt, task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Result:
        """Run one attempt to its end.

        Raises:
            asyncio.CancelledError: The task of the attempt was cancelled.
        """
        place = self._places.get(task.executor)
        if place is None:
            error = ConfigurationError(f"this Scheduler has no executor {task.executor!r}; pass executors=")
            return UnrunnableResult(error)
        async with place.room:
            try:
                await place.start()
                return await self._call(attempt, task, args, kwargs, place.executor)
            except BaseException as error:  # noqa: BLE001 - user code; sys.exit() and the like end the job only
                return error_result(attempt, error)

    async def stop(self) -> None:
        """Stop the executors that were started, within their grace."""
        for name, place in self._places.items():
            if place.is_started:
                place.is_started = False
                try:
                    async with asyncio.timeout(self._stop_grace):
                        await place.executor.stop(self._stop_grace)
                except BaseException as error:  # user code
                    if ends_task(error, current_task()):
                        raise
                    logger.exception("executor %r could not be stopped", name, extra=record_fields())

    async def _call(
        self,
        attempt: Attempt,
        task: Task,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        executor: JobExecutor,
    ) -> Result:
        claim = attempt.claim
        current.set((claim, time.time(), self._get_scheduler, self._report_progress))
        call = JobCall(
            claim,
            task.func,
            args,
            kwargs,
            is_typed=task.typed is not None,
            stop_grace=self._stop_grace,
            report_abandoned=lambda stack: self._report(claim, stack),
        )
        cancellation.set(call)
        _ = call.job  # reads the context of this task, since executors may ask in another one
        if self._events.wants(JobStarted):
            self._events.publish(
                JobStarted(claim.job_id, claim.job_name, claim.attempt, execution_time=claim.execution_time)
            )
        seconds = claim.timeout_seconds
        if seconds is not None:
            self._timeouts.add(attempt, seconds)
        attempt.call = call
        result: Result = _RETURNED
        began = time.monotonic()
        try:
            if self._middleware is None:
                value = await executor.run(call)
            else:
                value = await self._middleware.run_with(executor, call)
            if claim.options is not None:
                result = ReturnResult(value)
        except RaisedError as raised:
            result = ErrorResult(raised.error)
        except CrashedError as crash:
            result = CrashResult(message_of(crash), self._max_crashes)
        finally:
            if attempt.measured_for and self._meter is not None:
                seconds_run = time.monotonic() - began
                self._meter.record_duration(claim.job_name, seconds_run, attempt.measured_for)
            if seconds is not None:
                self._timeouts.remove(attempt, seconds)
        if call.was_cancelled:  # the flag decides, whatever the function made of it
            return InterruptResult() if attempt.revocation else timeout_result(claim)
        return result

    def _report(self, claim: Claim, stack: str) -> None:
        self._events.publish(ThreadAbandoned(claim.job_id, claim.job_name, claim.attempt, stack))


class _Place:
    """An executor, started by its first job."""

    def __init__(self, executor: JobExecutor) -> None:
        self.executor = executor
        limit = executor.capacity
        self.room = nullcontext() if limit is None else asyncio.Semaphore(limit)
        self.is_started = False
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start the executor, unless it was started."""
        async with self._starting:
            if not self.is_started:
                await self.executor.start()
                self.is_started = True


def error_result(attempt: Attempt, error: BaseException) -> ErrorResult:
    """Return the result of an attempt whose code raised an exception.

    Raises:
        BaseException: The exception, if it came from outside of that code.
    """
    if attempt.is_stopped_by(error):
        raise error
    return ErrorResult(error)


def timeout_result(claim: Claim) -> ErrorResult:
    """Return the result of an attempt whose timeout expired."""
    seconds = claim.timeout_seconds
    message = f"the job ran longer than its timeout of {seconds:g} seconds"
    return ErrorResult(TimeoutError(message), timed_out=True)
