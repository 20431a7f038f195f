"""The pages of schedules, and of one schedule with its next fire times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from pg_scheduler.dashboard.context import NotFoundError, PageRequest
from pg_scheduler.dashboard.pages.schedule_history import ScheduleChange, changes_of
from pg_scheduler.dashboard.positions import read_after, write_next
from pg_scheduler.dashboard.texts import json_text
from pg_scheduler.foreign import class_name, message_of
from pg_scheduler.inspect.clock_changes import mark_fires, zone_of
from pg_scheduler.inspect.fire_searches import search_one
from pg_scheduler.inspect.schedule_history import (
    RECORDS,
    PastFire,
    newest_results,
    search_past_fire_times,
    with_statuses,
)
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.text.values import copy_fields
from pg_scheduler.triggers.zones import parse_timezone

PAGE_LENGTH: Final = 100
MAX_READ: Final = 500
"""Schedules that are read for a page if only some of them are visible."""

FIRE_TIMES: Final = 20


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule in a list."""

    schedule_id: str
    owner: str
    task: str
    described: str
    next_fire_at: datetime | None
    last_fire_at: datetime | None
    last_job_id: str | None
    paused_at: datetime | None
    finished_at: datetime | None
    note: str | None
    runs: int
    skipped: int
    missed: int
    results: Sequence[PastFire] = ()
    """In a list: the last 20 fire times, the newest first; fewer if more than 25 schedules share the page."""


@dataclass(frozen=True, slots=True)
class SchedulesPage:
    """A page of schedules, by their ids."""

    items: Sequence[ScheduleRow]
    next: str | None
    """The position of the following page; None for the last page."""
    summary: str
    after: str | None = None
    """The position of this page; None for the first one."""


@dataclass(frozen=True, slots=True)
class FireTime:
    """A fire time, as an instant, and as a text in the zone of the trigger."""

    at: datetime
    local: str
    clock_change: str | None = None
    """The effect of a clock change on this fire time, or on those just before it; None for no effect."""


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """A schedule. What the request may not see is None."""

    schedule: ScheduleRow
    is_declared: bool
    fire_times: Sequence[FireTime]
    problem: str | None
    """Why there are no fire times; None if they were computed."""
    zone: str
    """The time zone of its trigger; UTC if it has several or none."""
    start: datetime | None
    end: datetime | None
    max_runs: int | None
    jitter: timedelta
    overlap: str
    catch_up: str
    failures: int | None
    pause_after_failures: int | None
    version: int
    updated_at: datetime
    results: Sequence[PastFire]
    """The last 20 fire times and requested jobs, the newest first."""
    changes: Sequence[ScheduleChange] | None
    """The last 50 changes; None if only some names are visible."""
    sees_arguments: bool
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None

    @property
    def arguments(self) -> str:
        """The arguments as a text."""
        return json_text({"args": self.args, "kwargs": self.kwargs})


async def build(request: PageRequest) -> SchedulesPage:
    """Read a page of schedules."""
    is_open = request.access.visible_names is None
    limit = PAGE_LENGTH if is_open else MAX_READ
    try:
        found = await request.inspector.schedules(limit=limit, after=await read_after(request))
    except ValueError as error:  # no id that a row can have, or no position
        raise NotFoundError(str(error)) from error
    visible = [each for each in found if request.access.sees_name(each.task)]
    results = await newest_results(request.inspector, visible, request.access.sees_name)
    items = [copy_fields(ScheduleRow, each, results=results.get(each.schedule_id, ())) for each in visible]
    following = found[-1].schedule_id if len(found) == limit else None
    summary = f"{len(items)} schedules" + ("; others follow" if following else "")
    after = request.parameters.get("after") or None
    return SchedulesPage(items, await write_next(request, following), summary, after)


async def visible_schedule(request: PageRequest, schedule_id: str) -> Schedule:
    """Return a schedule.

    Raises:
        NotFoundError: It does not exist, or the request does not see it.
    """
    missing = NotFoundError(f"there is no schedule {schedule_id[:200]!r}, or you may not see it")
    try:
        schedule = await request.inspector.get_schedule(schedule_id)
    except ValueError as error:  # no id that a row can have
        raise missing from error
    if schedule is None or not request.access.sees_name(schedule.task):
        raise missing
    return schedule


async def build_one(request: PageRequest) -> SchedulePage:
    """Read a schedule and compute its next fire times."""
    schedule = await visible_schedule(request, request.required("id"))
    records = (await request.inspector.audit(subject=schedule.schedule_id, limit=RECORDS)).items
    fire_times: Sequence[FireTime] = ()
    past: Sequence[PastFire] = ()
    problem = None
    try:
        fire_times = await search_one(schedule.trigger, partial(_fire_times, schedule))
        past = await search_past_fire_times(schedule, records)
    except Exception as error:  # noqa: BLE001 - a kind of trigger of the user
        problem = message_of(error) or class_name(error)
    sees, redaction = request.access.sees_arguments, request.settings.redaction
    return copy_fields(
        SchedulePage,
        schedule,
        schedule=copy_fields(ScheduleRow, schedule),
        is_declared=schedule.owner == "code",
        fire_times=fire_times,
        problem=problem,
        zone=zone_of(schedule),
        overlap=schedule.overlap.value,
        catch_up=str(schedule.catch_up),
        results=await with_statuses(request.inspector, past, request.access.sees_name),
        changes=changes_of(records, request) if request.access.visible_names is None else None,
        sees_arguments=sees,
        args=redaction.values(schedule.args) if sees else None,
        kwargs=redaction.values(schedule.kwargs) if sees else None,
        metadata=redaction.values(schedule.metadata) if sees else None,
    )


def _fire_times(schedule: Schedule) -> list[FireTime]:
    zone = parse_timezone(zone_of(schedule))
    found = schedule.upcoming(FIRE_TIMES)
    changes = {} if schedule.trigger is None else mark_fires(schedule.trigger, schedule.anchor, found)
    return [
        FireTime(fire, f"{fire.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}", changes.get(fire))
        for fire in found
    ]
