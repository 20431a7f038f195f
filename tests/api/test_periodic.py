"""The periodic jobs of a running Scheduler, through the public methods."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import (
    UNSET,
    JobConflictError,
    JobPriority,
    JobStatus,
    PeriodicJobConfig,
    PollingConfig,
    Scheduler,
    Share,
    Unique,
    current_job,
    job,
    periodic,
)
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import (
    JobCancelled,
    JobCompleted,
    JobSnoozed,
    JobStarted,
    JobSuspended,
    PassFinished,
    PeriodicJobPlanned,
)
from pg_scheduler.inspect import Inspector
from pg_scheduler.triggers import Every
from tests.api.conftest import Make, Pools
from tests.docs.snippets import ROOT
from tests.support import inside
from tests.support.inside import declarations_of, load_query, periodic_catalogue, worker_of
from tests.support.worker import PATIENCE, PROMPT, Gate, Recorder, now

POLL_INTERVAL_S = inside.internal_setting("poll_interval_of_planner_s")

KEY = "the key"
HOUR = timedelta(hours=1)
START = datetime(2040, 1, 1, tzinfo=UTC)


async def work() -> None: ...


async def until(seen: Recorder, condition: Callable[[], bool]) -> None:
    """Wait for passes of the planner until the condition is true."""
    passes = len(seen.of(PassFinished, service="planner"))
    while not condition():
        passes += 1
        await seen.until(PassFinished, passes, service="planner")


def next_fire(scheduler: Scheduler) -> datetime | None:
    status = scheduler.get_periodic_job_status(KEY)
    assert status is not None
    found: datetime | None = status["next_fire_at"]
    return found


async def row(pool: asyncpg.Pool, key: str = KEY) -> asyncpg.Record:
    found = await pool.fetchrow("SELECT * FROM scheduler_schedules WHERE schedule_id = $1", key)
    assert found is not None
    return found


async def test_interval_schedule_fires_without_drift(make: Make) -> None:
    """Real time: four fire times, a tenth of a second apart."""
    periodic(every=timedelta(seconds=0.1))(work)
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    started = await seen.until(JobStarted, 4)
    times = [event.execution_time for event in started]
    assert len(set(times)) == len(times)  # a busy machine starts several at once
    assert {(time - times[0]) % timedelta(seconds=0.1) for time in times} == {timedelta(0)}


async def test_plain_function_runs_in_a_thread_at_its_fire_time(make: Make) -> None:
    """Real time: a tenth of a second until the first fire time."""
    found: list[tuple[bool, datetime | None]] = []

    @periodic(every=timedelta(seconds=0.1))
    def sweep() -> None:
        found.append((threading.current_thread() is threading.main_thread(), current_job().fire_time))

    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    (started, *_) = await seen.until(JobCompleted)
    is_main, fire_time = found[0]
    assert not is_main
    assert fire_time is not None
    assert started.job_id.endswith(fire_time.isoformat())


async def test_cron_schedule_with_seconds_fires_on_whole_seconds(make: Make) -> None:
    """Real time: up to a second until the first fire time."""
    periodic(cron="* * * * * *")(work)
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    started, *_ = await seen.until(JobStarted)
    assert started.execution_time.microsecond == 0


async def test_each_fire_time_runs_once_across_nodes(make: Make) -> None:
    """Real time: five fire times, a tenth of a second apart, on three nodes."""
    ran: list[str] = []
    enough = asyncio.Event()

    @periodic(every=timedelta(seconds=0.1))
    async def often() -> None:
        ran.append(current_job().job_id)
        if len(ran) == 5:
            enough.set()

    nodes = [make() for _ in range(3)]
    seen = [Recorder(node) for node in nodes]
    for node in nodes:
        await node.start()
    await asyncio.wait_for(enough.wait(), PATIENCE)
    for node in nodes:
        await node.shutdown()
    planned = [event.job_id for each in seen for event in each.of(PeriodicJobPlanned)]
    assert len(ran) == len(set(ran))
    assert len(planned) == len(set(planned))
    assert set(ran) <= set(planned)


async def test_schedule_fires_once_for_all_missed_fire_times_after_downtime(
    make: Make, pool: asyncpg.Pool
) -> None:
    clock = FakeClock(datetime(2026, 3, 10, 12, tzinfo=UTC))
    periodic(every=HOUR, dedup_key=KEY)(work)
    scheduler = make(clock=clock, misfire_grace_time=60)
    seen = Recorder(scheduler)
    await scheduler.start()
    await scheduler.shutdown()
    clock.advance(timedelta(days=3, minutes=25))
    await scheduler.start()
    await seen.until(JobCompleted)  # 25 minutes late, with a misfire grace time of one minute
    (started,) = seen.of(JobStarted)
    assert started.execution_time == datetime(2026, 3, 13, 12, tzinfo=UTC)
    status = scheduler.get_periodic_job_status(KEY)
    assert status is not None
    assert status["last_fire_at"] == datetime(2026, 3, 13, 12, tzinfo=UTC)
    assert status["next_fire_at"] == datetime(2026, 3, 13, 13, tzinfo=UTC)


# -- inspection ----------------------------------------------------------------------------------------


async def test_periodic_job_status_has_the_documented_keys(make: Make) -> None:
    periodic(
        every=timedelta(minutes=15),
        dedup_key="interval",
        priority=JobPriority.HIGH,
        max_retries=2,
        job_name="periodic.mine",
        use_advisory_lock=True,
        enabled=False,
    )(work)
    periodic(cron="0 3 * * *", timezone="Europe/Berlin", dedup_key="cron")(work)
    periodic(cron="0 3 * * *", dedup_key="utc")(work)
    scheduler = make()
    assert scheduler.get_periodic_job_status("interval") == {
        "job_name": "periodic.mine",
        "enabled": False,
        "priority": "high",
        "max_retries": 2,
        "dedup_key": "interval",
        "use_advisory_lock": True,
        "function_name": "work",
        "function_module": __name__,
        "interval": 900.0,
        "next_fire_at": None,
        "last_fire_at": None,
    }
    status = scheduler.get_periodic_job_status("cron")
    assert status is not None
    assert (status["cron"], status["timezone"]) == ("0 3 * * *", "Europe/Berlin")
    assert "interval" not in status
    assert status["job_name"] == "periodic_work"
    utc = scheduler.get_periodic_job_status("utc")
    assert utc is not None
    assert utc["timezone"] == "UTC"
    assert scheduler.get_periodic_job_status("unknown") is None


async def test_get_periodic_jobs_returns_configs_by_dedup_key(make: Make) -> None:
    periodic(every=HOUR)(work)
    (key,) = periodic_catalogue.configs()
    scheduler = make()
    jobs = scheduler.get_periodic_jobs()
    assert list(jobs) == [key]
    assert jobs[key] == PeriodicJobConfig(work, interval=HOUR)
    assert len(key) == 16
    assert set(key) <= set("0123456789abcdef")


async def test_periodic_job_status_has_the_next_fire_time_only_while_enabled(
    scheduler: Scheduler, seen: Recorder
) -> None:
    periodic(every=HOUR, dedup_key=KEY)(work)
    worker_of(scheduler).planner.wake()  # the schedule was declared after the start
    await until(seen, lambda: next_fire(scheduler) is not None)
    shown = next_fire(scheduler)
    assert shown is not None
    assert timedelta(minutes=59) < shown - now() <= HOUR
    scheduler.disable_periodic_job(KEY)
    status = scheduler.get_periodic_job_status(KEY)
    assert status is not None
    assert (status["enabled"], status["next_fire_at"]) == (False, None)


# -- enabling and disabling ----------------------------------------------------------------------------


async def test_enabling_and_disabling_take_effect_on_every_node_without_a_poll(
    make: Make, pool: asyncpg.Pool
) -> None:
    periodic(every=HOUR, dedup_key=KEY)(work)
    here, there = make(), make()
    seen_there = Recorder(there)
    await here.start()
    await there.start()
    for enabled in (False, True):
        assert (here.enable_periodic_job if enabled else here.disable_periodic_job)(KEY) is True
        assert here.get_periodic_jobs()[KEY].enabled is enabled
        async with asyncio.timeout(PROMPT):
            await until(seen_there, lambda: there.get_periodic_jobs()[KEY].enabled is enabled)  # noqa: B023
        assert ((await row(pool))["paused_at"] is None) is enabled


async def test_periodic_job_calls_return_false_or_none_for_an_unknown_key(scheduler: Scheduler) -> None:
    assert scheduler.enable_periodic_job("unknown") is False
    assert scheduler.disable_periodic_job("unknown") is False
    assert await scheduler.trigger_periodic_job("unknown") is None


async def test_disabled_schedule_stays_disabled_after_a_restart(make: Make, pool: asyncpg.Pool) -> None:
    periodic(every=HOUR, dedup_key=KEY)(work)
    scheduler = make()
    await scheduler.start()
    scheduler.disable_periodic_job(KEY)
    await scheduler.shutdown()
    assert (await row(pool))["paused_at"] is not None
    other = make()
    await other.start()
    assert other.get_periodic_jobs()[KEY].enabled is False


@pytest.mark.parametrize("tables", ["present", "missing"])
async def test_disabling_before_the_start_is_kept_with_and_without_tables(
    dsn: str, empty_dsn: str, tables: str, caplog: pytest.LogCaptureFixture
) -> None:
    periodic(every=HOUR, dedup_key=KEY)(work)
    async with asyncpg.create_pool(dsn if tables == "present" else empty_dsn, min_size=1, max_size=3) as pool:
        scheduler = Scheduler(pool)
        assert scheduler.disable_periodic_job(KEY) is True
        assert scheduler.get_periodic_jobs()[KEY].enabled is False
        async with scheduler:
            assert scheduler.get_periodic_jobs()[KEY].enabled is False
            assert (await row(pool))["paused_at"] is not None


async def test_disabling_takes_effect_when_called_in_a_process_that_never_starts(
    make: Make, pool: asyncpg.Pool
) -> None:
    periodic(every=HOUR, dedup_key=KEY)(work)
    running, other = make(), make()
    seen = Recorder(running)
    await running.start()
    other.disable_periodic_job(KEY)
    await until(seen, lambda: not running.get_periodic_jobs()[KEY].enabled)


LEAVING = """
import asyncio, logging, sys
import asyncpg
from pg_scheduler import Scheduler, periodic

