"""No test depends on who runs it, or where: these mechanisms are in one place each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.source import calls_of
from tools.environment import ROOT

TESTED: Final = [
    *(path for room in ("tests", "tools", "examples", "benchmarks") for path in (ROOT / room).rglob("*.py")),
    ROOT / "dev.py",
]

CHANGE_OF_USER: Final = re.compile(
    r"\b(set(re|res|e)?[ug]id|setgroups|initgroups|chown|getpwnam|gete?uid|capset)\b"
    r"|\b(preexec_fn|extra_groups)=|[\"'](setpriv|sudo|su|runuser|setuidgid)[\"']"
)

CHANGES_OF_USER: Final = {
    "benchmarks/soak.py": "a copy of the data of a server belongs to the user of that server",
    "tests/support/users.py": "the helpers",
    "tests/repository/test_whereabouts.py": "this test",
    "tests/cli/test_job_run.py": "preexec_fn sets the handler of a signal",
    "tests/cli/test_start_as_pid_1.py": "the program of a container prints its user",
    "tests/cluster/outages.py": "the folder of a mounted disk belongs to the user of the server",
}
"""The files that name a user of the system or change it, and why."""


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def files_with(pattern: re.Pattern[str]) -> Iterator[Path]:
    """Yield the files whose text has the pattern."""
    for path in TESTED:
        if pattern.search(path.read_text(encoding="utf-8")):
            yield path


def test_users_are_changed_by_the_helpers_only() -> None:
    """A test ran a program as ``nobody``, who could not import the checkout of root's home folder."""
    assert {*map(name, files_with(CHANGE_OF_USER))} == CHANGES_OF_USER.keys()


POSITION_OF_ENCODING: Final = {"read_text": 0, "write_text": 1}
"""The place of the argument ``encoding`` among those without a name."""

MODE: Final = re.compile(r"[rwaxt+]*b?[rwaxt+]*")


def opens_text(call: ast.Call) -> bool:
    """Return whether a call of a function or method ``open`` opens a file as text."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [
        argument.value
        for argument in arguments
        if isinstance(argument, ast.Constant) and MODE.fullmatch(str(argument.value))
    ]
    if modes:
        return "b" not in str(modes[-1])
    # A method open without a mode belongs to anything: to an archive, a connection, a stopwatch.
    return ast.unparse(call.func) == "open"


def depends_on_locale(call: ast.Call) -> bool:
    """Return whether a call reads or writes a text in the encoding of the machine."""
    function = ast.unparse(call.func).rpartition(".")[2]
    if any(keyword.arg in ("encoding", None) for keyword in call.keywords):
        return False
    if function == "open":
        return opens_text(call)
    return len(call.args) <= POSITION_OF_ENCODING[function]


def test_texts_are_read_and_written_in_a_declared_encoding() -> None:
    """Without one, Python takes that of the locale, which lacks letters of our files on some machines."""
    undeclared = [
        f"{name(path)}:{call.lineno}"
        for path in files_with(re.compile(r"\b(open|read_text|write_text)\("))
        for call in calls_of(path, {"open", "read_text", "write_text"})
        if depends_on_locale(call)
    ]
    assert undeclared == []


UNQUOTED_FOLDER: Final = re.compile(r"[?&]host=\{(?!quote\()|partition\([\"']host=")
"""A folder that becomes a part of a DSN as it is, or that is cut out of one."""


def test_folders_of_sockets_are_quoted_in_addresses() -> None:
    """The folder of a server can lie below one whose name has a blank: ``address_parts()`` reads it."""
    assert [*files_with(UNQUOTED_FOLDER)] == []
