"""One attempt as executors and middleware see it, and the base class of executors."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pg_scheduler.base.foreign import class_name, is_a, is_ctrl_c
from pg_scheduler.base.fork import end_child, inheritance
from pg_scheduler.base.lazy import check_done
from pg_scheduler.base.public import public
from pg_scheduler.events.log import log_in_thread, record_fields
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.context import CurrentJob, current_job
from pg_scheduler.jobs.metadata import metadata_of
from pg_scheduler.jobs.model import JobFunction
from pg_scheduler.jobs.retry import Abort, RunAgain
from pg_scheduler.jobs.rows import Claim


def _ignore(_stack: str) -> None:
    """Report nothing, where a call has no ``report_abandoned=``."""


class RaisedError(Exception):
    """Wraps the exception of a function, which could itself end or cancel the task of the caller."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class CrashedError(Exception):
    """The process that ran the attempt died."""


class _Flag(NamedTuple):
    """Whether an attempt that has ended was cancelled, as an object that its `CurrentJob` can read."""

    is_cancelled: bool


@public
class JobCall:
    """One attempt, as executors and middleware see it: a function with its arguments.

    Attributes:
        func: The function.
        args: The positional arguments.
        kwargs: The keyword arguments. Middleware may add some; those of a job in a process must be JSON.
        is_typed: Whether pydantic has made the arguments from JSON.
        stop_grace: Seconds that the attempt gets to end after it was cancelled.
        trace: Headers of this attempt, which middleware may set, such as ``traceparent``. They are stored
            with its error: the next attempt finds them in ``Job.errors``.
    """

    __slots__ = (
        "_is_running",
        "_job",
        "_on_cancel",
        "_report",
        "_stored_kwargs",
        "args",
        "cancelled_by",
        "claim",
        "codec",
        "func",
        "has_completed",
        "is_cancelled",
        "is_typed",
        "kwargs",
        "stop_grace",
        "thread",
        "trace",
        "was_cancelled",
    )

    def __init__(
        self,
        claim: Claim,
        func: JobFunction,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        job: CurrentJob | None = None,
        codec: PayloadCodec | None = None,
        is_typed: bool = False,
        stop_grace: float = 10.0,
        report_abandoned: Callable[[str], None] = _ignore,
    ) -> None:
        self.claim = claim
        self.codec = codec
        self.func = func
        self.args = args
        self.kwargs = self._stored_kwargs = kwargs
        self._job = job
        self.is_typed = is_typed
        self.stop_grace = stop_grace
        self.is_cancelled = False
        """Whether the attempt should end; set once, in the event loop."""
        self.was_cancelled = False
        """Whether it was cancelled before its function returned, which decides its outcome."""
        self.has_completed = False
        """Whether its job has completed in a transaction of its code, which decides its outcome."""
        self._report = report_abandoned
        self._on_cancel: Callable[[], None] | None = None
        self._is_running: Callable[[], bool] | None = None
        self.thread: threading.Thread | None = None
        """The thread that calls the function; None if there is none, or if the executor does not set it."""
        self.trace: Mapping[str, str] | None = None
        self.cancelled_by: str | None = None
        """Why the attempt was cancelled: ``timeout``, ``deadline`` (of its job), ``cancelled``, ``lost`` (its
        lease), ``shutdown``, ``middleware``, or ``suspended`` (a later attempt continues the job). None if it
        was not cancelled."""

    @property
    def job(self) -> CurrentJob:
        """The value that ``current_job()`` returns in the job."""
        if self._job is None:
            self._job = current_job()
        return self._job

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the task, the schedule and the job; empty if there is none."""
        return metadata_of(self.claim.task_data)

    @property
    def added_kwargs(self) -> dict[str, Any]:
        """The keyword arguments that middleware added or replaced."""
        stored = self._stored_kwargs
        return {
            name: value
            for name, value in self.kwargs.items()
            if name not in stored or stored[name] is not value
        }

    def on_cancel(
        self, callback: Callable[[], None], *, is_running: Callable[[], bool] | None = None
    ) -> None:
        """Call back in the event loop when the attempt is cancelled, instead of cancelling ``run()``.

        Args:
            callback: Called once. If it raises an exception, that is logged, and ``run()`` is cancelled
                unless ``is_running`` is true.
            is_running: For code that cannot be stopped: whether it still runs. Any thread may call it. While
                it is true, the job is given to no other worker, even after a shutdown. If it raises an
                exception, that is logged, and the code counts as ended.
        """
        self._on_cancel, self._is_running = callback, is_running

    def detach(self) -> None:
        """Forget the callbacks of ``on_cancel()``: ``run()`` has ended, while middleware may still run."""
        self._on_cancel = self._is_running = None

    def _end(self) -> None:
        """Forget the attempt, which has ended.

        The attempt refers to this call. If the call kept referring to the attempt, the two would form a
        cycle, which stays in memory until the garbage collector finds it.
        """
        self.detach()
        self._report = _ignore
        # The job reads its cancellation from this call, so it gets a copy of the value instead.
        if self._job is not None:
            self._job = replace(self._job, _attempt=None, _cancellation=_Flag(self.is_cancelled))

    def report_abandoned(self, stack: str) -> None:
        """Publish the event ``ThreadAbandoned``: the code runs on after ``stop_grace``.

        Args:
            stack: Where the code of the thread is, as a text.
        """
        self._report(stack)

    def cancel(self, reason: str = "cancelled") -> bool:
        """Set ``is_cancelled`` and call the callback of ``on_cancel()``, if there is one.

        Return whether that suffices; if not, the caller has to cancel ``run()`` of the executor. It does not
        suffice if there is no callback, or if the callback has raised an exception. But while code of the
        attempt runs that cannot be stopped, ``run()`` is left alone in any case.
        """
        is_first_call = not self.is_cancelled
        self.is_cancelled = True
        # The first reason counts.
        self.cancelled_by = self.cancelled_by or reason
        if self._on_cancel is None:
            return self.is_unstoppable
        try:
            # The callback is called once, however often the attempt is cancelled.
            if is_first_call:
                self._on_cancel()
        except BaseException as error:  # user code
            if is_ctrl_c(error):
                raise
            self._on_cancel = None
            self._log("the callback of on_cancel() raised an exception, so run() is cancelled", error)
            return self.is_unstoppable
        return True

    @property
    def is_unstoppable(self) -> bool:
        """Whether the code of the attempt still runs and cannot be stopped; callable from any thread."""
        is_running = self._is_running
        if is_running is None:
            return False
        try:
            return bool(is_running())
        except BaseException as error:  # noqa: BLE001 - user code
            # It is not called again, so that the error is logged once.
            self._is_running = None
            self._log("is_running= of on_cancel() raised an exception, so the code counts as ended", error)
            return False

    def _log(self, problem: str, error: BaseException) -> None:
        """Log a mistake of the executor of this attempt, from any thread."""
        claim = self.claim
        fields = record_fields(job_id=claim.job_id, job_name=claim.job_name, attempt=claim.attempt)
        text = "job %s (id %s, attempt %s): %s"
        values = (claim.job_name, claim.job_id, claim.attempt, problem)
        log_in_thread(logging.ERROR, text, *values, extra=fields, error=error)


@public
class JobExecutor(ABC):
    """The base class of executors, which run the jobs of functions that name them.

    ``start()`` is called before the first job, and ``stop()`` at shutdown, when no ``run()`` is active. If
    ``start()`` raises an exception, the job that needed the executor fails.

    Example:
        >>> from pg_scheduler import JobCall, JobExecutor
        >>> class LoggingExecutor(JobExecutor):
        ...     async def run(self, call: JobCall) -> object:
        ...         print(call.job.job_id, call.args)
        ...         return await call.func(*call.args, **call.kwargs)
    """

    capacity: int | None = None
    """Jobs that it runs at once in each Scheduler; None for as many as there are slots."""

    async def start(self) -> None:  # noqa: B027 - optional
        """Prepare for the first job."""

    @abstractmethod
    async def run(self, call: JobCall) -> Any:
        """Run one attempt; return what the function returned, or raise its exception.

        At a timeout, a cancellation and a shutdown this coroutine is cancelled, unless it has called
        ``call.on_cancel()``.
        """

    async def stop(self, grace: float) -> None:  # noqa: B027 - optional
        """End what ``start()`` began, within ``grace`` seconds."""


def invoke(func: JobFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a function in a thread without an event loop; run a coroutine function in a loop of its own.

    A process that the function forks ends where it leaves the function, and does not take further jobs.
    """
    generation = inheritance.generation
    try:
        if inspect.iscoroutinefunction(func):
            with asyncio.Runner() as runner:
                inheritance.leave_in_children(runner.get_loop())
                value = runner.run(func(*args, **kwargs))
        else:
            value = func(*args, **kwargs)
    except BaseException as error:
        if inheritance.generation != generation:
            end_child(error)
        raise
    if inheritance.generation != generation:
        end_child()
    return value


def check_returned(value: object) -> None:
    """Raise TypeError if what the function of a job returned shows that the job has not done its work."""
    if is_a(value, RunAgain) or is_a(value, Abort):
        raise TypeError(f"the function returned {class_name(value)}, which has no effect; raise it")
    check_done(
        value,
        "the function",
        "await it in the function; in a decorator of an async function, write an async wrapper",
    )
