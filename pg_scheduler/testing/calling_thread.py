"""Run a coroutine in another thread, while the thread of a test executes its statements and functions.

A plain test has no event loop, and Django rejects blocking calls in a thread where one runs. So the loop runs
in another thread, and passes back the calls that belong to the connection of the test.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, NoReturn, TypeVar, cast

from pg_scheduler.base.foreign import call_in_daemon, is_ctrl_c
from pg_scheduler.database.callers.adapter import ConnectionAdapter, Texts
from pg_scheduler.errors import NotRunningError
from pg_scheduler.jobs.call import JobCall
from pg_scheduler.jobs.context import current
from pg_scheduler.worker.in_flight import Attempt, Durability
from pg_scheduler.worker.runners.thread import ThreadExecutor, Work

T = TypeVar("T")

NESTED: Final = "a job cannot run jobs, because it would wait for itself; call this in the test"


class CallingThread:
    """A thread that waits for a coroutine in another thread, and executes the calls that are passed back."""

    def __init__(self) -> None:
        # What the waiting thread has to call; None after the end of the coroutine.
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # The event loop that runs the coroutine; None while there is none.
        self._loop: asyncio.AbstractEventLoop | None = None
        # The attempts that the waiting thread has to run or runs. A task without a reference may be deleted.
        self._executing: set[asyncio.Future[None]] = set()
        self.thread = threading.current_thread()

    def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with the context variables of the caller, and return its result.

        Raises:
            RuntimeError: The caller is part of such a coroutine.
        """
        if self._loop is not None:
            raise RuntimeError(NESTED)
        self.thread = threading.current_thread()
        try:
            return self._run(partial(self._begin, main))
        finally:
            self._loop = None

    def check_caller(self) -> None:
        """Raise RuntimeError if the thread of the caller cannot execute statements."""

    def post(self, call: Callable[[], T]) -> Awaitable[T]:
        """Let the waiting thread call a function. The coroutine awaits the result."""
        result: Future[T] = Future()

        def execute() -> None:
            """Call the function in the waiting thread, and pass its value or its error to the coroutine."""
            try:
                value = call()
            except BaseException as error:
                result.set_exception(error)
                # It also ends run(), which the waiting thread has called.
                if is_ctrl_c(error):
                    raise
            else:
                result.set_result(value)

        self._calls.put(execute)
        return asyncio.wrap_future(result)

    def execute(self, work: Work) -> None:
        """Let the waiting thread run an attempt. The coroutine calls this method."""

        def call() -> None:
            """Run the attempt in the waiting thread. A Ctrl-C in its code also ends ``run()``."""
            returned = work.execute()
            work.end(returned)
            _, error = returned
            if error is not None and is_ctrl_c(error):
                raise error

        work.thread = self.thread
        executing = asyncio.ensure_future(self.post(call))
        self._executing.add(executing)
        executing.add_done_callback(self._executing.discard)

    def adapt(self, adapter: ConnectionAdapter) -> ConnectionAdapter:
        """Return an adapter that executes the statements of the coroutine in the waiting thread."""

        def run(statement: str, texts: Sequence[str]) -> Texts | Awaitable[Texts]:
            """Execute a statement with its arguments in the waiting thread, which has the connection."""
            call: Callable[[], Any] = partial(adapter.run, statement, texts)
            # A caller outside of the event loop is in the waiting thread itself.
            returned: Texts | Awaitable[Texts] = self.post(call) if self.is_caller_in_loop else call()
            return returned

        return ConnectionAdapter(run, is_async=False)

    @property
    def is_caller_in_loop(self) -> bool:
        """Whether the event loop of the coroutine runs in the thread of the caller."""
        with suppress(RuntimeError):  # no event loop runs in the thread of the caller
            return self._loop is asyncio.get_running_loop()
        return False

    async def _begin(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Note the event loop that runs the coroutine, and return the result of the coroutine."""
        self._loop = asyncio.get_running_loop()
        return await main()

    def _run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine in a new thread, and execute the calls from the queue until it has ended."""
        context = copy_context()
        # Has the task of the coroutine as soon as that has begun.
        begun_task: Future[asyncio.Task[Any] | None] = Future()

        async def begin() -> T:
            """Note the task that runs the coroutine, and return the result of the coroutine."""
            begun_task.set_result(asyncio.current_task())
            return await main()

        returned = call_in_daemon(lambda: context.run(asyncio.run, begin()), "pg_scheduler test kit")
        # None in the queue ends the loop below.
        returned.add_done_callback(lambda _: self._calls.put(None))
        interruption: BaseException | None = None
        while True:
            try:
                call = self._calls.get()
                if call is None:
                    break
                call()
            except BaseException as error:  # noqa: BLE001 - Ctrl-C; the coroutine has to end before this call
                interruption = error
                # This waits until the coroutine has begun.
                main_task = begun_task.result()
                if main_task is not None and self._loop is not None:
                    self._loop.call_soon_threadsafe(main_task.cancel)
        if interruption is not None:
            raise interruption
        value, fault = returned.result()
        if fault is not None:
            raise fault
        return cast("T", value)


def _reject(attempt: Attempt, *_: object) -> NoReturn:
    """Reject durable steps, streams, and a completion in a transaction."""
    raise NotRunningError(
        f"job {attempt.claim.job_id!r} runs in the thread of its test kit, which executes the statements, so "
        "it has no durable steps and no streams, and cannot complete in a transaction; use a TestScheduler"
    )


class CallingThreadExecutor(ThreadExecutor):
    """Runs plain functions in the thread that waits for the coroutine of the worker."""

    def __init__(self, thread: CallingThread) -> None:
        super().__init__()
        self._thread = thread

    def invoke(self, call: JobCall) -> Any:
        """Call the function of an attempt, without durable steps: they would wait for this thread."""
        running = current.get(None)
        # The function of a chunk has no current job.
        if running is None:
            return super().invoke(call)
        attempt = Attempt(running.claim)
        attempt.durability = Durability(_reject, _reject, _reject)
        current.set(replace(running, attempt=attempt))
        return super().invoke(call)

    def _hand_over(self, work: Work) -> None:
        """Let the waiting thread run an attempt, instead of a thread of a pool."""
        self._thread.execute(work)
