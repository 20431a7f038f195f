"""The command doctor, against a real database."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from pg_scheduler.inspect import FindingCode
from pg_scheduler.inspect.store.grants import Role, default_name, grant_statements
from pg_scheduler.inspect.store.senders import sender_script
from tests.cli.conftest import Ran, Run, schema
from tests.conftest import Connection, run_on
from tests.support.golden import golden
from tests.support.inside import ExitCode
from tests.support.world import HOUR, populate

GOLDEN = Path(__file__).with_name("golden")
HOSTILE = "\x1b[31mx'; rm"
ONLY = ("--only", "INDEX-MISSING", "--only", "hot-lost")


@pytest.fixture
def on(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run a command on a database without an index."""

    async def drop(connection: Connection) -> None:
        await connection.execute("DROP INDEX scheduled_jobs_unsuccessful")

    run_on(dsn, drop)
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    return call


def test_findings_are_objects_with_a_runbook_entry(on: Callable[..., Ran]) -> None:
    ran = on("doctor", *ONLY)
    (finding,) = ran.checked("finding")
    assert (finding["code"], finding["severity"]) == ("INDEX-MISSING", "warning")
    assert finding["runbook"] == "operations/runbook.md#index-missing"
    assert ran.err == "1 warning; 2 checks made\n"
    document = json.loads(on("doctor", *ONLY, "-o", "json").out)
    jsonschema.validate(document, schema("list"))
    jsonschema.validate(document["items"][0], schema("finding"))
    assert (document["severity"], document["made"]) == ("warning", ["INDEX-MISSING", "HOT-LOST"])


def test_exit_code_is_1_from_the_severity_of_fail_on(on: Callable[..., Ran]) -> None:
    assert on("doctor", *ONLY).code == ExitCode.DONE
    assert on("doctor", *ONLY, "--fail-on", "warning").code == ExitCode.NEGATIVE
    assert on("doctor", "--only", "HOT-LOST", "--fail-on", "warning").code == ExitCode.DONE
    behind = on("doctor", "--only", "SCHEMA-BEHIND", "--schema", "elsewhere")
    assert (behind.code, behind.lines[0]["subject"]) == (ExitCode.NEGATIVE, "elsewhere")


@pytest.mark.parametrize("width", [80, 200])
def test_table_of_findings_fits_the_width(
    on: Callable[..., Ran], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = on("doctor", *ONLY, "-o", "table")
    assert max(map(len, ran.out.splitlines())) <= width
    assert ran.out == golden(GOLDEN / f"doctor-{width}.txt", ran.out)


def test_all_checks_are_made(on: Callable[..., Ran]) -> None:
    document = json.loads(on("doctor", "-o", "json").out)
    jsonschema.validate(document, schema("list"))
    unmade = {each["code"] for each in document["not_made"]}
    assert sorted([*document["made"], *unmade]) == sorted(FindingCode)


def test_checks_that_are_not_made_for_the_same_reason_are_one_line(call: Run, empty_dsn: str) -> None:
    ran = call("doctor", "--dsn", empty_dsn, "--only", "LATE", "--only", "STUCK", "--only", "SCHED-OVERDUE")
    (line,) = [each for each in ran.err.splitlines() if each.startswith("not checked: ")]
    assert line.startswith("not checked: LATE, STUCK, SCHED-OVERDUE: ")


def test_code_is_explained_without_a_database(call: Run) -> None:
    ran = call("doctor", "--explain", "hot_lost")
    document = json.loads(ran.out)
    jsonschema.validate(document, schema("advice"))
    assert (ran.code, document["code"]) == (ExitCode.DONE, "HOT-LOST")
    assert "DROP INDEX CONCURRENTLY" in document["remedy"]


@pytest.mark.parametrize("name", ["PgSchedulerJobsLate", "jobslate"])
def test_alert_is_explained_by_its_page_of_the_runbook(call: Run, name: str) -> None:
    ran = call("doctor", "--explain", name)
    assert (ran.code, ran.out) == (0, call("runbook", "JobsLate").out)
    assert ran.out.startswith("PgSchedulerJobsLate")


def test_grants_are_printed_without_a_database(call: Run) -> None:
    ran = call("doctor", "--schema", "jobs", "--grants", "viewer", "--to", "ada")
    assert (ran.code, ran.err) == (ExitCode.DONE, "")
    statements = grant_statements(Role.VIEWER, "jobs", "ada")
    assert ran.out.splitlines() == [f"{each};" for each in statements]
    assert '"public_worker"' in call("doctor", "--grants", "worker").out
    refused = call("doctor", "--to", "ada")
    assert (refused.code, refused.out) == (ExitCode.USAGE, "")


@pytest.mark.parametrize("name", ["x" * 57, "é" * 31])
def test_doctor_names_roles_of_a_schema_with_a_long_name(call: Run, empty_dsn: str, name: str) -> None:
    assert call("migrate", "--dsn", empty_dsn, "--schema", name).code == ExitCode.DONE
    ran = call("doctor", "--dsn", empty_dsn, "--schema", name, "--only", "RIGHTS")
    (finding,) = ran.checked("finding")
    assert f'"{default_name(Role.WORKER, name)}" LOGIN' in finding["remedy"]
    for role in Role:
        tasks = ("--tasks", "*") if role is Role.SENDER else ()
        ran = call("doctor", "--schema", name, "--grants", role, *tasks)
        assert (ran.code, ran.err) == (ExitCode.DONE, "")
        assert f'"{default_name(role, name)}"' in ran.out


def test_functions_of_a_sender_are_printed_without_a_database(call: Run) -> None:
    sender = ("doctor", "--schema", "jobs", "--grants", "sender", "--to", "webhook")
    ran = call(*sender, "--tasks", "shop.*", "--tasks", "mail.send", "--signals", "approved")
    assert (ran.code, ran.err) == (ExitCode.DONE, "")
    assert ran.out == sender_script("jobs", "webhook", ["shop.*", "mail.send"], ["approved"])
    assert call(*sender, "--tasks", "*").out == sender_script("jobs", "webhook", ["*"], ["*"])


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--grants", "sender"), "--tasks"),
        (("--grants", "viewer", "--tasks", "shop.*"), "viewer"),
        (("--signals", "approved"), "--grants sender"),
    ],
)
def test_names_for_a_sender_and_the_role_belong_together(
    call: Run, arguments: tuple[str, ...], word: str
) -> None:
    ran = call("doctor", *arguments)
    assert (ran.code, ran.out) == (ExitCode.USAGE, "")
    assert word in ran.err


@pytest.mark.parametrize(
    "arguments",
    [("--grants", "owner"), ("--only", "HOT-LOTS"), ("--explain", "nothing"), ("--fail-on", "fatal")],
)
def test_unknown_code_or_severity_is_a_usage_error(call: Run, arguments: tuple[str, ...]) -> None:
    ran = call("doctor", *arguments)
    assert ran.code == ExitCode.USAGE
    assert arguments[1].lower() in ran.err.lower()


def test_names_in_findings_reach_neither_the_terminal_nor_the_shell_unquoted(
    on: Callable[..., Ran], dsn: str
) -> None:

    populate(dsn, lambda world: world.job(HOSTILE, HOSTILE, status="running", lease_until=-HOUR))
    ran = on("doctor", "--only", "STUCK", "-o", "table")
    assert "\x1b" not in ran.out + ran.err
    (finding,) = on("doctor", "--only", "STUCK").checked("finding")
    assert shlex.split(finding["remedy"]) == ["pg-scheduler", "jobs", "explain", HOSTILE]
