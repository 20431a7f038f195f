"""The command audit, against records that other commands wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import pytest

from tests.cli.conftest import Ran, Run, schema
from tests.support.golden import golden
from tests.support.inside import ExitCode
from tests.support.world import World, populate

GOLDEN = Path(__file__).with_name("golden")


@pytest.fixture
def on(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command on a database with two records."""

    async def fill(world: World) -> None:
        search = {"where": "status:pending name:mail.*", "count": 500, "host": "db-1"}
        first, last = (datetime(2026, 11, day, 10, tzinfo=UTC) for day in (20, 21))
        await world.audit("cancel_jobs", at=first, actor="ada@db-1", details=search)
        await world.audit(
            "update_schedule", "nightly-report", at=last, actor="pod-7", via="code", details={"release": "v7"}
        )

    populate(dsn, fill)
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    monkeypatch.setenv("PG_SCHEDULER_TZ", "utc")
    return call


def test_audit_prints_the_newest_records_first(on: Callable[..., Ran]) -> None:
    ran = on("audit")
    assert [line["action"] for line in ran.checked("audit_record")] == ["update_schedule", "cancel_jobs"]
    assert "2 records found, all records searched" in ran.err
    first = json.loads(on("audit", "--limit", "1", "-o", "json").out)
    jsonschema.validate(first, schema("list"))
    second = on("audit", "--after", first["next"])
    assert [line["details"]["count"] for line in second.lines] == [500]


@pytest.mark.parametrize(
    ("filters", "actions"),
    [
        (("--actor", "ada@db-1"), ["cancel_jobs"]),
        (("--action", "update_schedule"), ["update_schedule"]),
        (("--subject", "nightly-report"), ["update_schedule"]),
        (("--via", "cli"), ["cancel_jobs"]),
        (("--since", "2026-11-21", "--until", "2026-11-22"), ["update_schedule"]),
        (("--since", "1s"), []),
    ],
)
def test_audit_filters(on: Callable[..., Ran], filters: tuple[str, ...], actions: list[str]) -> None:
    assert [line["action"] for line in on("audit", *filters).lines] == actions


def test_unknown_action_is_named_with_a_suggestion(on: Callable[..., Ran]) -> None:
    ran = on("audit", "--action", "cancel_job")
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert "unknown action 'cancel_job'; did you mean cancel_jobs?" in ran.err
    assert "actions: add_schedule, " in on("audit", "--action", "x").err
    known = on("audit", "--action", "move_jobs")
    assert (known.code, "unknown" in known.err) == (0, False)


@pytest.mark.parametrize("width", [80, 200])
def test_table_of_records_fits_the_width(
    on: Callable[..., Ran], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = on("audit", "-o", "wide" if width == 200 else "table")
    assert ran.out == golden(GOLDEN / f"audit-{width}.txt", ran.out)


@pytest.mark.parametrize("option", [("--since", "soon"), ("--after", "x"), ("--limit", "0")])
def test_wrong_option_is_a_usage_error(on: Callable[..., Ran], option: tuple[str, str]) -> None:
    ran = on("audit", *option)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert option[0].strip("-") in ran.err


def test_actions_of_the_command_line_name_the_user(on: Callable[..., Ran]) -> None:
    assert on("jobs", "cancel", "nothing").code == ExitCode.NOT_FOUND
    assert len(on("audit").lines) == 2, "nothing was changed"
    assert on("tasks", "pause", "mail.send").code == 0
    assert on("tasks", "resume", "mail.send").code == 0
    newest, older = on("audit", "--limit", "2").lines
    assert (newest["action"], older["action"]) == ("resume_task", "pause_task")
    assert newest["via"] == "cli"
    assert "@" in newest["actor"]
