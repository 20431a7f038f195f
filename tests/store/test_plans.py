"""Plans of the hot statements, also when they are older than the data.

A session prepares a statement when it first uses it, often while the table is empty, and keeps the plan until
something makes PostgreSQL plan anew. So the plans are looked at both ways: made on the empty table and used
on the full one, and made with all statistics at hand; both under the settings that the store gives them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobProgress
from pg_scheduler.admission.limits import SurplusPosition
from pg_scheduler.clock import FakeClock
from pg_scheduler.database.options import (
    BEGIN,
    DEDICATED_SETTINGS,
    HOT_TRANSACTION_SETTINGS,
    TRANSACTION_SETTINGS,
    as_statements,
)
from pg_scheduler.database.queries import Route
from pg_scheduler.jobs.limits import LimitNumbers
from pg_scheduler.jobs.pause import Pause
from pg_scheduler.jobs.step_values import SLEEP
from pg_scheduler.jobs.steps import Suspension
from pg_scheduler.worker.claims import FROM_THE_START, NO_IDS
from tests.support.dependencies import add, child
from tests.support.inside import COMPLETE, NO_TIMEOUT, Connections, JobFigures, Outcome, Store, load_queries
from tests.support.statements import RESET
from tests.support.store import LEASE, NAME, NOW, SECOND, Connection, Pool, claim_on, new_job, running, worker

QUERIES = load_queries("public")
DEDICATED = as_statements(DEDICATED_SETTINGS)
HELD_SETTING = "('enable_seqscan', 'off')"
"""A part of the statement that prepares the dedicated session."""
DUE = 2_000
FUTURE = 20_000

CUTOFFS = "timestamptz, timestamptz, timestamptz, timestamptz"
FILTER_TYPES = "text[], text[], text, timestamptz, timestamptz, text"
TYPES = {
    "exchange_jobs": "text, text[], integer, timestamptz, text[], integer"
    + ", timestamptz" * 4
    + ", bool, text[], bool, text, integer",
    "find_claimable": "text[], bool, integer" + ", timestamptz" * 4 + ", text[], text",
    "claim_jobs": "text, text[], integer, timestamptz, bool, integer",
    "explain_expiry": "text, text[], text[], timestamptz",
    "complete_unlocked": "text, timestamptz, text[], integer, bool",
    "oversized_due": "text[], integer, timestamptz, bigint, integer",
    "settle_jobs": "text[], integer[], text[], text[], double precision[], integer[], integer[], text"
    ", timestamptz, text[]",
    "settle_failed": "text[], integer[], text[], text[], double precision[], integer[], integer[], text"
    ", timestamptz, text[], text[]",
    "settle_suspended": "text[], integer[], integer[], timestamptz[], text, timestamptz, text[], text[]",
    "apply_replacements": "text[], integer[], text, timestamptz",
    "write_progress": "text[], integer[], text[], text",
    "write_look": "text, text, integer, text",
    "remove_look": "text, integer",
    "renew_lease": "text, text[], text, double precision, timestamptz, bigint, integer, double precision"
    ", text, text, text[], text",
    "lock_orphans": "text[], timestamptz, double precision, integer, text, text",
    "restart_leases": "timestamptz, integer",
    "expire_jobs": "text, text[], integer, timestamptz, text[], text[]",
    "correct_waits": "timestamptz, integer",
    "correct_due_times": "timestamptz, integer",
    "find_uncorrected": "timestamptz",
    "overdue_names": "timestamptz, text[], integer, text",
    "scan_deadlines": "timestamptz, double precision, double precision, text",
    "end_past_deadlines": "timestamptz, integer, text",
    "forget_deadlines": "timestamptz, integer",
    "lock_parents": "text[]",
    "mark_parents": "text[]",
    "lock_children": "text[], text[]",
    "wait_again": "text[]",
    "lock_ended": "text[]",
    "report_gone": "text, text, timestamptz, integer",
    "clear_consequences": "text[]",
    "unblock_jobs": "text[], timestamptz",
    "cancel_blocked": "text[], text[], timestamptz",
    "find_idle": "text[], timestamptz",
    "find_past_heads": "integer",
    "hand_over": "text, text[], bigint, timestamptz, text[], integer, integer",
    "block_surplus": "text, text[], integer, timestamptz, text, integer, timestamptz, text[]",
    "read_surplus": "text[], integer, timestamptz, text, integer, integer, timestamptz",
    "unblock_limited": "timestamptz, text[], integer[], integer[], integer[], double precision[], integer",
    "blocked_keys": "text, text, integer",
    "unblock_late": "text[], integer[], timestamptz[], text[], integer, timestamptz",
    "unblock_unclaimed": "text[], text[], text, integer, timestamptz",
    "unblock_forgotten": "text[], text[], integer",
    "renew_due": "text[], timestamptz, timestamptz, integer, text, text, integer",
    "renew_blocked": "text[], timestamptz, timestamptz, text, integer, text, text, integer",
    "delete_renewed": "text[], timestamptz, timestamptz, text, boolean",
    "vacuum_blocks": "tid, tid, text, timestamptz",
    "note_range": f"tid, tid, bigint, bigint, text, {CUTOFFS}, timestamptz",
    "count_in_blocks": f"tid, tid, {CUTOFFS}",
    "get_job": "text",
    "retry_job": "text, timestamptz, boolean",
    "list_jobs": "text, text[], text[], text, timestamptz, timestamptz, integer",
    "find_jobs": "text, bigint, bigint, " + FILTER_TYPES,
    "find_unfinished": "text, bigint, bigint, " + FILTER_TYPES,
    "cancel_jobs": f"text[], timestamptz, text, {FILTER_TYPES}, bool",
    "find_conflicts": "text[], text[]",
    "lock_key_holders": "text[]",
    "find_key_holder": "text",
}
KEYS = {"find_conflicts", "lock_key_holders", "find_key_holder"}
UNTUNED = {
    "get_job",
    "retry_job",
    "list_jobs",
    "find_jobs",
    "find_unfinished",
    "cancel_jobs",
    "vacuum_blocks",
    "note_range",
    "count_in_blocks",
    *KEYS,
}
"""Statements of callers."""
HOT = {name for name, query in QUERIES.items() if query.routes == (Route.DEDICATED,)}
TUNED = {
    name
    for name, query in QUERIES.items()
    if query.routes == (Route.TUNED,)
    and not name.startswith(("inspect_", "doctor_", "check_"))  # tests/inspect/test_plans.py
}
WITHOUT_JOBS = {name for name in TUNED if "scheduled_jobs" not in QUERIES[name].text}
"""Statements about workers and figures, which have no plan here: they read rows by their whole keys."""
AFTER_FAILURES = {"renew_worker", "count_failures", "record_dead_workers", "record_vacuum"}
"""Statements that run after another one was refused or waited for a lock, a death or a deletion."""
HELD_THERE = sorted(HOT | {name for name in TYPES if QUERIES[name].is_shareable})
"""Statements that run on connections held between uses."""
HELD = [f"held-{n:03}" for n in range(100)]


def each(value: object) -> str:
    """Return an array with this value for each held job."""
    return "'{" + ",".join([str(value)] * len(HELD)) + "}'"


ONES = each(1)
ENTRY = ",".join(["""'{"outcome":"error"}'"""] * len(HELD))
IDS = "'{" + ",".join(HELD) + "}'"
INSTANT = f"'{NOW.isoformat()}'"
NONE = """'{"","","",""}'"""
INDEX = "'public.scheduled_jobs_claim'"
NOTHING = "NULL, NULL, NULL, NULL"
VALUES = {
    "exchange_jobs": f"'w1', '{{{NAME}}}', 100, {INSTANT}, {IDS}, 1"
    + ", '-infinity'" * 4
    + f", true, {NONE}, true, {INDEX}, 1",
    "find_claimable": "'{other}', true, 1" + f", {INSTANT}" * 4 + f", {NONE}, {INDEX}",
    "claim_jobs": f"'w1', '{{{NAME}}}', 100, {INSTANT}, true, 1",
    "explain_expiry": f"'w1', '{{{NAME}}}', {IDS}, {INSTANT}",
    "complete_unlocked": f"'w1', {INSTANT}, {IDS}, 1, true",
    "oversized_due": f"'{{{NAME}}}', 100, {INSTANT}, 0, NULL",
    "settle_jobs": f"{IDS}, {ONES}, {each('pending')}, {each('no')}, {ONES}, {ONES}, {each(0)}"
    f", 'w1', {INSTANT}, ARRAY[{ENTRY}]",
    "settle_failed": f"{IDS}, {ONES}, {each('failed')}, {each('no')}, {ONES}, {ONES}, {each(0)}"
    f", 'w1', {INSTANT}, ARRAY[{ENTRY}], {each('no')}",
    "settle_suspended": f"{IDS}, {ONES}, {each(0)}, ARRAY[{INSTANT}::timestamptz], 'w1', {INSTANT}"
    ", ARRAY['[]'], ARRAY['sleep']",
    "apply_replacements": f"{IDS}, {ONES}, 'w1', {INSTANT}",
    "write_progress": f"{IDS}, {ONES}, {each(1)}, 'w1'",
    "write_look": "'a', 'w1', 1, '{}'",
    "remove_look": "'a', 1",
    "renew_lease": f"'w1', {IDS}, '{json.dumps(dict.fromkeys(HELD, 1))}', 60, {INSTANT}, 1, 1, 540"
    ", 'running', '{}', NULL, NULL",
    "lock_orphans": f"'{{w1}}', {INSTANT}, 120, 1000, 'w1', '{{}}'",
    "restart_leases": f"{INSTANT}, 100",
    "expire_jobs": f"'w1', '{{{NAME}}}', 100, {INSTANT}, NULL, '{{}}'",
    "correct_waits": f"{INSTANT}, 100",
    "correct_due_times": f"{INSTANT}, 100",
    "find_uncorrected": INSTANT,
    "overdue_names": f"{INSTANT}, '{{{NAME}}}', 100, 'w1'",
    "scan_deadlines": f"{INSTANT}, 30, 120, 'w1'",
    "end_past_deadlines": f"{INSTANT}, 100, 'late'",
    "forget_deadlines": f"{INSTANT}, 100",
    "lock_parents": IDS,
    "mark_parents": IDS,
    "lock_children": f"{IDS}, {IDS}",
    "wait_again": IDS,
    "lock_ended": IDS,
    "report_gone": f"'w1', '{{}}', {INSTANT}, 100",
    "clear_consequences": IDS,
    "unblock_jobs": f"{IDS}, {INSTANT}",
    "cancel_blocked": f"{IDS}, {each('no')}, {INSTANT}",
    "find_idle": f"ARRAY['zsequence:s:a'], {INSTANT}",
    "find_past_heads": "100",
    "hand_over": f"'w1', '{{{NAME}}}', 100, {INSTANT}, {IDS}, 1, 2",
    "block_surplus": f"'limit:a:', '{{{NAME}}}', 5, '-infinity', '', 100, {INSTANT}, NULL",
    "read_surplus": f"'{{{NAME}}}', 5, '-infinity', '', 100, 2000, {INSTANT}",
    "unblock_limited": f"{INSTANT}, '{{limit:a:}}', '{{0}}', '{{100}}', '{{100}}', '{{10}}', 100",
    "blocked_keys": "'after', 'share:', 100",
    "unblock_late": f"'{{limit:a:}}', '{{0}}', '{{NULL}}', '{{\"\"}}', 100, {INSTANT}",
    "unblock_unclaimed": f"'{{limit:a:}}', '{{{NAME}}}', 'w1', 100, {INSTANT}",
    "unblock_forgotten": f"'{{limit:a:}}', '{{{NAME}}}', 100",
    "renew_due": f"'{{{NAME}}}', {INSTANT}, {INSTANT}, 5, '-infinity', '', 100",
    "renew_blocked": f"'{{{NAME}}}', {INSTANT}, {INSTANT}, '', 0, '-infinity', '', 100",
    "delete_renewed": f"'{{{NAME}}}', {INSTANT}, {INSTANT}, 'nobody', false",
    "vacuum_blocks": f"'(0,0)', '(3,0)', 'failed', {INSTANT}",
    "note_range": f"'(0,0)', '(3,0)', 0, 3, 'public.scheduled_jobs', {NOTHING}, {INSTANT}",
    "count_in_blocks": f"'(0,0)', '(3,0)', {NOTHING}",
    "get_job": "'held-001'",
    "retry_job": f"'held-001', {INSTANT}, true",
    "list_jobs": "'held-001', NULL, NULL, NULL, NULL, NULL, 10",
    "find_jobs": "'held-001', 10, 1000, NULL, NULL, NULL, NULL, NULL, '{}'",
    "find_unfinished": "'held-001', 10, 1000, NULL, NULL, NULL, NULL, NULL, '{}'",
    "cancel_jobs": f"{IDS}, {INSTANT}, 'reason', NULL, NULL, NULL, NULL, NULL, NULL, true",
    "find_conflicts": f"{IDS}, {IDS}",
    "lock_key_holders": IDS,
    "find_key_holder": "'held-001'",
}


async def prepare(connection: Connection, names: Iterable[str]) -> None:
    """Prepare statements and execute them several times on empty tables."""
    for name in names:
        await connection.execute(f"PREPARE {name} ({TYPES[name]}) AS {QUERIES[name].text}")
        for _ in range(6):  # from the sixth on PostgreSQL may keep one plan for all values
            await connection.execute(f"EXECUTE {name} ({VALUES[name]})")


@pytest.fixture
async def session(store: Store) -> AsyncIterator[Connection]:
    """A transaction with all statements prepared."""
    async with store.connections.transaction() as connection:
        await prepare(connection, TYPES)
        yield connection


@pytest.fixture
async def dedicated(dsn: str, store: Store) -> AsyncIterator[Connection]:
    """A session with the settings of a held connection, and its statements prepared."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(DEDICATED)
    await prepare(connection, HELD_THERE)
    yield connection
    await connection.close()


