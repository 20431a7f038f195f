"""Renew the lock files with uv: ``python3 -m tools.lock``, or ``--upgrade`` for the newest versions.

``dev.txt`` is for every supported Python. ``lowest.txt`` is for the oldest one: what users install, the core
and the extras, has the lowest version that pyproject.toml allows, and the rest the newest that works with it.
Extras that require newer versions than the core does are in ``dev.txt`` only. ``fuzz.txt`` has the fuzzer.
``release.txt`` has what builds and installs a release candidate, in the versions of ``dev.txt`` where that
has them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.environment import FUZZ_LOCK, LOCK, LOWEST_LOCK, RELEASE_LOCK, ROOT, run

FOR_DEVELOPMENT: Final = {"dev", "docs", "test"}
"""The extras that only the checkout needs."""

NEWER: Final = {"mcp", "pydantic-ai"}
"""The extras that users install and that require a newer version of a dependency than the core does, as both
require a newer pydantic. With them, the lowest version of that dependency would not be tested."""

FUZZER: Final = "atheris"
"""What ``dev.py fuzz`` installs for itself."""

COMPILE: Final = (
    *("uv", "pip", "compile", "--quiet", "--no-emit-index-url", "--no-emit-find-links", "--no-header"),
    *("--no-annotate", "--python-version", "3.11"),
)
"""No line of a lock file names a machine: an index, a folder or a command."""

COMMAND: Final = (*COMPILE, "pyproject.toml")


def main(arguments: Sequence[str]) -> None:
    """Write the lock files; versions stay as they are unless the arguments contain ``--upgrade``."""
    locked = [*COMMAND, "--extra", "dev", "--generate-hashes", *arguments]
    newer = [word for extra in sorted(NEWER) for word in ("--extra", extra)]
    run([*locked, *newer, "--universal", "--output-file", str(LOCK)], cwd=ROOT)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as bounds:
        bounds.write(lowest())
        bounds.flush()
        run([*locked, "--constraint", bounds.name, "--output-file", str(LOWEST_LOCK)], cwd=ROOT)
    with tempfile.NamedTemporaryFile("w", suffix=".in", encoding="utf-8") as names:
        names.write(FUZZER)
        names.flush()
        fuzzer = [*COMPILE, "--generate-hashes", *arguments, names.name]
        run([*fuzzer, "--output-file", str(FUZZ_LOCK)], cwd=ROOT)
    release = ["--group", "release", "--constraint", str(LOCK), "--generate-hashes", "--universal"]
    run([*COMPILE, *release, *arguments, "--output-file", str(RELEASE_LOCK)], cwd=ROOT)


def lowest() -> str:
    """Return what users install, with their lowest versions and the newest ones of what these require."""
    extras = [word for extra in user_extras() for word in ("--extra", extra)]
    command = [*COMMAND, *extras, "--resolution", "lowest-direct"]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def user_extras(pyproject: Path = ROOT / "pyproject.toml") -> list[str]:
    """Return the extras that users install, but for those that require newer versions than the core."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    return [extra for extra in project["optional-dependencies"] if extra not in FOR_DEVELOPMENT | NEWER]


if __name__ == "__main__":
    main(sys.argv[1:])
