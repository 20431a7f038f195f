"""The group ``schedules``, with its commands that print."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Any, Final

import typer

from pg_scheduler import Schedule
from pg_scheduler.base.text.values import copy_fields
from pg_scheduler.inspect import AuditRecord, Inspector
from pg_scheduler.inspect.calendar import FirePlan, ScheduleFires, plan_fires
from pg_scheduler.inspect.clock_changes import zone_of
from pg_scheduler.inspect.schedule_history import (
    RECORDS,
    ChangedPart,
    PastFire,
    differences,
    search_past_fire_times,
    with_statuses,
)
from pg_scheduler.inspect.texts import counted, listed
from pg_scheduler.triggers.zones import parse_timezone

from . import schedule_edit, schedule_times
from .commands import Command, Group, watched
from .output import VERSION_KEY, Column, Shape, columns
from .schedule_options import SCHEDULE, SCHEDULE_KEYS, FiredJob, ScheduleId, find_schedule
from .values import After, read_time


async def list_schedules(
    command: Command,
    limit: Annotated[int, typer.Option(help="Schedules of the page, up to 10,000.")] = 100,
    after: After = None,
) -> None:
    """Print a page of schedules, by id."""
    async with command.scheduler() as scheduler:
        page = await scheduler.schedules.list(limit=limit, after=after)
    rows = [_table_row(schedule) if command.output.is_table else schedule for schedule in page]
    command.output.write_list(SCHEDULE, rows, next=page.next)
    command.output.say_next(page.next)


def _table_row(schedule: Schedule) -> dict[str, Any]:
    """Return the row of a schedule in a table. The next fire time of a retired schedule is the word retired.

    The schedule itself keeps a next fire time, in case that code declares it again.
    """
    row = SCHEDULE.row(schedule)
    if schedule.retired_at is not None:
        row["next_fire_at"] = "retired"
    return row


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """A change of a schedule."""

    at: datetime
    actor: str
    via: str
    action: str
    changes: Sequence[ChangedPart]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSchedule(Schedule):
    """A schedule, what it did lately and how it was changed."""

    timezone: str
    """Of the trigger; UTC if it has several or none."""
    results: Sequence[FiredJob]
    """The last fire times and requested jobs."""
    changes: Sequence[ScheduleChange]
    """The last changes."""


SHOWN_SCHEDULE: Final = Shape(
    "shown_schedule",
    ShownSchedule,
    identity="schedule_id",
    keys=(*SCHEDULE_KEYS, "timezone", "results", "changes"),
)


async def show(command: Command, schedule_id: ScheduleId) -> None:
    """Print a schedule: its row, its last 20 fire times and requested jobs, and its last 50 changes."""
    async with command.scheduler() as scheduler:
        schedule = await find_schedule(scheduler, schedule_id)
        inspector = Inspector(scheduler)
        records = (await inspector.audit(subject=schedule_id, limit=RECORDS)).items
        results = await with_statuses(inspector, await _past_fires(command, schedule, records))
    timezone = zone_of(schedule)
    output = command.output
    if not output.is_table:
        document = copy_fields(
            ShownSchedule,
            schedule,
            timezone=timezone,
            results=[copy_fields(FiredJob, result) for result in results],
            changes=[
                copy_fields(ScheduleChange, record, changes=list(differences(record))) for record in records
            ],
        )
        output.write_one(SHOWN_SCHEDULE, document)
        return
    row = _table_row(schedule)
    row["timezone"] = timezone
    zone = parse_timezone(timezone)
    # The table also has the fire times as clocks show them in the time zone of the schedule. A retired
    # schedule does not fire at its next fire time.
    next_fire_at = None if schedule.retired_at is not None else schedule.next_fire_at
    fire_times = {"next": next_fire_at, "last": schedule.last_fire_at}
    for name, at in fire_times.items():
        if at is not None:
            row[f"{name} fire time there"] = f"{at.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}"
    output.write_one(SCHEDULE, row, keys=[key for key in row if key != VERSION_KEY])
    result_lines = [_result_line(command, result) for result in results]
    change_lines = [line for record in records for line in _change_lines(command, record)]
    for title, lines in (("last results", result_lines), ("changes", change_lines)):
        if lines:
            output.write_paragraph("\n".join([f"\n{title}:", *lines]))


async def _past_fires(
    command: Command, schedule: Schedule, records: Sequence[AuditRecord]
) -> Sequence[PastFire]:
    """Return the past fire times of a schedule; if its trigger fails, write why there are none."""
    try:
        return await search_past_fire_times(schedule, records)
    except Exception as error:  # noqa: BLE001 - a kind of trigger of the user
        command.output.say(f"no results: the trigger cannot compute its fire times: {error}")
        return []


def _result_line(command: Command, fire: PastFire) -> str:
    """Return a past fire time as a line: the time, the status of its job, and the id of the job."""
    manual = " (requested)" if fire.is_manual else ""
    return f"{command.output.when(fire.at)}  {fire.status or 'no job':9}  {fire.job_id}{manual}"


def _change_lines(command: Command, record: AuditRecord) -> Iterator[str]:
    """Yield who changed a schedule and how, and then each changed part before and after."""
    yield f"{command.output.when(record.at)}  {record.action} by {record.actor} ({record.via})"
    for difference in differences(record):
        yield f"  {difference.key}: {_text(difference.before)} -> {_text(difference.after)}"


def _text(value: object) -> str:
    """Return a text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


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
    (
        *columns("hour", "fires"),
        Column("bar", "LOAD"),
        Column("most", "AT ONCE"),
        Column("most_at", "AT", is_wide=True),
        Column("schedules", is_long=True),
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

    Paused, finished and retired schedules are left out.
    """
    since = read_time("--from", start, command.output.zone)
    until = since + (WEEK if week else timedelta(days=days))
    async with command.scheduler() as scheduler:
        schedules = await scheduler.schedules.list(paused=False, limit=MAX_SCHEDULES)
    plan = await plan_fires(schedules, since, until)
    command.output.write_list(HOUR_LOAD, _hour_loads(plan.items, command.output.zone))
    for line in _remarks(plan, is_cut=schedules.next is not None):
        command.output.say(line)


def _hour_loads(items: Sequence[ScheduleFires], zone: tzinfo) -> list[HourLoad]:
    """Return the loads of the hours in which a schedule fires, in order."""
    # The fire times of each hour, with the ids of their schedules.
    hours: dict[datetime, list[tuple[datetime, str]]] = defaultdict(list)
    for item in items:
        for fire in item.fires:
            hours[_hour_of(fire, zone)].append((fire, item.schedule_id))
    most_fires = max(map(len, hours.values()), default=0)
    return [_hour_load(hour, fires, most_fires) for hour, fires in sorted(hours.items())]


def _hour_load(hour: datetime, fires: Sequence[tuple[datetime, str]], most_fires: int) -> HourLoad:
    """Return the load of an hour, in proportion to the hour with the most fire times.

    Args:
        hour: The start of the hour.
        fires: Its fire times, each with the id of the schedule.
        most_fires: The number of fire times of the fullest hour, which has the longest bar.
    """
    # If several seconds have the most fire times, the first of them counts, so the fire times are sorted.
    fires_by_second = Counter(fire.replace(microsecond=0) for fire, _ in sorted(fires))
    ((most_at, most),) = fires_by_second.most_common(1)
    bar_length = max(round(len(fires) / most_fires * BAR_WIDTH), 1)
    return HourLoad(
        hour=hour,
        fires=len(fires),
        bar="█" * bar_length,
        most=most,
        most_at=most_at,
        schedules=sorted({schedule_id for _, schedule_id in fires}),
    )


def _hour_of(fire: datetime, zone: tzinfo) -> datetime:
    """Return the start of the hour by the clock of a zone, in UTC.

    The time that has passed since then is subtracted in UTC, so two hours that a clock change gives the same
    name stay apart.
    """
    local = fire.astimezone(zone)
    passed = timedelta(minutes=local.minute, seconds=local.second, microseconds=local.microsecond)
    return fire.astimezone(UTC) - passed


def _remarks(plan: FirePlan, *, is_cut: bool) -> list[str]:
    """Return sentences about what the hours do not show: clock changes, problems, and what is left out.

    ``is_cut`` is whether there are more schedules than were read.
    """
    frequent_ids = [item.schedule_id for item in plan.items if item.is_frequent]
    remarks = [f"{item.schedule_id}: {effect.text}" for item in plan.items for effect in item.effects]
    remarks += [f"{item.schedule_id}: {item.problem}" for item in plan.items if item.problem is not None]
    if frequent_ids:
        remarks.append(f"they fire too often to be counted: {listed(frequent_ids)}")
    if plan.left_out:
        remarks.append(f"{counted(plan.left_out, 'schedule')} left out, since there are too many fire times")
    if is_cut:
        remarks.append(f"only the first {MAX_SCHEDULES:,} schedules were read")
    return remarks


COMMANDS: Final = Group(
    "Find, add and change schedules.",
    {
        "list": watched(list_schedules),
        "show": show,
        "pause": schedule_edit.pause,
        "resume": schedule_edit.resume,
        "trigger": schedule_edit.trigger,
        "preview": schedule_times.preview,
        "calendar": calendar,
        "backfill": schedule_times.backfill,
        "add": schedule_edit.add,
        "update": schedule_edit.update,
        "remove": schedule_edit.remove,
    },
)
