"""Records of who changed schedules and pauses, and which releases started when."""

from __future__ import annotations

import asyncio
import json
import platform
from dataclasses import replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, Scheduler, VacuumConfig, VacuumPolicy, periodic
from pg_scheduler.database.author import Author, acting_as
from pg_scheduler.errors import ConfigurationError, ScheduleConflictError
from pg_scheduler.triggers import Every
from tests.api.conftest import Make
from tests.support.inside import store_of
from tests.support.worker import new_worker, now

HOUR = timedelta(hours=1)


async def work(*args: Any) -> None: ...


async def records(pool: asyncpg.Pool) -> list[tuple[str, str | None, str, str]]:
    """Return action, subject, actor and way of each record."""
    rows = await pool.fetch("SELECT action, subject, actor, via FROM scheduler_audit ORDER BY id")
    return [tuple(row) for row in rows]


async def last_details(pool: asyncpg.Pool) -> dict[str, Any]:
    text = await pool.fetchval("SELECT details FROM scheduler_audit ORDER BY id DESC LIMIT 1")
    details: dict[str, Any] = json.loads(text)
    return details


async def test_changes_of_a_schedule_are_recorded_with_both_definitions(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make(identity="api-1", metadata={"release": "2026.11"})
    scheduler.register(work, name="work")
    schedules = scheduler.schedules
    await schedules.add("work", Every(hours=1), schedule_id="s", args=("ada",))
    assert await records(pool) == [("add_schedule", "s", "api-1", "api")]
    details = await last_details(pool)
    assert (details["host"], details["release"]) == (platform.node(), "2026.11")
    assert details["after"]["trigger"] == Every(hours=1).to_json()
    assert details["after"]["arguments"] == {"args": ["ada"], "kwargs": {}}
    assert "before" not in details
    await schedules.update("s", trigger=Every(hours=2))
    details = await last_details(pool)
    assert details["before"]["trigger"] == Every(hours=1).to_json()
    assert details["after"]["trigger"] == Every(hours=2).to_json()
    assert await schedules.pause("s", note="holidays")
    assert (await last_details(pool))["note"] == "holidays"
    await schedules.pause("s", note="again")
    assert await schedules.resume("s")
    await schedules.resume("s")
    job_id = await schedules.trigger("s")
    assert (await last_details(pool))["job_id"] == job_id
    start = now() - 3 * HOUR
    await schedules.backfill("s", start, start + HOUR)
    assert (await last_details(pool))["start"] == start.isoformat()
    assert await schedules.remove("s")
    await schedules.remove("s")
    assert (await last_details(pool))["before"]["task"] == "work"
    assert [action for action, *_ in await records(pool)] == [
        "add_schedule",
        "update_schedule",
        "pause_schedule",
        "resume_schedule",
        "trigger_schedule",
        "backfill_schedule",
        "remove_schedule",
    ]


async def test_unchanged_or_refused_schedule_is_not_recorded(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    scheduler.register(work, name="work")
    await scheduler.schedules.add("work", Every(hours=1), schedule_id="s")
    for resolution in (ConflictResolution.IGNORE, ConflictResolution.REPLACE):
        await scheduler.schedules.add("work", Every(hours=1), schedule_id="s", conflict_resolution=resolution)
    with pytest.raises(ScheduleConflictError):
        await scheduler.schedules.add("work", Every(hours=1), schedule_id="s")
    assert len(await records(pool)) == 1
    await scheduler.schedules.add(
        "work", Every(hours=2), schedule_id="s", conflict_resolution=ConflictResolution.REPLACE
    )
    assert [action for action, *_ in await records(pool)] == ["add_schedule", "update_schedule"]


async def test_rolled_back_schedule_leaves_no_record(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    scheduler.register(work, name="work")
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await scheduler.schedules.add("work", Every(hours=1), connection=connection)
        await transaction.rollback()
    assert await records(pool) == []


async def test_long_arguments_are_left_out_of_the_record(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make()
    scheduler.register(work, name="work")
    await scheduler.schedules.add("work", Every(hours=1), args=("x" * 20_000,))
    assert (await last_details(pool))["after"]["arguments"] is None


async def test_pauses_of_tasks_are_recorded(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make(identity="api-1")
    until = now() + HOUR
    assert await scheduler.tasks.pause("mail.send", until=until, note="down")
    details = await last_details(pool)
    assert (details["note"], details["until"]) == ("down", until.isoformat())
    assert not await scheduler.tasks.pause("mail.send", until=until, note="down")
    assert await scheduler.tasks.resume("mail.send")
    assert not await scheduler.tasks.resume("mail.send")
    assert await records(pool) == [
        ("pause_task", "mail.send", "api-1", "api"),
        ("resume_task", "mail.send", "api-1", "api"),
    ]


async def test_deploy_that_changes_a_schedule_is_recorded_once(make: Make, pool: asyncpg.Pool) -> None:
    def release(hours: int) -> Scheduler:
        scheduler = make(metadata={"release": f"v{hours}"}, identity="pod")

        @periodic(every=timedelta(hours=hours), dedup_key="sweep")
        async def sweep() -> None: ...

        scheduler.register(sweep, name="sweep")
        return scheduler

    for hours in (1, 2, 2):
        scheduler = release(hours)
        await scheduler.start()
        await scheduler.shutdown()
    found = [each for each in await records(pool) if each[0] != "start_release"]
    assert found == [("add_schedule", "sweep", "pod", "code"), ("update_schedule", "sweep", "pod", "code")]
    text = await pool.fetchval("SELECT details FROM scheduler_audit WHERE action = 'update_schedule'")
    details = json.loads(text)
    assert details["release"] == "v2"
    assert details["before"]["described"] != details["after"]["described"]


async def test_first_start_of_a_release_is_recorded_once(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make(metadata={"release": 7})  # no text, so not a release
    async with scheduler:
        assert await records(pool) == []
    rows = [replace(new_worker(f"w{n}"), identity=f"pod-{n}", metadata={"release": "v1"}) for n in range(4)]
    await asyncio.gather(*(store_of(scheduler).workers.register(row, 60) for row in rows))
    ((action, subject, actor, via),) = await records(pool)
    assert (action, subject, via) == ("start_release", "v1", "worker")
    assert actor.startswith("pod-")


async def test_author_of_a_context_is_named_in_records_pauses_and_cancelled_jobs(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make(identity="api-1")
    scheduler.register(work, name="work")
    await scheduler.schedule(work, execution_time=now() + HOUR, job_id="a")
    with acting_as(Author("ada@example.org", "cli")):
        await scheduler.tasks.pause("work")
        await scheduler.schedules.add("work", Every(hours=1), schedule_id="s")
        await scheduler.cancel_job("a")
    await scheduler.schedules.remove("s")
    assert await records(pool) == [
        ("pause_task", "work", "ada@example.org", "cli"),
        ("add_schedule", "s", "ada@example.org", "cli"),
        ("remove_schedule", "s", "api-1", "api"),
    ]
    assert [task.actor for task in await scheduler.tasks.list() if task.name == "work"] == ["ada@example.org"]
    job = await scheduler.get_job("a")
    assert job is not None
    assert job.error_message == "cancelled by ada@example.org"


async def test_jobs_write_no_record(scheduler: Scheduler, pool: asyncpg.Pool) -> None:
    job_id = await scheduler.schedule(work, execution_time=now() + HOUR)
    await scheduler.cancel_job(job_id)
    await scheduler.retry_job(job_id)
    await scheduler.update_job_status(job_id, "failed")
    assert await records(pool) == []


async def test_vacuum_deletes_old_records_but_not_that_of_a_release_which_runs(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make(vacuum_config=VacuumConfig(audit=VacuumPolicy.after_days(30)), vacuum_enabled=False)
    await scheduler.initialize_db()
    await pool.execute("""
        INSERT INTO scheduler_audit (at, actor, via, action, subject) VALUES
            (now() - interval '31 days', 'me', 'api', 'pause_task', 'old'),
            (now() - interval '29 days', 'me', 'api', 'pause_task', 'new'),
            (now() - interval '31 days', 'me', 'worker', 'start_release', 'v1'),
            (now() - interval '31 days', 'me', 'worker', 'start_release', 'v2');
        INSERT INTO scheduler_workers (worker_id, hostname, pid, version, max_concurrent_jobs, started_at,
            last_beat, lease_until, metadata)
        VALUES ('w', 'host', 1, '1', 1, now(), now(), now() + interval '1 hour', '{"release": "v2"}')
    """)
    await scheduler.run_vacuum()
    assert [subject for _, subject, *_ in await records(pool)] == ["new", "v2"]


async def test_vacuum_deletes_bulk_runs_that_were_last_changed_long_ago(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make(vacuum_config=VacuumConfig(audit=VacuumPolicy.after_days(30)), vacuum_enabled=False)
    await scheduler.initialize_db()
    await pool.execute("""
        INSERT INTO scheduler_bulk_runs (
            run_id, created_by, actor, created_at, started_at, last_at, answered_at
        )
        SELECT run_id, 'me', 'me', began, began, changed, changed
        FROM (VALUES
            ('old', now() - interval '40 days', now() - interval '31 days'),
            ('long', now() - interval '40 days', now() - interval '29 days'),
            ('new', now(), now())
        ) AS run (run_id, began, changed)
    """)
    await scheduler.run_vacuum()
    rows = await pool.fetch("SELECT run_id FROM scheduler_bulk_runs ORDER BY run_id")
    assert [row["run_id"] for row in rows] == ["long", "new"]


async def test_vacuum_keeps_all_records_with_the_policy_never(make: Make, pool: asyncpg.Pool) -> None:
    scheduler = make(vacuum_config=VacuumConfig(audit=VacuumPolicy.never()), vacuum_enabled=False)
    await scheduler.initialize_db()
    await pool.execute(
        "INSERT INTO scheduler_audit (at, actor, via, action) VALUES ('2001-01-01', 'me', 'api', 'x')"
    )
    await scheduler.run_vacuum()
    assert len(await records(pool)) == 1


def test_audit_policy_needs_an_age() -> None:
    with pytest.raises(ConfigurationError, match=r"audit must not be VacuumPolicy.keep_last\(\)"):
        VacuumConfig(audit=VacuumPolicy.keep_last(3))
