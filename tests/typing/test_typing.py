"""Type checking of an application that uses the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).with_name("examples.py")


@pytest.mark.timeout(300)  # without its cache mypy reads every dependency
def test_mypy_accepts_the_examples_and_finds_every_marked_mistake(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Check the file outside of this repository: with the installed package and without our settings."""
    code = tmp_path / "application.py"
    code.write_text(EXAMPLES.read_text())
    cache = pytestconfig.cache.mkdir("mypy")
    options = ["--strict", "--config-file=", "--no-error-summary", f"--cache-dir={cache}"]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *options, code.name],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert checked.stdout + checked.stderr == ""
