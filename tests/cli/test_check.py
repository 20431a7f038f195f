"""The command check, against a real database."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.inspect import DeployCode
from pg_scheduler.triggers import Every
from tests.cli.conftest import Ran, Read, Run, schema
from tests.docs.snippets import ROOT
from tests.support import inside
from tests.support.golden import golden
from tests.support.inside import ExitCode
from tests.support.world import World, populate

GOLDEN = Path(__file__).with_name("golden")
JOBS = "tests.cli.worker_jobs"
HOSTILE = "\x1b[31mx"
Fill = Callable[[World], Coroutine[Any, Any, None]]


def insert(dsn: str, *jobs: tuple[str, str, list[str]]) -> None:
    """Insert jobs with ids, names and arguments."""

    async def fill(world: World) -> None:
        for job_id, name, args in jobs:
            await world.job(job_id, name, task_data={"args": args})

    populate(dsn, fill)


@pytest.fixture
def on(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command on a database with jobs of which some do not fit."""
    insert(
        dsn,
        ("1", "cliworker.write", ["/tmp/x"]),
        ("2", "cliworker.old", []),
        ("3", "shop.gone", []),
        ("4", "shop.gone", []),
    )
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    monkeypatch.setattr("tests.cli.worker_jobs.DSN", dsn, raising=True)
    monkeypatch.syspath_prepend(ROOT)
    return call


@pytest.mark.parametrize("target", [JOBS, f"{JOBS}:context"])
def test_findings_are_objects_with_reasons_counts_and_ids(on: Callable[..., Ran], target: str) -> None:
    ran = on("check", target)
    assert ran.code == ExitCode.NEGATIVE
    gone, arguments = ran.checked("check")
    assert (gone["code"], gone["name"], gone["count"], gone["ids"]) == (
        "NAME-UNKNOWN",
        "shop.gone",
        2,
        ["3", "4"],
    )
    assert (arguments["code"], arguments["name"], arguments["ids"]) == ("ARGUMENTS", "cliworker.old", ["2"])
    assert "missing a required argument: 'path'" in arguments["reason"]
    assert ran.err == "2 errors; examined all of 4 unfinished jobs and 0 schedules\n"
    document = json.loads(on("check", target, "-o", "json").out)
    jsonschema.validate(document, schema("list"))
    assert (document["severity"], document["jobs"], document["total"]) == ("error", 4, 4)
    assert (document["schedules"], document["is_complete"]) == (0, True)


