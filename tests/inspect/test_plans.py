"""Statements of the Inspector read as many rows of a large table as of a small one, all by an index.

A statement that is prepared while its table is empty keeps its plan, so it is executed before the table is
filled. Then it is planned again with statistics.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.inspect import parse_search
from pg_scheduler.inspect.search.conditions import conditions_of
from pg_scheduler.store.connections.pool import Connections
from pg_scheduler.store.queries import load_query, load_search
from pg_scheduler.store.store import Store
from tests.support.store import NOW, Connection, Pool

INSTANT = f"'{NOW.isoformat()}'"
SIZES = (20_000, 80_000)
ROWS = 2_000
SEARCH = "bigint, bigint, "
TYPES = {
    "search_ids": SEARCH + "text[]",
    "search_waiting": SEARCH + "integer, timestamptz, text, timestamptz",
    "search_blocked": SEARCH + "text, integer, timestamptz, text",
    "search_unsuccessful": SEARCH + "timestamptz, text, timestamptz",
    "search_newest": SEARCH + "text",
    "inspect_queue": "integer, timestamptz, text, bigint, timestamptz",
    "inspect_backlog": "bigint, timestamptz, bigint",
    "inspect_blocked": "bigint, bigint",
    "inspect_errors": "bigint, timestamptz, text, timestamptz",
    "inspect_quarantined": "bigint",
    "doctor_quarantined": "double precision, bigint, bigint, timestamptz",
    "doctor_running": "bigint, bigint, timestamptz",
    "doctor_payloads": "bigint, bigint",
    "doctor_oldest": "bigint, timestamptz",
}
VALUES = {
    "search_ids": "'{job-1,job-77,nothing}'",
    "search_waiting": f"5, '-infinity', '', {INSTANT}",
    "search_blocked": f"'', 0, {INSTANT}, ''",
    "search_unsuccessful": f"{INSTANT}, '', NULL",
    "search_newest": "'job-9'",
    "inspect_queue": f"8, {INSTANT}, 'job', {ROWS}, {INSTANT}",
    "inspect_backlog": f"{ROWS}, {INSTANT}, 100",
    "inspect_blocked": f"{ROWS}, 100",
    "inspect_errors": f"{ROWS}, {INSTANT}, '', NULL",
    "inspect_quarantined": f"{ROWS}",
    "doctor_quarantined": f"1e9, {ROWS}, 100, {INSTANT}",
    "doctor_running": f"{ROWS}, 1000, {INSTANT}",
    "doctor_payloads": f"{ROWS}, 0",
    "doctor_oldest": f"{ROWS}, {INSTANT}",
}
EXPECTED = {
    "search_ids": {"scheduled_jobs_pkey"},
    "search_waiting": {"scheduled_jobs_claim"},
    "search_blocked": {"scheduled_jobs_blocked"},
    "search_unsuccessful": {"scheduled_jobs_unsuccessful"},
    "search_newest": {"scheduled_jobs_pkey"},
    "inspect_queue": {"scheduled_jobs_claim"},
    "inspect_backlog": {"scheduled_jobs_claim"},
    "inspect_blocked": {"scheduled_jobs_blocked"},
    "inspect_errors": {"scheduled_jobs_unsuccessful"},
    "inspect_quarantined": {"scheduled_jobs_unsuccessful"},
    "doctor_quarantined": {"scheduled_jobs_unsuccessful"},
    "doctor_running": {"scheduled_jobs_claim"},
    "doctor_payloads": {"scheduled_jobs_claim"},
    "doctor_oldest": {"scheduled_jobs_unsuccessful"},
}
READ_AT_MOST = {**dict.fromkeys(TYPES, ROWS + 2), "search_ids": 2}
FILL = f"""
    INSERT INTO scheduled_jobs (
        job_id, job_name, execution_time, status, priority, finished_at, error_message, blocked_on
    )
    SELECT 'job-' || n, 'name.' || n % 50, {INSTANT}::timestamptz + (n - 20000) * interval '1 second', status,
        5, CASE WHEN status <> 'pending' THEN timestamptz {INSTANT} - n * interval '1 second' END,
        CASE WHEN status = 'failed' THEN 'Error ' || n END,
        CASE WHEN status = 'pending' AND n % 2 = 0 THEN 'limit:stripe:' || n % 9 END
    FROM generate_series($1::integer, $2::integer) AS n,
        LATERAL (SELECT (ARRAY ['pending', 'completed', 'failed', 'pending', 'completed'])[n % 5 + 1]
                 AS status) AS each
