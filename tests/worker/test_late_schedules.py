"""A lock of the application delays the schedules that need it, and no other one."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import Scheduler, Unique, periodic
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus
from pg_scheduler.schedules import late_schedules
from pg_scheduler.schedules.planner import FAST_POLL_INTERVAL_S, Planner
from tests.support import inside
from tests.support.inside import Store, TaskOptions, fire_time_job_id, periodic_catalogue
from tests.support.parts import Parts
from tests.support.patience import PATIENCE
from tests.support.store import new_schedule

NOON = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOLD = """
    INSERT INTO scheduled_jobs (job_id, job_name, execution_time, task_data, unique_key)
    VALUES ($1, 'raw', now() + interval '1 day', '{"args": [], "kwargs": {}}', $2)
"""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture
def parts(clocked: Store, bus: EventBus) -> Parts:
    parts = Parts(clocked, bus)
    parts.tasks.register(invoice, name="invoice")
    parts.tasks.register(sync, name="sync", options=TaskOptions(unique=Unique()))
    return parts


@pytest.fixture
async def stranger(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """An open transaction of the application."""
    connection = await asyncpg.connect(dsn, server_settings={"application_name": "stranger"})
    await connection.execute("BEGIN")
    yield connection
    await connection.close()


async def invoice() -> None: ...


async def sync(account: int = 0) -> None: ...


async def add(parts: Parts, schedule_id: str, task: str, **changes: Any) -> None:
    row = new_schedule(schedule_id, task=task, anchor=NOON, next_fire_at=NOON + HOUR, **changes)
    assert await parts.store.schedules.insert(row, ["every"])


async def key_of(parts: Parts, schedule_id: str) -> str:
    """Return the unique key of the jobs of a schedule."""
    row = await parts.store.schedules.get(schedule_id)
    assert row is not None
    key = parts.job_builders.builder(row).manual_job(NOON).unique_key
    assert key is not None
    return key


async def planned(pool: asyncpg.Pool) -> set[str]:
    """Return the schedules with a job."""
    rows = await pool.fetch("SELECT options ->> 'schedule_id' FROM scheduled_jobs WHERE options IS NOT NULL")
    return {row[0] for row in rows}


async def plan_until(planner: Planner, pool: asyncpg.Pool, *schedule_ids: str) -> None:
    """Run the planner as its service does, until schedules have jobs."""
    async with asyncio.timeout(PATIENCE):
        while not await planned(pool) >= {*schedule_ids}:
            delay = await planner.run_once()
            await asyncio.sleep(min(delay, 1.0))


async def test_unique_job_of_an_open_transaction_delays_its_own_schedule_only(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool, stranger: asyncpg.Connection
) -> None:
    await add(parts, "invoices", "invoice")
    await add(parts, "accounts", "sync")
    await stranger.execute(HOLD, "held", await key_of(parts, "accounts"))
    planner = parts.planner()
    for hours in (1, 2, 3):
        clock.advance(HOUR)
        await planner.run_once()
        await plan_until(planner, pool, "invoices")
        assert await planned(pool) == {"invoices"}
        assert await pool.fetchval("SELECT count(*) FROM scheduled_jobs") == hours
        async with pool.acquire() as connection, connection.transaction():
            rows = await connection.fetch("SELECT FROM scheduler_schedules FOR UPDATE NOWAIT")
            assert len(rows) == 2, "no row is locked while a schedule waits"
    await stranger.execute("ROLLBACK")
    await plan_until(planner, pool, "invoices", "accounts")


@pytest.fixture
async def delayed(parts: Parts, clock: FakeClock, stranger: asyncpg.Connection) -> Planner:
    """Return a planner whose only schedule is due, and waits for the key of its job."""
    await add(parts, "accounts", "sync")
    await stranger.execute(HOLD, "held", await key_of(parts, "accounts"))
    clock.advance(HOUR)
    planner = parts.planner()
    await planner.run_once()
    return planner


async def test_only_schedule_fires_again_at_its_next_time_when_a_lock_has_ended(
    delayed: Planner, pool: asyncpg.Pool, stranger: asyncpg.Connection
) -> None:
    assert delayed.next_fire_in is None, "it has no turn while it is locked"
    await stranger.execute("ROLLBACK")
    await plan_until(delayed, pool, "accounts")
    assert delayed.next_fire_in == HOUR.total_seconds()


async def test_key_that_an_open_transaction_takes_skips_the_fire_time_when_it_commits(
    delayed: Planner, parts: Parts, pool: asyncpg.Pool, stranger: asyncpg.Connection
) -> None:
    await stranger.execute("COMMIT")
    async with asyncio.timeout(PATIENCE):
        while (row := await parts.store.schedules.get("accounts")) and not row.skipped:
            delay = await delayed.run_once()
            await asyncio.sleep(min(delay, 1.0))
    assert await planned(pool) == set()


async def test_schedules_that_are_not_locked_are_planned_though_they_met_the_lock_with_others(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool, stranger: asyncpg.Connection
) -> None:
    names = [f"account {number}" for number in range(20)]
    for number, name in enumerate(names):
        await add(parts, name, "sync", task_data=f'{{"args": [{number}], "kwargs": {{}}}}')
    held, free = {names[3], names[14]}, {*names} - {names[3], names[14]}
    for name in held:
        await stranger.execute(HOLD, name, await key_of(parts, name))
    clock.advance(HOUR)
    planner = parts.planner()
    await plan_until(planner, pool, *free)
    assert await planned(pool) == free
    await stranger.execute("ROLLBACK")
    await plan_until(planner, pool, *names)


async def test_id_that_an_open_transaction_has_inserted_delays_its_own_schedule_only(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool, stranger: asyncpg.Connection
) -> None:
    await add(parts, "invoices", "invoice")
    await add(parts, "others", "invoice")
    await stranger.execute(HOLD, fire_time_job_id("invoices", NOON + HOUR, owner="api"), None)
    clock.advance(HOUR)
    planner = parts.planner()
    await plan_until(planner, pool, "others")
    assert await planned(pool) == {"others"}
    await stranger.execute("ROLLBACK")
    await plan_until(planner, pool, "invoices", "others")


async def test_record_names_the_transaction_that_holds_a_schedule_for_long(
    parts: Parts,
    clock: FakeClock,
    stranger: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(late_schedules, "REPORT_AFTER_S", 0.0)
    # Long enough for the session that looks up the holder, also on a busy machine.
    inside.replace(monkeypatch, late_report_timeout_ms=5000)
    await add(parts, "accounts", "sync")
    await stranger.execute(HOLD, "held", await key_of(parts, "accounts"))
    clock.advance(HOUR)
    planner = parts.planner()
    with caplog.at_level(logging.WARNING, "pg_scheduler"):
        async with asyncio.timeout(PATIENCE):
            while not caplog.messages:
                delay = await planner.run_once()
                await asyncio.sleep(min(delay, 1.0))
    (message,) = caplog.messages
    assert re.match(r"schedule 'accounts' of \S+ is \d+ s late, because it needs a lock", message)
    assert f"pid {stranger.get_server_pid()}, application 'stranger'" in message


async def test_job_is_replaced_when_its_cancellation_waits_for_no_lock_of_another_transaction(
    parts: Parts, clock: FakeClock, pool: asyncpg.Pool, stranger: asyncpg.Connection
) -> None:
    await add(parts, "invoices", "invoice", overlap="cancel")
    planner = parts.planner()
    clock.advance(HOUR)
    await planner.run_once()
    last_job_id = await pool.fetchval("SELECT job_id FROM scheduled_jobs")
    dependent_id = await Scheduler(pool).schedule(invoice, execution_time=NOON, after=[last_job_id])
    await stranger.execute("SELECT FROM scheduled_jobs WHERE job_id = $1 FOR UPDATE", dependent_id)
    clock.advance(HOUR)
    assert await planner.run_once() <= FAST_POLL_INTERVAL_S
    # Neither is the new job written nor the old one cancelled.
    rows = await pool.fetch("SELECT job_id, status FROM scheduled_jobs")
    assert {tuple(row) for row in rows} == {(last_job_id, "pending"), (dependent_id, "pending")}
    await stranger.execute("ROLLBACK")
    new_job_id = fire_time_job_id("invoices", NOON + 2 * HOUR, owner="api")
    async with asyncio.timeout(PATIENCE):
        while await pool.fetchval("SELECT count(*) FROM scheduled_jobs WHERE job_id = $1", new_job_id) == 0:
            delay = await planner.run_once()
            await asyncio.sleep(min(delay, 1.0))  # as the service, between two passes
    rows = await pool.fetch("SELECT job_id, status FROM scheduled_jobs WHERE job_id <> $1", dependent_id)
    assert {tuple(row) for row in rows} == {(last_job_id, "cancelled"), (new_job_id, "pending")}


# -- schedules that the code declares ----------------------------------------------------------------------


@pytest.fixture
async def changed(parts: Parts) -> Planner:
    """A planner whose code declares other intervals than the database, for two schedules."""
    declare(HOUR)
    await parts.planner().run_once()
    periodic_catalogue.clear()
    declare(2 * HOUR)
    return parts.planner()


def declare(interval: timedelta) -> None:
    periodic(every=interval, dedup_key="invoices")(invoice)
    periodic(every=interval, dedup_key="accounts")(sync)


async def described(pool: asyncpg.Pool) -> dict[str, str]:
    rows = await pool.fetch("SELECT schedule_id, described FROM scheduler_schedules")
    return {row["schedule_id"]: row["described"] for row in rows}


async def test_start_leaves_a_schedule_that_another_transaction_holds_to_a_later_pass(
    changed: Planner, pool: asyncpg.Pool, stranger: asyncpg.Connection
) -> None:
    await stranger.execute("SELECT FROM scheduler_schedules WHERE schedule_id = 'invoices' FOR UPDATE")
    await changed.start()
    try:
        assert await described(pool) == {"invoices": "every hour", "accounts": "every 2 hours"}
        assert changed.declared.ids == ["accounts"]
        locks = "SELECT FROM pg_locks WHERE mode = 'ShareUpdateExclusiveLock' AND relation IS NOT NULL"
        assert await pool.fetch(locks) == []
    finally:
        await changed.stop()
    await stranger.execute("ROLLBACK")
    await changed.run_once()
    assert await described(pool) == {"invoices": "every 2 hours", "accounts": "every 2 hours"}
    assert changed.declared.is_written


async def test_pass_follows_soon_while_a_declared_schedule_is_not_written(
    changed: Planner, stranger: asyncpg.Connection
) -> None:
    await stranger.execute("SELECT FROM scheduler_schedules FOR UPDATE")
    assert await changed.run_once() <= FAST_POLL_INTERVAL_S


async def test_start_does_not_wait_for_the_lock_of_another_process_that_writes_schedules(
    changed: Planner, pool: asyncpg.Pool, stranger: asyncpg.Connection
) -> None:
    await stranger.execute("LOCK TABLE scheduler_schedules IN SHARE UPDATE EXCLUSIVE MODE")
    await changed.run_once()
    assert await described(pool) == {"invoices": "every hour", "accounts": "every hour"}
    await stranger.execute("ROLLBACK")
    await changed.run_once()
    assert await described(pool) == {"invoices": "every 2 hours", "accounts": "every 2 hours"}


async def test_id_of_a_schedule_that_an_open_transaction_inserts_delays_that_schedule_only(
    parts: Parts, pool: asyncpg.Pool, stranger: asyncpg.Connection
) -> None:
    await add(parts, "template", "invoice")
    columns = ", ".join(name for name in await column_names(pool) if name != "schedule_id")
    await stranger.execute(
        f"INSERT INTO scheduler_schedules (schedule_id, {columns}) "
        f"SELECT 'invoices', {columns} FROM scheduler_schedules"
    )
    declare(HOUR)
    planner = parts.planner()
    await planner.run_once()
    assert (await described(pool)).keys() == {"template", "accounts"}
    await stranger.execute("ROLLBACK")
    await planner.run_once()
    assert (await described(pool)).keys() == {"template", "accounts", "invoices"}


async def test_schedule_moves_to_its_new_key_when_the_former_row_is_free(
    parts: Parts, pool: asyncpg.Pool, stranger: asyncpg.Connection
) -> None:
    periodic(every=HOUR)(invoice)
    await parts.planner().run_once()
    former = await described(pool)
    periodic_catalogue.clear()
    periodic(every=2 * HOUR)(invoice)
    await stranger.execute("SELECT FROM scheduler_schedules FOR UPDATE")
    planner = parts.planner()
    await planner.run_once()
    assert await described(pool) == former, "it is neither deleted nor written twice"
    await stranger.execute("ROLLBACK")
    await planner.run_once()
    assert [*(await described(pool)).values()] == ["every 2 hours"]


async def test_switch_of_a_schedule_that_another_transaction_holds_is_written_later(
    parts: Parts, pool: asyncpg.Pool, stranger: asyncpg.Connection
) -> None:
    declare(HOUR)
    planner = parts.planner()
    await planner.run_once()
    await stranger.execute("SELECT FROM scheduler_schedules WHERE schedule_id = 'invoices' FOR UPDATE")
    for key in ("invoices", "accounts"):
        planner.declared.enable(key, False)
    assert await planner.run_once() <= FAST_POLL_INTERVAL_S
    paused = "SELECT schedule_id FROM scheduler_schedules WHERE paused_at IS NOT NULL ORDER BY 1"
    assert [row[0] for row in await pool.fetch(paused)] == ["accounts"]
    await stranger.execute("ROLLBACK")
    await planner.run_once()
    assert [row[0] for row in await pool.fetch(paused)] == ["accounts", "invoices"]


async def column_names(pool: asyncpg.Pool) -> list[str]:
    rows = await pool.fetch(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'scheduler_schedules'::regclass AND attnum > 0 "
        "AND NOT attisdropped"
    )
    return [row[0] for row in rows]
