"""Schedules as rows of output, and finding one by its id."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

import typer

from pg_scheduler import Schedule, Scheduler
from pg_scheduler.jobs.naming import most_similar

from .commands import Command
from .complete import complete_schedules
from .errors import CommandError, ExitCode
from .output import SHAPE_VERSION, Column, Shape

SCHEDULE_KEYS: Final = (
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
ACTION: Final = Shape(
    "action",
    "subject",
    (Column("subject", "SUBJECT"), Column("result", "RESULT"), Column("job_id", "JOB", is_wide=True)),
)
MAX_SUGGESTED: Final = 5
MAX_COMPARED: Final = 1000
LISTED: Final = "pg-scheduler schedules list lists them"

ScheduleId = Annotated[
    str, typer.Argument(metavar="ID", help="The id of a schedule.", autocompletion=complete_schedules)
]


async def get_schedule(command: Command, schedule_id: str) -> Schedule:
    """Return a schedule.

    Raises:
        CommandError: It does not exist; the message has the schedules of the task if the id is its name.
    """
    async with command.scheduler() as scheduler:
        return await find_schedule(scheduler, schedule_id)


async def find_schedule(scheduler: Scheduler, schedule_id: str) -> Schedule:
    """Return a schedule, as `get_schedule()` does, in a command that reads more of it."""
    schedule = await scheduler.schedules.get(schedule_id)
    if schedule is None:
        raise CommandError(ExitCode.NOT_FOUND, await _unknown(scheduler, schedule_id))
    return schedule


def schedule_row(schedule: Schedule) -> dict[str, Any]:
    """Return the keys and values of a schedule."""
    return {"v": SHAPE_VERSION} | {key: getattr(schedule, key) for key in SCHEDULE_KEYS}


def write_actions(command: Command, result: str, done: Iterable[tuple[str, str | None]]) -> None:
    """Write what was done to schedules: a row for each id, with the job that it got."""
    rows = [
        {"v": SHAPE_VERSION, "subject": subject, "result": result, "job_id": job_id}
        for subject, job_id in done
    ]
    command.output.write_list(ACTION, rows)


async def _unknown(scheduler: Scheduler, schedule_id: str) -> str:
    message = f"schedule {schedule_id!r} does not exist"
    found = await scheduler.schedules.list(task=schedule_id, limit=MAX_SUGGESTED)
    if ids := ", ".join(each.schedule_id for each in found):
        return f"{message}; schedules of the task {schedule_id!r}: {ids}"
    page = await scheduler.schedules.list(limit=MAX_COMPARED)
    near = most_similar(schedule_id, [each.schedule_id for each in page])
    return f"{message}; {LISTED if near is None else f'did you mean {near}?'}"
