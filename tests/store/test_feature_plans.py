"""Plans of the statements of schedules and results on large tables.

A statement that is prepared while its table is empty keeps its plan, so it is executed before the table is
filled. Then it is planned again with statistics.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.support.inside import Store, load_queries
from tests.support.store import NOW, Connection

QUERIES = load_queries("public")
ROWS = 50_000
INSTANT = f"'{NOW.isoformat()}'"
LAST_JOBS = "'{" + ",".join(f"job-{n}" for n in range(500)) + "}'"
NO_DEFINITIONS = "'{" + ",".join(["NULL"] * 500) + "}'"
AUDIT = "bigint, bigint, bigint, text, text, text, timestamptz, timestamptz"
TYPES = {
    "due_schedules": "timestamptz, text[], text[], text[], text, integer, text[], text[]",
    "next_fire": "timestamptz, text[], text[], text[], text, text[]",
    "lock_last_jobs": "text[]",
    "delete_jobs": "text[]",
    "find_obsolete": "text[], text",
    "free_fire_times": "text[], text",
    "delete_completed": "text[]",
    "lock_batch": "text[]",
    "lock_dependents": "text[], text[]",
    "lock_families": "text[], boolean",
    "find_outdated_steps": "text[]",
    "retry_jobs": "text[], timestamptz",
    "move_jobs": "text[], timestamptz, double precision, timestamptz",
    "claim_one": "text, text, timestamptz",
    "vacuum_audit": "timestamptz, integer",
    "inspect_audit": AUDIT,
    "inspect_audit_of": f"{AUDIT}, text",
    "inspect_trigger_changes": "text[], bigint",
    "inspect_newest_records": "text[], text[], bigint",
    "inspect_schedule_counts": "bigint, text[], text, text, double precision, timestamptz",
    "inspect_schedule_state": "text, double precision, timestamptz",
    "inspect_schedules": "timestamptz, bigint, double precision",
    "inspect_schedule_list": "bigint, text[], text, text, double precision, timestamptz, text, text, bigint",
    "recent_runs": "bigint, bigint",
    "vacuum_results": "integer, timestamptz",
    "get_results": "text[], timestamptz",
    "clear_steps": "text[]",
    "pass_results": "text[], text[], text[], timestamptz, text[]",
    "take_over_results": "text[]",
    "passed_names": "text",
    "passed_results": "text, text[]",
    "fold_statistics": "integer, integer, double precision, integer, timestamptz",
    "delete_statistics": "integer, double precision, integer, timestamptz, double precision, double precision"
    ", double precision",
    "fold_failures": "integer, integer, text",
    "inspect_error_groups": "integer, timestamptz, integer, integer, text[], timestamptz, timestamptz",
    "inspect_error_group": "integer, timestamptz, integer, integer, text, timestamptz, timestamptz",
    "read_statistics": "integer, double precision, text[], timestamptz, text, bigint, timestamptz",
    "sum_statistics": "integer, double precision, text[], timestamptz, text, bigint, timestamptz,"
    " double precision",
    "sum_statistics_by_name": "integer, timestamptz, timestamptz, timestamptz, text, bigint, timestamptz",
    "read_starts": "double precision, timestamptz",
}
VALUES = {
    "due_schedules": f"{INSTANT}, '{{}}', '{{work}}', '{{every}}', NULL, 500, '{{}}', NULL",
    "next_fire": f"{INSTANT}, '{{}}', '{{work}}', '{{every}}', NULL, '{{}}'",
    "lock_last_jobs": LAST_JOBS,
    "delete_jobs": LAST_JOBS,
    "find_obsolete": f"{LAST_JOBS}, '{{}}'",
    "free_fire_times": f"{LAST_JOBS}, '{{}}'",
    "delete_completed": LAST_JOBS,
    "lock_batch": LAST_JOBS,
    "lock_dependents": f"{LAST_JOBS}, {LAST_JOBS}",
    "lock_families": "'{tree}', false",
    "find_outdated_steps": "'{tree}'",
    "retry_jobs": f"{LAST_JOBS}, {INSTANT}",
    "move_jobs": f"{LAST_JOBS}, NULL, 60, {INSTANT}",
    "claim_one": f"'w1', 'job-2', {INSTANT}",
    "vacuum_audit": f"{INSTANT}, 1000",
    "inspect_audit": f"NULL, 50, 2000, 'none', 'me', NULL, {INSTANT}, NULL",
    "inspect_audit_of": f"49000, 50, 2000, NULL, NULL, 'cli', NULL, {INSTANT}, 'work'",
    "inspect_trigger_changes": "'{work,schedule-1,schedule-2}', 50",
    "inspect_newest_records": "'{work,schedule-1,schedule-2}', '{mute_error,unmute_error}', 10",
    "inspect_schedule_counts": f"2000, NULL, NULL, NULL, 60, {INSTANT}",
    "inspect_schedule_state": f"'schedule-2', 60, {INSTANT}",
    "inspect_schedules": f"{INSTANT}, 500, 60",
    "inspect_schedule_list": f"2000, NULL, NULL, NULL, 60, {INSTANT}, 'failing', 'schedule-2', 26",
    "recent_runs": "50, 1000",
    "vacuum_results": f"1000, {INSTANT}",
    "get_results": f"{LAST_JOBS}, {INSTANT}",
    "clear_steps": LAST_JOBS,
    "pass_results": f"{LAST_JOBS}, {LAST_JOBS}, {LAST_JOBS}, {INSTANT}, {NO_DEFINITIONS}",
    "take_over_results": LAST_JOBS,
    "passed_names": "'job-2'",
    "passed_results": f"'job-2', {LAST_JOBS}",
    "fold_statistics": f"60, 600, 21600, 500, {INSTANT}",
    "delete_statistics": f"60, 21600, 500, {INSTANT}, 7200, 691200, 7776000",
    "fold_failures": "1000, 1000, 'other'",
    "inspect_error_groups": f"60, timestamptz {INSTANT} - interval '1 hour', 2000, 101, NULL, {INSTANT}"
    f", timestamptz {INSTANT} - interval '1 hour'",
    "inspect_error_group": f"3600, timestamptz {INSTANT} - interval '1 day', 2000, 1, 'f7', {INSTANT}"
    f", timestamptz {INSTANT} - interval '1 day'",
    "read_statistics": f"60, 86400, NULL, {INSTANT}, 'work5', 250, {INSTANT}",
    "sum_statistics": f"60, 86400, NULL, {INSTANT}, 'work5', 2000, {INSTANT}, 3600",
    "sum_statistics_by_name": f"60, '2026-01-01Z', {INSTANT}, {INSTANT}, 'work5', 1000, {INSTANT}",
    "read_starts": f"900, {INSTANT}",
}
READ_GROUPS = {
    ("Index Scan", "scheduled_jobs_pkey"),
    ("Index Scan", "scheduler_error_counts_pkey"),
    ("Index Scan", "scheduler_error_groups_pkey"),
    ("Index Scan", "scheduler_migrations_pkey"),
    ("Seq Scan", None),  # of the failures that are not counted yet, up to the limit
}
EXPECTED = {
    "due_schedules": {("Index Scan", "scheduler_schedules_due")},
    "next_fire": {("Index Scan", "scheduler_schedules_due")},
    "lock_last_jobs": {("Index Scan", "scheduled_jobs_pkey")},
    "delete_jobs": {
        ("Index Scan", "scheduled_jobs_pkey"),
        ("Index Scan", "scheduler_after_child"),
        ("Index Scan", "scheduler_results_pkey"),
        ("Index Scan", "scheduler_steps_pkey"),
        ("Tid Scan", None),
    },
    "delete_completed": {
        ("Index Scan", "scheduled_jobs_pkey"),
        ("Index Scan", "scheduler_results_pkey"),
        ("Index Scan", "scheduler_steps_pkey"),
        ("Tid Scan", None),
    },
    "find_obsolete": {("Index Scan", "scheduled_jobs_pkey")},
    "free_fire_times": {
        ("Index Scan", "scheduled_jobs_pkey"),
        ("Index Scan", "scheduler_after_child"),
        ("Index Scan", "scheduler_results_pkey"),
        ("Tid Scan", None),
    },
    "lock_batch": {("Index Scan", "scheduled_jobs_pkey")},
    "lock_dependents": {("Index Scan", "scheduled_jobs_pkey"), ("Index Scan", "scheduled_jobs_unique")},
    "lock_families": {
        ("Index Only Scan", "scheduled_jobs_pkey"),
        ("Index Scan", "scheduled_jobs_pkey"),
        ("Index Scan", "scheduler_steps_pkey"),
    },
    "find_outdated_steps": {
        ("Index Scan", "scheduled_jobs_pkey"),
        ("Index Scan", "scheduler_steps_pkey"),
    },
    "retry_jobs": {
        ("Index Scan", "scheduled_jobs_pkey"),
        ("Index Scan", "scheduled_jobs_unique"),
        ("Index Scan", "scheduler_sequences_pkey"),
        ("Index Only Scan", "scheduler_after_child"),
    },
    "move_jobs": {("Index Scan", "scheduled_jobs_pkey"), ("Index Scan", "scheduler_steps_pkey")},
    "claim_one": {
        ("Index Scan", "scheduled_jobs_pkey"),
        ("Index Scan", "scheduler_workers_pkey"),
        ("Tid Scan", None),
    },
    "inspect_audit": {("Index Scan", "scheduler_audit_pkey")},
    "inspect_audit_of": {("Index Scan", "scheduler_audit_subjects")},
    "inspect_trigger_changes": {("Index Scan", "scheduler_audit_subjects")},
    "inspect_newest_records": {("Index Scan", "scheduler_audit_subjects")},
    "inspect_schedule_counts": {("Seq Scan", None), ("Index Scan", "scheduled_jobs_pkey")},
    "inspect_schedule_state": {
        ("Index Scan", "scheduler_schedules_pkey"),
        ("Index Scan", "scheduled_jobs_pkey"),
    },
    "inspect_schedules": {
        ("Index Scan", "scheduler_schedules_pkey"),
        ("Index Scan", "scheduled_jobs_pkey"),
    },
    "inspect_schedule_list": {
        ("Index Scan", "scheduler_schedules_pkey"),
        ("Index Scan", "scheduled_jobs_pkey"),
        ("Index Scan", "scheduler_audit_subjects"),
    },
    "recent_runs": {("Index Scan", "scheduler_bulk_runs_created")},
    "vacuum_audit": {
        ("Index Scan", "scheduler_audit_time"),
        ("Index Scan", "scheduler_audit_pkey"),
        ("Index Scan", "scheduler_bulk_runs_created"),
        ("Index Scan", "scheduler_bulk_runs_pkey"),
        ("Seq Scan", None),  # of the workers
    },
    "vacuum_results": {
        ("Index Only Scan", "scheduled_jobs_ended"),
        ("Index Scan", "scheduler_results_expiry"),
        ("Index Scan", "scheduler_results_pkey"),
    },
    "get_results": {("Index Scan", "scheduled_jobs_pkey"), ("Index Scan", "scheduler_results_pkey")},
    "clear_steps": {("Index Scan", "scheduled_jobs_pkey"), ("Index Scan", "scheduler_steps_pkey")},
    "pass_results": {
        ("Index Scan", "scheduled_jobs_pkey"),
        ("Index Scan", "scheduler_results_pkey"),
        ("Index Scan", "scheduler_steps_pkey"),
    },
    "take_over_results": {
        ("Index Scan", "scheduled_jobs_pkey"),
        ("Index Scan", "scheduler_steps_pkey"),
    },
    "passed_names": {("Index Scan", "scheduled_jobs_pkey"), ("Index Scan", "scheduler_steps_pkey")},
    "passed_results": {("Index Scan", "scheduler_steps_pkey")},
    "fold_statistics": {("Index Scan", "scheduler_stats_pkey"), ("Tid Scan", None)},
    "delete_statistics": {
        ("Index Scan", "scheduler_stats_pkey"),
        ("Index Scan", "scheduler_error_counts_age"),
        ("Index Scan", "scheduler_error_groups_last"),
        ("Tid Scan", None),
    },
    "fold_failures": {
        ("Index Only Scan", "scheduler_error_groups_job"),
        ("Index Only Scan", "scheduler_error_groups_pkey"),
        ("Seq Scan", None),  # of the failures that are not counted yet, up to the limit
        ("Tid Scan", None),
    },
    "inspect_error_groups": READ_GROUPS | {("Index Scan", "scheduler_error_groups_last")},
    "inspect_error_group": READ_GROUPS,
    "read_statistics": {("Index Scan", "scheduler_stats_pkey")},
    "sum_statistics": {("Index Scan", "scheduler_stats_pkey")},
    "sum_statistics_by_name": {("Index Scan", "scheduler_stats_pkey")},
    "read_starts": {("Index Scan", "scheduler_stats_pkey")},
}
READ_AT_MOST = {
    "due_schedules": 500,
    "next_fire": 1,
    "lock_last_jobs": 1000,
    "find_obsolete": 500,
    "free_fire_times": 1500,
    "delete_jobs": 2500,  # half of the jobs have results of earlier ends
    "delete_completed": 1500,
    "lock_batch": 500,
    "lock_dependents": 500,
    "find_outdated_steps": 10,
    "lock_families": 350,  # each of 100 children as a child, as a parent, and to be locked
    "retry_jobs": 1000,
    "move_jobs": 1000,
    "claim_one": 2,
    "inspect_audit": 2000,
    "inspect_audit_of": 2000,
    "inspect_newest_records": 12,
    "inspect_trigger_changes": 51,  # EXPLAIN rounds the rows of each loop
    "inspect_schedule_counts": 4000,  # schedules and their last jobs
    "inspect_schedule_state": 2,
    "inspect_schedules": 1000,
    "inspect_schedule_list": 6000,
    "recent_runs": 1000,
    "vacuum_audit": 4000,  # records and bulk runs
    "vacuum_results": 2000,
    "get_results": 1000,
    "clear_steps": 1000,
    "pass_results": 1500,  # the jobs that ended, their results and the jobs that waited
    "take_over_results": 500,
    "passed_names": 1,
    "passed_results": 500,
    "fold_statistics": 1000,
    "delete_statistics": 2000,  # statistics, counts of errors and their groups
    "fold_failures": 5000,
    "inspect_error_groups": 14_000,  # with 2,000 failures of 500 groups that are not counted yet
    "inspect_error_group": 2100,
    "read_statistics": 250,
    "sum_statistics": 2000,
    "sum_statistics_by_name": 1000,
    "read_starts": 800,
}
FILL = f"""
    INSERT INTO scheduler_schedules (
        schedule_id, owner, task, trigger, kinds, described, task_data, options, metadata, overlap, catch_up,
        anchor, next_fire_at, created_at, updated_at
    )
    SELECT 'schedule-' || n, 'api', 'work', '{{}}', '{{every}}', 'x', '{{}}', '{{}}', '{{}}', 'allow',
        'latest', at, at + (n - 1000) * interval '1 minute', at, at
    FROM generate_series(1, {ROWS}) AS n, (SELECT timestamptz {INSTANT} AS at) AS now;
    INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, finished_at)
    SELECT 'job-' || n, 'work', {INSTANT}, CASE WHEN n % 2 = 0 THEN 'pending' ELSE 'completed' END,
        CASE WHEN n % 2 = 1 THEN timestamptz {INSTANT} END
    FROM generate_series(1, {ROWS}) AS n;
    INSERT INTO scheduled_jobs (job_id, job_name, execution_time, status, finished_at, options)
    SELECT 'tree' || coalesce(':kids:' || n, ''), 'tree', timestamptz {INSTANT}, 'failed',
        timestamptz {INSTANT},
        CASE WHEN n IS NULL THEN jsonb_build_object('steps', 1, 'definition', 'd')
            ELSE jsonb_build_object('child_of', jsonb_build_object(
                'job', 'tree', 'definition', 'd', 'step', 'kids', 'number', n)) END
    FROM unnest(ARRAY[NULL::integer] || ARRAY (SELECT generate_series(0, 99))) AS n;
    INSERT INTO scheduler_steps (job_id, name, kind, value, attempt, started_at, definition)
    SELECT 'tree', 'kids', 'child', jsonb_agg('tree:kids:' || n), 1, timestamptz {INSTANT}, 'd'
    FROM generate_series(0, 99) AS n
    UNION ALL
    SELECT 'tree', 'child:0', 'result',
        jsonb_build_object('step', 'kids', 'job_id', 'tree:kids:0', 'status', 'failed'), 0, {INSTANT}, 'd'
    UNION ALL
    SELECT 'other-' || n, 'kids', 'child', '["x"]', 1, {INSTANT}, 'd'
    FROM generate_series(1, {ROWS}) AS n;
    INSERT INTO scheduler_results (job_id, status, attempts, finished_at, expires_at)
    SELECT 'job-' || n, 'completed', 1, at, at + (n - 3000) * interval '1 minute'
    FROM generate_series(1, {ROWS}) AS n, (SELECT timestamptz {INSTANT} AS at) AS now;
    INSERT INTO scheduler_stats (bucket, span, job_name, counts, sums, run_hist, late_hist)
    SELECT timestamptz {INSTANT} - n * interval '2 minutes', 60, 'work' || name, one, one, one, one
    FROM generate_series(1, 500) AS n, generate_series(1, 100) AS name, (SELECT ARRAY[1] AS one) AS row;
    INSERT INTO scheduler_failures (fingerprint, job_name, text, status, jobs, at, job_id)
    SELECT 'f' || n % 500, 'work', 'e' || n % 500, 'failed', 1, timestamptz {INSTANT}, 'job-' || n
    FROM generate_series(1, 2000) AS n;
    INSERT INTO scheduler_error_groups (
        fingerprint, job_name, text, status, jobs, first_at, last_at, last_job_id
    )
    SELECT 'f' || n, 'work' || n % 100, 'e' || n, 'failed', 1, at, at, 'job-' || n
    FROM generate_series(1, {ROWS}) AS n,
        LATERAL (SELECT timestamptz {INSTANT} - n * interval '1 hour' AS at) AS ended;
    INSERT INTO scheduler_error_counts (fingerprint, span, bucket, jobs)
    SELECT 'f' || n, span, timestamptz {INSTANT} - place * span * interval '1 second', 1
    FROM generate_series(1, 1000) AS n, generate_series(0, 20) AS place,
        unnest(ARRAY[60, 3600, 86400]) AS span;
    INSERT INTO scheduler_audit (at, actor, via, action, subject)
    SELECT timestamptz {INSTANT} + (n - 3000) * interval '1 minute', 'me', 'api', 'pause_task', 'work'
    FROM generate_series(1, {ROWS}) AS n;
    INSERT INTO scheduler_bulk_runs (run_id, created_by, actor, created_at, started_at, last_at, answered_at)
    SELECT 'run-' || n, 'me', 'me', at, at, at, at
    FROM generate_series(1, {ROWS}) AS n,
        LATERAL (SELECT timestamptz {INSTANT} + (n - 3000) * interval '1 minute' AS at) AS written;
