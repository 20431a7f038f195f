"""Statements of the Inspector read as many rows and pages of a large table as of a small one, by an index.

A session that prepares a statement while its table is empty keeps the plan, so each statement is planned and
executed before the table is filled. With statistics it is planned again, for its values and for any values.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest

from pg_scheduler.database.options import TRANSACTION_SETTINGS
from pg_scheduler.database.queries import Route
from pg_scheduler.inspect import Bounds, parse_search
from pg_scheduler.inspect.dependencies import MAX_LINKED
from pg_scheduler.inspect.jobs import MAX_UNFINISHED_ROWS
from pg_scheduler.inspect.search.conditions import conditions_of
from pg_scheduler.inspect.store.deploy import PAGE_ROWS as CHECKED_ROWS
from pg_scheduler.inspect.store.doctor import MAX_DUE, MAX_OLDEST, MAX_STEPS, MAX_UNSUCCESSFUL
from pg_scheduler.inspect.store.inspections import MAX_BACKLOG_ROWS, MAX_PARENTS, MAX_QUEUE_ROWS
from pg_scheduler.inspect.store.limits import MAX_BLOCKED_ROWS, MAX_MOVED_ROWS, MAX_STARTS
from pg_scheduler.inspect.store.searches import load_search
from pg_scheduler.inspect.store.workers import MAX_DUE as MAX_RUNNING
from pg_scheduler.inspect.store.workers import MAX_UNSUCCESSFUL as MAX_UNSUCCESSFUL_ATTEMPTS
from pg_scheduler.inspect.workers import MAX_GENERATED
from tests.store import test_feature_plans, test_plans
from tests.support.inside import load_queries, load_query
from tests.support.store import NOW, Connection, Pool

SMALL, LARGE = 50_000, 500_000
ROWS = 1_000
"""Rows that the statements may read at both sizes, which is less than match at either."""
PAGE_ROWS = Bounds().rows
LEVELS = 4
"""Priorities, each with a probe of the claim index."""

KEY = {"scheduled_jobs_pkey"}
CLAIM = {"scheduled_jobs_claim"}
BLOCKED = {"scheduled_jobs_blocked"}
UNSUCCESSFUL = {"scheduled_jobs_unsuccessful"}

INSTANT = f"'{NOW.isoformat()}'"
IDS = "ARRAY ['job-000000001', 'job-000000077', 'nothing']"
MIDDLE = "'job-000025000'"
ENDED = f"timestamptz {INSTANT} - interval '475000 seconds'"
"""When the job in the middle of the small table ended."""


class Reading(NamedTuple):
    """How a statement reads jobs.

    Attributes:
        values: The values of its parameters, with ``{rows}`` for the number of rows that it may read.
        indexes: The indexes that it uses.
        most: The largest number of rows that the library lets it read.
        probes: How often it may read so many: once for each priority, or once.
        pages: The pages that it reads for each row at most. A row may be on a page of its own, and a search
            of the key goes through the levels of the index.
    """

    values: str
    indexes: set[str]
    most: int
    probes: int = 1
    pages: float = 1.1


READINGS = {
    "inspect_open_steps": Reading("'signal', 100, NULL, '', ''", KEY, 100, pages=5),
    "inspect_step_progress": Reading(f"{IDS}, 100", KEY, 2, pages=5),
    "inspect_waits": Reading(f"{MIDDLE}, 100", KEY, 1, pages=5),
    "search_ids": Reading(f"10, 10, {IDS}", KEY, 2, pages=5),
    "search_waiting": Reading(
        f"{{rows}}, {{rows}}, 5, timestamptz {INSTANT} - interval '80000 seconds', '', NULL", CLAIM, PAGE_ROWS
    ),
    "search_due": Reading(
        f"{{rows}}, {{rows}}, '{{{{1,3,5,8}}}}', timestamptz {INSTANT} - interval '80000 seconds', '', NULL",
        CLAIM,
        PAGE_ROWS // LEVELS,
        LEVELS,
    ),
    "search_blocked": Reading(
        f"{{rows}}, {{rows}}, 'limit:stripe:4', 3, {INSTANT}, {MIDDLE}", BLOCKED, PAGE_ROWS
    ),
    "search_unsuccessful": Reading(f"{{rows}}, {{rows}}, {ENDED}, {MIDDLE}, NULL", UNSUCCESSFUL, PAGE_ROWS),
    "search_newest": Reading(f"{{rows}}, {{rows}}, {MIDDLE}, 'job-'", KEY, PAGE_ROWS),
    "inspect_job": Reading(f"{MIDDLE}, NULL", KEY, 1, pages=5),
    "inspect_look": Reading(MIDDLE, KEY, 1, pages=5),
    "inspect_steps": Reading(f"{MIDDLE}, NULL, 1001, NULL", KEY, 1, pages=5),
    "inspect_published": Reading(f"{MIDDLE}, 100, 20", KEY, 1, pages=5),
    "inspect_locks": Reading(f"{MIDDLE}, 0", KEY, 2, pages=5),
    "statuses_of": Reading(IDS, KEY, 2, pages=5),
    "inspect_blockers": Reading(f"ARRAY [{MIDDLE}, 'nothing'], {MAX_PARENTS}", KEY, MAX_PARENTS, pages=5),
    "inspect_parents": Reading(f"{MIDDLE}, {MAX_PARENTS}", KEY, MAX_PARENTS, pages=5),
    "inspect_linked_jobs": Reading(f"{MIDDLE}, {MAX_LINKED}", KEY, 2 * MAX_LINKED, pages=5),
    "inspect_children": Reading(f"{MIDDLE}, {INSTANT}, 1001", KEY, 1, pages=5),
    "inspect_family": Reading(f"ARRAY[{MIDDLE}], false, 10000", KEY, 4, pages=8),
    "inspect_owner": Reading(MIDDLE, KEY, 1, pages=5),
    "inspect_open_counts": Reading("{rows}, 40", KEY, ROWS, 2, pages=5),
    "inspect_limit": Reading("'stripe', NULL, {rows}", KEY, MAX_STARTS, pages=5),
    "inspect_queue": Reading(
        f"8, {INSTANT}, {MIDDLE}, {{rows}}, {INSTANT}, ARRAY['name.1']", CLAIM, MAX_QUEUE_ROWS
    ),
    "inspect_tenant_queue": Reading(
        f"'limit:stripe:8', 8, {INSTANT}, {MIDDLE}, {{rows}}", BLOCKED, MAX_QUEUE_ROWS
    ),
    "inspect_backlog": Reading(f"{{rows}}, {INSTANT}, 100", CLAIM, MAX_BACKLOG_ROWS),
    "inspect_expiring": Reading(
        f"ARRAY['name.1'], {{rows}}, '{{{{NULL}}}}', {INSTANT}", CLAIM | BLOCKED, MAX_BACKLOG_ROWS, 2
    ),
    "inspect_blocked_names": Reading("{rows}, 100", BLOCKED, MAX_BLOCKED_ROWS),
    "inspect_blocked": Reading("{rows}, 100", BLOCKED, MAX_BLOCKED_ROWS),
    "inspect_unfinished": Reading(
        f"{{rows}}, {INSTANT}", CLAIM | BLOCKED, MAX_UNFINISHED_ROWS, 2 * LEVELS + 1
    ),
    "inspect_unsuccessful": Reading("{rows}", UNSUCCESSFUL, MAX_UNSUCCESSFUL),
    "inspect_running_attempts": Reading(f"{{rows}}, {INSTANT}", CLAIM, MAX_RUNNING, LEVELS),
    "inspect_slots": Reading(f"{{rows}}, {INSTANT}, {MIDDLE}", CLAIM, MAX_RUNNING, LEVELS),
    "inspect_unsuccessful_attempts": Reading(
        f"'w', timestamptz {INSTANT} - interval '9 days', {{rows}}", UNSUCCESSFUL, MAX_UNSUCCESSFUL_ATTEMPTS
    ),
    "inspect_completed_attempts": Reading(
        f"'w', timestamptz {INSTANT} - interval '9 days', '{{{{job-}}}}', '{{{{jobA}}}}', ARRAY[{{rows}}]",
        KEY,
        MAX_GENERATED,
    ),
    "inspect_limit_queue": Reading("'{{limit:stripe:4}}', {rows}", BLOCKED, ROWS),
    "inspect_limit_holders": Reading("'{{stripe}}', 20, {rows}, NULL", KEY, MAX_STARTS, pages=5),
    "inspect_tenants": Reading("'{{limit:stripe:4}}', {rows}", BLOCKED, ROWS),
    "inspect_heads": Reading("'{{zsequence:s:a}}'", KEY, 1, pages=5),
    "inspect_sequence_of": Reading(MIDDLE, KEY, 1, pages=5),
    "inspect_sequence_queue": Reading(
        f"'limit:stripe:4', {INSTANT}, {MIDDLE}, {{rows}}", BLOCKED, ROWS, LEVELS
    ),
    "inspect_in_flight": Reading("{rows}, NULL", KEY, MAX_MOVED_ROWS, pages=5),
    "check_waiting": Reading(
        f"{{rows}}, 5, timestamptz {INSTANT} - interval '80000 seconds', ''", CLAIM, CHECKED_ROWS
    ),
    "check_blocked": Reading(f"{{rows}}, 'limit:stripe:4', 3, {INSTANT}, {MIDDLE}", BLOCKED, CHECKED_ROWS),
    "check_payloads": Reading(IDS, KEY, 2, pages=5),
    "doctor_expiry_causes": Reading(f"1e9, {{rows}}, {INSTANT}", UNSUCCESSFUL, MAX_UNSUCCESSFUL),
    "doctor_quarantined": Reading(f"1e9, {{rows}}, 100, {INSTANT}", UNSUCCESSFUL, MAX_UNSUCCESSFUL),
    "doctor_running": Reading(f"{{rows}}, {INSTANT}, 1000", CLAIM, MAX_DUE, LEVELS),
    "doctor_payloads": Reading("{rows}, 0", CLAIM, MAX_DUE, LEVELS),
    "doctor_orphaned_steps": Reading("{rows}", KEY, MAX_STEPS, pages=5),
    "doctor_oldest": Reading(f"{{rows}}, {INSTANT}", UNSUCCESSFUL, MAX_OLDEST),
}
WITHOUT_JOBS = {
    "check_step_values": f"{IDS}, {IDS}",
    "check_steps": f"5000, {IDS}, ''",
    "read_sizes": "NULL, 'public.scheduled_jobs'",
    "inspect_workers": "NULL, 500",
    "inspect_limit_keys": "'limit:a:', 1000",
    "inspect_sequences": "500, 20000",
    "inspect_next_starts": f"'{{stripe}}', '{{1}}', '{{60}}', {MAX_STARTS}",
    "inspect_migrations": "500",
    "inspect_audit_privileges": "'scheduler_audit'",
    "inspect_edges": f"ARRAY [{MIDDLE}, 'nothing'], 100",
    "inspect_slot_use": f"timestamptz {INSTANT} - interval '1 day', {INSTANT}, 5000",
    "inspect_totals": "200",
    "inspect_server": "",
    "inspect_last_death": f"{INSTANT}, 10000",
    "doctor_tables": "'public', '{scheduled_jobs}'",
    "doctor_indexes": "'public', '{scheduled_jobs}', 500",
    "doctor_settings": "'{track_counts}'",
    "doctor_failing": f"900, 604800, 10000, {INSTANT}",
    "doctor_endings": f"900, 10000, {INSTANT}",
    "doctor_expiring": f"900, 10000, {INSTANT}",
    "doctor_overdue": f"60, 100, {INSTANT}",
    "doctor_lost_schedules": f"{IDS}, 100",
    "doctor_retired_schedules": "100",
    "doctor_schedule_tasks": "10000",
    "doctor_herds": "10000, 100",
    "doctor_broken": "10000",
    "doctor_zoned": "1000, 4096",
    "doctor_ahead": f"{INSTANT}, 10000",
    "server_clock": "",
    "server_role": "",
    "server_rights": "'public', '{scheduled_jobs}', '{SELECT}'",
    "server_holders": "100",
    "server_connections": "100",
    "server_notification_queue": "",
    "server_locking_schedules": "1000",
}
"""Statements that read other tables, and catalogues."""
PREFIXES = ("check_", "search_", "inspect_", "doctor_", "server_", "estimate_", "read_sizes", "statuses_of")

FILL = f"""
    INSERT INTO scheduled_jobs (
        job_id, job_name, execution_time, status, priority, finished_at, error_message, blocked_on
    )
    SELECT 'job-' || lpad(n::text, 9, '0'), 'name.' || n % 50,
        timestamptz {INSTANT} + (n - 100000) * interval '1 second', status,
        (ARRAY [1, 3, 5, 8])[n / 10 % 4 + 1],
        CASE WHEN status <> 'pending' THEN timestamptz {INSTANT} + (n - 500000) * interval '1 second' END,
        CASE WHEN status = 'failed' THEN 'Error ' || n END,
        CASE WHEN status = 'pending' AND n / 5 % 2 = 0 THEN 'limit:stripe:' || n % 9 END
    FROM generate_series({{first}}, {{last}}) AS n,
        LATERAL (SELECT (ARRAY ['pending', 'completed', 'failed', 'pending', 'completed'])[n % 5 + 1]
                 AS status) AS each
