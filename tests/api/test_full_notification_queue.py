"""A server whose queue of notifications is full refuses each commit that notifies, as if it were down.

A session of any application that listens and stays in a transaction keeps the queue. Only from PostgreSQL 17
on, the queue can be made small enough for a test. Other limits of the server have the same SQLSTATE;
``tests/store/test_faults.py`` has them.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, DatabaseUnavailableError, JobSpec, Scheduler, current_job
from pg_scheduler.embedded import EmbeddedPostgres, find_binaries
from pg_scheduler.events import JobCompleted, JobsReclaimed, OutcomeRefused, PassFinished, ServiceRetrying
from pg_scheduler.triggers import Every
from tests.conftest import FAST, migrate_on, run_on
from tests.support.inside import worker_of
from tests.support.worker import PATIENCE, Recorder
from tests.support.world import World

SMALLEST_PAGES = "64"
FILL = "SELECT pg_notify('other_application', repeat('x', 7000) || n) FROM generate_series(1, 10) AS n"
KEPT = timedelta(hours=1)
BULK = 300


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    # Each server since version 17 knows the setting, and no earlier one starts with it.
    if version_of(find_binaries()) < 17:
        pytest.skip("the size of the queue of notifications is a setting from PostgreSQL 17 on")
    settings = {**FAST, "max_notify_queue_pages": SMALLEST_PAGES}
    with EmbeddedPostgres(settings=settings) as server:
        run_on(server.dsn(), migrate_on)
        yield server


def version_of(binaries: Path) -> int:
    """Return the major version of a server."""
    answer = subprocess.run([binaries / "postgres", "--version"], capture_output=True, check=True, text=True)
    return int(re.search(r"\d+", answer.stdout).group())  # type: ignore[union-attr] # always there


@pytest.fixture
async def pool(server: EmbeddedPostgres) -> AsyncIterator[asyncpg.Pool]:
    async with asyncpg.create_pool(server.dsn(), min_size=1, max_size=10) as pool:
        yield pool
        await pool.execute("TRUNCATE scheduled_jobs, scheduler_workers CASCADE")


async def repeat(connection: asyncpg.Connection, statement: str) -> None:
    """Execute a statement until it raises an error."""
    while True:
        await connection.execute(statement)


@asynccontextmanager
async def full_queue(dsn: str) -> AsyncIterator[None]:
    """Keep the queue full, by an open transaction of a session that listens."""
    listening, notifying = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    await listening.execute("LISTEN other_application")
    try:
        async with listening.transaction():
            await listening.execute("SELECT 1")
            for statement in (FILL, "SELECT pg_notify('other_application', 'x')"):
                with pytest.raises(asyncpg.ProgramLimitExceededError):
                    await repeat(notifying, statement)
            yield
    finally:
        await listening.close()
        await notifying.close()


async def test_attempt_that_ends_meanwhile_is_written_afterwards(
    pool: asyncpg.Pool, server: EmbeddedPostgres
) -> None:
    gate = asyncio.Event()
    calls: Counter[str] = Counter()

    async def kept() -> int:
        calls["kept"] += 1
        await gate.wait()
        return 7

    async def completing() -> None:
        calls["completing"] += 1
        await gate.wait()
        async with current_job().completing() as connection:
            await connection.execute("SELECT 1")

    async def dependent() -> None:
        calls["dependent"] += 1

    scheduler = Scheduler(pool)
    for func in (kept, completing, dependent):
        scheduler.register(func)
    seen = Recorder(scheduler)
    async with scheduler:
        kept_id = await scheduler.enqueue(kept, keep_result=KEPT)
        completing_id = await scheduler.enqueue(completing, keep_result=KEPT, max_retries=0)
        dependent_id = await scheduler.enqueue(dependent, after=[kept_id])
        async with asyncio.timeout(PATIENCE):
            while calls.total() < 2:  # noqa: ASYNC110 - a counter
                await asyncio.sleep(0.01)
        async with full_queue(server.dsn()):
            gate.set()
            await seen.until(ServiceRetrying, service="completer")
            for refused in (scheduler.enqueue(dependent), scheduler.tasks.pause("app.unknown")):
                with pytest.raises(DatabaseUnavailableError, match="too many notifications"):
                    await refused
            rows = await pool.fetch(
                "SELECT DISTINCT status FROM scheduled_jobs WHERE job_id <> $1", dependent_id
            )
            assert [row["status"] for row in rows] == ["running"]
        assert (await scheduler.get_job_result(kept_id, timeout=PATIENCE)).value == 7
        await scheduler.get_job_result(completing_id, timeout=PATIENCE)
        await seen.until(JobCompleted, job_id=dependent_id)
    assert calls == {"kept": 1, "completing": 1, "dependent": 1}
    assert not seen.of(OutcomeRefused)


CALLS: Final[Mapping[str, Callable[[Scheduler, str], Awaitable[object]]]] = {
    "enqueue": lambda client, _: client.enqueue("app.work"),
    "enqueue with an id": lambda client, _: client.enqueue("app.work", job_id="own"),
    "enqueue a unique job": lambda client, _: client.enqueue("app.work", unique="key"),
    "enqueue after a job": lambda client, job_id: client.enqueue("app.work", after=[job_id]),
    "replace": lambda client, job_id: client.enqueue(
        "app.work", job_id=job_id, conflict_resolution=ConflictResolution.REPLACE
    ),
    "few at once": lambda client, _: client.schedule_bulk(specs(3)),
    "many at once": lambda client, _: client.schedule_bulk(specs(BULK)),
    "cancel": lambda client, job_id: client.cancel_job(job_id),
    "run now": lambda client, job_id: client.run_job_now(job_id),
    "retry": lambda client, _: client.retry_job("failed"),
    "signal": lambda client, job_id: client.signal(job_id, "approved"),
    "pause": lambda client, _: client.tasks.pause("app.work"),
    "resume": lambda client, _: client.tasks.resume("app.paused"),
    "add a schedule": lambda client, _: client.schedules.add("app.work", Every(minutes=5), run_now=True),
    "trigger": lambda client, _: client.schedules.trigger("daily"),
    "pause a schedule": lambda client, _: client.schedules.pause("daily"),
    "update a schedule": lambda client, _: client.schedules.update("daily", trigger=Every(minutes=7)),
    "remove a schedule": lambda client, _: client.schedules.remove("daily"),
}
"""What notifies workers."""


async def work() -> None: ...


def specs(count: int) -> list[JobSpec]:
    return [JobSpec(work, datetime.now(UTC)) for _ in range(count)]


@pytest.mark.parametrize("call", CALLS)
async def test_first_call_after_the_session_has_ended_succeeds_without_a_worker(
    pool: asyncpg.Pool, server: EmbeddedPostgres, call: str
) -> None:
    client = Scheduler(pool)
    client.register(work, name="app.work")
    job_id = await client.enqueue("app.work", delay=3600)
    await World(pool).job("failed", status="failed")
    await client.tasks.pause("app.paused")
    await client.schedules.add(
        "app.work", Every(days=1), schedule_id="daily", conflict_resolution=ConflictResolution.REPLACE
    )
    async with full_queue(server.dsn()):
        pass
    await CALLS[call](client, job_id)


async def test_shutdown_ends_without_an_error(pool: asyncpg.Pool, server: EmbeddedPostgres) -> None:
    async def work() -> None: ...

    scheduler = Scheduler(pool)
    scheduler.register(work)
    seen = Recorder(scheduler)
    await scheduler.start()
    async with full_queue(server.dsn()):
        # COPY inserts so many jobs, and their notification follows as a message of its own.
        await scheduler.schedule_bulk([JobSpec(work, await pool.fetchval("SELECT now()"))] * BULK)
        await seen.until(ServiceRetrying, service="notifier")
        await scheduler.shutdown()
    assert {event.service for event in seen.of(ServiceRetrying)} == {"notifier"}
    assert await pool.fetchval("SELECT count(*) FROM scheduler_workers") == 0


async def test_jobs_of_a_dead_worker_are_reclaimed_within_a_lease(
    pool: asyncpg.Pool, server: EmbeddedPostgres
) -> None:
    async def work() -> None: ...

    scheduler = Scheduler(pool, lease=2)
    scheduler.register(work, name="app.work")
    seen = Recorder(scheduler)
    async with scheduler, full_queue(server.dsn()):
        world = World(pool)
        await world.worker("dead", lease=timedelta(minutes=-1))
        await world.job("orphan", status="running", worker_id="dead")
        await seen.until(JobsReclaimed, dead_workers=("dead",))


async def test_suspect_worker_that_cannot_be_asked_has_the_time_of_a_lease_to_answer(
    pool: asyncpg.Pool, server: EmbeddedPostgres
) -> None:
    """If it lives, its next heartbeat comes within that time, and until then no job of it runs twice."""
    scheduler = Scheduler(pool, lease=3600)
    seen = Recorder(scheduler)
    async with scheduler, full_queue(server.dsn()):
        runtime = worker_of(scheduler)
        runtime.rescuer.answer_timeout_s = 0.0
        await World(pool).worker("silent", lease=timedelta(minutes=-1))
        runtime.rescuer.scan_jobs()
        await seen.until(ServiceRetrying, service="rescuer")
        passes = len(seen.of(PassFinished, service="rescuer"))
        await seen.until(PassFinished, passes + 3, service="rescuer")
        assert not seen.of(JobsReclaimed)
