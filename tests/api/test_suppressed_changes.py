"""A trigger of the application that suppresses a change by ``RETURN NULL`` is reported as what it is.

Who runs a statement that writes rows must look whether it wrote them. ``UNSEEN`` names those statements whose
callers do not, with the reason; it is compared with the code.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import asyncpg
import pytest

import pg_scheduler
from pg_scheduler import ConflictResolution, Scheduler
from pg_scheduler.errors import PayloadError
from pg_scheduler.events import JobCompleted, JobFailed
from pg_scheduler.triggers import Every
from tests.api.conftest import Make
from tests.support.guards import guard
from tests.support.inside import load_queries, refused_consequences, store_of
from tests.support.worker import PATIENCE, Recorder

LATER = datetime(2099, 1, 1, tzinfo=UTC)
REPLACE = ConflictResolution.REPLACE

Call = Callable[[Scheduler], Awaitable[object]]

INSERTS: Final[dict[str, Call]] = {
    "an id": lambda it: it.schedule(work, execution_time=LATER, job_id="new"),
    "replace": lambda it: it.schedule(work, execution_time=LATER, job_id="new", conflict_resolution=REPLACE),
    "no id": lambda it: it.enqueue(work),
    "a predecessor": lambda it: it.enqueue(work, after=["old"]),
}

CHANGES: Final[dict[str, Call]] = {
    "cancel": lambda it: it.cancel_job("old"),
    "signal": lambda it: it.signal("old", "go", 1),
    "replace": lambda it: it.schedule(work, execution_time=LATER, job_id="old", conflict_resolution=REPLACE),
}


async def work(x: int = 0) -> int:
    return x


async def suppress(
    pool: asyncpg.Pool, on: str, condition: str = "true", table: str = "scheduled_jobs"
) -> None:
    body = f"IF {condition} THEN RETURN NULL; END IF; RETURN NEW;"
    await guard(pool, body, on=on, table=table, is_deferred=False)


@pytest.fixture
async def scheduler(make: Make) -> Scheduler:
    scheduler = make()
    scheduler.register(work, name="work")
    await scheduler.initialize_db()
    await scheduler.schedule(work, execution_time=LATER, job_id="old")
    return scheduler


@pytest.mark.parametrize("name", INSERTS)
async def test_insert_that_a_trigger_suppresses_raises_an_error_that_says_so(
    scheduler: Scheduler, pool: asyncpg.Pool, name: str
) -> None:
    await suppress(pool, "INSERT")
    with pytest.raises(
        PayloadError, match=r"the insert (or update )?of the row was suppressed; look for a BEFORE INSERT"
    ):
        await asyncio.wait_for(INSERTS[name](scheduler), PATIENCE)


@pytest.mark.parametrize("name", CHANGES)
async def test_change_that_a_trigger_suppresses_raises_an_error_that_says_so(
    scheduler: Scheduler, pool: asyncpg.Pool, name: str
) -> None:
    await suppress(pool, "UPDATE")
    with pytest.raises(
        PayloadError,
        match=r"the (insert or )?update of the row was suppressed; look for a BEFORE (INSERT OR )?UPDATE",
    ):
        await asyncio.wait_for(CHANGES[name](scheduler), PATIENCE)
    job = await scheduler.get_job("old")
    assert job is not None
    assert job.status.value == "pending"


async def test_insert_into_a_transaction_that_a_trigger_suppresses_raises_an_error_that_says_so(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await suppress(pool, "INSERT")
    async with pool.acquire() as connection, connection.transaction():
        with pytest.raises(PayloadError, match="the insert of the row was suppressed"):
            await scheduler.enqueue("work", connection=connection, notify="never")


async def test_schedule_whose_insert_a_trigger_suppresses_raises_an_error_that_says_so(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await suppress(pool, "INSERT", table="scheduler_schedules")
    with pytest.raises(PayloadError, match="the insert of the row was suppressed"):
        await scheduler.schedules.add(work, Every(hours=1))


async def test_alert_is_not_repeated_when_a_trigger_suppresses_changes_of_finished_jobs(
    make: Make, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ValueError("no")

    async def alert(job_id: str, job_name: str, error: str, attempts: int) -> None: ...

    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(alert, name="alert")
    scheduler.register(fail, name="fail", on_failure="alert", max_retries=0)
    await scheduler.initialize_db()
    await suppress(pool, "UPDATE", "OLD.finished_at IS NOT NULL AND OLD.job_name = 'fail'")
    await scheduler.start()
    await scheduler.enqueue("fail", job_id="bad")
    await seen.until(JobFailed, job_id="bad")
    consequences = store_of(scheduler).consequences
    for _ in range(3):
        refused_consequences(scheduler).clear()
        assert await consequences.apply_lost(10) == 1
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE job_name = 'alert'") == 0
    assert "consequences of the end of job bad refused by the table" in caplog.text
    await pool.execute("DROP TRIGGER guard ON scheduled_jobs")
    refused_consequences(scheduler).clear()
    await consequences.apply_lost(10)
    await seen.until(JobCompleted, job_name="alert")


FOUND_AGAIN: Final = "A later pass finds the row again, and nothing was reported."
FOR_PEOPLE: Final = "Only people read what is written."
WITHIN: Final = "The method that is called looks, or the row is no result of it."
GENERATED: Final = "The documentation names it: to look would cost each job without an id."
OTHER_TABLE: Final = "The documentation names the tables on which no trigger may suppress a change."

UNSEEN: Final = {
    "announce_subscriptions": OTHER_TABLE,
    "await_jobs": OTHER_TABLE,
    "correct_waits": OTHER_TABLE,
    "delete_child_edges": OTHER_TABLE,
    "delete_edges": OTHER_TABLE,
    "delete_past_starts": FOUND_AGAIN,
    "delete_steps_from": OTHER_TABLE,
    "deregister_worker": OTHER_TABLE,
    "end_vacuum_pass": OTHER_TABLE,
    "enqueue_generated_job": GENERATED,
    "enqueue_extended_generated_job": GENERATED,
    "insert_edges": OTHER_TABLE,
    "insert_generated_job": GENERATED,
    "insert_generated_jobs": GENERATED,
    "change_job": WITHIN,
    "keep_job": WITHIN,
    "keep_results": OTHER_TABLE,
    "mark_awaited": FOUND_AGAIN,
    "mark_parents": FOUND_AGAIN,
    "block_retried": "retry_jobs has returned these rows",
    "note_last_jobs": OTHER_TABLE,
    "mark_stopping": OTHER_TABLE,
    "move_to_front": "the statement's result is used; the audit has an action of the same name",
    "note_deadlines": OTHER_TABLE,
    "pass_results": OTHER_TABLE,
    "pause_schedule": OTHER_TABLE,
    "record_database": OTHER_TABLE,
    "record_dead_workers": FOR_PEOPLE,
    "record_vacuum": FOR_PEOPLE,
    "replace_extended_jobs": WITHIN,
    "replace_jobs": WITHIN,
    "restart_leases": FOUND_AGAIN,
    "set_back_suspended": OTHER_TABLE,
    "stop_run": OTHER_TABLE,
    "take_over_results": OTHER_TABLE,
    "try_claim": WITHIN,
    "wait_again": OTHER_TABLE,
    "write_own_progress": FOR_PEOPLE,
    "write_schedule": OTHER_TABLE,
}
"""The statements that write rows and whose result a caller drops."""

WRITES: Final = re.compile(r'(?:UPDATE|INSERT INTO|DELETE FROM) "?app"?\.\w+')
PACKAGE: Final = Path(pg_scheduler.__file__).parent


def dropped_results() -> set[str]:
    """Return the names in calls of the form ``await ...("name", ...)`` whose result is not used."""
    names = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Await):
                names |= {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
    return {name for name in names if isinstance(name, str)}


def test_caller_looks_what_a_statement_wrote_or_the_list_says_why_not() -> None:
    writing = {
        name
        for name, query in load_queries("app").items()
        if WRITES.search(re.sub(r"^--.*\n?", "", query.text, flags=re.MULTILINE))
    }
    assert dropped_results() & writing == UNSEEN.keys()
