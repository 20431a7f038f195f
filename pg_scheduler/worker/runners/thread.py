"""Run plain functions in daemon threads.

A thread cannot be stopped. When its attempt is cancelled, a flag is set and the thread runs on until it
returns. The threads are not those of ``concurrent.futures``, for which the exit of the interpreter waits.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, Final

from pg_scheduler.base.foreign import Returned
from pg_scheduler.base.public import public
from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.call import JobCall, JobExecutor, RaisedError, invoke

IDLE_S: Final = 60.0
"""Seconds after which an idle thread ends."""

_numbers: Final = itertools.count(1)


@public
class ThreadExecutor(JobExecutor):
    """Runs plain functions in threads of its own, which start with their first job.

    Args:
        threads: Jobs that run at once in each Scheduler.

    Raises:
        ConfigurationError: ``threads`` is not a positive int.

    Example:
        >>> from pg_scheduler import ThreadExecutor
        >>> executors = {"thread": ThreadExecutor(threads=8)}  # for Scheduler(pool, executors=executors)
    """

    def __init__(self, threads: int = 32) -> None:
        self.capacity = check_capacity("threads", threads)
        self._idle: list[_Thread] = []

    async def run(self, call: JobCall) -> Any:
        """Run one attempt in a thread, and return the value of its function.

        If the coroutine is cancelled, as at the end of the event loop, the thread runs on.

        Raises:
            RaisedError: The function raised an exception, which this one has.
        """
        work = Work(call, self.invoke)
        call.on_cancel(work.cancel, is_running=work.is_running)
        self._hand_over(work)
        value, error = await work.returned
        if error is not None:
            raise RaisedError(error)
        return value

    def invoke(self, call: JobCall) -> Any:
        """Call the function of an attempt, in its thread; a subclass may surround it."""
        return invoke(call.func, call.args, call.kwargs)

    def leave(self) -> None:
        """Release what belongs to a thread, in the thread, when it ends; for subclasses."""

    async def stop(self, grace: float) -> None:  # noqa: ARG002 - nothing to wait for
        """End the idle threads. The others are daemons, which end with the process at the latest."""
        while self._idle:
            self._idle.pop().end()

    def _hand_over(self, work: Work) -> None:
        """Let an idle thread or a new one execute an attempt."""
        thread = None
        while self._idle and thread is None:
            thread = self._idle.pop()
            # In a fork of the process, the threads of the original do not run.
            if not thread.is_alive():
                thread = None
        if thread is None:
            thread = _Thread(self._idle, self.leave)
            thread.start()
        work.thread = thread
        thread.queue.put(work)


def check_capacity(name: str, value: object) -> int:
    """Return the number of jobs that an executor runs at once."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{name} must be an int of 1 or more, not {value!r}")
    return value


class Work:
    """One attempt in a thread."""

    thread: threading.Thread | None = None

    def __init__(self, call: JobCall, invoke: Callable[[JobCall], Any]) -> None:
        self._call = call
        self._invoke = invoke
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False
        self.returned: asyncio.Future[Returned[Any]] = self._loop.create_future()

    def is_running(self) -> bool:
        """Return whether the function has not returned."""
        return not self._has_ended

    def cancel(self) -> None:
        """Report the thread as abandoned if it runs on for ``stop_grace`` seconds after the cancellation.

        The thread itself cannot be stopped. The function can see that it is cancelled, and return.
        """
        self._timer = self._loop.call_later(self._call.stop_grace, self._abandon)

    def execute(self) -> Returned[Any]:
        """Call the function, in the thread; return its value or its exception, the other one as None."""
        call = self._call
        call.thread = threading.current_thread()
        returned: Returned[Any]
        try:
            returned = self._context.run(self._invoke, call), None
        except BaseException as error:  # noqa: BLE001 - user code; sys.exit() and the like end the job only
            returned = None, error
        # Only a cancellation before the end of the function decides the outcome.
        call.was_cancelled = call.is_cancelled
        self._has_ended = True
        return returned

    def end(self, returned: Returned[Any]) -> None:
        """Pass the result to the event loop, unless that is closed; in the thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end, returned)

    def _end(self, returned: Returned[Any]) -> None:
        """Give the result to the coroutine that waits for it, unless that was cancelled."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.returned.done():
            self.returned.set_result(returned)

    def _abandon(self) -> None:
        """Report the thread as abandoned, with its stack, if the function still runs."""
        if self.is_running() and self.thread is not None and self.thread.ident is not None:
            frame = sys._current_frames().get(self.thread.ident)
            stack = "".join(traceback.format_stack(frame)) if frame else ""
            self._call.report_abandoned(stack)


class _Thread(threading.Thread):
    """Executes one attempt after the other."""

    def __init__(self, idle: list[_Thread], leave: Callable[[], None]) -> None:
        super().__init__(name=f"pg_scheduler job {next(_numbers)}", daemon=True)
        self._idle = idle
        self._leave = leave
        self.queue: SimpleQueue[Work | None] = SimpleQueue()

    def run(self) -> None:
        """Execute attempts until ``end()`` is called, or until none has come for a while."""
        try:
            self._execute()
        finally:
            self._leave()

    def _execute(self) -> None:
        """Execute work until None comes, or until the thread has been idle for some seconds."""
        while True:
            try:
                work = self.queue.get(timeout=IDLE_S)
            except Empty:
                # If the thread is not among the idle ones any more, work for it is about to come.
                with suppress(ValueError):
                    self._idle.remove(self)
                    return
                continue
            if work is None:
                return
            returned = work.execute()
            # The end of an attempt may start the next one, which looks for an idle thread. So this thread
            # counts as idle first.
            self._idle.append(self)
            work.end(returned)
            # An idle thread must not keep the arguments and the result of its last attempt alive.
            del work, returned

    def end(self) -> None:
        """End the thread, which is idle."""
        self.queue.put(None)
