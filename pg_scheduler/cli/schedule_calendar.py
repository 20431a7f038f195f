"""``schedules calendar``: how many fire times each hour has, and how many of them are at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Final

import typer

from pg_scheduler.inspect.calendar import FirePlan, ScheduleFires, plan_fires
from pg_scheduler.inspect.texts import counted, listed

from .commands import Command
from .output import Column, Shape
from .values import read_time


@dataclass(frozen=True, slots=True, kw_only=True)
class HourLoad:
    """The fire times of all schedules in an hour."""

    hour: datetime
    fires: int
    bar: str
    most: int
    """The most fire times within a second."""
    most_at: datetime
    schedules: Sequence[str]


HOUR_LOAD: Final = Shape(
    "hour_load",
    HourLoad,
    "hour",
    (
        Column("hour", "HOUR"),
        Column("fires", "FIRES"),
        Column("bar", "LOAD"),
        Column("most", "AT ONCE"),
        Column("most_at", "AT", is_wide=True),
        Column("schedules", "SCHEDULES", is_long=True),
    ),
)
BAR_WIDTH: Final = 10
MAX_SCHEDULES: Final = 10_000
WEEK: Final = timedelta(days=7)
HOUR: Final = timedelta(hours=1)


async def calendar(
    command: Command,
    *,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="The start.")] = "now",
    days: Annotated[int, typer.Option("--days", min=1, max=31, metavar="N", help="The length.")] = 1,
    week: Annotated[bool, typer.Option("--week", help="Seven days.")] = False,
) -> None:
    """Print the hours in which schedules fire, and the fire times of several schedules at once.

    Paused and finished schedules are left out.
    """
    since = read_time("--from", start, command.output.zone)
    until = since + (WEEK if week else timedelta(days=days))
    async with command.scheduler() as scheduler:
        schedules = await scheduler.schedules.list(paused=False, limit=MAX_SCHEDULES)
    plan = await plan_fires(schedules, since, until)
    command.output.write_list(HOUR_LOAD, _rows(plan.items, command.output.zone))
    for line in _remarks(plan, is_cut=schedules.next is not None):
        command.output.say(line)


def _rows(items: Sequence[ScheduleFires], zone: tzinfo) -> list[HourLoad]:
    hours: dict[datetime, list[tuple[datetime, str]]] = defaultdict(list)
    for item in items:
        for fire in item.fires:
            hours[_hour_of(fire, zone)].append((fire, item.schedule_id))
    highest = max(map(len, hours.values()), default=0)
    return [_row(hour, found, highest) for hour, found in sorted(hours.items())]


def _row(hour: datetime, found: Sequence[tuple[datetime, str]], highest: int) -> HourLoad:
    ((most_at, most),) = Counter(fire.replace(microsecond=0) for fire, _ in sorted(found)).most_common(1)
    return HourLoad(
        hour=hour,
        fires=len(found),
        bar="█" * max(round(len(found) / highest * BAR_WIDTH), 1),
        most=most,
        most_at=most_at,
        schedules=sorted({schedule_id for _, schedule_id in found}),
    )


def _hour_of(fire: datetime, zone: tzinfo) -> datetime:
    """Return the start of the hour by the clock of a zone."""
    local = fire.astimezone(zone)
    past = timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
    return fire.astimezone(UTC) - past


def _remarks(plan: FirePlan, *, is_cut: bool) -> list[str]:
    frequent = [each.schedule_id for each in plan.items if each.is_frequent]
    remarks = [f"{each.schedule_id}: {effect.text}" for each in plan.items for effect in each.effects]
    remarks += [f"{each.schedule_id}: {each.problem}" for each in plan.items if each.problem is not None]
    if frequent:
        remarks.append(f"they fire too often to be counted: {listed(frequent)}")
    if plan.left_out:
        remarks.append(f"{counted(plan.left_out, 'schedule')} left out, since there are too many fire times")
    if is_cut:
        remarks.append(f"only the first {MAX_SCHEDULES:,} schedules were read")
    return remarks