async def fill(connection: Connection, store: Store) -> None:
    """Insert running jobs, due ones, many future ones of a higher priority, and finished ones."""
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job(job_id, priority=1) for job_id in HELD])
    assert len((await store.claims.exchange("w1", [NAME], len(HELD))).jobs) == len(HELD)
    for prefix, count, shape in (
        (
            "future",
            FUTURE,
            f"1, timestamptz {INSTANT} + n * interval '1 second', 'pending', NULL::timestamptz",
        ),
        ("due", DUE, f"5, timestamptz {INSTANT} - n * interval '1 second', 'pending', NULL"),
        ("done", FUTURE, f"1, timestamptz {INSTANT} - interval '9 days', 'completed', {INSTANT}"),
    ):
        await connection.execute(
            "INSERT INTO scheduled_jobs (job_id, job_name, priority, execution_time, status, finished_at)"
            f" SELECT '{prefix}-' || n, '{NAME}', {shape} FROM generate_series(1, {count}) AS n"
        )


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


async def explain(connection: Connection, name: str, values: str = "") -> list[dict[str, Any]]:
    """Execute a statement, roll it back and return the nodes of its plan with their counts."""
    transaction = connection.transaction()
    await transaction.start()
    text = await connection.fetchval(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name} ({values or VALUES[name]})"
    )
    await transaction.rollback()
    return list(nodes(json.loads(text)[0]["Plan"]))


