"""Schedules as rows of output, and the options that define one: when it fires, and what its jobs are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import typer

from pg_scheduler import CatchUp, Overlap, Schedule, Scheduler
from pg_scheduler.inspect.clock_changes import zone_of
from pg_scheduler.triggers import At, Cron, Every, Trigger
from pg_scheduler.triggers.phrases import read_phrase

from .commands import Command
from .completion import complete_schedules
from .errors import NotFoundError, UsageError, hint_at
from .output import Column, Shape, columns
from .values import Args, Kwargs, Metadata, Priority, Retries, read_duration, read_json, read_time

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
    "failures", "metadata", "created_at", "updated_at", "finished_at", "retired_at", "version",
)  # fmt: skip
SCHEDULE: Final = Shape(
    "schedule",
    Schedule,
    (
        Column("schedule_id", "ID", is_id=True),
        Column("task"),
        Column("described", "TRIGGER", is_long=True),
        Column("next_fire_at", "NEXT"),
        Column("paused_at"),
        Column("retired_at", is_wide=True),
        Column("paused_until", "UNTIL", is_wide=True),
        Column("owner", is_wide=True),
        Column("last_fire_at", "LAST", is_wide=True),
        Column("note", is_wide=True),
    ),
    keys=SCHEDULE_KEYS,
)
ACTION: Final = Shape(
    "action",
    Action,
    (*columns("subject", "result"), Column("job_id", "JOB", is_wide=True)),
)
MAX_SUGGESTED: Final = 5
"""Schedules of a task that an error names."""

MAX_COMPARED: Final = 1000
"""Schedules whose ids are compared with an unknown one."""

LISTED: Final = "pg-scheduler schedules list lists them"

ScheduleId = Annotated[
    str, typer.Argument(metavar="ID", help="The id of a schedule.", autocompletion=complete_schedules)
]


async def get_schedule(command: Command, schedule_id: str) -> Schedule:
    """Return a schedule.

    Raises:
        CommandError: It does not exist. If the id is the name of a task, the message has the schedules of
            that task.
    """
    async with command.scheduler() as scheduler:
        return await find_schedule(scheduler, schedule_id)


async def find_schedule(scheduler: Scheduler, schedule_id: str) -> Schedule:
    """Return a schedule, as `get_schedule()` does, by a Scheduler that the command has opened already."""
    schedule = await scheduler.schedules.get(schedule_id)
    if schedule is None:
        raise NotFoundError(await _unknown_id_message(scheduler, schedule_id))
    return schedule


async def _unknown_id_message(scheduler: Scheduler, schedule_id: str) -> str:
    """Return the message about an id without a schedule, with the ids that were probably meant."""
    message = f"schedule {schedule_id!r} does not exist"
    # The id may be the name of a task.
    schedules_of_task = await scheduler.schedules.list(task=schedule_id, limit=MAX_SUGGESTED)
    ids_of_task = ", ".join(schedule.schedule_id for schedule in schedules_of_task)
    if ids_of_task:
        return f"{message}; schedules of the task {schedule_id!r}: {ids_of_task}"
    page = await scheduler.schedules.list(limit=MAX_COMPARED)
    existing_ids = [schedule.schedule_id for schedule in page]
    return message + hint_at(schedule_id, existing_ids, LISTED)


NONE: Final = "none"
"""The text that removes a bound."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerOptions:
    """When a schedule fires: at most one of these options."""

    cron: Annotated[
        str | None, typer.Option(metavar="'0 8 * * 1-5'", help="By the clock of --tz, or else of UTC.")
    ] = None
    every: Annotated[str | None, typer.Option(metavar="15m", help="At an interval.")] = None
    at: Annotated[list[str] | None, typer.Option(metavar="TIME", help="Once; may be repeated.")] = None
    trigger: Annotated[
        str | None, typer.Option(metavar="'after 10m'", help="By any trigger, as text or as JSON.")
    ] = None

    def read(self, command: Command, stored: Schedule | None = None) -> Trigger | None:
        """Return the trigger; None without any of the options.

        Args:
            command: The command.
            stored: The schedule that is changed. Its time zone stays unless --tz is an option of the command.

        Raises:
            CommandError: Several are given, or a value is invalid.
        """
        options = (self.cron, self.every, self.at, self.trigger)
        if sum(option is not None for option in options) > 1:
            raise UsageError("pass one of --cron, --every, --at and --trigger")
        origin = command.settings.origin("tz")
        # Without a setting, the zone of a trigger is UTC and not that of this machine.
        zone: tzinfo | str = command.output.zone if origin != "default" else "UTC"
        # A variable or the file names the zone in which people read times. Only the option is about this
        # schedule.
        if stored is not None and origin != "--tz":
            zone = zone_of(stored)
        if self.cron is not None:
            return Cron(self.cron, zone)
        if self.every is not None:
            return Every(timedelta(seconds=read_duration("--every", self.every)))
        if self.at is not None:
            return At(*(read_time("--at", text, command.output.zone) for text in self.at))
        # The zone above is that of the trigger. Times are read like those of --at, --start and --end.
        return None if self.trigger is None else read_phrase(self.trigger, zone, command.output.zone)


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionOptions:
    """The properties of a schedule besides its trigger."""

    args: Args = None
    kwargs: Kwargs = None
    start: Annotated[str | None, typer.Option(metavar="TIME", help="Do not fire before it.")] = None
    end: Annotated[str | None, typer.Option(metavar="TIME", help="Do not fire after it.")] = None
    max_runs: Annotated[int | None, typer.Option(metavar="N", help="Fire so many times.")] = None
    jitter: Annotated[str | None, typer.Option(metavar="30s", help="Delay each job by up to this.")] = None
    overlap: Annotated[Overlap | None, typer.Option(help="While the last job is unfinished.")] = None
    catch_up: Annotated[
        Literal["latest", "earliest", "all", "none"] | None,
        typer.Option(help="Which missed fire times become jobs."),
    ] = None
    pause_after_failures: Annotated[
        int | None, typer.Option(metavar="N", help="Pause it after so many failures in a row.")
    ] = None
    priority: Priority = None
    retries: Retries = None
    timeout: Annotated[str | None, typer.Option(metavar="5m", help="Time limit of an attempt.")] = None
    keep_result: Annotated[str | None, typer.Option(metavar="1h", help="How long results are kept.")] = None
    deadline: Annotated[
        str | None, typer.Option(metavar="1h", help="How long after its due time a job must have ended.")
    ] = None
    metadata: Metadata = None

    def read(self, command: Command) -> dict[str, Any]:
        """Return the parameters of ``schedules.add()`` and ``update()`` for the options that are given.

        Raises:
            CommandError: A value is invalid.
        """
        zone = command.output.zone
        values = {
            "args": read_json("--args", self.args, list),
            "kwargs": read_json("--kwargs", self.kwargs, dict),
            "start": _optional_value(self.start, lambda text: read_time("--start", text, zone)),
            "end": _optional_value(self.end, lambda text: read_time("--end", text, zone)),
            "max_runs": self.max_runs,
            "jitter": _optional_value(self.jitter, lambda text: read_duration("--jitter", text), without=0),
            "overlap": self.overlap,
            "catch_up": None if self.catch_up is None else getattr(CatchUp, self.catch_up)(),
            "pause_after_failures": self.pause_after_failures,
            "priority": self.priority,
            "max_retries": self.retries,
            "timeout": _optional_value(self.timeout, lambda text: read_duration("--timeout", text)),
            "keep_result": _optional_value(
                self.keep_result, lambda text: timedelta(seconds=read_duration("--keep-result", text))
            ),
            "deadline": _optional_value(self.deadline, lambda text: read_duration("--deadline", text)),
            "metadata": read_json("--metadata", self.metadata, dict),
        }
        parameters: dict[str, Any] = {}
        for name, value in values.items():
            # The word none gives an option the value None, by which update() removes a bound. An option that
            # is missing must not be a parameter.
            if isinstance(value, _OptionValue):
                parameters[name] = value.value
            elif value is not None:
                parameters[name] = value
        return parameters


class _OptionValue(NamedTuple):
    """The value of an option that is given. It may be None, while a missing option has no such object."""

    value: Any


def _optional_value(
    text: str | None, read: Callable[[str], T], *, without: Any = None
) -> _OptionValue | None:
    """Return the value of an option that can also remove a bound; None if the option is missing.

    Args:
        text: The text of the option.
        read: Returns the value of a text.
        without: The value of the word ``none``, which removes the bound.
    """
    if text is None:
        return None
    removes_bound = text.strip().lower() == NONE
    return _OptionValue(without if removes_bound else read(text))
