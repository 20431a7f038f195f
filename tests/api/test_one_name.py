"""A function has one name, wherever it is read, and its former names find what they found before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from pg_scheduler import Scheduler, VacuumConfig, VacuumPolicy, job, periodic
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import JobCompleted
from pg_scheduler.inspect import Inspector
from tests.api.conftest import Make
from tests.support.inside import TaskRegistry, declarations_of
from tests.support.worker import Recorder

START = datetime(2040, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
NAME = "shop.tasks.refresh"


def cleanup_of(module: str, **options: Any) -> Any:
    """Return a periodic function of a module, without a name of its own."""

    async def cleanup() -> None: ...

    cleanup.__module__, cleanup.__qualname__ = module, "cleanup"
    return periodic(every=HOUR, dedup_key=module, **options)(cleanup)


async def searched(scheduler: Scheduler, where: str) -> set[str]:
    return {job.job_id for job in (await Inspector(scheduler).search_jobs(where)).items}


async def listed(scheduler: Scheduler, name: str) -> set[str]:
    jobs = await scheduler.list_jobs(job_name=name)
    counts = await scheduler.count_jobs(job_name=name)
    assert counts.total == len(jobs)
    return {stored.job_id for stored in jobs}


async def test_periodic_function_with_a_name_has_that_everywhere(make: Make, pool: asyncpg.Pool) -> None:
    @periodic(every=HOUR, dedup_key="refresh")
    @job(name=NAME)
    async def refresh() -> None: ...

    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.start()
    job_id = await scheduler.trigger_periodic_job("refresh")
    await seen.until(JobCompleted, job_id=job_id, job_name=NAME)
    (schedule,) = await scheduler.schedules.list(task=refresh)
    (info,) = [task for task in await scheduler.tasks.list() if task.name == NAME]
    status = scheduler.get_periodic_job_status("refresh")
    assert status is not None
    stored = await scheduler.get_job(job_id or "")
    assert stored is not None
    columns = await pool.fetchrow("SELECT job_name, function FROM scheduled_jobs")
    assert {schedule.task, info.name, status["job_name"], stored.job_name} == {NAME}
    assert tuple(columns or ()) == (NAME, None)
    for name in (NAME, "periodic_refresh", "refresh", f"{__name__}.{refresh.__qualname__}"):
        assert await listed(scheduler, name) == {job_id}
        assert [schedule.schedule_id for schedule in await scheduler.schedules.list(task=name)] == ["refresh"]
    assert await searched(scheduler, f"name:{NAME}") == {job_id}


async def test_functions_of_two_modules_with_one_name_are_told_apart(make: Make, pool: asyncpg.Pool) -> None:
    cleanup_of("uploads")
    cleanup_of("sessions")
    scheduler = make()
    await scheduler.initialize_db()
    ids = {key: await scheduler.trigger_periodic_job(key) for key in ("uploads", "sessions")}
    assert {job.job_name for job in await scheduler.list_jobs()} == {"uploads.cleanup", "sessions.cleanup"}
    for key, job_id in ids.items():
        assert await listed(scheduler, f"{key}.cleanup") == {job_id}
        assert await searched(scheduler, f"name:{key}.cleanup") == {job_id}
    # The name of 0.2 is that of both, as in the table, where its users look for it.
    assert await listed(scheduler, "periodic_cleanup") == {*ids.values()}
    assert await searched(scheduler, "name:periodic_cleanup") == {*ids.values()}
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE job_name = 'periodic_cleanup'") == 2
    assert await scheduler.cancel_jobs(job_name="uploads.cleanup") == 1


async def test_newest_jobs_are_kept_for_each_function(make: Make) -> None:
    cleanup_of("uploads")
    cleanup_of("sessions")
    scheduler = make(vacuum_config=VacuumConfig(cancelled=VacuumPolicy.keep_last(1)))
    await scheduler.initialize_db()
    for key in ("uploads", "sessions"):
        job_id = await scheduler.trigger_periodic_job(key)
        assert await scheduler.cancel_job(job_id or "")
    assert (await scheduler.run_vacuum())["cancelled"] == 0


async def test_former_rows_are_found_under_the_name_and_run(make: Make, pool: asyncpg.Pool) -> None:
    """Rows of 0.2, and those that a node of an earlier checkout writes beside this one."""

    @periodic(every=HOUR, dedup_key="refresh")
    @job(name=NAME)
    async def refresh() -> None: ...

    qualified = f"{__name__}.{refresh.__qualname__}"
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.initialize_db()
    await pool.executemany(
        "INSERT INTO scheduled_jobs (job_id, job_name, function, execution_time, task_data) "
        "VALUES ($1, 'periodic_refresh', $2, now(), '{}')",
        [("of 0.2", None), ("of an old node", qualified)],
    )
    for name in (NAME, "periodic_refresh"):
        assert await listed(scheduler, name) == {"of 0.2", "of an old node"}
    await scheduler.start()
    await seen.until(JobCompleted, 2)
    await pool.execute(
        "UPDATE scheduler_schedules SET task = $1, job_name = 'periodic_refresh'",
        qualified,
    )
    assert [schedule.schedule_id for schedule in await scheduler.schedules.list(task=refresh)] == ["refresh"]
    job_id = await scheduler.trigger_periodic_job("refresh")
    completed = await seen.until(JobCompleted, job_id=job_id)
    assert completed[0].job_name == NAME, "an old node has written the schedule"


async def test_start_gives_a_former_schedule_its_name_and_keeps_its_timing(
    make: Make, pool: asyncpg.Pool
) -> None:
    clock = FakeClock(START)

    @periodic(every=HOUR, dedup_key="refresh")
    @job(name=NAME)
    async def refresh() -> None: ...

    scheduler = make(clock=clock)
    await scheduler.initialize_db()
    await declarations_of(scheduler).sync()
    before = await scheduler.schedules.get("refresh")
    assert before is not None
    await pool.execute(
        "UPDATE scheduler_schedules SET task = $1, job_name = 'periodic_refresh'",
        f"{__name__}.{refresh.__qualname__}",
    )
    clock.advance(HOUR / 2)
    another = make(clock=clock)
    await declarations_of(another).sync()
    after = await another.schedules.get("refresh")
    assert after is not None
    assert (after.task, after.next_fire_at) == (NAME, before.next_fire_at)


def test_names_of_a_task_are_those_that_resolve_to_it() -> None:
    async def one() -> None: ...

    async def two() -> None: ...

    for function, module in ((one, "a"), (two, "b")):
        function.__module__, function.__name__, function.__qualname__ = module, "run", "run"
    registry = TaskRegistry()
    registry.register(one, name="first", aliases=["former"])
    assert registry.names_like("former") == ["former", "a.run", "first", "run"]
    registry.register(two)
    assert registry.names_like("first") == ["first", "a.run", "former"]
    assert registry.names_like("run") == ["run", "a.run", "b.run", "first", "former"]
    assert registry.names_like("unknown") == ["unknown"]
