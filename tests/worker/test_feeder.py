"""The feeder: which tenants its passes read, and when it makes the next one."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import pytest

from pg_scheduler import Share
from pg_scheduler.admission.feeder import Feeder
from tests.support.inside import NEVER, ExtendedJob, Extras, TaskOptions
from tests.support.parts import Parts
from tests.support.worker import LEASE, new_job, new_worker

NAME = "test.job"


async def shared(_tenant: str) -> None: ...


async def plain() -> None: ...


@pytest.fixture
async def feeder(parts: Parts) -> Feeder:
    """A feeder of two tenants a pass, of a live worker with ten slots."""
    parts.tasks.register(shared, name=NAME, options=TaskOptions(share=Share("s", key=lambda tenant: tenant)))
    await parts.store.workers.register(new_worker("me"), LEASE)
    feeder = parts.feeder()
    feeder.batch_size = 2
    feeder.gap_s = feeder.rest = 0.0
    return feeder


async def insert(parts: Parts, tenants: Sequence[str], share: str = "s") -> None:
    jobs = [
        ExtendedJob(new_job(f"{tenant}-{n}"), Extras(blocked_on=f"share:{share}:{tenant}"))
        for n, tenant in enumerate(tenants)
    ]
    await parts.store.inserts.insert_extended(jobs)


async def passes(feeder: Feeder) -> int:
    """Make passes until the feeder sleeps; return their number."""
    count = 1
    while await feeder.run_once() <= 0:
        count += 1
    return count


async def left(pool: asyncpg.Pool) -> int:
    number: int = await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE blocked_on IS NOT NULL")
    return number


async def test_passes_go_round_all_tenants(feeder: Feeder, parts: Parts, pool: asyncpg.Pool) -> None:
    await insert(parts, "abcdefg")
    await passes(feeder)
    assert await left(pool) == 0
    assert "jobs_released" in parts.calls


async def test_full_room_leaves_the_next_tenants_for_the_next_pass(
    feeder: Feeder, parts: Parts, pool: asyncpg.Pool
) -> None:
    await pool.execute("UPDATE scheduler_workers SET max_concurrent_jobs = 2")
    await insert(parts, "aaabbbccc")
    moved = (
        "SELECT string_agg(left(job_id, 1), '' ORDER BY job_id) FROM scheduled_jobs WHERE blocked_on IS NULL"
    )
    feeder._next_scan = NEVER
    assert await feeder.run_once() > 0, "no slot is free for more"
    assert await pool.fetchval(moved) == "ab"
    await pool.execute("DELETE FROM scheduled_jobs WHERE blocked_on IS NULL")
    feeder.wake()
    await feeder.run_once()
    assert "c" in await pool.fetchval(moved)


async def test_tenant_that_a_pass_has_just_left_behind_is_met_before_the_feeder_sleeps(
    feeder: Feeder, parts: Parts, pool: asyncpg.Pool
) -> None:
    await insert(parts, "bcdef", share="other")  # fills pages
    feeder._next_scan = NEVER
    assert await feeder.run_once() <= 0
    await insert(parts, "a")
    feeder.announce()
    await passes(feeder)
    assert await left(pool) == 5


async def test_passes_follow_at_once_while_another_feeder_works(
    feeder: Feeder, parts: Parts, pool: asyncpg.Pool
) -> None:
    await insert(parts, "a")
    async with pool.acquire() as other, other.transaction():
        await other.execute("SELECT pg_advisory_xact_lock(1885825130, hashtext('share:s:'))")
        assert await feeder.run_once() <= 0
    await passes(feeder)
    assert await left(pool) == 0


async def test_claim_of_a_job_with_a_share_starts_a_pass(feeder: Feeder, parts: Parts) -> None:
    executor = parts.executor()
    claimer = parts.claimer(executor)
    await parts.store.inserts.insert([new_job("plain", "other.job")])
    parts.tasks.register(plain, name="other.job")
    await claimer.run_once()
    assert parts.calls.count("shared_claimed") == 0
    await insert(parts, "a")
    await passes(feeder)
    claimer.rescan()
    await claimer.run_once()
    assert parts.calls.count("shared_claimed") == 1
    await executor.stop()


async def test_tenant_whose_first_jobs_are_locked_starts_the_others(
    feeder: Feeder, parts: Parts, pool: asyncpg.Pool
) -> None:
    feeder.locked_pause_s = 600.0
    await pool.execute("UPDATE scheduler_workers SET max_concurrent_jobs = 2")
    await insert(parts, "a" * 20)
    async with pool.acquire() as other, other.transaction():
        await other.execute(
            'SELECT FROM scheduled_jobs ORDER BY execution_time, job_id COLLATE "C" LIMIT 15 FOR UPDATE'
        )
        for _ in range(10):
            await passes(feeder)
            await pool.execute("DELETE FROM scheduled_jobs WHERE blocked_on IS NULL")
            feeder.wake()
        assert await left(pool) == 15
    await passes(feeder)
    assert await left(pool) == 15, "they have a pause"
    feeder._check_locks_at = 0.0
    await passes(feeder)
    assert await left(pool) == 13


async def test_tenant_whose_first_thousands_of_jobs_are_locked_starts_the_others_without_searching_on(
    feeder: Feeder, parts: Parts, pool: asyncpg.Pool
) -> None:
    await pool.execute("UPDATE scheduler_workers SET max_concurrent_jobs = 200")
    await insert(parts, "a" * 2020)
    async with pool.acquire() as other, other.transaction():
        await other.execute(
            'SELECT FROM scheduled_jobs ORDER BY execution_time, job_id COLLATE "C" LIMIT 2000 FOR UPDATE'
        )
        await passes(feeder)
        assert await left(pool) == 2000
        for _ in range(3):
            feeder._check_locks_at = 0.0
            assert await passes(feeder) == 1, "nothing has changed"
            assert await left(pool) == 2000
    feeder._check_locks_at = 0.0
    await passes(feeder)
    assert await left(pool) == 1820, "room is for as many as there are slots, less the jobs that were moved"
