"""The request to stop a worker: by a signal, by recycling or because no job is due."""

from __future__ import annotations

import asyncio
import math
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from pg_scheduler import Scheduler
from pg_scheduler.base.fork import Handler, ignore_signal
from pg_scheduler.base.text.numbers import counted
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.events import JobStarted
from pg_scheduler.events.log import logger, record_fields
from pg_scheduler.inspect import Inspector
from pg_scheduler.tools import claimed_names, has_reclaimed_all, is_idle, scan_for_dead_workers

from .options import WorkerOptions

STOPPING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

IN_CHILDREN: Final[Mapping[int, Handler]] = {
    signal.SIGTERM: signal.SIG_DFL,
    **dict.fromkeys((signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2), ignore_signal),
}
"""How a process that a job forks handles the signals of the worker. ``multiprocessing`` ends its processes by
SIGTERM. The other signals reach the whole process group, for example by Ctrl-C, and are for the worker: it
waits for its running jobs, which need their processes.
"""

SAME_SIGNAL_S: Final = 0.1
"""Seconds after the first signal in which it may come again, and counts once. Programs such as ``timeout``
signal the process and then its process group, so that one request arrives twice, a millisecond apart.
"""

END_TIMEOUT_S: Final = 2.0
"""Seconds from the end of the Scheduler to that of the process, at least, for the application's cleanup."""


class StopRequest:
    """Whether to stop, why, and whether to wait for running jobs.

    Attributes:
        reason: Why; None while nothing requests it.
        is_hurried: Whether a second signal cancels the running jobs.
        must_restart: Whether the program starts again after the stop.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.is_hurried = False
        self.must_restart = False
        self._requested = asyncio.Event()
        self._first_signal: signal.Signals | None = None
        # When the first signal was received, by the monotonic clock.
        self._received_at = -math.inf
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
        """Call the action at the second signal, or now if that has come already."""
        self._on_hurry.append(action)
        if self.is_hurried:
            action()

    def receive(self, number: signal.Signals) -> None:
        """Handle SIGTERM or SIGINT: the first drains, the second cancels the running jobs."""
        now = time.monotonic()
        # Programs such as timeout signal the process and then its process group, so one request may arrive
        # twice within a moment.
        is_same = number is self._first_signal and now < self._received_at + SAME_SIGNAL_S
        if self.reason is None:
            self._first_signal, self._received_at = number, now
            self.request(f"{number.name} received")
        elif not (self.is_hurried or is_same):
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
        stop: Receives SIGTERM and SIGINT. SIGHUP requests the stop too, unless the process ignores it, as
            under ``nohup``. SIGHUP never counts as the second signal: a closed terminal and its shell both
            send it.
        on_usr1: Called in the event loop.
        on_usr2: Called by the interpreter, also while the event loop is blocked. It must not log.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        on_usr2()

    loop = asyncio.get_running_loop()
    for number in STOPPING_SIGNALS:
        loop.add_signal_handler(number, stop.receive, number)
    handled_signals = [*STOPPING_SIGNALS, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        loop.add_signal_handler(signal.SIGHUP, stop.request, "SIGHUP received")
        handled_signals.append(signal.SIGHUP)
    loop.add_signal_handler(signal.SIGUSR1, on_usr1)
    # A handler of the event loop would not be called while a job blocks the loop.
    previous_handler = signal.signal(signal.SIGUSR2, interrupt)
    # A system call that SIGUSR2 interrupts is continued.
    signal.siginterrupt(signal.SIGUSR2, False)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, previous_handler)
        for number in handled_signals:
            with suppress(RuntimeError):  # the event loop is closing
                loop.remove_signal_handler(number)


def hold_usr1() -> None:
    """Hold back SIGUSR1, which would end the process, until ``note_usr1()`` in this program or the next one.

    New processes, and a program that replaces this one, inherit this state. Call it in the main thread.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])


