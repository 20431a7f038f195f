"""Schedulers whose tables another tool owns: migrations="verify"."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from pg_scheduler import Scheduler, SchemaMissingError
from pg_scheduler.migrate import migrate
from pg_scheduler.sync import SyncScheduler
from tests.migrations.dump import describe

REMEDY = (
    "; with migrations='verify' nothing is changed; create or upgrade them with the tool that owns them, or "
    "execute pg-scheduler migrate"
)

Prepare = Callable[[str], Awaitable[None]]


async def start(dsn: str) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=1) as pool,
        Scheduler(pool, migrations="verify") as scheduler,
    ):
        assert scheduler.is_running


async def initialize_db(dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1) as pool:
        await Scheduler(pool, migrations="verify").initialize_db()


async def connect(dsn: str) -> None:
    async with Scheduler.connect(dsn, migrations="verify") as scheduler:
        assert scheduler.is_running


async def start_blocking(dsn: str) -> None:
    def run() -> None:
        with SyncScheduler(dsn, migrations="verify") as scheduler:
            scheduler.start()
            assert scheduler.is_running

    await asyncio.to_thread(run)


async def initialize_db_blocking(dsn: str) -> None:
    def run() -> None:
        with SyncScheduler(dsn, migrations="verify") as scheduler:
            scheduler.initialize_db()

    await asyncio.to_thread(run)


@pytest.mark.parametrize("prepare", [start, initialize_db, connect, start_blocking, initialize_db_blocking])
async def test_scheduler_that_verifies_changes_no_schema(empty_dsn: str, prepare: Prepare) -> None:
    owner = await asyncpg.connect(empty_dsn)

    async def is_refused(problem: str) -> None:
        before = await describe(owner, "public")
        with pytest.raises(SchemaMissingError, match=f"^{re.escape(problem + REMEDY)}$"):
            await prepare(empty_dsn)
        assert await describe(owner, "public") == before

    await is_refused("schema 'public' has no tables of pg_scheduler")
    await migrate(owner)
    await prepare(empty_dsn)
    await owner.execute("DROP TABLE scheduler_tasks")
    await is_refused("tables of pg_scheduler are missing in schema 'public': scheduler_tasks")
    await migrate(owner)
    await owner.execute("DELETE FROM scheduler_migrations")
    missing = "0001, 0002, 0003, 0004, 0005, 0006"
    await is_refused(f"the tables of pg_scheduler in schema 'public' lack the migrations {missing}")
    await owner.close()