"""


@pytest.fixture
async def session(store: Store) -> AsyncIterator[Connection]:
    """A transaction in which the statements were executed on empty tables, which are full now."""
    async with store.connections.transaction() as connection:
        for name, types in TYPES.items():
            await connection.execute(f"PREPARE {name} ({types}) AS {QUERIES[name].text}")
            for _ in range(6):  # from the sixth on PostgreSQL may keep one plan for all values
                await connection.execute(f"EXECUTE {name} ({VALUES[name]})")
        await connection.execute(FILL)
        yield connection


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


async def scans_of(connection: Connection, name: str) -> tuple[set[tuple[str, str | None]], float]:
    """Execute a statement and roll it back; return the scans of its plan and the rows that they read."""
    transaction = connection.transaction()
    await transaction.start()
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {name} ({VALUES[name]})")
    await transaction.rollback()
    found = [node for node in nodes(json.loads(text)[0]["Plan"]) if "Relation Name" in node]
    found = [node for node in found if "Scan" in node["Node Type"]]
    read = sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in found
    )
    return {(node["Node Type"], node.get("Index Name")) for node in found}, read


@pytest.mark.parametrize("analyzed", [False, True])
async def test_statements_read_few_rows_by_index_on_large_tables(session: Connection, analyzed: bool) -> None:
    if analyzed:
        await session.execute(
            "ANALYZE scheduler_schedules, scheduled_jobs, scheduler_results, scheduler_stats,"
            " scheduler_audit, scheduler_bulk_runs, scheduler_failures, scheduler_error_groups,"
            " scheduler_error_counts, scheduler_steps"
        )
    costs = {name: await scans_of(session, name) for name in TYPES}
    assert {name: scans for name, (scans, _) in costs.items()} == EXPECTED
    assert {name: read for name, (_, read) in costs.items() if read > READ_AT_MOST[name]} == {}
