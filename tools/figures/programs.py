"""The programs that are asked about a checkout: its own Python code, and git."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.environment import ROOT, DevError


def ask(root: Path, program: str) -> Any:
    """Return what a Python program in a checkout prints as JSON."""
    return json.loads(_run([sys.executable, "-c", program], root))


def archive(ref: str) -> bytes:
    """Return the files of a commit as an archive."""
    return _run(["git", "archive", ref], ROOT)


def _run(command: list[str], folder: Path) -> bytes:
    """Return what a command prints.

    Raises:
        DevError: It failed.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    if done.returncode:
        raise DevError(f"{' '.join(command[:3])} failed in {folder}:\n{done.stderr.decode()}")
    return done.stdout