def on_jobs(found: list[dict[str, Any]]) -> set[tuple[str, str | None]]:
    """Return the scans of the jobs table, each with its index."""
    return {
        (node["Node Type"], node.get("Index Name"))
        for node in found
        if "Scan" in node["Node Type"]
        and (
            node.get("Relation Name") == "scheduled_jobs"
            or str(node.get("Index Name")).startswith("scheduled_jobs")
        )
    }


CLAIM = ("Index Scan", "scheduled_jobs_claim")
KEY = ("Index Scan", "scheduled_jobs_pkey")
TID = ("Tid Scan", None)
BLOCKED = ("Index Scan", "scheduled_jobs_blocked")
UNIQUE = ("Index Scan", "scheduled_jobs_unique")
EXPECTED = {
    "exchange_jobs": {CLAIM, TID, KEY},
    "find_claimable": {CLAIM},
    "claim_jobs": {CLAIM, TID},
    "explain_expiry": {KEY, TID},
    "complete_unlocked": {KEY, TID},
    "oversized_due": {CLAIM},
    "settle_jobs": {KEY},
    "settle_failed": {KEY},
    "settle_suspended": {KEY},
    "apply_replacements": {KEY},
    "write_progress": {KEY},
    "write_look": {KEY},
    "remove_look": {KEY},
    "renew_lease": {KEY},
    "lock_orphans": {CLAIM},
    "restart_leases": {CLAIM, TID},
    "correct_waits": {CLAIM},
    "correct_due_times": {CLAIM, BLOCKED, ("Index Only Scan", "scheduled_jobs_blocked"), TID},
    "find_uncorrected": {CLAIM, BLOCKED},
    "expire_jobs": {CLAIM, TID},
    "overdue_names": {CLAIM},
    "scan_deadlines": {
        CLAIM,
        ("Index Only Scan", "scheduled_jobs_ended"),
        ("Index Only Scan", "scheduled_jobs_blocked"),
        KEY,
    },
    "end_past_deadlines": {KEY},
    "forget_deadlines": {KEY},
    "lock_parents": {KEY},
    "mark_parents": {KEY},
    "lock_children": {KEY},
    "wait_again": {KEY},
    "lock_ended": {("Index Scan", "scheduled_jobs_ended")},
    "report_gone": {("Index Scan", "scheduled_jobs_ended"), KEY},
    "clear_consequences": {KEY},
    "unblock_jobs": {KEY},
    "cancel_blocked": {KEY},
    "find_idle": {KEY, BLOCKED, ("Index Only Scan", "scheduled_jobs_blocked")},
    "find_past_heads": {KEY, ("Index Only Scan", "scheduled_jobs_blocked")},
    "hand_over": {KEY, TID, BLOCKED},
    "block_surplus": {CLAIM, TID},
    "read_surplus": {CLAIM},
    "unblock_limited": {BLOCKED, ("Index Only Scan", "scheduled_jobs_blocked"), TID, KEY},
    "blocked_keys": {("Index Only Scan", "scheduled_jobs_blocked")},
    "unblock_late": {BLOCKED, TID},
    "unblock_unclaimed": {BLOCKED, TID},
    "unblock_forgotten": {BLOCKED, TID},
    "renew_due": {CLAIM, TID},
    "renew_blocked": {BLOCKED, TID},
    "delete_renewed": {CLAIM, BLOCKED},
    "vacuum_blocks": {("Tid Range Scan", None)},
    "note_range": {("Tid Range Scan", None)},
    "count_in_blocks": {("Tid Range Scan", None)},
    "get_job": {KEY},
    "retry_job": {KEY},
    "list_jobs": {KEY},
    "find_jobs": {KEY},
    "find_unfinished": {KEY},
    "cancel_jobs": {KEY},
    "find_conflicts": {KEY, UNIQUE},
    "lock_key_holders": {UNIQUE},
    "find_key_holder": {KEY, UNIQUE},
}


