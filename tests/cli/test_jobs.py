"""The group jobs, against real rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import jsonschema
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.triggers import Every
from tests.cli.conftest import Ran, Run, schema
from tests.conftest import Connection, run_on
from tests.support.golden import golden
from tests.support.inside import ExitCode

GOLDEN = Path(__file__).with_name("golden")
DUE = datetime(2099, 1, 2, 3, 4, 5, tzinfo=UTC)
HOSTILE = "\x1b[31m<script>\u202e"


@pytest.fixture
def on(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command on a database with five jobs."""

    async def fill(connection: Connection) -> None:
        pool = await asyncpg.create_pool(dsn, min_size=1, max_size=2)
        scheduler = Scheduler(pool)
        for number in range(4):
            data: dict[str, Any] = {"kwargs": {"to": f"user-{number}"}}
            due = DUE + timedelta(hours=number)
            await scheduler.schedule_job("mail.send", due, data, job_id=f"mail:{number}")
        await scheduler.schedule_job(HOSTILE, DUE, {}, job_id="hostile")
        await pool.close()
        await connection.execute(
            "UPDATE scheduled_jobs SET status = 'failed', finished_at = now(), attempt = 2, "
            "error_message = 'SMTPError: the server ' || repeat('is busy ', 12) WHERE job_id = 'mail:3'"
        )
        await connection.execute(
            "UPDATE scheduled_jobs SET errors = $1 WHERE job_id = 'mail:3'",
            json.dumps(
                [{"attempt": 2, "outcome": "error", "traceback": "Traceback:\n  x.py\x1b", "log": ["sent"]}]
            ),
        )
        await connection.execute(
            "UPDATE scheduled_jobs SET created_at = '2026-01-01Z', "
            """task_data = jsonb_set(task_data, '{metadata}', '{"tenant": 1}')"""
        )

    run_on(dsn, fill)
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    monkeypatch.setenv("PG_SCHEDULER_TZ", "utc")
    return call


def test_list_prints_what_a_search_finds_and_how_far_it_got(on: Callable[..., Ran]) -> None:
    ran = on("jobs", "list", "name:mail.*", "status:pending")
    assert ran.code == 0, ran.err
    assert {line["job_id"] for line in ran.checked("job")} == {"mail:0", "mail:1", "mail:2"}
    assert "3 found" in ran.err
    assert on("jobs", "list", "status:failed", "-o", "ids").out == "mail:3\n"
    both = on("jobs", "list", "status:pending", "status:failed")
    assert (both.out, "write status:pending,failed" in both.err) == ("", True)
    empty = on("jobs", "list", "name:nothing", "-o", "table")
    assert (empty.code, empty.out) == (0, "ID  NAME  STATUS  DUE  ATTEMPT  ERROR\n")
    assert "0 found" in empty.err


def test_list_continues_after_a_page(on: Callable[..., Ran]) -> None:
    page = on("jobs", "list", "--limit", "3", "-o", "json")
    first = json.loads(page.out)
    jsonschema.validate(first, schema("list"))
    second = on("jobs", "list", "--after", first["next"])
    ids = [item["job_id"] for item in (*first["items"], *second.lines)]
    assert sorted(ids) == ["hostile", "mail:0", "mail:1", "mail:2", "mail:3"]
    assert f"--after '{first['next']}'" in page.err


def test_list_is_sorted_by_the_order_that_was_asked_for(on: Callable[..., Ran]) -> None:
    def ids(*arguments: str) -> list[str]:
        return on("jobs", "list", *arguments, "-o", "ids").out.split()

    assert ids("--sort", "due", "name:mail.*") == ["mail:0", "mail:1", "mail:2"]
    assert ids("--sort", "finished") == ["mail:3"]
    assert ids("--sort", "id") == ["mail:3", "mail:2", "mail:1", "mail:0", "hostile"]
    assert "--sort finished lists failed, expired and cancelled jobs only" in (
        on("jobs", "list", "--sort", "finished").err
    )
    assert on("jobs", "list", "--sort", "name").code == ExitCode.USAGE


def test_columns_are_those_that_were_asked_for(on: Callable[..., Ran], dsn: str) -> None:
    async def report(connection: Connection) -> None:
        await connection.execute(
            'UPDATE scheduled_jobs SET progress = \'{"done": 3, "total": 10, "note": "rows"}\','
            ' task_data = jsonb_set(task_data, \'{metadata}\', \'{"tags": ["red", "blue"]}\')'
            " WHERE job_id = 'mail:0'"
        )

    run_on(dsn, report)
    chosen = ("jobs", "list", "id:mail:0", "--columns", "tags, job_id,progress,tags")
    assert on(*chosen, "-o", "table").out.splitlines() == [
        "TAGS       ID      PROGRESS",
        "red, blue  mail:0  3 of 10: rows",
    ]
    assert on(*chosen, "-o", "csv").out == 'tags,job_id,progress\n"red, blue",mail:0,3 of 10: rows\n'
    (job,) = on(*chosen).checked("job")
    assert (job["tags"], job["job_name"]) == (["red", "blue"], "mail.send"), "objects have every key"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("job_id,tgas", "unknown column 'tgas'; did you mean tags?"),
        (",", "--columns names no column"),
        ("x9", "columns: job_id, job_name,"),
    ],
)
def test_unknown_column_is_a_usage_error(on: Callable[..., Ran], columns: str, message: str) -> None:
    ran = on("jobs", "list", "--columns", columns)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert message in ran.err


