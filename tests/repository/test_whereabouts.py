"""No test depends on who runs it, or where: these mechanisms are in one place each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.environment import ROOT

TESTED: Final = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "tools").rglob("*.py"), ROOT / "dev.py"]

CHANGE_OF_USER: Final = re.compile(
    r"\b(set(re|res|e)?[ug]id|setgroups|initgroups|chown|getpwnam|gete?uid|capset)\b"
    r"|\b(preexec_fn|extra_groups)=|[\"'](setpriv|sudo|su|runuser|setuidgid)[\"']"
)

CHANGES_OF_USER: Final = {
    "tests/support/users.py": "the helpers",
    "tests/repository/test_whereabouts.py": "this test",
    "tests/cli/test_job_run.py": "preexec_fn sets the handler of a signal",
    "tests/cli/test_start_as_pid_1.py": "the program of a container prints its user",
    "tests/cluster/outages.py": "the folder of a mounted disk belongs to the user of the server",
}
"""The files that name a user of the system or change it, and why."""


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def files_with(pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the files in which a line has the pattern."""
    for path in TESTED:
        if pattern.search(path.read_text(encoding="utf-8")):
            yield name(path)


def test_users_are_changed_by_the_helpers_only() -> None:
    """A test ran a program as ``nobody``, who could not import the checkout of root's home folder."""
    assert {*files_with(CHANGE_OF_USER)} == CHANGES_OF_USER.keys()
