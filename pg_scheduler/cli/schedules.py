"""The group ``schedules``."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any, Final, Literal

import typer

from pg_scheduler import Schedule, ScheduleNotFoundError, Scheduler

from .commands import Command, add_command
from .errors import CommandError, ExitCode
from .output import SHAPE_VERSION, Column, Shape
from .times import read_since

__all__ = ["ACTION", "FIRE_TIME", "SCHEDULE", "add_to"]

_KEYS: Final = (
    "schedule_id", "owner", "task", "described", "next_fire_at", "last_fire_at", "last_job_id", "paused_at",
    "note", "start", "end", "max_runs", "runs", "skipped", "missed", "failures", "metadata", "created_at",
    "updated_at", "finished_at", "version",
)  # fmt: skip
SCHEDULE: Final = Shape(
    "schedule",
    "schedule_id",
    (
        Column("schedule_id", "ID", is_id=True),
        Column("task", "TASK"),
        Column("described", "TRIGGER", is_long=True),
        Column("next_fire_at", "NEXT"),
        Column("paused_at", "PAUSED"),
        Column("owner", "OWNER", is_wide=True),
        Column("last_fire_at", "LAST", is_wide=True),
        Column("note", "NOTE", is_wide=True),
    ),
)
FIRE_TIME: Final = Shape("fire_time", "fire_time", (Column("fire_time", "FIRE TIME"),))
ACTION: Final = Shape(
    "action",
    "subject",
    (Column("subject", "SUBJECT"), Column("result", "RESULT"), Column("job_id", "JOB", is_wide=True)),
)

MAX_SUGGESTED: Final = 5

ScheduleId = Annotated[str, typer.Argument(metavar="ID", help="The id of a schedule.")]


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        rich_markup_mode=None, no_args_is_help=True, help="Find, pause and trigger schedules."
    )
    app.add_typer(group, name="schedules")
    add_command(group, "list")(list_schedules)
    add_command(group, "show")(show)
    add_command(group, "pause")(pause)
    add_command(group, "resume")(resume)
    add_command(group, "trigger")(trigger)
    add_command(group, "preview")(preview)


async def list_schedules(
    command: Command,
    limit: Annotated[int, typer.Option(help="Schedules of the page, up to 10,000.")] = 100,
    after: Annotated[str | None, typer.Option(help="Continue after the page before.")] = None,
) -> None:
    """Print a page of schedules, by id."""
    async with command.scheduler() as scheduler:
        page = await scheduler.schedules.list(limit=limit, after=after)
    command.output.write_list(SCHEDULE, [_row(schedule) for schedule in page], next=page.next)
    if page.next is not None:
        command.output.say(f"continue with --after '{page.next}'")


async def show(command: Command, schedule_id: ScheduleId) -> None:
    """Print a schedule."""
    schedule = await _get(command, schedule_id)
    columns = [Column(key, key) for key in _KEYS]
    command.output.write_one(Shape("schedule", "schedule_id", columns), _row(schedule))


async def pause(
    command: Command,
    schedule_id: ScheduleId,
    note: Annotated[str | None, typer.Option(help="Why, for people.")] = None,
) -> None:
    """Pause a schedule: no fire time becomes a job until it is resumed."""
    async with command.scheduler() as scheduler:
        if not await scheduler.schedules.pause(schedule_id, note=note):
            raise ScheduleNotFoundError(schedule_id)
    _write_action(command, schedule_id, "paused")


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
    _write_action(command, schedule_id, "resumed")


async def trigger(command: Command, schedule_id: ScheduleId) -> None:
    """Enqueue one job of a schedule now. Its fire times do not change."""
    async with command.scheduler() as scheduler:
        job_id = await scheduler.schedules.trigger(schedule_id)
    if job_id is None:
        raise ScheduleNotFoundError(schedule_id)
    _write_action(command, schedule_id, "triggered", job_id)


async def preview(
    command: Command,
    schedule_id: ScheduleId,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="How many.")] = 20,
) -> None:
    """Print the next fire times of a schedule, as if it were not paused."""
    schedule = await _get(command, schedule_id)
    fires = schedule.upcoming(count)
    command.output.say(str(schedule))
    command.output.write_list(
        FIRE_TIME,
        [
            {"v": SHAPE_VERSION, "schedule_id": schedule_id, "fire_time": fire.astimezone(UTC)}
            for fire in fires
        ],
    )


def _read_start(text: str, zone: tzinfo) -> Literal["now", "pause"] | datetime:
    if text == "now":
        return "now"
    if text == "pause":
        return "pause"
    return read_since("--from", text, zone)


async def _get(command: Command, schedule_id: str) -> Schedule:
    async with command.scheduler() as scheduler:
        schedule = await scheduler.schedules.get(schedule_id)
        if schedule is None:
            raise CommandError(ExitCode.NOT_FOUND, await _unknown(scheduler, schedule_id))
    return schedule


async def _unknown(scheduler: Scheduler, schedule_id: str) -> str:
    """Return the message about an unknown id, with the schedules of the task if it is the name of one."""
    message = str(ScheduleNotFoundError(schedule_id))
    found = await scheduler.schedules.list(task=schedule_id, limit=MAX_SUGGESTED)
    ids = ", ".join(each.schedule_id for each in found)
    return f"{message}; schedules of the task {schedule_id!r}: {ids}" if ids else message


def _row(schedule: Schedule) -> dict[str, Any]:
    return {"v": SHAPE_VERSION} | {key: getattr(schedule, key) for key in _KEYS}


def _write_action(command: Command, subject: str, result: str, job_id: str | None = None) -> None:
    row = {"v": SHAPE_VERSION, "subject": subject, "result": result, "job_id": job_id}
    command.output.write_list(ACTION, [row])
