"""One node: ``python -m examples.demo.worker``, as many of them as you like on one database.

The address is read from ``PG_SCHEDULER_DSN``. It runs until SIGTERM or Ctrl-C, finishes what it has begun,
and tells every job it runs in a line of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import platform
import signal
import sys
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, ClassVar

import asyncpg

from examples.demo import jobs
from examples.demo.ledger import Ledger
from pg_scheduler import RetryPolicy, Scheduler
from pg_scheduler.events import (
    Event,
    JobCompleted,
    JobFailed,
    JobRetried,
    JobsRescued,
    JobStarted,
)

__all__ = ["READY", "DemoScheduler", "application_name"]

READY = "ready"
SLOTS = 25

logger = logging.getLogger("demo")


class DemoScheduler(Scheduler):
    """A dead node is noticed after 3 seconds here; the default of 60 is right for most services."""

    LEASE_DURATION: ClassVar[float] = 3


def application_name(node: str, pid: int) -> str:
    """What the connections of a node are called in ``pg_stat_activity``."""
    return f"demo {node} {pid}"


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run with uvloop if it is installed, which is faster; it makes no other difference."""
    try:
        import uvloop  # noqa: PLC0415 - it may be missing
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def tell(event: Event) -> None:
    """One line for one event."""
    match event:
        case JobStarted(job_id, name, attempt):
            logger.info("%-14s try %d starts     %s", name, attempt, job_id)
        case JobCompleted(job_id, name, attempt):
            logger.info("%-14s try %d completed  %s", name, attempt, job_id)
        case JobRetried(job_id, name, attempt, error=error, delay=delay):
            logger.info("%-14s try %d failed     %s: %s; again in %s", name, attempt, job_id, error, delay)
        case JobFailed(job_id, name, attempt, error=error):
            logger.info("%-14s failed for good  %s: %s", name, job_id, error)
        case JobsRescued(job_ids, dead):
            logger.info("took over %d jobs of dead workers %s", len(job_ids), ", ".join(dead))


async def work(dsn: str, name: str, *, quiet: bool, until_eof: bool) -> int:
    """Be a node until told to stop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_eof:
        # Readable means closed, since nobody writes there: who started us is dead, and its server with it.
        loop.add_reader(sys.stdin, os._exit, 1)
    # Names in pg_stat_activity help whoever looks at the server.
    settings = {"application_name": application_name(name, os.getpid())}
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=5, server_settings=settings) as pool,
        asyncpg.create_pool(dsn, min_size=1, max_size=4, server_settings=settings) as books,
    ):
        ledger = Ledger(books, name)
        await ledger.create()
        jobs.use_ledger(ledger)
        scheduler = DemoScheduler(
            pool,
            max_concurrent_jobs=SLOTS,
            retry_policy=RetryPolicy(base=timedelta(seconds=0.5), jitter=0.1),
        )
        if not quiet:
            scheduler.subscribe(tell)
        async with scheduler:
            print(READY, scheduler.worker_id, flush=True)
            stopped = asyncio.create_task(stop.wait())
            broken = asyncio.create_task(scheduler.wait())
            await asyncio.wait([stopped, broken], return_when=asyncio.FIRST_COMPLETED)
            if broken.done():
                broken.result()  # raises what made the Scheduler stop by itself
            for task in (stopped, broken):
                task.cancel()
    return 0


def main() -> int:
    """Read the command line and work."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo.worker", description=__doc__)
    parser.add_argument("--name", default=f"{platform.node()}-{os.getpid()}", help="of this node")
    parser.add_argument("--quiet", action="store_true", help="write only problems")
    parser.add_argument("--until-eof", action="store_true", help="die when the standard input is closed")
    options = parser.parse_args()
    dsn = os.environ.get("PG_SCHEDULER_DSN")
    if not dsn:
        print("PG_SCHEDULER_DSN is not set: postgresql://user:password@host/database", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {options.name}  %(message)s",
        datefmt="%H:%M:%S",
    )
    # What happens to jobs is told by `tell` in its own words.
    logging.getLogger("pg_scheduler").setLevel(logging.CRITICAL if options.quiet else logging.ERROR)
    return run(work(dsn, options.name, quiet=options.quiet, until_eof=options.until_eof))


if __name__ == "__main__":
    sys.exit(main())