@pytest.mark.parametrize("width", [80, 200])
def test_table_of_findings_fits_the_width(
    on: Callable[..., Ran], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = on("check", JOBS, "-o", "table")
    assert max(map(len, ran.out.splitlines())) <= width
    assert ran.out == golden(GOLDEN / f"check-{width}.txt", ran.out)


def test_exit_code_is_1_from_the_severity_of_fail_on(on: Callable[..., Ran]) -> None:
    assert on("check", JOBS, "--name", "cliworker.write").code == ExitCode.DONE
    ran = on("check", JOBS, "--name", "cliworker.write", "--most", "1")
    assert (ran.code, ran.lines[0]["code"]) == (ExitCode.DONE, "NOT-EXAMINED")
    assert on("check", JOBS, "--name", "cliworker.write", "--most", "1", "--fail-on", "warning").code == 1
    assert on("check", JOBS, "--name", "cliworker.old").code == ExitCode.NEGATIVE


async def add_order(world: World, steps: Sequence[dict[str, Any]] = (), **columns: Any) -> None:
    """Add a job that fits, except for these columns, with stored steps."""
    order = {"job_id": "1", "name": "clichecked.order", "task_data": {"args": [7]}, "options": {"steps": 1}}
    await world.job(**{**order, **columns})
    for step in steps:
        await world.step("1", **step)


async def rename_task(world: World) -> None:
    """Let the schedule have a task that does not exist."""
    await world.pool.execute("UPDATE scheduler_schedules SET task = 'clichecked.gone'")


async def add_two_orders(world: World) -> None:
    """Add a job more than is examined."""
    await add_order(world)
    await add_order(world, job_id="2")


@pytest.mark.parametrize(
    ("code", "fill", "exits"),
    [
        (DeployCode.NAME_UNKNOWN, partial(add_order, name="clichecked.gone"), (1, 1)),
        (DeployCode.ARGUMENTS, partial(add_order, task_data={"args": []}), (1, 1)),
        (DeployCode.ALERT, partial(add_order, on_end={"on_failure": "clichecked.gone"}), (0, 1)),
        (DeployCode.KEY, partial(add_order, task_data={"args": [700]}), (1, 1)),
        (DeployCode.SCHEDULE, rename_task, (1, 1)),
        (DeployCode.STEP_TYPE, partial(add_order, steps=[{"name": "quote", "value": "seven"}]), (1, 1)),
        (
            DeployCode.STEP_KIND,
            partial(add_order, steps=[{"name": "quote", "value": 7, "kind": "sleep"}]),
            (1, 1),
        ),
        (DeployCode.STEP_GONE, partial(add_order, steps=[{"name": "quota", "value": 7}]), (0, 1)),
        (DeployCode.NOT_EXAMINED, add_two_orders, (0, 1)),
        (DeployCode.VERSION, partial(add_order, steps=[{"name": "quote", "value": 7}]), (0, 0)),
    ],
    ids=lambda each: each if isinstance(each, DeployCode) else "",
)
def test_each_finding_has_the_exit_code_of_its_severity(  # noqa: PLR0917 - fixtures
    call: Run, dsn: str, read: Read, code: DeployCode, fill: Fill, exits: tuple[int, int]
) -> None:
    async def prepare(scheduler: Scheduler) -> None:
        hour = Every(timedelta(hours=1))
        await scheduler.schedules.add("clichecked.order", hour, schedule_id="hourly", args=(7,))
        await fill(World(scheduler.db_pool))

    read(prepare)
    command = ["check", "tests.cli.checked_jobs", "--dsn", dsn, "--name", "clichecked.*", "--most", "1"]
    found = {each["code"] for each in call(*command).lines} - {DeployCode.VERSION}
    assert found == {code} - {DeployCode.VERSION}
    assert tuple(call(*command, "--fail-on", severity).code for severity in ("error", "warning")) == exits
    assert call(*command).code == exits[0], "the default is error"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((f"{JOBS}:plane",), "did you mean plain?"),
        ((f"{JOBS}:context", "--schema", "x"), "connected by its own pool; omit --schema"),
        ((JOBS, "--most", "0"), "--most"),
        ((JOBS, "--fail-on", "info"), "--fail-on"),
        ((JOBS, "--name", ""), "name must not be empty"),
        ((f"{JOBS}:started",), "starts its Scheduler, which runs jobs"),
        ((), "TARGET"),
    ],
)
def test_wrong_arguments_exit_with_2(
    on: Callable[..., Ran], arguments: tuple[str, ...], message: str
) -> None:
    ran = on("check", *arguments)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert message in ran.err


def test_module_without_jobs_is_an_error_whatever_the_database_has(
    call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, registered_names=lambda _: [])
    ran = call("check", JOBS, "--dsn", dsn)
    assert ran.code == ExitCode.NEGATIVE
    assert "no function is registered" in ran.err


def test_module_that_exits_is_no_code_that_fits(
    call: Run, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "check_of_a_script.py").write_text("import sys\n\nsys.exit(0)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    ran = call("check", "check_of_a_script", "--dsn", dsn)
    assert ran.code == ExitCode.USAGE
    assert "check_of_a_script cannot be imported: SystemExit: 0" in ran.err


def test_unavailable_database_exits_with_5_and_one_without_tables_with_6(
    on: Callable[..., Ran], empty_dsn: str
) -> None:
    assert on("check", JOBS, "--dsn", "postgresql://app@127.0.0.1:1/app").code == ExitCode.UNAVAILABLE
    assert on("check", JOBS, "--dsn", empty_dsn).code == ExitCode.SCHEMA


def test_names_of_jobs_do_not_reach_the_terminal_as_they_are(on: Callable[..., Ran], dsn: str) -> None:
    insert(dsn, (HOSTILE, HOSTILE, []))
    ran = on("check", JOBS, "-o", "wide")
    assert "\\x1b[31mx" in ran.out
    assert "\x1b" not in ran.out + ran.err