"""
"""Two jobs of five are pending, and half of them blocked; one of five failed. The first 100,000 are due."""
EDGES = f"""
    INSERT INTO scheduler_after (parent_id, child_id)
    SELECT 'job-' || lpad((5 * n)::text, 9, '0'), {MIDDLE} FROM generate_series(1, {MAX_PARENTS}) AS n;
    INSERT INTO scheduler_after (parent_id, child_id)
    SELECT {MIDDLE}, 'job-' || lpad((5 * n + 3)::text, 9, '0') FROM generate_series(1, {MAX_PARENTS}) AS n;
    INSERT INTO scheduler_sequences (key, job_id) VALUES ('zsequence:s:a', {MIDDLE});
    INSERT INTO scheduler_starts (key, job_id, attempt, at)
    SELECT 'stripe', 'job-' || lpad(n::text, 9, '0'), 0, {INSTANT}
    FROM generate_series(1, {SMALL} / 2) AS n;
    INSERT INTO scheduler_steps (job_id, name, kind, attempt, started_at)
    SELECT 'job-' || lpad(n::text, 9, '0'), kind, kind, 1, {INSTANT}
    FROM generate_series(1, {SMALL} / 2) AS n, (VALUES ('step'), ('signal')) AS each (kind);
"""
"""A job that waits for others and others for it, and a limit of which many attempts started."""
EVERY_TERM = (
    "status:pending,failed,completed,expired,cancelled -name:x error:~no due:>-9d created:>-9d attempt:>7 "
    "crashed:yes arg.x:1 metadata.x:1 tag:x limit:x -worker:w schedule:s priority:low word any:x any:~y"
)


@pytest.fixture
async def session(pool: Pool) -> AsyncIterator[Connection]:
    """A transaction in which the statements were planned for any values and executed on empty tables."""
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        for name in (*READINGS, *WITHOUT_JOBS):
            await connection.execute(f"PREPARE {name} AS {text_of(name)}")
            await connection.execute(f"{settings_of(name)}; EXECUTE {call_of(name, ROWS)}")
        yield connection


def settings_of(name: str) -> str:
    """Return the planner settings of the connection that executes a statement."""
    if load_query("public", name).routes[0] is Route.POOL:
        return "RESET enable_seqscan; RESET enable_bitmapscan; RESET jit"
    return TRANSACTION_SETTINGS


def text_of(name: str) -> str:
    return (
        load_search("public", name, ()) if name.startswith("search_") else load_query("public", name)
    ).text


def call_of(name: str, rows: int) -> str:
    values = READINGS[name].values.format(rows=rows) if name in READINGS else WITHOUT_JOBS[name]
    return f"{name} ({values})" if values else name


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


class Cost(NamedTuple):
    """What a statement did with the jobs."""

    scans: set[tuple[str, str | None]]
    rows: float
    pages: int


async def cost_of(connection: Connection, name: str, rows: int = ROWS) -> Cost:
    """Execute a statement as the library does, and return what it cost."""
    await connection.execute(settings_of(name))
    options = "ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON"
    text = await connection.fetchval(f"EXPLAIN ({options}) EXECUTE {call_of(name, rows)}")
    found = [
        node
        for node in nodes(json.loads(text)[0]["Plan"])
        if "Scan" in node["Node Type"] and node.get("Relation Name") == "scheduled_jobs"
    ]
    read = sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in found
    )
    pages = sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in found)
    return Cost({(node["Node Type"], node.get("Index Name")) for node in found}, read, pages)


async def assert_bounded(connection: Connection, rows: int | None = None) -> None:
    """Check the plan and the cost of each statement that may read so many rows, or up to its bound."""
    for name, reading in READINGS.items():
        is_scan = "{rows}" in reading.values
        most = rows if rows and is_scan else reading.most
        cost = await cost_of(connection, name, most)
        assert {index for _, index in cost.scans} == reading.indexes, name
        assert {kind for kind, _ in cost.scans} <= {"Index Scan", "Index Only Scan"}, name
        assert cost.rows >= (ROWS if is_scan else 1), f"{name} has enough rows to read"
        assert cost.rows <= most * reading.probes + LEVELS, name
        assert cost.pages <= reading.pages * most * reading.probes + 20, name
    for name in WITHOUT_JOBS:
        assert (await cost_of(connection, name)).scans == set(), name


async def fill(connection: Connection, first: int, last: int) -> None:
    await connection.execute(FILL.format(first=first, last=last))
    if first == 1:
        await connection.execute(EDGES)


def test_every_statement_of_the_inspector_is_measured_here() -> None:
    names = {name for name in load_queries("public") if name.startswith(PREFIXES)}
    elsewhere = {
        *test_plans.TYPES,
        *test_feature_plans.TYPES,
        "check_unmigrated",  # reads the table of 0.2, which lacks the indexes
        "estimate_due",  # is planned, and never executed
    }
    assert names - elsewhere == {*READINGS, *WITHOUT_JOBS}


@pytest.mark.timeout(300)
async def test_statements_planned_on_empty_tables_read_a_bounded_number_of_rows(session: Connection) -> None:
    await fill(session, 1, SMALL)
    await assert_bounded(session, ROWS)
    await fill(session, SMALL + 1, LARGE)
    await assert_bounded(session, ROWS)
    await assert_bounded(session)


@pytest.mark.timeout(300)
async def test_statements_planned_with_statistics_read_a_bounded_number_of_rows(session: Connection) -> None:
    for first, last in ((1, SMALL), (SMALL + 1, LARGE)):
        await fill(session, first, last)
        await session.execute("ANALYZE scheduled_jobs")
        for mode in ("auto", "force_generic_plan"):
            await session.execute(f"SET LOCAL plan_cache_mode = {mode}")
            await assert_bounded(session, ROWS)
            await assert_bounded(session)
    conditions = conditions_of(parse_search(EVERY_TERM, now=NOW))
    positions: dict[str, list[Any]] = {
        "search_ids": [["job-000000001"]],
        "search_waiting": [5, NOW, "", None],
        "search_due": [[1, 3, 5, 8], NOW, "", None],
        "search_blocked": ["", 0, NOW, ""],
        "search_unsuccessful": [NOW, "", None],
        "search_newest": [None, None],
    }
    for name, position in positions.items():
        query = load_search("public", name, tuple((each.name, each.is_negated) for each in conditions))
        values = [*position, *(value for each in conditions for value in each.values)]
        plan = await session.fetchval("EXPLAIN (FORMAT JSON) " + query.text, 10, 500, *values)
        indexes = {
            node.get("Index Name")
            for node in nodes(json.loads(plan)[0]["Plan"])
            if node.get("Relation Name") == "scheduled_jobs"
        }
        assert indexes == READINGS[name].indexes, name


async def test_keys_of_a_limit_are_read_by_one_probe_each(session: Connection) -> None:
    statement = text_of("inspect_limit_keys")
    await session.execute(f"PREPARE limit_keys (text, integer) AS {statement}")
    for _ in range(6):
        await session.execute("EXECUTE limit_keys ('limit:a:', 1000)")
    for since, until in ((1, 4000), (4001, 16_000)):
        await session.execute(
            "INSERT INTO scheduler_starts (key, job_id, attempt, at)"
            " SELECT 'limit:a:' || n % 2000, 'job-' || n, 1, now()"
            f" FROM generate_series({since}, {until}) AS n"
        )
        text = await session.fetchval("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE limit_keys ('limit:a:', 1000)")
        read = [
            node
            for node in nodes(json.loads(text)[0]["Plan"])
            if node.get("Relation Name") == "scheduler_starts"
        ]
        assert {node["Index Name"] for node in read} == {"scheduler_starts_pkey"}
        assert sum(node["Actual Rows"] * node["Actual Loops"] for node in read) <= 1000
