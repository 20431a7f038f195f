"""Run one attempt: find its function, decode its arguments, and call it within its time limit."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from pg_scheduler.errors import ConfigurationError, DatabaseUnavailableError, PayloadError
from pg_scheduler.events import JobStarted
from pg_scheduler.events.types import LOCK_TAKEN
from pg_scheduler.jobs.context import current
from pg_scheduler.jobs.executors import ASYNC
from pg_scheduler.jobs.outcome import (
    InterruptResult,
    Result,
    ReturnResult,
    SkippedResult,
    UnrunnableResult,
)
from pg_scheduler.jobs.payload import decode
from pg_scheduler.worker.in_flight import Attempt
from pg_scheduler.worker.node import Node
from pg_scheduler.worker.pipeline.calls import CallRunner, error_result
from pg_scheduler.worker.pipeline.lock_pause import LockPause
from pg_scheduler.worker.pipeline.progress_writer import ProgressWriter
from pg_scheduler.worker.runners.middleware import MiddlewareChain
from pg_scheduler.worker.runners.timeouts import TimeoutQueue

RETURNED: Final = ReturnResult()
"""The result of a job that keeps none."""


class AttemptRunner:
    """Runs attempts in the event loop, and hands those of other executors on."""

    def __init__(self, node: Node, progress: ProgressWriter) -> None:
        self._locks = node.store.locks
        self._events = node.events
        self._tasks = node.tasks
        self._meter = node.meter
        self._get_scheduler = node.get_scheduler
        self._report_progress = progress.report
        self._middleware = MiddlewareChain(node.middleware) if node.middleware else None
        self._lock_pause = LockPause()
        self._timeouts: TimeoutQueue[Attempt] = TimeoutQueue(self.time_out)
        self._calls = CallRunner(node, self._timeouts, self._middleware, progress.report)

    async def run(self, attempt: Attempt) -> Result:
        """Run an attempt, and return its result.

        Raises:
            asyncio.CancelledError: The attempt was cancelled.
        """
        claim = attempt.claim
        task = self._tasks.resolve(claim.function)
        if task is None:
            return UnrunnableResult(
                LookupError(f"no function is registered under the name {claim.function!r}")
            )
        try:
            args, kwargs = decode(claim.task_data)
            if task.typed is not None:
                args, kwargs = task.typed.bind(args, kwargs)
        except (PayloadError, ConfigurationError) as error:
            return UnrunnableResult(error)
        except BaseException as error:  # noqa: BLE001 - user code: a validator
            return error_result(attempt, error)
        if task.executor != ASYNC:
            return await self._calls.run(attempt, task, args, kwargs)
        current.set((claim, time.time(), self._get_scheduler, self._report_progress))
        if self._events.wants(JobStarted):
            self._events.publish(
                JobStarted(claim.job_id, claim.job_name, claim.attempt, execution_time=claim.execution_time)
            )
        seconds = claim.timeout_seconds
        if seconds is not None:
            self._timeouts.add(attempt, seconds)
        func = task.func if self._middleware is None else partial(self._middleware.run, attempt, task)
        began = time.monotonic() if attempt.measured_for else 0.0
        try:
            value = await func(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - user code; sys.exit() and the like end the job only
            return error_result(attempt, error)
        finally:
            if attempt.measured_for and self._meter is not None:
                seconds_run = time.monotonic() - began
                self._meter.record_duration(claim.job_name, seconds_run, attempt.measured_for)
            if seconds is not None:
                self._timeouts.remove(attempt, seconds)
        return RETURNED if claim.options is None else ReturnResult(value)

    async def run_under_lock(self, attempt: Attempt, key: int) -> Result:
        """Run an attempt while no other one has its advisory lock; skip it if one has."""
        result: Result | None = None
        try:
            async with self._locks.advisory_lock(key) as taken:
                self._lock_pause.reset()
                result = await self.run(attempt) if taken else SkippedResult(LOCK_TAKEN)
        except DatabaseUnavailableError as fault:
            if result is not None:  # the lock was not released, but ended with its session
                return result
            await self._lock_pause.wait(fault)
            return InterruptResult()  # the job has not run
        except ConfigurationError as error:  # this pool cannot hold a lock
            return UnrunnableResult(error)
        return result

    async def stop(self) -> None:
        """Stop watching time limits, and stop the executors."""
        self._timeouts.close()
        await self._calls.stop()

    @staticmethod
    def time_out(attempt: Attempt) -> None:
        """Interrupt an attempt whose time limit has expired."""
        attempt.has_timed_out = True
        attempt.interrupt()
