"""The page about the command line: its table has an example of each command that this release accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from pg_scheduler.cli.main import program
from pg_scheduler.cli.settings import VARIABLES
from pg_scheduler.migrate import shipped_migrations
from tests.docs.snippets import ROOT
from tests.support.cases import each_case
from tests.support.inside import ExitCode
from tools.reference.commands import COMMENT, with_commands

PAGE = (ROOT / "docs" / "operations" / "cli.md").read_text(encoding="utf-8")
REFERENCE = with_commands(COMMENT)
EXAMPLES = [
    part
    for line in re.findall(r"^(?:\$ )?(pg-scheduler .*)$", PAGE, re.MULTILINE)
    for part in re.split(r" && | \| ", line)
    if part.startswith("pg-scheduler ")
]
TABLE = PAGE.partition("| Purpose | Commands |")[2].partition("\n\n")[0]
ROWS = [f"pg-scheduler {words}" for words in re.findall(r"`([^`]+)`", TABLE)]
PROGRAM: Any = program()


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, each in getattr(command, "commands", {}).items():
        if getattr(each, "commands", None) is None:
            yield " ".join((*path, name))
        else:
            yield from leaves(each, (*path, name))


def parse(example: str) -> str:
    """Parse an example as the program does, without running it; return its command."""
    context = PROGRAM.make_context("pg-scheduler", shlex.split(example)[1:])
    path = []
    while hasattr(context.command, "commands") and (words := context._protected_args + context.args):
        name, command, rest = context.command.resolve_command(context, words)
        context = command.make_context(name, rest, parent=context)
        path.append(name)
    return " ".join(path)


@each_case("example", [*EXAMPLES, *ROWS])
def test_example_is_accepted(example: str) -> None:
    assert parse(example)


def test_migrations_of_examples_exist() -> None:
    newest = shipped_migrations()[-1].version
    numbers = re.findall(r"migrate (sql|down)[^`\n]*? --to (\d+)", PAGE)
    assert {command for command, _ in numbers} == {"sql", "down"}
    assert all(int(number) <= newest - (command == "down") for command, number in numbers)


def test_every_command_has_an_example_in_the_table() -> None:
    missing = set(leaves(PROGRAM)) - {parse(example) for example in ROWS}
    assert not missing


def test_reference_lists_every_option_of_every_command() -> None:
    missing = []
    for path in leaves(PROGRAM):
        command = PROGRAM
        for word in path.split():
            command = command.commands[word]
        section = re.split(r"^#+ ", REFERENCE.partition(f"# `{path}`\n")[2], flags=re.MULTILINE)[0]
        usage = section.partition(f"`pg-scheduler {path} [OPTIONS]")[2].partition("`")
        if not usage[1] or "[[" in usage[0] or "...}" in usage[0]:
            missing.append(path)
        rows = "\n".join(re.findall(r"^\| `(.*?)` \|", section, re.MULTILINE))
        for each in command.params:
            option = each.opts[0] if each.opts[0].startswith("-") else each.metavar
            if each.name.replace("_", "-") not in VARIABLES and option not in rows:
                missing.append(f"{path} {option}")
    assert missing == []


def test_reference_lists_the_options_of_every_command_once() -> None:
    for name in VARIABLES:
        assert len(re.findall(rf"^\| `(?:-o, )?--{name} ", REFERENCE, re.MULTILINE)) == 1


def test_every_exit_code_has_a_row() -> None:
    table = PAGE.partition("## Exit codes")[2].partition("\n## ")[0]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == {*map(int, ExitCode)}
