"""Run Django's tests of ``django.tasks`` on the backend of this package: ``python3 dev.py compat django``.

The tests are those of the source distribution of a version of Django, or of a checkout of django-tasks. They
run unmodified, on a private server. `tools.compat_django_plugin` puts the backend in the place of the two
that Django has, and names the tests that do not apply, each with its reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pg_scheduler.embedded import EmbeddedPostgres
from tools.compat import environment as server_environment
from tools.environment import ROOT, DevError, exit_on_signals

USAGE: Final = "usage: python3 dev.py compat django [VERSION | FOLDER] [arguments of pytest]"

DISTRIBUTIONS: Final = {
    "6.0": "7b0c1f50c0759bbe6331c6a39c89ae022a84672674aeda908784617ef47d8e26",
    "6.1.3": "b5d2d9e35295065d13b1927b3f19a59bd119f737aa6299def14ccca1ae3c8c0d",
}
"""The SHA-256 of the source distributions: the oldest and the newest version that is tested."""

NEWEST: Final = list(DISTRIBUTIONS)[-1]

PLUGIN: Final = "tools.compat_django_plugin"

OLDEST_PYTHON: Final = (3, 12)
"""Django 6 needs it. The package django-tasks also runs with 3.11, with Django 5.2."""


def main(arguments: Sequence[str]) -> int:
    """Run the tests and return the exit code of pytest."""
    words = list(arguments)
    subject = words.pop(0) if words and not words[0].startswith("-") else NEWEST
    with tempfile.TemporaryDirectory(prefix="compat-") as scratch:
        if subject in DISTRIBUTIONS:
            package = unpack(download(subject, Path(scratch)), Path(scratch, "package"))
            tests = package / "tests" / "tasks"
        else:
            package = Path(subject).resolve()
            tests = package / "tests"
            if not (package / "django_tasks").is_dir() or not (tests / "tasks.py").is_file():
                raise DevError(
                    f"{subject} is neither a version of Django, {' or '.join(DISTRIBUTIONS)}, nor a checkout "
                    f"of django-tasks; {USAGE}"
                )
        run = Path(scratch, "run")
        shutil.copytree(tests, run / tests.name)
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(run)]
        command += ["-rs", "-W", "error"]
        for plugin in ("no:pg_scheduler", "no:cacheprovider", "no:randomly", "no:asyncio", PLUGIN):
            command += ["-p", plugin]
        with EmbeddedPostgres() as server:
            environment = server_environment(server.dsn()) | {
                # The folder comes before the installed packages, so that its version is imported.
                "PYTHONPATH": os.pathsep.join(map(str, (run, package, ROOT))),
                # Some tests read a result in a coroutine, because the backends of Django keep it in memory.
                "DJANGO_ALLOW_ASYNC_UNSAFE": "1",
            }
            return subprocess.run(
                [*command, tests.name, *words], cwd=run, env=environment, check=False
            ).returncode


def download(version: str, folder: Path) -> Path:
    """Download the source distribution of a version of Django, with its tests, and return its path.

    Raises:
        DevError: This Python is too old for it, or the package index has another file.
    """
    if sys.version_info < OLDEST_PYTHON:
        raise DevError(
            f"Django {version} needs Python 3.12, and this is {sys.version.split()[0]}; "
            "pass --python python3.12 to dev.py"
        )
    requirement = folder / "django.txt"
    requirement.write_text(f"django=={version} --hash=sha256:{DISTRIBUTIONS[version]}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--no-binary", "django", "--require-hashes", "--dest", str(folder), "-r", str(requirement)]
    if subprocess.call(command) != 0:
        raise DevError(f"the source distribution of Django {version} cannot be downloaded")
    return next(folder.glob("*.tar.gz"))


def unpack(distribution: Path, folder: Path) -> Path:
    """Unpack a source distribution into a new folder, and return the one that has its files."""
    with tarfile.open(distribution) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.iterdir())


if __name__ == "__main__":
    exit_on_signals()
    try:
        sys.exit(main(sys.argv[1:]))
    except DevError as error:
        sys.exit(f"dev.py: {error}")
