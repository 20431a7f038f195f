"""Rows of jobs written by hand, with any values that the table accepts: they run, fail or stay pending.

No row may stop the Scheduler or prevent the jobs behind it from running.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pg_scheduler import JobPriority, PollingConfig, Scheduler
from pg_scheduler.events import JobCompleted
from tests.api.conftest import Make
from tests.support.hostile import (
    COUNTS,
    EARLIEST,
    FINITE_INSTANTS,
    INSTANTS,
    JOB_NAME,
    JOB_NAMES,
    LATEST,
    MAX_INTEGER,
    OTHER_WORKERS,
    column,
    instants,
    write_row,
)
from tests.support.inside import fault_of, services_of
from tests.support.worker import Recorder, now

BATCH = 10

TYPES = {
    "job_id": "text",
    "job_name": "text",
    "function": "text",
    "execution_time": "timestamptz",
    "status": "text",
    "task_data": "jsonb",
    "created_at": "timestamptz",
    "last_heartbeat": "timestamptz",
    "lease_until": "timestamptz",
    "started_at": "timestamptz",
    "finished_at": "timestamptz",
    "expires_at": "timestamptz",
    "priority": "integer",
    "retry_count": "integer",
    "max_retries": "integer",
    "attempt": "integer",
    "crash_count": "integer",
    "misfire_grace_time": "integer",
    "timeout_seconds": "double precision",
    "lock_key": "bigint",
    "worker_id": "text",
    "error_message": "text",
    "blocked_on": "text",
    "unique_key": "text",
    "options": "jsonb",
    "progress": "jsonb",
    "errors": "jsonb",
    "on_end": "jsonb",
}

ARGUMENTS = [
    "{}",
    '{"kwargs": {"": 1, "a b": 2, "self": 3}}',
    '{"args": [1e400], "kwargs": {"x": 1e-400}, "more": true}',
    '{"args": ' + "[" * 500 + "]" * 500 + "}",
    '{"args": ["' + "x" * 100_000 + '"]}',
]
NO_ARGUMENTS = [
    "null",
    "1",
    '"text"',
    "[]",
    '{"args": 1}',
    '{"args": {"0": 1}}',
    '{"kwargs": []}',
    '{"args": [' + "9" * 5000 + "]}",
    "[" * 5000 + "]" * 5000,
]
DOCUMENTS = [
    "null",
    "1",
    '"text"',
    "[]",
    '[{"attempt": "x"}]',
    "{}",
    '{"child": true}',
    '{"keep_result": "x"}',
    "[" * 1000 + "]" * 1000,
    '{"child": ' + "[" * 1000 + "]" * 1000 + "}",
    "9" * 5000,
]
REPLACEMENTS = [
    "null",
    "[]",
    "{}",
    '"text"',
    '{"job_name": "x", "priority": "urgent"}',
    '{"job_name": "x", "execution_time": "' + LATEST + '", "task_data": {}, "priority": 1, "max_retries": 0,'
    ' "misfire_grace_time": 2147483647}',
    '{"job_name": "x", "execution_time": "now", "task_data": [], "priority": 4, "max_retries": 0}',
    '{"job_name": "x", "execution_time": "now", "task_data": [], "priority": 1, "max_retries": 1e99}',
    '{"job_name": "x", "execution_time": "'
    + EARLIEST
    + '", "task_data": {}, "priority": 1, "max_retries": 0}',
    '{"job_name": "'
    + JOB_NAME
    + '", "execution_time": "now", "task_data": [], "priority": 1, "max_retries": 0}',
]


def waiting(replacement: str) -> str:
    """Return what a running job does at its end if a new definition waits for it."""
    return f'{{"replacement": {replacement}}}'


DUE: dict[str, str | None] = {"job_name": JOB_NAME, "execution_time": "now", "priority": "1"}

rows = st.fixed_dictionaries(
    {
        "job_name": st.sampled_from(JOB_NAMES)
        | st.text(st.characters(exclude_categories=["Cs"], min_codepoint=1)),
        "execution_time": st.sampled_from(FINITE_INSTANTS),
        "status": st.sampled_from(["pending", "pending", "running"]),
        "task_data": st.sampled_from(ARGUMENTS + NO_ARGUMENTS),
        "priority": st.sampled_from(["1", "3", "5", "8"]),
    },
    optional={
        "function": st.sampled_from(JOB_NAMES),
        "created_at": st.sampled_from(INSTANTS),
        "last_heartbeat": instants,
        "lease_until": instants,
        "started_at": instants,
        "expires_at": instants,
        "retry_count": st.sampled_from(COUNTS),
        "max_retries": st.sampled_from(COUNTS),
        "attempt": st.sampled_from(COUNTS),
        "crash_count": st.sampled_from([*COUNTS, "-1", "-2147483648"]),
        "misfire_grace_time": column(None, *COUNTS),
        "timeout_seconds": column(None, "1e308", "5e-324", "Infinity", "NaN", "0.000001"),
        "lock_key": column(None, str(-(2**63)), str(2**63 - 1), "0"),
        "worker_id": column(None, *OTHER_WORKERS),
        "blocked_on": column(None, None, None, "", "after", "limit:x:y"),
        "unique_key": column(None, None, None, "key"),
        "options": column(None, *DOCUMENTS),
        "progress": column(None, *DOCUMENTS),
        "errors": column(None, *DOCUMENTS),
        "on_end": column(None, *DOCUMENTS, *map(waiting, REPLACEMENTS)),
    },
)


async def write_job(pool: asyncpg.Pool, job_id: str, row: dict[str, str | None]) -> bool:
    """Write a row; return False if a constraint rejects it."""
    return await write_row(pool, "scheduled_jobs", "job_id", TYPES, {"job_id": job_id, **row})


async def work(*args: Any, **kwargs: Any) -> None: ...


class Harness:
    """A Scheduler on a table with hostile rows, and valid jobs behind them."""

    def __init__(self, scheduler: Scheduler, pool: asyncpg.Pool) -> None:
        self.scheduler = scheduler
        self.pool = pool
        self.seen = Recorder(scheduler)
        scheduler.register(work, name=JOB_NAME)

    async def check_survival(self) -> None:
        """Verify that every service makes a pass, that every job can be read and that valid jobs run."""
        scheduler = self.scheduler
        last = await scheduler.schedule_job(JOB_NAME, now(), {}, JobPriority.LOW)
        await scheduler.start()
        await self.seen.until(JobCompleted, job_id=last)
        await scheduler.recover_orphaned_jobs()
        for part in services_of(scheduler):
            # The vacuum, which may be in its first pass, is called below.
            name = getattr(part, "name", "")
            if hasattr(part, "run_once") and name not in {"completer", "listener", "vacuum"}:
                await part.run_once()
        another = await scheduler.schedule_job(JOB_NAME, now(), {}, JobPriority.LOW)
        await self.seen.until(JobCompleted, job_id=another)
        for job in await scheduler.list_jobs(limit=1000):
            assert await scheduler.get_job(job.job_id) is not None
            assert all(
                getattr(job, name) is None or getattr(job, name).tzinfo
                for name, kind in TYPES.items()
                if kind == "timestamptz"
            )
        await scheduler.run_vacuum()
        assert scheduler.is_running
        await scheduler.shutdown()
        assert fault_of(scheduler) is None

    async def row(self, job_id: str) -> asyncpg.Record:
        found = await self.pool.fetchrow(
            "SELECT status, error_message, attempt FROM scheduled_jobs WHERE job_id = $1", job_id
        )
        assert found
        return found


@pytest.fixture
async def harness(make: Make, pool: asyncpg.Pool) -> Harness:
    return Harness(make(batch_claim_limit=BATCH, polling_config=PollingConfig()), pool)


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows, min_size=1, max_size=40))
async def test_scheduler_survives_any_rows_of_jobs(
    pool: asyncpg.Pool, hostile: list[dict[str, str | None]]
) -> None:
    await pool.execute("TRUNCATE scheduled_jobs, scheduler_workers")
    for number, row in enumerate(hostile):
        await write_job(pool, f"row-{number}", row)
    await Harness(Scheduler(pool, batch_claim_limit=BATCH, shutdown_timeout=0.05), pool).check_survival()
    without_error = await pool.fetch(
        "SELECT * FROM scheduled_jobs WHERE status = 'failed' AND error_message IS NULL"
    )
    assert without_error == []


async def test_job_fails_when_task_data_has_no_valid_arguments(harness: Harness) -> None:
    for document in ARGUMENTS + NO_ARGUMENTS:
        assert await write_job(harness.pool, document[:50], DUE | {"task_data": document})
    await harness.check_survival()
    for document in ARGUMENTS:
        assert tuple(await harness.row(document[:50])) == ("completed", None, 1)
    for document in NO_ARGUMENTS:
        status, error, _ = await harness.row(document[:50])
        assert status == "failed"
        assert error.startswith("PayloadError: task_data")


async def test_orphaned_job_fails_when_its_replacement_is_invalid(harness: Harness) -> None:
    orphan = DUE | {"status": "running", "attempt": "1", "worker_id": "gone"}
    for replacement in REPLACEMENTS:
        assert await write_job(harness.pool, replacement, orphan | {"on_end": waiting(replacement)})
    assert await write_job(harness.pool, "plain", orphan)
    await harness.check_survival()
    assert (await harness.row("plain"))["status"] == "completed"
    *unusable, unreachable, no_arguments = REPLACEMENTS
    for replacement in unusable:
        status, error, _ = await harness.row(replacement)
        assert status == "failed"
        assert error.startswith("the new definition that waited for this job cannot be used")
    assert (await harness.row(unreachable))["status"] == "pending"
    assert (await harness.row(no_arguments))["error_message"].startswith("PayloadError")


async def test_attempt_number_restarts_at_one_after_the_largest_integer(harness: Harness) -> None:
    assert await write_job(harness.pool, "largest", DUE | {"attempt": MAX_INTEGER})
    assert await write_job(harness.pool, "second largest", DUE | {"attempt": "2147483646"})
    await harness.check_survival()
    assert tuple(await harness.row("largest")) == ("completed", None, 1)
    assert tuple(await harness.row("second largest")) == ("completed", None, 2**31 - 1)
    await harness.pool.execute("UPDATE scheduled_jobs SET attempt = $1", 2**31 - 1)
    assert await harness.scheduler.update_job_status("largest", "running")
    assert tuple(await harness.row("largest")) == ("running", None, 1)


async def test_job_completes_when_its_timeout_is_huge_or_not_a_number(harness: Harness) -> None:
    timeouts = ["1e308", "Infinity", "NaN"]
    for timeout in timeouts:
        assert await write_job(harness.pool, timeout, DUE | {"timeout_seconds": timeout})
    await harness.check_survival()
    for timeout in timeouts:
        assert (await harness.row(timeout))["status"] == "completed"


async def test_job_stays_pending_when_its_time_is_out_of_range(harness: Harness) -> None:
    outside = [EARLIEST, LATEST]
    for instant in outside:
        assert await write_job(harness.pool, instant, DUE | {"execution_time": instant})
    # The zero time of Go and .NET, with which their programs call scheduler_add_job().
    assert await write_job(harness.pool, "first", DUE | {"execution_time": "0001-01-01 00:00:00Z"})
    await harness.check_survival()
    for instant in outside:
        assert tuple(await harness.row(instant)) == ("pending", None, 0)
        assert await harness.scheduler.update_job_status(instant, "pending")
        assert await harness.scheduler.cancel_job(instant)
    assert (await harness.row("first"))["status"] == "completed"


EXISTING = [f"{os.system.__module__}.system", "os.system", "builtins.eval", "builtins.exec", "subprocess.run"]
EXISTING += ["asyncio.sleep", "asyncio.tasks.sleep", "this", "antigravity.fly", f"{__name__}.work"]


async def test_names_in_rows_are_resolved_among_registered_functions_only(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("a name in the table was resolved by an import")

    for name in EXISTING:
        for place in ("job_name", "function"):
            assert await write_job(harness.pool, f"{place} {name}", DUE | {"job_name": "x", place: name})
    modules = set(sys.modules)
    for owner, attribute in ((os, "system"), (builtins, "eval"), (builtins, "exec")):
        monkeypatch.setattr(owner, attribute, reject)
    monkeypatch.setattr(importlib.util, "find_spec", reject)
    await harness.check_survival()
    unknown = {job.job_id for job in await harness.scheduler.list_jobs(status="pending")}
    assert unknown == {f"{place} {name}" for place in ("job_name", "function") for name in EXISTING} - {
        f"{place} {__name__}.work" for place in ("job_name", "function")
    }
    assert {"this", "antigravity"}.isdisjoint(set(sys.modules) - modules)
