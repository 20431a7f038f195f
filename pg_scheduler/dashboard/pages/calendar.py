"""The calendar: when schedules fire in a week or a month, in any time zone."""

from __future__ import annotations

import asyncio
import calendar
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final

from pg_scheduler.dashboard.context import PageRequest, RejectedError
from pg_scheduler.inspect.calendar import FirePlan, ScheduleFires, plan_fires
from pg_scheduler.triggers.zones import named_zone

SPANS: Final = ("week", "month")
MAX_SCHEDULES: Final = 500
AGE_S: Final = 30.0
"""Seconds for which the fire times of a period are kept."""

FIRES_OF_DAY: Final = 50
"""Fire times of a day that are listed."""

MANY: Final = 5
"""Schedules that fire in the same minute and are called a collision."""

SHOWN: Final = 20
"""Collisions, and schedules of each kind, that are listed."""

YEARS: Final = range(1980, 2200)
DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CalendarFire:
    """A fire time."""

    at: datetime
    local: str
    schedule_id: str
    task: str


@dataclass(frozen=True, slots=True)
class CalendarDay:
    """A day of the time zone of the calendar."""

    day: date
    count: int
    hours: Sequence[int]
    """The number of fire times in each hour by the clock."""
    fires: Sequence[CalendarFire]
    """The first fire times."""
    clock_changes: Sequence[str]
    """The effects of a clock change of this day on schedules."""


@dataclass(frozen=True, slots=True)
class Collision:
    """A minute in which many schedules fire."""

    at: datetime
    local: str
    count: int
    schedules: Sequence[str]
    """Some of their ids."""


