"""No service waits for a lock of the application.

``LOCKS`` names each statement that changes or locks rows, how it meets the lock of another transaction, and
the tables. It is compared with the statements themselves, so a new one needs a line. ``HOLDS`` has at least
one lock in each of these tables. While an open transaction holds one of them, or all, each service must do
its work on all other rows.
"""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncpg
import pytest

from pg_scheduler import JobProgress, JobStatus, VacuumConfig
from pg_scheduler.admission.pause_watcher import PauseWatcher
from pg_scheduler.database.queries import Query, Route
from pg_scheduler.events import EventBus
from pg_scheduler.queue.dependencies import AFTER
from pg_scheduler.worker.service import Service
from tests.support import inside
from tests.support.dependencies import add, child
from tests.support.inside import Outcome, Store, load_queries
from tests.support.parts import Parts
from tests.support.store import new_schedule
from tests.support.worker import LEASE, claim, new_job, now

LOCK_CLASS = inside.internal_setting("class_of_advisory_locks")

LOCKS: Final = """
lock_texts: limited
admit_attempts: limited jobs starts
delete_past_starts: skips starts
insert_audit: own audit
vacuum_audit: skips audit bulk_runs
exchange_jobs: hot jobs
find_claimable: skips
claim_jobs: hot jobs
explain_expiry: hot failures jobs
complete_unlocked: hot jobs
complete_own: call jobs
claim_one: call jobs
lock_ended: limited
clear_consequences: limited jobs
report_ends: limited jobs
report_gone: skips jobs
lock_parents: limited
hold_parents: call
lock_dependents: call
lock_families: call
retry_jobs: call deadlines jobs
mark_awaited: limited jobs
mark_parents: limited jobs
insert_edges: limited after
await_jobs: step after
wait_again: call after
lock_ordered: call
block_retried: call jobs
note_last_jobs: call schedules
delete_edges: limited after
delete_child_edges: limited after
lock_children: limited
take_edges: limited after
lock_jobs: limited
take_broken_edges: limited after
unblock_jobs: limited jobs
end_awaited: limited jobs
cancel_blocked: limited jobs
insert_generated_job: insert jobs
insert_generated_jobs: insert jobs
insert_job: insert jobs
insert_jobs: insert jobs
enqueue_job: insert jobs
enqueue_generated_job: insert jobs
enqueue_due_job: insert jobs
enqueue_extended_generated_job: insert jobs
enqueue_extended_due_job: insert jobs
enqueue_jobs: insert jobs
insert_extended_jobs: insert jobs
enqueue_extended_jobs: insert jobs
replace_jobs: call jobs
replace_extended_jobs: call jobs
replace_debounced_jobs: call jobs
cancel_job: call jobs
set_status: call deadlines jobs
retry_job: call deadlines jobs
change_job: call jobs
keep_job: call jobs
cancel_jobs: call jobs
delete_jobs: call after jobs results steps
free_fire_times: call after jobs results
move_jobs: call jobs
expire_jobs: skips failures jobs
note_deadlines: own deadlines
end_past_deadlines: skips failures jobs
forget_deadlines: skips deadlines
vacuum_deadlines: skips deadlines
keep_results: limited results
vacuum_results: skips results
block_surplus: skips jobs
unblock_limited: skips jobs
unblock_late: skips jobs
unblock_unclaimed: skips jobs
unblock_forgotten: skips jobs
take_advisory_lock: advisory
drop_advisory_lock: advisory
clear_steps: step jobs steps
pass_results: limited steps
take_over_results: limited steps
write_progress: skips jobs
write_own_progress: call jobs
write_look: skips jobs
remove_look: skips jobs
lock_for_claims: limited jobs
lock_due: skips
quarantine_job: limited failures jobs
try_claim: limited jobs
restart_leases: own jobs workers
correct_waits: skips steps
correct_due_times: skips jobs
delete_dead_workers: skips workers
record_dead_workers: own audit
lock_orphans: skips
lock_unacknowledged: skips
settle_jobs: limited jobs
settle_failed: limited failures jobs
count_failures: own failures
settle_suspended: limited jobs
set_back_suspended: skips jobs steps
lock_settled: skips
lock_held: limited
delete_completed: skips jobs results steps
apply_replacements: limited jobs
release_revoked: limited jobs
refuse_replacement: limited failures jobs
begin_vacuum_pass: own vacuum_passes
end_vacuum_pass: own vacuum_passes
read_ranges: own vacuum_ranges
note_range: own vacuum_ranges
vacuum_blocks: limited jobs results steps
vacuum_unlocked: skips jobs results steps
vacuum_surplus: skips jobs results steps
vacuum_steps: skips steps
vacuum_streams: skips streams
record_vacuum: own vacuum_stats
lock_declarations: call schedules
lock_schedules: call
lock_free_schedules: skips
insert_schedule: call audit schedules
write_schedule: call audit schedules
remove_schedule: call audit schedules
pause_schedule: call audit schedules
resume_schedule: call audit schedules
due_schedules: skips
advance_schedules: limited schedules
retire_schedules: skips schedules
continue_schedules: skips schedules
note_last_job: call schedules
lock_last_jobs: skips
note_job_end: limited schedules
vacuum_schedules: skips schedules
lock_shares: advisory
feed_shares: skips jobs starts
lock_sequences: limited sequences
lock_heads: limited
move_heads: limited jobs sequences
hand_over: hot jobs sequences
resume_sequence: call sequences
skip_failed_head: call jobs
move_to_front: call jobs
add_statistics: own stats totals workers
fold_statistics: skips stats
delete_statistics: skips error_counts error_groups stats
fold_failures: own error_counts error_groups failures
store_step: step jobs steps
append_items: step jobs streams
end_step: step steps
repeat_wait: step steps
is_locked_by: step
delete_steps_from: call after jobs steps
store_signal: call jobs steps
wake_signalled: call jobs
store_broadcast: call steps
wake_broadcast: call jobs
end_sleep: call jobs steps
look_at_waits: skips jobs steps
find_children: step jobs
keep_holders_results: step jobs
block_waiting: limited jobs steps
end_child_steps: limited jobs steps
hold_tasks: call tasks
hold_schedules: call schedules
record_database: call database
resume_held_tasks: call tasks
restore_schedules: call schedules
pause_task: call audit tasks
resume_tasks: call audit tasks
end_pauses: skips tasks
add_names: skips tasks
renew_due: skips jobs
renew_blocked: skips jobs
delete_renewed: skips tasks
claim_next: skips jobs
mark_uncommitted: call jobs
lock_key_holders: call
register_worker: own audit workers
renew_worker: own workers
suspect_workers: advisory
ended_namesakes: advisory
renew_lease: own jobs workers
request_state: own audit workers
announce_subscriptions: own workers
mark_stopping: own workers
deregister_worker: own workers
record_database: call database
hold_tasks: call tasks
hold_schedules: call schedules
"""
"""The statements, one a line: its name, how it meets a lock, and the tables whose rows it changes."""