@pytest.mark.parametrize("width", [80, 200])
def test_table_of_jobs_fits_the_width(
    on: Callable[..., Ran], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = on("jobs", "list", "name:mail.*", "-o", "table")
    assert max(map(len, ran.out.splitlines())) <= width
    assert ran.out == golden(GOLDEN / f"jobs-{width}.txt", ran.out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("stats:failed",), "did you mean"),
        (("--limit", "0"), "limit"),
        (("--after", "nonsense"), "after"),
    ],
)
def test_invalid_search_is_a_usage_error(
    on: Callable[..., Ran], arguments: tuple[str, ...], message: str
) -> None:
    ran = on("jobs", "list", *arguments)
    assert ran.code == ExitCode.USAGE
    assert message in ran.err


def test_show_prints_the_row_and_can_omit_the_arguments(on: Callable[..., Ran]) -> None:
    document = json.loads(on("jobs", "show", "mail:0").out)
    jsonschema.validate(document, schema("shown_job"))
    assert (document["kwargs"], document["metadata"]) == ({"to": "user-0"}, {"tenant": 1})
    bare = on("jobs", "show", "mail:0", "--no-arguments")
    jsonschema.validate(json.loads(bare.out), schema("shown_job"))
    assert "user-0" not in bare.out
    table = on("jobs", "show", "mail:0", "-o", "table")
    assert "2099-01-02 03:04:05+00:00" in table.out
    assert "user-0" not in on("jobs", "show", "mail:0", "--no-arguments", "-o", "table").out


def test_show_prints_the_traceback_and_the_log_of_failed_attempts(on: Callable[..., Ran]) -> None:
    shown = on("jobs", "show", "mail:3", "-o", "table").out
    assert shown.endswith("\nattempt 1: error:\nTraceback:\n  x.py\\x1b\nsent\n")
    for arguments in ((), ("-o", "table")):
        bare = on("jobs", "show", "mail:3", "--no-arguments", *arguments).out
        assert ("x.py" in bare, "sent" in bare) == (True, False), "a log can contain arguments"


def test_show_has_the_timeline(on: Callable[..., Ran]) -> None:
    shown = json.loads(on("jobs", "show", "mail:3").out)
    titles = [event["title"] for event in shown["timeline"]]
    assert titles == ["created", "attempt 1: error", "failed", "due"], "in the order of their times"
    assert shown["timeline"][0]["at"] == "2026-01-01T00:00:00Z"
    pending = json.loads(on("jobs", "show", "mail:0").out)["timeline"]
    assert [(event["title"], event["is_ahead"]) for event in pending] == [
        ("created", False),
        ("attempt 1 due", True),
        ("expires 5 min after its due time unless it has started", True),
    ]
    table = on("jobs", "show", "mail:0", "-o", "table").out
    assert (
        "\ntimeline:\n2026-01-01 00:00:00+00:00  created\n2099-01-02 03:04:05+00:00  attempt 1 due\n" in table
    )


def test_show_has_the_result_that_no_arguments_hides(on: Callable[..., Ran], dsn: str) -> None:
    async def finish(connection: Connection) -> None:
        await connection.execute(
            "UPDATE scheduled_jobs SET status = 'completed', finished_at = now(), attempt = 1"
            " WHERE job_id = 'mail:0'"
        )
        await connection.execute(
            "INSERT INTO scheduler_results (job_id, status, value, attempts, finished_at, expires_at)"
            " SELECT job_id, status, '{\"sent\": 42}', attempt, finished_at, finished_at + interval '1 h'"
            " FROM scheduled_jobs WHERE job_id = 'mail:0'"
        )

    assert json.loads(on("jobs", "show", "mail:0").out)["result"] is None
    run_on(dsn, finish)
    shown = json.loads(on("jobs", "show", "mail:0").out)
    jsonschema.validate(shown, schema("shown_job"))
    jsonschema.validate(shown["result"], schema("result"))
    assert shown["result"]["value"] == {"sent": 42}
    assert re.search(r'^result +{"sent": 42}$', on("jobs", "show", "mail:0", "-o", "table").out, re.MULTILINE)
    bare = on("jobs", "show", "mail:0", "--no-arguments")
    assert json.loads(bare.out)["result"] is None
    assert "sent" not in on("jobs", "show", "mail:0", "--no-arguments", "-o", "table").out


