"""Schedules are stored, locked and advanced."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.schedules.advance import fire_time_job_id
from pg_scheduler.schedules.model import PeriodicRow
from pg_scheduler.schedules.sync import SyncPlan
from pg_scheduler.store.connections.pool import Connections
from pg_scheduler.store.store import Store
from tests.support.store import NOW, SECOND, Pool, new_job

ROW = PeriodicRow(
    dedup_key="key",
    derived_key=False,
    job_name="sweep",
    function="app.sweep",
    every=timedelta(days=40, hours=1, microseconds=1),
    cron=None,
    timezone=None,
    use_advisory_lock=True,
    priority=3,
    max_retries=2,
    enabled=True,
    enabled_in_code=True,
    anchor=NOW,
    last_fire_at=None,
    next_fire_at=NOW + SECOND,
)
CRON = replace(
    ROW, dedup_key="cron", every=None, cron="0 3 * * *", timezone="Asia/Kathmandu", last_fire_at=NOW - SECOND
)


async def write(store: Store, *rows: PeriodicRow, delete: tuple[str, ...] = ()) -> None:
    async with store.schedules.periodic_locked() as connection:
        await store.schedules.write_periodic(SyncPlan(rows, delete), on=connection)


async def due(store: Store, *keys: str) -> list[str]:
    async with store.connections.transaction() as connection:
        return [row.dedup_key for row in await store.schedules.due_periodic(keys, on=connection)]


async def move(store: Store, fired_at: datetime | None, following: datetime) -> None:
    async with store.connections.transaction() as connection:
        await store.schedules.move_periodic("key", fired_at, following, on=connection)


async def test_schedule_survives_a_round_trip(store: Store) -> None:
    assert await store.schedules.periodic_rows() == {}
    await write(store, ROW, CRON)
    assert await store.schedules.periodic_rows() == {"key": ROW, "cron": CRON}


async def test_write_periodic_overwrites_a_schedule(store: Store) -> None:
    await write(store, ROW)
    changed = replace(CRON, dedup_key="key", derived_key=True, job_name="x", function="y", enabled=False)
    changed = replace(changed, enabled_in_code=False, priority=8, max_retries=0, use_advisory_lock=False)
    changed = replace(changed, anchor=NOW - SECOND, next_fire_at=None)
    await write(store, changed)
    assert await store.schedules.periodic_rows() == {"key": changed}


async def test_write_periodic_moves_a_schedule_to_another_key(store: Store) -> None:
    await write(store, ROW)
    await write(store, replace(ROW, dedup_key="new"), delete=("key", "missing"))
    assert list(await store.schedules.periodic_rows()) == ["new"]


async def test_periodic_locked_blocks_writers_and_not_readers(store: Store) -> None:
    entered = asyncio.Event()

    async def other() -> list[str]:
        async with store.schedules.periodic_locked() as connection:
            entered.set()
            return list(await store.schedules.periodic_rows(on=connection))

    async with store.schedules.periodic_locked() as connection:
        await store.schedules.write_periodic(SyncPlan((ROW,), ()), on=connection)
        waiting = asyncio.create_task(other())
        assert await store.schedules.periodic_rows() == {}
        assert not entered.is_set()
    assert await waiting == ["key"], "it reads the first writer's rows"


async def test_due_periodic_returns_enabled_schedules_that_are_due(store: Store, clock: FakeClock) -> None:
    rows = [
        replace(ROW, dedup_key="later", next_fire_at=NOW + 2 * SECOND),
        replace(ROW, dedup_key="now", next_fire_at=NOW),
        replace(ROW, dedup_key="before", next_fire_at=NOW - SECOND),
        replace(ROW, dedup_key="off", next_fire_at=NOW, enabled=False),
        replace(ROW, dedup_key="new", next_fire_at=None),
        replace(ROW, dedup_key="of others", next_fire_at=NOW),
    ]
    await write(store, *rows)
    known = ["later", "now", "before", "off", "new"]
    assert await due(store, *known) == ["before", "now", "new"]
    assert await due(store) == []
    clock.advance(2 * SECOND)
    assert await due(store, *known) == ["before", "now", "later", "new"]


async def test_due_periodic_skips_schedules_that_another_planner_has_locked(store: Store) -> None:
    await write(store, replace(ROW, next_fire_at=NOW))
    async with store.connections.transaction() as connection:
        assert await store.schedules.due_periodic(["key"], on=connection)
        assert await due(store, "key") == []


async def test_move_periodic_sets_the_next_fire_time(store: Store) -> None:
    await write(store, ROW)
    await move(store, NOW + SECOND, NOW + 2 * SECOND)
    assert await store.schedules.periodic_rows() == {
        "key": replace(ROW, last_fire_at=NOW + SECOND, next_fire_at=NOW + 2 * SECOND)
    }
    await move(store, None, NOW + 9 * SECOND)
    assert await store.schedules.periodic_rows() == {
        "key": replace(ROW, last_fire_at=NOW + SECOND, next_fire_at=NOW + 9 * SECOND)
    }


async def test_enable_periodic_enables_and_disables_a_schedule(store: Store) -> None:
    await write(store, ROW)
    await store.schedules.enable_periodic("missing", True)
    await store.schedules.enable_periodic("key", True)
    assert await store.schedules.periodic_rows() == {"key": ROW}, "it was enabled: the next fire time remains"
    await store.schedules.enable_periodic("key", False)
    assert await store.schedules.periodic_rows() == {"key": replace(ROW, enabled=False)}
    await store.schedules.enable_periodic("key", True)
    assert await store.schedules.periodic_rows() == {"key": replace(ROW, next_fire_at=None)}, (
        "from now on, not at once"
    )


@pytest.mark.parametrize("now", [NOW, None])
async def test_now_follows_the_test_clock_or_the_database(
    pool: Pool, clock: FakeClock, now: datetime | None
) -> None:
    store = Store(Connections(pool), clock=clock if now else None)
    before = await pool.fetchval("SELECT clock_timestamp()")
    async with store.connections.transaction() as connection:
        found = await store.schedules.now(on=connection)
    assert found == now if now else found >= before


async def test_chained_runs_returns_the_last_pending_job_of_a_0_2_chain(store: Store) -> None:
    await store.jobs.insert(
        [
            new_job("periodic:key:1", execution_time=NOW + SECOND),
            new_job("periodic:key:2", execution_time=NOW + 2 * SECOND),
            new_job("periodic:keys:3", execution_time=NOW + 3 * SECOND),
            new_job("periodic:gone:4", execution_time=NOW + 4 * SECOND),
            new_job("periodic:key:longer:6", execution_time=NOW + 6 * SECOND),
            new_job("periodic:k_y:5", execution_time=NOW + 5 * SECOND),
            new_job(fire_time_job_id("own", NOW)),
        ]
    )
    await store.jobs.cancel("periodic:gone:4")
    async with store.schedules.periodic_locked() as connection:
        found = await store.schedules.chained_runs(["key", "gone", "none", "own"], on=connection)
    assert found == {"key": NOW + 2 * SECOND}  # 0.2 numbered its runs; later ids contain instants
