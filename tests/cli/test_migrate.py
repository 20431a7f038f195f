"""The group migrate, against real tables."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import jsonschema
import pytest

from pg_scheduler.cli import progress
from pg_scheduler.cli.output import Output
from pg_scheduler.database.migrations import indexes
from pg_scheduler.database.migrations.sql import lock
from pg_scheduler.migrate import shipped_migrations, verify
from tests.cli.conftest import Run, schema
from tests.conftest import Connection, run_on
from tests.docs.snippets import ROOT
from tests.support import inside
from tests.support.engines import NO_LOCKS
from tests.support.golden import golden
from tests.support.inside import ExitCode
from tests.support.patience import PATIENCE

HEAD = shipped_migrations()[-1].version
GOLDEN = Path(__file__).with_name("golden")


def execute(dsn: str, script: str) -> None:
    async def work(connection: Connection) -> None:
        await connection.execute(script)

    run_on(dsn, work)


def test_migrate_creates_the_tables_and_then_finds_nothing_to_do(call: Run, empty_dsn: str) -> None:
    ran = call("migrate", "--dsn", empty_dsn)
    assert ran.code == 0, ran.err
    assert [(line["version"], line["action"]) for line in ran.checked("migration")] == [
        (version, "apply") for version in range(1, HEAD + 1)
    ]
    assert f"{HEAD} migrations applied" in ran.err
    run_on(empty_dsn, verify)
    again = call("migrate", "--dsn", empty_dsn)
    assert (again.code, again.out) == (0, "")
    assert "no migration was missing" in again.err


@pytest.mark.slow
async def test_two_migrations_at_once_apply_each_version_once(empty_dsn: str, tmp_path: Path) -> None:
    """As two Jobs of Kubernetes would, of which one was started again."""
    command = [sys.executable, "-m", "pg_scheduler", "migrate", "--dsn", empty_dsn]
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    async with (
        asyncpg.create_pool(empty_dsn, min_size=1, max_size=1) as pool,
        pool.acquire() as holder,
        holder.transaction(),
    ):
        await holder.execute(lock("public"))
        processes = [
            await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(2)
        ]
        async with asyncio.timeout(PATIENCE):
            while await holder.fetchval(waiting) < 2:  # noqa: ASYNC110 - other processes wait
                await asyncio.sleep(0.02)  # until both have come so far
    outputs = [(await process.communicate())[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    applied = [json.loads(line)["version"] for output in outputs for line in output.splitlines()]
    assert applied == list(range(1, HEAD + 1))


def test_migrate_rejects_an_engine_before_it_creates_tables(call: Run, empty_dsn: str) -> None:
    execute(empty_dsn, NO_LOCKS)
    ran = call("migrate", "--dsn", empty_dsn)
    assert ran.code == ExitCode.USAGE
    assert "CockroachDB CCL v25.2.0" in ran.err
    assert call("migrate", "--check", "--dsn", empty_dsn).code == ExitCode.SCHEMA, "nothing was created"


def test_migrate_creates_the_schema_that_an_option_names(call: Run, empty_dsn: str) -> None:
    assert call("migrate", "--dsn", empty_dsn, "--schema", 'the "jobs"').code == 0
    assert call("migrate", "--dsn", empty_dsn, "--schema", 'the "jobs"', "--check").code == 0
    assert call("migrate", "--dsn", empty_dsn, "--check").code == ExitCode.SCHEMA


def test_schema_with_a_name_that_postgresql_reserves_is_refused(call: Run, empty_dsn: str) -> None:
    ran = call("migrate", "--dsn", empty_dsn, "--schema", "pg_jobs")
    assert ran.code == ExitCode.USAGE
    assert "must not begin with pg_" in ran.err


def test_check_exits_with_6_and_changes_nothing_while_migrations_are_missing(
    call: Run, empty_dsn: str
) -> None:
    for _ in range(2):
        ran = call("migrate", "--check", "--dsn", empty_dsn)
        assert ran.code == ExitCode.SCHEMA
        assert len(ran.checked("migration")) == HEAD
    assert call("migrate", "plan", "--dsn", empty_dsn).code == 0


def test_migrate_recreates_a_dropped_table(call: Run, dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    execute(dsn, "DROP TABLE scheduler_audit; DROP FUNCTION scheduler_cancel_job")
    check = call("migrate", "--check", "--dsn", dsn)
    assert check.code == ExitCode.SCHEMA, "as a worker decides"
    plan = call("migrate", "plan", "--dsn", dsn)
    assert (plan.code, "tables of pg_scheduler are missing" in plan.err) == (0, True)
    ran = call("migrate", "--dsn", dsn)
    assert (ran.code, ran.out) == (0, "")
    assert "recreated what was missing in schema 'public': scheduler_audit" in caplog.text
    run_on(dsn, verify)
    assert call("migrate", "--check", "--dsn", dsn).code == 0


@pytest.mark.parametrize("width", [80, 200])
def test_plan_table_fits_the_width(
    call: Run, empty_dsn: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = call("migrate", "plan", "-o", "wide", "--dsn", empty_dsn)
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= width
    assert ran.out == golden(GOLDEN / f"plan-{width}.txt", ran.out)


def test_plan_as_one_json_document_fits_both_schemas(call: Run, empty_dsn: str) -> None:
    document = json.loads(call("migrate", "plan", "-o", "json", "--dsn", empty_dsn).out)
    jsonschema.validate(document, schema("list"))
    for item in document["items"]:
        jsonschema.validate(item, schema("migration"))


def test_down_is_refused_without_yes_and_reverts_with_it(call: Run, dsn: str) -> None:
    refused = call("migrate", "down", "--to", str(HEAD - 1), "--dsn", dsn)
    assert refused.code == ExitCode.REFUSED
    assert "pass --yes" in refused.err
    run_on(dsn, verify)
    ran = call("migrate", "down", "--to", str(HEAD - 1), "--yes", "--dsn", dsn)
    assert ran.code == 0, ran.err
    assert [(line["version"], line["action"]) for line in ran.checked("migration")] == [(HEAD, "revert")]
    assert call("migrate", "down", "--to", str(HEAD), "--yes", "--dsn", dsn).code == ExitCode.USAGE
    assert call("migrate", "down", "--to", "999", "--yes", "--dsn", dsn).code == ExitCode.USAGE
    assert call("migrate", "verify", "--dsn", dsn).code == ExitCode.SCHEMA


@pytest.mark.slow
def test_warning_of_the_library_is_written_by_a_command_without_a_log(dsn: str) -> None:
    execute(dsn, "DROP TABLE scheduler_audit; DROP FUNCTION scheduler_cancel_job")
    command = [sys.executable, "-m", "pg_scheduler", "migrate", "--dsn", dsn]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert (
        "pg-scheduler: warning: recreated what was missing in schema 'public': scheduler_audit, "
        "function scheduler_cancel_job; lost rows and privileges are not restored"
    ) in ran.stderr


@pytest.mark.slow
def test_warning_of_the_library_is_written_once_if_the_application_has_a_handler(dsn: str) -> None:
    execute(dsn, "DROP TABLE scheduler_audit")
    program = (
        "import logging, sys\n"
        "logging.getLogger('pg_scheduler').addHandler(logging.StreamHandler())\n"
        "from pg_scheduler.cli.main import run\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", program, "migrate", "--dsn", dsn]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert ran.stderr.count("recreated what was missing") == 1


def test_newer_schema_exits_with_6(call: Run, dsn: str) -> None:
    execute(dsn, "INSERT INTO scheduler_migrations (version, name, checksum) VALUES (999, 'later', 'x')")
    ran = call("migrate", "--check", "--dsn", dsn)
    assert ran.code == ExitCode.SCHEMA
    assert "upgrade pg_scheduler" in ran.err


def test_printed_sql_makes_the_tables_of_a_migration_and_reverts_them(call: Run, empty_dsn: str) -> None:
    execute(empty_dsn, call("migrate", "sql", "--schema", "own", "--to", str(HEAD)).out)

    async def check(connection: Connection) -> None:
        await verify(connection, schema="own")

    run_on(empty_dsn, check)
    assert call("migrate", "--check", "--schema", "own", "--dsn", empty_dsn).code == 0
    script = call("migrate", "sql", "--schema", "own", "--from", str(HEAD), "--to", str(HEAD - 1)).out
    execute(empty_dsn, script)
    plan = call("migrate", "plan", "--schema", "own", "--dsn", empty_dsn).checked("migration")
    assert [line["version"] for line in plan] == [HEAD]


def test_printed_sql_changes_nothing_when_it_was_applied_before(call: Run, dsn: str) -> None:
    with pytest.raises(asyncpg.PostgresError):
        execute(dsn, call("migrate", "sql", "--from", str(HEAD - 1)).out)
    run_on(dsn, verify)


@pytest.mark.parametrize("options", [("--from", "999"), ("--to", "999"), ("--from", "-1")])
def test_sql_of_an_unknown_version_is_a_usage_error(call: Run, options: tuple[str, str]) -> None:
    ran = call("migrate", "sql", *options)
    assert ran.code == ExitCode.USAGE
    assert f"schema versions 0 to {HEAD}" in ran.err


def test_indexes_builds_the_missing_index_once(call: Run, dsn: str) -> None:
    execute(dsn, "DROP INDEX scheduled_jobs_unsuccessful")
    assert "run pg-scheduler migrate indexes" in call("migrate", "--dsn", dsn).err
    verified = call("migrate", "verify", "--dsn", dsn)
    assert json.loads(verified.out)["missing_indexes"] == ["scheduled_jobs_unsuccessful"]
    assert verified.code == 0
    ran = call("migrate", "indexes", "--dsn", dsn)
    assert (ran.code, [line["index"] for line in ran.checked("index")]) == (
        0,
        ["scheduled_jobs_unsuccessful"],
    )
    again = call("migrate", "indexes", "--dsn", dsn)
    assert (again.code, again.out) == (0, "")
    assert "no index is missing" in again.err


def test_missing_claim_index_names_the_command_that_builds_it(call: Run, dsn: str) -> None:
    execute(dsn, "DROP INDEX scheduled_jobs_claim")
    for command in (("status",), ("migrate",)):
        ran = call(*command, "--dsn", dsn)
        assert ran.code == ExitCode.REFUSED
        assert "execute pg-scheduler migrate indexes" in ran.err
        assert "backup" not in ran.err
        assert "drop" not in ran.err
    verified = call("migrate", "verify", "--dsn", dsn)
    assert (verified.code, json.loads(verified.out)["missing_indexes"]) == (
        ExitCode.NEGATIVE,
        ["scheduled_jobs_claim"],
    )
    assert call("migrate", "indexes", "--dsn", dsn).code == 0
    assert call("status", "--dsn", dsn).code in {0, ExitCode.NEGATIVE}


def test_verify_exits_with_1_when_a_table_differs(call: Run, dsn: str) -> None:
    good = call("migrate", "verify", "--dsn", dsn)
    jsonschema.validate(json.loads(good.out), schema("schema"))
    assert (good.code, json.loads(good.out)["matches"]) == (0, True)
    execute(dsn, "ALTER TABLE scheduler_audit DROP COLUMN details")
    ran = call("migrate", "verify", "--dsn", dsn)
    jsonschema.validate(json.loads(ran.out), schema("schema"))
    assert ran.code == ExitCode.NEGATIVE
    problem = json.loads(ran.out)["problem"]
    assert "column details of scheduler_audit is missing; restore the tables that differ" in problem
    assert call("migrate", "--dsn", dsn).code == ExitCode.REFUSED


def test_changed_migration_is_refused_with_4(call: Run, dsn: str) -> None:
    execute(dsn, "UPDATE scheduler_migrations SET checksum = 'x' WHERE version = 1")
    assert call("migrate", "--dsn", dsn).code == ExitCode.REFUSED
    assert call("migrate", "verify", "--dsn", dsn).code == ExitCode.NEGATIVE


def test_role_without_rights_is_refused_with_4(call: Run, empty_dsn: str) -> None:
    execute(empty_dsn, "CREATE ROLE cli_stranger LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    try:
        ran = call("migrate", "--dsn", empty_dsn.replace("postgres@", "cli_stranger@"), "--schema", "public")
        assert ran.code == ExitCode.REFUSED, ran.err
        assert "lacks a privilege" in ran.err
    finally:
        execute(empty_dsn, "DROP OWNED BY cli_stranger; DROP ROLE cli_stranger")


async def test_progress_of_migrations_and_indexes_is_shown(
    call: Run, dsn: str, empty_dsn: str, pool: asyncpg.Pool[asyncpg.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, progress_line_interval_s=0.0)
    inside.replace(monkeypatch, progress_look_interval_s=0.005)
    found = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def build_progress(connection: asyncpg.Connection[asyncpg.Record], pid: int) -> object:
        progress = await indexes.build_progress(connection, pid)
        if progress is not None and progress.phase == "waiting for writers before build":
            loop.call_soon_threadsafe(found.set)
        return progress

    inside.replace(monkeypatch, index_progress=build_progress)
    await pool.execute("DROP INDEX scheduled_jobs_unsuccessful")
    async with asyncio.timeout(PATIENCE), pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE scheduled_jobs IN ROW EXCLUSIVE MODE")
            building = asyncio.create_task(asyncio.to_thread(call, "migrate", "indexes", "--dsn", dsn))
            await found.wait()  # the build waits for the lock
        ran = await building
    assert (ran.code, "1 built" in ran.err) == (0, True), ran.err
    assert "\nwaiting for writers before build" in ran.err
    migrated = await asyncio.to_thread(call, "migrate", "--dsn", empty_dsn, "--progress", "lines")
    assert (migrated.code, f" of {HEAD}\n" in migrated.err) == (0, True), migrated.err
    assert "\napplying 00" in migrated.err


async def test_build_of_an_index_survives_the_end_of_the_connection_that_shows_its_progress(
    call: Run, dsn: str, pool: asyncpg.Pool[asyncpg.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, progress_look_interval_s=0.005)
    failed = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def lose(connection: asyncpg.Connection[asyncpg.Record], pid: int) -> object:
        try:
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            return await indexes.build_progress(connection, pid)
        finally:
            loop.call_soon_threadsafe(failed.set)

    inside.replace(monkeypatch, index_progress=lose)
    await pool.execute("DROP INDEX scheduled_jobs_unsuccessful")
    async with asyncio.timeout(PATIENCE), pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE scheduled_jobs IN ROW EXCLUSIVE MODE")
            building = asyncio.create_task(asyncio.to_thread(call, "migrate", "indexes", "--dsn", dsn))
            await failed.wait()  # the build waits for the lock
        ran = await building
    assert (ran.code, "1 built" in ran.err) == (0, True), ran.err
    assert ran.err.count("progress is no longer shown: ") == 1


@pytest.mark.slow
async def test_failed_look_ends_the_looks_and_not_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    ended = asyncio.Event()

    async def work() -> int:
        await ended.wait()
        return 7

    async def look() -> None:
        asyncio.get_running_loop().call_soon(ended.set)
        raise ConnectionError("lost")

    assert await asyncio.wait_for(progress.watch(work(), look, Output()), PATIENCE) == 7
    assert capsys.readouterr().err == "progress is no longer shown: lost; the command continues\n"


async def test_indexes_without_progress_open_one_connection(
    call: Run, dsn: str, pool: asyncpg.Pool[asyncpg.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, progress_look_interval_s=0.005)
    opened = "SELECT pid FROM pg_stat_activity WHERE application_name = 'pg_scheduler cli' AND datname = $1"
    database = await pool.fetchval("SELECT current_database()")
    await pool.execute("DROP INDEX scheduled_jobs_unsuccessful")
    waits = "SELECT EXISTS (SELECT FROM pg_stat_progress_create_index WHERE datname = $1)"
    async with asyncio.timeout(PATIENCE), pool.acquire() as blocker:
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE scheduled_jobs IN ROW EXCLUSIVE MODE")
            arguments = "migrate", "indexes", "--dsn", dsn, "--progress", "off"
            building = asyncio.create_task(asyncio.to_thread(call, *arguments))
            while not await pool.fetchval(waits, database):  # noqa: ASYNC110 - a lock raises no event
                await asyncio.sleep(0.01)
            connections = await pool.fetch(opened, database)
        ran = await building
    assert (ran.code, len(connections)) == (0, 1), ran.err


@pytest.mark.slow
async def test_interrupt_of_indexes_states_how_to_continue(
    call: Run, dsn: str, pool: asyncpg.Pool[asyncpg.Record]
) -> None:
    await pool.execute("DROP INDEX scheduled_jobs_unsuccessful")
    async with pool.acquire() as blocker, blocker.transaction(), asyncio.timeout(PATIENCE):
        await blocker.execute("LOCK TABLE scheduled_jobs IN ROW EXCLUSIVE MODE")
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "pg_scheduler", "migrate", "indexes"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PG_SCHEDULER_DSN": dsn},
            stderr=asyncio.subprocess.PIPE,
        )
        while not await pool.fetchval("SELECT EXISTS (SELECT FROM pg_stat_progress_create_index)"):  # noqa: ASYNC110 - a lock raises no event
            await asyncio.sleep(0.05)  # until the build waits
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED
    assert "run pg-scheduler migrate indexes again, which replaces it\n" in errors.decode()
    again = await asyncio.to_thread(call, "migrate", "indexes", "--dsn", dsn)
    assert [line["index"] for line in again.checked("index")] == ["scheduled_jobs_unsuccessful"]


@pytest.mark.slow
async def test_interrupt_exits_with_130_and_changes_nothing(
    dsn: str, pool: asyncpg.Pool[asyncpg.Record]
) -> None:
    async with pool.acquire() as blocker, blocker.transaction(), asyncio.timeout(40):
        await blocker.execute("LOCK TABLE scheduler_audit")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pg_scheduler", "migrate", "down", "--to", str(HEAD - 1), "--yes",
            env={**os.environ, "PYTHONPATH": str(ROOT), "PG_SCHEDULER_DSN": dsn},
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        while not await pool.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):  # noqa: ASYNC110 - a lock raises no event
            await asyncio.sleep(0.05)  # until the process waits for the lock
        process.send_signal(signal.SIGINT)
        _, message = await process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED
    assert message.decode().endswith("pg-scheduler: interrupted\n")
    async with pool.acquire() as connection:
        await verify(connection)
