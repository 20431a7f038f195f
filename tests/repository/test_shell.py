"""The prompt of dev.py shell runs the snippets of the documentation, as its first page states."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import dev
from tests.docs.snippets import ROOT, snippets_of
from tools import shell
from tools.environment import Environment

FUNCTION = """\
@job(name="shell.hello")
async def hello(name: str) -> str:

    return f"hello {name}"

print(await scheduler.run_job(hello, args=("ada",), keep_result=timedelta(minutes=1), wait_timeout=60))"""


def run(program: str, dsn: str) -> subprocess.CompletedProcess[str]:
    """Run a program that is given on standard input."""
    return subprocess.run(
        [sys.executable, "-m", "tools.shell"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PG_SCHEDULER_DSN": dsn},
        input=program,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def main_module() -> Iterator[None]:
    """Keep the module of the tests' own program."""
    module = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = module


def test_shell_starts_the_prompt_with_a_private_server(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(Environment, "ensure", lambda _: None)
    monkeypatch.setattr(dev, "replace_process", started.append)
    dev.main(["shell", "--data", "pgdata"])
    python = str(Environment().python)
    server = [python, "-m", "pg_scheduler.embedded", "--data", "pgdata"]
    assert started == [[*server, "--", python, "-m", "tools.shell"]]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["scheduling", "triggers"])
def test_snippets_of_a_guide_run_in_their_order(page: str, dsn: str) -> None:
    snippets = snippets_of(ROOT / "docs" / "guides" / f"{page}.md")
    codes = [
        snippet.code
        for snippet in snippets
        if snippet.kind == "python" and snippet.file is None and snippet.raises is None
    ]
    assert codes
    process = run("\n".join(codes), dsn)
    assert process.returncode == 0, process.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "code", "error"),
    [
        ("await pool.fetchval('boom')", 1, "PostgresSyntaxError"),
        ("1 +", 1, "SyntaxError"),
        ("raise SystemExit(3)", 3, ""),
    ],
)
def test_program_on_standard_input_ends_with_its_error(program: str, code: int, error: str, dsn: str) -> None:
    process = run(program, dsn)
    assert process.returncode == code
    assert error in process.stderr


def test_prompt_runs_lines_and_pasted_snippets(
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    main_module: None,
) -> None:
    lines = iter(
        [
            "from datetime import timedelta",
            "from pg_scheduler import job",
            FUNCTION,
            "await pool.fetchval('SELECT 6 * 7')",
            "if dsn:",
            "    print(type(scheduler).__name__, __name__)",
            "",
            "1 / 0",
            "exit(4)",
        ]
    )
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda _: True})())
    monkeypatch.setattr(builtins, "input", lambda _prompt: next(lines))
    with pytest.raises(SystemExit) as end:
        shell.main()
    assert end.value.code == 4
    output = capsys.readouterr()
    assert output.out.splitlines() == ["hello ada", "42", "Scheduler __main__"]
    assert "ZeroDivisionError" in output.err
