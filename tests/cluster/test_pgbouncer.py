"""Behind a real PgBouncer in transaction mode everything works, and nothing is left in sessions of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobSpec, JobStatus, PollingConfig, RetryPolicy, Scheduler, periodic
from pg_scheduler.events import (
    JobCancelled,
    JobCompleted,
    JobFailed,
    JobStarted,
    ListenerConnected,
    ListenerLost,
)
from pg_scheduler.schedules.catalogue import PeriodicCatalogue
from tests.cluster.bouncer import SERVERS, bouncer, program
from tests.support.worker import PATIENCE, Gate, Recorder

POLLING = PollingConfig(idle_start_interval=0.05, max_interval=0.1)
AT_ONCE = RetryPolicy(base=timedelta(milliseconds=1))
OLD, NEW = "bookworm", "trixie"
"""PgBouncer 1.18, which knows nothing of prepared statements, and 1.24."""

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(params=[OLD, NEW])
def suite(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def through(dsn: str, suite: str) -> Iterator[str]:
    """The test's database through a PgBouncer."""
    found = program(suite)
    if found is None:
        pytest.skip(
            f"there is no PgBouncer from {suite}: dev.py test fetches it where apt knows Debian's archive"
        )
    more = "max_prepared_statements = 100" if suite == NEW else ""
    with bouncer(found, dsn, more) as address:
        yield address


@pytest.fixture
async def pooled(through: str) -> AsyncIterator[asyncpg.Pool]:
    """The user's pool, as asyncpg wants it behind PgBouncer."""
    async with asyncpg.create_pool(through, min_size=1, max_size=6, statement_cache_size=0) as pool:
        yield pool


@pytest.fixture(autouse=True)
def schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of other tests'."""
    catalogue = PeriodicCatalogue()
    for module in ("pg_scheduler.scheduler", "pg_scheduler.schedules.decorator"):
        monkeypatch.setattr(f"{module}.periodic_catalogue", catalogue)


def now() -> datetime:
    return datetime.now(UTC)


async def note(*_: Any) -> None: ...


