from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OLD_RELEASE = "pg-scheduler==0.2.3"


@pytest.fixture
async def connection(empty_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to an empty database."""
    connection = await asyncpg.connect(empty_dsn)
    yield connection
    await connection.close()


@pytest.fixture(scope="session")
def old_release(pytestconfig: pytest.Config) -> Path:
    """A folder with pg-scheduler 0.2.3, downloaded once."""
    parent = pytestconfig.cache.mkdir("old-release")
    home = parent / OLD_RELEASE
    if home.is_dir():
        return home
    fresh = Path(tempfile.mkdtemp(dir=parent))
    options = ["--quiet", "--no-deps", "--disable-pip-version-check", "--retries=1", "--timeout=10"]
    command = [sys.executable, "-m", "pip", "install", *options, f"--target={fresh}", OLD_RELEASE]
    pip = subprocess.run(command, check=False, capture_output=True, text=True)
    if pip.returncode:
        shutil.rmtree(fresh)
        pytest.skip(f"{OLD_RELEASE} cannot be installed: {pip.stderr.strip().rpartition(chr(10))[2]}")
    try:
        fresh.rename(home)
    except OSError:
        # Another test process has installed it meanwhile.
        shutil.rmtree(fresh)
    return home


@pytest.fixture
def old_environment(old_release: Path) -> dict[str, str]:
    """The environment of a process that imports the old release as pg_scheduler."""
    ours = ("COVERAGE_", "PYTHON", "PYTEST_")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return inherited | {"PYTHONPATH": str(old_release)}
