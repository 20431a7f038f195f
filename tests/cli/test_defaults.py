"""Variables and defaults of the options of each command."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pg_scheduler.cli import servers
from pg_scheduler.cli.completion import LIMIT_VARIABLE
from pg_scheduler.cli.main import program
from pg_scheduler.cli.settings import OF_CLIENT, OTHER_VARIABLES, VARIABLES, WITHOUT_DEFAULT, read_project
from pg_scheduler.cli.worker.reload import read_sources
from pg_scheduler.cli.worker.target import load_targets
from tests.cli.conftest import Run
from tests.docs.snippets import ROOT
from tests.support.inside import ExitCode

PREVIEW = ("schedules", "preview", "--cron", "0 8 * * *", "-o", "jsonl")


def options(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Return the path, the name and the parameter of each option of a program."""
    for parameter in command.params:
        for name in [each[2:] for each in parameter.opts if each.startswith("--")][:1]:
            yield path, name, parameter
    for word, each in getattr(command, "commands", {}).items():
        yield from options(each, (*path, word))


OPTIONS = [each for each in options(program()) if each[1] not in {*WITHOUT_DEFAULT, *VARIABLES}]


@pytest.mark.parametrize("arguments", [("--help",), PREVIEW])
def test_command_runs_in_a_folder_that_was_deleted(
    call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    ran = call(*arguments)
    assert ran.code == 0, ran.err
    assert ran.out


@pytest.mark.parametrize("target", ["gone_jobs", "gone_package.jobs"])
def test_module_that_does_not_exist_is_a_usage_error_in_a_folder_that_was_deleted(
    call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    ran = call("check", target)
    assert ran.code == ExitCode.USAGE
    module = target.partition(".")[0]
    assert f"module {module!r} does not exist on sys.path, and the current folder was deleted" in ran.err
    assert "; change to the folder that contains it" in ran.err


def test_module_on_the_path_is_found_in_a_folder_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    path = list(sys.path)
    assert load_targets(["tests.cli.worker_jobs"]) is None
    assert sys.path == path
    assert str(folder) not in asyncio.run(read_sources())


def test_every_option_has_the_variable_of_its_command_and_name() -> None:
    assert len(OPTIONS) > 150
    for path, name, parameter in OPTIONS:
        assert parameter.envvar == "_".join(("PG_SCHEDULER", *path, name)).upper().replace("-", "_")
    used = [parameter.envvar for _, _, parameter in OPTIONS]
    used += [
        LIMIT_VARIABLE,
        servers.USER,
        servers.PASSWORD,
        *(name for each in VARIABLES.values() for name in each),
    ]
    assert len(set(used)) == len(used)


def test_options_of_every_command_keep_their_variables() -> None:
    for path, name, parameter in options(program()):
        if name in VARIABLES:
            assert parameter.envvar == (None if path else list(VARIABLES[name]))
            assert VARIABLES[name][0] in parameter.help


def test_option_wins_over_variable_over_file_over_default(
    call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(*more: str) -> int:
        return len(call(*PREVIEW, *more).lines)

    assert count() == 20
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pg-scheduler.schedules.preview]\ncount = 3\n", encoding="utf-8"
    )
    assert count() == 3
    monkeypatch.setenv("PG_SCHEDULER_SCHEDULES_PREVIEW_COUNT", "4")
    assert count() == 4
    assert count("--count", "5") == 5
    monkeypatch.setenv("PG_SCHEDULER_SCHEDULES_PREVIEW_COUNT", "")
    assert count() == 3


def test_repeated_option_and_flag_take_defaults(
    call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_SCHEDULER_SCHEDULES_PREVIEW_AT", "2099-01-01T08:00Z 2099-01-02T08:00Z")
    assert len(call("schedules", "preview", "-o", "jsonl").lines) == 2
    monkeypatch.delenv("PG_SCHEDULER_SCHEDULES_PREVIEW_AT")
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.pg-scheduler.schedules.preview]\nat = ["2099-01-01T08:00Z"]\n', encoding="utf-8")
    assert len(call("schedules", "preview", "-o", "jsonl").lines) == 1
    file.write_text("[tool.pg-scheduler]\nmigrate.check = true\n", encoding="utf-8")
    ran = call("config")
    assert [line for line in ran.checked("setting") if line["name"] == "migrate.check"] == [
        {"v": 1, "name": "migrate.check", "value": "true", "origin": str(file)}
    ]


def test_config_shows_the_options_that_are_set_and_their_origins(
    call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(
        '[tool.pg-scheduler]\nschema = "jobs"\n[tool.pg-scheduler.worker]\nslots = 50\nnames = "mail.*"\n',
        encoding="utf-8",
    )
    monkeypatch.setenv("PG_SCHEDULER_WORKER_SLOTS", "60")
    monkeypatch.setenv("PG_SCHEDULER_DASHBOARD_READ_ONLY", "1")
    found = {line["name"]: (line["value"], line["origin"]) for line in call("config").checked("setting")}
    assert found["schema"] == ("jobs", str(file))
    assert list(found.items())[5:] == [
        ("worker.slots", ("60", "PG_SCHEDULER_WORKER_SLOTS")),
        ("worker.names", ("mail.*", str(file))),
        ("dashboard.read-only", ("1", "PG_SCHEDULER_DASHBOARD_READ_ONLY")),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "workr.slots = 3",
            "[tool.pg-scheduler] in {file} has the unknown key 'workr'; did you mean worker?",
        ),
        (
            "slots = 3",
            "[tool.pg-scheduler] in {file} has the key 'slots', which belongs in [tool.pg-scheduler.worker]",
        ),
        (
            "worker.slot = 3",
            "[tool.pg-scheduler.worker] in {file} has the unknown key 'slot'; did you mean slots?",
        ),
        (
            "jobs.lst.limit = 3",
            "[tool.pg-scheduler.jobs] in {file} has the unknown key 'lst'; did you mean list?",
        ),
        ("jobs.delete.yes = true", "[tool.pg-scheduler.jobs.delete] in {file} has the unknown key 'yes'"),
        ("worker = 3", "worker in [tool.pg-scheduler] in {file} must be a table, not 3"),
        ("worker.slots = [3]", "must be a text or a number, not [3]"),
        ("jobs.add.tag = 2030-01-01", "tag in [tool.pg-scheduler.jobs.add] in {file} must be a list of"),
        ("jobs.list.worker.slots = 3", "has the unknown key 'worker'"),
    ],
)
def test_invalid_default_is_a_usage_error_with_the_nearest_name(
    call: Run, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(f"[tool.pg-scheduler]\n{text}\n", encoding="utf-8")
    ran = call("config")
    assert ran.code == ExitCode.USAGE
    assert message.format(file=file) in ran.err
    assert call("--version").code == call("worker", "--help").code == 0


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("tool = 3", "tool", "int"),
        ("[[tool]]", "tool", "list"),
        ("tool.pg-scheduler = 'x'", "tool.pg-scheduler", "str"),
    ],
)
def test_file_with_another_value_in_place_of_a_table_is_a_usage_error(
    call: Run, tmp_path: Path, text: str, name: str, kind: str
) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(f"{text}\n", encoding="utf-8")
    ran = call("config")
    assert ran.code == ExitCode.USAGE
    assert f"{name} in {file} must be a table, as in [tool.pg-scheduler], not a {kind}" in ran.err
    assert call("--version").code == 0


