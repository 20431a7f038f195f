"""Schedules as rows of output, and finding one by its id."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal, TypeAlias

import typer

from pg_scheduler import Schedule, Scheduler

from .commands import Command
from .completion import complete_schedules
from .errors import NotFoundError, hint_at
from .output import Column, Shape

ActionResult: TypeAlias = Literal[
    "paused", "resumed", "triggered", "backfilled", "removed", "would be paused", "would be resumed",
    "would be triggered",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action:
    """The effect of a command on a schedule."""

    subject: str
    result: ActionResult
    job_id: str | None


@dataclass(frozen=True, slots=True)
class FiredJob:
    """A fire time or a requested job of a schedule."""

    at: datetime
    job_id: str
    is_manual: bool
    status: str | None
    """The status of the job; None if there is none."""


SCHEDULE_KEYS: Final = (
    "schedule_id", "owner", "task", "described", "next_fire_at", "last_fire_at", "last_job_id", "paused_at",
    "paused_until", "keeps_fire_times", "note", "start", "end", "max_runs", "runs", "skipped", "missed",
    "failures", "metadata", "created_at", "updated_at", "finished_at", "version",
)  # fmt: skip
SCHEDULE: Final = Shape(
    "schedule",
    Schedule,
    "schedule_id",
    (
        Column("schedule_id", "ID", is_id=True),
        Column("task", "TASK"),
        Column("described", "TRIGGER", is_long=True),
        Column("next_fire_at", "NEXT"),
        Column("paused_at", "PAUSED"),
        Column("paused_until", "UNTIL", is_wide=True),
        Column("owner", "OWNER", is_wide=True),
        Column("last_fire_at", "LAST", is_wide=True),
        Column("note", "NOTE", is_wide=True),
    ),
    keys=SCHEDULE_KEYS,
)
ACTION: Final = Shape(
    "action",
    Action,
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
        raise NotFoundError(await _unknown(scheduler, schedule_id))
    return schedule


async def _unknown(scheduler: Scheduler, schedule_id: str) -> str:
    message = f"schedule {schedule_id!r} does not exist"
    found = await scheduler.schedules.list(task=schedule_id, limit=MAX_SUGGESTED)
    if ids := ", ".join(each.schedule_id for each in found):
        return f"{message}; schedules of the task {schedule_id!r}: {ids}"
    page = await scheduler.schedules.list(limit=MAX_COMPARED)
    return message + hint_at(schedule_id, [each.schedule_id for each in page], LISTED)