HOW: Final = {
    "skips": "It skips rows that are locked.",
    "hot": "It runs on the connection of the hot path, whose lock timeout is 100 ms.",
    "limited": "A service runs it within a transaction that has a lock timeout.",
    "insert": "Calls insert with a lock timeout; what waits has turns of its own.",
    "step": "It runs in the task of the attempt, whose job it concerns.",
    "call": "A call of the application runs it, and again while it meets a lock; a service does not wait.",
    "own": "Its rows are those of workers and records, which no call locks until the end of a transaction.",
    "advisory": "It tries advisory locks, and waits for none.",
}

OWN: Final = {
    *("workers", "jobs", "audit", "stats", "totals", "vacuum_passes", "vacuum_ranges", "vacuum_stats"),
    *("failures", "error_groups", "error_counts", "deadlines"),
}
"""The tables of statements that are ``own``. Of jobs they change those of the worker that are not locked."""

WITHIN_TRANSACTIONS: Final = {
    "hold_schedules",
    "hold_tasks",
    "insert_schedule",
    "is_locked_by",
    "mark_uncommitted",
    "record_database",
    "restore_schedules",
    "resume_held_tasks",
}
"""Statements of calls that have a route, but run in transactions, wait for no lock, or run in tests only."""

LOCK: Final = re.compile(r"FOR (?:NO KEY UPDATE|UPDATE|KEY SHARE|SHARE)(?: OF \w+)?( SKIP LOCKED)?")
CHANGED: Final = re.compile(
    r'(?:UPDATE|INSERT INTO|DELETE FROM|LOCK TABLE) "?app"?\.(?:scheduler_|scheduled_)?(\w+)'
)
ADVISORY: Final = re.compile(r"pg_(?:try_)?advisory_(?!unlock)\w+")
NAME: Final = re.compile(r"^-- name: (\w+)", re.MULTILINE)

