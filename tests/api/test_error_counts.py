"""Failures count in the statement that writes them, once each, whatever becomes of the worker."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import JobSpec, RetryPolicy
from pg_scheduler.base.meter import MAX_NAME_LENGTH, OTHER
from pg_scheduler.events import JobCompleted, JobExpired, JobFailed, PassFinished
from pg_scheduler.events.types import EXPIRED
from pg_scheduler.jobs.error_text import OTHER_ERRORS, normalized
from pg_scheduler.statistics.errors import MAX_GROUPS_OF_NAME
from tests.api.conftest import Make
from tests.support.inside import Connections, Store, fingerprint_of, load_fragment
from tests.support.statements import Statements
from tests.support.worker import PATIENCE, Gate, Recorder, now

Counts = dict[tuple[str, str], int]
SOON = timedelta(milliseconds=10)
TABLES = "scheduler_failures, scheduler_error_groups, scheduler_error_counts"


@pytest.fixture
async def store(pool: asyncpg.Pool) -> AsyncIterator[Store]:
    connections = Connections(pool)
    yield Store(connections)
    await connections.release_held()


class CardDeclined(Exception):
    """An error with a number in its text."""


async def decline(account: int) -> None:
    raise CardDeclined(f"card of account {account} declined")


async def counted(pool: asyncpg.Pool) -> Counts:
    """The jobs of each error by name and text, whether or not they are in the groups yet."""
    rows = await pool.fetch(
        "SELECT job_name, text, sum(jobs)::integer AS jobs FROM ("
        " SELECT job_name, text, jobs FROM scheduler_failures"
        " UNION ALL SELECT job_name, text, jobs FROM scheduler_error_groups"
        ") AS error GROUP BY 1, 2"
    )
    return {(row["job_name"], row["text"]): row["jobs"] for row in rows}


async def of_spans(pool: asyncpg.Pool) -> dict[int, int]:
    rows = await pool.fetch("SELECT span, sum(jobs)::integer FROM scheduler_error_counts GROUP BY 1")
    return dict(map(tuple, rows))


async def until_added(jobs: int, seen: Recorder, pool: asyncpg.Pool) -> None:
    """Wait until passes of the error counter have added so many jobs to the groups."""
    async with asyncio.timeout(PATIENCE):
        while True:
            # The number of passes is read first, so that a pass which ends meanwhile is not waited for.
            passes = len(seen.of(PassFinished, service="error_counter"))
            if (await pool.fetchval("SELECT sum(jobs) FROM scheduler_error_groups") or 0) >= jobs:
                return
            await seen.until(PassFinished, passes + 1, service="error_counter")


async def fail(
    make: Make, jobs: int, function: Callable[..., Coroutine[Any, Any, None]] = decline, **settings: object
) -> Recorder:
    """Run jobs that fail, and return the events of the worker, which still runs."""
    scheduler = make(**settings)
    seen = Recorder(scheduler)
    scheduler.register(function, name="charge")
    await scheduler.schedule_bulk([JobSpec(function, now(), args=(n,)) for n in range(jobs)])
    await scheduler.start()
    await seen.until(JobFailed, jobs)
    return seen


async def test_failures_of_one_cause_count_in_one_group_and_in_each_span(
    make: Make, pool: asyncpg.Pool
) -> None:
    seen = await fail(make, 60, metadata={"release": "v7"})
    text = "CardDeclined: card of account # declined"
    assert await counted(pool) == {("charge", text): 60}
    await seen.until(PassFinished, service="error_counter")
    await asyncio.wait_for(seen.source.shutdown(), PATIENCE)
    (row,) = await pool.fetch("SELECT * FROM scheduler_error_groups")
    assert (row["fingerprint"], row["status"]) == (fingerprint_of("charge", text), "failed")
    assert (row["jobs"], row["first_release"], row["last_release"]) == (60, "v7", "v7")
    (times,) = await pool.fetch("SELECT min(finished_at), max(finished_at) FROM scheduled_jobs")
    assert (row["first_at"], row["last_at"]) == tuple(times)
    assert await pool.fetchval("SELECT status FROM scheduled_jobs WHERE job_id = $1", row["last_job_id"])
    assert await pool.fetchval("SELECT count(*) FROM scheduler_failures") == 0
    assert await of_spans(pool) == {60: 60, 3600: 60, 86400: 60}


async def test_only_jobs_that_fail_or_expire_count(make: Make, pool: asyncpg.Pool, gate: Gate) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(decline, name="charge")
    scheduler.register(gate.job, name="gate")
    late = now() - timedelta(hours=1)
    await scheduler.initialize_db()
    await scheduler.schedule(decline, execution_time=now(), args=(1,), max_retries=1)
    await scheduler.schedule(decline, execution_time=late, args=(2,), misfire_grace_time=1)
    await pool.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name, execution_time, expires_at)"
        " VALUES ('unknown', 'unknown', now() - interval '1 h', now() - interval '30 min')"
    )
    await scheduler.schedule(gate.job, execution_time=now(), job_id="cancelled")
    await scheduler.start()
    await gate.wait_begun()
    await scheduler.cancel_job("cancelled")
    await seen.until(JobExpired, 2)
    assert await counted(pool) == {("charge", EXPIRED): 1, ("unknown", EXPIRED): 1}


async def test_lost_outcome_and_repeated_write_count_nothing(
    make: Make, pool: asyncpg.Pool, store: Store
) -> None:
    """The row of an attempt that is lost is not updated, so nothing counts."""
    await pool.execute(
        "INSERT INTO scheduled_jobs"
        " (job_id, job_name, execution_time, status, worker_id, attempt, started_at)"
        " VALUES ('a', 'charge', now(), 'running', 'me', 2, now())"
    )
    arrays: list[Any] = [["a"], [1], ["failed"], ["lost"], [0.0], [0], [0], "me", None, [None], ["lost"]]
    async with store.statements.transaction() as transaction:
        rows = await store.statements.fetch("settle_failed", *arrays, on=transaction.connection)
    assert rows == []
    assert await counted(pool) == {}
    await pool.execute(
        "INSERT INTO scheduled_jobs"
        " (job_id, job_name, execution_time, status, worker_id, attempt, started_at)"
        " VALUES ('b', 'retried', now(), 'running', 'me', 1, now())"
    )
    arrays = [
        ["a", "b"],
        [2, 1],
        ["failed", "pending"],
        ["lost", "again"],
        [0.0, 9.0],
        [0, 1],
        [0, 0],
        "me",
        None,
    ]
    arrays += [[None, None], ["lost", None]]
    for expected in (2, 0):
        async with store.statements.transaction() as transaction:
            rows = await store.statements.fetch("settle_failed", *arrays, on=transaction.connection)
        assert len(rows) == expected
    assert await counted(pool) == {("charge", "lost"): 1}


async def test_jobs_that_do_not_fail_run_no_further_statement(make: Make, dsn: str) -> None:
    tried: list[int] = []

    async def recover(number: int) -> None:
        tried.append(number)
        if tried.count(number) == 1:
            raise CardDeclined(f"card of account {number} declined")

    statements = Statements()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=5, init=statements.listen) as pool:
        scheduler = make(pool, retry_policy=RetryPolicy(base=SOON, maximum=SOON))
        seen = Recorder(scheduler)
        scheduler.register(recover, name="recover", max_retries=1, keep_result=timedelta(hours=1))
        scheduler.register(decline, name="charge")
        await scheduler.schedule_bulk([JobSpec(recover, now(), args=(n,)) for n in range(20)])
        async with scheduler:
            await seen.until(JobCompleted, 20)
            sent = (await statements.take()).named
            assert sent["settle_jobs"] > 0
            assert not {"settle_failed", "count_failures", "fold_failures"} & {
                n for n, c in sent.items() if c
            }
            for failures in (1, 2):
                await scheduler.enqueue(decline, args=(failures,))
                await seen.until(JobFailed, failures)
            await until_added(2, seen, pool)
            sent = (await statements.take()).named
            assert sent["settle_failed"] == 2, "one statement for each batch, as without the count"
            assert 1 <= sent["fold_failures"] <= 2
            assert sent["count_failures"] == 0


async def test_killed_worker_loses_no_count(make: Make, pool: asyncpg.Pool, dsn: str) -> None:
    await make().initialize_db()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.api.failing_process", dsn, "40"
    )
    assert await asyncio.wait_for(process.wait(), PATIENCE) == -signal.SIGKILL
    failed = await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'failed'")
    assert failed > 0
    assert sum((await counted(pool)).values()) == failed


async def test_failures_are_added_to_their_group_once(pool: asyncpg.Pool, store: Store) -> None:
    await add_failures(pool, 5000)
    async with asyncio.timeout(PATIENCE):
        while await pool.fetchval("SELECT count(*) FROM scheduler_failures"):
            added = await asyncio.gather(*(store.errors.fold(700) for _ in range(3)))
            assert sum(added) > 0
    assert await counted(pool) == {("charge", f"e{n}"): 500 for n in range(10)}
    assert await of_spans(pool) == {60: 5000, 3600: 5000, 86400: 5000}
    assert await store.errors.fold(700) == 0


async def add_failures(
    pool: asyncpg.Pool, rows: int, groups: int = 10, *, name: str = "charge", at: datetime | None = None
) -> None:
    await pool.execute(
        "INSERT INTO scheduler_failures (fingerprint, job_name, text, status, jobs, at, job_id)"
        " SELECT left(md5($3 || E'\\n' || text), 12), $3, text, 'failed', 1, coalesce($4, now()), n::text"
        " FROM (SELECT n, 'e' || n % $2::integer AS text FROM generate_series(1, $1::integer) AS n) AS e",
        rows,
        groups,
        name,
        at,
    )


@pytest.mark.parametrize("lock", ["rows", "tables"])
async def test_lock_of_the_application_delays_no_outcome_and_loses_no_count(
    make: Make, pool: asyncpg.Pool, dsn: str, lock: str
) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    scheduler.register(decline, name="charge")
    await scheduler.start()
    await scheduler.schedule(decline, execution_time=now(), args=(1,))
    await seen.until(JobFailed)
    await until_added(1, seen, pool)
    stranger = await asyncpg.connect(dsn)
    async with stranger.transaction():
        for table in TABLES.split(", "):
            await stranger.execute(
                f"SELECT FROM {table} FOR UPDATE" if lock == "rows" else f"LOCK TABLE {table}"
            )
        began = now()
        await scheduler.schedule_bulk([JobSpec(decline, now(), args=(n,)) for n in range(5)])
        await seen.until(JobFailed, 6)
        assert now() - began < timedelta(seconds=5)
    await stranger.close()
    await until_added(6, seen, pool)
    assert await counted(pool) == {("charge", "CardDeclined: card of account # declined"): 6}


async def test_failures_are_written_although_the_server_refuses_to_count_them(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    await scheduler.initialize_db()
    await pool.execute("ALTER TABLE scheduler_failures ADD CHECK (job_name <> 'charge')")
    scheduler.register(decline, name="charge")
    seen = Recorder(scheduler)
    late = now() - timedelta(hours=1)
    await scheduler.schedule(decline, execution_time=late, args=(2,), misfire_grace_time=1)
    await scheduler.schedule_bulk([JobSpec(decline, now(), args=(n,)) for n in range(20)])
    await scheduler.start()
    await seen.until(JobFailed, 20)
    await seen.until(JobExpired)
    assert await counted(pool) == {}


# -- groups -------------------------------------------------------------------------------------------


async def test_first_failure_keeps_its_instant_and_release_whatever_follows(
    pool: asyncpg.Pool, store: Store
) -> None:
    noon = datetime.fromisoformat("2026-01-01T12:00:00Z")
    for hours, release in ((0, "v2"), (2, "v3"), (-1, "v1"), (1, "v2")):
        at = noon + timedelta(hours=hours)
        await pool.execute(
            "INSERT INTO scheduler_failures (fingerprint, job_name, text, status, jobs, at, release, job_id)"
            " VALUES ('f', 'charge', 'e', 'failed', 3, $1, $2, $2)",
            at,
            release,
        )
        assert await store.errors.fold(10) == 1
    (row,) = await pool.fetch("SELECT * FROM scheduler_error_groups")
    assert (row["first_at"], row["first_release"]) == (noon - timedelta(hours=1), "v1")
    assert (row["last_at"], row["last_release"], row["last_job_id"]) == (
        noon + timedelta(hours=2),
        "v3",
        "v3",
    )
    assert row["jobs"] == 12


async def test_name_with_many_errors_has_a_bounded_number_of_groups(pool: asyncpg.Pool, store: Store) -> None:
    await add_failures(pool, MAX_GROUPS_OF_NAME, MAX_GROUPS_OF_NAME)
    await add_failures(pool, 1, name="mail")
    assert await store.errors.fold(5000) == MAX_GROUPS_OF_NAME + 1
    await add_failures(pool, MAX_GROUPS_OF_NAME + 50, MAX_GROUPS_OF_NAME + 50)
    await add_failures(pool, 7, 7, name="mail")
    await store.errors.fold(5000)
    counts = await counted(pool)
    # e0 to e49 of the second batch are the numbers modulo a greater one, so 50 texts are new.
    assert counts["charge", OTHER_ERRORS] == 50
    assert len(counts) == MAX_GROUPS_OF_NAME + 1 + 7
    other = await pool.fetchval(
        "SELECT fingerprint FROM scheduler_error_groups WHERE text = $1", OTHER_ERRORS
    )
    assert other == fingerprint_of("charge", OTHER_ERRORS)


async def test_old_counts_and_groups_are_deleted(pool: asyncpg.Pool, store: Store) -> None:
    ages = {
        "new": timedelta(0),
        "hours": timedelta(hours=3),
        "days": timedelta(days=9),
        "old": timedelta(days=91),
    }
    for name, age in ages.items():
        await add_failures(pool, 1, name=name, at=now() - age)
    await store.errors.fold(10)
    while await store.statistics.fold(3600, None, 90.0, 2) == 2:
        pass
    rows = await pool.fetch(
        "SELECT job_name, array_agg(span ORDER BY span) AS spans FROM scheduler_error_counts"
        " JOIN scheduler_error_groups USING (fingerprint) GROUP BY 1"
    )
    assert {row["job_name"]: row["spans"] for row in rows} == {
        "new": [60, 3600, 86400],
        "hours": [3600, 86400],
        "days": [86400],
    }
    assert await of_spans(pool) == {60: 1, 3600: 2, 86400: 3}


async def test_worker_that_declares_another_one_dead_adds_what_that_one_left(
    make: Make, pool: asyncpg.Pool
) -> None:
    scheduler = make()
    seen = Recorder(scheduler)
    await scheduler.initialize_db()
    await add_failures(pool, 30)
    await pool.execute(
        "INSERT INTO scheduler_workers"
        " (worker_id, hostname, pid, version, max_concurrent_jobs, started_at, last_beat, lease_until)"
        " SELECT 'dead', 'h', 1, '1', 1, at, at, at FROM (SELECT now() - interval '1 hour' AS at) AS time"
    )
    await scheduler.start()
    await until_added(30, seen, pool)
    assert await pool.fetchval("SELECT count(*) FROM scheduler_failures") == 0
    assert await pool.fetchval("SELECT sum(jobs) FROM scheduler_error_groups") == 30


# -- the text and the fingerprint -----------------------------------------------------------------------


def test_statements_know_the_constants_of_the_library() -> None:
    assert load_fragment("unexplained_expiry") == f"'{EXPIRED}'"
    assert f"length(ended.job_name) > {MAX_NAME_LENGTH} THEN '{OTHER}'" in load_fragment("counted_failures")


@pytest.mark.parametrize("name", ["charge", "Bücher.zählen", "名前"])
async def test_server_computes_the_fingerprint_of_the_library(pool: asyncpg.Pool, name: str) -> None:
    text = normalized("Größe: 12 ≠ 13")
    found = await pool.fetchval(
        f"SELECT {load_fragment('fingerprint')}"
        " FROM (SELECT $1::text AS job_name, $2::text AS text) AS error",
        name,
        text,
    )
    assert found == fingerprint_of(name, text)
