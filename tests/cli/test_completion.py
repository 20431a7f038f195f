"""Completion, in a real bash."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.triggers import Every
from tests.cli.conftest import Run
from tests.conftest import Connection, run_on
from tests.docs.snippets import ROOT
from tests.support.inside import ExitCode
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.slow

Complete = Callable[..., list[str]]


@pytest.fixture
def complete(call: Run, dsn: str, tmp_path: Path) -> Complete:
    """Return what bash offers for a line that someone has typed so far."""
    program = tmp_path / "pg-scheduler"
    program.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pg_scheduler "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(call("completion", "show", "bash").out, encoding="utf-8")

    def run(line: str, dsn: str = dsn, limit_s: str = str(PATIENCE)) -> list[str]:
        commands = (
            f"source {script}; COMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}; "
            "_pg_scheduler_completion pg-scheduler; printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        variables = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PG_SCHEDULER_DSN": dsn,
            "PG_SCHEDULER_COMPLETION_SECONDS": limit_s,
        }
        ran = subprocess.run(
            ["bash", "--norc", "-c", commands],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
            timeout=50,
        )
        assert ran.stderr == ""
        return ran.stdout.split()

    return run


def test_commands_and_options_are_completed(complete: Complete) -> None:
    assert complete("pg-scheduler sched") == ["schedules"]
    assert complete("pg-scheduler schedules pa") == ["pause"]
    assert "--cron" in complete("pg-scheduler schedules add x --c")


def test_ids_are_read_from_the_database(complete: Complete, dsn: str) -> None:
    async def fill(_: Connection) -> None:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
            scheduler = Scheduler(pool)
            for name in ("report:daily", "report:weekly", "sync", "report:$(touch x)"):
                await scheduler.schedules.add("clicompletion.send", Every(hours=1), schedule_id=name)

    run_on(dsn, fill)
    assert complete("pg-scheduler schedules show s") == ["sync"]
    assert complete("pg-scheduler schedules show report:") == ["daily", "weekly"]
    assert complete("pg-scheduler schedules show report:w") == ["weekly"]


def test_nothing_is_offered_while_the_database_is_unavailable(complete: Complete) -> None:
    assert complete("pg-scheduler schedules show s", "postgresql://127.0.0.1:1/x") == []


def test_nothing_is_offered_while_the_database_does_not_answer(complete: Complete) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/x"
        assert complete("pg-scheduler schedules show s", dsn, "0.2") == []


def test_script_is_written_and_loaded_by_the_start_file(
    call: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    ran = call("completion", "install")
    assert (ran.code, "it takes effect in a new bash" in ran.err) == (0, True), ran.err
    start = (tmp_path / ".bashrc").read_text(encoding="utf-8")
    path = Path(shlex.split(start)[1])
    assert path.read_text(encoding="utf-8") == call("completion", "show", "bash").out


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_are_valid(call: Run, shell: str) -> None:
    script = call("completion", "show", shell).out
    assert "_PG_SCHEDULER_COMPLETE" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=50)


def test_unknown_shell_is_a_usage_error(call: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/dash")
    assert call("completion", "show").code == ExitCode.USAGE
    assert call("completion", "show", "tcsh").code == ExitCode.USAGE