logging.basicConfig()

@periodic(cron="0 3 * * *", dedup_key="the key")
async def work(): ...

async def leave(pool):
    scheduler = Scheduler(pool)
    if sys.argv[2] != "without a loop":
        assert scheduler.disable_periodic_job("the key")
    if sys.argv[2] == "pool closed":
        await pool.close()
        await scheduler.shutdown()
    return scheduler

async def main():
    return await leave(await asyncpg.create_pool(sys.argv[1], min_size=0))

scheduler = asyncio.run(main())
if sys.argv[2] == "without a loop":
    assert scheduler.disable_periodic_job("the key")
"""


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("left", ["without shutdown", "pool closed", "without a loop"])
async def test_disabling_is_written_by_the_end_of_the_process(
    dsn: str, pool: asyncpg.Pool, left: str, is_stored: bool
) -> None:
    if is_stored:
        periodic(cron="0 3 * * *", dedup_key="the key")(work)
        async with Scheduler(pool):
            pass
    command = [sys.executable, "-c", LEAVING, dsn, left]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=50
    )
    assert "not stored" not in done.stderr
    stored = await pool.fetchrow("SELECT owner, paused_at IS NOT NULL FROM scheduler_schedules")
    assert stored is not None
    assert tuple(stored) == ("code", True)


@pytest.mark.parametrize("left", ["without shutdown", "without a loop"])
def test_disabling_that_cannot_be_written_is_logged_at_the_end_of_the_process(
    empty_dsn: str, left: str
) -> None:
    command = [sys.executable, "-c", LEAVING, empty_dsn, left]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=50)
    expected = (
        "WARNING:pg_scheduler:schedules not stored at the end of the process: 'the key' disabled: Schema"
    )
    assert expected in done.stderr


def test_forked_process_writes_what_it_disabled_once_at_its_end(empty_dsn: str) -> None:
    forking = (
        "import os\n"
        "if pid := os.fork():\n"
        "    os.waitpid(pid, 0)\n"
        "    os._exit(0)\n"
        'assert scheduler.disable_periodic_job("the key")\n'
    )
    command = [sys.executable, "-c", LEAVING + forking, empty_dsn, "without a loop"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=50)
    assert done.stderr.count("schedules not stored at the end of the process") == 1


def test_disabling_works_without_a_running_event_loop(dsn: str) -> None:
    periodic(every=HOUR, dedup_key=KEY)(work)

    async def create() -> Scheduler:
        return Scheduler(await asyncpg.create_pool(dsn, min_size=0, max_size=3))

    with asyncio.Runner() as runner:
        scheduler = runner.run(create())
        assert scheduler.disable_periodic_job(KEY) is True
        assert scheduler.get_periodic_jobs()[KEY].enabled is False

        async def start_and_close() -> None:
            async with scheduler:
                assert (await row(scheduler.db_pool))["paused_at"] is not None
            await scheduler.db_pool.close()

        runner.run(start_and_close())


# -- trigger -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
async def test_trigger_periodic_job_does_not_shift_the_fire_times(
    make: Make, pool: asyncpg.Pool, enabled: bool
) -> None:
    periodic(every=HOUR, dedup_key=KEY, enabled=enabled, job_name="periodic.mine")(work)
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    before = await row(pool)
    ids = [await scheduler.trigger_periodic_job(KEY) for _ in range(2)]
    for job_id in ids:
        assert job_id is not None
        await seen.until(JobCompleted, job_id=job_id, job_name="periodic.mine")
    after = await row(pool)
    assert len(set(ids)) == 2
    assert (after["next_fire_at"], after["last_fire_at"]) == (before["next_fire_at"], before["last_fire_at"])


async def test_triggered_job_stays_pending_until_the_start(make: Make) -> None:
    periodic(every=HOUR, dedup_key=KEY)(work)
    scheduler = make()
    seen = Recorder(scheduler)
    job_id = await scheduler.trigger_periodic_job(KEY)
    assert job_id is not None
    waiting = await scheduler.get_job(job_id)
    assert waiting is not None
    assert waiting.status is JobStatus.PENDING
    await scheduler.start()
    await seen.until(JobCompleted, job_id=job_id)


@pytest.mark.parametrize("is_stored", [False, True])
async def test_triggered_job_has_the_options_of_its_task(
    make: Make, pool: asyncpg.Pool, is_stored: bool
) -> None:
    """Also before any node has stored the schedule, and with the same values."""

    @periodic(every=HOUR, dedup_key=KEY)
    @job(
        name="mine.full",
        unique=Unique(),
        keep_result=HOUR,
        on_failure="mine.alert",
        share=Share(key=lambda: "acme"),
        metadata={"team": "ops"},
    )
    async def full() -> None: ...

    scheduler = make()
    await scheduler.initialize_db()
    if is_stored:
        await declarations_of(scheduler).sync()
    job_id = await scheduler.trigger_periodic_job(KEY)
    with pytest.raises(JobConflictError):
        await scheduler.trigger_periodic_job(KEY)
    with pytest.raises(JobConflictError):
        await scheduler.enqueue(full)
    stored = await pool.fetchrow("SELECT * FROM scheduled_jobs")
    assert stored is not None
    assert stored["job_id"] == job_id
    assert stored["blocked_on"] == "share:mine.full:acme"
    assert stored["unique_key"].startswith("unique:mine.full:")
    assert json.loads(stored["options"]) == {"keep_result": 3600.0, "schedule_id": KEY}
    assert json.loads(stored["on_end"]) == {"on_failure": "mine.alert"}
    assert json.loads(stored["task_data"])["metadata"] == {"team": "ops"}


@pytest.mark.parametrize("is_outer", [True, False])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (JobPriority.HIGH, 3)),
        ({"priority": JobPriority.NORMAL, "max_retries": 0}, (JobPriority.NORMAL, 0)),
    ],
)
async def test_jobs_have_the_options_of_job_that_periodic_does_not_give(
    make: Make, pool: asyncpg.Pool, is_outer: bool, options: dict[str, Any], expected: tuple[JobPriority, int]
) -> None:
    async def work() -> None: ...

    declare = periodic(every=HOUR, dedup_key=KEY, **options)
    decorate = job(name="mine.options", priority=JobPriority.HIGH, max_retries=3)
    for decorator in (decorate, declare) if is_outer else (declare, decorate):
        work = decorator(work)
    scheduler = make()
    await scheduler.initialize_db()
    config, status = scheduler.get_periodic_jobs()[KEY], scheduler.get_periodic_job_status(KEY)
    assert status is not None
    assert (config.priority, config.max_retries) == expected
    assert (status["priority"], status["max_retries"]) == (expected[0].value, expected[1])
    ids = [await scheduler.trigger_periodic_job(KEY)]
    await declarations_of(scheduler).sync()
    ids.append(await scheduler.trigger_periodic_job(KEY))
    for job_id in ids:
        assert job_id is not None
        stored = await scheduler.get_job(job_id)
        assert stored is not None
        assert (stored.priority, stored.max_retries) == expected


@pytest.mark.parametrize(("grace", "expires"), [(UNSET, None), (None, None), (60, 60)])
async def test_job_enqueued_now_expires_only_with_a_misfire_grace_time_of_its_task_or_schedule(
    make: Make, grace: Any, expires: int | None
) -> None:
    """As one of enqueue(): nobody waits for a worker within five minutes of a request."""
    scheduler = make(clock=FakeClock(START))
    await scheduler.initialize_db()
    scheduler.register(work, name="mine.graced", misfire_grace_time=grace)
    await scheduler.schedules.add("mine.graced", Every(HOUR), schedule_id="task", run_now=True)
    await scheduler.schedules.add(work, Every(HOUR), schedule_id="schedule", misfire_grace_time=90)
    ids = [
        (await scheduler.list_jobs())[0].job_id,
        await scheduler.schedules.trigger("task"),
        await scheduler.enqueue("mine.graced"),
    ]
    expected = None if expires is None else START + timedelta(seconds=expires)
    for job_id in ids:
        stored = await scheduler.get_job(job_id or "")
        assert stored is not None
        assert stored.expires_at == expected
    stored = await scheduler.get_job(await scheduler.schedules.trigger("schedule") or "")
    assert stored is not None
    assert stored.expires_at == START + timedelta(seconds=90)


async def test_triggered_job_is_due_by_the_clock_of_the_database(make: Make) -> None:
    periodic(every=HOUR, dedup_key=KEY)(work)
    clock = FakeClock(datetime(2020, 1, 1, tzinfo=UTC))  # years behind the clock of this machine
    scheduler = make(clock=clock)
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.trigger_periodic_job(KEY)
    await seen.until(JobCompleted, job_id=job_id)


async def test_job_with_an_advisory_lock_is_skipped_while_another_holds_the_lock(make: Make) -> None:
    gate = Gate()

    @periodic(every=HOUR, dedup_key=KEY, use_advisory_lock=True)
    async def locked() -> None:
        await gate.job()

    one, two = make(max_concurrent_jobs=1), make(max_concurrent_jobs=1)
    seen = [Recorder(one), Recorder(two)]
    await one.start()
    first = await one.trigger_periodic_job(KEY)
    await gate.wait_begun()
    await two.start()
    second = await one.trigger_periodic_job(KEY)
    (skipped,) = await seen[1].until(JobCancelled, job_id=second)
    assert "advisory lock" in skipped.reason
    gate.open.set()
    await seen[0].until(JobCompleted, job_id=first)
    assert len(gate.calls) == 1


async def test_advisory_lock_of_a_schedule_is_one_of_its_schema(
    make: Make, pools: Pools, pool: asyncpg.Pool
) -> None:
    gate = Gate()

    @periodic(every=HOUR, dedup_key=KEY, use_advisory_lock=True)
    async def locked() -> None:
        await gate.job()

    schemas = ("public", "staging", "other")
    schedulers = [make(await pools(5), schema=schema) for schema in schemas]
    seen = [Recorder(scheduler) for scheduler in schedulers]
    jobs = []
    for scheduler in schedulers:
        await scheduler.start()
        jobs.append(await scheduler.trigger_periodic_job(KEY))
        await gate.wait_begun()
    holders = []
    for schema, job_id in zip(schemas, jobs, strict=True):
        facts = await pool.fetch(load_query(schema, "inspect_locks").text, job_id, 3600)
        holders += [row["pid"] for row in facts if row["kind"] == "advisory"]
    assert len(set(holders)) == len(holders) == len(jobs)
    gate.open.set()
    for recorder, job_id in zip(seen, jobs, strict=True):
        await recorder.until(JobCompleted, job_id=job_id)


async def test_job_that_has_begun_waits_for_its_advisory_lock_and_then_continues(make: Make) -> None:
    gate = Gate()
    charged: list[str] = []

    async def charge(job_id: str) -> None:
        charged.append(job_id)

    @periodic(every=HOUR, dedup_key=KEY, use_advisory_lock=True)
    async def bill() -> None:
        this_job = current_job()
        if charged and this_job.job_id not in charged:
            await gate.job()
            return
        await this_job.steps.run("charge", charge, this_job.job_id)
        await this_job.steps.wait("paid")

    scheduler = make(max_concurrent_jobs=2)
    seen = Recorder(scheduler)
    await scheduler.start()
    first = await scheduler.trigger_periodic_job(KEY)
    assert first is not None
    await seen.until(JobSuspended, job_id=first)
    second = await scheduler.trigger_periodic_job(KEY)
    await gate.wait_begun()
    assert await scheduler.signal(first, "paid")
    await seen.until(JobSnoozed, job_id=first)
    explanation = await Inspector(scheduler).explain_job(first)
    assert "another attempt holds the advisory lock; the next attempt is due" in str(explanation)
    for count in (2, 3):
        await scheduler.run_job_now(first)
        await seen.until(JobSnoozed, count, job_id=first)
    job = await scheduler.get_job(first)
    assert job is not None
    assert [(entry.attempt, entry.message) for entry in job.errors] == [
        (job.attempt, "another attempt holds the advisory lock")
    ], "a long wait leaves the history of the job"
    gate.open.set()
    await seen.until(JobCompleted, job_id=second)
    await scheduler.run_job_now(first)
    await seen.until(JobCompleted, job_id=first)
    assert charged == [first]
    job = await scheduler.get_job(first)
    assert job is None or job.retry_count == 0


async def test_periodic_functions_of_the_same_name_in_two_modules_both_run(make: Make) -> None:
    calls: list[str] = []

    def define(module: str) -> Any:
        async def tick() -> None:
            calls.append(module)

        tick.__module__, tick.__qualname__ = module, "tick"
        return periodic(every=HOUR, dedup_key=module)(tick)

    define("app.one")
    define("app.two")
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    for key in ("app.one", "app.two"):
        await scheduler.trigger_periodic_job(key)
    for name in ("app.one.tick", "app.two.tick"):
        await seen.until(JobCompleted, job_name=name)
    assert sorted(calls) == ["app.one", "app.two"]


async def test_disabling_logs_an_error_when_the_database_write_fails(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    periodic(every=HOUR, dedup_key=KEY)(work)
    scheduler = make()
    await scheduler.initialize_db()
    scheduler.db_pool.terminate()
    with caplog.at_level(logging.ERROR, "pg_scheduler"):
        scheduler.disable_periodic_job(KEY)
        await scheduler.shutdown()
    assert "PoolClosedError" in caplog.text


async def test_stored_schedule_fires_at_the_next_poll_when_its_module_is_imported_after_the_start(
    make: Make,
) -> None:
    """The planner sleeps for 2 minutes, since it ignores the schedules of tasks that are not registered."""
    scheduler = make(polling_config=PollingConfig(max_interval=0.1))
    seen = Recorder(scheduler)
    scheduler.register(work, name="test.other")
    await scheduler.schedules.add("test.imported", Every(seconds=1))
    await scheduler.start()
    await seen.until(PassFinished, service="planner", next_in=POLL_INTERVAL_S)

    @job(name="test.imported")
    async def imported() -> None: ...

    (started, *_) = await seen.until(JobStarted)
    assert started.job_name == "test.imported"
