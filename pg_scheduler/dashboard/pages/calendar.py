"""The calendar: when schedules fire in a day, a week or a month, in any time zone."""

from __future__ import annotations

import calendar
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final

from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.dashboard.context import PageRequest, RejectedError, View
from pg_scheduler.inspect.calendar import MAX_DAILY, MAX_FIRES, FirePlan, ScheduleFires, plan_fires
from pg_scheduler.inspect.schedules import is_firing
from pg_scheduler.inspect.texts import counted
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.triggers.zones import named_zone, parse_timezone

SPANS: Final = ("day", "week", "month")
MAX_SCHEDULES: Final = 500
AGE_S: Final = 30.0
FIRES_OF_HOUR: Final = 200
NAMES_OF_HOUR: Final = 8
FEW_HOURS: Final = 3
"""The number of hours of a day up to which the only schedule of an hour is named in its cell. The name of an
hourly schedule in each cell would hide the others."""

ALL_HOURS: Final = 23
"""A schedule that fires in so many hours of each day fires every hour: a clock change leaves out one."""

SHOWN_TIMES: Final = 4
"""Fire times of a schedule in an hour that are listed; of more, the first and the last are."""

SHOWN_NEXT: Final = 8
"""The next fire times that the page lists unless an hour is chosen."""

MANY: Final = 5
"""The number of fire times in the same minute from which on they are called a collision."""

SHOWN: Final = 20
YEARS: Final = range(1980, 2200)
DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CalendarFire:
    """A fire time."""

    at: datetime
    local: str
    schedule_id: str
    task: str
    day: date
    """The day by the clock of the calendar."""


@dataclass(frozen=True, slots=True)
class CalendarHour:
    """An hour by the clock. In the night of a clock change, an hour is left out or repeated."""

    count: int
    names: Sequence[str]
    others: int
    is_collision: bool
    """Whether five or more of them fire in the same minute."""
    owner: str
    """The only schedule that fires in it besides hourly ones, if it fires in few hours of the day; empty for
    none."""
    _owner_count: int
    """The number of its fire times; 0 without an owner."""
    is_usual: bool
    """Whether only schedules fire in it that fire in each hour."""
    times: Sequence[tuple[str, str]]
    """The schedules, each with its fire times, if the page shows one day; else empty."""


@dataclass(frozen=True, slots=True)
class CalendarDay:
    """A day of the time zone of the calendar."""

    day: date
    count: int
    hours: Sequence[CalendarHour]
    clock_changes: Sequence[str]
    """The effects of a clock change of this day on schedules."""