PATIENCE_S: Final = 20.0
"""More than a pass takes that waits for no lock, and less than the 30 s after which a statement gives up."""


def statements() -> dict[str, Query]:
    """Return the statements of the services and of calls, by name."""
    queries = load_queries("app")
    folder = files("pg_scheduler").joinpath("inspect/store/sql")
    for_people = {name for file in folder.iterdir() for name in NAME.findall(file.read_text("utf-8"))}
    return {name: query for name, query in queries.items() if name not in for_people}


def text_of(query: Query) -> str:
    return re.sub(r"^--.*\n?", "", query.text, flags=re.MULTILINE)


def lines() -> dict[str, tuple[str, set[str]]]:
    """Return the lines of the list: how a statement meets a lock and the tables, by its name."""
    found = {}
    for line in LOCKS.strip().splitlines():
        name, _, rest = line.partition(": ")
        how, *tables = rest.split()
        found[name] = how, {*tables}
    return found


def test_list_has_each_statement_that_changes_or_locks_rows() -> None:
    changing = {}
    for name, query in statements().items():
        text = text_of(query)
        tables = {*CHANGED.findall(text)}
        if tables or LOCK.search(text) or ("advisory_" in text and re.search(r"pg_\w*advisory", text)):
            changing[name] = tables
    assert {name: tables for name, (_, tables) in lines().items()} == changing


@pytest.mark.parametrize("name", sorted(lines()))
def test_statement_meets_a_lock_as_its_line_says(name: str) -> None:
    how, tables = lines()[name]
    query = statements()[name]
    text = text_of(query)
    locks = LOCK.findall(text)
    assert how in HOW
    if how == "skips":
        assert locks, "it changes rows that it has not locked"
        assert all(locks), "it waits for a row"
    if how == "hot":
        assert query.routes == (Route.DEDICATED,)
    if how == "own":
        assert tables <= OWN
    if how == "limited":
        assert Route.CALLER in query.routes or name == "vacuum_blocks"
    if how in {"call", "step"} and Route.CALLER not in query.routes and name not in WITHIN_TRANSACTIONS:
        assert query.limits_wait, "a call that waits for a row would keep its connection"
    if how == "advisory":
        assert not locks
        assert all("try" in found or "unlock" in found for found in re.findall(r"pg_\w*advisory\w*", text))


def test_each_transaction_has_a_lock_timeout_unless_it_is_that_of_a_caller() -> None:
    """``run_retrying()`` begins those of calls, and repeats them."""
    folder = files("pg_scheduler")
    sources = {str(path): path.read_text("utf-8") for path in Path(str(folder)).rglob("*.py")}
    begun = {
        f"{path}: {match[0]}"
        for path, source in sources.items()
        for match in re.finditer(r"statements\.transaction\((?!within=)([^)]*)\)", source)
        if "lock_timeout_ms=" not in match[1]
    }
    assert begun == set()


# -- one row of each kind is held --------------------------------------------------------------------------


class Hold(NamedTuple):
    """A lock of the application.

    Attributes:
        text: The statement that takes it.
        table: The table that the statements name; empty for an advisory lock.
        delayed: The things that wait for its release.
    """

    text: str
    table: str
    delayed: frozenset[str] = frozenset()


