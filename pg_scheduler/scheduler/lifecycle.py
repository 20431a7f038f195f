"""Start and stop a worker. Concurrent calls share one start or one shutdown.

A shutdown runs in a task of its own. So it completes even if its caller is cancelled, and even if its caller
is a job that the shutdown interrupts. An error that ends a part shuts the worker down, and ``wait()`` raises
the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from pg_scheduler.errors import NotRunningError, SchedulerError
from pg_scheduler.events import Event, EventBus, ServiceFaulted, WorkerStarted, WorkerStopped
from pg_scheduler.events.background import log_failure
from pg_scheduler.events.log import warn_of_mistake

if TYPE_CHECKING:
    from pg_scheduler.scheduler.runtime import Runtime


KILLED: Final = (
    "so its worker ends as if it was killed: a crash is counted for each running job; use async with "
    "Scheduler(...), or await scheduler.shutdown() before the function returns that asyncio.run() runs"
)
NOT_SHUT_DOWN: Final = f"the event loop ends, but the Scheduler was not shut down, {KILLED}"
SHUTDOWN_CANCELLED: Final = f"the shutdown of the Scheduler was cancelled before its end, {KILLED}"


class Lifecycle:
    """Start and stop one worker.

    Attributes:
        worker_id: The id of the worker in the tables.
        runtime: The parts of the worker; None while it is stopped.
        fault: The error that stopped the worker, or None.
        is_running: Whether the worker has started, and its shutdown has not begun.
    """

    def __init__(self, events: EventBus, worker_id: str, build: Callable[[], Awaitable[Runtime]]) -> None:
        self._events = events
        events.subscribe(self._break_down, ServiceFaulted)
        self.worker_id = worker_id
        self._build = build
        # Held during a start, and while a shutdown begins, so that concurrent calls wait for one another.
        self._starting = asyncio.Lock()
        # The task of the shutdown that is in progress; None if there is none.
        self._stopping: asyncio.Task[None] | None = None
        # Set after a shutdown, until the next start.
        self._stopped = asyncio.Event()
        self.runtime: Runtime | None = None
        self.fault: BaseException | None = None
        self.is_running = False
        self.is_starting = False
        """Whether ``start()`` is in progress. ``is_running`` is True shortly before it is complete."""
        # The worker that stopped last; None before the first shutdown.
        self._stopped_runtime: Runtime | None = None
        # Notices the end of the event loop while the worker runs.
        self._loop_end: AsyncGenerator[None] | None = None

    @property
    def has_left_jobs(self) -> bool:
        """Whether jobs of the worker that stopped last still run."""
        return self._stopped_runtime is not None and self._stopped_runtime.node.in_flight.has_left

    @property
    def is_shutting_down(self) -> bool:
        """Whether a shutdown is in progress."""
        return self._stopping is not None

    async def start(self) -> None:
        """Build and start the parts; a no-op while they run."""
        async with self._starting:
            if self._stopping:
                await asyncio.wait([self._stopping])
            if self.is_running:
                return
            self.fault = None
            self._stopped.clear()
            self.is_starting = True
            try:
                runtime = await self._build()
                self.runtime = runtime
                await runtime.start(partial(self._announce, runtime))
                await self._stop_if_broken(runtime)
                # The generator waits at its yield from here on, until a shutdown or the end of the event loop
                # closes it.
                self._loop_end = self._warn_at_loop_end()
                await anext(self._loop_end)
            except BaseException:
                # After any error, no part runs.
                self.runtime = None
                self._retract()
                raise
            finally:
                self.is_starting = False

    async def shutdown(self) -> None:
        """Stop the parts; a no-op while they do not run."""
        async with self._starting:
            if not self.is_running and self._stopping is None:
                return
            # A second call waits for the shutdown that is in progress.
            stopping = self._stopping or self._begin_shutdown()
        # A job that calls shutdown() does not wait: the shutdown waits for the end of this job.
        if self.runtime is None or not self.runtime.runs_the_caller():
            # If this caller is cancelled, the shutdown continues.
            await asyncio.shield(stopping)

    def hurry(self) -> None:
        """Make a shutdown, in progress or later, cancel the running jobs without waiting for them."""
        if self.runtime is not None:
            self.runtime.executor.hurry()

    async def wait(self) -> None:
        """Wait until every part has stopped; raise the error that stopped the worker, if any.

        Raises:
            NotRunningError: The worker was not started.
        """
        # If a start is in progress, this waits for its end.
        async with self._starting:
            was_started = self.is_running or self._stopping or self._stopped.is_set()
            if not was_started:
                raise NotRunningError(
                    "the Scheduler was not started: call await scheduler.start() before wait()"
                )
        if self.is_running or self._stopping:
            await self._stopped.wait()
        if self.fault is not None:
            raise self.fault

    def _announce(self, runtime: Runtime) -> None:
        """Record and publish that the worker runs, before it claims its first job."""
        self.is_running = True
        self._events.publish(WorkerStarted(self.worker_id, identity=runtime.node.config.identity))

    def _retract(self) -> None:
        """Record and publish that the worker does not run, if its start failed after `_announce()`."""
        if self.is_running:
            self.is_running = False
            self._events.publish(WorkerStopped(self.worker_id))

    def _break_down(self, event: Event) -> None:
        """Keep the first error that ended a part, and shut the worker down."""
        if isinstance(event, ServiceFaulted) and self.fault is None:
            self.fault = event.error
        # A start or a shutdown in progress stops the parts itself.
        if self.is_running and self._stopping is None and not self._starting.locked():
            self._begin_shutdown()

    async def _stop_if_broken(self, runtime: Runtime) -> None:
        """Stop all parts and raise the error if a part broke while later ones were starting."""
        if self.fault is not None:
            await runtime.stop()
            raise self.fault

    async def _warn_at_loop_end(self) -> AsyncGenerator[None]:
        """Warn that the worker was not shut down, if the event loop ends while it runs.

        ``asyncio.run()`` closes all asynchronous generators that are open at its end, and so does a shutdown
        with this one.
        """
        try:
            yield
        finally:
            if self.runtime is not None:
                warn_of_mistake(NOT_SHUT_DOWN, worker_id=self.worker_id)

    def _begin_shutdown(self) -> asyncio.Task[None]:
        """Start the task that stops all parts, and return it."""
        self.is_running = False
        self._stopping = asyncio.create_task(self._shut_down(), name="pg_scheduler shutdown")
        self._stopping.add_done_callback(self._log_failure)
        return self._stopping

    def _log_failure(self, task: asyncio.Task[None]) -> None:
        """Log the error of a shutdown that failed, unless it was reported as the error that ended a part."""
        error = None if task.cancelled() else task.exception()
        # If an error of the same class ended a part, that error has been reported, so this one is not logged.
        if not isinstance(error, SchedulerError) or type(error) is not type(self.fault):
            log_failure(task)

    async def _shut_down(self) -> None:
        """Stop all parts; then record and publish that the worker has stopped, even if that failed."""
        try:
            if self.runtime is not None:
                # A rejected connection ends no part. Without a fault for wait() to raise, the shutdown of a
                # worker that the server rejects would look like a success.
                self.fault = self.fault or self.runtime.rejection
                await self.runtime.stop()
        except asyncio.CancelledError:
            # The end of asyncio.run() cancels all tasks. This one still ran, because nothing waited for it.
            warn_of_mistake(SHUTDOWN_CANCELLED, worker_id=self.worker_id)
            raise
        finally:
            # Jobs that could not be stopped may still run with these parts.
            self._stopped_runtime = self.runtime
            self.runtime = None
            self._stopping = None
            if self._loop_end is not None:
                await self._loop_end.aclose()
            self._stopped.set()
            self._events.publish(WorkerStopped(self.worker_id))
            self._events.end_streams()
