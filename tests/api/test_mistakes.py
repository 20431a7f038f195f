"""Mistakes of the first hour end in an error that names the remedy, and store nothing."""

from __future__ import annotations

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, JobSpec
from tests.api.conftest import Make
from tests.support.worker import now


async def work(*args: object, **kwargs: object) -> None: ...


async def count_rows(pool: asyncpg.Pool) -> int:
    count: int = await pool.fetchval("SELECT count(*) FROM scheduled_jobs")
    return count


# -- connection= outside a transaction -----------------------------------------------------------------


@pytest.mark.parametrize("mode", ConflictResolution)
async def test_schedule_rejects_a_connection_outside_a_transaction(
    make: Make, pool: asyncpg.Pool, dsn: str, mode: ConflictResolution
) -> None:
    scheduler = make()
    own = await asyncpg.connect(dsn)
    async with pool.acquire() as pooled:
        for connection in (own, pooled):
            with pytest.raises(ValueError, match=r"async with connection\.transaction\(\)"):
                await scheduler.schedule(
                    work, execution_time=now(), connection=connection, conflict_resolution=mode
                )
            with pytest.raises(ValueError, match="not in a transaction"):
                await scheduler.schedule_bulk(
                    [JobSpec(work, now())], connection=connection, conflict_resolution=mode
                )
    await own.close()
    assert await count_rows(pool) == 0
