"""What a type checker makes of an application that uses the library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).with_name("examples.py")


@pytest.mark.timeout(300)  # a checker that starts without its cache reads every dependency
def test_example_use_is_typed_as_it_should_be(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """As an application outside of this repository sees it: the installed package, none of our settings."""
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