async def scans_of(connection: Connection, names: Iterable[str]) -> dict[str, set[tuple[str, str | None]]]:
    """Execute each statement, and return the scans of the jobs table by its name."""
    return {name: on_jobs(await explain(connection, name)) for name in names}


async def test_query_plans_use_indexes_when_made_on_empty_tables(session: Connection, store: Store) -> None:
    await fill(session, store)
    assert await scans_of(session, TYPES) == EXPECTED


async def test_query_plans_on_a_held_connection_use_indexes_when_made_on_empty_tables(
    dedicated: Connection, store: Store
) -> None:
    await fill(dedicated, store)
    assert await scans_of(dedicated, HELD_THERE) == {name: EXPECTED[name] for name in HELD_THERE}


async def test_query_plans_use_indexes_when_made_with_statistics(session: Connection, store: Store) -> None:
    await fill(session, store)
    await session.execute("ANALYZE scheduled_jobs")
    assert await scans_of(session, TYPES) == EXPECTED


def read_by(found: list[dict[str, Any]]) -> float:
    """Return the number of rows read through the claim index."""
    # Loops count one probe per priority.
    read: float = sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in found
        if node.get("Index Name") == "scheduled_jobs_claim"
    )
    return read


@pytest.mark.parametrize("analyzed", [False, True])
@pytest.mark.parametrize("way", ["session", "dedicated"])
async def test_claim_reads_no_future_rows(
    session: Connection, dedicated: Connection, store: Store, way: str, analyzed: bool
) -> None:
    connection = dedicated if way == "dedicated" else session
    await fill(connection, store)
    if analyzed:
        await connection.execute("ANALYZE scheduled_jobs")
    found = await explain(connection, "exchange_jobs")
    assert on_jobs(found) == EXPECTED["exchange_jobs"]
    assert found[0]["Actual Rows"] == 1 + 100  # the last row describes the rest
    # The claimed rows and the running rows in front of them, no more.
    assert read_by(found) <= 100 + len(HELD) + 4


