"""One worker process: a Scheduler, its ledger, and an ear for what the nemesis wants of it.

It takes a word per line on its standard input (``block 3``: block the event loop for three seconds;
``hog 3``: take every connection of the pool for so long) and ends in peace when that is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import logging
import select
import signal
import sys
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Final

import asyncpg

from pg_scheduler import RetryPolicy, Scheduler, events
from pg_scheduler.errors import DatabaseUnavailableError
from tools.chaos import jobs
from tools.chaos.ledger import Ledger
from tools.chaos.unhandled import listen

__all__: list[str] = []

CONNECTIONS: Final = 6
PR_SET_PDEATHSIG: Final = 1

TOLD: Final = (
    events.JobCompleted,
    events.JobFailed,
    events.JobRetried,
    events.JobReleased,
    events.JobCancelled,
    events.JobExpired,
    events.JobLost,
    events.LeaseLost,
    events.JobsReclaimed,
    events.PeriodicJobPlanned,
    events.LoopBlocked,
    events.ServiceRetrying,
)
"""The events that go into the ledger; jobs' ones with id and attempt alone."""


class Clerk:
    """Writes events down."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __call__(self, event: events.Event) -> None:
        """Take an event."""
        if isinstance(event, events.JobEvent):
            self._ledger.say(type(event).__name__, event.job_id, event.attempt)
        elif isinstance(event, events.PassFinished):
            if (
                event.service == "heartbeat"
            ):  # how long the lease is trusted counts from when it was asked for
                self._ledger.say("beat", time.monotonic() - event.seconds)
        else:
            self._ledger.say(type(event).__name__, *(getattr(event, each.name) for each in fields(event)))


async def obey(pool: asyncpg.Pool) -> None:
    """Do what comes on the standard input until its end."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    hogs = set()
    while words := (await reader.readline()).decode().split():
        seconds = float(words[1])
        if words[0] == "block":
            select.select([], [], [], seconds)  # time.sleep() fails under libfaketime 0.9.10
        else:
            hogs.add(asyncio.create_task(hog(pool, seconds)))


async def hog(pool: asyncpg.Pool, seconds: float) -> None:
    """Take what connections there are, as jobs that use the same pool would."""
    broken = (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
    with suppress(*broken):  # what broke meanwhile cannot be given back; the pool has written it off
        async with AsyncExitStack() as stack:
            for _ in range(CONNECTIONS):
                with suppress(*broken):
                    await stack.enter_async_context(pool.acquire(timeout=seconds / 2))
            await asyncio.sleep(seconds)


async def work(options: argparse.Namespace) -> None:
    """Be a worker until told to stop."""

    class Node(Scheduler):
        LEASE_DURATION = options.lease

    pool = asyncpg.create_pool(options.dsn, min_size=0, max_size=CONNECTIONS, timeout=10)
    async with pool:
        scheduler = Node(
            pool,
            max_concurrent_jobs=200,
            batch_claim_limit=50,
            misfire_grace_time=None,
            max_crashes=None,
            vacuum_enabled=False,
            shutdown_timeout=5,
            retry_policy=RetryPolicy(base=timedelta(seconds=0.2), jitter=0.1),
        )
        ledger = Ledger(options.folder, options.seat, scheduler.worker_id)
        jobs.use(ledger)
        listen(lambda error: ledger.say("Unhandled", error))
        for function in (jobs.quick, jobs.slow, jobs.flaky, jobs.broken):
            scheduler.register(function)
        clerk = Clerk(ledger)
        scheduler.subscribe(clerk, *TOLD, events.PassFinished)
        while True:
            try:
                await scheduler.start()
                break
            except DatabaseUnavailableError:  # it may be born in the middle of a fault
                await asyncio.sleep(0.2)
        ear = asyncio.create_task(obey(pool))
        broken = asyncio.create_task(scheduler.wait())
        await asyncio.wait([ear, broken], return_when=asyncio.FIRST_COMPLETED)
        if broken.done():
            broken.result()
        with suppress(DatabaseUnavailableError):  # the server may be away for good by now
            await scheduler.shutdown()
        await broken


def main() -> None:
    """Read the command line and work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("folder", type=Path)
    parser.add_argument("seat")
    parser.add_argument("lease", type=float)
    options = parser.parse_args()
    if sys.platform == "linux":  # also while it is stopped, it must not outlive who started it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    asyncio.run(work(options))


if __name__ == "__main__":
    main()
