"""Costs of claims and completions, counted and not timed: updates, bytes of WAL, pages touched.

Such figures are the same on a busy machine, and nearly so on every PostgreSQL, so the bounds lie close above
what was measured. They are of single statements and of one session: other tests write to the same server.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import asyncpg
import pytest

from pg_scheduler.database.options import DEDICATED_SETTINGS, as_statements
from pg_scheduler.queue.prepare import new_job_id
from tests.support.inside import Store, load_queries
from tests.support.store import LEASE, NAME, NOW, SECOND, Connection, new_job, running, worker

PAGE: Final = 8192
WORKER: Final = "w1234567"
BACKLOG: Final = 3_000
INSTANT: Final = f"timestamptz '{NOW.isoformat()}'"
USUAL: Final = {"args": [12345], "kwargs": {"to": "someone@example.org", "subject": "Your order was shipped"}}
LONG: Final = {"args": [], "kwargs": {"text": "lorem ipsum " * 40}}


class HotPath:
    """The session of the hot path; it executes each exchange under EXPLAIN ANALYZE.

    It was prepared on the empty table, as in a worker that was started before there were jobs.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.held: list[str] = []
        """Ids of running jobs. The next exchange completes them."""
        self.updated = self.hot = 0
        """Rows of the jobs table that the last exchange updated, and those of them updated on their page."""

    async def exchange(self, limit: int, *, keep: bool = True, since: str = "NULL") -> dict[str, Any]:
        """Complete the held jobs and claim up to the limit; return the root of the plan."""
        ids, attempt = ",".join(self.held), int(bool(self.held))
        values = f"'{WORKER}', '{{{NAME}}}', {limit}, {INSTANT}, '{{{ids}}}', {attempt}"
        before = await self._updates()
        text = await self.connection.fetchval(
            "EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT JSON)"
            f" EXECUTE exchange_jobs ({values}, {', '.join([since] * 4)}, {keep}, ARRAY['', '', '', ''],"
            " true, 'public.scheduled_jobs_claim', 1)"
        )
        after = await self._updates()
        self.updated, self.hot = (now - then for now, then in zip(after, before, strict=True))
        running = "SELECT job_id FROM scheduled_jobs WHERE status = 'running' AND worker_id = $1"
        self.held = [row[0] for row in await self.connection.fetch(running, WORKER)]
        plan: dict[str, Any] = json.loads(text)[0]["Plan"]
        return plan

    async def pages(self, found: int, *, since: str = "NULL") -> int:
        """Return the pages that a claim with a limit of 100 touches; roll it back."""
        transaction = self.connection.transaction()
        await transaction.start()
        plan = await self.exchange(100, since=since)
        await transaction.rollback()
        assert len(self.held) == found
        self.held.clear()
        return touched(plan)

    async def _updates(self) -> tuple[int, int]:
        row = await self.connection.fetchrow(
            "SELECT pg_stat_get_xact_tuples_updated(oid), pg_stat_get_xact_tuples_hot_updated(oid)"
            " FROM pg_class WHERE oid = 'scheduled_jobs'::regclass"
        )
        assert row
        return row[0], row[1]


@pytest.fixture
async def path(dsn: str, store: Store) -> AsyncIterator[HotPath]:
    await store.workers.register(worker(WORKER), LEASE)
    connection = await asyncpg.connect(dsn)
    await connection.execute(as_statements(DEDICATED_SETTINGS))
    await connection.execute(f"PREPARE exchange_jobs AS {load_queries('public')['exchange_jobs'].text}")
    path = HotPath(connection)
    for _ in range(6):  # from the sixth on PostgreSQL may keep one plan for all values
        await path.exchange(1)
    yield path
    await connection.close()


async def insert_backlog(store: Store, task_data: dict[str, Any]) -> None:
    """Insert whole pages of due jobs in claim order, as schedule_bulk() does."""
    jobs = [
        new_job(
            new_job_id(),
            task_data=json.dumps(task_data),
            max_retries=n % 4,
            misfire_grace_time=300 if n % 2 else None,
        )
        for n in range(BACKLOG)
    ]
    for start in range(0, BACKLOG, 1000):
        await store.inserts.insert(jobs[start : start + 1000])


async def test_poll_checks_20_liveness_locks_and_writes_nothing(
    path: HotPath, store: Store, dsn: str
) -> None:
    alone = await path.exchange(10)
    others = await asyncpg.connect(dsn)
    for n in range(20):
        await others.execute(f"SELECT pg_advisory_lock({n})")
        await store.workers.register(worker(f"other {n}"), LEASE, n)
    among_others = await path.exchange(10)
    assert among_others["WAL Bytes"] == 0
    assert touched(among_others) <= touched(alone) + 2
    async with path.connection.transaction():
        await path.exchange(10)
        assert await path.connection.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
    full = await path.exchange(0)  # a full claim does not check the locks
    assert touched(full) < touched(among_others)
    await others.close()


def touched(plan: dict[str, Any]) -> int:
    pages: int = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return pages


