"""What only people read never stops a service, whatever its table refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobStatus, VacuumConfig
from pg_scheduler.base.meter import Meter
from pg_scheduler.database.queries import load_queries
from pg_scheduler.events import JobsReclaimed
from pg_scheduler.statistics.service import StatisticsWriter
from tests.support.logs import warnings_of
from tests.support.parts import Parts
from tests.support.worker import Recorder, claim, new_job, new_worker, now, statuses

FOR_PEOPLE = (
    *("scheduler_audit", "scheduler_bulk_runs", "scheduler_stats", "scheduler_totals", "vacuum_stats"),
    *("scheduler_failures", "scheduler_error_groups", "scheduler_error_counts"),
)
"""The tables that no service reads for its work."""

REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
"""

PEOPLE, WITH_RECORD, APART = "an action of a person", "with_record()", "for_people() or its like"
WITHOUT_COUNT = "it is written again without the count, and counted later"
UNREADABLE = "the row cannot be read, so the claim leaves the job out"
WRITERS = {
    "insert_audit": PEOPLE,
    "begin_run": PEOPLE,
    "advance_run": PEOPLE,
    "stop_run": PEOPLE,
    "end_run": PEOPLE,
    "pause_task": PEOPLE,
    "resume_tasks": PEOPLE,
    "request_state": PEOPLE,
    "register_worker": WITH_RECORD,
    "insert_schedule": WITH_RECORD,
    "write_schedule": WITH_RECORD,
    "remove_schedule": WITH_RECORD,
    "pause_schedule": WITH_RECORD,
    "resume_schedule": WITH_RECORD,
    "record_dead_workers": APART,
    "add_statistics": APART,
    "fold_statistics": APART,
    "delete_statistics": APART,
    "fold_failures": APART,
    "count_failures": APART,
    "settle_failed": WITHOUT_COUNT,
    "quarantine_job": UNREADABLE,
    "refuse_replacement": WITHOUT_COUNT,
    "explain_expiry": WITH_RECORD,
    "expire_jobs": WITH_RECORD,
    "vacuum_audit": APART,
    "record_vacuum": APART,
}
"""Every statement that writes such a table, and why a refusal stops no service."""

WRITES = re.compile(rf'(?:INSERT INTO|UPDATE|DELETE FROM) "public"\.(?:{"|".join(FOR_PEOPLE)})\b')


def test_every_statement_that_writes_for_people_is_known() -> None:
    writers = {name for name, query in load_queries("public").items() if WRITES.search(query.text)}
    assert writers == WRITERS.keys()


@pytest.fixture
async def refusing(pool: asyncpg.Pool) -> None:
    await pool.execute(REFUSE)
    for table in FOR_PEOPLE:
        await pool.execute(
            f"CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
        )


@pytest.mark.usefixtures("refusing")
async def test_jobs_of_a_dead_worker_are_reclaimed_without_the_record(
    parts: Parts, pool: asyncpg.Pool, seen: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    await claim(parts.store, new_job("a"), worker_id="dead")
    await pool.execute("UPDATE scheduler_workers SET lease_until = now() - interval '1 hour'")
    rescuer = parts.rescuer()
    rescuer.answer_timeout_s = 0.0
    await rescuer.run_once()
    await rescuer.run_once()
    assert seen.of(JobsReclaimed) == [JobsReclaimed(("a",), ("dead",))]
    assert await statuses(parts.store, "a") == [JobStatus.PENDING.value]
    *_, warning = warnings_of(caplog)
    assert warning.startswith(
        "the server refused the record of the dead workers ['dead'] (RaiseError: refused)"
    )


@pytest.mark.usefixtures("refusing")
async def test_worker_of_a_new_release_registers_without_the_record(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    worker = replace(new_worker(), metadata={"release": "2"})
    await parts.store.workers.register(worker, 60)
    assert [worker.worker_id for worker in await parts.store.workers.list_workers()] == ["me"]
    (warning,) = warnings_of(caplog)
    assert warning.startswith("the server refused the record of the start of worker me (RaiseError: refused)")


@pytest.mark.usefixtures("refusing")
async def test_statistics_that_are_refused_are_reported_once_and_kept(
    parts: Parts, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    await parts.store.workers.register(new_worker(), 60)
    meter = Meter()
    writer = StatisticsWriter(parts, meter, parts.store.statistics)
    meter.record_end("work", "failed")
    for _ in range(2):
        assert await writer.run_once() == writer.interval_s
    _, warning = warnings_of(caplog)  # the first is about the registration
    assert warning.startswith("the server refused statistics of jobs (RaiseError: refused)")
    for table in FOR_PEOPLE:
        await pool.execute(f"DROP TRIGGER refuse ON {table}")
    await writer.run_once()
    assert await pool.fetchval("SELECT job_name FROM scheduler_totals") == "work"


@pytest.mark.usefixtures("refusing")
async def test_vacuum_deletes_jobs_where_records_cannot_be_deleted(
    parts: Parts, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture
) -> None:
    await pool.execute("ALTER TABLE scheduled_jobs DISABLE TRIGGER USER")
    await pool.execute("""
        INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, finished_at)
        VALUES ('old', 'work', now(), 'completed', now() - interval '1 year')
    """)
    assert (await parts.vacuum(VacuumConfig(track_metrics=True)).run())[JobStatus.COMPLETED] == 1
    refused = [re.sub(r" \(.*", "", warning) for warning in warnings_of(caplog)]
    assert refused == [
        "the server refused the deletion of old records",
        "the server refused to merge old statistics",
        "the server refused the number of deleted jobs",
    ]


@pytest.mark.usefixtures("refusing")
async def test_jobs_expire_without_the_count_while_a_pause_suspends_the_expiry_of_others(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    """The statement without the count leaves out the same names."""
    late: dict[str, Any] = {"execution_time": now() - timedelta(minutes=1), "misfire_grace_time": 1}
    jobs = [new_job("late", **late), new_job("paused", "paused", **late)]
    await parts.store.inserts.insert(jobs)
    expired = await parts.store.jobs.expire("me", [], 10, unexpiring_names={"paused"})
    assert [job.job_id for job in expired] == ["late"]
    assert await statuses(parts.store, "late", "paused") == ["expired", "pending"]
    (warning,) = warnings_of(caplog)
    assert warning.startswith("the server refused the count of expired jobs (RaiseError: refused)")
