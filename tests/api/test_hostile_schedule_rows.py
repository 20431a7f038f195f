"""Rows of schedules written by hand, with any values that the table accepts.

No row may stop a Scheduler, prevent its start or delay the other schedules.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pg_scheduler import Scheduler, periodic
from pg_scheduler.events import PeriodicJobBroken, PeriodicJobPlanned, ScheduleBroken
from pg_scheduler.triggers import Every
from tests.support.hostile import EARLIEST, INSTANTS, JOB_NAMES, LATEST, column, instants, write_row
from tests.support.inside import fault_of, periodic_catalogue, worker_of
from tests.support.worker import Recorder

TYPES = {
    **dict.fromkeys(("schedule_id", "owner", "task", "job_name", "described", "overlap", "catch_up"), "text"),
    **dict.fromkeys(("last_job_id", "note"), "text"),
    **dict.fromkeys(("derived_key", "enabled_in_code", "use_advisory_lock", "is_broken"), "boolean"),
    **dict.fromkeys(("trigger", "task_data", "options", "metadata"), "jsonb"),
    "kinds": "text[]",
    **dict.fromkeys(("start_at", "end_at", "anchor", "next_fire_at", "resume_from"), "timestamptz"),
    **dict.fromkeys(("last_fire_at", "paused_at", "created_at", "updated_at", "finished_at"), "timestamptz"),
    **dict.fromkeys(("max_runs", "runs", "skipped", "missed", "failures", "version"), "bigint"),
    **dict.fromkeys(("catch_up_limit", "pause_after_failures"), "integer"),
    **dict.fromkeys(("jitter_seconds", "catch_up_seconds"), "double precision"),
}
HOUR = timedelta(hours=1)
VALID = "valid"
KNOWN = ["interval", "cron", "other function"]
EVERY_HOUR = '{"kind": "every", "every": "PT1H"}'
PLAIN: dict[str, str | None] = {
    "schedule_id": KNOWN[0],
    "owner": "code",
    "task": "unknown.function",
    "job_name": "x",
    "derived_key": "false",
    "enabled_in_code": "true",
    "use_advisory_lock": "false",
    "trigger": EVERY_HOUR,
    "kinds": "{every}",
    "described": "every hour",
    "task_data": "{}",
    "options": "{}",
    "metadata": "{}",
    "overlap": "allow",
    "catch_up": "latest",
    "anchor": "now",
    "next_fire_at": "now",
    "last_fire_at": None,
    "paused_at": None,
    "is_broken": "false",
    "finished_at": None,
    "created_at": "now",
    "updated_at": "now",
}
INSTANT_COLUMNS = [name for name, kind in TYPES.items() if kind == "timestamptz"]
INTERVALS = ["P9999999999Y", "P3661D", "PT0.000001S", "PT0S", "-PT1H", "P3660D", "1 hour", "", "∞"]
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
ZONES = ["", "../../../../etc/passwd", "/etc/passwd", "x" * 5000, "🦉"]
INVALID: list[object] = [
    None,
    7,
    "x",
    [],
    {},
    {"kind": "every"},
    {"kind": "lunar"},
    {"kind": ["every"]},
    {"kind": "or", "triggers": []},
    {"kind": "every", "every": "PT1H", "more": 1},
    {"kind": "within", "trigger": {"kind": "every", "every": "PT1H"}, "during": {"kind": "every"}},
    *({"kind": "every", "every": each} for each in INTERVALS if each not in {"PT0.000001S", "P3660D"}),
    *({"kind": "cron", "expression": each, "timezone": "UTC"} for each in CRONS),
    *({"kind": "cron", "expression": "0 * * * *", "timezone": each} for each in ZONES),
]
VALID_BUT_ODD: list[object] = [
    {"kind": "every", "every": "PT0.000001S"},
    {"kind": "cron", "expression": "0 0 29 2 1", "timezone": "Pacific/Apia"},
    {"kind": "cron", "expression": "* * * * * *", "timezone": "UTC"},
    {"kind": "at", "instants": ["2020-01-01T00:00:00Z"]},
    {"kind": "fixed_delay", "delay": "PT1S"},
    {"kind": "calendar_interval", "years": 100, "at": "00:00:00", "timezone": "UTC"},
    *(  # another node may know them
        {"kind": "cron", "expression": "0 * * * *", "timezone": zone}
        for zone in ("Mars/Olympus", "Europe", "UTC+25")
    ),
]
JSON = ["null", "7", '"x"', "[]", "{}", '{"args": 7}', '{"priority": 2}', '{"max_retries": -1}', '{"x": 1}']
JSON += ['{"timeout": "x"}', '{"timeout": -1}', '{"misfire_grace_time": 1e9}', '{"keep_result": "x"}']
BIG = ["0", "1", str(2**63 - 1)]

flags = st.sampled_from(["true", "false"])
json_texts = st.sampled_from(JSON)
rows = st.builds(
    lambda row, catch_up: {**row, **catch_up},
    st.fixed_dictionaries(
        {
            "schedule_id": st.sampled_from([*KNOWN, *KNOWN, "unknown", "", "'", "🦉" * 200]),
            "owner": st.sampled_from(["code", "api"]),
            "task": st.sampled_from([*JOB_NAMES, f"{__name__}.work", f"{__name__}.other_work"]),
            "job_name": column(None, *JOB_NAMES),
            "derived_key": flags,
            "enabled_in_code": flags,
            "use_advisory_lock": flags,
            "trigger": st.sampled_from([json.dumps(each) for each in [*INVALID, *VALID_BUT_ODD]]),
            "kinds": st.sampled_from(["{}", "{every}", "{NULL}", "{lunar}", "{{every},{cron}}"]),
            "described": st.sampled_from(JOB_NAMES),
            "task_data": json_texts,
            "options": json_texts,
            "metadata": json_texts,
            "max_runs": column(None, "1", BIG[2]),
            "jitter_seconds": st.sampled_from(["0", "1e-300", "316224000"]),
            "overlap": st.sampled_from(["allow", "skip", "queue_one", "queue_all", "cancel"]),
            "pause_after_failures": column(None, "1", "2147483647"),
            "last_job_id": column(None, "", "unknown"),
            "note": column(None, *JOB_NAMES),
            "is_broken": flags,
            **dict.fromkeys(("runs", "skipped", "missed", "failures"), st.sampled_from(BIG)),
            **dict.fromkeys(
                ("start_at", "end_at", "next_fire_at", "resume_from", "last_fire_at", "paused_at"), instants
            ),
            **dict.fromkeys(("anchor", "created_at", "updated_at"), st.sampled_from(INSTANTS)),
            "finished_at": instants,
            "version": st.sampled_from(["1", BIG[2]]),
        }
    ),
    st.sampled_from(
        [
            {"catch_up": "latest", "catch_up_limit": None, "catch_up_seconds": None},
            {"catch_up": "earliest", "catch_up_limit": None, "catch_up_seconds": "0"},
            {"catch_up": "all", "catch_up_limit": "2147483647", "catch_up_seconds": "316224000"},
            {"catch_up": "none", "catch_up_limit": None, "catch_up_seconds": "1e-300"},
        ]
    ),
)


async def write_schedule(pool: asyncpg.Pool, row: dict[str, str | None]) -> bool:
    return await write_row(pool, "scheduler_schedules", "schedule_id", TYPES, row)


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
        self.wrapped_planner: Any = None

    @property
    def planner(self) -> Any:
        """Return the planner, whose own passes and those of the test do not overlap."""
        runtime = worker_of(self.scheduler)
        if self.wrapped_planner is None:
            self.wrapped_planner = runtime.planner
            run_once, one_at_a_time = runtime.planner.run_once, asyncio.Lock()

            async def run_alone() -> float:
                async with one_at_a_time:
                    return await run_once()

            self.wrapped_planner.run_once = run_alone
        return self.wrapped_planner

    async def plan(self) -> None:
        """Run one pass and verify that it enqueues a job of the valid schedule, which is due."""
        planner = self.planner
        before = len(self.seen.of(PeriodicJobPlanned, dedup_key=VALID))
        await self.pool.execute(
            "UPDATE scheduler_schedules SET anchor = now(), next_fire_at = now(), last_fire_at = NULL "
            "WHERE schedule_id = $1",
            VALID,
        )
        await planner.run_once()
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
    assert fault_of(scheduler) is None


@pytest.mark.slow
@settings(
    max_examples=10, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=st.lists(rows, max_size=12), added_later=st.lists(rows, max_size=12))
async def test_scheduler_survives_any_rows_of_schedules(
    pool: asyncpg.Pool, before: list[dict[str, str | None]], added_later: list[dict[str, str | None]]
) -> None:
    await pool.execute("TRUNCATE scheduled_jobs, scheduler_workers, scheduler_schedules")
    for row in before:
        await write_schedule(pool, row)
    async with running_harness(pool) as harness:
        for row in added_later:
            if await write_schedule(pool, row):
                await harness.plan()


@pytest.mark.slow
async def test_schedules_with_extreme_instants_are_not_reported_as_broken(pool: asyncpg.Pool) -> None:
    for instant in INSTANTS:
        hostile: dict[str, str | None] = dict.fromkeys(set(INSTANT_COLUMNS) - {"paused_at"}, instant)
        assert await write_schedule(pool, PLAIN | hostile)
        async with running_harness(pool) as harness:
            for column in hostile:
                assert await write_schedule(pool, PLAIN | {column: instant})
                await harness.plan()
            assert not harness.seen.of(PeriodicJobBroken)
            assert len(await harness.scheduler.schedules.list()) == 5


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


@pytest.mark.slow
async def test_invalid_schedule_is_paused_and_reported_once_until_it_is_corrected(
    pool: asyncpg.Pool,
) -> None:
    async with running_harness(pool) as harness:
        for number, trigger in enumerate(INVALID, 1):
            assert await write_schedule(pool, PLAIN | {"trigger": json.dumps(trigger)})
            await harness.plan()
            await harness.plan()
            broken = harness.seen.of(PeriodicJobBroken)
            assert len(broken) == number, trigger
            assert isinstance(broken[-1].error, ValueError)
            schedule = await harness.scheduler.schedules.get(KNOWN[0])
            assert schedule is not None
            assert (schedule.trigger, schedule.paused_at is None) == (None, False)
            assert schedule.note
        assert await write_schedule(pool, PLAIN)
        await harness.plan()
        assert harness.seen.of(PeriodicJobPlanned, dedup_key=KNOWN[0])
        assert await write_schedule(pool, PLAIN | {"trigger": "7"})
        await harness.plan()
    async with running_harness(pool) as harness:  # a start writes the schedule of the code
        schedule = await harness.scheduler.schedules.get(KNOWN[0])
        assert schedule is not None
        assert (schedule.trigger, schedule.paused_at) == (Every(HOUR), None)


async def test_valid_schedule_fires_when_six_hundred_broken_ones_precede_it(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool, shutdown_timeout=0.05)
    harness = Harness(scheduler, pool)
    periodic(every=HOUR, dedup_key=VALID)(valid_work)
    scheduler.register(work, name="hostile")
    async with scheduler:
        values = PLAIN | {"owner": "api", "task": "hostile", "next_fire_at": "-infinity", "trigger": "7"}
        assert await write_schedule(pool, values | {"schedule_id": "0"})
        columns = ", ".join(set(values) - {"schedule_id"})
        await pool.execute(
            f"INSERT INTO scheduler_schedules (schedule_id, {columns}) "
            f"SELECT n::text, {columns} FROM scheduler_schedules, generate_series(1, 599) AS n "
            "WHERE schedule_id = '0'"
        )
        async with asyncio.timeout(20):
            while len(harness.seen.of(ScheduleBroken)) < 600:
                await harness.planner.run_once()
        await harness.plan()
    assert fault_of(scheduler) is None
