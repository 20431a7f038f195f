"""The named statements: all can be prepared, all are used, and no codec of the pool's owner disturbs them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

import pg_scheduler.store
from pg_scheduler.clock import FakeClock
from pg_scheduler.jobs.model import JobStatus
from pg_scheduler.jobs.outcome import (
    CompleteOutcome,
    FailOutcome,
    Outcome,
    ReleaseOutcome,
    RetryOutcome,
    SkipOutcome,
)
from pg_scheduler.jobs.rows import GeneratedIdJob
from pg_scheduler.schedules.model import PeriodicJobConfig
from pg_scheduler.schedules.sync import plan_sync
from pg_scheduler.store import queries
from pg_scheduler.store.connections.pool import Connections
from pg_scheduler.store.queries import load_queries
from pg_scheduler.store.store import Store
from pg_scheduler.store.types import StatusChange
from tests.support.store import (
    LEASE,
    NAME,
    NOW,
    SECOND,
    Connection,
    Pool,
    due_in,
    methods_of,
    new_job,
    row,
    worker,
)

QUERIES = load_queries("public")
SOURCES = "\n".join(
    file.read_text() for file in sorted(Path(next(iter(pg_scheduler.store.__path__))).glob("*.py"))
)


@pytest.mark.parametrize("name", QUERIES)
async def test_every_statement_can_be_prepared(name: str, pool: asyncpg.Pool) -> None:
    async with pool.acquire() as connection:
        await connection.prepare(QUERIES[name].text)


@pytest.mark.parametrize("name", QUERIES)
def test_every_statement_is_used(name: str) -> None:
    assert f'"{name}"' in SOURCES


def test_every_statement_that_is_asked_for_is_there() -> None:
    asked = re.findall(r'\.(?:fetch|fetch_retrying|value|query|execute)\(\s*"(\w+)"', SOURCES)
    assert set(asked) <= set(QUERIES)
    assert len(set(asked)) >= len(QUERIES) - 4, "all but the four of an insert"


@pytest.mark.parametrize("name", QUERIES)
def test_every_statement_says_what_it_does_and_names_its_tables_with_their_schema(name: str) -> None:
    text = load_queries("other")[name].text
    assert text.startswith("-- ")
    code = re.sub(r"--.*", "", text)
    tables = "scheduled_jobs|vacuum_stats|scheduler_workers|scheduler_periodic_jobs"
    # In "scheduled_jobs.ctid" the table has a name already.
    assert not re.search(rf'(?<!"other"\.)\b({tables})\b(?!\.)', code)
    assert "{" not in code


def test_the_names_of_statements_differ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    for file in ("a.sql", "b.sql"):
        (tmp_path / "sql" / file).write_text("-- name: same\n-- route: pool\nSELECT 1;\n")
    monkeypatch.setattr(queries, "files", lambda _package: tmp_path)
    load_queries.cache_clear()
    try:
        with pytest.raises(LookupError, match="two statements are named 'same'"):
            load_queries("x")
    finally:
        load_queries.cache_clear()


def test_statements_are_read_only() -> None:
    assert load_queries("public") is load_queries("public")
    with pytest.raises(TypeError):
        QUERIES["new"] = ""  # type: ignore[index]


Use = Callable[[Store], Awaitable[object]]


async def use_vacuum(store: Store) -> object:
    await store.retention.vacuum_blocks(0, await store.retention.table_blocks(), {JobStatus.COMPLETED: NOW})
    await store.retention.vacuum_surplus(JobStatus.FAILED, 1, 10)
    await store.retention.record_vacuum({JobStatus.COMPLETED: 1}, "w1")
    assert (await store.retention.total_vacuum_stats()).total_completed == 1
    (day,) = await store.retention.vacuum_stats(1)
    return day.deleted_completed


async def use_periodic(store: Store) -> object:
    async def sweep() -> None: ...

    config = PeriodicJobConfig(sweep, timedelta(hours=1), dedup_key="key")
    async with store.schedules.periodic_locked() as connection:
        now = await store.schedules.now(on=connection)
        chained = await store.schedules.chained_runs(["key"], on=connection)
        await store.schedules.write_periodic(
            plan_sync({"key": config}, {}, now=now, chained=chained), on=connection
        )
        await store.schedules.due_periodic(["key"], on=connection)
        await store.schedules.move_periodic("key", None, now, on=connection)
    await store.schedules.enable_periodic("key", False)
    rows, seen_at = await store.schedules.periodic_rows_and_now()
    assert seen_at == now
    assert await store.schedules.periodic_rows() == rows
    return rows["key"].enabled


async def use_path(store: Store) -> object:
    await store.migrate()
    await store.jobs.insert([new_job(each) for each in "abcde"])
    await store.jobs.insert_small([new_job("f")])
    await store.jobs.insert([GeneratedIdJob(*new_job(each, job_name="nobody.knows")) for each in "hi"])
    await store.jobs.insert_small([GeneratedIdJob(*new_job("j", job_name="nobody.knows"))])
    await store.jobs.copy([GeneratedIdJob(*new_job("g", job_name="nobody.knows"))], 1000)
    await store.jobs.replace([new_job("f", priority=1)])
    await store.workers.register(worker(), LEASE)
    assert await due_in(store, [NAME]) == 0
    claims = {claim.job_id: claim for claim in (await store.claims.exchange("w1", [NAME], 10)).jobs}
    assert list(claims) == ["f", "a", "b", "c", "d", "e"]
    assert (await store.workers.renew("w1", dict.fromkeys(claims, 1), LEASE)).lost == []
    await store.jobs.replace([new_job("a", task_data='{"args":["new"],"kwargs":{}}')])
    outcomes: list[Outcome] = [
        CompleteOutcome(),
        CompleteOutcome(),
        FailOutcome("no"),
        RetryOutcome(SECOND, "no"),
        SkipOutcome("no"),
        ReleaseOutcome(),
    ]
    assert await store.results.settle(
        "w1", list(zip((claims[each] for each in "abcdef"), outcomes, strict=True))
    )
    await store.jobs.cancel("f")
    assert await store.jobs.retry("f")
    await store.jobs.cancel("f")
    await store.jobs.set_status("e", JobStatus.RUNNING, LEASE)
    assert (await store.workers.renew("w1", {}, LEASE, liveness_key=2**62)).alive
    assert list(await store.workers.suspect_workers("w2")) in ([], ["w1"])  # it depends on the server's age
    await store.workers.scan_deadlines(30, 120)
    await store.workers.restart_leases()
    await store.workers.rescue(120)
    assert await store.claims.release_unacknowledged("w1", {}) == []
    await store.jobs.expire(10)
    job = await store.jobs.get_job("a")
    assert job
    assert len(await store.workers.list_workers()) == 1
    await store.locks.notify(["due"])
    async with store.locks.advisory_lock(1) as taken:
        assert taken
    page = await store.jobs.list_jobs(
        after=None, statuses=None, job_name=None, worker_id=None, due_from=None, due_before=None, limit=9
    )
    counts = await store.jobs.count_jobs(None)
    return job.args, len(page), counts.total


@pytest.mark.parametrize(
    ("use", "expected"), [(use_vacuum, 1), (use_periodic, False), (use_path, (("new",), 9, 10))]
)
@pytest.mark.parametrize("codec", ["text", "binary"])
async def test_codecs_of_the_pools_owner_disturb_nothing(
    codec: str, use: Use, expected: object, dsn: str, clock: FakeClock
) -> None:
    async def init(connection: Connection) -> None:
        for kind in ("json", "jsonb"):
            if codec == "text":
                await connection.set_type_codec(
                    kind, schema="pg_catalog", encoder=json.dumps, decoder=json.loads
                )
            else:
                await connection.set_type_codec(
                    kind,
                    schema="pg_catalog",
                    format="binary",
                    encoder=lambda value: b"\x01" + json.dumps(value).encode(),
                    decoder=lambda value: json.loads(value[1:]),
                )
        await connection.set_type_codec(
            "numeric", schema="pg_catalog", format="text", encoder=str, decoder=float
        )
        await connection.execute("SET TIME ZONE 'Asia/Kathmandu'; SET DateStyle = 'German'")

    async with asyncpg.create_pool(dsn, min_size=1, max_size=2, init=init) as pool:
        assert await use(Store(Connections(pool), clock=clock)) == expected


class UnusedPool:
    def get_max_size(self) -> int:
        return 1


class OwnRecord(asyncpg.Record):
    def __getattr__(self, name: str) -> Any:
        return self[name]


async def test_a_record_class_of_the_pools_owner_disturbs_nothing(dsn: str, clock: FakeClock) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2, record_class=OwnRecord) as pool:
        store = Store(Connections(cast("Pool", pool)), clock=clock)
        assert await use_path(store) == (("new",), 9, 10)


async def test_a_pool_without_statement_cache_disturbs_nothing(dsn: str, clock: FakeClock) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1, statement_cache_size=0) as pool:
        assert await use_path(Store(Connections(pool), clock=clock)) == (("new",), 9, 10)


async def test_without_an_override_the_databases_clock_decides(pool: asyncpg.Pool) -> None:
    connections = Connections(pool)
    store = Store(connections)
    before = await pool.fetchval("SELECT clock_timestamp()")
    now = await store.schedules.now()
    assert before <= now <= await pool.fetchval("SELECT clock_timestamp()")
    await store.jobs.insert([new_job(execution_time=now)])
    await store.workers.register(worker(), LEASE)
    (claim,) = (await store.claims.exchange("w1", [NAME], 1)).jobs
    assert await store.results.settle("w1", [(claim, CompleteOutcome())]) == {"job"}
    assert now <= (await row(pool))["finished_at"]
    assert await store.jobs.cancel("job") == StatusChange(False, None)
    await connections.release_held()


def test_every_store_method_is_used_with_codecs_or_tested_elsewhere() -> None:
    here = inspect.getsource(inspect.getmodule(use_path) or pytest)
    elsewhere = {
        "schema",
        "locks.channel",
        "jobs.statuses_of",
        "jobs.all_or_nothing",
        "claims.held_claim",
        "results.write",
        "workers.deregister",
        "jobs.waiting_names",
    }
    methods = methods_of(Store(Connections(cast("Pool", UnusedPool()))))
    assert {name for name in methods if f"store.{name}(" not in here} <= elsewhere
