"""The requests of the Inspector to workers."""

from __future__ import annotations

import asyncpg
import pytest

from pg_scheduler.inspect import Inspector
from tests.support.world import World


async def wanted(pool: asyncpg.Pool) -> dict[str, str | None]:
    return {row[0]: row[1] for row in await pool.fetch("SELECT worker_id, wanted FROM scheduler_workers")}


async def test_workers_are_requested_to_drain_and_to_resume(pool: asyncpg.Pool, world: World) -> None:
    inspector = Inspector(pool)
    for name in ("w1", "w2"):
        await world.worker(name)
    assert await inspector.drain_workers(["w1", "w0"]) == ["w1"]
    assert await wanted(pool) == {"w1": "drain", "w2": None}
    assert await inspector.resume_workers(["w1", "w2"]) == ["w1", "w2"]
    assert await wanted(pool) == {"w1": None, "w2": None}
    assert await inspector.drain_workers([]) == []


async def test_requests_that_change_something_are_recorded_once(pool: asyncpg.Pool, world: World) -> None:
    inspector = Inspector(pool, actor="ada@example.org")
    await world.worker()
    for _ in range(2):
        await inspector.drain_workers(["w1", "w0"])
    for _ in range(2):
        await inspector.resume_workers(["w1"])
    rows = await pool.fetch("SELECT action, subject, actor, via FROM scheduler_audit ORDER BY id")
    assert [tuple(row) for row in rows] == [
        ("drain_worker", "w1", "ada@example.org", "inspector"),
        ("resume_worker", "w1", "ada@example.org", "inspector"),
    ]


async def test_wrong_ids_of_workers_are_rejected(pool: asyncpg.Pool) -> None:
    inspector = Inspector(pool)
    with pytest.raises(TypeError, match=r"must be a list, not the str 'w1'; pass \['w1'\]"):
        await inspector.drain_workers("w1")
    with pytest.raises(ValueError, match="must have at most 500 ids, not 501"):
        await inspector.resume_workers(map(str, range(501)))
    with pytest.raises(TypeError, match="worker_id"):
        await inspector.drain_workers([7])  # type: ignore[list-item]