class Flaky:
    def __init__(self) -> None:
        self.calls = 0

    async def job(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("the first try")


async def use_all(scheduler: Scheduler, client: Scheduler) -> None:
    """One-off, bulk, retried, periodic, cancelled and interrupted jobs."""
    seen, gate, flaky = Recorder(scheduler), Gate(), Flaky()
    scheduler.register(gate.job, name="gate")
    scheduler.register(flaky.job, name="flaky")
    scheduler.register(note)
    one = await client.schedule(note, execution_time=now())
    await seen.until(JobCompleted, job_id=one)
    many = await client.schedule_bulk([JobSpec(note, now(), args=(n,)) for n in range(500)])  # by COPY
    assert len(set(many)) == 500
    await seen.until(JobCompleted, 501)
    data: dict[str, Any] = {"args": [], "kwargs": {}}
    again = await scheduler.schedule(flaky.job, execution_time=now(), max_retries=1)
    await seen.until(JobCompleted, job_id=again)
    assert flaky.calls == 2
    held = await client.schedule_job("gate", now(), data)
    await gate.wait_begun()
    assert await client.cancel_job(held)
    async with asyncio.timeout(PATIENCE / 2):  # beats of a worker that hears nothing would else be 20 s apart
        await seen.until(JobCancelled, job_id=held)
    assert gate.cancelled == 1
    await scheduler.trigger_periodic_job("often")
    await seen.until(JobCompleted, job_name="periodic_often")
    held = await client.schedule_job("gate", now(), data)
    await gate.wait_begun()
    await scheduler.shutdown()
    row = await client.get_job(held)
    assert row is not None
    assert row.status is JobStatus.PENDING, "handed back"


async def left_behind(pool: asyncpg.Pool, through: str) -> dict[str, Any]:
    """What the sessions that everybody shares hold, once nobody uses them."""
    own: dict[str, Any] = {}
    visitors = [await asyncpg.connect(through, statement_cache_size=0) for _ in range(SERVERS)]
    transactions = [each.transaction() for each in visitors]
    try:
        for transaction in transactions:
            await transaction.start()
        pids = [await each.fetchval("SELECT pg_backend_pid()") for each in visitors]
        assert len(set(pids)) == SERVERS, "each of them is looked at"
        for visitor in visitors:
            for name in ("enable_seqscan", "enable_bitmapscan", "plan_cache_mode", "lock_timeout"):
                own.setdefault(name, set()).add(await visitor.fetchval(f"SHOW {name}"))
            own.setdefault("channels", set()).update(
                row[0] for row in await visitor.fetch("SELECT pg_listening_channels()")
            )
    finally:
        for transaction in transactions:
            await transaction.rollback()
        for visitor in visitors:
            await visitor.close()
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = ANY ($1)"
    own["locks"] = await pool.fetchval(locks, pids)
    return own


CLEAN = {
    "enable_seqscan": {"on"},
    "enable_bitmapscan": {"on"},
    "plan_cache_mode": {"auto"},
    "lock_timeout": {"0"},
    "channels": set(),
    "locks": 0,
}


def make(pool: asyncpg.Pool, **settings: Any) -> Scheduler:
    return Scheduler(pool, polling_config=POLLING, shutdown_timeout=0.05, retry_policy=AT_ONCE, **settings)


async def test_it_works_without_a_session_of_its_own(
    pooled: asyncpg.Pool, pool: asyncpg.Pool, through: str
) -> None:
    @periodic(every=timedelta(hours=1), dedup_key="often")
    async def often() -> None: ...

    scheduler = make(pooled)
    seen = Recorder(scheduler)
    async with scheduler:
        (lost,) = seen.of(ListenerLost)
        assert "PgBouncer" in lost.reason
        assert await pool.fetchval("SELECT liveness_key FROM scheduler_workers") is None
        assert await left_behind(pool, through) == CLEAN
        await use_all(scheduler, make(pooled))
        assert scheduler._store.connections._steady is None
    assert await left_behind(pool, through) == CLEAN


async def test_a_direct_dsn_brings_everything_back(
    pooled: asyncpg.Pool, pool: asyncpg.Pool, through: str, dsn: str
) -> None:
    @periodic(every=timedelta(hours=1), dedup_key="often", use_advisory_lock=True)
    async def often() -> None:
        locks.append(await pool.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))

    locks: list[int] = []
    scheduler = make(pooled, direct_dsn=dsn)
    seen = Recorder(scheduler)
    async with scheduler:
        assert seen.of(ListenerConnected)
        assert await pool.fetchval("SELECT liveness_key FROM scheduler_workers") is not None
        await use_all(scheduler, make(pooled, direct_dsn=dsn))
        assert locks[0] == 2, "the worker's and the run's"
    assert await left_behind(pool, through) == CLEAN


async def test_an_advisory_lock_is_refused_without_one(
    pooled: asyncpg.Pool, pool: asyncpg.Pool, through: str
) -> None:
    @periodic(every=timedelta(hours=1), dedup_key="often", use_advisory_lock=True)
    async def often() -> None: ...

    scheduler = make(pooled)
    seen = Recorder(scheduler)
    async with scheduler:
        await scheduler.trigger_periodic_job("often")
        (failed,) = await seen.until(JobFailed, job_name="periodic_often")
        assert "direct_dsn" in failed.error
        assert not seen.of(JobStarted)
    assert await left_behind(pool, through) == CLEAN


@pytest.mark.parametrize("suite", [NEW], indirect=True)
async def test_prepared_statements_go_through_a_newer_one(through: str, pool: asyncpg.Pool) -> None:
    @periodic(every=timedelta(hours=1), dedup_key="often")
    async def often() -> None: ...

    async with asyncpg.create_pool(through, min_size=1, max_size=6) as cached:
        async with make(cached) as scheduler:
            await use_all(scheduler, make(cached))
        assert await left_behind(pool, through) == CLEAN
