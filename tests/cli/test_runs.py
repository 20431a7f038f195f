"""jobs runs: the bulk runs of the dashboard, listed, stopped and continued."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.errors import DatabaseUnavailableError
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.bulk_runs import BulkJobs, BulkRuns, BulkState
from pg_scheduler.inspect.store.bulk_runs import START
from tests.cli.conftest import Ran, Run
from tests.docs.snippets import ROOT
from tests.support.inside import ExitCode
from tests.support.patience import PATIENCE
from tests.support.world import World

JOBS = BulkJobs(verb="cancel", where="status:pending name:runs.*")

Command = Callable[..., Coroutine[Any, Any, Ran]]


@pytest.fixture
def command(call: Run, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run ``jobs runs`` in a thread, since a command has an event loop of its own."""
    monkeypatch.setenv("PG_SCHEDULER_DSN", dsn)

    async def run(*arguments: str) -> Ran:
        return await asyncio.to_thread(call, "jobs", "runs", "--progress", "off", "-o", "jsonl", *arguments)

    return run


@pytest.fixture
async def inspector(pool: asyncpg.Pool, world: World) -> Inspector:
    await world.jobs(700, "runs.probe", job_id="runs:{:05}".format, due=datetime(2099, 1, 1, tzinfo=UTC))
    return Inspector(Scheduler(pool))


async def cancelled(pool: asyncpg.Pool) -> int:
    found: int = await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'cancelled'")
    return found


async def start_and_die(inspector: Inspector, jobs: BulkJobs = JOBS) -> str:
    """Write the start of a run whose process ended before its first batch."""
    await inspector._store.bulk_runs.begin("bulk-of-the-dead", asdict(jobs), START)
    return "bulk-of-the-dead"


async def test_run_of_a_process_that_ended_is_listed_stopped_and_resumed(
    command: Command, inspector: Inspector, pool: asyncpg.Pool
) -> None:
    run_id = await start_and_die(inspector)
    (row,) = (await command()).checked("bulk_run")
    assert (row["run_id"], row["action"], row["phase"], row["done"]) == (run_id, "cancel", "running", 0)
    assert row["which"] == JOBS.where
    ran = await command("--stop", run_id)
    assert ran.code == 0
    assert f"the run {run_id} stops after the batch in progress" in ran.err
    assert (await command()).lines[0]["phase"] == "stopping"
    ran = await command("--resume", run_id)
    assert ran.code == 0, ran.err
    (row,) = ran.checked("bulk_run")
    assert (row["phase"], row["done"]) == ("complete", 700)
    assert await cancelled(pool) == 700
    actions = await pool.fetch("SELECT action, via FROM scheduler_audit ORDER BY id")
    assert [(each["action"], each["via"]) for each in actions][1:] == [
        *(("stop_bulk", "cli"), ("resume_bulk", "cli")),
        *(("cancel_jobs", "cli"), ("cancel_jobs", "cli"), ("end_bulk", "cli")),
    ]
    for option in ("--resume", "--stop"):
        refused = await command(option, run_id)
        assert refused.code == ExitCode.REFUSED
        assert "complete" in refused.err


@pytest.mark.slow
async def test_run_of_another_process_stops_after_its_batch(command: Command, inspector: Inspector) -> None:
    runs = BulkRuns(inspector)
    run_id = await runs.start(BulkJobs(verb="cancel", where=JOBS.where, rate=20))
    async with asyncio.timeout(PATIENCE):
        while runs.progress(run_id) is None:  # noqa: ASYNC110 - a step is no event
            await asyncio.sleep(0.02)  # until its first batch
        assert (await command("--stop", run_id)).code == 0
        await runs.wait()
    (row,) = (await command()).checked("bulk_run")
    assert row["phase"] == "stopped"
    assert 0 < row["done"] < 700
    assert (await command("--stop", run_id)).code == ExitCode.REFUSED


async def test_run_without_records_is_suspect(
    command: Command, inspector: Inspector, pool: asyncpg.Pool
) -> None:
    run_id = await start_and_die(inspector, BulkJobs(verb="cancel", where=JOBS.where, rate=1 / 360))
    await pool.execute("UPDATE scheduler_bulk_runs SET answered_at = answered_at - interval '2 min'")
    assert (await command()).lines[0]["phase"] == "running", "its rate leaves six minutes between batches"
    await pool.execute("UPDATE scheduler_bulk_runs SET answered_at = answered_at - interval '10 min'")
    ran = await command()
    assert ran.checked("bulk_run")[0]["phase"] == "suspect"
    assert (
        f"its process has probably ended; continue it with: pg-scheduler jobs runs --resume {run_id}"
        in ran.err
    )
    ran = await command("--stop", run_id)
    assert (ran.code, f"no process has answered for the run {run_id} since " in ran.err) == (0, True)
    assert (await command()).lines[0]["phase"] == "suspect", "a request to stop is no answer"


