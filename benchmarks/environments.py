"""Create a separate environment for each peer in .venv-bench, once."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

from benchmarks.contestants import Contestant

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / ".venv-bench"
LAUNCH: Final = ROOT / "benchmarks" / "launch.py"


class MissingPeerError(Exception):
    """A peer could not be installed; the message contains the reason."""


@functools.cache
def command(contestant: Contestant) -> tuple[list[str], dict[str, str]]:
    """Return the command of its driver without the order, and additional environment variables.

    Raises:
        MissingPeerError: The peer could not be installed.
    """
    if contestant.kind == "here":
        # This checkout or the chosen one, ahead of any that is installed in place.
        root = contestant.checkout or ROOT
        launch = root / LAUNCH.relative_to(ROOT)
        return [sys.executable, "-P", str(launch), contestant.driver], {"PYTHONPATH": str(root)}
    folder = FOLDER / contestant.name.replace(" ", "-").lower()
    if contestant.kind == "python":
        python = folder / "bin" / "python"
        if not _is_current(folder, contestant):
            _make_python(folder, contestant)
        return [str(python), "-P", str(LAUNCH), contestant.driver], {}
    modules = folder / "node_modules"
    if not _is_current(folder, contestant):
        _make_node(folder, contestant)
    script = ROOT / "benchmarks" / "peers" / contestant.driver
    return [str(modules / ".bin" / "node"), str(script)], {"BENCH_NODE_MODULES": str(modules)}


def _is_current(folder: Path, contestant: Contestant) -> bool:
    stamp = folder / "stamp.json"
    return stamp.is_file() and json.loads(stamp.read_text(encoding="utf-8")) == list(contestant.requirements)


def _make_python(folder: Path, contestant: Contestant) -> None:
    print(f"  installing {contestant.name} into {folder.relative_to(ROOT)} ...", file=sys.stderr)
    venv.create(folder, clear=True, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "-qq", "--disable-pip-version-check", "--no-input"]
    _run([*pip, "install", *contestant.requirements], folder)
    (folder / "stamp.json").write_text(json.dumps(contestant.requirements), encoding="utf-8")


def _make_node(folder: Path, contestant: Contestant) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise MissingPeerError("npm is not installed")
    print(f"  installing {contestant.name} into {folder.relative_to(ROOT)} ...", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"private": true}', encoding="utf-8")
    _run([npm, "install", "--no-audit", "--no-fund", "--loglevel=error", *contestant.requirements], folder)
    # The package "node" contains the program, so the machine's own Node may be older.
    version = _run([str(folder / "node_modules" / ".bin" / "node"), "--version"], folder).strip()
    if not version.startswith("v22."):
        raise MissingPeerError(f"the package node contains version {version or 'none'} instead of 22")
    (folder / "stamp.json").write_text(json.dumps(contestant.requirements), encoding="utf-8")


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", "") or str(error)
        lines = [line for line in str(output).splitlines() if line.strip()]
        raise MissingPeerError(f"installation failed: {lines[-1] if lines else error}") from error
    return done.stdout
