"""The request to stop a worker: by a signal, by recycling or because no job is due."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from pg_scheduler.events.log import logger, record_fields

STOPPING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

END_TIMEOUT_S: Final = 2.0
"""Seconds from the end of the Scheduler to that of the process, at least, for the application's cleanup."""


class StopRequest:
    """Whether to stop, why, and whether to wait for running jobs.

    Attributes:
        reason: Why; None while nothing requests it.
        is_hurried: Whether a second signal cancels the running jobs.
        must_restart: Whether the program starts again then.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.is_hurried = False
        self.must_restart = False
        self._requested = asyncio.Event()
        self._on_hurry: list[Callable[[], None]] = []

    def request(self, reason: str) -> None:
        """Request the stop, and log the reason of the first request."""
        if self.reason is None:
            self.reason = reason
            logger.info("%s: stopping after the running jobs", reason, extra=record_fields())
            self._requested.set()

    def is_requested(self) -> bool:
        """Return whether the stop was requested."""
        return self._requested.is_set()

    def on_hurry(self, action: Callable[[], None]) -> None:
        """Call this at the second signal, or now if it has come."""
        self._on_hurry.append(action)
        if self.is_hurried:
            action()

    def receive(self, number: signal.Signals) -> None:
        """Handle SIGTERM or SIGINT: the first drains, the second cancels the running jobs."""
        if self.reason is None:
            self.request(f"{number.name} received")
        elif not self.is_hurried:
            self.is_hurried = True
            logger.warning(
                "%s received again: the running jobs are cancelled", number.name, extra=record_fields()
            )
            for action in self._on_hurry:
                action()

    async def wait(self) -> str:
        """Wait for the first request, and return its reason."""
        await self._requested.wait()
        return self.reason or ""


@contextmanager
def handle_signals(
    stop: StopRequest, *, on_usr1: Callable[[], None], on_usr2: Callable[[], None]
) -> Iterator[None]:
    """Handle signals within a ``with`` block.

    Args:
        stop: Receives SIGTERM and SIGINT.
        on_usr1: Called in the event loop.
        on_usr2: Called by the interpreter, also while the event loop is blocked. It must not log.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        on_usr2()

    loop = asyncio.get_running_loop()
    for number in STOPPING_SIGNALS:
        loop.add_signal_handler(number, stop.receive, number)
    loop.add_signal_handler(signal.SIGUSR1, on_usr1)
    before = signal.signal(signal.SIGUSR2, interrupt)
    signal.siginterrupt(signal.SIGUSR2, False)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, before)
        for number in (*STOPPING_SIGNALS, signal.SIGUSR1):
            with suppress(RuntimeError):  # the event loop is closing
                loop.remove_signal_handler(number)


def end_soon(end: Callable[[], object], *, left_s: float = 0) -> None:
    """Call a function that ends this process, unless it ends by itself until then.

    The event loop waits for tasks that ignore their cancellation, and the interpreter for threads.

    Args:
        end: The function.
        left_s: Seconds until then; ``END_TIMEOUT_S`` at least.
    """
    timer = threading.Timer(max(left_s, END_TIMEOUT_S), end)
    timer.daemon = True
    timer.start()


def stop_self() -> None:
    """Send SIGTERM to this process, from any thread."""
    os.kill(os.getpid(), signal.SIGTERM)