async def test_resumed_run_counts_the_jobs_of_the_whole_run(
    command: Command, inspector: Inspector, pool: asyncpg.Pool
) -> None:
    runs = BulkRuns(inspector)
    run_id = await runs.start(BulkJobs(verb="cancel", where=JOBS.where, rate=20))
    async with asyncio.timeout(PATIENCE):
        while runs.progress(run_id) is None:  # noqa: ASYNC110 - a step is no event
            await asyncio.sleep(0.02)  # until its first batch
        await runs.interrupt()
        before = await runs.state(run_id)
        assert before is not None
        assert 0 < before.done == await cancelled(pool) < 700
        await runs.resume(run_id, replace(before, jobs=JOBS))
        await runs.wait()
    assert ((await command()).lines[0]["done"], await cancelled(pool)) == (700, 700)


async def test_run_whose_state_cannot_be_read_after_its_last_batch_is_complete(
    inspector: Inspector, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, reads = BulkRuns(inspector), 0
    state = runs.state

    async def read_once(run_id: str) -> BulkState | None:
        nonlocal reads
        reads += 1
        if reads > 1:
            raise DatabaseUnavailableError("the connection was lost")
        return await state(run_id)

    monkeypatch.setattr(runs, "state", read_once)
    run_id = await runs.start(JOBS)  # two batches
    await asyncio.wait_for(runs.wait(), PATIENCE)
    found = await state(run_id)
    assert found is not None
    assert (found.phase, found.done, found.error) == ("complete", 700, None)
    details = json.loads(await pool.fetchval("SELECT details FROM scheduler_audit WHERE action = 'end_bulk'"))
    assert details["is_complete"] is True


async def test_run_that_is_interrupted_while_it_ends_has_one_record_of_its_end(
    inspector: Inspector, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, has_ended, may_return = BulkRuns(inspector), asyncio.Event(), asyncio.Event()
    end = inspector._store.bulk_runs.end

    async def end_slowly(*arguments: Any, **details: Any) -> None:
        await end(*arguments, **details)
        has_ended.set()
        await may_return.wait()

    monkeypatch.setattr(inspector._store.bulk_runs, "end", end_slowly)
    await runs.start(JOBS)
    await asyncio.wait_for(has_ended.wait(), PATIENCE)
    asyncio.get_running_loop().call_soon(may_return.set)
    await asyncio.wait_for(runs.interrupt(), PATIENCE)
    assert await pool.fetchval("SELECT count(*) FROM scheduler_audit WHERE action = 'end_bulk'") == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [True, False])
async def test_resume_exits_with_1_when_another_process_stops_or_continues_the_run(
    command: Command, inspector: Inspector, pool: asyncpg.Pool, is_stopped: bool
) -> None:
    run_id = await start_and_die(inspector, BulkJobs(verb="cancel", where=JOBS.where, rate=20))
    runs = BulkRuns(inspector)
    resumed = asyncio.create_task(command("--resume", run_id))
    async with asyncio.timeout(PATIENCE):
        while await cancelled(pool) == 0:  # noqa: ASYNC110 - a command raises no event
            await asyncio.sleep(0.02)  # until its first batch
        state = await runs.state(run_id)
        assert state is not None
        await (runs.stop(run_id) if is_stopped else runs.resume(run_id, state))
        ran = await resumed
        await runs.interrupt()
    assert ran.code == ExitCode.NEGATIVE, ran.err
    assert f"the run {run_id} is not complete here: another " in ran.err
    assert ("taken over by another call" in ran.err) is not is_stopped
    assert (f"--resume {run_id}" in ran.err) is is_stopped
    assert ran.lines[0]["phase"] == ("stopped" if is_stopped else "running")


@pytest.mark.slow
async def test_interrupted_resume_stops_the_run_which_can_be_continued(
    command: Command, inspector: Inspector, pool: asyncpg.Pool, dsn: str
) -> None:
    run_id = await start_and_die(inspector, BulkJobs(verb="cancel", where=JOBS.where, rate=1 / 360))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pg_scheduler", "jobs", "runs", "--resume", run_id, "-o", "json"),
        env={**os.environ, "PYTHONPATH": str(ROOT), "PG_SCHEDULER_DSN": dsn},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            while await cancelled(pool) == 0:  # noqa: ASYNC110 - a process raises no event
                await asyncio.sleep(0.02)  # until the first batch of the process
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == ExitCode.INTERRUPTED, err
    row: dict[str, Any] = json.loads(out)
    assert (row["phase"], row["done"]) == ("stopped", await cancelled(pool))
    assert f"continue with: pg-scheduler jobs runs --resume {run_id}" in err.decode()
    assert (await command()).lines[0]["phase"] == "stopped"


@pytest.mark.usefixtures("inspector")
async def test_unknown_run_and_wrong_usage_are_errors(command: Command) -> None:
    for option in ("--stop", "--resume"):
        ran = await command(option, "bulk-missing")
        assert ran.code == ExitCode.NOT_FOUND
        assert "there is no bulk run 'bulk-missing'; pg-scheduler jobs runs lists them" in ran.err
    assert (await command("--stop", "a", "--resume", "b")).code == ExitCode.USAGE
    assert (await command()).out == ""
