"""Type checking of an application that uses the library, by mypy and by pyright, both in strict mode."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).with_name("examples.py")
PYRIGHT = shutil.which("pyright", path=str(Path(sys.executable).parent)) or shutil.which("pyright")


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """Copy the examples out of this repository: they see the installed package and not our settings."""
    code = tmp_path / "application.py"
    code.write_text(EXAMPLES.read_text())
    return code


def output_of(*command: str, cwd: Path) -> str:
    checked = subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd)
    return checked.stdout + checked.stderr


@pytest.mark.timeout(300)  # without its cache mypy reads every dependency
def test_mypy_accepts_the_examples_and_finds_every_marked_mistake(
    application: Path, pytestconfig: pytest.Config
) -> None:
    cache = pytestconfig.cache.mkdir("mypy")
    options = ["--strict", "--config-file=", "--no-error-summary", f"--cache-dir={cache}"]
    command = [sys.executable, "-m", "mypy", *options, application.name]
    assert output_of(*command, cwd=application.parent) == ""


@pytest.mark.timeout(300)
@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed: pip install 'pyright[nodejs]'")
def test_pyright_accepts_the_examples_and_finds_every_marked_mistake(application: Path) -> None:
    config = {
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "include": [application.name],
        "extraPaths": [str(EXAMPLES.parents[2])],
    }
    application.with_name("pyrightconfig.json").write_text(json.dumps(config))
    command = [str(PYRIGHT), "--pythonpath", sys.executable, "--outputjson"]
    found = json.loads(output_of(*command, cwd=application.parent))
    assert [
        (each["range"]["start"]["line"] + 1, each["message"]) for each in found["generalDiagnostics"]
    ] == []
    assert found["summary"]["filesAnalyzed"] == 1
