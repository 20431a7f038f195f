"""``jobs run``: now, in a worker or in this process."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from tests.cli.conftest import Ran, Run
from tests.conftest import Connection, run_on
from tests.docs.snippets import ROOT
from tests.support import inside
from tests.support.inside import ExitCode
from tests.support.patience import PATIENCE
from tests.support.world import HOUR, populate

JOBS = "tests.cli.worker_jobs"
FAR = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.fixture
def on(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Ran]:
    """Run a command on a database with four jobs, one of them without a function."""

    async def fill(_: Connection) -> None:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
            scheduler = Scheduler(pool)
            for name, args in (
                ("cliworker.write", [str(tmp_path / "pid")]),
                ("cliworker.fail", ["no such word"]),
                ("cliworker.gone", []),
                ("cliworker.index", [str(tmp_path / "indexed")]),
            ):
                await scheduler.schedule_job(name, FAR, {"args": args, "kwargs": {}}, job_id=name[10:])

    run_on(dsn, fill)
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    monkeypatch.syspath_prepend(ROOT)
    return call


def execute(dsn: str, statement: str) -> None:
    async def run(connection: Connection) -> Any:
        await connection.execute(statement)

    run_on(dsn, run)


def test_pending_job_becomes_due_now(on: Callable[..., Ran]) -> None:
    ran = on("jobs", "run", "write")
    (row,) = ran.checked("job")
    assert (ran.code, row["status"]) == (0, "pending"), ran.err
    assert datetime.fromisoformat(row["execution_time"]) < FAR
    assert "no worker is alive" in ran.err


def test_job_runs_here_and_once_more_after_its_end(on: Callable[..., Ran], tmp_path: Path) -> None:
    ran = on("jobs", "run", "write", "--here", JOBS)
    (row,) = ran.checked("job")
    assert (ran.code, row["status"], row["attempt"]) == (0, "completed", 1), ran.err
    assert (tmp_path / "pid").exists()
    again = on("jobs", "run", "write", "--here", JOBS)
    assert (again.code, again.checked("job")[0]["attempt"]) == (0, 2), again.err
    assert json.loads(on("workers", "list", "-o", "json").out)["items"] == []
    records = on("audit", "--action", "run_job").checked("audit_record")
    assert [(each["subject"], each["via"], each["details"]["attempt"]) for each in records] == [
        ("write", "cli", 2),
        ("write", "cli", 1),
    ]
    assert "@" in records[0]["actor"]


def test_job_of_a_chunk_runs_here_without_others(on: Callable[..., Ran], tmp_path: Path) -> None:
    ran = on("jobs", "run", "index", "--here", JOBS)
    assert (ran.code, ran.checked("job")[0]["status"]) == (0, "completed"), ran.err
    assert (tmp_path / "indexed").exists()


def test_job_of_a_paused_task_waits_and_runs_here_nevertheless(on: Callable[..., Ran]) -> None:
    assert on("tasks", "pause", "cliworker.write").code == 0
    waiting = on("jobs", "run", "write")
    assert (waiting.code, waiting.checked("job")[0]["status"]) == (0, "pending")
    assert "the task 'cliworker.write' was paused" in waiting.err
    ran = on("jobs", "run", "write", "--here", JOBS)
    assert (ran.code, ran.checked("job")[0]["status"]) == (0, "completed")
    assert "the task 'cliworker.write' was paused" in ran.err
    assert "; this job runs here nevertheless" in ran.err


def test_job_that_is_claimed_meanwhile_is_refused_with_its_worker(
    on: Callable[..., Ran], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is claimed after it was checked, while the worker in this process starts."""

    async def claim(*_: object) -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(
            "UPDATE scheduled_jobs SET status = 'running', attempt = 1, execution_time = now(), "
            "worker_id = 'w1', started_at = now(), last_heartbeat = now(), "
            "lease_until = now() + interval '1 h' WHERE job_id = 'write'"
        )
        await connection.close()

    inside.replace(monkeypatch, pause_before_run_here=claim)
    ran = on("jobs", "run", "write", "--here", JOBS)
    assert (ran.code, "runs on worker w1" in ran.err) == (ExitCode.REFUSED, True)


def test_failed_attempt_exits_with_1_and_is_kept(on: Callable[..., Ran]) -> None:
    ran = on("jobs", "run", "fail", "--here", JOBS)
    assert (ran.code, ran.checked("job")[0]["status"]) == (ExitCode.NEGATIVE, "failed")
    (error,) = json.loads(on("jobs", "show", "fail").out)["errors"]
    assert (error["error_type"], error["message"]) == ("LookupError", "no such word")


def test_exception_is_debugged_while_the_lease_is_kept(
    on: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("p word.upper()\nq\n"))
    ran = on("jobs", "run", "fail", "--here", JOBS, "--pdb")
    assert (ran.code, ran.checked("job")[0]["status"]) == (ExitCode.NEGATIVE, "failed")
    assert "'NO SUCH WORD'" in ran.err


