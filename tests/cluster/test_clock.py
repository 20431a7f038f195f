"""Clocks that are set while everything runs: the server's, by ten minutes, and a worker's own.

Real servers and processes under libfaketime, which moves their time of day and leaves the monotonic clock be.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import JobStatus, Scheduler
from pg_scheduler.embedded import EmbeddedPostgres
from tests.cluster.fleet import PATIENCE, Fleet
from tests.conftest import FAST, run_on
from tests.conftest import _migrate as migrate_on
from tools.chaos.clock import Clock, find_library

LIBRARY = find_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not here")

STEP = 600.0
MINUTE = timedelta(minutes=1)
LEASE = ("--lease", "6")
NOTHING: dict[str, object] = {"args": [], "kwargs": {}}

both_ways = pytest.mark.parametrize("step", [STEP, -STEP], ids=["forward", "back"])


@pytest.fixture
def clock() -> Iterator[Clock]:
    assert LIBRARY is not None
    clock = Clock(LIBRARY)
    yield clock
    clock.close()


@pytest.fixture(scope="module")
def servers_clock() -> Iterator[Clock]:
    assert LIBRARY is not None
    clock = Clock(LIBRARY)
    yield clock
    clock.close()


@pytest.fixture(scope="module")
def moved_server(servers_clock: Clock, scratch: Path | None) -> Iterator[EmbeddedPostgres]:
    """A server whose clock can be set."""
    with EmbeddedPostgres(settings=FAST, scratch=scratch, environment=servers_clock.environment) as server:
        yield server


@pytest.fixture
def dsn(moved_server: EmbeddedPostgres, servers_clock: Clock) -> Iterator[str]:
    from tests.conftest import database

    servers_clock.set(0)
    with database(moved_server) as name:
        run_on(moved_server.dsn(name), migrate_on)
        yield moved_server.dsn(name)
        servers_clock.set(0)


async def enqueue(client: Scheduler, name: str, due: datetime | None = None) -> str:
    return await client.schedule_job(f"cluster.{name}", due or datetime.now(UTC), NOTHING)


async def servers_time(pool: asyncpg.Pool) -> datetime:
    now: datetime = await pool.fetchval("SELECT now()")
    return now


async def all_renewed(pool: asyncpg.Pool, workers: int) -> None:
    """Every worker has a lease again, neither over nor longer than it should be."""
    async with asyncio.timeout(PATIENCE):
        while workers > await pool.fetchval(  # noqa: ASYNC110 - nobody tells
            "SELECT count(*) FROM scheduler_workers WHERE now() BETWEEN last_beat AND lease_until"
            " AND lease_until = last_beat + '6 s'"
        ):
            await asyncio.sleep(0.05)


@both_ways
async def test_a_step_of_the_servers_clock_costs_nobody_a_job(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, servers_clock: Clock, step: float
) -> None:
    nodes = [await fleet.start(*LEASE), await fleet.start(*LEASE)]
    held = [await enqueue(client, "hold") for _ in range(4)]
    await fleet.sees("JobStarted", count=len(held))

    for offset in (step, 0):
        servers_clock.set(offset)
        fresh = [await enqueue(client, "note", await servers_time(pool)) for _ in range(20)]
        for job_id in fresh:
            await fleet.sees("JobCompleted", job_id=job_id)
        await all_renewed(pool, len(nodes))

    assert not fleet.seen("LeaseLost")
    assert not fleet.seen("JobsReclaimed")
    assert not fleet.seen("JobLost")
    assert not fleet.seen("cancelled")
    for job_id in held:
        row = await client.get_job(job_id)
        assert row is not None
        assert (row.status, row.attempt) == (JobStatus.RUNNING, 1)
    assert set(Counter(seen.job_id for seen in fleet.seen("ran")).values()) == {1}


async def test_a_job_waits_for_its_time_by_the_servers_clock(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, servers_clock: Clock
) -> None:
    await fleet.start(*LEASE)
    due = datetime.now(UTC) + timedelta(seconds=STEP) - MINUTE
    later = await enqueue(client, "note", due)
    servers_clock.set(-STEP)
    now = await enqueue(client, "note", await servers_time(pool))
    await fleet.sees("JobCompleted", job_id=now)
    assert not fleet.seen("JobStarted", job_id=later)
    servers_clock.set(STEP)
    await fleet.sees("JobCompleted", job_id=later)
    started = await pool.fetchval("SELECT started_at FROM scheduled_jobs WHERE job_id = $1", later)
    assert started >= due


async def test_no_window_comes_twice_when_the_clock_passes_it_again(
    fleet: Fleet, client: Scheduler, servers_clock: Clock
) -> None:
    nodes = [await fleet.start(*LEASE, "--tick", "1", "--tock") for _ in range(2)]

    async def two_more() -> None:
        counts = {event: len(fleet.seen(event)) for event in ("ticked", "tocked")}
        await fleet.hears(lambda: all(len(fleet.seen(event)) >= count + 2 for event, count in counts.items()))

    await two_more()
    servers_clock.set(STEP)
    await two_more()
    servers_clock.set(STEP - 3)  # three seconds come again: their windows have been
    await two_more()
    for node in nodes:
        await node.stop()

    for event in ("ticked", "tocked"):
        windows = Counter(seen.about["due"] for seen in fleet.seen(event))
        assert set(windows.values()) == {1}
        instants = sorted(map(datetime.fromisoformat, windows))
        gaps = [later - earlier for earlier, later in pairwise(instants)]
        assert sum(gap > MINUTE for gap in gaps) == 1  # those between are one
    assert set(Counter(seen.job_id for seen in fleet.seen("PeriodicJobPlanned")).values()) == {1}
    counts = await client.count_jobs()
    assert counts.completed == counts.total


async def test_a_lease_of_the_future_does_not_outlive_its_worker(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, servers_clock: Clock
) -> None:
    """The clock was ahead when the worker was killed. Without its liveness lock, as behind a pooler."""
    victim, other = await fleet.start(*LEASE), await fleet.start(*LEASE)
    held = [await enqueue(client, "hold") for _ in range(20)]
    await fleet.sees("JobStarted", count=len(held))
    hers = [seen.job_id for seen in fleet.seen("JobStarted", node=victim)]
    servers_clock.set(STEP)
    await all_renewed(pool, 2)
    await victim.kill()
    await pool.execute(
        "UPDATE scheduler_workers SET liveness_key = NULL WHERE worker_id = $1", victim.worker_id
    )
    servers_clock.set(0)
    for job_id in hers:
        await fleet.sees("JobCompleted", node=other, job_id=job_id)
    assert {job_id for seen in fleet.seen("JobsReclaimed") for job_id in seen.about["job_ids"]} == set(hers)


@both_ways
async def test_a_workers_own_clock_decides_nothing(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, clock: Clock, step: float
) -> None:
    node = await fleet.start(*LEASE, "--tick", "1", variables=clock.environment)
    held = await enqueue(client, "hold")
    await fleet.sees("JobStarted", job_id=held)
    for offset in (step, 0):
        clock.set(offset)
        job_id = await enqueue(client, "note")
        await fleet.sees("JobCompleted", node=node, job_id=job_id)
        await fleet.sees("ticked", count=len(fleet.seen("ticked")) + 2)
        await all_renewed(pool, 1)
    assert not fleet.seen("LeaseLost")
    assert not fleet.seen("JobsReclaimed")
    windows = sorted(datetime.fromisoformat(seen.about["due"]) for seen in fleet.seen("ticked"))
    second = timedelta(seconds=1)
    assert windows == [windows[0] + number * second for number in range(len(windows))]
    assert set(Counter(seen.job_id for seen in fleet.seen("ran")).values()) == {1}
    row = await client.get_job(held)
    assert row is not None
    assert (row.status, row.attempt) == (JobStatus.RUNNING, 1)
