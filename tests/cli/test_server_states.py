"""Commands on servers in the states of real life: a first day, a standby, a role that may not write."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import DatabaseUnavailableError, Scheduler
from tests.cli.conftest import Run
from tests.cluster.outages import primary_and_standby
from tests.conftest import FAST, run_on
from tests.support.inside import ExitCode

pytestmark = pytest.mark.slow

JOBS = "tests.cli.checked_jobs"
READING = (
    ["status"],
    ["jobs", "list"],
    ["schedules", "list"],
    ["workers", "list"],
    ["tasks", "list"],
    ["migrate", "--check"],
    ["migrate", "verify"],
    ["check", JOBS],
)
"""Commands that write nothing."""


def test_reading_commands_run_on_a_standby(call: Run, scratch: Path | None) -> None:
    with primary_and_standby(FAST, scratch) as (primary, standby):
        assert call("migrate", "--dsn", primary.dsn()).code == ExitCode.DONE

        async def follow(connection: asyncpg.Connection) -> None:
            """Wait until the standby has what the primary has written."""
            position = await connection.fetchval("SELECT pg_current_wal_flush_lsn()::text")

            async def replay(copy: asyncpg.Connection) -> None:
                query = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn"
                while not await copy.fetchval(query, position):  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(0.05)

            await asyncio.to_thread(run_on, standby.dsn(), replay)

        run_on(primary.dsn(), follow)
        for words in READING:
            assert call(*words, "--dsn", standby.dsn()).code == ExitCode.DONE, words
        doctor = call("doctor", "--dsn", standby.dsn(), "-o", "json")
        assert doctor.code == ExitCode.NEGATIVE
        assert "the server is a standby, which sends no notifications; examine the primary" in doctor.out
        assert "start a worker that connects to the primary" in doctor.out
        for words in (["jobs", "add", "echo"], ["tasks", "pause", "echo"], ["worker", "--check", JOBS]):
            refused = call(*words, "--dsn", standby.dsn())
            assert refused.code == ExitCode.REFUSED, words
            assert "connect to the primary" in refused.err


@pytest.fixture
def reading_dsn(dsn: str) -> Iterator[str]:
    """The DSN of a role that may do everything, but whose transactions only read by default."""
    role = f"reader_{uuid.uuid4().hex}"

    async def create(connection: asyncpg.Connection) -> None:
        await connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
        await connection.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")

    async def drop(connection: asyncpg.Connection) -> None:
        await connection.execute(f"DROP ROLE {role}")

    run_on(dsn, create)
    yield dsn.replace("postgres@", f"{role}@", 1)
    run_on(dsn, drop)


def test_role_that_only_reads_is_told_how_to_write(call: Run, reading_dsn: str) -> None:
    for words in (
        ["jobs", "add", "echo"],
        ["tasks", "pause", "echo"],
        ["migrate", "down", "--to", "2", "--yes"],
    ):
        refused = call(*words, "--dsn", reading_dsn)
        assert refused.code == ExitCode.REFUSED, (words, refused.err)
        assert "set default_transaction_read_only = off for this role and database" in refused.err
    for words in READING:
        assert call(*words, "--dsn", reading_dsn).code == ExitCode.DONE, words
    checked = call("worker", "--check", JOBS, "--dsn", reading_dsn)
    assert (checked.code, checked.out) == (ExitCode.REFUSED, "")
    assert (
        "default_transaction_read_only is on for this role (from: user), so no worker starts" in checked.err
    )
    doctor = call("doctor", "--dsn", reading_dsn, "-o", "json")
    assert "default_transaction_read_only is on for this role (from: user)" in doctor.out

    async def start() -> None:
        async with asyncpg.create_pool(reading_dsn, min_size=1, max_size=5) as pool:
            await Scheduler(pool).start()

    with pytest.raises(DatabaseUnavailableError, match="set default_transaction_read_only = off"):
        asyncio.run(start())