async def build(request: PageRequest) -> View:
    """Compute the fire times of a period; they are shared among all requests for some seconds.

    The parameters ``day`` and ``hour`` choose an hour whose fire times are listed below the calendar.
    """
    parameters = request.parameters
    try:
        name, zone = named_zone(parameters.get("zone") or "UTC")
    except ValueError as error:
        raise RejectedError(str(error)) from error
    span, task = request.choice("span", SPANS, "week"), parameters.get("task") or None
    today = request.now.astimezone(zone).date()
    chosen_day, hour = _day(parameters.get("start"), today, "start"), _hour(parameters.get("hour"))
    day_of_hour = _day(parameters.get("day"), chosen_day, "day")
    first_day, last_day, before, after = _period(span, chosen_day)
    since = datetime.combine(first_day, time(), zone).astimezone(UTC)
    until = datetime.combine(last_day + DAY, time(), zone).astimezone(UTC)
    plan, paused_schedules, are_schedules_capped = await request.read_shared(
        _read_plan, since, until, age_s=AGE_S
    )
    # A schedule that was left out or not read may fire in any hour, so each number may be too low.
    is_capped = are_schedules_capped or plan.left_out > 0
    has_today = first_day <= today <= last_day
    days = [first_day + number * DAY for number in range((last_day - first_day).days + 1)]

    def page() -> View:
        """Return the page of the visible schedules. It runs in a thread, so it reads no data itself."""

        def is_shown(item: ScheduleFires | Schedule) -> bool:
            """Return whether the calendar has a schedule."""
            return request.access.sees_name(item.task) and (task is None or item.task == task)

        items = list(filter(is_shown, plan.items))
        paused = [schedule.schedule_id for schedule in paused_schedules if is_shown(schedule)]
        fires: list[CalendarFire] = []
        for item in items:
            for at in item.fires:
                local = at.astimezone(zone)
                fires.append(CalendarFire(at, f"{local:%H:%M}", item.schedule_id, item.task, local.date()))
        fires.sort(key=lambda fire: (fire.at, fire.schedule_id))
        by_hour: dict[tuple[date, int], list[CalendarFire]] = defaultdict(list)
        for fire in fires:
            by_hour[fire.day, fire.at.astimezone(zone).hour].append(fire)
        # Schedules that fire in each hour are named once above the calendar, instead of in each of its cells.
        # A month has one cell for each day, which shows no hours.
        hourly = [] if span == "month" else _hourly(days, by_hour)
        calendar_days = _days(days, by_hour, _clock_changes(items, name, zone), hourly)
        cells = calendar_days if span == "month" else [hour for day in calendar_days for hour in day.hours]
        frequent = {item.schedule_id: item.described for item in items if item.is_frequent}
        problems = {item.schedule_id: item.problem for item in items if item.problem is not None}
        return View(
            zone=name,
            span=span,
            start=chosen_day,
            today=today,
            now_hour=request.now.astimezone(zone).hour,
            before=before,
            after=after,
            task=task,
            hour=hour,
            day=day_of_hour,
            fires=[] if hour is None else by_hour[day_of_hour, hour][:FIRES_OF_HOUR],
            hourly=hourly[:SHOWN],
            _number_of_hourly=len(hourly),
            paused=paused[:SHOWN],
            _number_of_paused=len(paused),
            next=[fire for fire in fires if fire.at >= request.now][:SHOWN_NEXT] if has_today else [],
            has_today=has_today,
            days=calendar_days,
            collisions=_collisions(fires, zone),
            is_capped=is_capped,
            frequent=dict(list(frequent.items())[:SHOWN]),
            number_of_frequent=len(frequent),
            problems=dict(list(problems.items())[:SHOWN]),
            number_of_problems=len(problems),
            summary=_summary(
                len(fires),
                len({fire.schedule_id for fire in fires}),
                len(frequent),
                plan.left_out if request.access.visible_names is None else 0,
                is_capped=is_capped,
                are_schedules_capped=are_schedules_capped,
            ),
            _most=max(cell.count for cell in cells),
        )

    # Up to 40,000 fire times take a fifth of a second, so other requests continue meanwhile.
    return await run_in_thread(page)


async def _read_plan(
    request: PageRequest, since: datetime, until: datetime
) -> tuple[FirePlan, Sequence[Schedule], bool]:
    """Return the fire times of all schedules in a period, and those that are paused without an end.

    The last member is whether there may be more schedules.
    """
    schedules = await request.inspector.schedules(limit=MAX_SCHEDULES)
    # Schedules that are finished or retired never fire again, so the calendar does not mention them.
    paused = [
        schedule
        for schedule in schedules
        if not is_firing(schedule) and schedule.finished_at is None and schedule.retired_at is None
    ]
    return await plan_fires(schedules, since, until), paused, len(schedules) == MAX_SCHEDULES


def _day(text: str | None, default: date, name: str) -> date:
    """Return the day that a parameter of this name has; the default if it is missing or empty.

    Raises:
        RejectedError: The text is no day, or one of a year without a calendar.
    """
    try:
        day = date.fromisoformat(text) if text else default
    except ValueError:
        day = None
    if day is None or day.year not in YEARS:
        raise RejectedError(f"{name} must be a day such as {default}, from 1980 to 2199, not {text!r:.60}")
    return day


