"""The shares and tenants that an Inspector reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler, Share
from pg_scheduler.inspect import Inspector, LimitList, ReadSettings
from pg_scheduler.worker.reporter import settings_of
from tests.support import inside
from tests.support.world import MINUTE, SECOND, World


async def add_waiting(world: World, key: str, count: int) -> None:
    """Add jobs that wait for a limit or share."""
    await world.jobs(count, "export", job_id=(key + ":wait:{}").format, blocked_on=key)


async def add_moved(
    world: World, key: str, status: str, due: timedelta = -SECOND, blocked_on: str | None = None
) -> None:
    """Add a job that has had its turn."""
    job_id = f"{key}:{status}"
    await world.job(job_id, "export", status=status, due=due, blocked_on=blocked_on, attempt=1)
    await world.start(key, job_id, attempt=0, keep_s=1e9)


async def fill(world: World) -> None:
    """Add two shares: one of two tasks with three tenants, and one that no live worker declares."""
    shares = [{"task": "export", "name": "exports"}, {"task": "import", "name": "exports"}]
    await world.worker(settings={"shares": [*shares, {"task": "mail", "name": "mail"}, 7]})
    await add_waiting(world, "share:exports:acme", 3)
    await add_waiting(world, "share:exports:beta", 5)
    await add_waiting(world, "share:former:x:y", 1)
    await add_waiting(world, "limit:exports:acme", 2)
    for key, status, due, blocked_on in (
        ("acme", "running", -SECOND, None),
        ("cid", "pending", SECOND, None),  # moved ahead of its time
        ("cid", "running", -SECOND, None),
        ("acme", "completed", -SECOND, None),
        ("beta", "pending", MINUTE, None),  # waits for a retry
    ):
        await add_moved(world, f"share:exports:{key}", status, due, blocked_on)
    await world.start("fed:exports:acme", "", attempt=0, at=datetime(2030, 1, 2, tzinfo=UTC))


@pytest.mark.parametrize("is_bounded", [False, True])
async def test_shares_have_their_tenants_and_jobs(
    pool: asyncpg.Pool, world: World, *, is_bounded: bool
) -> None:
    await fill(world)
    inspector = Inspector(pool, read_settings=ReadSettings() if is_bounded else None)
    found = await inspector.shares()
    assert [
        (each.name, each.tasks, each.tenants, each.running, each.admitted, each.waiting)
        for each in found.items
    ] == [
        ("exports", ("export", "import"), 3, 2, 1, 8),
        ("former", (), 1, 0, 0, 1),
        ("mail", ("mail",), 0, 0, 0, 0),
    ]
    assert found.summary == "3 shares, 4 tenants, 2 running, 1 admitted, 9 waiting"
    assert not found.is_capped
    assert not found.is_waiting_capped


async def test_tenants_are_those_with_most_waiting_jobs_first(pool: asyncpg.Pool, world: World) -> None:
    await fill(world)
    inspector = Inspector(pool)
    found = await inspector.tenants("exports")
    assert [(each.key, each.running, each.admitted, each.waiting) for each in found.items] == [
        ("beta", 0, 0, 5),
        ("acme", 1, 0, 3),
        ("cid", 1, 1, 0),
    ]
    turns = [each.last_turn_at and each.last_turn_at.year for each in found.items]
    assert turns == [None, 2030, None]
    assert found.summary == "3 tenants, 2 running, 1 admitted, 8 waiting"
    (former,) = (await inspector.tenants("former")).items
    assert former.key == "x:y"
    assert (await inspector.tenants("nothing")).items == []


async def test_job_that_waits_for_a_limit_after_its_turn_is_admitted(
    pool: asyncpg.Pool, world: World
) -> None:
    for blocked_on, status in (("limit:a:", "pending"), ("share:s:t", "pending")):
        await pool.execute("DELETE FROM scheduled_jobs")
        await pool.execute("DELETE FROM scheduler_starts")
        await add_moved(world, "share:s:t", status, blocked_on=blocked_on)
        (tenant,) = (await Inspector(pool).tenants("s")).items
        is_limited = blocked_on.startswith("limit")
        assert (tenant.running, tenant.admitted, tenant.waiting) == ((0, 1, 0) if is_limited else (0, 0, 1))


async def test_job_that_waits_for_children_after_its_turn_is_not_in_flight(
    pool: asyncpg.Pool, world: World
) -> None:
    await add_moved(world, "share:s:t", "running")
    await add_moved(world, "share:s:t", "pending", blocked_on="after")
    (tenant,) = (await Inspector(pool).tenants("s")).items
    assert (tenant.running, tenant.admitted, tenant.waiting) == (1, 0, 0)


async def test_tenant_of_the_empty_text_is_found(pool: asyncpg.Pool, world: World) -> None:
    await add_waiting(world, "share:s:", 2)
    (tenant,) = (await Inspector(pool).tenants("s")).items
    assert (tenant.key, tenant.waiting) == ("", 2)
    (share,) = (await Inspector(pool).shares()).items
    assert (share.tenants, share.waiting) == (1, 2)


async def test_counts_that_stopped_at_a_bound_are_announced(
    pool: asyncpg.Pool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(world)
    inside.replace(monkeypatch, waiting_rows=12)  # 3 of each tenant
    found = await Inspector(pool).tenants("exports")
    assert {each.key: each.waiting for each in found.items}["beta"] < 5
    assert found.is_waiting_capped
    inside.replace(monkeypatch, tenants=1)
    capped = await Inspector(pool).shares()
    assert capped.is_capped
    assert "+ tenants, " in capped.summary
    assert not capped.is_in_flight_capped
    inside.replace(monkeypatch, moved_rows=2)
    moved = await Inspector(pool).shares()
    assert moved.is_in_flight_capped
    assert "+ running, " in moved.summary
    assert "+ admitted, " in moved.summary


async def test_name_of_a_share_that_is_no_text_is_refused(pool: asyncpg.Pool) -> None:
    number: Any = 7
    with pytest.raises(TypeError, match="name must be a str, not int: 7"):
        await Inspector(pool).tenants(number)


async def test_worker_reports_the_shares_of_its_tasks(pool: asyncpg.Pool) -> None:
    scheduler = Scheduler(pool)

    async def export(tenant: str) -> None: ...

    key = Share(key=lambda tenant, **_: tenant)
    scheduler.register(export, name="shares.export", share=key, aliases=["shares.former"])
    parts = scheduler._parts
    shares = settings_of(parts.config, parts.tasks)["shares"]
    assert {"task": "shares.export", "name": "shares.export"} in shares
    assert [each["task"] for each in shares].count("shares.export") == 1


async def test_limits_do_not_contain_shares(pool: asyncpg.Pool, world: World) -> None:
    await fill(world)
    limits: LimitList = await Inspector(pool).limits()
    assert limits.items == []
