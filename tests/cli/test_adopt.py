"""``adopt`` lets workers start in a copy of a database, and holds or resumes what the copy has."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from pg_scheduler import Scheduler
from pg_scheduler.cli.errors import ExitCode
from pg_scheduler.triggers import Every
from tests.cli.conftest import Read, Run
from tests.conftest import Connection, run_on
from tests.docs.snippets import ROOT

LATER = timedelta(hours=1)


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