def hold_row(table: str, name: str, key: str, *delayed: str) -> Hold:
    return Hold(
        f"SELECT FROM {name} WHERE {key} LIKE 'held %' FOR UPDATE",
        table,
        frozenset(f"held {x}" for x in delayed),
    )


def hold_job(kind: str) -> Hold:
    text = f"SELECT FROM scheduled_jobs WHERE job_id = 'held {kind}' FOR UPDATE"
    return Hold(text, "jobs", frozenset() if kind == "ended" else frozenset({f"held {kind}"}))


JOBS: Final = ("due", "late", "overrun", "orphan", "old", "ended", "child", "waiting", "running")
"""The kinds of jobs in the world; "ended" has consequences for "child"."""

HOLDS: Final = {
    **{f"job that is {kind}": hold_job(kind) for kind in JOBS},
    "schedule": hold_row("schedules", "scheduler_schedules", "schedule_id", "schedule"),
    "task": hold_row("tasks", "scheduler_tasks", "name", "task"),
    "result": hold_row("results", "scheduler_results", "job_id", "result"),
    "steps": hold_row("steps", "scheduler_steps", "job_id", "steps"),
    "streams": hold_row("streams", "scheduler_streams", "job_id", "streams"),
    "edges": hold_row("after", "scheduler_after", "child_id", "child", "waiting"),
    "dead worker": Hold(
        "SELECT FROM scheduler_workers WHERE worker_id = 'gone' FOR UPDATE",
        "workers",
        frozenset({"dead worker"}),
    ),
    "own worker against deletion": Hold(
        "SELECT FROM scheduler_workers WHERE worker_id = 'me' FOR KEY SHARE", "workers"
    ),
    "deadline": hold_row("deadlines", "scheduler_deadlines", "job_id", "deadline"),
    "starts": Hold("SELECT FROM scheduler_starts FOR UPDATE", "starts"),
    "sequences": Hold("SELECT FROM scheduler_sequences FOR UPDATE", "sequences"),
    "records": Hold("SELECT FROM scheduler_audit FOR UPDATE", "audit"),
    "bulk run": Hold("SELECT FROM scheduler_bulk_runs FOR UPDATE", "bulk_runs"),
    "database": Hold("SELECT FROM scheduler_database FOR UPDATE", "database"),
    "statistics": Hold("SELECT FROM scheduler_stats FOR UPDATE", "stats"),
    "totals": Hold("SELECT FROM scheduler_totals FOR UPDATE", "totals"),
    "failures": Hold("SELECT FROM scheduler_failures FOR UPDATE", "failures"),
    "groups of errors": Hold("SELECT FROM scheduler_error_groups FOR UPDATE", "error_groups"),
    "counts of errors": Hold("SELECT FROM scheduler_error_counts FOR UPDATE", "error_counts"),
    "pass of the vacuum": Hold("SELECT FROM scheduler_vacuum_passes FOR UPDATE", "vacuum_passes"),
    "range of the vacuum": Hold("SELECT FROM scheduler_vacuum_ranges FOR UPDATE", "vacuum_ranges"),
    "counts of the vacuum": Hold("SELECT FROM vacuum_stats FOR UPDATE", "vacuum_stats"),
    "advisory locks": Hold(
        f"SELECT pg_advisory_xact_lock({LOCK_CLASS}, hashtext(key)) "
        f"FROM unnest(ARRAY ['{AFTER}', 'share:s:']) AS key",
        "",
    ),
}
"""The locks that an open transaction of the application has, one after another."""

