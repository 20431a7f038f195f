"""The fire times of many schedules in a period."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.base.foreign import class_name, message_of
from pg_scheduler.inspect.clock_changes import ClockEffect, clock_effects
from pg_scheduler.inspect.fire_searches import search_each
from pg_scheduler.inspect.schedules import is_firing
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.triggers.base import is_fixed_delay
from pg_scheduler.triggers.search import INSTANT

MAX_DAILY: Final = 48
"""The maximum number of fire times of one schedule in 24 hours; a schedule with more is frequent.

It is a rate, so that a schedule is frequent in a day, a week and a month alike."""

MAX_EACH: Final = 2_100
"""The maximum number of fire times of one schedule. A month with its whole weeks has up to 42 days."""

MAX_FIRES: Final = 40_000
"""The number of fire times of all schedules from which on no further schedule is computed."""

DAY: Final = timedelta(days=1)
AFTER_ENDS: Final = "its fire times depend on when its jobs end"
"""The problem of a schedule whose trigger follows the ends of its jobs."""

MAX_SECONDS: Final = 1.0
"""Seconds after which no further schedule is computed."""

FIRST_CHUNK: Final = 4
"""Fire times that the first call of ``upcoming()`` computes; each further call computes four times as many.

The first call is small, because fire times after the period are computed in vain."""


@dataclass(frozen=True, slots=True)
class ScheduleFires:
    """The fire times of a schedule in a period."""

    schedule_id: str
    task: str
    described: str
    fires: Sequence[datetime]
    """The fire times; none at all for a frequent schedule."""
    is_frequent: bool
    """Whether the schedule has more than 48 fire times in 24 hours of the period."""
    effects: Sequence[ClockEffect]
    """The effects of clock changes on the schedule in the period."""
    problem: str | None
    """Why there are no fire times; None if they were computed."""


@dataclass(frozen=True, slots=True)
class FirePlan:
    """The fire times of schedules in a period."""

    items: Sequence[ScheduleFires]
    left_out: int
    """How many schedules were not computed, because there were 40,000 fire times already, or 1 s had
    passed."""


async def plan_fires(schedules: Iterable[Schedule], since: datetime, until: datetime) -> FirePlan:
    """Return the fire times from ``since`` on and before ``until``, as the triggers are now.

    A schedule that is finished or retired, or paused without an end, is left out. A schedule has no fire time
    before it was added, and none before the end of a pause that ends by itself. One that fires a fixed time
    after each job has a problem instead of fire times, because nothing computes when its jobs end.
    """
    fire_count = 0

    def search(schedule: Schedule) -> ScheduleFires | None:
        """Return the fire times of a schedule; None if there are too many of other schedules already."""
        nonlocal fire_count
        # A schedule without a result is left out.
        if fire_count >= MAX_FIRES:
            return None
        if schedule.trigger is not None and is_fixed_delay(schedule.trigger):
            return _item(schedule, problem=f"{AFTER_ENDS}: {schedule.described}")
        begin = max(since, schedule.created_at, schedule.paused_until or since)
        fires = _between(schedule, begin, until)
        effects: list[ClockEffect] = []
        if schedule.trigger is not None and fires:
            effects = clock_effects(schedule.trigger.to_json(), schedule.anchor, since, until)
        item = _item(schedule, fires, effects)
        fire_count += len(item.fires)
        return item

    def on_error(schedule: Schedule, error: Exception) -> ScheduleFires:
        """Return an item with the error of the search as its problem."""
        return _item(schedule, problem=message_of(error) or class_name(error))

    active = [schedule for schedule in schedules if is_firing(schedule)]
    items = await search_each(active, search, on_error, limit_s=MAX_SECONDS)
    return FirePlan(items, len(active) - len(items))


def _item(
    schedule: Schedule,
    fires: Sequence[datetime] = (),
    effects: Sequence[ClockEffect] = (),
    problem: str | None = None,
) -> ScheduleFires:
    """Return the item of a schedule, without fire times if the schedule is frequent.

    ``problem`` is why no fire times were computed; None if they were.
    """
    is_frequent = _is_frequent(fires)
    return ScheduleFires(
        schedule.schedule_id,
        schedule.task,
        schedule.described,
        () if is_frequent else fires,
        is_frequent,
        effects,
        problem,
    )


def _is_frequent(fires: Sequence[datetime]) -> bool:
    """Return whether there are too many fire times for a calendar."""
    # More than MAX_DAILY fire times are within 24 hours if one of them and the MAX_DAILY-th after it are less
    # than a day apart.
    fires_and_later_ones = zip(fires, fires[MAX_DAILY:], strict=False)
    return len(fires) > MAX_EACH or any(later - fire < DAY for fire, later in fires_and_later_ones)


def _between(schedule: Schedule, since: datetime, until: datetime) -> list[datetime]:
    """Return the fire times in a period. The search ends once the schedule is frequent."""
    fire_times: list[datetime] = []
    # A fire time at ``since`` counts, and one at the instant of after= would not.
    after = since - INSTANT
    chunk_size = FIRST_CHUNK
    while not _is_frequent(fire_times):
        chunk = schedule.upcoming(chunk_size, after=after)
        fire_times += [fire for fire in chunk if fire < until]
        # A chunk that is not full is the last one, because the schedule has no further fire times.
        if len(chunk) < chunk_size or chunk[-1] >= until:
            break
        after = chunk[-1]
        chunk_size = min(4 * chunk_size, MAX_EACH)
    remaining_runs = None if schedule.max_runs is None else max(schedule.max_runs - schedule.runs, 0)
    # A single call of upcoming() returns at most as many fire times as the schedule has runs left. Several
    # calls together can return more.
    return fire_times[:remaining_runs]
