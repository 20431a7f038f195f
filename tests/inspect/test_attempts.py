"""The attempts of workers, and the jobs of limits, that the pages about them show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.limits import limit_jobs, limit_overview
from pg_scheduler.inspect.workers import ended_attempts, running_attempts
from pg_scheduler.queue.prepare import new_job_id
from pg_scheduler.triggers import Every
from tests.support.world import MINUTE, SECOND, World


@pytest.fixture
async def inspector(pool: asyncpg.Pool) -> Inspector:
    return Inspector(pool)


@pytest.fixture
async def planner(pool: asyncpg.Pool) -> Scheduler:
    async def work() -> None: ...

    scheduler = Scheduler(pool)
    scheduler.register(work, name="work")
    return scheduler


async def add_job(world: World, job_id: str, status: str, **columns: Any) -> None:
    """Insert a job of the worker w1."""
    row = {"status": status, "due": -MINUTE, "worker_id": "w1", "attempt": 1, **columns}
    await world.job(job_id, "work", **row)


def entry(
    attempt: int, outcome: str, start: datetime, end: datetime, worker: str = "w1"
) -> Mapping[str, Any]:
    times = {"started_at": start.isoformat(), "ended_at": end.isoformat()}
    return {"attempt": attempt, "outcome": outcome, "worker_id": worker, "message": "no", **times}


async def test_ended_attempts_are_those_of_the_worker_within_the_span(
    inspector: Inspector, world: World
) -> None:
    now = datetime.now(UTC)
    times = {"started_at": now - 2 * MINUTE, "finished_at": now - MINUTE}
    old = {"started_at": now - 99 * MINUTE, "finished_at": now - 98 * MINUTE}
    completed, longer, retried = new_job_id(), new_job_id(), new_job_id()
    await add_job(world, completed, "completed", **times)
    await add_job(world, longer, "completed", **{**times, "started_at": now - 99 * MINUTE})
    await add_job(world, new_job_id(), "completed", **old)
    await add_job(world, new_job_id(), "completed", **times, worker_id="w2")
    history = [
        entry(1, "error", now - 9 * MINUTE, now - 8 * MINUTE),
        entry(2, "error", now - 7 * MINUTE, now - 6 * MINUTE, "w2"),
        entry(3, "timeout", now - 5 * MINUTE, now - 4 * MINUTE),
        "no entry",
    ]
    await add_job(
        world, retried, "failed", error_message="no", errors=json.dumps(history), attempt=3, **times
    )
    await add_job(world, "odd", "failed", error_message="no", errors='"odd"', **times)
    attempts = (await ended_attempts(inspector, "w1", now - 60 * MINUTE, now)).items
    assert attempts[0].job_id == longer, "the oldest first"
    assert {(attempt.job_id, attempt.outcome) for attempt in attempts} == {
        (longer, "completed"),
        (retried, "error"),
        (retried, "timeout"),
        ("odd", "failed"),
        (completed, "completed"),
    }
    assert len(attempts) == 5


async def test_completed_jobs_of_schedules_are_found_by_their_ids(
    planner: Scheduler, pool: asyncpg.Pool, world: World
) -> None:
    now = datetime.now(UTC)
    await planner.schedules.add("work", Every(hours=1), schedule_id="hourly")
    job_id = f"schedule:hourly:{(now - MINUTE).isoformat()}"
    await add_job(world, job_id, "completed", started_at=now - MINUTE, finished_at=now)
    inspector = Inspector(planner)
    assert (await ended_attempts(inspector, "w1", now - 60 * MINUTE, now)).items == []
    await pool.execute("UPDATE scheduler_schedules SET last_fire_at = now()")
    attempts = (await ended_attempts(inspector, "w1", now - 60 * MINUTE, now)).items
    assert [attempt.job_id for attempt in attempts] == [job_id]


async def test_running_attempts_are_sorted_by_their_start(inspector: Inspector, world: World) -> None:
    now = datetime.now(UTC)
    for job_id, minutes, worker in (("a", 1, "w1"), ("b", 5, "w1"), ("c", 2, "w2")):
        await add_job(world, job_id, "running", started_at=now - minutes * MINUTE, worker_id=worker)
    await add_job(world, "unknown", "running", started_at=None)
    found = await running_attempts(inspector)
    assert {worker: [each.job_id for each in attempts] for worker, attempts in found.items()} == {
        "w1": ["b", "a"],
        "w2": ["c"],
    }


def declared(name: str, **numbers: Any) -> dict[str, Any]:
    none = {"by_key": False, "max_running": None, "max_starts": None, "per_s": None}
    return {"name": name, "task": "work", **none, **numbers}


async def test_full_limit_states_its_next_start_and_its_jobs(
    inspector: Inspector, pool: asyncpg.Pool, world: World
) -> None:
    now = datetime.now(UTC)
    limits = [
        declared("rate", max_starts=2, per_s=60.0),
        declared("free", max_starts=9, per_s=60.0),
        declared("odd", max_starts=1e308, per_s=1e308),
        declared("account", by_key=True, max_running=1),
    ]
    await world.worker(settings={"limits": limits})
    await add_job(world, "runs", "running", started_at=now - 10 * SECOND)
    for key, job_id, age_s, keep_s in (
        ("rate:", "gone", 20, 60),
        ("rate:", "runs", 10, 60),
        ("rate:", "before", 50, 60),
        ("free:", "gone", 20, 60),
        ("account:ada", "runs", 10, 0),
    ):
        await world.start(f"limit:{key}", job_id, at=now - age_s * SECOND, keep_s=keep_s)
    for number, key in enumerate(("rate:", "account:ada", "account:ada", "account:bob")):
        await world.job(f"wait-{number}", "work", due=-number * SECOND, blocked_on=f"limit:{key}")
    overview = await limit_overview(inspector)
    assert overview.full_keys == {"account": 2}
    assert overview.next_starts == {"rate": now + timedelta(seconds=40)}, "the second newest start ends"
    assert {each.name: each.waiting for each in overview.limits.items}["account"] == 3
    keys = (await inspector.limit_keys("account")).items
    jobs = await limit_jobs(inspector, keys)
    assert {key: [each.job_id for each in found] for key, found in jobs.holders.items()} == {"ada": ["runs"]}
    assert {key: [each.job_id for each in found] for key, found in jobs.queue.items()} == {
        "ada": ["wait-2", "wait-1"],
        "bob": ["wait-3"],
    }
    assert (await limit_jobs(inspector, ())).queue == {}
