"""Schedules are stored, listed, locked and advanced."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from pg_scheduler.clock import FakeClock
from pg_scheduler.schedules.row import ScheduleRow
from pg_scheduler.schedules.statements import Plannable, ScheduleChange, Switched
from tests.support.inside import Connections, Store, fire_time_job_id
from tests.support.store import NAME, NOW, SECOND, Pool, new_job, new_schedule

FULL = new_schedule(
    owner="code",
    job_name="sweep",
    derived_key=True,
    enabled_in_code=False,
    use_advisory_lock=True,
    task_data='{"args": [1], "kwargs": {"key": null}}',
    options='{"priority": 3}',
    metadata='{"tenant": 7}',
    start_at=NOW,
    end_at=NOW + timedelta(days=1),
    max_runs=2**40,
    jitter_seconds=0.5,
    overlap="queue_all",
    catch_up="all",
    catch_up_limit=100,
    catch_up_seconds=1.5,
    pause_after_failures=3,
    resume_from=NOW,
    last_fire_at=NOW - SECOND,
    last_job_id="job",
    paused_at=NOW,
    note="why",
    is_broken=True,
    runs=1,
    skipped=2,
    missed=3,
    failures=4,
    finished_at=NOW,
    version=5,
    searched_from=NOW - SECOND,
    tzdata="2026a",
)
ALL = Plannable(["mine"], [NAME], ["cron", "every"])


async def insert(store: Store, *rows: ScheduleRow, kinds: tuple[str, ...] = ("every",)) -> None:
    for row in rows:
        assert await store.schedules.insert(row, kinds)


async def due(store: Store, plannable: Plannable = ALL, limit: int = 100) -> list[str]:
    async with store.connections.transaction() as connection:
        rows, _ = await store.schedules.lock_due(plannable, limit, on=connection)
        return [row.schedule_id for row in rows]


async def only(store: Store) -> ScheduleRow:
    row = await store.schedules.get("key")
    assert row is not None
    return row


async def advance(store: Store, **changes: Any) -> ScheduleRow:
    async with store.connections.transaction() as connection:
        await store.schedules.advance([ScheduleChange("key", **changes)], on=connection)
    return await only(store)


@pytest.mark.parametrize("row", [new_schedule(), FULL], ids=["plain", "full"])
async def test_schedule_survives_a_round_trip(store: Store, row: ScheduleRow) -> None:
    await insert(store, row)
    assert await only(store) == row
    assert not await store.schedules.insert(replace(row, task="other"), ["every"])
    assert await only(store) == row, "the id was taken"


async def test_write_overwrites_every_column_of_a_schedule(store: Store) -> None:
    await insert(store, new_schedule())
    async with store.connections.transaction() as connection:
        await store.schedules.write(FULL, ["cron"], on=connection)
    assert await only(store) == FULL
    assert await store.schedules.remove("key")
    assert not await store.schedules.remove("key")
    assert await store.schedules.get("key") is None


async def test_list_page_filters_and_continues_after_an_id(store: Store) -> None:
    await insert(
        store,
        new_schedule("a", metadata='{"tenant": 7, "plan": "x"}', next_fire_at=NOW),
        new_schedule("b", owner="code", paused_at=NOW),
        new_schedule("c", task="other", next_fire_at=None),
        new_schedule("D"),
    )

    async def ids(**filters: Any) -> str:
        names = ("after", "owner", "paused", "tasks", "metadata", "due_before")
        values: dict[str, Any] = dict.fromkeys(names) | {"limit": 9} | filters
        return "".join(row.schedule_id for row in await store.schedules.list_page(**values))

    assert await ids() == "Dabc", "in the order of the bytes, the same for every collation"
    assert (await ids(limit=2), await ids(after="a")) == ("Da", "bc")
    assert (await ids(owner="code"), await ids(owner="api")) == ("b", "Dac")
    assert (await ids(paused=True), await ids(paused=False)) == ("b", "Dac")
    assert await ids(tasks=["other"]) == "c"
    assert (await ids(metadata='{"tenant": 7}'), await ids(metadata='{"tenant": 8}')) == ("a", "")
    assert (await ids(due_before=NOW), await ids(due_before=NOW + SECOND)) == ("", "a")


async def test_list_page_has_retired_schedules_unless_the_schema_is_an_earlier_one(
    store: Store, pool: Pool
) -> None:
    async def retired() -> list[datetime | None]:
        names = ("after", "owner", "paused", "tasks", "metadata", "due_before")
        values: dict[str, Any] = dict.fromkeys(names) | {"limit": 9}
        return [row.retired_at for row in await store.schedules.list_page(**values)]

    await insert(store, new_schedule("a", retired_at=NOW), new_schedule("b"))
    assert await retired() == [NOW, None]
    await pool.execute(
        "ALTER TABLE scheduler_schedules DROP searched_from, DROP tzdata, DROP module, DROP retired_at"
    )
    assert await retired() == [None, None]


async def test_declarations_are_written_by_one_process_at_a_time_and_planners_do_not_wait(
    store: Store,
) -> None:
    await insert(store, new_schedule(next_fire_at=NOW))

    async def other() -> list[str]:
        async with store.schedules.declaring() as (connection, _):
            return list((await store.schedules.declared([], on=connection))[0])

    async with store.schedules.declaring() as (connection, _):
        await store.schedules.insert(new_schedule("mine", owner="code"), ["every"], on=connection)
        waiting = asyncio.create_task(other())
        assert await due(store) == ["key"]
        await advance(store, next_fire_at=NOW + SECOND)
        assert (await store.schedules.declared([]))[0] == {}
        assert not waiting.done()
    assert await waiting == ["mine"], "it reads the first writer's rows"


async def test_lock_due_returns_the_schedules_that_the_node_can_plan(store: Store, clock: FakeClock) -> None:
    await insert(
        store,
        new_schedule("later", next_fire_at=NOW + 2 * SECOND),
        new_schedule("now", next_fire_at=NOW),
        new_schedule("before", next_fire_at=NOW - SECOND),
        new_schedule("paused", next_fire_at=NOW, paused_at=NOW),
        new_schedule("waiting", next_fire_at=None),
        new_schedule("mine", next_fire_at=NOW, owner="code", task="app.declared"),
        new_schedule("of others", next_fire_at=NOW, owner="code"),
        new_schedule("unregistered", next_fire_at=NOW, task="app.other"),
    )
    await insert(store, new_schedule("unknown kind", next_fire_at=NOW), kinds=("every", "lunar"))
    assert sorted(await due(store)) == ["before", "mine", "now"]
    assert await due(store, limit=1) == ["before"]
    assert await due(store, Plannable([], [], [])) == []
    assert await store.schedules.next_fire_in(ALL) == -1
    assert await store.schedules.next_fire_in(Plannable([], ["app.nothing"], ["every"])) is None
    clock.advance(2 * SECOND)
    assert sorted(await due(store)) == ["before", "later", "mine", "now"]


async def test_lock_due_skips_schedules_that_another_planner_has_locked(store: Store) -> None:
    await insert(store, new_schedule(next_fire_at=NOW))
    async with store.connections.transaction() as connection:
        assert (await store.schedules.lock_due(ALL, 9, on=connection))[0]
        assert await due(store) == []


async def test_advance_adds_to_the_counters_and_keeps_what_is_not_given(store: Store) -> None:
    await insert(store, new_schedule(resume_from=NOW, last_fire_at=NOW, last_job_id="old", runs=1))
    row = await advance(store, next_fire_at=NOW + SECOND, runs=2, skipped=3, missed=4)
    assert (row.runs, row.skipped, row.missed) == (3, 3, 4)
    assert (row.next_fire_at, row.last_fire_at, row.last_job_id) == (NOW + SECOND, NOW, "old")
    assert (row.resume_from, row.finished_at) == (None, None)
    row = await advance(store, last_fire_at=NOW + SECOND, last_job_id="new", is_finished=True)
    assert (row.last_fire_at, row.last_job_id) == (NOW + SECOND, "new")
    assert (row.next_fire_at, row.finished_at) == (None, NOW)


async def test_advance_pauses_a_schedule_with_an_error_and_keeps_its_timing(store: Store) -> None:
    await insert(store, new_schedule(resume_from=NOW))
    row = await advance(store, error="boom")
    assert (row.paused_at, row.note, row.is_broken) == (NOW, "boom", True)
    assert (row.next_fire_at, row.resume_from) == (NOW + SECOND, NOW)


async def test_pause_and_resume_change_a_schedule_once(store: Store, clock: FakeClock) -> None:
    row = new_schedule(failures=2)
    await insert(store, row)
    assert await store.schedules.pause("missing", None) is None
    assert await store.schedules.resume("missing", from_now=True) is None
    assert await store.schedules.resume("key", from_now=True) == Switched(changed=False, task=row.task)
    assert await store.schedules.pause("key", "why") == Switched(changed=True, task=row.task)
    clock.advance(SECOND)
    assert await store.schedules.pause("key", "again") == Switched(changed=False, task=row.task)
    row = await only(store)
    assert (row.paused_at, row.note) == (NOW, "why")
    assert await store.schedules.resume("key", from_now=True) == Switched(changed=True, task=row.task)
    row = await only(store)
    assert (row.paused_at, row.note, row.failures) == (None, None, 0)


@pytest.mark.parametrize(
    ("from_now", "since", "passed", "resume_from", "next_fire_at"),
    [
        (True, None, 0, None, NOW + SECOND),
        (True, None, 9, NOW + 9 * SECOND, NOW + SECOND),
        (False, None, 9, None, NOW + SECOND),
        (False, NOW + 5 * SECOND, 9, NOW + 5 * SECOND, NOW + SECOND),
        (False, NOW + 5 * SECOND, 0, NOW + 5 * SECOND, NOW),
    ],
)
async def test_resume_leaves_the_next_fire_time_to_the_planner(  # noqa: PLR0917 - one case
    store: Store,
    clock: FakeClock,
    from_now: bool,
    since: datetime | None,
    passed: int,
    resume_from: datetime | None,
    next_fire_at: datetime,
) -> None:
    await insert(store, new_schedule(paused_at=NOW))
    clock.advance(passed * SECOND)
    await store.schedules.resume("key", from_now=from_now, since=since)
    row = await only(store)
    assert (row.resume_from, row.next_fire_at) == (resume_from, next_fire_at)


async def test_vacuum_deletes_finished_schedules_of_callers(store: Store) -> None:
    await insert(
        store,
        new_schedule("old", finished_at=NOW - SECOND),
        new_schedule("older", finished_at=NOW - 2 * SECOND),
        new_schedule("new", finished_at=NOW + SECOND),
        new_schedule("declared", finished_at=NOW - SECOND, owner="code"),
        new_schedule("active"),
    )
    assert await store.schedules.vacuum(NOW, 1) == 1
    assert await store.schedules.vacuum(NOW, 9) == 1
    assert set(await store.schedules.read(["old", "older", "new", "declared", "active"])) == {
        "new",
        "declared",
        "active",
    }


@pytest.mark.parametrize("now", [NOW, None])
async def test_now_follows_the_test_clock_or_the_database(
    pool: Pool, clock: FakeClock, now: datetime | None
) -> None:
    store = Store(Connections(pool), clock=clock if now else None)
    before = await pool.fetchval("SELECT clock_timestamp()")
    async with store.connections.transaction() as connection:
        instant = await store.statements.read_clock(on=connection)
    assert instant == now if now else instant >= before


async def test_chain_due_times_returns_the_last_pending_job_of_a_0_2_chain(store: Store, pool: Pool) -> None:
    await store.inserts.insert(
        [
            new_job("periodic:key:0", execution_time=NOW + 9 * SECOND, max_retries=1),
            new_job("periodic:key:1", execution_time=NOW + SECOND),
            new_job("periodic:key:2", execution_time=NOW + 2 * SECOND),
            new_job("periodic:keys:3", execution_time=NOW + 3 * SECOND),
            new_job("periodic:gone:4", execution_time=NOW + 4 * SECOND),
            new_job("periodic:key:longer:6", execution_time=NOW + 6 * SECOND),
            new_job("periodic:k_y:5", execution_time=NOW + 5 * SECOND),
            new_job(fire_time_job_id("own", NOW, owner="code")),
        ]
    )
    await store.jobs.cancel("periodic:gone:4")
    await pool.execute("UPDATE scheduled_jobs SET retry_count = 1 WHERE job_id = 'periodic:key:0'")
    async with store.schedules.declaring() as (connection, _):
        due_times = await store.schedules.chain_due_times(["key", "gone", "none", "own"], on=connection)
    assert due_times == {"key": NOW + 2 * SECOND}  # 0.2 numbered its runs; later ids contain instants
