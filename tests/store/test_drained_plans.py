"""Plans that sessions made while the tables were drained and vacuumed.

PostgreSQL believes what a VACUUM has counted: a table that it found empty stays empty for the planner
until the next ANALYZE, a minute later or so. A statement that is planned in this minute may join a table
by reading all of an index, which costs nothing if it is empty. The session keeps the plan while jobs come
in their thousands, and then each step and each cancellation reads all of them. So a statement that joins
a large table also limits it by a condition of its own, with an argument or an array of ids, and the index
of that condition is then the cheapest. Or it reads the table in a lateral with ``OFFSET 0``, which
PostgreSQL does not merge.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from pg_scheduler.database.options import PLANNER_SETTINGS
from pg_scheduler.database.queries import Query, Route
from tests.support.inside import load_queries
from tests.support.store import Connection, Pool

ROWS = 3000
TABLES = (
    "scheduled_jobs",
    "scheduler_after",
    "scheduler_deadlines",
    "scheduler_failures",
    "scheduler_results",
    "scheduler_sequences",
    "scheduler_starts",
    "scheduler_steps",
)
"""The tables that grow with the jobs."""
VALUES = {
    "boolean": "false",
    "double precision": "1",
    "integer": "number",
    "jsonb": "'{}'",
    "text": "number::text",
    "timestamp with time zone": "now()",
    "uuid": "gen_random_uuid()",
}
"""A value of each type, from the number of the row."""
QUERIES = {
    name: query
    for name, query in load_queries("public").items()
    if not re.search(r"^(LOCK|SET) ", query.text, re.MULTILINE)  # not planned
}
READS_ALL = {
    "find_ended": "a partial index, of the ended jobs whose consequences are not applied",
    "report_gone": "the same",
    "hold_tasks": "the same",
    "scan_deadlines": "partial indexes: whether any job waits, or has ended with consequences",
    "has_work": "the first entry of each index",
    "waiting_names": "the pending jobs, for an offer of names to a person",
    "next_instants": "the waiting jobs, for the clock of a test",
    "ready_names": "the pending jobs, for a test",
    "mark_uncommitted": "all that waits, for a test",
    "store_broadcast": "all waits; a condition would compare each with an array of thousands",
    "list_jobs": "a page by id, to a limit",
    "search_newest": "a page by id, to a limit",
    "check_step_values": "all steps, for the doctor",
    "doctor_oldest": "the failed jobs, for the doctor",
    "doctor_orphaned_steps": "all steps, for the doctor",
    "inspect_unfinished": "counts, for the dashboard",
    "inspect_unsuccessful": "counts, for the dashboard",
    "inspect_blocked": "counts, for the dashboard",
    "inspect_blocked_names": "counts, for the dashboard",
    "inspect_blockers": "in the order of the parents, to a limit, for the dashboard",
    "inspect_parents": "in the order of the parents, to a limit, for the dashboard",
}
"""Why a statement may read an index without a condition."""


async def fill(connection: Connection, table: str) -> None:
    """Insert rows with a value in each column that needs one."""
    checks = await connection.fetch(
        "SELECT conname FROM pg_constraint WHERE conrelid = $1::regclass AND contype = 'c'", table
    )
    for (check,) in checks:
        await connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {check}")
    await connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    columns = await connection.fetch(
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = $1::regclass"
        " AND attnum > 0 AND attnotnull AND NOT attisdropped AND attidentity::text = ''",
        table,
    )
    names, values = ", ".join(row[0] for row in columns), ", ".join(VALUES[row[1]] for row in columns)
    await connection.execute(
        f"INSERT INTO {table} ({names}) SELECT {values} FROM generate_series(1, {ROWS}) AS number"
    )


@pytest.fixture
async def connection(pool: Pool) -> AsyncIterator[Connection]:
    """A connection to a database whose tables were full, and are drained and vacuumed."""
    async with pool.acquire() as connection:
        for table in TABLES:
            await fill(connection, table)
            await connection.execute(f"DELETE FROM {table}")
            await connection.execute(f"VACUUM (ANALYZE, TRUNCATE false) {table}")
        yield connection


def scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the index scans of large tables of a plan, with those of the nodes below it."""
    if plan["Node Type"] in {"Index Scan", "Index Only Scan"} and plan["Relation Name"] in TABLES:
        yield plan
    for child in plan.get("Plans", ()):
        yield from scans(child)


def is_unlimited(scan: dict[str, Any]) -> bool:
    """Return whether a scan reads all of its index; a condition that all entries meet limits nothing."""
    return re.fullmatch(r"\(\w+ IS NOT NULL\)", scan.get("Index Cond", "(key IS NOT NULL)")) is not None


async def plan_of(connection: Connection, query: Query, settings: dict[str, str]) -> dict[str, Any]:
    """Return the plan that a session keeps for the statement, made with these planner settings."""
    numbers = [int(number) for number in re.findall(r"\$(\d+)", query.text)]
    arguments = f"({', '.join(['NULL'] * max(numbers))})" if numbers else ""
    transaction = connection.transaction()
    await transaction.start()
    try:
        for name, value in (settings | {"plan_cache_mode": "force_generic_plan"}).items():
            await connection.execute(f"SET LOCAL {name} = {value}")
        await connection.execute(f"PREPARE {query.name} AS {query.text}")
        text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE {query.name}{arguments}")
        await connection.execute(f"DEALLOCATE {query.name}")
    finally:
        await transaction.rollback()
    plan: dict[str, Any] = json.loads(text)[0]["Plan"]
    return plan


async def test_no_statement_reads_all_of_an_index_by_a_plan_of_drained_tables(connection: Connection) -> None:
    tuned = {Route.TUNED, Route.DEDICATED}
    unlimited_scans: set[tuple[str, str]] = set()
    for name, query in QUERIES.items():
        settings = [PLANNER_SETTINGS] if tuned & {*query.routes} or query.is_shareable else []
        if not tuned.issuperset(query.routes):
            settings.append({})
        for values in settings:
            for scan in scans(await plan_of(connection, query, values)):
                if is_unlimited(scan):
                    unlimited_scans.add((name, scan["Index Name"]))
    assert {(name, index) for name, index in unlimited_scans if name not in READS_ALL} == set()
    assert set(READS_ALL) <= set(QUERIES)


async def test_plan_without_a_condition_of_its_own_is_found(connection: Connection) -> None:
    """The test above would find a join by the id alone."""
    query = Query(
        name="joined",
        text="WITH old AS (SELECT job_id FROM public.scheduled_jobs WHERE job_id = $1 FOR NO KEY UPDATE)"
        " UPDATE public.scheduled_jobs AS job SET status = 'failed' FROM old WHERE job.job_id = old.job_id",
        routes=(Route.POOL,),
        is_shareable=False,
        timeout=QUERIES["get_job"].timeout,
    )
    plan = await plan_of(connection, query, {})
    assert any(map(is_unlimited, scans(plan)))
