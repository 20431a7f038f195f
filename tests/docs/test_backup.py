"""The commands of the page about backups, with the programs of PostgreSQL."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import asyncpg
import pytest

from pg_scheduler import DatabaseCopyError, Scheduler, embedded
from tests.docs.snippets import ROOT, snippets_of
from tests.support.inside import address_parts

PAGE: Final = "operations/backup-and-restore.md"
LATER: Final = 3600

Call: TypeAlias = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


def commands() -> list[list[str]]:
    """Return the commands of the page that dump and restore a database."""
    (snippet,) = [one for one in snippets_of(ROOT / "docs" / PAGE) if "pg_dump" in one.code]
    return [line.removeprefix("$ ").split() for line in snippet.code.splitlines()]


def replaced(command: Sequence[str], names: dict[str, str]) -> list[str]:
    return [names.get(word, word) for word in command]


@pytest.fixture
def call(server: embedded.Server, tmp_path: Path) -> Call:
    """Run a program of PostgreSQL against the server of the tests."""
    dsn = server.dsn()
    address, account = address_parts(dsn), urlsplit(dsn)
    environment = {
        **os.environ,
        "PGHOST": address["host"],
        "PGPORT": address.get("port", "5432"),
        "PGUSER": account.username or "postgres",
        **({"PGPASSWORD": account.password} if account.password else {}),
    }
    try:
        folder = embedded.find_binaries()
    except embedded.EmbeddedError:
        folder = Path("/usr/bin")

    def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        program = shutil.which(command[0], path=f"{folder}{os.pathsep}{os.environ['PATH']}")
        if program is None:
            pytest.skip(f"{command[0]} is not installed")
        return subprocess.run(
            [program, *command[1:]],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
async def names(dsn: str, call: Call) -> dict[str, str]:
    """Dump a database that a worker has used, and return its name and that of the copy."""
    async with Scheduler.connect(dsn, shutdown_timeout=0.05) as scheduler:
        await scheduler.enqueue("bill", delay=LATER, job_id="bill")
    name = address_parts(dsn)["database"]
    names = {"app": name, "app_restored": f"{name}_restored"}
    dump, *_ = commands()
    made = call(replaced(dump, names))
    if "server version mismatch" in made.stderr:
        pytest.skip(made.stderr)
    assert made.returncode == 0, made.stderr
    return names


def dsn_of_copy(dsn: str, names: dict[str, str]) -> str:
    return dsn.replace(names["app"], names["app_restored"])


async def test_documented_commands_restore_a_copy_that_no_worker_runs(
    dsn: str, call: Call, names: dict[str, str]
) -> None:
    _, *restoring_commands = commands()
    try:
        for command in restoring_commands:
            made = call(replaced(command, names))
            assert made.returncode == 0, made.stderr
        copy = await asyncpg.connect(dsn_of_copy(dsn, names))
        assert await copy.fetchval("SELECT job_id FROM scheduled_jobs") == "bill"
        await copy.close()
        with pytest.raises(DatabaseCopyError):
            async with Scheduler.connect(dsn_of_copy(dsn, names)):
                pass
    finally:
        call(["dropdb", "--if-exists", "--force", names["app_restored"]])


@pytest.mark.parametrize("options", [[], ["--data-only"]], ids=["all", "data"])
async def test_documented_restore_over_the_tables_of_a_worker_loads_nothing(
    dsn: str, other_dsn: str, call: Call, names: dict[str, str], options: list[str]
) -> None:
    async with Scheduler.connect(other_dsn, shutdown_timeout=0.05):
        pass
    staging = {**names, "app_restored": address_parts(other_dsn)["database"]}
    program, *words = replaced(commands()[-1], staging)
    made = call([program, *options, *words])
    assert made.returncode != 0
    connection = await asyncpg.connect(other_dsn)
    assert await connection.fetchval("SELECT count(*) FROM scheduled_jobs") == 0
    await connection.close()