@pytest.mark.parametrize(("batch", "task_data"), [(10, USUAL), (500, USUAL), (500, LONG)])
async def test_claim_updates_stay_on_their_page_when_there_is_a_backlog(
    path: HotPath, store: Store, batch: int, task_data: dict[str, Any]
) -> None:
    """The new version of each claimed row fits on its page; a completed row leaves the claim index."""
    await insert_backlog(store, task_data)
    hot = 0
    for start in range(0, BACKLOG, batch):
        completed = len(path.held)
        async with path.connection.transaction():
            await path.exchange(batch)
        assert len(path.held) == batch
        assert path.updated == completed + batch, f"after {start} jobs"
        hot += path.hot
    # A page that the server's checkpointer or background writer holds at that moment is not pruned.
    assert BACKLOG * 0.99 <= hot <= BACKLOG


async def written_for_a_job(path: HotPath, store: Store, *, keep: bool) -> tuple[float, float]:
    """Return the bytes and records of WAL for the claim and the completion of one job of a backlog."""
    await insert_backlog(store, USUAL)
    size = records = 0
    for limit in [100] * (BACKLOG // 100) + [0]:
        plan = await path.exchange(limit, keep=keep)
        # Full page images are the cost of a checkpoint, which may begin at any time.
        size += plan["WAL Bytes"] - plan["WAL FPI"] * PAGE
        records += plan["WAL Records"]
    left = await path.connection.fetchval("SELECT count(*) FROM scheduled_jobs WHERE status = 'completed'")
    assert left == (BACKLOG if keep else 0)
    return size / BACKLOG, records / BACKLOG


async def test_wal_per_job_is_bounded_when_rows_are_kept(path: HotPath, store: Store) -> None:
    size, records = await written_for_a_job(path, store, keep=True)
    assert size < 900  # 805 when this was written
    assert records < 5.5  # a lock and an update for the claim, the same and the key for the end, and pruning


async def test_wal_per_job_is_bounded_when_rows_are_deleted(path: HotPath, store: Store) -> None:
    size, records = await written_for_a_job(path, store, keep=False)
    assert size < 500  # 450
    assert records < 4.5  # no key


async def test_wal_of_a_step_is_bounded(dsn: str, store: Store) -> None:
    """The first step updates the row of its job too; the others lock it and are one INSERT."""
    await running(store, new_job())
    connection = await asyncpg.connect(dsn)
    await connection.execute(f"PREPARE store_step AS {load_queries('public')['store_step'].text}")
    sizes = []
    for n in range(50):
        values = f"'job', 'w1', 1, 'page-{n}', 'step', '{{\"price\": 9}}', 1, NULL, NULL, {INSTANT}, false"
        text = await connection.fetchval(f"EXPLAIN (ANALYZE, WAL, FORMAT JSON) EXECUTE store_step ({values})")
        plan = json.loads(text)[0]["Plan"]
        sizes.append(plan["WAL Bytes"] - plan.get("WAL FPI", 0) * PAGE)
    await connection.close()
    assert sizes[0] < 440  # 391 when this was written
    assert sum(sizes[1:]) / len(sizes[1:]) < 340  # 301


SHAPES = {
    "future": f"1, {INSTANT} + n * interval '1 second', 'pending', NULL, NULL, 0",
    "finished": f"1, {INSTANT} - interval '9 days', 'completed', {INSTANT}, 'other', 1",
    "running": f"5, {INSTANT} - interval '2 hours', 'running', NULL, 'other', 1",
    "unknown": f"5, {INSTANT} - interval '2 hours', 'pending', NULL, NULL, 0",
    "due": f"5, {INSTANT} - interval '1 minute', 'pending', NULL, NULL, 0",
}
"""Priority, execution_time, status, finished_at, worker_id and attempt of row n."""


async def fill(path: HotPath, shape: str, first: int, last: int) -> None:
    name = "app.elsewhere" if shape == "unknown" else NAME
    await path.connection.execute(
        "INSERT INTO scheduled_jobs (job_id, job_name,"
        " priority, execution_time, status, finished_at, worker_id, attempt)"
        f" SELECT '{shape}-' || n, '{name}', {SHAPES[shape]} FROM generate_series({first}, {last}) AS n"
    )


FEW, MANY = 1_000, 20_000
MORE: Final = 16
"""Additional pages of a claim among twenty times as many rows: the index has one level more."""

PASSED = f"'{(NOW - 3600 * SECOND).isoformat()}'"
"""A claim position behind the running rows and those of other names."""


FOUND_MOST = pytest.mark.parametrize(("found", "most"), [(0, 40), (100, 600)], ids=["poll", "claim"])


@FOUND_MOST
async def test_claim_touches_the_same_pages_when_the_table_grows(
    path: HotPath, found: int, most: int
) -> None:
    shapes = ["future", "finished"] + ["due"] * bool(found)
    for shape in shapes:
        await fill(path, shape, 1, FEW)
    few = await path.pages(found)
    for shape in shapes:
        await fill(path, shape, FEW + 1, MANY)
    many = await path.pages(found)
    assert many <= few + MORE
    assert many <= most


@FOUND_MOST
async def test_claim_touches_the_same_pages_when_rows_before_the_cursor_grow(
    path: HotPath, found: int, most: int
) -> None:
    shapes = ["running", "unknown"]
    await fill(path, "due", 1, found)
    for shape in shapes:
        await fill(path, shape, 1, FEW)
    few = await path.pages(found, since=PASSED)
    for shape in shapes:
        await fill(path, shape, FEW + 1, MANY)
    many = await path.pages(found, since=PASSED)
    assert many <= few + MORE
    assert many <= most
    assert await path.pages(found) > MANY / 4, "a claim from the start reads them"
