"""The state of a job is the same for a row and for the statements that search and count."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Sleep, Wait, current_job
from pg_scheduler.facts.job_state import state_of
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.jobs import count_states
from pg_scheduler.testing import TestScheduler
from tests.support.world import HOUR, World

SUSPENDED = {
    kind: {"suspended": {"attempt": 2, "kind": kind, "steps": ["x"]}} for kind in ("sleep", "signal", "child")
}
ROWS: dict[str, dict[str, Any]] = {
    "due": {"due": -HOUR},
    "scheduled": {"due": HOUR},
    "retrying": {"due": HOUR, "retry_count": 2},
    "sleeping": {"due": HOUR, "attempt": 2, "options": SUSPENDED["sleep"], "retry_count": 1},
    "awaiting": {"due": HOUR, "attempt": 2, "options": SUSPENDED["signal"]},
    "blocked": {"blocked_on": "limit:api:"},
    "running": {"status": "running"},
    "completed": {"status": "completed"},
    "failed": {"status": "failed"},
    "quarantined": {"status": "failed", "error_message": "quarantined: 3 workers died"},
    "expired": {"status": "expired", "error_message": "late"},
    "cancelled": {"status": "cancelled", "error_message": "by a caller"},
}


@pytest.mark.parametrize("state", ROWS)
async def test_state_of_a_row_is_that_of_searches_and_counts(
    pool: asyncpg.Pool, world: World, state: str
) -> None:
    await world.job(state, "work", **ROWS[state])
    await check(pool, state, state)


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        ({"due": -HOUR}, "due"),
        ({"blocked_on": "after"}, "blocked"),
        ({"status": "cancelled", "error_message": "by a caller"}, "cancelled"),
        ({"attempt": 3}, "scheduled"),
        ({"options": SUSPENDED["child"]}, "scheduled"),
        ({"options": {"suspended": {"attempt": 2, "steps": ["x"]}}}, "scheduled"),
        ({"options": {"suspended": {"attempt": 2, "kind": 7}}}, "scheduled"),
    ],
    ids=["due", "blocked", "ended", "claimed since", "children", "older node", "hostile"],
)
async def test_mark_of_a_suspension_counts_only_while_it_delays_the_job(
    pool: asyncpg.Pool, world: World, columns: dict[str, Any], state: str
) -> None:
    await world.job("job", "work", **{**ROWS["sleeping"], "retry_count": 0, **columns})
    await check(pool, "job", state)


async def test_state_of_a_durable_job_is_that_of_its_step(pool: asyncpg.Pool) -> None:
    """What waits for a signal is found by that, also if it has a timeout or runs beside a sleep."""

    async def sleep() -> None:
        await current_job().steps.sleep("delivery", timedelta(days=14))

    async def wait() -> None:
        await current_job().steps.wait("approval", timeout=timedelta(days=1))

    async def either() -> None:
        await current_job().steps.first("end", Sleep("deadline", timedelta(days=3)), Wait("approval"))

    async with TestScheduler(pool) as t:
        for function in (sleep, wait, either):
            await t.scheduler.enqueue(function, job_id=function.__name__)
        await t.drain()
        ids = {
            state: {job.job_id for job in (await Inspector(pool).search_jobs(f"status:{state}")).items}
            for state in ("sleeping", "awaiting")
        }
        assert ids == {"sleeping": {"sleep"}, "awaiting": {"either", "wait"}}
        await t.scheduler.signal("wait", "approval")
        await check(pool, "wait", "due")
        await t.drain()
        await check(pool, "wait", "completed")


async def check(pool: asyncpg.Pool, job_id: str, state: str) -> None:
    """Compare the state of a row with what searches find and count."""
    inspector = Inspector(pool)
    job = await inspector.get_job(job_id)
    assert job is not None
    now = await pool.fetchval("SELECT now()")
    assert state_of(job, now) == state
    searched = "failed" if state == "quarantined" else state
    found = await inspector.search_jobs(f"status:{searched}")
    assert job_id in [each.job_id for each in found.items]
    counts = {name: count.number for name, count in (await count_states(inspector)).items() if name}
    assert counts.get(searched, 1) == found.found