def release_usr1() -> None:
    """Receive SIGUSR1, also one that was held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])


@contextmanager
def note_usr1() -> Iterator[threading.Event]:
    """Note whether SIGUSR1 comes within a ``with`` block, as long as no other handler is set.

    Without a handler, the signal would end the process. The event that the block gets is set once it has
    come.
    """
    usr1_came = threading.Event()
    # Python sets handlers of signals in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield usr1_came
        return
    previous_handler = signal.signal(signal.SIGUSR1, lambda _number, _frame: usr1_came.set())
    # A signal that was held back comes now.
    release_usr1()
    try:
        yield usr1_came
    finally:
        signal.signal(signal.SIGUSR1, previous_handler)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C within a ``with`` block, for a command that runs a job.

    Programs that stop this one, such as ``timeout``, send SIGTERM. It would end the process at once, and the
    job would stay running until another worker reclaims it.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    # Python sets handlers of signals in the main thread only.
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_received = False

    def cancel() -> None:
        nonlocal is_received
        is_received = True
        # A second SIGTERM ends the process at once.
        loop.remove_signal_handler(signal.SIGTERM)
        task.cancel()

    # A shell starts a program in the background with SIGINT ignored, so SIGINT is not raised instead.
    loop.add_signal_handler(signal.SIGTERM, cancel)
    try:
        yield
    except asyncio.CancelledError:
        if is_received:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def end_soon(end: Callable[[], object], *, left_s: float = 0) -> None:
    """Call a function that ends this process after a time, unless the process ends by itself before.

    Otherwise the event loop could wait for tasks that ignore their cancellation, and the interpreter for
    threads.

    Args:
        end: The function.
        left_s: Seconds until the call; ``END_TIMEOUT_S`` at least.
    """
    timer = threading.Timer(max(left_s, END_TIMEOUT_S), end)
    # The interpreter does not wait for a daemon thread, so the process can end before.
    timer.daemon = True
    timer.start()


def stop_self() -> None:
    """Send SIGTERM to this process, from any thread."""
    os.kill(os.getpid(), signal.SIGTERM)


INTERVAL_S: Final = 1.0
"""Seconds between two checks whether the worker has reached a limit of its process, or has drained."""

SCAN_INTERVAL_S: Final = 0.2
"""Seconds between two checks of a drained worker whether the scan for dead workers has ended."""

JITTER: Final = 0.1
"""Part of ``--max-age`` by which it varies, so that workers that began together do not end together."""

_STATM: Final = Path("/proc/self/statm")


async def wait_for_recycling(scheduler: Scheduler, options: WorkerOptions) -> str:
    """Wait until the process has reached its limit of jobs, of memory or of age, and return which one.

    Without any of these limits, the function waits until its task is cancelled.
    """
    started_jobs = 0
    # Workers that began together do not end together.
    spread = 1 + random.uniform(-JITTER, JITTER)  # noqa: S311 - jitter, no secret
    max_age_s = options.max_age_s
    ends_at = math.inf if max_age_s is None else time.monotonic() + max_age_s * spread
    max_jobs_reached = asyncio.Event()

    def count(_event: object) -> None:
        nonlocal started_jobs
        started_jobs += 1
        if options.max_jobs is not None and started_jobs >= options.max_jobs:
            max_jobs_reached.set()

    unsubscribe = scheduler.subscribe(count, JobStarted) if options.max_jobs is not None else None
    try:
        while True:
            # The limit of jobs wakes this wait. Those of memory and age are compared once per interval.
            # Without any limit, there is nothing to compare.
            interval_s = INTERVAL_S if options.recycles else None
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await max_jobs_reached.wait()
            if max_jobs_reached.is_set():
                verb = "has" if started_jobs == 1 else "have"
                return f"{counted(started_jobs, 'job')} {verb} started"
            if options.max_rss is not None:
                used_mb = memory_mb()
                if used_mb >= options.max_rss:
                    return f"{used_mb:,.0f} MB of memory in use"
            if max_age_s is not None and time.monotonic() >= ends_at:
                return f"{max_age_s:g} s since the start"
    finally:
        if unsubscribe is not None:
            unsubscribe()


async def wait_until_drained(scheduler: Scheduler) -> str:
    """Wait until the worker has nothing left to do, and return that as the reason to end.

    This is so if no job runs, and no job is due that the worker claims. Jobs that a limit or other jobs
    block, and jobs of paused tasks, do not count. Jobs of a killed process become due when they are
    reclaimed. So when no job is left, a scan for dead workers is requested. The worker is drained if this
    scan leaves no worker suspect, and still no job is due after it.
    """
    inspector = Inspector(scheduler)
    started_jobs = 0
    # When the scan was requested, by the monotonic clock. It is infinite while no scan is requested, so that
    # no earlier scan counts as the requested one.
    scan_requested_at = math.inf

    def count(_event: object) -> None:
        nonlocal started_jobs
        started_jobs += 1

    unsubscribe = scheduler.subscribe(count, JobStarted)
    try:
        while True:
            started_before = started_jobs
            # This is read before the backlog, so the backlog contains the jobs that the scan has reclaimed.
            has_reclaimed = has_reclaimed_all(scheduler, scan_requested_at)
            is_drained = False
            # While the database is unavailable, the worker counts as not drained.
            with suppress(DatabaseUnavailableError):
                # The backlog is read after it is known that no job runs: the end of a job makes others due,
                # which the backlog then shows.
                was_idle = await is_idle(scheduler)
                backlog = await inspector.backlog()
                names = claimed_names(scheduler)
                is_due = any(task.due for task in backlog.names if task.name in names)
                # A job may have begun, and even ended, while the backlog was read.
                is_drained = was_idle and not is_due and started_jobs == started_before
                # A job may also have ended during this round, and have made others due.
                if is_drained and has_reclaimed and await is_idle(scheduler):
                    return "no job is due"
            if not is_drained:
                # Once the worker is idle again, a new scan is needed: jobs may have run since the last one.
                scan_requested_at = math.inf
            elif scan_requested_at == math.inf:
                scan_requested_at = scan_for_dead_workers(scheduler)
            await asyncio.sleep(SCAN_INTERVAL_S if is_drained else INTERVAL_S)
    finally:
        unsubscribe()


def memory_mb() -> float:
    """Return the resident memory of this process in megabytes; its maximum where only that is known."""
    try:
        # The second number is that of the resident pages.
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):  # the file exists on Linux only
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # macOS states the maximum in bytes, other systems in kilobytes.
        return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
    return pages * resource.getpagesize() / 1e6
