"""The groups tasks and workers, against real rows and real workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import jsonschema
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.errors import DatabaseUnavailableError
from tests.cli.conftest import Ran, Run, schema
from tests.conftest import Connection, run_on
from tests.support import inside
from tests.support.golden import golden
from tests.support.inside import ExitCode
from tests.support.worker import PATIENCE, Gate
from tests.support.world import HOUR, MINUTE, World, populate

GOLDEN = Path(__file__).with_name("golden")
NOTE = "the mail server is down until the provider has replaced a disk in the second data centre"


def execute(dsn: str, statement: str) -> None:
    async def run(connection: Connection) -> None:
        await connection.execute(statement)

    run_on(dsn, run)


@pytest.fixture
def on(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command on a database with due jobs, a paused task and a worker."""

    async def fill(world: World) -> None:
        due = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        await world.jobs(3, "mail.send", job_id="mail:{}".format, due=due)
        await world.worker(
            pid=7,
            version="1.0",
            max_concurrent_jobs=25,
            running_jobs=0,
            names=["mail.send", "report.build"],
            state="running",
            health={"loop_lag_s": 0.25},
            settings={"limits": [{"task": "mail.send", "name": "smtp", "max_running": 2}]},
            started=datetime(2026, 1, 1, tzinfo=UTC),
            lease=HOUR,
        )

    populate(dsn, fill)
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    monkeypatch.setenv("PG_SCHEDULER_TZ", "utc")
    return call


def test_task_is_paused_listed_and_resumed(on: Callable[..., Ran], dsn: str) -> None:
    ran = on("tasks", "pause", "mail.send", "--note", NOTE, "--until", "2099-01-02T03:04:05")
    (change,) = ran.checked("task_change")
    assert (change["result"], change["due"]) == ("paused", 3)
    assert change["paused_until"] == "2099-01-02T03:04:05Z"
    assert "held back: 3 due jobs\n0 waiting jobs would expire" in ran.err
    (task,) = on("tasks", "list", "--paused").checked("task")
    assert (task["name"], task["note"], task["paused_until"]) == ("mail.send", NOTE, "2099-01-02T03:04:05Z")
    assert "@" in task["actor"]
    again = on("tasks", "pause", "mail.send", "--note", NOTE, "--until", "2099-01-02T03:04:05")
    assert again.checked("task_change")[0]["result"] == "unchanged"
    assert on("tasks", "resume", "mail.send").checked("task_change")[0]["result"] == "resumed"
    assert on("tasks", "list", "--paused").out == ""
    assert [task["name"] for task in on("tasks", "list").checked("task")] == ["mail.send", "report.build"]


