"""The common part of all drivers, so that only the scheduler differs. It needs only the standard library.

A driver is a separate process. It receives one order as JSON, prints ``{"event": "ready"}``, waits for a line
on stdin, and ends with ``{"event": "result", ...}``. A worker prints ``{"event": "started"}`` once it runs.
It stops when it has started ``n`` jobs, when no job has started for ``quiet`` seconds, or at the next line on
stdin. A job with durable steps counts when it has ended. Instants are `time.time()`, because all processes
share one machine and its clock.

A job has a reference instant: when it was enqueued, or when it is due. The worker records the time since
then, except for 0. A worker is measured from the start of the first job to the start of the last one. The
harness checks afterwards in the database that every result was written.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Mode = Literal["default", "tuned"]
SHORT_S = 0.001
"""The duration of the job ``short``."""
MARKS = 100
"""The points of a worker's progress curve."""


@dataclass(frozen=True)
class Order:
    """The task of a driver.

    Attributes:
        op: ``install`` the tables, insert ``many`` jobs or ``single`` ones, also through the ``blocking``
            call, ``work``, ``both`` (work, and insert single jobs from the same process), ``results``
            (work, and wait for the result of each job in the same process), or send ``signals``, one to each
            job.
        n: The number of jobs to insert or to run.
        mode: The scheduler's default settings, or tuned ones.
        callers: With ``single``, ``blocking`` and ``results``: the number of callers, tasks or threads.
        every: With ``single`` and ``signals``: the mean pause between two calls in seconds, varied by half; 0
            for none.
        rate: With ``single``: jobs per second of all callers together, independent of the duration of the
            calls; 0 for no limit.
        due: With ``many``: the instant when all jobs are due; None for immediately.
        lead: With ``single``: the seconds until each job is due; None for immediately.
        quiet: The seconds without a started job after which a worker stops; 0 for never.
        job: The function: ``work``, ``short`` (waits for a millisecond), ``nap`` (sleeps) or ``other`` (not
            registered by workers); of libraries with durable steps also ``steps`` (as many as its argument
            says), ``wait`` (for a signal), ``sleep`` (an hour in a step) and ``write`` (a row, in the
            transaction of a step or of the completion). A worker reports ``suspended`` once n jobs wait or
            sleep.
        options: Options of one driver; for all, ``{"loop": "asyncio"}`` for the event loop of that module,
            ``{"spread": 4.0}`` for a ``lead`` that is longer by up to so many seconds, and ``{"arguments":
            {"steps": 20}}`` for further arguments of jobs inserted in bulk. Some have ``{"slots": 16}``, the
            jobs that a worker runs at once.
    """

    op: Literal["install", "many", "single", "blocking", "work", "both", "results", "signals"]
    dsn: str
    n: int = 0
    mode: Mode = "default"
    callers: int = 1
    every: float = 0.0
    rate: float = 0.0
    due: float | None = None
    lead: float | None = None
    quiet: float = 0.0
    job: Literal["work", "short", "nap", "other", "steps", "wait", "sleep", "write"] = "work"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def tuned(self) -> bool:
        """Whether to use tuned settings."""
        return self.mode == "tuned"


class Recorder:
    """Records the starts of a worker's jobs; each job calls it."""

    def __init__(self) -> None:
        self.wanted = 0
        self.count = 0
        self.suspended = 0
        self.first = self.last = 0.0
        self.cpu_first = self.cpu_last = 0.0
        self.samples: list[float] = []
        self.marks: list[tuple[float, int]] = []
        self.step = 1000
        self.done = asyncio.Event()

    def __call__(self, reference: float) -> None:
        """Record the start of a job."""
        self.begin()
        now = time.time()
        self.count += 1
        self.last = now
        if reference:
            self.samples.append(now - reference)
        if not self.count % self.step:
            self.marks.append((now, self.count))
        if self.count == self.wanted:
            self.cpu_last = time.process_time()
            self.done.set()

    def begin(self) -> None:
        """Record the start of the first job."""
        if not self.first:
            self.first, self.cpu_first = time.time(), time.process_time()

    def suspend(self) -> None:
        """Record that a job is about to wait or to sleep."""
        self.suspended += 1
        if self.suspended == self.wanted:
            send_event(event="suspended")

    def result(self) -> dict[str, Any]:
        """Return the result for the harness."""
        return {
            "count": self.count,
            "first": self.first,
            "last": self.last,
            "cpu": (self.cpu_last or time.process_time()) - self.cpu_first,
            "samples": self.samples,
            "marks": self.marks,
            "rss": resident(),
        }


record = Recorder()
"""The recorder of this process."""

_asleep = asyncio.Event()


async def nap() -> None:
    """Sleep until the worker stops."""
    await _asleep.wait()


def payload(reference: float, number: int) -> dict[str, Any]:
    """Return the arguments of a job, a small JSON object."""
    return {"t": reference, "user": f"user-{number}@example.org"}


