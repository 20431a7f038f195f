"""Run one worker process: ``python -m pg_scheduler.cli.demo.worker``.

Any number of them can share one database, whose address is read from ``PG_SCHEDULER_DSN``. The worker logs
one line per job event, and shuts down gracefully on SIGTERM and Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import platform
import signal
import sys
from collections.abc import Coroutine, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any

import asyncpg

from pg_scheduler import RetryPolicy, Scheduler
from pg_scheduler.events import (
    Event,
    JobCompleted,
    JobFailed,
    JobRetried,
    JobsReclaimed,
    JobStarted,
)

from . import jobs
from .ledger import Ledger

READY = "ready"
SLOTS = 25
SHOP_SETTINGS = {"max_crashes": 1, "shutdown_timeout": 1.0}

logger = logging.getLogger("demo")


def application_name(node: str, pid: int) -> str:
    """Return the application name of a node's connections in ``pg_stat_activity``."""
    return f"demo {node} {pid}"


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run with uvloop if it is installed, else with asyncio's own event loop."""
    try:
        import uvloop  # noqa: PLC0415 - uvloop may be missing
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def log_event(event: Event) -> None:
    """Log a job event as one line."""
    match event:
        case JobStarted(job_id, name, attempt):
            logger.info("%-14s attempt %d started    %s", name, attempt, job_id)
        case JobCompleted(job_id, name, attempt):
            logger.info("%-14s attempt %d completed  %s", name, attempt, job_id)
        case JobRetried(job_id, name, attempt, error=error, delay=delay):
            logger.info(
                "%-14s attempt %d failed     %s: %s; retry in %s", name, attempt, job_id, error, delay
            )
        case JobFailed(job_id, name, attempt, error=error):
            logger.info("%-14s attempt %d failed     %s: %s; no retries left", name, attempt, job_id, error)
        case JobsReclaimed(job_ids, dead):
            logger.info("reclaimed %d jobs of dead workers %s", len(job_ids), ", ".join(dead))


async def run_worker(
    dsn: str, name: str, *, quiet: bool, until_eof: bool, settings: Mapping[str, Any]
) -> int:
    """Run a Scheduler until a signal arrives or the standard input is closed."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_eof:
        # Nothing is written there, so readable means closed: the parent process has ended.
        loop.add_reader(sys.stdin, os._exit, 1)
    connection = {"application_name": application_name(name, os.getpid())}
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=5, server_settings=connection) as pool,
        asyncpg.create_pool(dsn, min_size=1, max_size=4, server_settings=connection) as ledger_pool,
    ):
        ledger = Ledger(ledger_pool, name)
        await ledger.create()
        jobs.use_ledger(ledger)
        scheduler = Scheduler(
            pool,
            max_concurrent_jobs=SLOTS,
            retry_policy=RetryPolicy(base=timedelta(seconds=0.5), jitter=0.1),
            identity=name,
            **settings,
        )
        if not quiet:
            scheduler.subscribe(log_event)
        async with scheduler:
            print(READY, scheduler.worker_id, flush=True)
            stopped = asyncio.create_task(stop.wait())
            failed = asyncio.create_task(scheduler.wait())
            await asyncio.wait([stopped, failed], return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()  # raises the error that stopped the Scheduler
            for task in (stopped, failed):
                task.cancel()
    return 0


def main() -> int:
    """Parse the command line and run the worker."""
    parser = argparse.ArgumentParser(prog="python -m pg_scheduler.cli.demo.worker", description=__doc__)
    parser.add_argument("--name", default=f"{platform.node()}-{os.getpid()}", help="name of this node")
    parser.add_argument("--quiet", action="store_true", help="log critical errors only")
    parser.add_argument("--until-eof", action="store_true", help="exit when the standard input is closed")
    parser.add_argument("--shop", action="store_true", help="register the jobs of the shop too")
    parser.add_argument("--only", action="append", default=[], help="claim only jobs of this name")
    parser.add_argument("--skip", action="append", default=[], help="claim no jobs of this name")
    options = parser.parse_args()
    if options.shop:
        import_module("pg_scheduler.cli.demo.shop")
    dsn = os.environ.get("PG_SCHEDULER_DSN")
    if not dsn:
        print(
            "PG_SCHEDULER_DSN is not set; set it to postgresql://user:password@host/database", file=sys.stderr
        )
        return 2
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {options.name}  %(message)s",
        datefmt="%H:%M:%S",
    )
    # log_event replaces the library's own log lines about jobs.
    logging.getLogger("pg_scheduler").setLevel(logging.CRITICAL if options.quiet else logging.ERROR)
    settings = {"only": options.only, "skip": options.skip} | (SHOP_SETTINGS if options.shop else {})
    return run(
        run_worker(dsn, options.name, quiet=options.quiet, until_eof=options.until_eof, settings=settings)
    )


if __name__ == "__main__":
    sys.exit(main())
