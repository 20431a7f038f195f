"""Lists of schedules: states, counts, filters, pages, and who paused them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.facts.schedule_state import SCHEDULE_STATES
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.schedules import ScheduleList, list_schedules, next_after_pause
from pg_scheduler.triggers import Cron, Every
from tests.support import inside
from tests.support.world import World

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
async def scheduler(pool: asyncpg.Pool, world: World) -> Scheduler:
    """Add a schedule in each state, and one that has finished."""
    scheduler = Scheduler(pool)
    for name in ("active", "failing", "finished", "overdue", "paused"):
        task = "billing.charge" if name == "failing" else "mail.send"
        await scheduler.schedules.add(task, Every(timedelta(hours=1)), schedule_id=name)
    await scheduler.schedules.pause("paused", note="too loud")
    await world.job("last", "billing.charge", status="failed")
    for schedule_id, change in (
        ("failing", "last_job_id = 'last'"),
        ("finished", "finished_at = now(), next_fire_at = NULL, failures = 3"),
        ("overdue", "next_fire_at = now() - interval '2 min'"),
    ):
        await pool.execute(f"UPDATE scheduler_schedules SET {change} WHERE schedule_id = '{schedule_id}'")
    return scheduler


def ids(found: ScheduleList) -> list[str]:
    return [each.schedule_id for each in found.items]


async def test_schedules_are_listed_and_counted_by_state(scheduler: Scheduler) -> None:
    inspector = Inspector(scheduler)
    found = await list_schedules(inspector)
    assert ids(found) == ["active", "failing", "finished", "overdue", "paused"]
    assert found.counts == dict.fromkeys(SCHEDULE_STATES, 1) | {"all": 5, "retired": 0}
    assert sum(found.counts[state] for state in SCHEDULE_STATES) == found.counts["all"]
    assert found.states == {name: name for name in ids(found)}
    assert (found.is_capped, found.next) == (False, None)
    assert ids(await list_schedules(inspector, state="active")) == ["active"]
    for state in ("paused", "failing", "overdue", "finished"):
        assert ids(await list_schedules(inspector, state=state)) == [state]


async def test_failures_in_a_row_count_while_the_last_job_runs(
    scheduler: Scheduler, pool: asyncpg.Pool
) -> None:
    await pool.execute("UPDATE scheduler_schedules SET failures = 2 WHERE schedule_id = 'active'")
    assert ids(await list_schedules(Inspector(scheduler), state="failing")) == ["active", "failing"]


async def test_filters_apply_to_the_list_and_to_its_counts(scheduler: Scheduler) -> None:
    inspector = Inspector(scheduler)
    for found in (
        await list_schedules(inspector, names=["billing.*"]),
        await list_schedules(inspector, task="billing.charge"),
        await list_schedules(inspector, text="CHARGE"),
        await list_schedules(inspector, text="faili"),
    ):
        assert (ids(found), found.counts["all"], found.counts["paused"]) == (["failing"], 1, 0)
    nothing = await list_schedules(inspector, text="%")
    assert (ids(nothing), nothing.counts["all"]) == ([], 0), "no wildcard"
    assert ids(await list_schedules(inspector, names=[])) == []


async def test_list_continues_after_its_last_row(scheduler: Scheduler) -> None:
    inspector, after, found = Inspector(scheduler), None, list[str]()
    while True:
        page = await list_schedules(inspector, names=["mail.*"], limit=1, after=after)
        assert page.counts["all"] == 4
        found += ids(page)
        if (after := page.next) is None:
            break
    assert found == ["active", "finished", "overdue", "paused"]


async def test_list_examines_a_bounded_number_of_schedules_and_continues(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.replace(monkeypatch, examined_schedules=2)
    inspector = Inspector(scheduler)
    first = await list_schedules(inspector, state="paused")
    assert (ids(first), first.next, first.is_capped) == ([], "failing", True)
    assert first.counts["all"] == 2
    second = await list_schedules(inspector, state="paused", after=first.next)
    third = await list_schedules(inspector, state="paused", after=second.next)
    assert (ids(second), second.next, ids(third), third.next) == ([], "overdue", ["paused"], None)
    hidden = await list_schedules(inspector, names=["billing.none"])
    assert hidden.is_capped, "also if none of the examined ones matches"


async def test_list_names_who_paused_a_schedule(scheduler: Scheduler, pool: asyncpg.Pool) -> None:
    inspector = Inspector(scheduler)
    actor = await pool.fetchval("SELECT actor FROM scheduler_audit WHERE action = 'pause_schedule'")
    assert (await list_schedules(inspector)).paused_by == {"paused": actor}
    await pool.execute(
        "UPDATE scheduler_schedules SET paused_at = now() + interval '1 s' WHERE schedule_id = 'paused'"
    )
    assert (await list_schedules(inspector)).paused_by == {}, "the record is that of an earlier pause"


async def test_paused_schedule_would_fire_after_now(scheduler: Scheduler, pool: asyncpg.Pool) -> None:
    await scheduler.schedules.add("mail.send", Cron("30 * * * *"), schedule_id="half")
    await scheduler.schedules.pause("half")
    await pool.execute("UPDATE scheduler_schedules SET next_fire_at = $1", NOON - timedelta(days=3))
    found = (await list_schedules(Inspector(scheduler))).items
    assert (await next_after_pause(found, NOON))["half"] == NOON + timedelta(minutes=30)
    assert set(await next_after_pause(found, NOON)) == {"half", "paused"}, "only paused ones"


@pytest.mark.parametrize("resume_from", ["now", "pause"])
async def test_schedule_paused_until_an_instant_fires_after_it(
    scheduler: Scheduler, resume_from: Literal["now", "pause"]
) -> None:
    await scheduler.schedules.add("mail.send", Cron("30 * * * *"), schedule_id="half")
    until = datetime(2099, 1, 1, 12, tzinfo=UTC)
    await scheduler.schedules.pause("half", until=until, resume_from=resume_from)
    found = (await list_schedules(Inspector(scheduler), text="half")).items
    assert await next_after_pause(found, NOON) == {"half": until + timedelta(minutes=30)}


async def test_wrong_values_are_rejected(scheduler: Scheduler) -> None:
    inspector = Inspector(scheduler)
    for limit in (0, 101):
        with pytest.raises(ValueError, match="limit"):
            await list_schedules(inspector, limit=limit)
    with pytest.raises(ValueError, match="NUL"):
        await list_schedules(inspector, text="a\0")
