"""Jobs under an advisory lock while the server rejects the connections that would hold the locks."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from pg_scheduler import Scheduler, job
from pg_scheduler.events import JobCompleted, JobReleased
from tests.api.conftest import Make
from tests.support.inside import worker_of
from tests.support.statements import Statements
from tests.support.worker import PATIENCE, Recorder, now

pytestmark = pytest.mark.slow

KEY = 4711
PERIOD_S = 2.0
MAX_RELEASES = 6
"""Pauses of 0.05 s, then of at least 0.1, 0.2, 0.4 and 0.8 s, do not fit more often into the period."""

runs: list[str] = []


@job(name="locked")
async def locked() -> None:
    runs.append("locked")


@job(name="plain")
async def plain() -> None:
    runs.append("plain")


class Door:
    """A role that may log in, or not."""

    def __init__(self, pool: asyncpg.Pool, dsn: str) -> None:
        self.role = f"worker_{uuid.uuid4().hex}"
        self.dsn = dsn.replace("postgres@", f"{self.role}@")
        assert urlsplit(self.dsn) != urlsplit(dsn)
        self.pool = pool

    async def open(self) -> None:
        await self.pool.execute(f"ALTER ROLE {self.role} LOGIN")

    async def shut(self) -> None:
        await self.pool.execute(f"ALTER ROLE {self.role} NOLOGIN")


@pytest.fixture
async def door(pool: asyncpg.Pool, dsn: str) -> AsyncIterator[Door]:
    door = Door(pool, dsn)
    await pool.execute(f"CREATE ROLE {door.role} LOGIN SUPERUSER")
    yield door
    await pool.execute(f"DROP OWNED BY {door.role}; DROP ROLE {door.role}")


async def insert(pool: asyncpg.Pool, count: int) -> None:
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, lock_key, options) "
        "SELECT 'locked ' || n, 'locked', now(), $1 + n, '{\"schedule_id\": \"locked\"}' "
        "FROM generate_series(1, $2::integer) AS n",
        KEY,
        count,
    )


def reports(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if "advisory lock" in record.getMessage()
    ]


@pytest.mark.parametrize("count", [1, 5])
async def test_executor_pauses_while_connections_for_advisory_locks_are_rejected(
    make: Make, dsn: str, door: Door, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    runs.clear()
    statements = Statements()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5, init=statements.listen) as own:
        scheduler: Scheduler = make(own, direct_dsn=door.dsn)
        seen = Recorder(scheduler)
        async with scheduler:
            await door.shut()
            await insert(door.pool, count)
            await statements.take()
            worker_of(scheduler).node.signals.due()
            await asyncio.sleep(PERIOD_S)  # the subject is the rate
            sent = await statements.take()
            assert 0 < len(seen.of(JobReleased)) <= MAX_RELEASES * count
            assert sent.named["exchange_jobs"] <= 4 * MAX_RELEASES
            assert sent.named["settle_jobs"] <= 2 * MAX_RELEASES
            assert runs == []

            await scheduler.schedule(plain, execution_time=now(), job_id="plain")
            await seen.until(JobCompleted, job_id="plain")
            await door.open()
            for n in range(1, count + 1):
                await seen.until(JobCompleted, job_id=f"locked {n}")
    assert sorted(runs) == ["locked"] * count + ["plain"]
    (first, *more) = reports(caplog)
    assert first[0] == "ERROR"
    assert first[1].startswith("no connection for the advisory lock of a job, retry in ")
    assert "ConnectionRejectedError: the server rejected a connection (28000, " in first[1]
    assert not more


async def test_pause_for_an_advisory_lock_ends_at_shutdown(
    make: Make, pool: asyncpg.Pool, door: Door
) -> None:
    scheduler = make(direct_dsn=door.dsn, shutdown_timeout=0.05)
    seen = Recorder(scheduler)
    await scheduler.start()
    await door.shut()
    await insert(pool, 1)
    worker_of(scheduler).node.signals.due()
    await seen.until(JobReleased, 4)
    await asyncio.wait_for(scheduler.shutdown(), PATIENCE)
    assert await pool.fetchval("SELECT status FROM scheduled_jobs") == "pending"
    await door.open()
