from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from tools.upgrade.releases import OLD_RELEASE, environment_with, install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def connection(empty_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to an empty database."""
    connection = await asyncpg.connect(empty_dsn)
    yield connection
    await connection.close()


@pytest.fixture(scope="session")
def old_release(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pg-scheduler 0.2.3, downloaded once if the checkout may be written."""
    try:
        folder = pytestconfig.cache.mkdir("old-release")
    except OSError:
        folder = tmp_path_factory.mktemp("old-release")
    try:
        return install(OLD_RELEASE, folder)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{OLD_RELEASE} cannot be installed: {error.stderr.strip().rpartition(chr(10))[2]}")


@pytest.fixture
def old_environment(old_release: Path) -> dict[str, str]:
    """The environment of a process that imports the old release as pg_scheduler."""
    return environment_with(old_release)
