"""``schedules show``: a schedule, what it did lately and how it was changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pg_scheduler import Schedule
from pg_scheduler.inspect import AuditRecord, Inspector
from pg_scheduler.inspect.clock_changes import zone_of
from pg_scheduler.inspect.schedule_history import (
    RECORDS,
    PastFire,
    differences,
    search_past_fire_times,
    with_statuses,
)
from pg_scheduler.triggers.zones import parse_timezone

from .commands import Command
from .output import Column, Shape, extended
from .schedule_rows import SCHEDULE, SCHEDULE_KEYS, FiredJob, ScheduleId, find_schedule


@dataclass(frozen=True, slots=True)
class ChangedKey:
    """A part of a schedule that was changed."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """A change of a schedule."""

    at: datetime
    actor: str
    via: str
    action: str
    changes: Sequence[ChangedKey]


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
    "schedule_id",
    (),
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
        shown = extended(
            ShownSchedule,
            schedule,
            timezone=timezone,
            results=[FiredJob.of(each) for each in results],
            changes=[_change(each) for each in records],
        )
        output.write_one(SHOWN_SCHEDULE, shown)
        return
    row = SCHEDULE.row(schedule) | {"timezone": timezone}
    zone = parse_timezone(timezone)
    fire_times = {"next": schedule.next_fire_at, "last": schedule.last_fire_at}
    for name, at in fire_times.items():
        if at is not None:
            row[f"{name} fire time there"] = f"{at.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}"
    output.write_one(replace(SCHEDULE, columns=[Column(key, key) for key in row if key != "v"]), row)
    for title, lines in (
        ("last results", [_result_line(command, each) for each in results]),
        ("changes", [line for each in records for line in _change_lines(command, each)]),
    ):
        if lines:
            output.write_paragraph("\n".join([f"\n{title}:", *lines]))


async def _past_fires(
    command: Command, schedule: Schedule, records: Sequence[AuditRecord]
) -> Sequence[PastFire]:
    try:
        return await search_past_fire_times(schedule, records)
    except Exception as error:  # noqa: BLE001 - a kind of trigger of the user
        command.output.say(f"no results: the trigger cannot compute its fire times: {error}")
        return []


def _change(record: AuditRecord) -> ScheduleChange:
    changes = [ChangedKey(*each) for each in differences(record)]
    return ScheduleChange(record.at, record.actor, record.via, record.action, changes)


def _result_line(command: Command, fire: PastFire) -> str:
    manual = " (requested)" if fire.is_manual else ""
    return f"{command.output.when(fire.at)}  {fire.status or 'no job':9}  {fire.job_id}{manual}"


def _change_lines(command: Command, record: AuditRecord) -> Iterator[str]:
    yield f"{command.output.when(record.at)}  {record.action} by {record.actor} ({record.via})"
    for key, before, after in differences(record):
        yield f"  {key}: {_text(before)} -> {_text(after)}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
