"""The commands that print files of the package."""

from __future__ import annotations

import json
import re
import shlex
from importlib.resources import files

import pytest

from pg_scheduler.inspect import FindingCode
from pg_scheduler.inspect.doctor.codes import ADVICE
from tests.cli.conftest import Run
from tests.support.inside import ExitCode


def test_alerts_are_printed(call: Run) -> None:
    ran = call("alerts")
    assert ran.code == 0
    assert ran.out == (files("pg_scheduler") / "ops/alerts/pg_scheduler.rules.yaml").read_text(
        encoding="utf-8"
    )


def test_skill_is_printed_with_the_head_that_assistants_read(call: Run) -> None:
    ran = call("skill")
    assert ran.code == 0
    assert ran.out == (files("pg_scheduler") / "ops/skill/SKILL.md").read_text(encoding="utf-8")
    head = re.match(r"---\nname: ([a-z-]+)\ndescription: (.+)\n---\n", ran.out)
    assert head is not None
    assert head[1] == "pg-scheduler"
    assert len(head[2]) <= 1024


def test_commands_of_the_skill_exist(call: Run) -> None:
    commands = re.findall(r"`pg-scheduler ([a-z ]+?)(?: [^a-z`][^`]*| app\.jobs)?`", call("skill").out)
    assert {"status", "doctor", "jobs explain", "jobs errors", "check", "mcp"} <= set(commands)
    for command in commands:
        assert call(*command.split(), "--help").code == 0, command


def test_dashboards_are_listed_and_printed(call: Run) -> None:
    names = call("grafana").out.split()
    assert names == ["database", "overview", "schedules", "tasks", "workers"]
    for name in names:
        assert json.loads(call("grafana", name).out)["uid"] == f"pg-scheduler-{name}"


@pytest.mark.parametrize(
    ("name", "hint"), [("worker", "did you mean workers?"), ("../x", "dashboards: database, overview")]
)
def test_unknown_dashboard_is_not_found(call: Run, name: str, hint: str) -> None:
    ran = call("grafana", name)
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    assert f"no dashboard is named '{name}'; {hint}" in ran.err


def test_runbook_lists_the_alerts_and_completes_the_commands_of_an_entry(call: Run) -> None:
    names = call("runbook").out.split()
    assert names == re.findall(r"alert: (\w+)", call("alerts").out)
    for name in names:
        assert call("runbook", name).out.startswith(f"{name}\n\n**Symptom:** ")
    plain = call("runbook", "NameUnknown").out
    assert "'name:NAME status:expired'" in plain
    entry = call("runbook", "pgschedulernameunknown", "mail.send").out
    assert entry == plain.replace("NAME", "mail.send").replace("mail.send-UNKNOWN", "NAME-UNKNOWN")
    assert "jobs explain mail:9" in call("runbook", "JobsLate", "mail.send", "--id", "mail:9").out


def test_every_code_of_a_completed_entry_is_known_to_the_doctor(call: Run) -> None:
    codes = set[str]()
    for alert in call("runbook").out.split():
        entry = call("runbook", alert, "mail.send", "--id", "mail:9").out
        codes.update(re.findall(r"--only (\S+?)[`\s]", entry))
    assert FindingCode.NAME_UNKNOWN in codes
    assert codes <= set(FindingCode)


def test_shell_reads_a_completed_command_with_any_name(call: Run) -> None:
    name, subject = "it's; $(mail) 'sent' \"now\"", "a b"
    for alert in call("runbook").out.split():
        entry = call("runbook", alert, name, "--id", subject).out
        plain = call("runbook", alert).out
        for given, completed in zip(plain.splitlines(), entry.splitlines(), strict=True):
            if given.startswith("$ "):
                words = shlex.split(given.partition("  #")[0])
                values = {"NAME": name, "ID": subject}
                search = 'name:"it\'s; $(mail) \'sent\' \\"now\\""'
                expected = [values.get(word, word).replace("name:NAME", search) for word in words]
                assert shlex.split(completed.partition("  #")[0]) == expected


def test_runbook_knows_each_code_of_the_doctor(call: Run) -> None:
    for code, advice in ADVICE.items():
        entry = " ".join(call("runbook", code.lower()).out.split())
        assert entry.startswith(f"{code} ")
        assert " ".join(advice.remedy.split()) in entry


def test_unknown_alert_is_not_found(call: Run) -> None:
    ran = call("runbook", "JobLate")
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    assert "no alert is named 'JobLate'; did you mean JobsLate?" in ran.err
