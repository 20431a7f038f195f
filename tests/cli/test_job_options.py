"""``jobs add``: the job has the options of its task, as a worker reports them or the code declares them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pg_scheduler import UNSET, JobPriority, Scheduler, Unique, job
from pg_scheduler.jobs.task import CODE_OPTIONS, Task
from tests.cli.conftest import Ran, Run
from tests.conftest import Connection, run_on
from tests.docs.snippets import ROOT
from tests.support.catalogues import own_registrations
from tests.support.inside import JOB_OPTIONS, TaskOptions

CODE = "tests.cli.optioned_jobs"
OPTIONS: dict[str, Any] = {
    "max_retries": 5,
    "timeout": 30,
    "priority": JobPriority.HIGH,
    "keep_result": timedelta(hours=1),
    "misfire_grace_time": 60,
}


@pytest.fixture
def on(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command on the database."""
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    monkeypatch.syspath_prepend(ROOT)
    return call


def report(dsn: str, **options: Any) -> None:
    """Leave the row of a live worker that has the task ``shop.bill``."""

    async def run(connection: Connection) -> None:
        with own_registrations():

            @job(name="shop.bill", aliases=["shop.invoice"], **options)
            async def bill(number: int = 0) -> None: ...

            async with asyncpg.create_pool(dsn, min_size=1, max_size=3) as pool, Scheduler(pool):
                await connection.execute("CREATE TABLE reported AS TABLE scheduler_workers")
        await connection.execute(
            "INSERT INTO scheduler_workers SELECT * FROM reported; "
            "UPDATE scheduler_workers SET lease_until = now() + interval '1 hour'"
        )

    run_on(dsn, run)


def row_of(dsn: str, job_id: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []

    async def run(connection: Connection) -> None:
        row = await connection.fetchrow(
            "SELECT max_retries, timeout_seconds, priority, misfire_grace_time, "
            "options ->> 'keep_result' AS keep FROM scheduled_jobs WHERE job_id = $1",
            job_id,
        )
        rows.append(dict(row or {}))

    run_on(dsn, run)
    return rows[0]


STORED = {
    "max_retries": 5,
    "timeout_seconds": 30,
    "priority": JobPriority.HIGH.db_value,
    "misfire_grace_time": 60,
    "keep": "3600.0",
}


@pytest.mark.parametrize("name", ["shop.bill", "shop.invoice"])
def test_job_has_the_options_that_a_live_worker_reports(on: Callable[..., Ran], dsn: str, name: str) -> None:
    report(dsn, **OPTIONS)
    ran = on("jobs", "add", name, "--id", "reported")
    assert ran.code == 0, ran.err
    assert f"options of the task {name!r}, as a live worker reports them" in ran.err
    assert "max_retries=5" in ran.err
    assert row_of(dsn, "reported") == STORED
    at = on("jobs", "add", name, "--id", "later", "--at", "2099-01-01T00:00Z")
    assert at.code == 0, at.err
    assert row_of(dsn, "later") == STORED


def test_given_options_precede_those_of_the_task(on: Callable[..., Ran], dsn: str) -> None:
    report(dsn, **OPTIONS)
    ran = on("jobs", "add", "shop.bill", "--id", "given", "--retries", "1", "--priority", "low")
    assert ran.code == 0, ran.err
    assert row_of(dsn, "given") == STORED | {"max_retries": 1, "priority": JobPriority.LOW.db_value}


def test_task_without_a_report_has_the_defaults_and_the_command_says_so(
    on: Callable[..., Ran], dsn: str
) -> None:
    ran = on("jobs", "add", "shop.bill", "--id", "unknown")
    assert ran.code == 0, ran.err
    assert "no live worker reports the options of the task 'shop.bill'" in ran.err
    assert "--jobs MODULE" in ran.err
    assert row_of(dsn, "unknown")["max_retries"] == 0


def test_options_that_only_the_code_can_apply_are_named(on: Callable[..., Ran], dsn: str) -> None:
    report(dsn, unique=Unique(), on_failure="shop.page")
    ran = on("jobs", "add", "shop.bill")
    assert "without unique, on_failure, which only the code can apply: pass --jobs MODULE" in ran.err


def test_metadata_of_the_task_is_merged_into_that_of_the_job(on: Callable[..., Ran], dsn: str) -> None:
    report(dsn, metadata={"team": "billing", "cost": 1})
    ran = on("jobs", "add", "shop.bill", "--id", "merged", "--metadata", '{"cost": 2}')
    assert "billing" not in ran.err, "the log of a shell may be read by others"
    assert ran.lines[0]["metadata"] == {"team": "billing", "cost": 2}


def test_code_gives_all_options(on: Callable[..., Ran], dsn: str) -> None:
    ran = on("jobs", "add", "optioned.bill", "--id", "by code", "--jobs", CODE)
    assert ran.code == 0, ran.err
    assert "options of the task" not in ran.err
    assert row_of(dsn, "by code")["max_retries"] == 7
    again = on("jobs", "add", "optioned.bill", "--jobs", CODE)
    assert again.code == 4, again.err  # the task is unique


def test_job_of_a_schedule_has_all_options_by_the_code(on: Callable[..., Ran], dsn: str) -> None:
    # A module that another test has imported is not imported again.
    Path("scheduled_code.py").write_text(
        Path(ROOT, "tests/cli/optioned_jobs.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    code = ("--jobs", "scheduled_code")
    added = on("schedules", "add", "optioned.bill", "--every", "1h", "--id", "bill", "--run-now", *code)
    assert added.code == 0, added.err
    assert on("schedules", "trigger", "bill", *code).code == 4, "the task is unique"
    filled = on("schedules", "backfill", "bill", "--from", "3h", *code)
    assert filled.code == 0, filled.err
    rows: list[Any] = []

    async def run(connection: Connection) -> None:
        rows.extend(await connection.fetch("SELECT max_retries, unique_key FROM scheduled_jobs"))

    run_on(dsn, run)
    assert [row["max_retries"] for row in rows] == [7]
    assert rows[0]["unique_key"] is not None


def test_every_option_of_a_task_is_reported_or_named_or_belongs_to_the_worker() -> None:
    of_chunks = {"chunk_wait", "chunk_by"}  # a task has them in its ``chunk``
    of_the_worker = {"retry", "executor", "limits", "typed", "version", "chunk", *of_chunks}
    known = {*JOB_OPTIONS, *CODE_OPTIONS, "metadata", "on_failure", "on_cancel", *of_the_worker}
    assert known == set(TaskOptions.__dataclass_fields__)
    assert all(hasattr(Task, name) or name in Task.__dataclass_fields__ for name in known - of_chunks)
    assert UNSET is TaskOptions().priority