"""
EVERY_TERM = (
    "status:pending,failed,completed,expired,cancelled -name:x error:~no due:>-9d created:>-9d attempt:>7 "
    "crashed:yes arg.x:1 metadata.x:1 tag:x limit:x -worker:w schedule:s priority:low word"
)


@pytest.fixture
async def session(pool: Pool) -> AsyncIterator[Connection]:
    """A transaction in which the statements were executed on empty tables."""
    store = Store(Connections(pool), clock=FakeClock(NOW))
    async with store.searches.transaction() as connection:
        yield connection


def text_of(name: str) -> str:
    return (
        load_search("public", name, ()) if name.startswith("search_") else load_query("public", name)
    ).text


def call_of(name: str) -> str:
    bounds = f"{ROWS}, {ROWS}, " if name.startswith("search_") else ""
    return f"{name} ({bounds}{VALUES[name]})"


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


async def scans(connection: Connection, call: str) -> tuple[set[tuple[str, str | None]], float]:
    """Return the scans of the table and the number of rows that they read."""
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {call}")
    found = [
        node
        for node in nodes(json.loads(text)[0]["Plan"])
        if "Scan" in node["Node Type"] and node.get("Relation Name") == "scheduled_jobs"
    ]
    read = sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] for node in found
    )
    return {(node["Node Type"], node.get("Index Name")) for node in found}, read


@pytest.mark.parametrize("analyzed", [False, True])
async def test_search_reads_a_bounded_number_of_rows_by_an_index(session: Connection, analyzed: bool) -> None:
    for name, types in TYPES.items():
        await session.execute(f"PREPARE {name} ({types}) AS {text_of(name)}")
        for _ in range(6):  # from the sixth on PostgreSQL may keep one plan for all values
            await session.execute(f"EXECUTE {call_of(name)}")
    first = 1
    for size in SIZES:
        await session.execute(FILL.replace("$1::integer", str(first)).replace("$2::integer", str(size)))
        first = size + 1
        if analyzed:
            await session.execute("ANALYZE scheduled_jobs")
        for name in TYPES:
            found, read = await scans(session, call_of(name))
            assert {index for _, index in found} == EXPECTED[name], name
            assert {kind for kind, _ in found} <= {"Index Scan", "Index Only Scan"}, name
            assert read <= READ_AT_MOST[name], name
            if name not in {"search_ids", "search_waiting"}:
                assert read >= ROWS, "the bound was reached"


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


@pytest.mark.parametrize("name", [name for name in TYPES if name.startswith("search_")])
async def test_conditions_change_no_index(name: str, session: Connection) -> None:
    await session.execute(FILL.replace("$1::integer", "1").replace("$2::integer", "20000"))
    await session.execute("ANALYZE scheduled_jobs")
    conditions = conditions_of(parse_search(EVERY_TERM, now=NOW))
    query = load_search("public", name, tuple((each.name, each.is_negated) for each in conditions))
    positions: dict[str, list[Any]] = {
        "search_ids": [["job-1"]],
        "search_waiting": [5, NOW, "", None],
        "search_blocked": ["", 0, NOW, ""],
        "search_unsuccessful": [NOW, "", None],
        "search_newest": [None],
    }
    values = [*positions[name], *(value for each in conditions for value in each.values)]
    rows = await session.fetch("EXPLAIN (FORMAT JSON) " + query.text, 10, 500, *values)
    used = nodes(json.loads(rows[0][0])[0]["Plan"])
    indexes = {node.get("Index Name") for node in used if node.get("Relation Name") == "scheduled_jobs"}
    assert indexes == EXPECTED[name]