@pytest.mark.parametrize("analyzed", [False, True])
async def test_scan_deadlines_reads_no_future_rows(
    dedicated: Connection, store: Store, analyzed: bool
) -> None:
    await fill(dedicated, store)
    if analyzed:
        await dedicated.execute("ANALYZE scheduled_jobs")
    found = await explain(dedicated, "scan_deadlines")
    (index,) = (node["Index Cond"] for node in found if node.get("Index Name") == "scheduled_jobs_claim")
    assert "priority = " in index
    assert read_by(found) <= DUE + len(HELD) + 30 + 4


async def test_claim_reads_no_running_rows_when_its_position_is_behind_them(
    dedicated: Connection, store: Store
) -> None:
    await fill(dedicated, store)
    await dedicated.execute(
        f"UPDATE scheduled_jobs SET execution_time = {INSTANT}::timestamptz - interval '1 hour', priority = 5"
        " WHERE status = 'running'"
    )
    since = f"'{(NOW - 2_000 * SECOND).isoformat()}'"
    marked = VALUES["exchange_jobs"].replace("'-infinity'", since)
    assert read_by(await explain(dedicated, "exchange_jobs")) > len(HELD)
    assert read_by(await explain(dedicated, "exchange_jobs", marked)) <= 100 + 4


@pytest.mark.parametrize(("grace", "count"), [("1 hour", 0), ("-1 hour", 1)], ids=["in time", "late"])
async def test_claim_reads_no_pauses_unless_a_job_is_late(
    dedicated: Connection, store: Store, grace: str, count: int
) -> None:
    await fill(dedicated, store)
    expires_at = f"{INSTANT}::timestamptz + interval '{grace}'"
    await dedicated.execute(f"UPDATE scheduled_jobs SET expires_at = {expires_at} WHERE job_id = 'due-1'")
    everything = VALUES["exchange_jobs"].replace(", 100,", f", {DUE},")
    nodes = await explain(dedicated, "exchange_jobs", everything)
    reads = [node["Actual Loops"] for node in nodes if node.get("Relation Name") == "scheduler_tasks"]
    assert reads == [count]


