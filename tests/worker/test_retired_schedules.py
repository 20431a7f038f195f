"""A schedule whose function was removed from the code is retired, and no other one."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import asyncpg
import pytest

from pg_scheduler import PeriodicJobConfig
from pg_scheduler.inspect.store.schedules import ScheduleFilters
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.schedules.declarations import DeclaredSchedules
from pg_scheduler.schedules.statements import Plannable
from tests.support.inside import PeriodicCatalogue, Store
from tests.support.parts import Parts
from tests.support.worker import LEASE, new_worker

MINUTE = timedelta(minutes=1)
MODULE = "shop_of_retired_schedules"

SETTINGS: dict[str, dict[str, Any]] = {
    "declares it": {"schedules": ["old"]},
    "has an older release": {},
    "declares too many": {"schedules": [], "schedules_left_out": True},
}
"""What live workers of other code report."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the application, which this process has imported."""
    module = ModuleType(MODULE)
    module.__spec__ = ModuleSpec(MODULE, None)
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


def config(key: str, module: str = MODULE) -> PeriodicJobConfig:
    async def report() -> None: ...

    report.__module__, report.__qualname__ = module, key
    return PeriodicJobConfig(report, MINUTE, dedup_key=key)


async def declare(store: Store, *configs: PeriodicJobConfig) -> DeclaredSchedules:
    """Write the schedules of the code of a process, and read them, as the planner does."""
    catalogue = PeriodicCatalogue()
    for each in configs:
        catalogue.add(each)
    declared = DeclaredSchedules(store, store.schedules, catalogue)
    await declared.sync()
    await declared.refresh()
    return declared


async def quick() -> None: ...


async def retired(pool: asyncpg.Pool) -> list[str]:
    rows = await pool.fetch(
        "SELECT schedule_id FROM scheduler_schedules WHERE retired_at IS NOT NULL ORDER BY schedule_id"
    )
    return [row[0] for row in rows]


async def register(store: Store, worker_id: str, settings: dict[str, Any]) -> None:
    """Insert the row of a live worker that reports these settings."""
    await store.workers.register(replace(new_worker(worker_id), settings=settings), LEASE)


@pytest.mark.usefixtures("module")
async def test_schedule_of_a_removed_function_is_retired_once_with_a_warning(
    pool: asyncpg.Pool, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await declare(store, config("old"), config("stays"))
    newest = await declare(store, config("stays"))
    await newest.retire()
    await newest.retire()
    assert await retired(pool) == ["old"]
    warnings = [record.getMessage() for record in caplog.records if "fires no more" in record.getMessage()]
    assert len(warnings) == 1
    assert f"schedule 'old' of the task '{MODULE}.old' fires no more" in warnings[0]
    assert "pg-scheduler schedules remove old" in warnings[0]


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("settings", SETTINGS)
async def test_schedule_is_not_retired_while_a_live_worker_may_declare_it(
    pool: asyncpg.Pool, store: Store, settings: str
) -> None:
    await declare(store, config("old"))
    await register(store, "of another release", SETTINGS[settings])
    newest = await declare(store)
    await newest.retire()
    assert await retired(pool) == []
    await store.workers.deregister("of another release")
    await newest.retire()
    assert await retired(pool) == ["old"]


async def test_schedule_of_another_service_is_not_retired_while_that_is_down(
    pool: asyncpg.Pool, store: Store, module: ModuleType
) -> None:
    await declare(store, config("billing", module="billing_service.jobs"), config("mail"))
    await (await declare(store, config("mail"))).retire()
    assert await retired(pool) == []
    assert module.__spec__ is not None
    module.__spec__._initializing = True  # type: ignore[attr-defined] # as the import sets it meanwhile
    await (await declare(store)).retire()
    assert await retired(pool) == []


@pytest.mark.usefixtures("module")
async def test_code_that_declares_a_retired_schedule_again_continues_it(
    pool: asyncpg.Pool, store: Store
) -> None:
    await declare(store, config("old"))
    before = await store.schedules.get("old")
    await (await declare(store)).retire()
    assert await retired(pool) == ["old"]
    await declare(store, config("old"))
    after = await store.schedules.get("old")
    assert before is not None
    assert after is not None
    assert after.retired_at is None
    assert (after.next_fire_at, after.anchor) == (before.next_fire_at, before.anchor)


@pytest.mark.usefixtures("module")
async def test_schedule_that_is_locked_is_retired_by_a_later_pass(pool: asyncpg.Pool, store: Store) -> None:
    await declare(store, config("old"))
    newest = await declare(store)
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT FROM scheduler_schedules WHERE schedule_id = 'old' FOR UPDATE")
        await newest.retire()
        assert await retired(pool) == []
    await newest.retire()
    assert await retired(pool) == ["old"]


@pytest.mark.usefixtures("module")
async def test_passes_of_the_planner_retire_schedules(pool: asyncpg.Pool, parts: Parts) -> None:
    await declare(parts.store, config("old"))
    parts.tasks.register(quick, name="quick")
    await parts.planner().run_once()
    assert await retired(pool) == ["old"]


@pytest.mark.usefixtures("module")
async def test_retired_schedule_is_not_overdue_for_people_but_for_the_planner_that_declares_it(
    pool: asyncpg.Pool, store: Store
) -> None:
    await declare(store, config("old"))
    await (await declare(store)).retire()
    await pool.execute("UPDATE scheduler_schedules SET next_fire_at = now() - interval '1 hour'")
    inspected = InspectionStore(store)
    assert await inspected.doctor.overdue(60) == []
    assert await inspected.doctor.schedule_tasks() == ([], False)
    (figures,) = await inspected.cluster.schedules(10)
    assert (figures.is_enabled, figures.overdue_s) == (False, 0)
    counts, _ = await inspected.schedule_lists.count(ScheduleFilters())
    assert (counts["all"], counts["active"], counts["overdue"]) == (1, 0, 0)
    (row,) = await inspected.doctor.retired()
    assert (row.schedule_id, row.task) == ("old", f"{MODULE}.old")
    due_in = await store.schedules.next_fire_in(Plannable(["old"], [], ["every"]))
    assert due_in is not None
    assert due_in < 0
