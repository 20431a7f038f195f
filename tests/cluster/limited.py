"""A worker process for the tests of limits. Its job checks the limit by means of its own.

The job takes one of as many advisory locks as attempts may run, in a session of its own. A killed process
frees its locks with its sessions. A job that finds none free has found one attempt too many, and says so in a
table.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from datetime import timedelta

import asyncpg

from pg_scheduler import Limit, Scheduler
from tests.support.store import Connection

OBSERVED = 77
"""The first key of the observer's advisory locks."""
TRIES = 5
"""Two jobs may exchange the free lock while a third one looks for it."""


def build(pool: asyncpg.Pool, observer: asyncpg.Pool, arguments: argparse.Namespace) -> Scheduler:
    """Return a Scheduler with the observed job."""
    scheduler = Scheduler(
        pool,
        max_concurrent_jobs=arguments.slots,
        lease=timedelta(seconds=arguments.lease),
        misfire_grace_time=None,
    )

    async def observed(seconds: float, blocks: float = 0.0, cleanup: float = 0.0) -> None:
        async with observer.acquire() as session:
            token = await find_free(session, arguments.most)
            if token is None:
                await session.execute("INSERT INTO excess DEFAULT VALUES")
            try:
                await asyncio.sleep(seconds * random.uniform(0.5, 1.5))
                time.sleep(blocks)  # noqa: ASYNC251 - it blocks the event loop on purpose
            except asyncio.CancelledError:
                await asyncio.sleep(cleanup)
                raise
            finally:
                if token is not None:
                    await session.execute("SELECT pg_advisory_unlock($1, $2)", OBSERVED, token)

    limits = [Limit(max_running=arguments.most)] if arguments.most else []
    scheduler.register(observed, name="observed", limits=limits)
    return scheduler


async def find_free(session: Connection, most: int) -> int | None:
    """Take a free lock, and return its number."""
    for _ in range(TRIES):
        for token in random.sample(range(most), most):
            if await session.fetchval("SELECT pg_try_advisory_lock($1, $2)", OBSERVED, token):
                return token
    return None


async def main() -> None:
    """Run the worker until the standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("--most", type=int)
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--lease", type=float, default=2.0)
    arguments = parser.parse_args()
    async with (
        asyncpg.create_pool(arguments.dsn, min_size=1, max_size=6) as pool,
        asyncpg.create_pool(arguments.dsn, min_size=1, max_size=arguments.slots) as observer,
        build(pool, observer, arguments),
    ):
        sys.stdout.write("started\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
