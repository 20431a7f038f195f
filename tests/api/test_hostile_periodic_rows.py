"""Rows of schedules written by hand, with any values that the table accepts.

No row may stop a Scheduler, prevent its start or delay the other schedules.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pg_scheduler import Scheduler, periodic
from pg_scheduler.events import PeriodicJobBroken, PeriodicJobPlanned
from pg_scheduler.schedules.catalogue import periodic_catalogue
from tests.support.hostile import COUNTS, EARLIEST, INSTANTS, JOB_NAMES, LATEST, column, instants, write_row
from tests.support.worker import Recorder

TYPES = {
    "dedup_key": "text",
    "derived_key": "boolean",
    "job_name": "text",
    "function": "text",
    "every": "interval",
    "cron": "text",
    "timezone": "text",
    "use_advisory_lock": "boolean",
    "priority": "integer",
    "max_retries": "integer",
    "enabled": "boolean",
    "enabled_in_code": "boolean",
    "anchor": "timestamptz",
    "last_fire_at": "timestamptz",
    "next_fire_at": "timestamptz",
    "updated_at": "timestamptz",
}
HOUR = timedelta(hours=1)
VALID = "valid"
KNOWN = ["interval", "cron", "other function"]
PLAIN: dict[str, str | None] = {
    "dedup_key": KNOWN[0],
    "derived_key": "false",
    "job_name": "x",
    "function": "unknown.function",
    "every": "1 hour",
    "use_advisory_lock": "false",
    "priority": "5",
    "max_retries": "0",
    "enabled": "true",
    "enabled_in_code": "true",
    "anchor": "now",
    "next_fire_at": "now",
    "updated_at": "now",
}
HUGE = ["178000000 years", "3661 days"]
INTERVALS = [*HUGE, "0.000001 seconds", "1 mon -29 days -23:59:59.999999", "-1 days 25:00", "3660 days"]
CRONS = [
    "",
    "* * * *",
    "* * * * * * *",
    "61 * * * *",
    "0 0 30 2 *",
    "@reboot",
    "*/0 * * * *",
    "1-99999999999 * * * *",
    "h h * * *",
    "'; DROP TABLE scheduled_jobs; --",
    "٣ * * * *",
    "\u202e* * * * *",
    "0," * 50_000 + "0 * * * *",
    "9" * 5000 + " * * * *",
]
ZONES = ["", "Mars/Olympus", "../../../../etc/passwd", "/etc/passwd", "Europe", "UTC+25", "x" * 5000, "🦉"]

flags = st.sampled_from(["true", "false"])
timings = st.fixed_dictionaries(
    {"every": st.sampled_from(INTERVALS), "cron": st.none(), "timezone": st.none()}
) | st.fixed_dictionaries(
    {
        "every": st.none(),
        "cron": st.sampled_from([*CRONS, "0 0 29 2 1", "* * * * * *"]),
        "timezone": st.sampled_from([*ZONES, "UTC", "Pacific/Apia"]),
    }
)
rows = st.builds(
    lambda row, timing: {**row, **timing},
    st.fixed_dictionaries(
        {
            "dedup_key": st.sampled_from([*KNOWN, *KNOWN, "unknown", "", "'", "x" * 5000]),
            "derived_key": flags,
            "job_name": st.sampled_from(JOB_NAMES),
            "function": st.sampled_from([*JOB_NAMES, f"{__name__}.work", f"{__name__}.other_work"]),
            "use_advisory_lock": flags,
            "priority": st.sampled_from(["1", "3", "5", "8"]),
            "max_retries": st.sampled_from(COUNTS),
            "enabled": flags,
            "enabled_in_code": flags,
            "anchor": st.sampled_from(INSTANTS),
            "last_fire_at": instants,
            "next_fire_at": column(None, *INSTANTS),
            "updated_at": st.sampled_from(INSTANTS),
        }
    ),
    timings,
)


async def write_schedule(pool: asyncpg.Pool, row: dict[str, str | None]) -> bool:
    return await write_row(pool, "scheduler_periodic_jobs", "dedup_key", TYPES, row)


async def work() -> None: ...


async def other_work() -> None: ...


async def valid_work() -> None: ...


def decorate() -> None:
    periodic_catalogue.clear()
    periodic(every=HOUR, dedup_key=KNOWN[0])(work)
    periodic(cron="0 * * * *", timezone="Europe/Berlin", dedup_key=KNOWN[1])(work)
    periodic(every=HOUR, dedup_key=KNOWN[2])(other_work)
    periodic(every=2 * HOUR)(other_work)  # a derived key, as an abandoned row of its function has had
    periodic(every=HOUR, dedup_key=VALID)(valid_work)


class Harness:
    """A running Scheduler with a valid schedule among the hostile rows."""

    def __init__(self, scheduler: Scheduler, pool: asyncpg.Pool) -> None:
        self.scheduler = scheduler
        self.pool = pool
        self.seen = Recorder(scheduler)

    async def plan(self) -> None:
        """Run one pass and verify that it enqueues a job of the valid schedule, which is due."""
        runtime = self.scheduler._runtime
        assert runtime is not None
        before = len(self.seen.of(PeriodicJobPlanned, dedup_key=VALID))
        await self.pool.execute(
            "UPDATE scheduler_periodic_jobs SET next_fire_at = clock_timestamp() WHERE dedup_key = $1", VALID
        )
        await runtime.planner.run_once()
        await self.seen.until(PeriodicJobPlanned, before + 1, dedup_key=VALID)


@asynccontextmanager
async def running_harness(pool: asyncpg.Pool) -> AsyncIterator[Harness]:
    """Start a Scheduler; at the end, verify that it runs and that every schedule can be read and switched."""
    decorate()
    scheduler = Scheduler(pool, shutdown_timeout=0.05)
    harness = Harness(scheduler, pool)
    async with scheduler:
        await harness.plan()
        yield harness
        await harness.plan()
        for key in set(scheduler.get_periodic_jobs()) - {VALID}:
            assert scheduler.get_periodic_job_status(key)
            for switch in (scheduler.disable_periodic_job, scheduler.enable_periodic_job):
                assert switch(key)
                await harness.plan()
        assert scheduler.is_running
    assert scheduler._life.fault is None


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.lists(rows, max_size=12), added_later=st.lists(rows, max_size=12))
async def test_scheduler_survives_any_rows_of_schedules(
    pool: asyncpg.Pool, before: list[dict[str, str | None]], added_later: list[dict[str, str | None]]
) -> None:
    await pool.execute("TRUNCATE scheduled_jobs, scheduler_workers, scheduler_periodic_jobs")
    for row in before:
        await write_schedule(pool, row)
    async with running_harness(pool) as harness:
        for row in added_later:
            if await write_schedule(pool, row):
                await harness.plan()


async def test_schedules_with_extreme_instants_are_not_reported_as_broken(pool: asyncpg.Pool) -> None:
    columns = ("anchor", "last_fire_at", "next_fire_at", "updated_at")
    for instant in INSTANTS:
        assert await write_schedule(pool, PLAIN | dict.fromkeys(columns, instant))
        async with running_harness(pool) as harness:
            for column in columns:
                assert await write_schedule(pool, PLAIN | {column: instant})
                await harness.plan()
            assert not harness.seen.of(PeriodicJobBroken)


async def test_schedule_is_due_only_when_its_next_fire_time_is_in_the_past(pool: asyncpg.Pool) -> None:
    anchor = datetime(2026, 1, 1, 0, 0, 0, 500_000, UTC)
    async with running_harness(pool) as harness:
        for instant, due in (("-infinity", True), (EARLIEST, True), ("infinity", False), (LATEST, False)):
            await pool.execute("DELETE FROM scheduled_jobs")
            assert await write_schedule(pool, PLAIN | {"next_fire_at": instant, "anchor": str(anchor)})
            await harness.plan()
            jobs = await harness.scheduler.list_jobs(job_name="x")
            assert len(jobs) == due
            for job in jobs:  # the latest fire time, as after a downtime of all nodes
                assert (job.execution_time - anchor) % HOUR == timedelta(0)
                assert timedelta(0) < datetime.now(UTC) - job.execution_time < HOUR


async def test_invalid_schedule_is_reported_once_until_its_row_changes(pool: asyncpg.Pool) -> None:
    async with running_harness(pool) as harness:
        invalid: list[dict[str, str | None]] = [{"every": every} for every in HUGE]
        invalid += [{"every": None, "cron": cron, "timezone": "UTC"} for cron in CRONS]
        invalid += [{"every": None, "cron": "0 * * * *", "timezone": zone} for zone in ZONES]
        for number, change in enumerate(invalid, 1):
            assert await write_schedule(pool, {**PLAIN, "cron": None, "timezone": None, **change})
            await harness.plan()
            await harness.plan()
            broken = harness.seen.of(PeriodicJobBroken)
            assert len(broken) == number, change
            assert isinstance(broken[-1].error, ValueError)
        assert await write_schedule(pool, {**PLAIN, "cron": None, "timezone": None})
        await harness.plan()
        assert harness.seen.of(PeriodicJobPlanned, dedup_key=KNOWN[0])
    async with running_harness(pool):  # a start writes the schedule of the code
        assert (
            await pool.fetchval("SELECT every FROM scheduler_periodic_jobs WHERE dedup_key = $1", KNOWN[0])
            == HOUR
        )


async def test_infinite_interval_is_reported_as_broken(pool: asyncpg.Pool) -> None:
    if await pool.fetchval("SELECT current_setting('server_version_num')::int") < 170000:
        pytest.skip("intervals are finite before PostgreSQL 17")
    async with running_harness(pool) as harness:
        assert await write_schedule(pool, PLAIN | {"every": "infinity"})
        await harness.plan()
        assert len(harness.seen.of(PeriodicJobBroken)) == 1


async def test_valid_schedule_fires_when_two_hundred_broken_ones_precede_it(pool: asyncpg.Pool) -> None:
    for number in range(200):
        periodic(every=HOUR, dedup_key=f"{number}")(work)
    scheduler = Scheduler(pool, shutdown_timeout=0.05)
    harness = Harness(scheduler, pool)
    periodic(every=HOUR, dedup_key=VALID)(valid_work)
    async with scheduler:
        runtime = scheduler._runtime
        assert runtime is not None
        await pool.execute(
            "UPDATE scheduler_periodic_jobs SET every = '20 years', next_fire_at = '-infinity'"
            " WHERE dedup_key <> $1",
            VALID,
        )
        async with asyncio.timeout(20):
            while len(harness.seen.of(PeriodicJobBroken)) < 200:
                await runtime.planner.run_once()
        await harness.plan()
    assert scheduler._life.fault is None
