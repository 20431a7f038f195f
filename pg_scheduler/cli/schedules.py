"""The group ``schedules``."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Annotated, Literal

import typer

from pg_scheduler import ScheduleNotFoundError

from . import schedule_calendar, schedule_edit, schedule_times
from .commands import Command, add_command
from .errors import CommandError, ExitCode
from .output import Column, Shape
from .schedule_rows import SCHEDULE, SCHEDULE_KEYS, ScheduleId, get_schedule, schedule_row, write_action
from .times import read_since

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Find, add and change schedules.")
    app.add_typer(group, name="schedules")
    add_command(group, "list", is_watched=True)(list_schedules)
    add_command(group, "show")(show)
    add_command(group, "pause")(pause)
    add_command(group, "resume")(resume)
    add_command(group, "trigger")(trigger)
    add_command(group, "preview")(schedule_times.preview)
    add_command(group, "calendar")(schedule_calendar.calendar)
    add_command(group, "backfill")(schedule_times.backfill)
    add_command(group, "add")(schedule_edit.add)
    add_command(group, "update")(schedule_edit.update)
    add_command(group, "remove")(schedule_edit.remove)


async def list_schedules(
    command: Command,
    limit: Annotated[int, typer.Option(help="Schedules of the page, up to 10,000.")] = 100,
    after: Annotated[str | None, typer.Option(help="Continue after the page before.")] = None,
) -> None:
    """Print a page of schedules, by id."""
    async with command.scheduler() as scheduler:
        page = await scheduler.schedules.list(limit=limit, after=after)
    command.output.write_list(SCHEDULE, [schedule_row(schedule) for schedule in page], next=page.next)
    if page.next is not None:
        command.output.say(f"continue with --after '{page.next}'")


async def show(command: Command, schedule_id: ScheduleId) -> None:
    """Print a schedule."""
    schedule = await get_schedule(command, schedule_id)
    columns = [Column(key, key) for key in SCHEDULE_KEYS]
    command.output.write_one(Shape("schedule", "schedule_id", columns), schedule_row(schedule))


async def pause(
    command: Command,
    schedule_id: ScheduleId,
    note: Annotated[str | None, typer.Option(help="Why, for people.")] = None,
) -> None:
    """Pause a schedule: no fire time becomes a job until it is resumed."""
    async with command.scheduler() as scheduler:
        if not await scheduler.schedules.pause(schedule_id, note=note):
            raise ScheduleNotFoundError(schedule_id)
    write_action(command, schedule_id, "paused")


async def resume(
    command: Command,
    schedule_id: ScheduleId,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHEN", help="now drops the fire times of the pause, pause keeps them."
        ),
    ] = "now",
) -> None:
    """Resume a paused schedule."""
    since = _read_start(start, command.output.zone)
    async with command.scheduler() as scheduler:
        schedule = await scheduler.schedules.get(schedule_id)
        if schedule is not None and schedule.paused_at is None:
            raise CommandError(ExitCode.REFUSED, f"schedule {schedule_id!r} is not paused")
        if not await scheduler.schedules.resume(schedule_id, resume_from=since):
            raise ScheduleNotFoundError(schedule_id)
    write_action(command, schedule_id, "resumed")


async def trigger(command: Command, schedule_id: ScheduleId) -> None:
    """Enqueue one job of a schedule now. Its fire times do not change."""
    async with command.scheduler() as scheduler:
        job_id = await scheduler.schedules.trigger(schedule_id)
    if job_id is None:
        raise ScheduleNotFoundError(schedule_id)
    write_action(command, schedule_id, "triggered", [job_id])


def _read_start(text: str, zone: tzinfo) -> Literal["now", "pause"] | datetime:
    if text == "now":
        return "now"
    if text == "pause":
        return "pause"
    return read_since("--from", text, zone)
