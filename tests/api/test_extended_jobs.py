"""Jobs with extras take their own statements through every path that inserts jobs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, JobConflictError, JobSpec
from pg_scheduler.jobs.rows import EPOCH, AnyJob
from pg_scheduler.queue.enqueuer import Enqueuer
from tests.api.conftest import Make
from tests.support.inside import ExtendedJob, Extras, PlainJob, enqueuer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

RAISE, IGNORE, REPLACE = ConflictResolution
DUE = datetime(2030, 1, 1, tzinfo=UTC)


def job(job_id: str, options: str | None = "{}") -> AnyJob:
    plain = PlainJob(job_id, "{}", DUE, "app.work", 5, 0, 60, None)
    return plain if options is None else ExtendedJob(plain, Extras(options))


async def options(pool: asyncpg.Pool) -> dict[str, Any]:
    rows = await pool.fetch("SELECT job_id, options FROM scheduled_jobs")
    return {row["job_id"]: row["options"] for row in rows}


@pytest.fixture
async def enqueuer(make: Make) -> Enqueuer:
    scheduler = make()
    await scheduler.initialize_db()
    return enqueuer_of(scheduler)


async def insert_all(
    enqueuer: Enqueuer, jobs: Sequence[AnyJob], *args: Any, monkeypatch: pytest.MonkeyPatch
) -> list[str | None]:
    """Insert these rows in place of those that a preparer would return."""
    monkeypatch.setattr(enqueuer._bulk, "_preparer", SimpleNamespace(prepare=lambda _specs, **_: list(jobs)))

    async def work() -> None: ...

    return await enqueuer.insert_all([JobSpec(work, DUE)], *args)


async def test_concurrent_calls_insert_their_extras(enqueuer: Enqueuer, pool: asyncpg.Pool) -> None:
    await asyncio.gather(*(enqueuer.insert(job(f"{n}"), RAISE, None) for n in range(9)))
    assert await options(pool) == {f"{n}": "{}" for n in range(9)}
    with pytest.raises(JobConflictError, match="'3' already exists"):
        await enqueuer.insert(job("3"), RAISE, None)


async def test_extras_are_inserted_if_and_only_if_the_callers_transaction_commits(
    enqueuer: Enqueuer, pool: asyncpg.Pool
) -> None:
    async with pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await enqueuer.insert(job("a"), RAISE, connection)
        await enqueuer.insert(job("a"), REPLACE, connection)
        await transaction.rollback()
        assert await options(pool) == {}
        async with connection.transaction():
            await enqueuer.insert(job("a"), RAISE, connection)
    assert await options(pool) == {"a": "{}"}


async def test_enqueued_extras_are_due_a_delay_from_now_by_the_clock_of_the_database(
    enqueuer: Enqueuer, pool: asyncpg.Pool
) -> None:
    for resolution in (RAISE, REPLACE):
        before = await pool.fetchval("SELECT clock_timestamp()")
        delayed = job("a").due_at(EPOCH + timedelta(seconds=60))
        await enqueuer.insert(delayed, resolution, None, is_delayed=True)
        after = await pool.fetchval("SELECT clock_timestamp()")
        ((due, expires),) = await pool.fetch("SELECT execution_time, expires_at FROM scheduled_jobs")
        assert before <= due - timedelta(seconds=60) <= after
        assert expires - due == timedelta(seconds=60)
    assert await options(pool) == {"a": "{}"}


@pytest.mark.parametrize("resolution", ConflictResolution)
async def test_bulk_inserts_plain_and_extended_jobs(
    enqueuer: Enqueuer, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, resolution: ConflictResolution
) -> None:
    jobs = [job("b"), job("a", None), job("d", None), job("c", '{"c": 1}')]
    ids = await insert_all(enqueuer, jobs, resolution, 2, None, monkeypatch=monkeypatch)
    assert ids == ["b", "a", "d", "c"]
    assert await options(pool) == {"a": None, "b": "{}", "c": '{"c": 1}', "d": None}


async def test_bulk_chooses_between_a_plain_and_an_extended_job_of_one_id(
    enqueuer: Enqueuer, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job("a"), job("a", None)]
    assert await insert_all(enqueuer, jobs, IGNORE, 9, None, monkeypatch=monkeypatch) == ["a", None]
    assert await options(pool) == {"a": "{}"}
    await insert_all(enqueuer, jobs, REPLACE, 9, None, monkeypatch=monkeypatch)
    assert await options(pool) == {"a": None}
    with pytest.raises(JobConflictError, match="already exists"):
        await insert_all(enqueuer, [job("b"), job("a")], RAISE, 9, None, monkeypatch=monkeypatch)
    assert await options(pool) == {"a": None}, "nothing is inserted"