def test_pause_reports_the_jobs_that_would_expire(
    on: Callable[..., Ran], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill(world: World) -> None:
        for name in ("mail.send", "other"):
            await world.jobs(4, name, due=lambda n: n * HOUR, expires_at=lambda n: n * HOUR + 5 * MINUTE)

    populate(dsn, fill)

    def pause(*options: str) -> tuple[int, bool, str]:
        ran = on("tasks", "pause", "mail.send", *options)
        (change,) = ran.checked("task_change")
        return change["would_expire"], change["would_expire_is_capped"], ran.err

    number, is_capped, message = pause("--until", "2h30m")
    assert (number, is_capped) == (2, False), "those that expire before the end"
    assert "2 waiting jobs would expire during the pause, by the misfire grace time\n" in message
    assert pause()[:2] == (4, False), "without an end, those that have a misfire grace time"
    inside.replace(monkeypatch, backlog_rows=3)
    number, is_capped, message = pause()
    assert (number, is_capped) == (0, True)
    assert "0+ waiting jobs would expire" in message
    (resumed,) = on("tasks", "resume", "mail.send").checked("task_change")
    assert resumed["would_expire"] is None


def test_pause_whose_jobs_cannot_be_counted_is_reported_as_a_pause(
    on: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise DatabaseUnavailableError("the statement took too long")

    inside.replace(monkeypatch, count_of_expiring=fail)
    ran = on("tasks", "pause", "mail.send")
    (change,) = ran.checked("task_change")
    assert (ran.code, change["result"], change["would_expire"]) == (0, "paused", None)
    assert "would expire during the pause were not counted: the statement took too long\n" in ran.err


def test_pause_that_suspends_expiry_says_that_no_job_expires(on: Callable[..., Ran]) -> None:
    ran = on("tasks", "pause", "mail.send", "--suspend-expiry")
    (change,) = ran.checked("task_change")
    assert (ran.code, change["result"], change["would_expire"]) == (0, "paused", 0)
    assert "no job expires during the pause" in ran.err


def test_tasks_have_the_figures_of_the_last_hour(on: Callable[..., Ran], dsn: str) -> None:
    execute(
        dsn,
        """
        INSERT INTO scheduler_stats (bucket, span, job_name, counts, sums, run_hist, late_hist)
        SELECT date_trunc('minute', now()) - hours * interval '1 hour', 60, 'mail.send',
            ARRAY [0, 9, 5, 1, 3, 0, 0, 0, 0, 0, 0], ARRAY [5.4, 0.1],
            array_fill(0, ARRAY [20]) || 9 || array_fill(0, ARRAY [27]), array_fill(0, ARRAY [48])
        FROM generate_series(0, 2, 2) AS hours
        """,
    )
    mail, report = on("tasks", "list").checked("task")
    assert (mail["started"], mail["failed"], mail["failure_rate"]) == (9, 4, 0.444)
    assert (mail["run_p50_s"], mail["run_p95_s"]) == (0.6, 0.6), "the mean, because all are in one bucket"
    assert (report["started"], report["run_p50_s"], report["failure_rate"]) == (0, None, None)


def test_tasks_have_their_limits_and_who_registers_them(on: Callable[..., Ran], dsn: str) -> None:
    mail, report = on("tasks", "list").checked("task")
    assert (mail["limits"], mail["hosts"], mail["releases"]) == (["smtp"], ["host"], ["1.0"])
    assert (report["limits"], report["hosts"]) == ([], ["host"])
    execute(dsn, "UPDATE scheduler_workers SET lease_until = now() - interval '1 h'")
    (mail,) = on("tasks", "list").checked("task")
    assert (mail["limits"], mail["hosts"], mail["releases"]) == ([], [], [])


def test_workers_have_the_lag_of_their_event_loop(on: Callable[..., Ran], dsn: str) -> None:
    (worker,) = on("workers", "list").checked("worker")
    assert worker["loop_lag_s"] == 0.25
    assert "0.25" in on("workers", "list", "-o", "table").out
    execute(dsn, """UPDATE scheduler_workers SET health = '{"loop_lag_s": "long"}'""")
    (worker,) = on("workers", "list").checked("worker")
    assert worker["loop_lag_s"] is None


def test_pause_of_an_unknown_name_suggests_the_nearest(on: Callable[..., Ran]) -> None:
    ran = on("tasks", "pause", "mail.sned", "--until", "2h")
    assert ran.code == 0
    assert (
        "no worker claims the name 'mail.sned', and no job of it is due; did you mean mail.send?" in ran.err
    )


def test_pause_of_an_alias_counts_the_due_jobs_of_its_task(on: Callable[..., Ran], dsn: str) -> None:
    aliases = """'{"aliases": {"periodic_mail": "mail.send"}}'"""
    execute(dsn, f"UPDATE scheduler_workers SET settings = {aliases}")
    ran = on("tasks", "pause", "periodic_mail")
    assert "no worker claims" not in ran.err
    assert "held back: 3 due jobs" in ran.err


def test_resume_of_a_task_that_is_not_paused_exits_with_4(on: Callable[..., Ran]) -> None:
    on("tasks", "pause", "report.build")
    ran = on("tasks", "resume", "mail.send")
    assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
    assert "task 'mail.send' is not paused; paused tasks: report.build" in ran.err


@pytest.mark.parametrize("until", ["soon", "2020-01-01", "0s", "99999999d"])
def test_wrong_end_of_a_pause_exits_with_2(on: Callable[..., Ran], until: str) -> None:
    ran = on("tasks", "pause", "mail.send", "--until", until)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")


@pytest.mark.parametrize("width", [80, 200])
def test_task_table_fits_the_width(
    on: Callable[..., Ran], width: int, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = datetime(2026, 1, 2, tzinfo=UTC)
    populate(dsn, lambda world: world.paused_task("mail.send", paused=paused, note=NOTE, actor="ada@host"))
    monkeypatch.setenv("COLUMNS", str(width))
    ran = on("tasks", "list", "-o", "table" if width == 80 else "wide")
    assert ran.out == golden(GOLDEN / f"tasks-{width}.txt", ran.out)
    assert width == 200 or max(map(len, ran.out.splitlines())) <= width


def test_worker_is_shown_with_its_names(on: Callable[..., Ran]) -> None:
    document = json.loads(on("workers", "show", "w1").out)
    jsonschema.validate(document, schema("worker"))
    assert document["names"] == ["mail.send", "report.build"]
    assert "mail.send" in on("workers", "show", "w1", "-o", "table").out
    assert on("workers", "show", "w2").code == ExitCode.NOT_FOUND


def test_requests_report_every_worker_and_unknown_ones_exit_with_3(on: Callable[..., Ran]) -> None:
    ran = on("workers", "drain", "w1", "w2")
    assert ran.code == ExitCode.NOT_FOUND
    assert [(row["worker_id"], row["result"]) for row in ran.checked("request")] == [
        ("w1", "draining"),
        ("w2", "not found"),
    ]
    assert [row["result"] for row in on("workers", "resume", "--all").checked("request")] == ["resumed"]
    again = on("workers", "resume", "w1")
    assert (again.code, again.checked("request")[0]["result"]) == (ExitCode.REFUSED, "not draining")


@pytest.mark.parametrize("arguments", [(), ("w1", "--all"), ("w1", "--wait", "--timeout", "soon")])
def test_wrong_choice_of_workers_exits_with_2(on: Callable[..., Ran], arguments: tuple[str, ...]) -> None:
    assert on("workers", "drain", *arguments).code == ExitCode.USAGE


def test_drain_rejects_a_timeout_without_wait(on: Callable[..., Ran]) -> None:
    ran = on("workers", "drain", "w1", "--timeout", "90s")
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert "--timeout needs --wait" in ran.err
    (worker,) = [row for row in on("workers", "list").checked("worker") if row["worker_id"] == "w1"]
    assert worker["state"] == "running"


@pytest.mark.slow
async def test_drain_waits_until_the_running_jobs_have_ended(
    call: Run, dsn: str, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    scheduler, gate = Scheduler(pool), Gate()
    scheduler.register(gate.job, name="clitasks.gate")
    async with scheduler, asyncio.timeout(2 * PATIENCE):
        await scheduler.enqueue("clitasks.gate")
        await gate.wait_begun()
        drain = ("workers", "drain", "--all", "--wait")
        late = await asyncio.to_thread(call, *drain, "--timeout", "0.1s")
        assert (late.code, late.checked("request")[0]["result"]) == (ExitCode.TIMEOUT, "draining")
        assert "jobs still run after 0.1s" in late.err
        waiting: asyncio.Task[Any] = asyncio.create_task(asyncio.to_thread(call, *drain))
        gate.open.set()
        ran = await waiting
        assert ran.code == 0, ran.err
        (row,) = ran.checked("request")
        assert row == {"v": 1, "worker_id": scheduler.worker_id, "result": "drained", "running_jobs": 0}
        (worker,) = await scheduler.workers()
        assert (worker.state, worker.wanted) == ("draining", "drain")