@pytest.mark.parametrize("value", ["true", "false", "[true]"])
def test_boolean_in_the_file_is_refused_for_every_option_that_is_no_flag(value: str, tmp_path: Path) -> None:
    options_with_values = [
        (path, name)
        for path, name, parameter in OPTIONS
        if not parameter.is_flag and (path[0] != "mcp" or name not in OF_CLIENT)
    ]
    numeric_options = {
        ".".join((*path, name))
        for path, name, parameter in OPTIONS
        if parameter.type_descriptor.annotation in {int, float}
    }
    assert {"worker.slots", "jobs.list.limit", "status.watch"} <= numeric_options
    assert numeric_options - {".".join((*path, name)) for path, name in options_with_values} == set()
    file = tmp_path / "pyproject.toml"
    command = program()
    for path, name in options_with_values:
        table = ".".join(("tool", "pg-scheduler", *path))
        file.write_text(f"[{table}]\n{name} = {value}\n", encoding="utf-8")
        error = read_project(command).error
        assert error is not None, (path, name)
        assert error.code == ExitCode.USAGE
        assert f"{name} in [{table}] in {file} must be a" in str(error)


def test_boolean_in_the_file_sets_a_flag(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    flags = [
        (path, name)
        for path, name, parameter in OPTIONS
        if parameter.is_flag and (path[0] != "mcp" or name not in OF_CLIENT)
    ]
    command = program()
    for path, name in flags:
        file.write_text(f"[{'.'.join(('tool', 'pg-scheduler', *path))}]\n{name} = true\n", encoding="utf-8")
        assert read_project(command).error is None, (path, name)


@pytest.mark.parametrize("text", ["role = 'admin'", "as = 'boss'", "arguments = true"])
def test_rights_of_an_assistant_are_not_read_from_the_file(call: Run, tmp_path: Path, text: str) -> None:
    key = text.partition(" ")[0]
    file = tmp_path / "pyproject.toml"
    file.write_text(f"[tool.pg-scheduler.mcp]\n{text}\n", encoding="utf-8")
    ran = call("mcp", "--dsn", "postgresql://127.0.0.1:1/app")
    assert ran.code == ExitCode.USAGE
    assert f"[tool.pg-scheduler.mcp] in {file} has the key '{key}', which may not be there" in ran.err
    assert f"remove it, and pass --{key} in the configuration of the client" in ran.err


def test_invalid_value_of_a_variable_is_a_usage_error(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_SCHEDULER_SCHEDULES_PREVIEW_COUNT", "many")
    ran = call(*PREVIEW)
    assert ran.code == ExitCode.USAGE
    assert "--count" in ran.err
    assert "this value comes from the variable PG_SCHEDULER_SCHEDULES_PREVIEW_COUNT" in ran.err
    assert "Input should" not in ran.err
    monkeypatch.delenv("PG_SCHEDULER_SCHEDULES_PREVIEW_COUNT")
    monkeypatch.setenv("PG_SCHEDULER_JOBS_ADD_PRIORITY", "urgent")
    ran = call("jobs", "add", "x")
    assert "this value comes from the variable PG_SCHEDULER_JOBS_ADD_PRIORITY" in ran.err
    assert "Value error" not in ran.err


def test_invalid_value_of_the_file_is_a_usage_error_that_names_its_key(call: Run, tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text("[tool.pg-scheduler.schedules.preview]\ncount = 'many'\n", encoding="utf-8")
    ran = call(*PREVIEW)
    assert ran.code == ExitCode.USAGE
    assert f"comes from count in [tool.pg-scheduler.schedules.preview] of {file}" in ran.err


def test_help_does_not_show_the_password_of_a_file(call: Run, tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text("[tool.pg-scheduler]\ndsn = 'postgresql://app:s3cr3t@h/x'\n", encoding="utf-8")
    for arguments in (("--help",), ("jobs", "--help"), ("jobs", "list", "--help")):
        assert "s3cr3t" not in call(*arguments).out


def test_table_with_an_underscore_is_a_usage_error(call: Run, tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text("[tool.pg_scheduler]\nschema = 'jobs'\n", encoding="utf-8")
    ran = call("config")
    assert ran.code == ExitCode.USAGE
    assert f"[tool.pg_scheduler] in {file} is not read; rename it to [tool.pg-scheduler]" in ran.err


@pytest.mark.parametrize(
    ("arguments", "name", "near"),
    [
        (("config",), "PG_SCHEDULER_SHEMA", "PG_SCHEDULER_SCHEMA"),
        (("schedules", "preview", "--cron", "@daily"), "PG_SCHEDULER_DNS", "PG_SCHEDULER_DSN"),
        (("config",), "PG_SCHEDULER_WORKER_SLOT", "PG_SCHEDULER_WORKER_SLOTS"),
        (("config",), "PG_SCHEDULER_WORKR_SLOTS", "PG_SCHEDULER_WORKER_SLOTS"),
        (("worker", "--help"), "PG_SCHEDULER_WORKERS_SLOTS", "PG_SCHEDULER_WORKER_SLOTS"),
        (PREVIEW, "PG_SCHEDULER_SCHEDULES_PREVIEW_COUNTS", "PG_SCHEDULER_SCHEDULES_PREVIEW_COUNT"),
        (("version",), "PG_SCHEDULER_DASHBORD_USER", "PG_SCHEDULER_DASHBOARD_USER"),
    ],
)
def test_misspelt_variable_is_a_warning_with_the_nearest_name(
    call: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], name: str, near: str
) -> None:
    monkeypatch.setenv(name, "s3cr3t")
    ran = call(*arguments)
    assert ran.code == 0
    warning = f"pg-scheduler: warning: the variable {name} is not read; did you mean {near}?"
    assert [line for line in ran.err.splitlines() if "PG_SCHEDULER" in line] == [warning]


@pytest.mark.parametrize(
    "name",
    [
        "PG_SCHEDULER_SERVICE_HOST",
        "PG_SCHEDULER_DASHBOARD_SERVICE_PORT",
        "PG_SCHEDULER_DASHBOARD_SERVICE_PORT_HTTP",
        "PG_SCHEDULER_WORKER_PORT",
        "PG_SCHEDULER_PORT_5432_TCP",
        "PG_SCHEDULER_PORT_5432_TCP_ADDR",
        "PG_SCHEDULER_FAVOURITE_COLOUR",
        "PG_SCHEDULER_TAG",
        "PG_SCHEDULER_PATIENCE",
        "PG_SCHEDULER_DASHBOARD_USER",
        "PG_SCHEDULERS_DSN",
    ],
)
def test_variable_of_a_service_or_of_an_application_is_no_warning(
    call: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    assert call("config").err == ""


def test_variable_of_another_command_is_not_examined(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_SCHEDULER_JOBS_LIST_LIMITS", "1")
    assert call("version").err == ""
    assert "did you mean PG_SCHEDULER_JOBS_LIST_LIMIT?" in call("config").err


def test_every_variable_of_the_source_is_known() -> None:
    pattern = re.compile(r'"(PG_SCHEDULER_[A-Z_]+[A-Z])"')
    files = (ROOT / "pg_scheduler").rglob("*.py")
    names = {name for file in files for name in pattern.findall(file.read_text(encoding="utf-8"))}
    assert names - {name for names in VARIABLES.values() for name in names} == OTHER_VARIABLES


def test_page_names_the_options_without_a_default() -> None:
    page = (ROOT / "docs" / "operations" / "cli.md").read_text(encoding="utf-8")
    assert "`--yes`, `--version` and `--help` have neither" in page
    assert {"yes", "version", "help"} == WITHOUT_DEFAULT