FILL: Final = """
    INSERT INTO scheduler_tasks (name, paused_at, paused_until, actor)
    SELECT side || ' task', now() - interval '2 hours', now() - interval '1 hour', 'ada'
    FROM unnest(ARRAY ['held', 'free']) AS side;

    INSERT INTO scheduler_results (job_id, status, attempts, finished_at, expires_at)
    SELECT side || ' result', 'completed', 1, now() - interval '2 hours', now() - interval '1 hour'
    FROM unnest(ARRAY ['held', 'free']) AS side;

    INSERT INTO scheduler_steps (job_id, name, kind, attempt, started_at)
    SELECT side || ' steps', 'step', 'step', 1, now() - interval '400 days'
    FROM unnest(ARRAY ['held', 'free']) AS side;

    INSERT INTO scheduler_deadlines (job_id, at, noted_at)
    SELECT side || kind, now() - interval '1 hour', now() - interval '10 minutes'
    FROM unnest(ARRAY ['held', 'free']) AS side CROSS JOIN unnest(ARRAY [' deadline', ' overrun']) AS kind;

    UPDATE scheduled_jobs
    SET options = '{"deadline": "2020-01-01T00:00:00.000000+00:00"}', blocked_on = 'limit:none:'
    WHERE job_id LIKE '% overrun';

    INSERT INTO scheduler_streams (job_id, definition, name, number, value)
    SELECT side || ' streams', 'former', 'items', 1, '1'
    FROM unnest(ARRAY ['held', 'free']) AS side;

    UPDATE scheduled_jobs SET finished_at = now() - interval '400 days' WHERE job_id LIKE '% old';

    UPDATE scheduled_jobs SET status = 'cancelled', finished_at = now() WHERE job_id LIKE '% ended';

    UPDATE scheduled_jobs SET worker_id = 'vanished', lease_until = now() - interval '1 hour'
    WHERE job_id LIKE '% orphan';

    DELETE FROM scheduled_jobs WHERE job_id = 'lost parent';

    INSERT INTO scheduler_workers
        (worker_id, hostname, pid, version, max_concurrent_jobs, started_at, last_beat, lease_until)
    SELECT 'gone', 'host', 1, '1.0', 1, past, past, past
    FROM (SELECT now() - interval '1 hour' AS past) AS hour;

    INSERT INTO scheduler_starts (key, job_id, attempt, at, keep_s)
    VALUES ('limit:past', 'ended long ago', 1, now() - interval '1 day', 1);
"""

STATE: Final = """
    SELECT job_id, status || coalesce(' ' || blocked_on, '') FROM scheduled_jobs
    UNION ALL SELECT options ->> 'schedule_id', 'fired'
        FROM scheduled_jobs WHERE options -> 'schedule_id' IS NOT NULL
    UNION ALL SELECT name, 'paused' FROM scheduler_tasks
    UNION ALL SELECT job_id, 'kept' FROM scheduler_results
    UNION ALL SELECT job_id, 'stored' FROM scheduler_steps
    UNION ALL SELECT job_id, 'noted' FROM scheduler_deadlines WHERE job_id LIKE '% deadline'
    UNION ALL SELECT job_id, 'published' FROM scheduler_streams
    UNION ALL SELECT 'dead worker', 'registered' FROM scheduler_workers WHERE worker_id = 'gone'
"""

DONE: Final = {
    "due": "running",
    "late": "expired",
    "overrun": "failed",
    "orphan": "pending",
    "old": None,
    "child": "pending",
    "waiting": "pending",
    "running": "failed",
    "task": None,
    "result": None,
    "steps": None,
    "deadline": None,
    "streams": None,
    "schedule": "fired",
    "dead worker": None,
}
"""The state of each thing after its service had a pass; None if its row is gone."""

EVERYTHING: Final = {
    *(f"{side} {kind}" for side in ("held", "free") for kind in DONE if kind != "dead worker"),
    "dead worker",
}


async def work() -> None: ...


