"""A node with newer time zone data computes the next fire times again that older data gave.

Berlin is one hour ahead of UTC by the old data, and two or none by newer ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from datetime import time as wall_time
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pg_scheduler import CatchUp, Overlap, Schedule, Scheduler, periodic
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus
from pg_scheduler.schedules import planner as planner_module
from pg_scheduler.schedules.planner import Planner
from pg_scheduler.triggers import At, Cron, During, Every, FixedDelay, Trigger
from tests.support.inside import Connections, Store
from tests.support.parts import Parts
from tests.support.statements import Statements
from tests.support.zones import BERLIN, use_zones, write_zones

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
NINE = datetime(2026, 3, 11, 8, tzinfo=UTC)
"""Nine in Berlin on the next day, by the old data."""

DAILY = Cron("0 9 * * *", BERLIN)

Zones = Callable[[str | None, int], None]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


@pytest.fixture
def zones(tmp_path: Path) -> Iterator[Zones]:
    """Let the process use data of a version, by which Berlin is n hours ahead of UTC; 2026a and 1 first."""

    def use(version: str | None, hours: int) -> None:
        folder = tmp_path / f"{version}-{hours}"
        use_zones(folder if folder.exists() else write_zones(folder, version, hours))

    use("2026a", 1)
    yield use
    use_zones(None)


async def work() -> None: ...


class Bench:
    """A client, and planners that run by hand on the same tables and clock, as of several nodes."""

    def __init__(self, scheduler: Scheduler, parts: Parts, clock: FakeClock) -> None:
        self.scheduler = scheduler
        self.parts = parts
        self.clock = clock
        parts.tasks.register(work, name="tests.work")

    async def add(self, trigger: Trigger = DAILY, schedule_id: str = "key", **options: Any) -> Schedule:
        options = {"overlap": Overlap.ALLOW} | options
        return await self.scheduler.schedules.add("tests.work", trigger, schedule_id=schedule_id, **options)

    async def start(self) -> Planner:
        """Return the planner of a node that starts, after its first passes."""
        planner = self.parts.planner()
        while await planner.run_once() == 0:
            pass
        return planner

    async def get(self, schedule_id: str = "key") -> Schedule:
        schedule = await self.scheduler.schedules.get(schedule_id)
        assert schedule is not None
        return schedule

    async def next_at(self, schedule_id: str = "key") -> datetime | None:
        return (await self.get(schedule_id)).next_fire_at

    async def jobs(self) -> list[datetime]:
        """Return the fire times that became jobs."""
        return sorted(job.execution_time for job in await self.scheduler.list_jobs(limit=1000))


@pytest.fixture
async def bench(
    zones: Zones, clocked: Store, bus: EventBus, pool: asyncpg.Pool, clock: FakeClock
) -> AsyncIterator[Bench]:
    scheduler = Scheduler(pool, clock=clock)
    yield Bench(scheduler, Parts(clocked, bus), clock)
    await scheduler.shutdown()


@pytest.mark.parametrize(("hours", "moved"), [(2, NINE - HOUR), (0, NINE + HOUR), (1, NINE)])
async def test_first_pass_moves_the_next_fire_time_to_that_of_newer_data(
    bench: Bench, zones: Zones, hours: int, moved: datetime
) -> None:
    assert (await bench.add()).next_fire_at == NINE
    await bench.start()
    zones("2026b", hours)
    await bench.start()
    assert await bench.next_at() == moved
    assert await bench.jobs() == []
    bench.clock.advance(moved - NOON)
    await bench.start()
    assert await bench.jobs() == [moved]
    assert await bench.next_at() == moved + DAY


async def test_declared_schedule_is_moved_too(bench: Bench, zones: Zones) -> None:
    periodic(cron="0 9 * * *", timezone=BERLIN, dedup_key="key")(work)
    await bench.start()
    assert await bench.next_at() == NINE
    zones("2026b", 2)
    await bench.start()
    assert await bench.next_at() == NINE - HOUR


async def test_node_with_older_data_leaves_the_next_fire_time_of_newer_data(
    bench: Bench, zones: Zones
) -> None:
    """It fires at that time, and the time after it is moved again by the next check of the newer node."""
    zones("2026b", 2)
    await bench.add()
    zones("2026a", 1)
    row = await bench.get()
    bench.clock.advance(HOUR)
    await bench.start()
    assert await bench.get() == row, "not written either"
    assert row.next_fire_at == NINE - HOUR
    bench.clock.advance(NINE - HOUR - (NOON + HOUR))
    await bench.start()
    assert await bench.jobs() == [NINE - HOUR]
    zones("2026b", 2)
    await bench.start()
    assert await bench.next_at() == NINE + DAY - HOUR
    assert await bench.jobs() == [NINE - HOUR], "not the one of the older data an hour later"


async def test_running_node_looks_for_older_data_once_per_poll_interval(
    bench: Bench, zones: Zones, monkeypatch: pytest.MonkeyPatch
) -> None:
    zones("2026b", 2)
    newer = await bench.start()
    zones("2026a", 1)
    await bench.add()
    zones("2026b", 2)
    await newer.run_once()
    assert await bench.next_at() == NINE
    newer._check_fire_times_at = time.monotonic()
    await newer.run_once()
    assert await bench.next_at() == NINE - HOUR


@pytest.mark.parametrize("version", [None, "unknown", "2026a", "2025z"])
async def test_data_of_the_same_or_an_unknown_version_move_nothing(
    bench: Bench, zones: Zones, version: str | None
) -> None:
    await bench.add()
    zones(version, 2)
    await bench.start()
    assert await bench.next_at() == NINE


async def test_next_fire_time_of_an_unknown_version_is_kept(bench: Bench, zones: Zones) -> None:
    zones(None, 1)
    await bench.add()
    zones("2026b", 2)
    await bench.start()
    assert await bench.next_at() == NINE


async def test_schedules_without_a_zone_and_due_ones_are_not_searched_again(
    bench: Bench, zones: Zones, pool: asyncpg.Pool
) -> None:
    for trigger in (Cron("0 9 * * *"), Every(hours=1), At(NINE), Every(hours=1) & During(weekdays="mon-sun")):
        await bench.add(trigger, str(trigger))
    await pool.execute("UPDATE scheduler_schedules SET next_fire_at = $1", NINE + 7 * timedelta(minutes=1))
    rows = await bench.scheduler.schedules.list()
    await bench.add()
    bench.clock.advance(NINE - NOON)
    zones("2026b", 0)
    await bench.start()
    assert await bench.jobs() == [NINE], "that was due by the old data"
    assert await bench.next_at() == NINE + HOUR, "by the newer data"
    others = [each for each in await bench.scheduler.schedules.list() if each.schedule_id != "key"]
    assert others == list(rows)


@pytest.mark.parametrize(
    ("catch_up", "late_s", "runs"),
    [
        (CatchUp.latest(), 1800, 1),
        (CatchUp.latest(within=HOUR / 4), 1800, 0),
        (CatchUp.none(), 1800, 0),
        (CatchUp.none(), 240, 1),  # within its misfire grace time
    ],
)
async def test_fire_time_that_has_passed_by_newer_data_is_planned_once_as_after_a_downtime(
    bench: Bench, zones: Zones, catch_up: CatchUp, late_s: float, runs: int
) -> None:
    await bench.add(catch_up=catch_up)
    zones("2026b", 2)
    bench.clock.advance(NINE - HOUR - NOON + timedelta(seconds=late_s))
    await asyncio.gather(*(bench.start() for _ in range(3)))
    await bench.start()
    assert await bench.jobs() == [NINE - HOUR] * runs
    schedule = await bench.get()
    assert (schedule.runs, schedule.missed) == (runs, 1 - runs)
    assert schedule.next_fire_at == NINE + DAY - HOUR


async def test_edit_before_the_first_pass_loses_no_fire_time(bench: Bench, zones: Zones) -> None:
    await bench.add()
    zones("2026b", 2)
    bench.clock.advance(NINE - HOUR / 2 - NOON)
    await bench.scheduler.schedules.update("key", metadata={"edited": True})
    await bench.start()
    assert await bench.jobs() == [NINE - HOUR]


async def fire_daily(bench: Bench) -> None:
    await bench.add()
    bench.clock.advance(NINE - NOON)
    await bench.start()
    assert await bench.jobs() == [NINE]


@pytest.mark.parametrize("ends_by_itself", [False, True])
async def test_fire_times_of_a_pause_remain_discarded(
    bench: Bench, zones: Zones, ends_by_itself: bool
) -> None:
    """The pause ends after the fire time of the newer data, and before that of the older data."""
    await fire_daily(bench)
    resumed = NINE + 3 * DAY - HOUR / 2
    await bench.scheduler.schedules.pause("key", until=resumed if ends_by_itself else None)
    bench.clock.advance(resumed - NINE)
    if ends_by_itself:
        await bench.start()
    else:
        await bench.scheduler.schedules.resume("key")
        await bench.start()
    assert await bench.next_at() == NINE + 3 * DAY
    zones("2026b", 2)
    await bench.start()
    assert await bench.next_at() == NINE + 4 * DAY - HOUR
    assert await bench.jobs() == [NINE]


@pytest.mark.parametrize("ends_by_itself", [False, True])
async def test_paused_schedule_is_moved_when_its_pause_ends(
    bench: Bench, zones: Zones, ends_by_itself: bool
) -> None:
    await bench.add()
    schedules, end = bench.scheduler.schedules, NOON + HOUR
    await schedules.pause("key", until=end if ends_by_itself else None)
    row = await bench.get()
    zones("2026b", 2)
    await bench.start()
    assert await bench.get() == row
    bench.clock.advance(HOUR)
    if not ends_by_itself:
        await schedules.resume("key")
    await bench.start()
    assert await bench.next_at() == NINE - HOUR


async def test_new_trigger_has_no_fire_times_before_its_edit(bench: Bench, zones: Zones) -> None:
    await fire_daily(bench)
    bench.clock.advance(5.5 * HOUR)
    trigger = Cron("0 * * * *", BERLIN)
    await bench.scheduler.schedules.update("key", trigger=trigger)
    zones("2026b", 2)
    await bench.start()
    assert await bench.next_at() == NINE + 6 * HOUR
    assert await bench.jobs() == [NINE]


async def test_fixed_delay_within_a_window_is_counted_from_the_end_of_its_job(
    bench: Bench, zones: Zones
) -> None:
    await bench.add(FixedDelay(2 * HOUR) & During(start=wall_time(9), end=wall_time(17), timezone=BERLIN))
    assert await bench.next_at() == NOON + 2 * HOUR
    bench.clock.advance(2 * HOUR)
    await bench.start()
    (job,) = await bench.scheduler.list_jobs()
    bench.clock.advance(HOUR)
    await bench.scheduler.cancel_job(job.job_id)
    await bench.start()
    assert await bench.next_at() == NINE
    zones("2026b", 0)
    await bench.start()
    assert await bench.next_at() == NINE + HOUR, "not two hours after the fire time, within the window"


async def test_end_of_a_schedule_bounds_the_moved_fire_time(bench: Bench, zones: Zones) -> None:
    await bench.add(end=NINE)
    zones("2026b", 0)
    await bench.start()
    schedule = await bench.get()
    assert (schedule.next_fire_at, schedule.finished_at) == (None, NOON)


async def test_locked_schedule_is_left_to_a_later_check(bench: Bench, zones: Zones, clocked: Store) -> None:
    await bench.add()
    zones("2026b", 2)
    async with clocked.connections.transaction() as connection:
        await clocked.schedules.lock(["key"], on=connection)
        assert await bench.parts.planner().run_once() > 0
    await bench.start()
    assert await bench.next_at() == NINE - HOUR


async def test_check_takes_no_statement_and_the_moves_one_transaction_for_all(
    bench: Bench, zones: Zones, dsn: str, bus: EventBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"key{number}" for number in range(5)]
    for schedule_id in ids:
        await bench.add(schedule_id=schedule_id)
    statements = Statements()

    async def named() -> dict[str, int]:
        """Return the statements but that which looks for removed functions in the same passes."""
        return {
            name: count
            for name, count in (await statements.take()).named.items()
            if name != "undeclared_modules"
        }

    async with asyncpg.create_pool(dsn, min_size=1, max_size=5, init=statements.listen) as pool:
        connections = Connections(pool)
        logged = Bench(bench.scheduler, Parts(Store(connections, clock=bench.clock), bus), bench.clock)
        await logged.start()
        assert await named() == {"next_fire": 1}, "a node with the same data"
        zones("2026b", 2)
        planner = await logged.start()
        assert await named() == {
            "next_fire": 2,
            "due_schedules": 1,
            "advance_schedules": 1,
        }
        await planner.run_once()
        assert await named() == {"next_fire": 1}
        zones("2026c", 0)
        monkeypatch.setattr(planner_module, "MAX_ROWS", 2)
        await logged.start()
        assert (await statements.take()).named["advance_schedules"] == 3
        await connections.release_held()
    assert [await bench.next_at(schedule_id) for schedule_id in ids] == [NINE + HOUR] * 5
