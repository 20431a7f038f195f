"""Smoke test of an installed pg_scheduler: ``python -I smoke.py VERSION``.

It runs in an environment that contains the wheel and its dependencies only, and imports nothing else.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import asyncpg

import pg_scheduler
from pg_scheduler import Scheduler, job
from pg_scheduler.embedded import EmbeddedPostgres

received: asyncio.Queue[str] = asyncio.Queue()


@job()
async def greet(name: str) -> None:
    """Pass the argument on."""
    received.put_nowait(name)


async def run_one_job(dsn: str) -> None:
    """Migrate an empty database and run a job."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5) as pool, asyncio.timeout(30):
        async with Scheduler(pool) as scheduler:
            await scheduler.schedule(greet, execution_time=datetime.now(UTC), args=("Ada",))
            assert await received.get() == "Ada"
        rows = await pool.fetch("SELECT status FROM scheduled_jobs")
        assert [row["status"] for row in rows] == ["completed"], rows


def main(expected: str) -> None:
    """Check the installed package."""
    assert Path(pg_scheduler.__file__).is_relative_to(sys.prefix), pg_scheduler.__file__
    assert pg_scheduler.__version__ == version("pg-scheduler") == expected
    assert files(pg_scheduler).joinpath("py.typed").is_file(), "py.typed is missing"
    assert files(pg_scheduler).joinpath("migrations").is_dir(), "the migrations are missing"
    for name in ("alerts", "grafana"):
        assert files(pg_scheduler).joinpath("ops", name).is_dir(), f"{name} are missing"
    with EmbeddedPostgres() as postgres:
        asyncio.run(run_one_job(postgres.dsn()))


if __name__ == "__main__":
    main(sys.argv[1])