@dataclass(frozen=True, slots=True)
class CalendarPage:
    """A week or a month."""

    zone: str
    span: str
    start: date
    today: date
    before: date
    after: date
    days: Sequence[CalendarDay]
    collisions: Sequence[Collision]
    frequent: Mapping[str, str]
    """Schedules that fire too often to be listed, with their triggers in words."""
    problems: Mapping[str, str]
    """Schedules whose fire times could not be computed."""
    summary: str

    @property
    def spans(self) -> Sequence[str]:
        """The values of ``span`` to choose from."""
        return SPANS

    @property
    def weeks(self) -> Sequence[Sequence[CalendarDay]]:
        """The days by week."""
        return [self.days[place : place + 7] for place in range(0, len(self.days), 7)]

    @property
    def busiest(self) -> int:
        """The largest number of fire times of an hour."""
        return max((count for day in self.days for count in day.hours), default=0)

    def is_outside(self, day: CalendarDay) -> bool:
        """Return whether the day belongs to the month before or after."""
        return self.span == "month" and day.day.month != self.start.month

    def load(self, count: int) -> int:
        """Return how busy an hour is, from 0 to 4."""
        return -(-4 * count // self.busiest) if count else 0


async def build(request: PageRequest) -> CalendarPage:
    """Compute the fire times of a period; they are shared among all requests for some seconds."""
    try:
        name, zone = named_zone(request.parameters.get("zone") or "UTC")
    except ValueError as error:
        raise RejectedError(str(error)) from error
    span = request.parameters.get("span") or "week"
    if span not in SPANS:
        raise RejectedError(f"span must be one of {', '.join(SPANS)}, not {span[:50]!r}")
    today = request.now.astimezone(zone).date()
    chosen = _day(request.parameters.get("start"), today)
    first, last, before, after = _period(span, chosen)
    since, until = (datetime.combine(day, time(), zone).astimezone(UTC) for day in (first, last + DAY))

    async def read() -> FirePlan:
        schedules = await request.inspector.schedules(limit=MAX_SCHEDULES)
        return await plan_fires(schedules, since, until)

    plan = await request.cache.get(("calendar", since, until), AGE_S, read)
    days = [first + number * DAY for number in range((last - first).days + 1)]

    def page() -> CalendarPage:
        items = [item for item in plan.items if request.access.sees_name(item.task)]
        fires = sorted(
            (
                CalendarFire(at, f"{at.astimezone(zone):%H:%M}", item.schedule_id, item.task)
                for item in items
                for at in item.fires
            ),
            key=lambda fire: (fire.at, fire.schedule_id),
        )
        frequent = {item.schedule_id: item.described for item in items if item.is_frequent}
        problems = {item.schedule_id: item.problem for item in items if item.problem is not None}
        return CalendarPage(
            zone=name,
            span=span,
            start=chosen,
            today=today,
            before=before,
            after=after,
            days=_days(days, fires, items, zone),
            collisions=_collisions(fires, zone),
            frequent=dict(list(frequent.items())[:SHOWN]),
            problems=dict(list(problems.items())[:SHOWN]),
            summary=_summary(plan, items, len(fires), len(frequent), request),
        )

    # Up to 20,000 fire times take a tenth of a second, so other requests continue meanwhile.
    return await asyncio.to_thread(page)


def _day(text: str | None, today: date) -> date:
    try:
        day = date.fromisoformat(text) if text else today
    except ValueError:
        day = None
    if day is None or day.year not in YEARS:
        raise RejectedError(f"start must be a day such as {today}, from 1980 to 2199, not {text!r:.60}")
    return day


def _period(span: str, day: date) -> tuple[date, date, date, date]:
    """Return the first and the last day of whole weeks, and a day of the periods before and after."""
    monday = day - day.weekday() * DAY
    if span == "week":
        return monday, monday + 6 * DAY, monday - 7 * DAY, monday + 7 * DAY
    first = day.replace(day=1)
    last = day.replace(day=calendar.monthrange(day.year, day.month)[1])
    end = last + (6 - last.weekday()) * DAY
    return first - first.weekday() * DAY, end, first - DAY, last + DAY


def _days(
    days: Sequence[date], fires: Sequence[CalendarFire], items: Sequence[ScheduleFires], zone: tzinfo
) -> list[CalendarDay]:
    by_day: dict[date, list[CalendarFire]] = defaultdict(list)
    hours: dict[date, list[int]] = defaultdict(lambda: [0] * 24)
    for fire in fires:
        local = fire.at.astimezone(zone)
        by_day[local.date()].append(fire)
        hours[local.date()][local.hour] += 1
    changes: dict[date, list[str]] = defaultdict(list)
    for item in items:
        for effect in item.effects:
            changes[effect.at.astimezone(zone).date()].append(f"{item.schedule_id}: {effect.text}")
    return [
        CalendarDay(day, len(by_day[day]), hours[day], by_day[day][:FIRES_OF_DAY], changes[day][:SHOWN])
        for day in days
    ]


def _collisions(fires: Sequence[CalendarFire], zone: tzinfo) -> list[Collision]:
    """Return the minutes in which many schedules fire, those with most of them first."""
    counts = Counter(fire.at.replace(second=0, microsecond=0) for fire in fires)
    chosen = sorted((at for at, count in counts.items() if count >= MANY), key=lambda at: (-counts[at], at))[
        :SHOWN
    ]
    ids: dict[datetime, list[str]] = {at: [] for at in chosen}
    for fire in fires:
        found = ids.get(fire.at.replace(second=0, microsecond=0))
        if found is not None and fire.schedule_id not in found and len(found) < MANY:
            found.append(fire.schedule_id)
    return [Collision(at, f"{at.astimezone(zone):%a %Y-%m-%d %H:%M}", counts[at], ids[at]) for at in chosen]


def _summary(
    plan: FirePlan, items: Sequence[ScheduleFires], fires: int, frequent: int, request: PageRequest
) -> str:
    said = f"{fires:,} fire times of {len(items)} schedules, as their triggers are now"
    if frequent:
        said += f"; {frequent} fire too often to be listed"
    if plan.left_out and request.access.visible_names is None:
        said += (
            f"; {plan.left_out} schedules are left out: the calendar has at most 20,000 fire times and 1 s"
        )
    return f"{said}; at most {MAX_SCHEDULES} schedules are read"
