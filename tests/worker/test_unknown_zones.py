"""A node that does not know the time zone of a schedule leaves the schedule to nodes that know it.

Debian has zones of former days in a package of its own, so a new base image may lack US/Eastern. Here only
nodes with data of their own know Mars/Olympus.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from pg_scheduler import Scheduler
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus
from pg_scheduler.schedules.planner import Planner
from pg_scheduler.triggers import Cron
from pg_scheduler.triggers.zones import UnknownZoneError, parse_timezone
from tests.support.inside import Store
from tests.support.parts import Parts
from tests.support.zones import BERLIN, use_zones, write_zones

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ZONE = "Mars/Olympus"

Know = Callable[[bool], None]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture
def know(tmp_path: Path) -> Iterator[Know]:
    """Make this process a node that knows the zone, as at first, or one that does not."""
    folders = {
        True: write_zones(tmp_path / "whole", "2026a", 1),
        False: write_zones(tmp_path / "part", "2026a", 1),
    }
    (folders[True] / "Mars").mkdir()
    (folders[True] / ZONE).write_bytes((folders[True] / BERLIN).read_bytes())

    def use(is_known: bool) -> None:
        use_zones(folders[is_known])

    use(True)
    yield use
    use_zones(None)


async def work() -> None: ...


@pytest.fixture
async def scheduler(know: Know, pool: asyncpg.Pool, clock: FakeClock) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(pool, clock=clock)
    await scheduler.schedules.add("tests.work", Cron("0 * * * *", ZONE), schedule_id="zoned")
    await scheduler.schedules.add("tests.work", Cron("0 * * * *", BERLIN), schedule_id="usual")
    yield scheduler
    await scheduler.shutdown()


@pytest.fixture
def planners(clocked: Store, bus: EventBus) -> list[Planner]:
    """The planners of two nodes."""
    parts = [Parts(clocked, bus), Parts(clocked, bus)]
    for node in parts:
        node.tasks.register(work, name="tests.work")
    return [node.planner() for node in parts]


async def test_schedule_is_left_to_a_node_that_knows_its_zone(  # noqa: PLR0917 - fixtures
    scheduler: Scheduler,
    planners: list[Planner],
    pool: asyncpg.Pool,
    clock: FakeClock,
    know: Know,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lacking, knowing = planners
    clock.advance(HOUR)
    know(False)
    with pytest.raises(UnknownZoneError):
        parse_timezone(ZONE)
    for _ in range(3):
        await lacking.run_once()
    assert lacking.next_fire_in == HOUR.total_seconds(), "it sleeps until the next schedule that it can plan"
    assert [job.schedule_id for job in await scheduler.list_jobs()] == ["usual"]
    rows = await pool.fetch("SELECT paused_at, note, is_broken FROM scheduler_schedules")
    assert {tuple(row) for row in rows} == {(None, None, False)}
    (record,) = [each for each in caplog.records if "left to other nodes" in each.message]
    assert "'zoned'" in record.message
    assert f"{ZONE!r}" in record.message
    assert lacking._unknown_zones.recent() == {"zoned": ZONE}
    know(True)
    await knowing.run_once()
    assert sorted(job.schedule_id or "" for job in await scheduler.list_jobs()) == ["usual", "zoned"]
    assert knowing._unknown_zones.recent() == {}


async def test_node_whose_data_are_corrected_plans_the_schedule_again(
    scheduler: Scheduler, planners: list[Planner], clock: FakeClock, know: Know
) -> None:
    planner = planners[0]
    clock.advance(HOUR)
    know(False)
    await planner.run_once()
    know(True)
    await planner.run_once()
    assert len(await scheduler.list_jobs()) == 1, "it is tried again with the next check of fire times"
    planner.check_fire_times()
    await planner.run_once()
    assert len(await scheduler.list_jobs()) == 2


async def test_zone_that_can_be_none_pauses_its_schedule(
    scheduler: Scheduler, planners: list[Planner], pool: asyncpg.Pool, clock: FakeClock
) -> None:
    await pool.execute(
        "UPDATE scheduler_schedules SET trigger = jsonb_set(trigger, '{timezone}', '\"../etc\"') "
        "WHERE schedule_id = 'zoned'"
    )
    clock.advance(HOUR)
    await planners[0].run_once()
    note = await pool.fetchval("SELECT note FROM scheduler_schedules WHERE is_broken")
    assert note.startswith("ValueError: Invalid timezone '../etc'")
