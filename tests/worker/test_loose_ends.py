"""The deadline scanner applies consequences that were left behind, and corrects jobs that wait for others."""

from __future__ import annotations

import asyncpg
import pytest

from tests.support import inside
from tests.support.dependencies import add, child, edges, state
from tests.support.parts import Parts
from tests.support.store import NOW, new_job

FREE = ("pending", None)
BLOCKED = ("pending", "after")
CANCELLED = ("cancelled", None)


@pytest.fixture
async def family(parts: Parts) -> None:
    """Two jobs that wait for one."""
    await parts.store.inserts.insert([new_job("a", execution_time=NOW)])
    await add(parts.store, child("b", "a"), child("c", "a"))


async def end(pool: asyncpg.Pool, *job_ids: str) -> None:
    """End jobs as a worker does that dies between the end and its consequences."""
    await pool.execute(
        "UPDATE scheduled_jobs SET status = 'completed', finished_at = now() WHERE job_id = ANY ($1)", job_ids
    )


async def test_scan_applies_consequences_that_a_crash_left_behind(
    parts: Parts, pool: asyncpg.Pool, family: None
) -> None:
    scanner = parts.scanner()
    await scanner.run_once()
    assert await state(pool, "b", "c") == [BLOCKED, BLOCKED]
    await end(pool, "a")
    await scanner.run_once()
    assert await state(pool, "b", "c") == [FREE, FREE]
    assert await edges(pool) == set()


async def test_scanner_scans_again_at_once_when_consequences_may_be_left(
    parts: Parts, pool: asyncpg.Pool, family: None
) -> None:
    await parts.store.inserts.insert([new_job("x")])
    await add(parts.store, child("y", "x"))
    await end(pool, "a", "x")
    scanner = parts.scanner()
    scanner.max_ended = 1
    assert await scanner.run_once() == 0
    assert await scanner.run_once() == 0
    assert await scanner.run_once() > 0
    assert await state(pool, "b", "c", "y") == [FREE] * 3
    assert await edges(pool) == set()


async def test_scanner_scans_again_at_once_until_all_of_a_chain_has_ended(
    parts: Parts, pool: asyncpg.Pool, family: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, consequence_generations=1)
    await add(parts.store, child("d", "b"))
    await pool.execute("UPDATE scheduled_jobs SET status = 'failed', finished_at = now() WHERE job_id = 'a'")
    scanner = parts.scanner()
    passes = 1
    while await scanner.run_once() == 0:
        passes += 1
    assert passes > 1
    assert await state(pool, "b", "c", "d") == [CANCELLED] * 3
    assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE on_end IS NOT NULL") == 0


async def test_scan_corrects_jobs_that_wait_for_a_deleted_job(
    parts: Parts, pool: asyncpg.Pool, family: None
) -> None:
    await pool.execute("DELETE FROM scheduled_jobs WHERE job_id = 'a'")
    await parts.scanner().run_once()
    assert await state(pool, "b") == [("cancelled", None)]
    reason = await pool.fetchval("SELECT errors -> -1 ->> 'message' FROM scheduled_jobs WHERE job_id = 'b'")
    assert reason == "job 'a', after which this job was to run, does not exist"