def _hour(text: str | None) -> int | None:
    """Return the hour of a day that was chosen, from 0 to 23; None for none.

    Raises:
        RejectedError: The text is no hour.
    """
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 2 and int(text) < 24):
        raise RejectedError(f"hour must be a number from 0 to 23, not {text[:50]!r}")
    return int(text)


def _period(span: str, day: date) -> tuple[date, date, date, date]:
    """Return the first and the last day to show, and a day in the previous and in the next period.

    A week is seven days from the chosen day on and not from Monday on, since what is past is of little use. A
    month is shown in whole weeks, so it begins and ends with days of the months around it.
    """
    if span == "day":
        return day, day, day - DAY, day + DAY
    if span == "week":
        return day, day + 6 * DAY, day - 7 * DAY, day + 7 * DAY
    first = day.replace(day=1)
    last = day.replace(day=calendar.monthrange(day.year, day.month)[1])
    end = last + (6 - last.weekday()) * DAY
    return first - first.weekday() * DAY, end, first - DAY, last + DAY


def _hourly(days: Sequence[date], by_hour: Mapping[tuple[date, int], Sequence[CalendarFire]]) -> list[str]:
    """Return the ids of the schedules that fire in each hour of the days.

    ``by_hour`` has the fire times by day and hour.
    """
    # For each day, in how many of its hours each schedule fires.
    hours_by_day: list[Counter[str]] = []
    for day in days:
        hours_of_schedules: Counter[str] = Counter()
        for hour in range(24):
            # The set lets a schedule count once for an hour, however often it fires in it.
            hours_of_schedules.update({fire.schedule_id for fire in by_hour.get((day, hour), ())})
        hours_by_day.append(hours_of_schedules)
    # A schedule that fires in each hour of each day is among those of the first day.
    return sorted(
        schedule_id
        for schedule_id in hours_by_day[0]
        if all(hours[schedule_id] >= ALL_HOURS for hours in hours_by_day)
    )


def _days(
    days: Sequence[date],
    by_hour: Mapping[tuple[date, int], Sequence[CalendarFire]],
    changes: Mapping[date, Sequence[str]],
    hourly: Collection[str],
) -> list[CalendarDay]:
    """Return the days with the fire times of each hour, and with the effects of clock changes."""
    calendar_days = []
    for day in days:
        fires_by_hour = [by_hour.get((day, hour), ()) for hour in range(24)]
        # In how many hours of the day each schedule fires.
        hours_of_schedules: Counter[str] = Counter()
        for fires in fires_by_hour:
            hours_of_schedules.update({fire.schedule_id for fire in fires})
        rare_ids = {schedule_id for schedule_id, number in hours_of_schedules.items() if number <= FEW_HOURS}
        hours = [_hour_of(fires, rare_ids, hourly, has_times=len(days) == 1) for fires in fires_by_hour]
        fire_count = sum(hour.count for hour in hours)
        calendar_days.append(CalendarDay(day, fire_count, hours, changes.get(day, ())[:SHOWN]))
    return calendar_days


def _clock_changes(items: Sequence[ScheduleFires], name: str, zone: tzinfo) -> Mapping[date, Sequence[str]]:
    """Return the effects of clock changes in words, by the day of the calendar.

    The words have the times of the zone of the schedule. If the clock of the calendar, whose zone has this
    name, shows another time, that is added.
    """
    changes: dict[date, list[str]] = defaultdict(list)
    for item in items:
        for effect in item.effects:
            text = f"{item.schedule_id}: {effect.text}"
            if effect.fires_at is not None:
                local = effect.fires_at.astimezone(zone)
                if local.utcoffset() != effect.fires_at.astimezone(parse_timezone(effect.zone)).utcoffset():
                    text += f" ({local:%H:%M} in {name})"
            changes[effect.at.astimezone(zone).date()].append(text)
    return changes


