"""One worker process: a Scheduler, its ledger, and the commands of the nemesis.

It reads a command per line from its standard input (``block 3``: block the event loop for three seconds;
``hold 3``: hold every connection of the pool for three seconds) and shuts down gracefully when the input is
closed.
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

from pg_scheduler import ProcessExecutor, RetryPolicy, Scheduler, VacuumConfig, VacuumPolicy, events
from pg_scheduler.errors import DatabaseUnavailableError
from tools.chaos import durable_jobs, jobs, workflow_jobs
from tools.chaos.broken import BROKEN_CONNECTION
from tools.chaos.ledger import Ledger
from tools.chaos.stalls import StallRecorder
from tools.chaos.unhandled import report_unhandled_errors

CONNECTIONS: Final = 6
PR_SET_PDEATHSIG: Final = 1

RETENTION: Final = VacuumConfig(
    completed=VacuumPolicy.after_days(15 / 1440),
    failed=VacuumPolicy.never(),
    cancelled=VacuumPolicy.never(),
    expired=VacuumPolicy.never(),
    interval_minutes=2,
)
"""Completed jobs are deleted after a quarter of an hour, when no call refers to them any more, even if the
server's clock was set forward by two minutes.
"""

RECORDED: Final = (
    events.JobCompleted,
    events.JobFailed,
    events.JobRetried,
    events.JobReleased,
    events.JobSuspended,
    events.JobCancelled,
    events.JobExpired,
    events.JobLost,
    events.LeaseLost,
    events.JobsReclaimed,
    events.PeriodicJobPlanned,
    events.LoopBlocked,
    events.ServiceRetrying,
)
"""The events to record; job events with id and attempt only."""


class EventRecorder:
    """Records events in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __call__(self, event: events.Event) -> None:
        """Record an event."""
        if isinstance(event, events.JobEvent):
            self._ledger.write(type(event).__name__, event.job_id, event.attempt)
        elif isinstance(event, events.PassFinished):
            if event.service == "heartbeat":  # the lease is trusted from the start of the request
                self._ledger.write("heartbeat", time.monotonic() - event.seconds)
        elif isinstance(event, events.PeriodicJobPlanned):
            self._ledger.write(type(event).__name__, event.job_id)
        else:
            self._ledger.write(type(event).__name__, *(getattr(event, each.name) for each in fields(event)))


async def execute_commands(pool: asyncpg.Pool) -> None:
    """Execute the commands from the standard input until it is closed."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    holders = set()
    while words := (await reader.readline()).decode().split():
        seconds = float(words[1])
        if words[0] == "block":
            select.select([], [], [], seconds)  # time.sleep() fails under libfaketime 0.9.10
        else:
            holders.add(asyncio.create_task(hold_connections(pool, seconds)))


async def hold_connections(pool: asyncpg.Pool, seconds: float) -> None:
    """Hold the available connections, as jobs that use the same pool do."""
    with suppress(*BROKEN_CONNECTION):  # a broken connection cannot be released; the pool has discarded it
        async with AsyncExitStack() as stack:
            for _ in range(CONNECTIONS):
                with suppress(*BROKEN_CONNECTION):
                    await stack.enter_async_context(pool.acquire(timeout=seconds / 2))
            await asyncio.sleep(seconds)


async def work(options: argparse.Namespace) -> None:
    """Run a worker until it is stopped."""

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
            vacuum_config=RETENTION,
            codec=jobs.codec(encrypts=options.seat.endswith("1")),
            shutdown_timeout=5,
            retry_policy=RetryPolicy(base=timedelta(seconds=0.2), jitter=0.1),
            executors={"process": ProcessExecutor(processes=1, jobs_per_process=20)},
        )
        ledger = Ledger(options.folder, options.seat, scheduler.worker_id)
        jobs.use(ledger)
        durable_jobs.use_pool(pool)
        StallRecorder.start(ledger, options.seat)
        report_unhandled_errors(lambda error: ledger.write("Unhandled", error))
        for function in (*jobs.FUNCTIONS, *durable_jobs.FUNCTIONS, *workflow_jobs.FUNCTIONS):
            scheduler.register(function)
        recorder = EventRecorder(ledger)
        scheduler.subscribe(recorder, *RECORDED, events.PassFinished)
        while True:
            try:
                await scheduler.start()
                break
            except DatabaseUnavailableError:  # a fault may be in progress at the start
                await asyncio.sleep(0.2)
        commands = asyncio.create_task(execute_commands(pool))
        broken = asyncio.create_task(scheduler.wait())
        await asyncio.wait([commands, broken], return_when=asyncio.FIRST_COMPLETED)
        if broken.done():
            broken.result()
        with suppress(DatabaseUnavailableError):  # the server may have been stopped
            await scheduler.shutdown()
        await broken


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("folder", type=Path)
    parser.add_argument("seat")
    parser.add_argument("lease", type=float)
    options = parser.parse_args()
    if sys.platform == "linux":  # it must not outlive its parent, even while it is stopped
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    asyncio.run(work(options))


if __name__ == "__main__":
    main()