async def not_hot(connection: Connection) -> int:
    """Return the number of rows that this transaction updated with an index entry."""
    count: int = await connection.fetchval(
        "SELECT pg_stat_get_xact_tuples_updated(oid) - pg_stat_get_xact_tuples_hot_updated(oid)"
        " FROM pg_class WHERE oid = 'scheduled_jobs'::regclass"
    )
    return count


async def test_claim_and_heartbeat_updates_are_hot(store: Store, pool: Pool) -> None:
    await store.workers.register(worker(), LEASE)
    await store.inserts.insert([new_job(f"{n:03}", misfire_grace_time=60) for n in range(5)])
    async with pool.acquire() as connection:
        async with connection.transaction():
            assert len(await claim_on(connection, store, 20)) == 5
            assert await not_hot(connection) == 0
        async with connection.transaction():
            held = {f"{n:03}": 1 for n in range(5)}
            arguments = (
                "w1",
                list(held),
                json.dumps(held),
                LEASE,
                NOW + SECOND,
                None,
                5,
                None,
                "running",
                "{}",
                None,
                None,
            )
            (row,) = await store.statements.fetch("renew_lease", *arguments, on=connection)
            assert row["lost"] == []
            assert await not_hot(connection) == 0


async def test_indexes_contain_no_column_that_a_claim_changes(pool: Pool) -> None:
    rows = await pool.fetch("SELECT indexdef FROM pg_indexes WHERE tablename = 'scheduled_jobs'")
    indexes = sorted(row[0].partition(" USING btree ")[2] for row in rows)
    order = 'priority, execution_time, job_id COLLATE "C"'
    assert indexes == sorted(
        [
            f"(blocked_on, {order}) WHERE (blocked_on IS NOT NULL)",
            "(job_id)",
            "(job_id) WHERE ((finished_at IS NOT NULL) AND (on_end IS NOT NULL))",
            f"({order}) WHERE ((finished_at IS NULL) AND (blocked_on IS NULL))",
            (
                '(finished_at, job_id COLLATE "C")'
                " WHERE ((finished_at IS NOT NULL) AND (error_message IS NOT NULL))"
            ),
            "(unique_key) WHERE ((unique_key IS NOT NULL) AND (finished_at IS NULL))",
        ]
    )


