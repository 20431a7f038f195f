"""``schedules add``, ``update`` and ``remove``: schedules at run time."""

from __future__ import annotations

from typing import Annotated

import typer

from pg_scheduler import ConflictResolution, ScheduleNotFoundError
from pg_scheduler.inspect import Inspector

from .commands import Command
from .completion import TaskName
from .errors import CommandError, ExitCode
from .job_add import warning_about
from .schedule_options import DefinitionOptions, TriggerOptions
from .schedule_rows import ACTION, SCHEDULE, Action, ScheduleId, find_schedule


async def add(
    command: Command,
    name: TaskName,
    timing: TriggerOptions,
    definition: DefinitionOptions,
    *,
    schedule_id: Annotated[
        str | None, typer.Option("--id", help="The id of the schedule [generated].")
    ] = None,
    run_now: Annotated[bool, typer.Option("--run-now", help="Enqueue a job now, too.")] = False,
    paused: Annotated[bool, typer.Option("--paused", help="Add it paused.")] = False,
    on_conflict: Annotated[
        ConflictResolution, typer.Option(help="If a schedule has the id.")
    ] = ConflictResolution.RAISE,
) -> None:
    """Add a schedule of a task, and print it."""
    trigger, values = timing.read(command), definition.read(command)
    if trigger is None:
        raise CommandError(ExitCode.USAGE, "pass --cron, --every, --at or --trigger")
    async with command.scheduler() as scheduler:
        schedule = await scheduler.schedules.add(
            name,
            trigger,
            schedule_id=schedule_id,
            run_now=run_now,
            paused=paused,
            conflict_resolution=on_conflict,
            **values,
        )
        warning = warning_about(name, await Inspector(scheduler).workers())
    if warning is not None:
        command.output.say(warning)
    command.output.write_list(SCHEDULE, [schedule])


async def update(
    command: Command,
    schedule_id: ScheduleId,
    timing: TriggerOptions,
    definition: DefinitionOptions,
    *,
    task: Annotated[str | None, typer.Option(metavar="NAME", help="The name of another task.")] = None,
    if_version: Annotated[
        int | None, typer.Option(metavar="N", help="Only if it has this version, else exit with 4.")
    ] = None,
) -> None:
    """Change a schedule that was added at run time, and print it. What is not given stays as it is.

    The word none removes --start, --end, --jitter, --timeout or --keep-result.
    """
    values = definition.read(command) | ({} if task is None else {"func": task})
    if timing.read(command) is None and not values:
        raise CommandError(ExitCode.USAGE, "pass what to change, such as --cron or --args")
    async with command.scheduler() as scheduler:
        trigger = timing.read(command, await find_schedule(scheduler, schedule_id))
        values |= {} if trigger is None else {"trigger": trigger}
        schedule = await scheduler.schedules.update(schedule_id, if_version=if_version, **values)
    command.output.write_list(SCHEDULE, [schedule])


async def remove(
    command: Command,
    schedule_id: ScheduleId,
    cancel_jobs: Annotated[
        bool, typer.Option("--cancel-jobs", help="Cancel its pending jobs; otherwise they still run.")
    ] = False,
    yes: Annotated[  # noqa: ARG001 - the command never asks
        bool, typer.Option("--yes", help="Accepted as elsewhere; the command never asks.")
    ] = False,
) -> None:
    """Delete a schedule. The next start of code that declares it restores it."""
    async with command.scheduler() as scheduler:
        schedule = await find_schedule(scheduler, schedule_id)
        is_removed: bool | None = None
        try:
            is_removed = await scheduler.schedules.remove(schedule_id, cancel_jobs=cancel_jobs)
        finally:
            if cancel_jobs and is_removed is None:
                command.output.say(
                    f"schedule {schedule_id!r} may be paused and some of its jobs cancelled; repeat the "
                    "command to cancel the others and remove it"
                )
        if not is_removed:
            raise ScheduleNotFoundError(schedule_id)
    if schedule.owner == "code":
        command.output.say(
            f"code declares {schedule_id!r}: the next start of a worker with it restores it; "
            "remove it from the code, or use pg-scheduler schedules pause"
        )
    command.output.write_list(ACTION, [Action(schedule_id, "removed", None)])
