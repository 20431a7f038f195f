"""The groups schedules and workers, against real rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

import asyncpg
import jsonschema
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.cli.errors import ExitCode
from pg_scheduler.triggers import Cron
from tests.cli.conftest import Ran, Run, schema
from tests.conftest import Connection, run_on

START = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.fixture
def on(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command on a database with two schedules and a worker."""

    async def fill(connection: Connection) -> None:
        pool = await asyncpg.create_pool(dsn, min_size=1, max_size=2)
        scheduler = Scheduler(pool)
        for name in ("daily", "report"):
            await scheduler.schedules.add("reports.send", Cron("30 2 * * *"), schedule_id=name, start=START)
        await pool.close()
        await connection.execute(
            "INSERT INTO scheduler_workers (worker_id, hostname, pid, version, max_concurrent_jobs, "
            "started_at, last_beat, lease_until) "
            "VALUES ('w1', 'host', 7, '1.0', 25, now(), now(), now() + interval '1 h')"
        )

    run_on(dsn, fill)
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    monkeypatch.setenv("PG_SCHEDULER_TZ", "utc")
    return call


def test_schedules_are_listed_by_page_and_shown(on: Callable[..., Ran]) -> None:
    first = json.loads(on("schedules", "list", "--limit", "1", "-o", "json").out)
    jsonschema.validate(first, schema("list"))
    assert (first["items"][0]["schedule_id"], first["next"]) == ("daily", "daily")
    assert [
        line["schedule_id"] for line in on("schedules", "list", "--after", "daily").checked("schedule")
    ] == ["report"]
    jsonschema.validate(json.loads(on("schedules", "show", "report").out), schema("schedule"))
    assert "2099-01-01 02:30:00+00:00" in on("schedules", "list", "-o", "table").out
    assert on("schedules", "list", "-o", "table").out.splitlines()[1].split()[1] == "reports.send"


def test_schedule_is_paused_resumed_and_triggered(on: Callable[..., Ran]) -> None:
    assert on("schedules", "pause", "report", "--note", "holiday").checked("action")[0]["result"] == "paused"
    shown = json.loads(on("schedules", "show", "report").out)
    assert (shown["note"], shown["paused_at"] is None) == ("holiday", False)
    assert on("schedules", "resume", "report", "--from", "pause").checked("action")[0]["result"] == "resumed"
    again = on("schedules", "resume", "report")
    assert (again.code, "schedule 'report' is not paused" in again.err) == (ExitCode.REFUSED, True)
    on("schedules", "pause", "report")
    assert on("schedules", "resume", "report", "--from", "2099-01-01T00:00:00+00:00").code == 0
    on("schedules", "pause", "report")
    assert on("schedules", "resume", "report", "--from", "1x").code == ExitCode.USAGE
    assert on("schedules", "resume", "report", "--from", "2099-99-99").code == ExitCode.USAGE
    assert on("schedules", "resume", "report").code == 0
    assert json.loads(on("schedules", "show", "report").out)["paused_at"] is None
    (action,) = on("schedules", "trigger", "report").checked("action")
    assert json.loads(on("jobs", "show", action["job_id"]).out)["schedule_id"] == "report"


def test_preview_prints_the_next_fire_times(on: Callable[..., Ran]) -> None:
    ran = on("schedules", "preview", "daily", "-n", "2")
    assert [line["fire_time"] for line in ran.checked("fire_time")] == [
        "2099-01-01T02:30:00Z",
        "2099-01-02T02:30:00Z",
    ]


@pytest.mark.parametrize("command", ["show", "pause", "resume", "trigger", "preview"])
def test_unknown_schedule_exits_with_3(on: Callable[..., Ran], command: str) -> None:
    ran = on("schedules", command, "nothing")
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    assert "schedule 'nothing' does not exist" in ran.err


def test_task_in_place_of_a_schedule_suggests_its_schedules(on: Callable[..., Ran]) -> None:
    ran = on("schedules", "show", "reports.send")
    assert ran.code == ExitCode.NOT_FOUND
    assert "schedules of the task 'reports.send': daily, report" in ran.err


def test_workers_are_listed(on: Callable[..., Ran]) -> None:
    (worker,) = on("workers", "list").checked("worker")
    assert (worker["worker_id"], worker["is_alive"]) == ("w1", True)
    shown = on("workers", "list", "-o", "table").out.splitlines()[1].split()
    assert shown[:5] == ["w1", "yes", "-", "0", "25"]
