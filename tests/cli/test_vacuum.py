"""The command vacuum, against real rows."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import asyncpg
import pytest

from pg_scheduler import VacuumConfig, VacuumPolicy
from pg_scheduler.worker.reporter import _plain
from tests.cli.conftest import Ran, Run
from tests.docs.snippets import ROOT
from tests.support import inside
from tests.support.inside import ExitCode
from tests.support.patience import PATIENCE
from tests.support.world import DAY, HOUR, World, populate

CONFIG = VacuumConfig(
    completed=VacuumPolicy.after_days(30),
    failed=VacuumPolicy.keep_last(1),
    cancelled=VacuumPolicy.immediate(),
    expired=VacuumPolicy.never(),
    track_metrics=True,
)
Add = Callable[..., None]


@pytest.fixture
def add(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Add:
    """Insert a worker that reports this retention."""
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)

    def add_worker(name: str, vacuum: Any) -> None:
        columns = {"names": None, "settings": {"vacuum": vacuum}, "lease": HOUR}
        populate(dsn, lambda world: world.worker(name, **columns))

    return add_worker


def settings(config: VacuumConfig = CONFIG) -> dict[str, Any]:
    return asdict(config, dict_factory=_plain)


@pytest.fixture
def on(call: Run, dsn: str, add: Add) -> Callable[..., Ran]:
    """Run a command on a database with a worker and finished jobs."""

    async def fill(world: World) -> None:
        for status in ("completed", "failed", "cancelled", "expired"):
            await world.jobs(
                3, "x", job_id=(status + "{}").format, status=status, ended=lambda n: -n * 29 * DAY
            )

    add("w1", settings())
    populate(dsn, fill)
    return call


def jobs(ran: Ran) -> dict[str, int | None]:
    assert ran.code == 0, ran.err
    return {row["status"]: row["jobs"] for row in ran.checked("retention")}


def test_dry_run_counts_what_vacuum_deletes(on: Callable[..., Ran]) -> None:
    dry = on("vacuum", "--dry-run")
    assert jobs(dry) == {"completed": 2, "failed": None, "cancelled": 3, "expired": 0}
    assert "5 jobs would be deleted" in dry.err
    ran = on("vacuum")
    assert jobs(ran) == {"completed": 2, "failed": 2, "cancelled": 3, "expired": 0}
    assert "7 jobs deleted" in ran.err
    assert [row["policy"] for row in ran.checked("retention")] == [
        "kept for 30 days",
        "the last 1 of each name kept",
        "deleted at once",
        "kept",
    ]
    assert jobs(on("vacuum", "--dry-run"))["cancelled"] == 0
    (day,) = on("vacuum", "--stats").checked("vacuum_day")
    assert [day[name] for name in ("completed", "failed", "cancelled", "expired")] == [2, 2, 3, 0]


def test_vacuum_is_recorded(on: Callable[..., Ran]) -> None:
    on("vacuum", "--dry-run")
    assert on("audit").out == ""
    on("vacuum")
    (record,) = on("audit", "--action", "vacuum_jobs").checked("audit_record")
    assert "@" in record["actor"]
    assert record["via"] == "cli"
    deleted = {"completed": 2, "failed": 2, "cancelled": 3}
    assert (record["details"]["deleted"], record["details"]["is_complete"]) == (deleted, True)


@pytest.mark.slow
async def test_vacuum_is_recorded_when_the_reader_of_its_output_has_gone(
    on: Callable[..., Ran], dsn: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "pg_scheduler", "vacuum", "-o", "jsonl"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PG_SCHEDULER_DSN": dsn},
            stdout=writer,
            stderr=asyncio.subprocess.PIPE,
        )
    finally:
        os.close(writer)
    _, errors = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0, errors
    (record,) = await asyncio.to_thread(
        lambda: on("audit", "--action", "vacuum_jobs").checked("audit_record")
    )
    assert record["details"]["deleted"] == {"completed": 2, "failed": 2, "cancelled": 3}
    (day,) = await asyncio.to_thread(lambda: on("vacuum", "--stats").checked("vacuum_day"))
    assert [day[name] for name in ("completed", "failed", "cancelled", "expired")] == [2, 2, 3, 0]


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_progress_is_shown(
    on: Callable[..., Ran], options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, progress_line_interval_s=0.0)
    found = "5 jobs found" if options else "7 jobs deleted"
    assert f"read 1 of 1 blocks, {found}\n" in on("vacuum", *options, "--progress", "lines").err
    assert "blocks" not in on("vacuum", *options, "--progress", "off").err
    assert on("vacuum", *options, "--progress", "x").code == ExitCode.USAGE


SLEEP_AT_FAILED3 = """
    CREATE FUNCTION sleep_at() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(600); RETURN OLD; END $$;
    CREATE TRIGGER sleep_at BEFORE DELETE ON scheduled_jobs FOR EACH ROW
        WHEN (OLD.job_id = 'failed3') EXECUTE FUNCTION sleep_at()
"""
IS_SLEEPING = """
    SELECT EXISTS (
        SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'
    )
"""


@pytest.mark.slow
async def test_interrupt_reports_what_was_deleted(on: Callable[..., Ran], dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    watcher = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(PATIENCE):
            await connection.execute(SLEEP_AT_FAILED3)
            process = await asyncio.create_subprocess_exec(
                *[sys.executable, "-m", "pg_scheduler", "vacuum"],
                env={**os.environ, "PYTHONPATH": str(ROOT), "PG_SCHEDULER_DSN": dsn},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            while not await watcher.fetchval(IS_SLEEPING):  # noqa: ASYNC110 - a statement raises no event
                await asyncio.sleep(0.05)  # until the process is in the middle of its work
            process.send_signal(signal.SIGINT)
            out, errors = await process.communicate()
        details = await watcher.fetchval("SELECT details FROM scheduler_audit WHERE action = 'vacuum_jobs'")
    finally:
        await connection.close()
        await watcher.close()
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["jobs"] for row in rows] == [2, 0, 3, 0]
    assert process.returncode == ExitCode.INTERRUPTED
    assert "5 jobs deleted so far; run the command again to continue\n" in errors.decode()
    assert errors.decode().endswith("pg-scheduler: interrupted\n")
    assert json.loads(details)["is_complete"] is False


def test_nothing_is_deleted_without_the_retention_of_a_worker(call: Run, add: Add) -> None:
    ran = call("vacuum")
    assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
    assert "no live worker reports its retention" in ran.err
    assert "no deletion was counted" in call("vacuum", "--stats").err


def test_nothing_is_deleted_while_workers_differ(on: Callable[..., Ran], add: Add) -> None:
    add("w2", settings(VacuumConfig()))
    ran = on("vacuum")
    assert ran.code == ExitCode.REFUSED
    assert "live workers have different retention policies" in ran.err


@pytest.mark.parametrize("wrong", [{"completed": 3}, {"completed": {"trigger": "soon"}}])
def test_invalid_retention_in_a_row_is_refused(call: Run, add: Add, wrong: Any) -> None:
    add("w1", wrong)
    ran = call("vacuum", "--dry-run")
    assert ran.code == ExitCode.REFUSED
    assert "nothing was deleted" in ran.err


def test_dry_run_and_stats_exclude_each_other(call: Run) -> None:
    assert call("vacuum", "--dry-run", "--stats").code == ExitCode.USAGE
