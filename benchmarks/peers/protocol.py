"""What every driver does in the same way, so that only the scheduler differs. Standard library alone.

A driver is a process of its own. It is given one order as JSON, prints ``{"event": "ready"}``, waits for a
line on stdin, and ends with ``{"event": "result", ...}``. A worker says ``{"event": "started"}`` when it
really runs, and stops when it has started ``n`` jobs, when nothing has started for ``quiet`` seconds, or at
the next line on stdin. Instants are `time.time()`: all processes share one machine and its clock.

A job carries a reference instant: when it was sent, or when it is due. The worker's job takes the time that
has passed since; 0 means that nobody asks. What is measured in a worker runs from the start of the first job
to the start of the last one; that every result was written is checked afterwards, in the database.
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
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = ["Order", "Peer", "Recorder", "nap", "payload", "record", "run", "say"]

Mode = Literal["default", "tuned"]
MARKS = 100
"""Points of a worker's curve of progress."""


@dataclass(frozen=True)
class Order:
    """What a driver is asked to do.

    Attributes:
        op: ``install`` the tables, insert ``many`` jobs or ``single`` ones, ``work``, or ``both`` (work, and
            send single jobs from the same process).
        n: Jobs to insert, or to wait for.
        mode: The scheduler's default settings, or those its users tune it to.
        callers: With ``single``: concurrent callers.
        every: With ``single``: mean seconds between two jobs, uniform within half of it; 0 for no pause.
        rate: With ``single``: jobs per second of all callers together, however long each call takes;
            0 for as many as go.
        due: With ``many``: the instant when all of them are due; None for at once.
        lead: With ``single``: seconds ahead for which each job is set; None for at once.
        quiet: Seconds without a job after which a worker stops; 0 for never.
        job: Which function: ``work``, ``nap`` (sleeps) or ``other`` (unknown to workers of the others).
        options: For one driver alone.
    """

    op: Literal["install", "many", "single", "work", "both"]
    dsn: str
    n: int = 0
    mode: Mode = "default"
    callers: int = 1
    every: float = 0.0
    rate: float = 0.0
    due: float | None = None
    lead: float | None = None
    quiet: float = 0.0
    job: Literal["work", "nap", "other"] = "work"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def tuned(self) -> bool:
        """Whether tuned settings are wanted."""
        return self.mode == "tuned"


class Recorder:
    """What a worker's jobs tell: called once as each of them starts."""

    def __init__(self) -> None:
        self.wanted = 0
        self.count = 0
        self.first = self.last = 0.0
        self.cpu_first = self.cpu_last = 0.0
        self.samples: list[float] = []
        self.marks: list[tuple[float, int]] = []
        self.step = 1000
        self.done = asyncio.Event()

    def __call__(self, reference: float) -> None:
        """Note a job that starts now."""
        now = time.time()
        if not self.count:
            self.first, self.cpu_first = now, time.process_time()
        self.count += 1
        self.last = now
        if reference:
            self.samples.append(now - reference)
        if not self.count % self.step:
            self.marks.append((now, self.count))
        if self.count == self.wanted:
            self.cpu_last = time.process_time()
            self.done.set()

    def result(self) -> dict[str, Any]:
        """What is told to the harness."""
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
"""The one of this process."""

_asleep = asyncio.Event()


async def nap() -> None:
    """What a sleeping job does: nothing, until its worker stops."""
    await _asleep.wait()


def payload(reference: float, number: int) -> dict[str, Any]:
    """The arguments of a job: small JSON, the same for all."""
    return {"t": reference, "user": f"user-{number}@example.org"}


def resident() -> int:
    """Resident memory of this process in bytes; 0 where it cannot be told."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class Peer(ABC):
    """A scheduler, in the four things that are measured of it."""

    def __init__(self, order: Order) -> None:
        self.order = order

    @abstractmethod
    async def install(self) -> None:
        """Make the tables in an empty database."""

    @abstractmethod
    def sending(self) -> AbstractAsyncContextManager[None]:
        """Ready to send."""

    @abstractmethod
    async def send(self, arguments: dict[str, Any], due: float | None) -> None:
        """Insert one job, through the call that users are told to use."""

    @abstractmethod
    async def send_many(self, arguments: list[dict[str, Any]], due: float | None) -> None:
        """Insert many jobs, through the call for that."""

    @abstractmethod
    def working(self) -> AbstractAsyncContextManager[None]:
        """A worker runs."""


def say(**words: Any) -> None:
    """Print one line for the harness."""
    print(json.dumps(words), flush=True)


async def _read_line() -> str:
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def _obey(peer: Peer) -> dict[str, Any]:
    order = peer.order
    if order.op == "install":
        await peer.install()
        return {}
    if order.op == "many":
        async with peer.sending():
            jobs = [payload(order.due or 0.0, number) for number in range(order.n)]
            await _go()
            began = time.perf_counter()
            await peer.send_many(jobs, order.due)
            return {"seconds": time.perf_counter() - began}
    if order.op == "single":
        async with peer.sending():
            await _go()
            return await _send_singly(peer)
    await _go()
    record.wanted = order.n
    record.step = max(1, order.n // MARKS) if order.n else 1000
    before = resident()
    sent: dict[str, Any] = {}
    async with peer.working():
        say(event="started", rss=resident())
        if order.op == "both":
            async with peer.sending():
                sent = await _send_singly(peer)
        await _until_done(order.quiet)
        return record.result() | {"rss_before": before} | sent


async def _go() -> None:
    say(event="ready")
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
            due = None if order.lead is None else now + order.lead
            # Without a pause nobody measures a delay: the queue's own length would be most of it.
            reference = due or (now if order.every else 0.0)
            await peer.send(payload(reference, number), due)

    gc.collect()
    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(order.callers)))
    return {"seconds": time.perf_counter() - began}


async def _until_done(quiet: float) -> None:
    told = asyncio.create_task(_read_line())
    done = asyncio.create_task(record.done.wait())
    while not (told.done() or done.done()):
        await asyncio.wait((told, done), timeout=0.1 if quiet else None, return_when="FIRST_COMPLETED")
        if quiet and record.count and time.time() - record.last > quiet:
            break
    done.cancel()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415 - it may be missing
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def run(peer: Callable[[Order], Peer], order: str) -> None:
    """Be the driver; with uvloop where it is installed, as it is in every environment of the benchmarks."""
    logging.disable(logging.WARNING)

    async def whole() -> None:
        result = await _obey(peer(Order(**json.loads(order))))
        say(event="result", **result)

    main: Coroutine[Any, Any, None] = whole()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main)
        sys.stdout.flush()
        # A thread may still wait in readline(), and an interpreter that ends would wait for it.
        os._exit(0)