def test_running_blocked_and_unknown_jobs_are_refused(on: Callable[..., Ran], dsn: str) -> None:
    execute(
        dsn,
        "UPDATE scheduled_jobs SET status = 'running', attempt = 1, execution_time = now(), "
        "worker_id = 'w1', started_at = now(), "
        "last_heartbeat = now(), lease_until = now() + interval '1 h' WHERE job_id = 'write'",
    )
    execute(dsn, "UPDATE scheduled_jobs SET blocked_on = 'limit:api' WHERE job_id = 'fail'")
    for options in ((), ("--here", JOBS)):
        running = on("jobs", "run", "write", *options)
        assert (running.code, "runs on worker w1" in running.err) == (ExitCode.REFUSED, True)
        blocked = on("jobs", "run", "fail", *options)
        assert (blocked.code, "waits for limit:api" in blocked.err) == (ExitCode.REFUSED, True)
        assert on("jobs", "run", "nothing", *options).code == ExitCode.NOT_FOUND


def test_job_whose_cancelled_attempt_still_runs_is_refused(on: Callable[..., Ran], dsn: str) -> None:
    populate(dsn, lambda world: world.worker(lease=HOUR))
    execute(
        dsn,
        "UPDATE scheduled_jobs SET status = 'cancelled', attempt = 1, finished_at = now(), worker_id = 'w1', "
        "on_end = '{\"alive\": true}' WHERE job_id = 'write'",
    )
    for options in ((), ("--here", JOBS)):
        ran = on("jobs", "run", "write", *options)
        assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
        assert ("its cancelled attempt still runs" in ran.err) == bool(options)


def test_function_that_is_not_registered_here_is_a_usage_error(on: Callable[..., Ran]) -> None:
    ran = on("jobs", "run", "gone", "--here", JOBS)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert "no function is registered as 'cliworker.gone' here" in ran.err
    assert json.loads(on("jobs", "show", "gone").out)["status"] == "pending"


@pytest.mark.slow
def test_function_of_another_name_than_the_job_is_looked_up(on: Callable[..., Ran], dsn: str) -> None:
    execute(dsn, "UPDATE scheduled_jobs SET function = 'cliworker.elsewhere' WHERE job_id = 'write'")
    ran = on("jobs", "run", "write", "--here", JOBS)
    assert (ran.code, "no function is registered as 'cliworker.elsewhere' here" in ran.err) == (
        ExitCode.USAGE,
        True,
    )
    assert json.loads(on("jobs", "show", "write").out)["status"] == "pending"
    execute(dsn, "UPDATE scheduled_jobs SET function = job_name, job_name = 'a label' WHERE job_id = 'fail'")
    assert on("jobs", "run", "fail", "--here", JOBS).checked("job")[0]["status"] == "failed"


def test_started_scheduler_is_refused(on: Callable[..., Ran]) -> None:
    ran = on("jobs", "run", "write", "--here", f"{JOBS}:started")
    assert (ran.code, "pass one that returns it before its start" in ran.err) == (ExitCode.USAGE, True)
    assert json.loads(on("jobs", "show", "write").out)["status"] == "pending"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "interrupt_handler"),
    [
        (signal.SIGINT, signal.SIG_DFL),
        (signal.SIGTERM, signal.SIG_DFL),
        (signal.SIGTERM, signal.SIG_IGN),  # as a shell starts a program in the background
    ],
)
async def test_interrupt_releases_the_job(
    dsn: str, tmp_path: Path, number: signal.Signals, interrupt_handler: signal.Handlers
) -> None:
    begun = tmp_path / "begun"
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        scheduler = Scheduler(pool)
        arguments = {"args": [str(begun), str(tmp_path / "never")], "kwargs": {}}
        await scheduler.schedule_job("cliworker.wait", FAR, arguments, job_id="long")
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "pg_scheduler", "jobs", "run", "long", "--here", JOBS],
            cwd=ROOT,
            env={**os.environ, "PG_SCHEDULER_DSN": dsn, "PYTHONPATH": str(ROOT)},
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=partial(signal.signal, signal.SIGINT, interrupt_handler),
        )
        async with asyncio.timeout(PATIENCE):
            while not begun.exists():  # noqa: ASYNC110 - of a process
                await asyncio.sleep(0.02)  # until the job has begun
            process.send_signal(number)
            _, errors = await process.communicate()
        job = await scheduler.get_job("long")
        assert job is not None
        assert (process.returncode, job.status) == (ExitCode.INTERRUPTED, "pending"), errors.decode()


def test_debugger_needs_a_target(call: Run) -> None:
    assert call("jobs", "run", "write", "--pdb").code == ExitCode.USAGE