def test_show_has_the_jobs_that_it_waits_for_and_those_of_its_schedule(
    on: Callable[..., Ran], dsn: str
) -> None:
    async def fill(_: Connection) -> None:
        pool = await asyncpg.create_pool(dsn, min_size=1, max_size=2)
        scheduler = Scheduler(pool)
        await scheduler.schedule_job("mail.send", DUE, {}, job_id="child", after=["mail:0", "mail:1"])
        await scheduler.schedules.add("mail.send", Every(timedelta(hours=1)), schedule_id="hourly")
        await pool.close()

    run_on(dsn, fill)
    child = json.loads(on("jobs", "show", "child").out)
    jsonschema.validate(child, schema("shown_job"))
    pending = [{"job_id": f"mail:{number}", "status": "pending"} for number in range(2)]
    assert child["parents"] == pending
    assert "mail:0 (pending), mail:1 (pending)" in on("jobs", "show", "child", "-o", "table").out
    first, second = (on("schedules", "trigger", "hourly").checked("action")[0]["job_id"] for _ in range(2))
    shown = json.loads(on("jobs", "show", second).out)
    jsonschema.validate(shown, schema("shown_job"))
    assert [(each["job_id"], each["is_manual"]) for each in shown["schedule_jobs"]] == [(first, True)]
    table = on("jobs", "show", second, "-o", "table").out
    assert f"pending    {first}\n" in table.partition("other jobs of the schedule:\n")[2]
    assert child["schedule_jobs"] == []


def test_control_characters_of_a_job_do_not_reach_the_terminal(on: Callable[..., Ran]) -> None:
    for arguments in (("list",), ("show", "hostile"), ("explain", "hostile")):
        ran = on("jobs", *arguments, "-o", "table")
        assert ran.code == 0
        assert "\x1b" not in ran.out + ran.err
        assert "\u202e" not in ran.out + ran.err


def test_explain_prints_verdict_reasons_and_remedies(on: Callable[..., Ran]) -> None:
    document = json.loads(on("jobs", "explain", "mail:0").out)
    jsonschema.validate(document, schema("explanation"))
    assert document["reasons"][0]["code"] == "NOT-DUE"
    table = on("jobs", "explain", "mail:3", "-o", "table").out
    assert table.startswith("mail:3: ended\nREASON")
    assert "FAILED" in table


def test_explain_prints_the_command_of_a_remedy_in_a_table_and_both_in_json(
    on: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    table = on("jobs", "explain", "mail:3", "-o", "table").out
    assert "pg-scheduler jobs retry mail:3" in table
    assert "await " not in table
    (reason,) = json.loads(on("jobs", "explain", "mail:3").out)["reasons"]
    assert reason["remedy"] == "correct the cause, then await scheduler.retry_job('mail:3')"
    assert reason["command"] == "pg-scheduler jobs retry mail:3"


@pytest.mark.parametrize("command", ["show", "explain"])
def test_unknown_job_exits_with_3(on: Callable[..., Ran], command: str) -> None:
    ran = on("jobs", command, "nothing")
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    assert "job 'nothing' does not exist" in ran.err


def test_cancel_and_retry_change_jobs_by_id_and_state_the_outcome(on: Callable[..., Ran]) -> None:
    ran = on("jobs", "cancel", "mail:0", "mail:1", "mail:0")
    assert (ran.code, [line["result"] for line in ran.checked("change")]) == (0, ["cancelled", "cancelled"])
    job = json.loads(on("jobs", "show", "mail:0").out)
    assert job["status"] == "cancelled"
    assert "@" in job["error_message"], "who cancelled it"
    again = on("jobs", "cancel", "mail:0", "mail:2")
    assert (again.code, [line["result"] for line in again.checked("change")]) == (
        ExitCode.REFUSED,
        ["refused", "cancelled"],
    )
    assert "refused: only pending and running jobs can be cancelled" in again.err
    unknown = on("jobs", "retry", "mail:2", "nothing", "hostile")
    assert (unknown.code, [line["result"] for line in unknown.checked("change")]) == (
        ExitCode.NOT_FOUND,
        ["retried", "not found", "refused"],
    )
    assert json.loads(on("jobs", "show", "mail:2").out)["status"] == "pending"


def test_jobs_without_tables_exit_with_6_and_name_the_command(call: Run, empty_dsn: str) -> None:
    ran = call("jobs", "list", "--dsn", empty_dsn)
    assert ran.code == ExitCode.SCHEMA
    assert "run pg-scheduler migrate" in ran.err


def test_show_names_the_codec_of_encoded_arguments(on: Callable[..., Ran], dsn: str) -> None:
    async def encode(connection: Connection) -> None:
        data = {"args": {"codec": "fernet", "key": "3fa9c210", "data": "AAAA"}}
        await connection.execute(
            "UPDATE scheduled_jobs SET task_data = $1 WHERE job_id = 'mail:0'", json.dumps(data)
        )

    run_on(dsn, encode)
    reason = "encrypted with fernet, key 3fa9c210; this Scheduler has no codec: pass codec="
    shown = json.loads(on("jobs", "show", "mail:0", "-o", "json").out)
    assert (shown["args"], shown["kwargs"], shown["no_args_reason"]) == ([], {}, reason)
    assert reason in " ".join(on("jobs", "show", "mail:0", "-o", "table").out.split())
