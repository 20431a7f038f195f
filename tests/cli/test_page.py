"""The page about the command line: its commands run, and its tables are complete."""

from __future__ import annotations

import re
import shlex

import pytest

from pg_scheduler.cli.output import FORMATS
from pg_scheduler.cli.settings import VARIABLES
from tests.cli.conftest import Run
from tests.docs.snippets import ROOT, snippets_of
from tests.support.inside import ExitCode

PAGE = ROOT / "docs" / "operations" / "cli.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_commands_of_the_page_run_in_order(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    commands = [snippet for snippet in snippets_of(PAGE) if snippet.kind == "console"]
    lines = [line for snippet in commands for line in snippet.code.splitlines()]
    # The first three make the environment, which these tests have.
    assert [line.split()[1] for line in lines[:3]] == ["python3", ".", "pip"]
    assert len(lines) > 3
    for line in lines[3:]:
        assert line.startswith("$ pg-scheduler ")
        ran = call(*shlex.split(line)[2:])
        assert ran.code == 0, f"{line}: {ran.err}"


def test_page_lists_every_exit_code_format_and_variable() -> None:
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)]
    assert codes == sorted(ExitCode)
    for format_ in FORMATS:
        assert re.search(rf"^\| .*`{format_}`", TEXT, re.MULTILINE)
    for name, variables in VARIABLES.items():
        assert f"| `--{name}`" in TEXT
        for variable in variables:
            assert f"`{variable}`" in TEXT


def test_page_lists_every_command(call: Run) -> None:
    for group in (
        (),
        ("migrate",),
        ("import",),
        ("jobs",),
        ("schedules",),
        ("tasks",),
        ("limits",),
        ("workers",),
    ):
        shown = call(*group, "--help").out.partition("Commands:\n")[2]
        for name in re.findall(r"^  ([a-z]+)", shown, re.MULTILINE):
            assert f"`{' '.join((*group, name))}" in TEXT, name
