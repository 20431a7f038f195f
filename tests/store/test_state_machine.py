"""The constraints of the tables reject invalid rows."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobStatus
from tests.support.cases import each_case
from tests.support.store import NOW, Pool

JOB: dict[str, Any] = {"job_id": "job", "job_name": "app.work", "execution_time": NOW}
RUNNING: dict[str, Any] = {"status": "running", "worker_id": "w1", "attempt": 1}
DONE: dict[str, Any] = {"status": "completed", "finished_at": NOW}
SCHEDULE: dict[str, Any] = {
    "schedule_id": "key",
    "owner": "api",
    "task": "app.sweep",
    "trigger": "{}",
    "kinds": ["every"],
    "described": "every hour",
    "task_data": "{}",
    "options": "{}",
    "metadata": "{}",
    "overlap": "allow",
    "catch_up": "latest",
    "anchor": NOW,
    "created_at": NOW,
    "updated_at": NOW,
}


async def insert(pool: Pool, table: str, values: dict[str, Any]) -> None:
    marks = ", ".join(f"${n + 1}" for n in range(len(values)))
    await pool.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", *values.values())


async def test_inserting_only_required_columns_creates_a_pending_job(pool: Pool) -> None:
    await insert(pool, "scheduled_jobs", {"job_name": "app.work", "execution_time": NOW})
    row = await pool.fetchrow("SELECT * FROM scheduled_jobs")
    assert row
    assert (row["status"], row["priority"], row["attempt"], row["max_retries"]) == ("pending", 5, 0, 0)
    assert (row["timeout_seconds"], row["task_data"]) == (3600, '{"args": [], "kwargs": {}}')
    assert row["job_id"]
    assert row["created_at"]


@pytest.mark.parametrize("status", JobStatus)
async def test_table_accepts_a_consistent_row_of_every_status(pool: Pool, status: JobStatus) -> None:
    shape = RUNNING if status is JobStatus.RUNNING else {"finished_at": NOW if status.is_finished else None}
    await insert(pool, "scheduled_jobs", {**JOB, **shape, "status": status.value})


@pytest.mark.parametrize("priority", [1, 3, 5, 8])
async def test_table_accepts_every_priority(pool: Pool, priority: int) -> None:
    await insert(pool, "scheduled_jobs", {**JOB, "priority": priority})


@each_case(
    ("values", "constraint"),
    [
        ({"status": "done"}, "states"),
        ({"status": ""}, "states"),
        ({"status": "PENDING"}, "states"),
        ({"priority": 0}, "values"),
        ({"priority": 4}, "values"),
        ({"retry_count": -1}, "values"),
        ({"max_retries": -1}, "values"),
        ({"attempt": -1}, "values"),
        ({"misfire_grace_time": -1}, "values"),
        ({"timeout_seconds": 0.0}, "values"),
        ({**RUNNING, "worker_id": None}, "states"),
        ({**RUNNING, "attempt": 0}, "states"),
        ({**RUNNING, "finished_at": NOW}, "states"),
        ({"status": "pending", "finished_at": NOW}, "states"),
        ({**DONE, "finished_at": None}, "states"),
        ({"status": "failed"}, "states"),
        ({"status": "cancelled"}, "states"),
        ({"status": "expired"}, "states"),
        ({**RUNNING, "blocked_on": "after"}, "states"),
        ({**DONE, "blocked_on": "after"}, "states"),
    ],
)
async def test_table_rejects_an_invalid_job(pool: Pool, values: dict[str, Any], constraint: str) -> None:
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await insert(pool, "scheduled_jobs", {**JOB, **values})
    assert caught.value.constraint_name == f"scheduled_jobs_{constraint}"


@each_case(
    "name",
    ["job_id", "job_name", "execution_time", "status", "task_data", "created_at", "priority", "attempt"],
)
async def test_table_rejects_null_in_required_columns(pool: Pool, name: str) -> None:
    with pytest.raises(asyncpg.NotNullViolationError) as caught:
        await insert(pool, "scheduled_jobs", {**JOB, name: None})
    assert caught.value.column_name == name


async def test_table_rejects_a_duplicate_id(pool: Pool) -> None:
    await insert(pool, "scheduled_jobs", JOB)
    with pytest.raises(asyncpg.UniqueViolationError):
        await insert(pool, "scheduled_jobs", JOB)


@pytest.mark.parametrize(
    ("values", "constraint"),
    [
        ({"schedule_id": "x" * 201}, "sizes"),
        ({"owner": "x"}, "owner_known"),
        ({"overlap": "x"}, "overlap_known"),
        ({"catch_up": "x"}, "catch_up_known"),
        ({"catch_up": "all"}, "catch_up_known"),
        ({"catch_up_limit": 1}, "catch_up_known"),
        ({"catch_up": "all", "catch_up_limit": 0}, "catch_up_known"),
        ({"catch_up": "all", "catch_up_limit": 1, "overlap": "skip"}, "catch_up_known"),
        ({"jitter_seconds": -1.0}, "intervals_positive"),
        ({"jitter_seconds": float("nan")}, "intervals_positive"),
        ({"catch_up_seconds": float("inf")}, "intervals_positive"),
        ({"max_runs": 0}, "counts"),
        ({"pause_after_failures": 0}, "counts"),
        ({"missed": -1}, "counts"),
    ],
)
async def test_table_rejects_an_invalid_schedule(pool: Pool, values: dict[str, Any], constraint: str) -> None:
    await insert(pool, "scheduler_schedules", {**SCHEDULE, "schedule_id": "fine"})
    with pytest.raises(asyncpg.CheckViolationError) as caught:
        await insert(pool, "scheduler_schedules", {**SCHEDULE, **values})
    assert caught.value.constraint_name == f"scheduler_schedules_{constraint}"
