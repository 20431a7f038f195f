"""Schedules that somebody wrote by hand, with whatever the table takes.

None of them may end a Scheduler, keep one from starting, or hold up the other schedules.
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
from tests.support.hostile import COUNTS, FIRST, INSTANTS, LAST, NAMES, column, instants, write_row
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
GOOD = "a good one"
KNOWN = ["by interval", "by cron", "of another function"]
PLAIN: dict[str, str | None] = {
    "dedup_key": KNOWN[0],
    "derived_key": "false",
    "job_name": "x",
    "function": "nobody.knows",
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
whens = st.fixed_dictionaries(
    {"every": st.sampled_from(INTERVALS), "cron": st.none(), "timezone": st.none()}
) | st.fixed_dictionaries(
    {
        "every": st.none(),
        "cron": st.sampled_from([*CRONS, "0 0 29 2 1", "* * * * * *"]),
        "timezone": st.sampled_from([*ZONES, "UTC", "Pacific/Apia"]),
    }
)
rows = st.builds(
    lambda row, when: {**row, **when},
    st.fixed_dictionaries(
        {
            "dedup_key": st.sampled_from([*KNOWN, *KNOWN, "unknown", "", "'", "x" * 5000]),
            "derived_key": flags,
            "job_name": st.sampled_from(NAMES),
            "function": st.sampled_from([*NAMES, f"{__name__}.work", f"{__name__}.other_work"]),
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
    whens,
)


async def write(pool: asyncpg.Pool, row: dict[str, str | None]) -> bool:
    return await write_row(pool, "scheduler_periodic_jobs", "dedup_key", TYPES, row)


async def work() -> None: ...


async def other_work() -> None: ...


async def good_work() -> None: ...


def decorate() -> None:
    periodic_catalogue.clear()
    periodic(every=HOUR, dedup_key=KNOWN[0])(work)
    periodic(cron="0 * * * *", timezone="Europe/Berlin", dedup_key=KNOWN[1])(work)
    periodic(every=HOUR, dedup_key=KNOWN[2])(other_work)
    periodic(every=2 * HOUR)(
        other_work
    )  # under a derived key, which an abandoned row of its function has had
    periodic(every=HOUR, dedup_key=GOOD)(good_work)


class Bystander:
    """A Scheduler that runs beside such rows, with a good schedule among them."""

    def __init__(self, scheduler: Scheduler, pool: asyncpg.Pool) -> None:
        self.scheduler = scheduler
        self.pool = pool
        self.seen = Recorder(scheduler)

    async def plan(self) -> None:
        """One pass, in which a window of the good schedule is due."""
        runtime = self.scheduler._runtime
        assert runtime is not None
        before = len(self.seen.of(PeriodicJobPlanned, dedup_key=GOOD))
        await self.pool.execute(
            "UPDATE scheduler_periodic_jobs SET next_fire_at = clock_timestamp() WHERE dedup_key = $1", GOOD
        )
        await runtime.planner.run_once()
        await self.seen.until(PeriodicJobPlanned, before + 1, dedup_key=GOOD)


@asynccontextmanager
async def beside(pool: asyncpg.Pool) -> AsyncIterator[Bystander]:
    """Start; at the end nothing has stopped it, and everything can be looked at and switched."""
    decorate()
    scheduler = Scheduler(pool, shutdown_timeout=0.05)
    bystander = Bystander(scheduler, pool)
    async with scheduler:
        await bystander.plan()
        yield bystander
        await bystander.plan()
        for key in set(scheduler.get_periodic_jobs()) - {GOOD}:
            assert scheduler.get_periodic_job_status(key)
            for switch in (scheduler.disable_periodic_job, scheduler.enable_periodic_job):
                assert switch(key)
                await bystander.plan()
        assert scheduler.is_running
    assert scheduler._life.fault is None


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.lists(rows, max_size=12), meanwhile=st.lists(rows, max_size=12))
async def test_whatever_lies_in_the_table(
    pool: asyncpg.Pool, before: list[dict[str, str | None]], meanwhile: list[dict[str, str | None]]
) -> None:
    await pool.execute("TRUNCATE scheduled_jobs, scheduler_workers, scheduler_periodic_jobs")
    for row in before:
        await write(pool, row)
    async with beside(pool) as bystander:
        for row in meanwhile:
            if await write(pool, row):
                await bystander.plan()


async def test_instants(pool: asyncpg.Pool) -> None:
    columns = ("anchor", "last_fire_at", "next_fire_at", "updated_at")
    for instant in INSTANTS:
        assert await write(pool, PLAIN | dict.fromkeys(columns, instant))
        async with beside(pool) as bystander:
            for column in columns:
                assert await write(pool, PLAIN | {column: instant})
                await bystander.plan()
            assert not bystander.seen.of(PeriodicJobBroken)


async def test_a_time_long_past_is_due_and_one_that_never_comes_is_not(pool: asyncpg.Pool) -> None:
    anchor = datetime(2026, 1, 1, 0, 0, 0, 500_000, UTC)
    async with beside(pool) as bystander:
        for instant, due in (("-infinity", True), (FIRST, True), ("infinity", False), (LAST, False)):
            await pool.execute("DELETE FROM scheduled_jobs")
            assert await write(pool, PLAIN | {"next_fire_at": instant, "anchor": str(anchor)})
            await bystander.plan()
            jobs = await bystander.scheduler.list_jobs(job_name="x")
            assert len(jobs) == due
            for job in jobs:  # the latest window of its rhythm, as after any time without a node
                assert (job.execution_time - anchor) % HOUR == timedelta(0)
                assert timedelta(0) < datetime.now(UTC) - job.execution_time < HOUR


async def test_a_schedule_that_cannot_be_understood_is_told_once_and_left_alone(pool: asyncpg.Pool) -> None:
    async with beside(pool) as bystander:
        odd: list[dict[str, str | None]] = [{"every": every} for every in HUGE]
        odd += [{"every": None, "cron": cron, "timezone": "UTC"} for cron in CRONS]
        odd += [{"every": None, "cron": "0 * * * *", "timezone": zone} for zone in ZONES]
        for number, change in enumerate(odd, 1):
            assert await write(pool, {**PLAIN, "cron": None, "timezone": None, **change})
            await bystander.plan()
            await bystander.plan()
            broken = bystander.seen.of(PeriodicJobBroken)
            assert len(broken) == number, change
            assert isinstance(broken[-1].error, ValueError)
        assert await write(pool, {**PLAIN, "cron": None, "timezone": None})
        await bystander.plan()
        assert bystander.seen.of(PeriodicJobPlanned, dedup_key=KNOWN[0])
    async with beside(pool):  # and a start writes what the code says
        assert (
            await pool.fetchval("SELECT every FROM scheduler_periodic_jobs WHERE dedup_key = $1", KNOWN[0])
            == HOUR
        )


async def test_an_infinite_interval(pool: asyncpg.Pool) -> None:
    if await pool.fetchval("SELECT current_setting('server_version_num')::int") < 170000:
        pytest.skip("intervals are finite before PostgreSQL 17")
    async with beside(pool) as bystander:
        assert await write(pool, PLAIN | {"every": "infinity"})
        await bystander.plan()
        assert len(bystander.seen.of(PeriodicJobBroken)) == 1


async def test_two_hundred_broken_ones_do_not_stand_before_a_good_one(pool: asyncpg.Pool) -> None:
    for number in range(200):
        periodic(every=HOUR, dedup_key=f"{number}")(work)
    scheduler = Scheduler(pool, shutdown_timeout=0.05)
    bystander = Bystander(scheduler, pool)
    periodic(every=HOUR, dedup_key=GOOD)(good_work)
    async with scheduler:
        runtime = scheduler._runtime
        assert runtime is not None
        await pool.execute(
            "UPDATE scheduler_periodic_jobs SET every = '20 years', next_fire_at = '-infinity'"
            " WHERE dedup_key <> $1",
            GOOD,
        )
        async with asyncio.timeout(20):
            while len(bystander.seen.of(PeriodicJobBroken)) < 200:
                await runtime.planner.run_once()
        await bystander.plan()
    assert scheduler._life.fault is None
