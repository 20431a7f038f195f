"""The releases of a rehearsal: the files of a commit, and pg-scheduler 0.2.3 from the package index."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.environment import ROOT

OLD_RELEASE: Final = "pg-scheduler==0.2.3"
LIBRARY: Final = ("pg_scheduler", "pg_scheduler_plugins", "migrations")
"""What of the repository a process needs to run the library."""

MIGRATIONS: Final = "migrations/*.up.sql"


class HistoryError(Exception):
    """The history of the repository lacks what was asked for."""


@dataclass(frozen=True, slots=True)
class Release:
    """The files of a release."""

    name: str
    """"old" or "new"."""
    title: str
    root: Path

    @property
    def version(self) -> int:
        """The version of its tables: the number of its newest migration."""
        return max(int(path.name[:4]) for path in self.root.glob(MIGRATIONS))


def git(*arguments: str) -> bytes:
    """Return the output of a command of git.

    Raises:
        HistoryError: git failed.
    """
    try:
        done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, check=True)  # noqa: S607
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", b"").decode().strip() or str(error)
        raise HistoryError(f"git {' '.join(arguments)} failed: {reason}; fetch the whole history") from error
    return done.stdout


def previous_release() -> str:
    """Return the newest tag of a release before this commit, or the commit before the newest migration.

    Raises:
        HistoryError: The history has neither.
    """
    tags = git("tag", "--list", "v*", "--merged", "HEAD", "--no-contains", "HEAD", "--sort=-version:refname")
    if names := tags.decode().split():
        return names[0]
    newest = max(ROOT.glob(MIGRATIONS)).relative_to(ROOT)
    return commit_before("--diff-filter=A", "--", str(newest))


def commit_before(*search: str) -> str:
    """Return the commit before the first one that a search by ``git log`` finds.

    Raises:
        HistoryError: It finds none.
    """
    commits = git("log", "--format=%H", *search).decode().split()
    if not commits:
        raise HistoryError(f"git log {' '.join(search)} finds no commit; fetch the whole history")
    return f"{commits[-1]}^"


def extract(ref: str, folder: Path, paths: Sequence[str] = LIBRARY) -> Path:
    """Extract the files of a commit into a folder, and return the folder.

    Raises:
        HistoryError: There is no such commit.
    """
    with tarfile.open(fileobj=io.BytesIO(git("archive", ref, *paths))) as archive:
        archive.extractall(folder, filter="data")
    return folder


def title_of(ref: str) -> str:
    """Return the tag of a commit, or its short hash and its date."""
    if ref.startswith("v"):
        return ref
    return git("log", "-1", "--format=%h of %cs", ref).decode().strip()


def install(requirement: str, parent: Path) -> Path:
    """Install a distribution without its dependencies in a folder of its own, once, and return the folder.

    Raises:
        CalledProcessError: pip cannot install it.
    """
    home = parent / requirement
    if home.is_dir():
        return home
    fresh = Path(tempfile.mkdtemp(dir=parent))
    options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--retries=1", "--timeout=10"]
    command = [sys.executable, "-m", "pip", "install", *options, f"--target={fresh}", requirement]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        fresh.rename(home)
    except subprocess.CalledProcessError:
        shutil.rmtree(fresh)
        raise
    except OSError:
        # Another process has installed it meanwhile.
        shutil.rmtree(fresh)
    return home


def environment_with(*folders: Path) -> dict[str, str]:
    """Return the environment of a process that imports from these folders first."""
    ours = ("COVERAGE_", "PYTHON", "PYTEST_", "PG_SCHEDULER_")
    inherited: Mapping[str, str] = {
        name: value for name, value in os.environ.items() if not name.startswith(ours)
    }
    return {**inherited, "PYTHONPATH": os.pathsep.join(map(str, folders))}