def _hour_of(
    fires: Sequence[CalendarFire], rare_ids: Collection[str], hourly_ids: Collection[str], *, has_times: bool
) -> CalendarHour:
    """Return an hour of the calendar with its fire times.

    ``rare_ids`` are the schedules that fire in few hours of the day, ``hourly_ids`` those that fire in each
    hour. ``has_times`` is whether the cell also lists the fire times of its schedules.
    """
    counts = Counter(fire.schedule_id for fire in fires)
    names = list(counts)
    most_in_a_minute = max(Counter(_minute(fire) for fire in fires).values(), default=0)
    other_names = [name for name in names if name not in hourly_ids]
    owner = other_names[0] if len(other_names) == 1 and other_names[0] in rare_ids else ""
    shown_names = names[:NAMES_OF_HOUR]
    return CalendarHour(
        count=len(fires),
        names=shown_names,
        others=len(names) - len(shown_names),
        is_collision=most_in_a_minute >= MANY,
        owner=owner,
        _owner_count=counts[owner],
        is_usual=bool(fires) and not other_names,
        times=[(name, _times_of(name, fires)) for name in shown_names] if has_times else [],
    )


def _times_of(schedule_id: str, fires: Sequence[CalendarFire]) -> str:
    """Return the fire times of a schedule among these, as a text; of many, only the first and the last."""
    times = list(dict.fromkeys(fire.local for fire in fires if fire.schedule_id == schedule_id))
    return ", ".join(times) if len(times) <= SHOWN_TIMES else f"{times[0]} to {times[-1]}"


def _minute(fire: CalendarFire) -> datetime:
    """Return the start of the minute in which a schedule fires."""
    return fire.at.replace(second=0, microsecond=0)


def _collisions(fires: Sequence[CalendarFire], zone: tzinfo) -> list[dict[str, object]]:
    """Return the minutes with many fire times, those with the most first, each with some of its schedules."""
    counts = Counter(map(_minute, fires))
    busy_minutes = [at for at, count in counts.items() if count >= MANY]
    minutes = sorted(busy_minutes, key=lambda at: (-counts[at], at))[:SHOWN]
    # The first schedules of each of these minutes, at most MANY. Other minutes have no list.
    ids: dict[datetime, list[str]] = {at: [] for at in minutes}
    for fire in fires:
        ids_of_minute = ids.get(_minute(fire))
        if ids_of_minute is None or len(ids_of_minute) >= MANY:
            continue
        if fire.schedule_id not in ids_of_minute:
            ids_of_minute.append(fire.schedule_id)
    return [
        {
            "at": at,
            "local": f"{at.astimezone(zone):%a %Y-%m-%d %H:%M}",
            "count": counts[at],
            "schedules": ids[at],
        }
        for at in minutes
    ]


def _summary(
    fires: int,
    schedules: int,
    frequent: int,
    left_out: int,
    *,
    is_capped: bool,
    are_schedules_capped: bool,
) -> str:
    """Return what the calendar has and lacks, as a text.

    ``fires``, ``schedules``, ``frequent`` and ``left_out`` are numbers: of fire times, of schedules with fire
    times, and of schedules that are too frequent or were left out for another reason.
    """
    fires_text = counted(fires, "fire time", is_capped=is_capped)
    schedules_text = counted(schedules, "schedule", is_capped=is_capped)
    parts = [f"{fires_text} of {schedules_text}"]
    if frequent:
        frequent_text = counted(frequent, "schedule", is_capped=is_capped)
        parts.append(f"{frequent_text} too frequent to be listed (more than {MAX_DAILY} times in 24 h)")
    if left_out:
        number = counted(left_out, "schedule", is_capped=are_schedules_capped)
        parts.append(f"{number} left out: the calendar has at most {MAX_FIRES:,} fire times and 1 s")
    if are_schedules_capped:
        parts.append(f"only the first {MAX_SCHEDULES} schedules are read")
    return "; ".join(parts)
