"""What a planner computed from a time of the server is computed again once its clock was set back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pg_scheduler import ConflictResolution, Overlap, Schedule, Scheduler
from pg_scheduler.clock import FakeClock
from pg_scheduler.events import EventBus
from pg_scheduler.triggers import Cron, Every, FixedDelay, Trigger
from tests.support.inside import Store
from tests.support.parts import Parts

NOON = datetime(2030, 3, 10, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
YEARS = timedelta(days=3650)

TRIGGERS = [Every(minutes=5), Cron("*/5 * * * *"), FixedDelay(timedelta(minutes=5))]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON)


async def work() -> None: ...


class Bench:
    """A client and a planner that runs by hand, on one clock."""

    def __init__(self, scheduler: Scheduler, parts: Parts, clock: FakeClock) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.planner = parts.planner()
        self.calls = parts.calls

    async def add(self, trigger: Trigger, **options: Any) -> Schedule:
        return await self.scheduler.schedules.add(
            "tests.work", trigger, schedule_id="key", overlap=Overlap.ALLOW, **options
        )

    async def plan(self) -> None:
        while await self.planner.run_once() == 0:
            pass

    async def be_wrong(self, by: timedelta) -> None:
        """Let the clock be ahead for one pass, which plans what is due then."""
        self.clock.advance(by)
        await self.plan()
        self.clock.advance(-by)

    async def next_at(self) -> datetime | None:
        schedule = await self.scheduler.schedules.get("key")
        assert schedule is not None
        return schedule.next_fire_at

    async def jobs(self) -> list[datetime]:
        return sorted(job.execution_time for job in await self.scheduler.list_jobs(limit=1000))


@pytest.fixture
def bench(clocked: Store, bus: EventBus, pool: asyncpg.Pool, clock: FakeClock) -> Bench:
    parts = Parts(clocked, bus)
    parts.tasks.register(work, name="tests.work")
    return Bench(Scheduler(pool, clock=clock), parts, clock)


@pytest.mark.parametrize("trigger", TRIGGERS, ids=str)
@pytest.mark.parametrize("by", [YEARS, timedelta(hours=2)])
async def test_schedule_fires_again_after_the_clock_was_ahead(
    bench: Bench, pool: asyncpg.Pool, caplog: pytest.LogCaptureFixture, trigger: Trigger, by: timedelta
) -> None:
    await bench.add(trigger)
    await bench.plan()
    await bench.be_wrong(by)
    if isinstance(trigger, FixedDelay):  # its job has ended while the clock was ahead
        await pool.execute("UPDATE scheduler_schedules SET next_fire_at = $1, updated_at = $1", NOON + by)
    await bench.plan()
    assert await bench.next_at() != NOON + 5 * MINUTE
    bench.planner.check_fire_times()
    await bench.plan()
    assert await bench.next_at() == NOON + 5 * MINUTE
    assert caplog.text.count("the server's clock was set back since schedule 'key' of tests.work fired") == 1
    assert bench.calls.count("schedule_was_ahead") == 1, "due times are corrected too"
    bench.clock.advance(5 * MINUTE)
    await bench.plan()
    assert NOON + 5 * MINUTE in await bench.jobs()
    bench.planner.check_fire_times()
    await bench.plan()
    assert caplog.text.count("was set back") == 1


async def test_fire_time_that_has_fired_before_the_clock_was_set_back_has_no_second_job(bench: Bench) -> None:
    await bench.add(Every(minutes=5))
    await bench.plan()
    await bench.be_wrong(5 * MINUTE)
    before = await bench.jobs()
    assert before == [NOON + 5 * MINUTE]
    bench.planner.check_fire_times()
    await bench.plan()
    bench.clock.advance(5 * MINUTE)
    await bench.plan()
    assert await bench.jobs() == before
    assert await bench.next_at() == NOON + 10 * MINUTE


@pytest.mark.parametrize("change", ["replace", "update", "start"])
async def test_edit_computes_the_next_fire_time_of_a_schedule_that_was_ahead(
    bench: Bench, change: str
) -> None:
    await bench.add(Every(minutes=5))
    await bench.plan()
    await bench.be_wrong(YEARS)
    if change == "replace":
        await bench.add(Every(minutes=5), conflict_resolution=ConflictResolution.REPLACE)
    elif change == "update":
        await bench.scheduler.schedules.update("key", trigger=Every(minutes=10))
    else:
        await bench.plan()
        bench.planner.check_fire_times()  # as a planner that starts
    await bench.plan()
    assert await bench.next_at() == NOON + (10 if change == "update" else 5) * MINUTE


async def test_resumed_schedule_that_was_ahead_fires_again(bench: Bench) -> None:
    await bench.add(Every(minutes=5))
    await bench.plan()
    await bench.be_wrong(YEARS)
    await bench.scheduler.schedules.pause("key")
    bench.planner.check_fire_times()
    await bench.plan()
    await bench.scheduler.schedules.resume("key")
    bench.planner.check_fire_times()
    await bench.plan()
    assert await bench.next_at() == NOON + 5 * MINUTE


async def test_schedule_that_starts_later_is_not_ahead(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    start = NOON + YEARS
    await bench.add(Every(minutes=5), start=start)
    await bench.plan()
    bench.planner.check_fire_times()
    await bench.plan()
    assert await bench.next_at() == start
    assert "set back" not in caplog.text


async def test_small_step_back_changes_nothing(bench: Bench) -> None:
    await bench.add(Every(minutes=5))
    await bench.plan()
    bench.clock.advance(5 * MINUTE)
    await bench.plan()
    bench.clock.advance(timedelta(seconds=-4))
    bench.planner.check_fire_times()
    await bench.plan()
    assert await bench.next_at() == NOON + 10 * MINUTE
