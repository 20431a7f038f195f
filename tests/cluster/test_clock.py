"""Clocks that are set by ten minutes while jobs run: the server's, and a worker's own.

The servers and processes run under libfaketime, which changes their time of day but not the monotonic clock.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import JobSpec, JobStatus, Retry, Scheduler
from pg_scheduler.embedded import EmbeddedPostgres
from pg_scheduler.events import JobCompleted, JobRetried, PassFinished, ScheduleFired, TaskPaused, TaskResumed
from pg_scheduler.triggers import At, Every
from tests.cluster.fleet import TIMEOUT_S, Fleet
from tests.conftest import FAST, database, migrate_on, run_on
from tests.support.worker import Recorder
from tools.chaos.clock import Clock, find_library

LIBRARY = find_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed")

STEP_S = 600.0
TEN_YEARS_S = 10 * 365.25 * 86_400
MINUTE = timedelta(minutes=1)
LEASE = ("--lease", "6")
NO_ARGUMENTS: dict[str, object] = {"args": [], "kwargs": {}}

WAIT_ON_THE_MONOTONIC_CLOCK = """
import ctypes, time

class Instant(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]

library = ctypes.CDLL(None)
attributes, condition, mutex = (ctypes.create_string_buffer(128) for _ in range(3))
library.pthread_condattr_init(attributes)
library.pthread_condattr_setclock(attributes, time.CLOCK_MONOTONIC)
library.pthread_cond_init(condition, attributes)
library.pthread_mutex_init(mutex, None)
library.pthread_mutex_lock(mutex)
end = time.monotonic_ns() + 20_000_000
library.pthread_cond_timedwait(condition, mutex, ctypes.byref(Instant(*divmod(end, 10**9))))
print(time.monotonic_ns() >= end)
"""
"""Wait as CPython waits for the GIL, and print whether the wait lasted until its end."""

both_ways = pytest.mark.parametrize("step", [STEP_S, -STEP_S], ids=["forward", "back"])


@pytest.fixture
def clock() -> Iterator[Clock]:
    assert LIBRARY is not None
    clock = Clock(LIBRARY)
    yield clock
    clock.close()


@pytest.fixture(scope="module")
def server_clock() -> Iterator[Clock]:
    assert LIBRARY is not None
    clock = Clock(LIBRARY)
    yield clock
    clock.close()


@pytest.fixture(scope="module")
def server_with_clock(server_clock: Clock, scratch: Path | None) -> Iterator[EmbeddedPostgres]:
    """A server whose clock can be set."""
    with EmbeddedPostgres(settings=FAST, scratch=scratch, environment=server_clock.environment) as server:
        yield server


@pytest.fixture
def dsn(server_with_clock: EmbeddedPostgres, server_clock: Clock) -> Iterator[str]:
    server_clock.set(0)
    with database(partial(run_on, server_with_clock.dsn())) as name:
        run_on(server_with_clock.dsn(name), migrate_on)
        yield server_with_clock.dsn(name)
        server_clock.set(0)


@pytest.mark.parametrize("step", [0, STEP_S, -STEP_S], ids=["correct", "forward", "back"])
def test_stepped_clock_keeps_waits_on_the_monotonic_clock(clock: Clock, step: float) -> None:
    # If they ended at once, the threads of a worker would take the GIL from each other all the time.
    clock.set(step)
    done = subprocess.run(
        [sys.executable, "-c", WAIT_ON_THE_MONOTONIC_CLOCK],
        env=os.environ | clock.environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stdout == "True\n"


async def enqueue(client: Scheduler, name: str, due: datetime | None = None) -> str:
    return await client.schedule_job(f"cluster.{name}", due or datetime.now(UTC), NO_ARGUMENTS)


async def silent() -> None: ...


async def wait_for_sleep(seen: Recorder, *, longer: bool) -> None:
    """Wait until the planner sleeps for more than a minute, or for less."""
    passes: list[PassFinished] = []
    while not passes or (passes[-1].next_in > 60) is not longer:
        passes = await seen.until(PassFinished, len(passes) + 1, service="planner")


async def server_time(pool: asyncpg.Pool) -> datetime:
    now: datetime = await pool.fetchval("SELECT now()")
    return now


async def wait_for_renewed_leases(pool: asyncpg.Pool, workers: int) -> None:
    """Wait until every worker has a valid lease of the configured length."""
    async with asyncio.timeout(TIMEOUT_S):
        while workers > await pool.fetchval(  # noqa: ASYNC110 - nothing reports it
            "SELECT count(*) FROM scheduler_workers WHERE now() BETWEEN last_beat AND lease_until"
            " AND lease_until = last_beat + '6 s'"
        ):
            await asyncio.sleep(0.05)


@both_ways
async def test_workers_keep_their_jobs_when_the_server_clock_steps(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, server_clock: Clock, step: float
) -> None:
    nodes = [await fleet.start(*LEASE), await fleet.start(*LEASE)]
    held = [await enqueue(client, "hold") for _ in range(4)]
    await fleet.wait_for("JobStarted", count=len(held))

    for offset in (step, 0):
        server_clock.set(offset)
        new = [await enqueue(client, "note", await server_time(pool)) for _ in range(20)]
        for job_id in new:
            await fleet.wait_for("JobCompleted", job_id=job_id)
        await wait_for_renewed_leases(pool, len(nodes))

    assert not fleet.records("LeaseLost")
    assert not fleet.records("JobsReclaimed")
    assert not fleet.records("JobLost")
    assert not fleet.records("cancelled")
    for job_id in held:
        row = await client.get_job(job_id)
        assert row is not None
        assert (row.status, row.attempt) == (JobStatus.RUNNING, 1)
    assert set(Counter(record.job_id for record in fleet.records("ran")).values()) == {1}


async def test_job_starts_at_its_time_by_the_server_clock(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, server_clock: Clock
) -> None:
    await fleet.start(*LEASE)
    due = datetime.now(UTC) + timedelta(seconds=STEP_S) - MINUTE
    later = await enqueue(client, "note", due)
    server_clock.set(-STEP_S)
    now = await enqueue(client, "note", await server_time(pool))
    await fleet.wait_for("JobCompleted", job_id=now)
    assert not fleet.records("JobStarted", job_id=later)
    server_clock.set(STEP_S)
    await fleet.wait_for("JobCompleted", job_id=later)
    started = await pool.fetchval("SELECT started_at FROM scheduled_jobs WHERE job_id = $1", later)
    assert started >= due


async def test_fire_time_runs_once_when_the_server_clock_repeats_it(
    fleet: Fleet, client: Scheduler, server_clock: Clock
) -> None:
    nodes = [await fleet.start(*LEASE, "--tick", "1", "--tock") for _ in range(2)]

    async def run_two_more() -> None:
        counts = {event: len(fleet.records(event)) for event in ("ticked", "tocked")}
        await fleet.wait_until(
            lambda: all(len(fleet.records(event)) >= count + 2 for event, count in counts.items())
        )

    await run_two_more()
    server_clock.set(STEP_S)
    await run_two_more()
    server_clock.set(STEP_S - 3)  # three seconds repeat, whose fire times have run
    await run_two_more()
    for node in nodes:
        await node.stop()

    for event in ("ticked", "tocked"):
        fire_times = Counter(record.details["due"] for record in fleet.records(event))
        assert set(fire_times.values()) == {1}
        instants = sorted(map(datetime.fromisoformat, fire_times))
        gaps = [later - earlier for earlier, later in pairwise(instants)]
        assert sum(gap > MINUTE for gap in gaps) == 1  # the fire times of the step are merged
    assert set(Counter(record.job_id for record in fleet.records("PeriodicJobPlanned")).values()) == {1}
    counts = await client.count_jobs()
    assert counts.completed + counts.pending == counts.total  # one may be planned while the last node stops


@both_ways
async def test_planner_plans_again_when_the_server_clock_steps(
    pool: asyncpg.Pool, server_clock: Clock, step: float
) -> None:
    """Planners sleep for two minutes at most, and heartbeats are 20 s apart: a claim reveals the step."""
    left = MINUTE + timedelta(seconds=max(step, 0))
    async with Scheduler(pool) as scheduler:
        seen = Recorder(scheduler)
        fire_time = At(await server_time(pool) + left)
        await scheduler.schedules.add(silent, fire_time, schedule_id="once")
        await wait_for_sleep(seen, longer=step > 0)
        server_clock.set(step)
        await wait_for_sleep(seen, longer=step < 0)


async def test_schedule_fires_and_pause_ends_when_the_server_clock_is_set_forward_past_their_times(
    pool: asyncpg.Pool, server_clock: Clock
) -> None:
    async with Scheduler(pool) as scheduler:
        seen = Recorder(scheduler)
        await scheduler.schedules.add(silent, Every(5 * MINUTE), schedule_id="often")
        await scheduler.tasks.pause("other", until=await server_time(pool) + 5 * MINUTE)
        await seen.until(TaskPaused, task_name="other")
        server_clock.set(STEP_S)
        await seen.until(ScheduleFired, schedule_id="often")
        await seen.until(JobCompleted)
        await seen.until(TaskResumed, task_name="other")


@pytest.mark.slow
async def test_retry_and_schedule_go_on_after_the_clock_was_ten_years_ahead(
    pool: asyncpg.Pool, server_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = 0

    async def fail_once() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise Retry(timedelta(seconds=1))

    async with Scheduler(pool, shutdown_timeout=1) as scheduler:
        seen = Recorder(scheduler)
        scheduler.register(fail_once, name="clock.fail_once", max_retries=1)
        server_clock.set(TEN_YEARS_S)
        job_id = await scheduler.enqueue(fail_once)
        await seen.until(JobRetried)
        due = await pool.fetchval("SELECT execution_time FROM scheduled_jobs WHERE job_id = $1", job_id)
        assert due > datetime.now(UTC) + timedelta(days=3000)
        server_clock.set(0)
        await seen.until(JobCompleted, job_id=job_id)
    assert caplog.text.count("due times that it had given in the future are corrected: 1") == 1


@pytest.mark.slow
async def test_job_that_a_host_behind_the_server_schedules_in_a_second_runs(
    pool: asyncpg.Pool, server_clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    second = timedelta(seconds=1)
    server_clock.set(STEP_S)
    async with Scheduler(pool, lease=6 * second) as scheduler:
        seen = Recorder(scheduler)
        scheduler.register(silent, name="clock.silent")
        await seen.until(PassFinished, 2, service="heartbeat")
        job_id = await scheduler.schedule(silent, execution_time=datetime.now(UTC) + second)
        [bulk_id] = await scheduler.schedule_bulk([JobSpec(silent, datetime.now(UTC) + second)])
        assert bulk_id is not None
        for each in (job_id, bulk_id):
            await seen.until(JobCompleted, job_id=each)
        later = datetime.now(UTC) + timedelta(hours=1)
        job = await scheduler.get_job(await scheduler.schedule(silent, execution_time=later))
        assert job is not None
        assert job.execution_time == later
        [worker] = await scheduler.workers()
        assert worker.health["clock_offset_s"] == pytest.approx(-STEP_S, abs=5)
    assert "s behind that of the server" in caplog.text


async def test_jobs_are_reclaimed_when_a_dead_worker_has_a_lease_in_the_future(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, server_clock: Clock
) -> None:
    """The clock was ahead when the worker died; there is no liveness lock, as behind a pooler."""
    victim, other = await fleet.start(*LEASE), await fleet.start(*LEASE)
    held = [await enqueue(client, "hold") for _ in range(20)]
    await fleet.wait_for("JobStarted", count=len(held))
    orphans = [record.job_id for record in fleet.records("JobStarted", node=victim)]
    server_clock.set(STEP_S)
    await wait_for_renewed_leases(pool, 2)
    await victim.kill()
    await pool.execute(
        "UPDATE scheduler_workers SET liveness_key = NULL WHERE worker_id = $1", victim.worker_id
    )
    server_clock.set(0)
    for job_id in orphans:
        await fleet.wait_for("JobCompleted", node=other, job_id=job_id)
    assert set(await fleet.reclaimed(len(orphans))) == set(orphans)


@both_ways
async def test_worker_keeps_its_lease_and_runs_jobs_when_its_own_clock_steps(
    fleet: Fleet, client: Scheduler, pool: asyncpg.Pool, clock: Clock, step: float
) -> None:
    node = await fleet.start(*LEASE, "--tick", "1", "--catch-up", variables=clock.environment)
    held = await enqueue(client, "hold")
    await fleet.wait_for("JobStarted", job_id=held)
    for offset in (step, 0):
        clock.set(offset)
        job_id = await enqueue(client, "note")
        await fleet.wait_for("JobCompleted", node=node, job_id=job_id)
        await fleet.wait_for("ticked", count=len(fleet.records("ticked")) + 2)
        await wait_for_renewed_leases(pool, 1)
    assert not fleet.records("LeaseLost")
    assert not fleet.records("JobsReclaimed")
    fire_times = sorted(datetime.fromisoformat(record.details["due"]) for record in fleet.records("ticked"))
    second = timedelta(seconds=1)
    assert fire_times == [fire_times[0] + number * second for number in range(len(fire_times))]
    assert set(Counter(record.job_id for record in fleet.records("ran")).values()) == {1}
    row = await client.get_job(held)
    assert row is not None
    assert (row.status, row.attempt) == (JobStatus.RUNNING, 1)
