"""Rows that somebody wrote by hand, with whatever the table takes: they are run, failed or left alone.

None of them may end the Scheduler, or keep the jobs behind it from running.
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
    FINITE,
    FIRST,
    INSTANTS,
    LAST,
    MOST,
    NAME,
    NAMES,
    OTHERS,
    column,
    instants,
    write_row,
)
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
    "replacement": "jsonb",
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
REPLACEMENTS = [
    "null",
    "[]",
    "{}",
    '"text"',
    '{"job_name": "x", "priority": "urgent"}',
    '{"job_name": "x", "execution_time": "' + LAST + '", "task_data": {}, "priority": 1, "max_retries": 0,'
    ' "misfire_grace_time": 2147483647}',
    '{"job_name": "x", "execution_time": "now", "task_data": [], "priority": 4, "max_retries": 0}',
    '{"job_name": "x", "execution_time": "now", "task_data": [], "priority": 1, "max_retries": 1e99}',
    '{"job_name": "x", "execution_time": "' + FIRST + '", "task_data": {}, "priority": 1, "max_retries": 0}',
    '{"job_name": "' + NAME + '", "execution_time": "now", "task_data": [], "priority": 1, "max_retries": 0}',
]
DUE: dict[str, str | None] = {"job_name": NAME, "execution_time": "now", "priority": "1"}

rows = st.fixed_dictionaries(
    {
        "job_name": st.sampled_from(NAMES)
        | st.text(st.characters(exclude_categories=["Cs"], min_codepoint=1)),
        "execution_time": st.sampled_from(FINITE),
        "status": st.sampled_from(["pending", "pending", "running"]),
        "task_data": st.sampled_from(ARGUMENTS + NO_ARGUMENTS),
        "priority": st.sampled_from(["1", "3", "5", "8"]),
    },
    optional={
        "function": st.sampled_from(NAMES),
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
        "worker_id": column(None, *OTHERS),
        "replacement": column(None, *REPLACEMENTS),
    },
)


async def write(pool: asyncpg.Pool, job_id: str, row: dict[str, str | None]) -> bool:
    """Write a row as it is; False if the table refuses it."""
    return await write_row(pool, "scheduled_jobs", "job_id", TYPES, {"job_id": job_id, **row})


async def work(*args: Any, **kwargs: Any) -> None: ...


class Bystander:
    """A Scheduler beside such rows, and good jobs behind them."""

    def __init__(self, scheduler: Scheduler, pool: asyncpg.Pool) -> None:
        self.scheduler = scheduler
        self.pool = pool
        self.seen = Recorder(scheduler)
        scheduler.register(work, name=NAME)

    async def survives(self) -> None:
        """Every part has had its turn, every job can be looked at, and what is good has run."""
        scheduler = self.scheduler
        last = await scheduler.schedule_job(NAME, now(), {}, JobPriority.LOW)
        await scheduler.start()
        await self.seen.until(JobCompleted, job_id=last)
        await scheduler.recover_orphaned_jobs()
        runtime = scheduler._runtime
        assert runtime is not None
        for part in runtime._supervisor._parts:
            if hasattr(part, "run_once") and part is not runtime.completer and part is not runtime.listener:
                await part.run_once()
        again = await scheduler.schedule_job(NAME, now(), {}, JobPriority.LOW)
        await self.seen.until(JobCompleted, job_id=again)
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
        assert scheduler._life.fault is None

    async def row(self, job_id: str) -> asyncpg.Record:
        found = await self.pool.fetchrow(
            "SELECT status, error_message, attempt FROM scheduled_jobs WHERE job_id = $1", job_id
        )
        assert found
        return found


@pytest.fixture
async def bystander(make: Make, pool: asyncpg.Pool) -> Bystander:
    return Bystander(make(batch_claim_limit=BATCH, polling_config=PollingConfig()), pool)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows, min_size=1, max_size=40))
async def test_whatever_lies_in_the_table(pool: asyncpg.Pool, hostile: list[dict[str, str | None]]) -> None:
    await pool.execute("TRUNCATE scheduled_jobs, scheduler_workers")
    for number, row in enumerate(hostile):
        await write(pool, f"row-{number}", row)
    await Bystander(Scheduler(pool, batch_claim_limit=BATCH, shutdown_timeout=0.05), pool).survives()
    odd = await pool.fetch("SELECT * FROM scheduled_jobs WHERE status = 'failed' AND error_message IS NULL")
    assert odd == []


async def test_arguments_of_any_shape(bystander: Bystander) -> None:
    for document in ARGUMENTS + NO_ARGUMENTS:
        assert await write(bystander.pool, document[:50], DUE | {"task_data": document})
    await bystander.survives()
    for document in ARGUMENTS:
        assert tuple(await bystander.row(document[:50])) == ("completed", None, 1)
    for document in NO_ARGUMENTS:
        status, error, _ = await bystander.row(document[:50])
        assert status == "failed"
        assert error.startswith("PayloadError: task_data")


async def test_a_new_definition_that_no_row_can_take_fails_its_job(bystander: Bystander) -> None:
    orphan = DUE | {"status": "running", "attempt": "1", "worker_id": "gone"}
    for replacement in REPLACEMENTS:
        assert await write(bystander.pool, replacement, orphan | {"replacement": replacement})
    assert await write(bystander.pool, "plain", orphan)
    await bystander.survives()
    assert (await bystander.row("plain"))["status"] == "completed"
    *unusable, unreachable, no_arguments = REPLACEMENTS
    for replacement in unusable:
        status, error, _ = await bystander.row(replacement)
        assert status == "failed"
        assert error.startswith("the new definition that waited for this job cannot be used")
    assert (await bystander.row(unreachable))["status"] == "pending"
    assert (await bystander.row(no_arguments))["error_message"].startswith("PayloadError")


async def test_the_largest_attempt_is_followed_by_the_first(bystander: Bystander) -> None:
    assert await write(bystander.pool, "odd", DUE | {"attempt": MOST})
    assert await write(bystander.pool, "nearly", DUE | {"attempt": "2147483646"})
    await bystander.survives()
    assert tuple(await bystander.row("odd")) == ("completed", None, 1)
    assert tuple(await bystander.row("nearly")) == ("completed", None, 2**31 - 1)
    await bystander.pool.execute("UPDATE scheduled_jobs SET attempt = $1", 2**31 - 1)
    assert await bystander.scheduler.update_job_status("odd", "running")
    assert tuple(await bystander.row("odd")) == ("running", None, 1)


async def test_a_timeout_beyond_reason_is_none(bystander: Bystander) -> None:
    timeouts = ["1e308", "Infinity", "NaN"]
    for timeout in timeouts:
        assert await write(bystander.pool, timeout, DUE | {"timeout_seconds": timeout})
    await bystander.survives()
    for timeout in timeouts:
        assert (await bystander.row(timeout))["status"] == "completed"


async def test_a_time_beyond_the_calendar_is_left_alone(bystander: Bystander) -> None:
    beyond = [FIRST, LAST, "0001-01-01 00:00:00Z"]
    for instant in beyond:
        assert await write(bystander.pool, instant, DUE | {"execution_time": instant})
    assert await write(bystander.pool, "first", DUE | {"execution_time": "0001-01-01 00:00:00.000001Z"})
    await bystander.survives()
    for instant in beyond:
        assert tuple(await bystander.row(instant)) == ("pending", None, 0)
        assert await bystander.scheduler.update_job_status(instant, "pending")
        assert await bystander.scheduler.cancel_job(instant)
    assert (await bystander.row("first"))["status"] == "completed"


EXISTING = [f"{os.system.__module__}.system", "os.system", "builtins.eval", "builtins.exec", "subprocess.run"]
EXISTING += ["asyncio.sleep", "asyncio.tasks.sleep", "this", "antigravity.fly", f"{__name__}.work"]


async def test_no_name_in_a_row_is_looked_up_anywhere_but_among_registered_functions(
    bystander: Bystander, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("a name in the table was followed")

    for name in EXISTING:
        for place in ("job_name", "function"):
            assert await write(bystander.pool, f"{place} {name}", DUE | {"job_name": "x", place: name})
    modules = set(sys.modules)
    for owner, attribute in ((os, "system"), (builtins, "eval"), (builtins, "exec")):
        monkeypatch.setattr(owner, attribute, refuse)
    monkeypatch.setattr(importlib.util, "find_spec", refuse)
    await bystander.survives()
    unknown = {job.job_id for job in await bystander.scheduler.list_jobs(status="pending")}
    assert unknown == {f"{place} {name}" for place in ("job_name", "function") for name in EXISTING} - {
        f"{place} {__name__}.work" for place in ("job_name", "function")
    }
    assert {"this", "antigravity"}.isdisjoint(set(sys.modules) - modules)
