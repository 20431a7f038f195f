"""Millions of finished jobs: passes of the vacuum that delete nothing, and the deletion of a fifth."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final, NamedTuple

import asyncpg

from benchmarks.bench import Bench, Database
from benchmarks.contestants import OURS, Contestant
from benchmarks.results import Goal
from pg_scheduler import Scheduler, VacuumConfig, VacuumPolicy

TITLE: Final = "retention of 5,000,000 finished jobs"

NODES: Final = 10
AGE: Final = timedelta(hours=20)
"""The age of the first job. The last one has just finished."""

BARE: Final = "a DELETE by ctid"

GOALS: Final = (
    Goal("1 node: MB per pass", most=50),
    Goal("1 node: server CPU, s per pass", most=0.2),
    Goal(f"{NODES} nodes: MB per pass", most=50),
    Goal(f"{NODES} nodes: server CPU, s per pass", most=0.2),
    Goal("server CPU, us per deleted job", than=BARE, most=1.5),
)

FILL: Final = """
    INSERT INTO scheduled_jobs (
        job_id, job_name, execution_time, status, task_data, worker_id, attempt, started_at, finished_at
    )
    SELECT lpad(to_hex(n), 8, '0') || '-7000-8000-0000-000000000000', 'benchmarks.ours.work', at, 'completed',
        '{"args": [], "kwargs": {"t": 0.0, "user": "user@example.org"}}', 'worker', 1, at, at
    FROM (
        SELECT n, now() - $2::interval * (1 - n::double precision / $1) AS at FROM generate_series(1, $1) AS n
    ) AS job
"""
PASSES_BEGUN: Final = "SELECT coalesce(sum(number), 0)::integer FROM scheduler_vacuum_passes"
INTERVAL_S: Final = 3.0


class _Work(NamedTuple):
    """The work of the server since its start."""

    blocks: int
    cpu_seconds: float


async def measure(bench: Bench) -> None:
    """Run idle workers whose passes follow one another; then delete the first fifth of the jobs in two ways.

    The processor time is that of the server in the same period, less that with the same workers without
    passes. The first pass, which reads the whole table, is not part of it.
    """
    n, seconds = bench.scale(5_000_000, 200_000), bench.scale(60, 9)

    async def one(contestant: Contestant, database: Database) -> None:
        async with database.connect() as connection:
            await connection.execute("ALTER TABLE scheduled_jobs SET (autovacuum_enabled = off)")
            await connection.execute(FILL, n, AGE, timeout=1800)
        await database.settle()
        for nodes in (1, NODES):
            await _passes(bench, contestant, database, nodes, seconds)
        await _delete(bench, database, n // 5)

    await bench.alternate([OURS], one, rounds=1)
    bench.outcome.note(f"passes {INTERVAL_S:g} s apart, of workers that have no jobs")


async def _passes(
    bench: Bench, contestant: Contestant, database: Database, nodes: int, seconds: float
) -> None:
    async with database.connect() as connection:
        spent: dict[bool, _Work] = {}
        passes = 0
        for enabled in (False, True):
            async with AsyncExitStack() as stack:
                options = {"vacuum": INTERVAL_S / 60 if enabled else None}
                for _ in range(nodes):
                    await stack.enter_async_context(database.worker(contestant, options=options))
                began = await connection.fetchval(PASSES_BEGUN)
                while enabled and await connection.fetchval(PASSES_BEGUN) < began + 2:  # noqa: ASYNC110 - others
                    await asyncio.sleep(1)
                before, began = await _work(database, connection), await connection.fetchval(PASSES_BEGUN)
                await asyncio.sleep(seconds)  # time is the subject
                after = await _work(database, connection)
                passes = await connection.fetchval(PASSES_BEGUN) - began
            spent[enabled] = _Work(after.blocks - before.blocks, after.cpu_seconds - before.cpu_seconds)
    label = "1 node" if nodes == 1 else f"{nodes} nodes"
    blocks = max(0, spent[True].blocks - spent[False].blocks)
    cpu_seconds = max(0.0, spent[True].cpu_seconds - spent[False].cpu_seconds)
    bench.outcome.add("ours", f"{label}: passes", passes)
    bench.outcome.add("ours", f"{label}: MB per pass", blocks * 8192 / 1e6 / passes)
    bench.outcome.add("ours", f"{label}: server CPU, s per pass", cpu_seconds / passes)


async def _delete(bench: Bench, database: Database, n: int) -> None:
    """Delete n jobs with run_vacuum() and as many by their places, the first ones each time."""
    pool = await asyncpg.create_pool(database.dsn, min_size=1, max_size=2)
    try:
        for name in ("ours", BARE):
            edge = await pool.fetchval(
                "SELECT finished_at FROM scheduled_jobs ORDER BY job_id LIMIT 1 OFFSET $1", n - 1
            )
            places = await pool.fetch("SELECT ctid FROM scheduled_jobs WHERE finished_at <= $1", edge)
            age = await pool.fetchval("SELECT now() - $1::timestamptz", edge)
            policy = VacuumPolicy.after_days(age / timedelta(days=1))
            await database.settle()
            before = await database.counters()
            if name == "ours":
                deleted = await Scheduler(pool, vacuum_config=VacuumConfig(policy)).run_vacuum()
                count = deleted["completed"]
            else:
                count = len(places)
                for first in range(0, count, 20_000):
                    some = [row[0] for row in places[first : first + 20_000]]
                    await pool.execute("DELETE FROM scheduled_jobs WHERE ctid = ANY ($1::tid[])", some)
            after = await database.counters()
            bench.outcome.add(
                name, "server CPU, us per deleted job", 1e6 * (after.cpu_seconds - before.cpu_seconds) / count
            )
            bench.outcome.add(
                name, "WAL, bytes per deleted job", (after.wal_bytes - before.wal_bytes) / count
            )
    finally:
        await pool.close()


async def _work(database: Database, connection: asyncpg.Connection) -> _Work:
    await asyncio.sleep(2)  # until the sessions have reported their reads
    blocks = await connection.fetchval(
        "SELECT blks_read + blks_hit FROM pg_stat_database WHERE datname = current_database()"
    )
    return _Work(blocks, (await database.counters()).cpu_seconds)