def resident() -> int:
    """Return the resident memory of this process in bytes; 0 if it is unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class Peer(ABC):
    """A scheduler with the operations that are measured."""

    def __init__(self, order: Order) -> None:
        self.order = order

    @abstractmethod
    async def install(self) -> None:
        """Create the tables in an empty database."""

    @abstractmethod
    def sending(self) -> AbstractAsyncContextManager[None]:
        """Open the connections for inserting."""

    @abstractmethod
    async def send(self, arguments: dict[str, Any], due: float | None) -> None:
        """Insert one job through the documented call."""

    @abstractmethod
    async def send_many(self, arguments: list[dict[str, Any]], due: float | None) -> None:
        """Insert many jobs through the documented bulk call."""

    def blocking(self) -> AbstractContextManager[Callable[[dict[str, Any]], object]]:
        """Open the connections of the call for code without asyncio, and return the call for one job."""
        raise NotImplementedError

    async def result_of(self, arguments: dict[str, Any]) -> object:
        """Insert one job, wait for its end and return its result."""
        raise NotImplementedError

    async def signal(self, number: int, value: float) -> None:
        """Send a value to the job of this number, which waits for it."""
        raise NotImplementedError

    @abstractmethod
    def working(self) -> AbstractAsyncContextManager[None]:
        """Run a worker."""


def send_event(**fields: Any) -> None:
    """Print one line for the harness."""
    print(json.dumps(fields), flush=True)


async def _read_line() -> str:
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def _execute(peer: Peer) -> dict[str, Any]:
    order = peer.order
    if order.op == "install":
        await peer.install()
        return {}
    if order.op == "many":
        async with peer.sending():
            more = order.options.get("arguments", {})
            jobs = [payload(order.due or 0.0, number) | more for number in range(order.n)]
            await _wait_for_start()
            began = time.perf_counter()
            await peer.send_many(jobs, order.due)
            return {"seconds": time.perf_counter() - began}
    if order.op in {"single", "signals"}:
        async with peer.sending():
            await _wait_for_start()
            return await (_send_singly(peer) if order.op == "single" else _send_signals(peer))
    if order.op == "blocking":
        await _wait_for_start()
        return await asyncio.to_thread(_send_blocking, peer)
    await _wait_for_start()
    record.wanted = order.n
    record.step = max(1, order.n // MARKS) if order.n else 1000
    before = resident()
    sent: dict[str, Any] = {}
    async with peer.working():
        send_event(event="started", rss=resident())
        if order.op == "results":
            async with peer.sending():
                return await _wait_for_results(peer)
        if order.op == "both":
            async with peer.sending():
                sent = await _send_singly(peer)
        await _until_done(order.quiet)
        return record.result() | {"rss_before": before} | sent


async def _wait_for_start() -> None:
    send_event(event="ready")
    await _read_line()


async def _send_singly(peer: Peer) -> dict[str, Any]:
    order = peer.order
    numbers = iter(range(order.n))

    async def caller() -> None:
        for number in numbers:
            if order.rate:
                await asyncio.sleep(began + number / order.rate - time.perf_counter())
            elif order.every:
                await asyncio.sleep(order.every * random.uniform(0.5, 1.5))
            now = time.time()
            spread = random.uniform(0, order.options.get("spread", 0.0))
            due = None if order.lead is None else now + order.lead + spread
            # Without pauses the delay is not measured: it would mostly be the length of the queue.
            reference = due or (now if order.every or order.rate else 0.0)
            await peer.send(payload(reference, number), due)

    gc.collect()
    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(order.callers)))
    return {"seconds": time.perf_counter() - began}


async def _send_signals(peer: Peer) -> dict[str, Any]:
    for number in range(peer.order.n):
        await asyncio.sleep(peer.order.every * random.uniform(0.5, 1.5))
        await peer.signal(number, time.time())
    return {}


async def _wait_for_results(peer: Peer) -> dict[str, Any]:
    numbers = iter(range(peer.order.n))
    delays: list[float] = []

    async def waiter() -> None:
        for number in numbers:
            sent = time.perf_counter()
            await peer.result_of(payload(0.0, number))
            delays.append(time.perf_counter() - sent)

    gc.collect()
    began = time.perf_counter()
    await asyncio.gather(*(waiter() for _ in range(peer.order.callers)))
    return {"seconds": time.perf_counter() - began, "delays": delays}


def _send_blocking(peer: Peer) -> dict[str, Any]:
    numbers = iter(range(peer.order.n))

    def caller() -> None:
        for number in numbers:
            send(payload(0.0, number))

    with peer.blocking() as send, ThreadPoolExecutor(peer.order.callers) as threads:
        send(payload(0.0, 0))  # opens the first connection
        gc.collect()
        began = time.perf_counter()
        for ended in [threads.submit(caller) for _ in range(peer.order.callers)]:
            ended.result()
        return {"seconds": time.perf_counter() - began}


async def _until_done(quiet: float) -> None:
    stopped = asyncio.create_task(_read_line())
    done = asyncio.create_task(record.done.wait())
    while not (stopped.done() or done.done()):
        await asyncio.wait((stopped, done), timeout=0.1 if quiet else None, return_when="FIRST_COMPLETED")
        if quiet and record.count and time.time() - record.last > quiet:
            break
    done.cancel()


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if name == "asyncio":
        return asyncio.new_event_loop
    try:
        import uvloop  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run(peer: Callable[[Order], Peer], order: str) -> None:
    """Run the driver, with uvloop if it is installed and not declined, as in every environment."""
    logging.disable(logging.WARNING)

    given = Order(**json.loads(order))

    async def whole() -> None:
        result = await _execute(peer(given))
        send_event(event="result", **result)

    main: Coroutine[Any, Any, None] = whole()
    with asyncio.Runner(loop_factory=_loop_factory(given.options.get("loop", "uvloop"))) as runner:
        runner.run(main)
        sys.stdout.flush()
        # A thread may still wait in readline(), and the exit of the interpreter would wait for it.
        os._exit(0)