async def test_jobs_table_has_its_storage_settings(pool: Pool) -> None:
    options = await pool.fetchval("SELECT reloptions FROM pg_class WHERE oid = 'scheduled_jobs'::regclass")
    assert {"fillfactor=45", "autovacuum_vacuum_scale_factor=0", "vacuum_truncate=off"} <= set(options)


@pytest.mark.parametrize("settings", [TRANSACTION_SETTINGS, HOT_TRANSACTION_SETTINGS, DEDICATED])
async def test_planner_settings_turn_jit_off(dsn: str, settings: str) -> None:
    """A disabled scan can make any plan look expensive enough to compile."""
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        await connection.execute(settings)
        assert await connection.fetchval("SHOW jit") == "off"
    await connection.close()


@pytest.mark.parametrize("size", [1, 3, 4, 9])
async def test_store_runs_tuned_statements_with_planner_settings(
    dsn: str, clock: FakeClock, size: int
) -> None:
    """On the dedicated connection if the pool can spare one, else in a transaction each."""
    log: list[tuple[object, str]] = []

    async def listen(connection: Connection) -> None:
        pid = connection.get_server_pid()
        connection.add_query_logger(lambda record: log.append((pid, record.query)))

    async with asyncpg.create_pool(dsn, min_size=1, max_size=size, init=listen) as pool:
        store = Store(Connections(pool), clock=clock)
        names = "one", "suspended", "three", "two"
        one, suspended, three, two = await running(store, *map(new_job, names))
        await add(store, child("free", "three"), child("in vain", "two"))
        await store.workers.renew("w1", {"one": 1}, LEASE)
        await store.progress.write_progress("w1", {"one": (one, JobProgress(1))})
        await store.progress.write_look("w1", one, "{}")
        await store.progress.remove_look(one)
        await store.claims.exchange("w1", [NAME], 1, completed=[one])
        await store.claims.claim("w1", [NAME], 1)
        await store.claims.find_claimable([NAME], FROM_THE_START, NO_IDS)
        await store.claims.complete("w1", [one], keep=True)
        await store.claims.explain_expiry("w1", [NAME], [one])
        await store.results.settle("w1", [(one, COMPLETE), (two, Outcome.fail("no"))])
        await store.results.settle("w1", [(three, COMPLETE)])
        async with store.statements.transaction() as transaction:
            await store.dependencies.wait_again(["two"], ["three"], transaction.connection)
        sleep = Suspension(SLEEP, "sleep", NO_TIMEOUT)
        await store.results.settle("w1", [(suspended, Outcome.suspend((sleep,)))])
        await store.claims.quarantine_oversized([NAME], 1)
        await store.jobs.expire("w1", [NAME], 1)
        await store.jobs.overdue_names("w1", [NAME], 1)
        await store.workers.scan_deadlines(30, 120)
        await store.jobs.end_past_deadlines(1)
        await store.jobs.forget_deadlines(1)
        await store.workers.restart_leases()
        await store.jobs.correct_due_times(10)
        await store.jobs.find_uncorrected()
        await store.workers.rescue(120)
        await store.limits.block_surplus("limit:a:", [NAME], SurplusPosition(1, NOW, ""), 1)
        await store.limits.read_surplus([NAME], SurplusPosition(1, NOW, ""), 1, 100)
        await store.limits.unblock({"limit:a:": [[LimitNumbers(1, 1, 1.0)]]}, 1)
        assert await store.limits.blocked_keys("after", 1) == []
        await store.sequences.find_idle(["zsequence:s:a"])
        await store.sequences.find_past(1)
        await store.sequences.hand_over("w1", [], keep=True, names=[NAME], room=1, isolated_from=2)
        await store.limits.unblock_late(["limit:a:"], None, 1)
        ended = Pause("nobody", NOW, NOW, None, "me", -1.0, suspends_expiry=True)
        await store.pauses.renew_due([NAME], NOW, 5, ("-infinity", ""), 1)
        await store.pauses.renew_blocked([NAME], NOW, ("", 0, "-infinity", ""), 1)
        await store.pauses.delete_renewed([NAME], ended)
        await store.limits.unblock_unclaimed(["limit:a:"], [NAME], "w1", 1)
        await store.limits.unblock_forgotten(["limit:a:"], [NAME], 1)
        await store.consequences.report_gone("w1", {}, 1)
        await store.statistics.add("w1", 1, {NAME: JobFigures(started=1)})
        await store.errors.fold(1)
        await store.workers.announce_subscriptions("w1", ["JobFailed"], "subscriptions w1")
        await store.workers.mark_stopping("w1")
        await store.workers.deregister("w1")
        await store.connections.release_held()
    hot = {QUERIES[name].text: name for name in EXPECTED.keys() - UNTUNED | WITHOUT_JOBS - AFTER_FAILURES}
    tuned: dict[object, str] = {}
    seen, ways = set(), set()
    for session, query in log:
        begin, _, settings = query.partition("; ")
        if begin == BEGIN and settings.startswith(TRANSACTION_SETTINGS):
            tuned[session] = settings
        elif query.startswith(TRANSACTION_SETTINGS):
            tuned[session] = query
        elif HELD_SETTING in query:
            tuned[session] = DEDICATED
        elif query.startswith(RESET):
            tuned.pop(session, None)
        elif query.strip(";") in {"COMMIT", "ROLLBACK"} and tuned.get(session) != DEDICATED:
            del tuned[session]
        if query in hot:
            assert session in tuned, query
            settings = tuned[session]
            is_hot = hot[query] in HOT
            assert settings != (TRANSACTION_SETTINGS if is_hot else DEDICATED), (
                "the dedicated connection is for the hot ones"
            )
            seen.add(hot[query])
            ways.add(settings)
    assert seen == set(hot.values()) >= (TUNED | HOT) - AFTER_FAILURES
    assert not tuned, "no session of the pool keeps settings"
    assert {TRANSACTION_SETTINGS, HOT_TRANSACTION_SETTINGS if size <= 3 else DEDICATED} <= ways
