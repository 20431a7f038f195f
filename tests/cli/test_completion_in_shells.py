"""Completion in a real zsh and a real fish, installed as a person installs it."""

from __future__ import annotations

import os
import pty
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.triggers import Every
from tests.cli.conftest import Run
from tests.conftest import Connection, run_on
from tests.docs.snippets import ROOT
from tests.support.debian import program, required
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.slow

PROMPT = b"READY> "
KEYS = """
PS1='READY> '
write() { print -r -- "$BUFFER" >> ~/lines; zle kill-whole-line }
zle -N write
bindkey '^G' write
"""


@pytest.fixture
def home(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory, with the program on the path and three schedules in the database."""

    async def fill(_: Connection) -> None:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
            for name in ("report:daily", "report:weekly", "sync"):
                await Scheduler(pool).schedules.add("clishells.send", Every(hours=1), schedule_id=name)

    run_on(dsn, fill)
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "pg-scheduler"
    script.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pg_scheduler "$@"\n', encoding="utf-8"
    )
    script.chmod(0o755)
    for name in ("ZDOTDIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "HOME": str(tmp_path),
        "PATH": f"{script.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PG_SCHEDULER_DSN": dsn,
        "TERM": "dumb",
        "PG_SCHEDULER_COMPLETION_SECONDS": str(PATIENCE),
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_zsh_completes_commands_and_ids_from_its_first_use_on(call: Run, home: Path) -> None:
    root = required("zsh")
    assert call("completion", "install", "zsh").code == 0
    files = shlex.quote(f"{root}/usr")
    (home / ".zshenv").write_text(
        f"module_path=({files}/lib/*/zsh/*(/))\nfpath=({files}/share/zsh/functions{{,/**/*(/N)}})\n",
        encoding="utf-8",
    )
    with (home / ".zshrc").open("a", encoding="utf-8") as file:
        file.write(KEYS)
    expected = ""
    with terminal([*program(root, "bin/zsh"), "-d", "-i"]) as send:
        for typed, completed in (
            ("sched", "schedules "),
            ("schedules show s", "schedules show sync "),
            ("schedules show rep", "schedules show report:"),
            ("schedules show report:w", "schedules show report:weekly "),
        ):
            send(f"pg-scheduler {typed}\t\x07", partial(has_lines, home / "lines", expected.count("\n") + 1))
            expected += f"pg-scheduler {completed}\n"
    assert (home / "lines").read_text(encoding="utf-8") == expected


def has_lines(file: Path, count: int) -> bool:
    """Return whether so many lines were in the editor of zsh when Ctrl-G was pressed."""
    return file.exists() and file.read_text(encoding="utf-8").count("\n") == count


@contextmanager
def terminal(command: list[str]) -> Iterator[Callable[[str, Callable[[], bool]], None]]:
    """Run an interactive program; yield a function that types a text, and waits for its effect."""
    parent, child = pty.openpty()
    shown = b""

    def wait(condition: Callable[[], bool]) -> None:
        nonlocal shown
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, shown.decode(errors="replace")
            if select.select([parent], [], [], 0.02)[0]:
                shown += os.read(parent, 65536)

    def send(text: str, condition: Callable[[], bool]) -> None:
        os.write(parent, text.encode())
        wait(condition)

    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, start_new_session=True)
    os.close(child)
    try:
        wait(lambda: PROMPT in shown)
        yield send
    finally:
        process.kill()
        process.wait()
        os.close(parent)


@pytest.mark.usefixtures("home")
def test_fish_completes_commands_and_ids(call: Run) -> None:
    root = required("fish")
    assert call("completion", "install", "fish").code == 0
    folders = (
        "set fish_complete_path ~/.config/fish/completions; "
        f"set fish_function_path {shlex.quote(f'{root}/usr/share/fish/functions')}; "
    )

    def complete(line: str) -> list[str]:
        ran = subprocess.run(
            [*program(root, "usr/bin/fish"), "-c", f"{folders} complete -C {shlex.quote(line)}"],
            capture_output=True, text=True, check=True, timeout=3 * PATIENCE,
        )  # fmt: skip
        return [each.partition("\t")[0] for each in ran.stdout.splitlines()]

    assert complete("pg-scheduler sched") == ["schedules"]
    assert complete("pg-scheduler schedules show report:") == ["report:daily", "report:weekly"]
