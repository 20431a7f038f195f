"""A web process without its pages: ``python -m tools.alerts.web PORT CONNECTIONS``.

It runs a Scheduler with the jobs of the application, and serves the metrics of that Scheduler.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import asyncpg

from pg_scheduler import Scheduler
from pg_scheduler.telemetry.prometheus import serve_metrics
from tools.alerts.application import SLOTS


async def main(port: int, connections: int) -> None:
    """Run until SIGTERM."""
    dsn = os.environ["PG_SCHEDULER_DSN"]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncpg.create_pool(dsn, min_size=1, max_size=connections) as pool:
        scheduler = Scheduler(pool, max_concurrent_jobs=SLOTS)
        with serve_metrics(scheduler, port=port):
            async with scheduler:
                await stop.wait()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
