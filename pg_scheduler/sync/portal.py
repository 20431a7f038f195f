"""Run coroutines in the event loop of another thread, and wait for their results."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, Generic, TypeVar, overload

from pg_scheduler.base.blocking import Crossing
from pg_scheduler.base.main_task import run_main_task
from pg_scheduler.events.log import logger, record_fields, report_exit

new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
# uvloop is imported now, because it cannot be imported once the main thread has ended.
with suppress(ImportError):
    import uvloop

    # uvloop passes calls to the thread faster than the event loop of asyncio.
    new_event_loop = uvloop.new_event_loop


T = TypeVar("T")
R = TypeVar("R")

CHECK_INTERVAL_S: Final = 1.0
"""Seconds after which a waiting caller checks again whether the thread is alive."""

CLOSED: Final = "the SyncScheduler was closed; call it before close(), or create another one"


class Portal(Generic[R]):
    """A daemon thread with an event loop, in which a resource such as a Scheduler is opened and used.

    Other threads call functions in it by ``call()``. The constructor returns when the resource is open.

    Attributes:
        resource: The resource.
    """

    resource: R
    _loop: asyncio.AbstractEventLoop
    _closing: asyncio.Event

    def __init__(self, open_resource: Callable[[], AbstractAsyncContextManager[R]]) -> None:
        self._pid = os.getpid()
        self._open_resource = open_resource
        self._opened: Future[None] = Future()
        """Done when the resource is open, with the error if opening it failed."""
        self._fault: BaseException | None = None
        """The error of closing the resource, which ``close()`` raises."""
        self._thread = threading.Thread(target=self._run, name="pg_scheduler portal", daemon=True)
        self._thread.start()
        # This waits until the resource is open, and raises the error of opening it.
        self._opened.result()

    @property
    def is_inherited(self) -> bool:
        """Whether this is a copy in a forked child, which has no thread."""
        # uWSGI forks without the hooks of Python, so the id of the process is compared.
        return self._pid != os.getpid()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return not self.is_inherited and self._thread.is_alive()

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs in the thread of the portal."""
        return threading.current_thread() is self._thread

    @overload
    def call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T: ...
    @overload
    def call(self, function: Callable[[], T]) -> T: ...
    def call(self, function: Callable[[], Any]) -> Any:
        """Call the function in the thread, and block until it has returned or its coroutine has ended.

        An exception that interrupts the caller, such as KeyboardInterrupt, cancels the coroutine.

        Raises:
            RuntimeError: The portal was closed.
            BaseException: The error of the function.
        """
        crossing = self.submit(function)
        try:
            while not crossing.wait(CHECK_INTERVAL_S):
                # The loop may have ended before it began the call. A call that ended before it has a result.
                if not self._thread.is_alive() and not crossing.wait(0):
                    raise RuntimeError(CLOSED)
            return crossing.result()
        except CancelledError:
            # Closing the portal cancels the calls in progress.
            if self._closing.is_set():
                raise RuntimeError(CLOSED) from None
            raise
        finally:
            # This has no effect on a call that has ended.
            crossing.cancel()
            # The traceback of an error of the call refers to this frame. If the frame kept the call, there
            # would be a cycle of references.
            del crossing

    def submit(self, function: Callable[[], Any]) -> Crossing:
        """Call the function in the thread, with the context variables of the caller, and do not wait.

        Raises:
            RuntimeError: The portal was closed.
        """
        try:
            return Crossing(self._loop, function)
        except RuntimeError:  # the loop is closed
            raise RuntimeError(CLOSED) from None

    def close(self, timeout: float) -> bool:
        """Close the resource, cancel the calls in progress and end the thread.

        Args:
            timeout: Seconds to wait for the end of the thread.

        Returns:
            Whether the thread has ended.

        Raises:
            BaseException: The error of closing the resource.
        """
        if self.is_alive:
            with suppress(RuntimeError):  # the loop ended meanwhile
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(timeout)
        if self._fault is not None:
            raise self._fault
        return not self._thread.is_alive()

    def _run(self) -> None:
        """Run the event loop until the portal is closed. This is the function of the thread."""
        try:
            run_main_task(self._serve(), report_exit, loop_factory=new_event_loop)
        except BaseException as error:
            # The constructor or ``close()`` raises it in a thread that waits; otherwise it is logged.
            if not self._opened.done():
                self._opened.set_exception(error)
            elif self._closing.is_set():
                self._fault = error
            else:
                logger.exception("the thread of a SyncScheduler ended", extra=record_fields())

    async def _serve(self) -> None:
        """Open the resource, and close it when ``close()`` is called."""
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        async with self._open_resource() as self.resource:
            self._opened.set_result(None)
            await self._closing.wait()