class World:
    """A worker without its loops, and two rows of each kind that its services attend to."""

    def __init__(self, parts: Parts, pool: asyncpg.Pool) -> None:
        self.parts, self.pool = parts, pool
        self.store = parts.store
        self.planner = parts.planner()
        self.completer = parts.completer()
        rescuer = parts.rescuer()
        rescuer.answer_timeout_s = 0.0
        parts.signals.lease_expired.connect(rescuer.scan_jobs)
        self.services: list[Service] = [
            parts.scanner(),
            parts.expirer(),
            rescuer,
            self.planner,
            PauseWatcher(parts, parts.store.pauses),
            self.completer,
        ]
        self.vacuum = parts.vacuum(VacuumConfig())
        self.claims: dict[str, Any] = {}

    async def fill(self) -> None:
        store, sides = self.store, ("held", "free")
        self.parts.tasks.register(work, name="work")
        first = [new_job(f"{side} {kind}", "work") for side in sides for kind in ("running", "orphan")]
        self.claims = {each.job_id: each for each in await claim(store, *first)}
        hour_ago = now() - timedelta(hours=1)
        await store.inserts.insert([new_job("lost parent", "work")])
        for side in sides:
            late = new_job(f"{side} late", "unregistered", execution_time=hour_ago, misfire_grace_time=1)
            await store.inserts.insert(
                [late, *(new_job(f"{side} {kind}", "work") for kind in ("old", "ended", "overrun"))]
            )
            await store.jobs.set_status(f"{side} old", JobStatus.COMPLETED, LEASE)
            await add(
                store,
                child(f"{side} child", f"{side} ended", outcome="ended"),
                child(f"{side} waiting", "lost parent", outcome="ended"),
            )
            row = new_schedule(f"{side} schedule", task="work", next_fire_at=hour_ago)
            assert await store.schedules.insert(row, ["every"])
        await self.pool.execute(FILL)
        await store.inserts.insert([new_job(f"{side} due", "due") for side in sides])

    async def pass_once(self) -> None:
        """Let each service make a pass, none of which waits for a lock."""
        async with asyncio.timeout(PATIENCE_S):
            exchange = await self.store.claims.exchange("me", ["due"], 100)
            self.claims |= {each.job_id: each for each in exchange.jobs}
        for service in self.services:
            async with asyncio.timeout(PATIENCE_S):
                await service.run_once()
        async with asyncio.timeout(PATIENCE_S):
            await self.vacuum.run()
        reports = {
            job_id: (each, JobProgress(1)) for job_id, each in self.claims.items() if job_id.endswith(" due")
        }
        async with asyncio.timeout(PATIENCE_S):
            await self.store.progress.write_progress("me", reports)
            await self.parts.heartbeat().run_once()

    async def done(self) -> set[str]:
        """Return the things that were attended to."""
        state: dict[str, str] = {row[0]: row[1] for row in await self.pool.fetch(STATE)}
        return {
            thing
            for thing in EVERYTHING
            if state.get(thing) == DONE[thing.removeprefix("held ").removeprefix("free ")]
        }

    async def pass_until_done(self, things: set[str]) -> None:
        missing = things
        try:
            async with asyncio.timeout(3 * PATIENCE_S):
                while missing := things - await self.done():
                    await self.pass_once()
        except TimeoutError:
            raise AssertionError(f"services wait, or leave: {sorted(missing)}") from None


def test_each_table_that_a_statement_changes_is_held_once() -> None:
    tables = {table for _, changed in lines().values() for table in changed}
    assert {hold.table for hold in HOLDS.values() if hold.table} == tables


@pytest.mark.slow
@pytest.mark.parametrize("names", [*((name,) for name in HOLDS), tuple(HOLDS)], ids=[*HOLDS, "all"])
async def test_services_attend_to_all_rows_that_the_application_does_not_hold(
    store: Store, bus: EventBus, pool: asyncpg.Pool, dsn: str, names: tuple[str, ...]
) -> None:
    world = World(Parts(store, bus), pool)
    await world.fill()
    for side in ("held", "free"):
        world.parts.result_buffer.put(world.claims[f"{side} running"], Outcome.fail("as it must"))
    delayed = frozenset[str]().union(*(HOLDS[name].delayed for name in names))
    connection = await asyncpg.connect(dsn)
    transaction = connection.transaction()
    await transaction.start()
    try:
        for name in names:
            await connection.execute(HOLDS[name].text)
        before = await world.done()
        await world.pass_until_done(EVERYTHING - delayed)
        assert await world.done() & delayed == before & delayed, "the transaction holds them"
        await transaction.rollback()
    finally:
        await connection.close()
    await world.pass_until_done(EVERYTHING)
