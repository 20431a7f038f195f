"""``adopt`` lets workers start in a copy of a database, and holds or resumes what the copy has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.cli.adopt import release
from pg_scheduler.database.author import Author, acting_as
from pg_scheduler.database.identity import HELD_INSTEAD
from pg_scheduler.testing import TestScheduler
from pg_scheduler.tools import identity_of
from pg_scheduler.triggers import Every
from tests.cli.conftest import Read, Run
from tests.conftest import Connection, run_on
from tests.docs.snippets import ROOT
from tests.support.inside import ExitCode

LATER = timedelta(hours=1)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def work(dsn: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a worker as a program until no job is due: it ends its process."""
    command = [sys.executable, "-m", "pg_scheduler", "worker", "--drain", "tests.cli.worker_jobs"]
    return subprocess.run(
        [*command, "--dsn", dsn, *options], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def copy(dsn: str, read: Read) -> str:
    """The DSN of a copy with a job and two schedules, of which a person has paused one."""

    async def leave_work(scheduler: Scheduler) -> None:
        async with scheduler:
            await scheduler.enqueue("tests.bill", delay=LATER, job_id="bill")
            for schedule_id in ("report", "stopped"):
                await scheduler.schedules.add("tests.report", Every(hours=1), schedule_id=schedule_id)
            await scheduler.schedules.pause("stopped", note="by a person")

    async def change_server(connection: Connection) -> None:
        await connection.execute("UPDATE scheduler_database SET system = '1', name = 'original'")

    read(leave_work)
    run_on(dsn, change_server)
    return dsn


def values_of(dsn: str, query: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []

    async def fetch(connection: Connection) -> None:
        rows.extend(tuple(row) for row in await connection.fetch(query))

    run_on(dsn, fetch)
    return rows


def paused(dsn: str) -> list[tuple[Any, ...]]:
    """Return the names of the paused tasks and the ids of the paused schedules."""
    return values_of(
        dsn,
        "SELECT 'task', name FROM scheduler_tasks WHERE paused_at IS NOT NULL "
        "UNION ALL SELECT 'schedule', schedule_id FROM scheduler_schedules WHERE paused_at IS NOT NULL "
        "ORDER BY 1, 2",
    )


@pytest.mark.slow
def test_worker_refuses_a_copy_until_it_is_adopted(call: Run, copy: str) -> None:
    refused = work(copy)
    assert refused.returncode == ExitCode.REFUSED
    assert "is a copy of 'original'" in refused.stderr
    assert "pg-scheduler adopt --hold" in refused.stderr
    adopted = call("adopt", "--dsn", copy, "-o", "jsonl")
    assert adopted.code == ExitCode.DONE
    (database,) = values_of(copy, "SELECT current_database()")[0]
    assert adopted.checked("adopted") == [
        {"v": 1, "database": database, "copy_of": "original", "tasks": 0, "schedules": 0}
    ]
    assert f"adopted {database}: workers start here" in adopted.err
    assert paused(copy) == [("schedule", "stopped")]
    assert work(copy).returncode == ExitCode.DONE
    (record,) = values_of(copy, "SELECT action, via FROM scheduler_audit WHERE action = 'adopt_database'")
    assert record == ("adopt_database", "cli")


@pytest.mark.slow
def test_copy_is_held_and_resumed_without_what_a_person_has_paused(call: Run, copy: str) -> None:
    held = call("adopt", "--hold", "--dsn", copy, "-o", "jsonl")
    (line,) = held.checked("adopted")
    assert (held.code, line["tasks"], line["schedules"]) == (ExitCode.DONE, 2, 1)
    assert "pg-scheduler adopt --resume" in held.err
    tasks = [("task", "tests.bill"), ("task", "tests.report")]
    assert paused(copy) == [("schedule", "report"), ("schedule", "stopped"), *tasks]
    assert work(copy).returncode == ExitCode.DONE
    resumed = call("adopt", "--resume", "--dsn", copy, "-o", "jsonl")
    (line,) = resumed.checked("adopted")
    assert (resumed.code, line["tasks"], line["schedules"]) == (ExitCode.DONE, 2, 1)
    assert "resumed 2 tasks and 1 schedule" in resumed.err
    assert paused(copy) == [("schedule", "stopped")]
    again = call("adopt", "--resume", "--dsn", copy)
    assert (again.code, "resumed 0 tasks and 0 schedules" in again.err) == (ExitCode.DONE, True)


START = datetime(2040, 1, 1, tzinfo=UTC)

PAUSES: dict[str, dict[str, Any] | None] = {
    "none": None,
    "endless": {},
    "endless with a note": {"note": "by a person"},
    "ahead": {"until": START + 2 * DAY},
    "ahead with a note": {"until": START + 2 * DAY + timedelta(seconds=1.000001), "note": '"until" {Monday}'},
    "passes": {"until": START + HOUR},
    "passes with a note": {"until": START + HOUR, "note": "by a person"},
}
"""What people have paused before the hold, until times in and after it."""

OF_TASKS: dict[str, dict[str, Any]] = {
    "endless, suspends expiry": {"suspend_expiry": True},
    "ahead, suspends expiry": {"until": START + 2 * DAY, "note": "by a person", "suspend_expiry": True},
    "passes, suspends expiry": {"until": START + HOUR, "suspend_expiry": True},
}

OF_SCHEDULES: dict[str, dict[str, Any]] = {
    "ahead, catches up": {"until": START + 2 * DAY, "note": "by a person", "resume_from": "pause"},
    "passes, catches up": {"until": START + HOUR, "resume_from": "pause"},
}

TASK_ROWS = """SELECT name, paused_at, paused_until, note, actor, suspends_expiry
    FROM scheduler_tasks WHERE name <> 'schedules'"""
SCHEDULE_ROWS = """SELECT
    schedule_id, paused_at, paused_until, keeps_fire_times, note, next_fire_at, resume_from
    FROM scheduler_schedules"""


async def read_pauses(pool: asyncpg.Pool, query: str) -> dict[str, tuple[Any, ...]]:
    return {row[0]: tuple(row) for row in await pool.fetch(query)}


@pytest.mark.slow
@pytest.mark.parametrize("holds", [1, 2])
async def test_hold_leaves_pauses_of_people_as_they_were(pool: asyncpg.Pool, holds: int) -> None:
    def new_function(name: str) -> Callable[[], Coroutine[Any, Any, None]]:
        async def work() -> None: ...

        work.__name__ = work.__qualname__ = f"work_{name}"
        return work

    tasks, schedules = PAUSES | OF_TASKS, PAUSES | OF_SCHEDULES
    async with TestScheduler(pool, now=START) as t:
        for name in ("schedules", *tasks):
            t.scheduler.register(new_function(name), name=name)
        with acting_as(Author("ada")):
            for name, pause in tasks.items():
                await t.scheduler.schedule_job(name, START + 2 * HOUR, {}, job_id=name, misfire_grace_time=60)
                if pause is not None:
                    await t.scheduler.tasks.pause(name, **pause)
            for schedule_id, pause in schedules.items():
                await t.scheduler.schedules.add("schedules", Every(hours=1), schedule_id=schedule_id)
                if pause is not None:
                    await t.scheduler.schedules.pause(schedule_id, **pause)
        task_rows = await read_pauses(pool, TASK_ROWS)
        schedule_rows = await read_pauses(pool, SCHEDULE_ROWS)
        t.advance(60)
        with acting_as(Author("eve")):
            for _ in range(holds):
                await identity_of(t.scheduler).adopt(hold=True)
        assert await t.run_until(DAY) == 0
        job_ids = await pool.fetch("SELECT job_id FROM scheduled_jobs WHERE finished_at IS NULL")
        assert {row[0] for row in job_ids} >= {name for name in tasks if "suspends" in name}
        assert {row[0] for row in job_ids} <= tasks.keys()

        released = await release(t.scheduler)
        lasting = {name for name in tasks | schedules if name.startswith(("ahead", "endless"))}
        # The worker of this process also has the tasks of other modules.
        assert {name for name in released.tasks if name in tasks} == tasks.keys() - lasting
        assert {hold.name for hold in released.schedules} == schedules.keys() - lasting
        assert (released.paused_tasks, released.paused_schedules) == (3, 3)
        await t.drain()
        rows = await read_pauses(pool, TASK_ROWS)
        assert rows == {name: row for name, row in task_rows.items() if name in lasting}
        rows = {name: row for name, row in (await read_pauses(pool, SCHEDULE_ROWS)).items() if row[1]}
        assert rows == {name: row for name, row in schedule_rows.items() if name in lasting}
        # The misfire grace time has passed, but that of a job whose expiry was suspended has begun again.
        assert {name for name in tasks if t.ran(name)} == {"passes, suspends expiry"}
        rows = await read_pauses(
            pool, "SELECT options ->> 'schedule_id' FROM scheduled_jobs WHERE job_name = 'schedules'"
        )
        assert rows.keys() == {"passes, catches up"}

        await t.run_until(2 * DAY)
        endless = {name for name in lasting if name.startswith("endless")}
        assert (await read_pauses(pool, TASK_ROWS)).keys() == tasks.keys() & endless
        rows = {name: row for name, row in (await read_pauses(pool, SCHEDULE_ROWS)).items() if row[1]}
        assert rows.keys() == schedules.keys() & endless
        assert {name for name in tasks if t.ran(name)} == {
            "passes, suspends expiry",
            "ahead, suspends expiry",
        }


@pytest.mark.slow
async def test_resume_leaves_pauses_of_people_under_other_names_of_a_held_task(pool: asyncpg.Pool) -> None:
    async def work() -> None: ...

    scheduler = Scheduler(pool)
    scheduler.register(work, name="mail.send", aliases=["mail"])
    await scheduler.enqueue("mail")
    await pool.execute("UPDATE scheduled_jobs SET job_name = 'mail', function = NULL")
    await scheduler.tasks.pause("mail.send", note="by a person")
    await identity_of(scheduler).adopt(hold=True)
    held = await pool.fetchval("SELECT name FROM scheduler_tasks WHERE name <> 'mail.send'")
    assert (await release(scheduler)).tasks == [held]
    rows = await read_pauses(pool, "SELECT name, note FROM scheduler_tasks")
    assert rows == {"mail.send": ("mail.send", "by a person")}


@pytest.mark.slow
@pytest.mark.parametrize("end", ["see the wiki", "5", "null", '{"until": "Monday"}'])
async def test_resume_leaves_notes_that_only_begin_like_those_of_a_hold(pool: asyncpg.Pool, end: str) -> None:
    scheduler = Scheduler(pool)
    await scheduler.enqueue("bill")
    await scheduler.tasks.pause("bill", note=f"{HELD_INSTEAD}{end}")
    assert await release(scheduler) == ([], [], 0, 0)
    assert await pool.fetchval("SELECT count(*) FROM scheduler_tasks") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("choice", "expected"), [("adopt", 1), ("hold", 4)])
def test_worker_is_told_what_to_do_in_a_copy(call: Run, copy: str, choice: str, expected: int) -> None:
    assert work(copy, "--on-copy", choice).returncode == ExitCode.DONE
    assert len(paused(copy)) == expected
    assert values_of(copy, "SELECT name = current_database() FROM scheduler_database") == [(True,)]


@pytest.mark.slow
def test_hold_and_resume_exclude_one_another(call: Run, dsn: str) -> None:
    ran = call("adopt", "--hold", "--resume", "--dsn", dsn)
    assert (ran.code, "exclude one another" in ran.err) == (ExitCode.USAGE, True)
    ignoring = work(dsn, "--on-copy", "ignore")
    assert (ignoring.returncode, "'ignore'" in ignoring.stderr) == (ExitCode.USAGE, True)
