"""Change schedules: by their definition, or those of ids, a search or a task at once."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import partial
from typing import Annotated, Any, Final, Literal

import typer

from pg_scheduler import ConflictResolution, Schedule, ScheduleNotFoundError, Scheduler
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.search.schedules import parse_schedule_search
from pg_scheduler.inspect.texts import counted

from .commands import Command, confirm
from .completion import TaskName, complete_schedules
from .errors import NotFoundError, RefusedError, UsageError, hint_at
from .job_run import import_code, warning_about
from .output import Output
from .schedule_options import (
    ACTION,
    LISTED,
    SCHEDULE,
    Action,
    ActionResult,
    DefinitionOptions,
    ScheduleId,
    TriggerOptions,
    find_schedule,
)
from .values import CodeModules, PauseNote, PauseUntil, Yes, read_since, read_time


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
    jobs: CodeModules = None,
) -> None:
    """Add a schedule of a task, and print it."""
    import_code(jobs)
    trigger = timing.read(command)
    values = definition.read(command)
    if trigger is None:
        raise UsageError("pass --cron, --every, --at or --trigger")
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
    values = definition.read(command)
    if task is not None:
        values["func"] = task
    # The trigger is read twice. An invalid option is an error here, before the database is needed.
    if timing.read(command) is None and not values:
        raise UsageError("pass what to change, such as --cron or --args")
    async with command.scheduler() as scheduler:
        # The time zone of the trigger may be that of the schedule as it is stored.
        trigger = timing.read(command, await find_schedule(scheduler, schedule_id))
        if trigger is not None:
            values["trigger"] = trigger
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
        # None means that the call has failed, perhaps after its first changes.
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
    # A retired schedule is one that the code does not declare any more.
    if schedule.owner == "code" and schedule.retired_at is None:
        command.output.say(
            f"schedule {schedule_id!r} is removed; a worker whose code still declares it adds it again when "
            "it starts"
        )
    command.output.write_list(ACTION, [Action(schedule_id, "removed", None)])


PAGE_LENGTH: Final = 1000
MAX_SHOWN: Final = 10

_WOULD_BE: Final[Mapping[ActionResult, ActionResult]] = {
    "paused": "would be paused",
    "resumed": "would be resumed",
    "triggered": "would be triggered",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSelection:
    """The schedules that a command is about."""

    schedule_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="The ids of schedules.", autocompletion=complete_schedules),
    ] = None
    task: Annotated[str | None, typer.Option(metavar="NAME", help="Every schedule of a task instead.")] = None
    where: Annotated[
        str | None,
        typer.Option(metavar="SEARCH", help="Every schedule of a search instead, such as task:reports.*."),
    ] = None
    every: Annotated[bool, typer.Option("--all", help="Every schedule instead.")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print them and change nothing.")] = False
    yes: Yes = False

    async def read(
        self, command: Command, scheduler: Scheduler, action: str, *, paused: bool | None = None
    ) -> list[Schedule]:
        """Return the schedules that the options name.

        Unless ids name them, show the first ones and ask whether to continue. There is no question with --yes
        or --dry-run.

        Args:
            command: Writes the question.
            scheduler: Reads the schedules.
            action: The verb of the question, such as ``Pause``.
            paused: True for paused schedules only, False for the others only, None for both. Schedules that
                ids name are returned in any case.

        Raises:
            CommandError: They are named in several ways or not at all, or the answer is no,
                or an id or a task has no schedule.
        """
        # Exactly one of these options must name the schedules.
        ways = (bool(self.schedule_ids), self.where is not None, self.task is not None, self.every)
        if sum(ways) != 1:
            raise UsageError("pass the ids of schedules, --where, --task or --all")
        # A function that decides whether the search finds a schedule.
        matches = None
        if self.where is not None:
            matches = parse_schedule_search(self.where, now=datetime.now(UTC), tz=command.output.zone)
        if self.schedule_ids:
            # An id that occurs twice counts once.
            distinct_ids = dict.fromkeys(self.schedule_ids)
            return [await find_schedule(scheduler, schedule_id) for schedule_id in distinct_ids]
        candidates = _every_schedule(scheduler, task=self.task, paused=paused)
        schedules = [schedule async for schedule in candidates if matches is None or matches(schedule)]
        if not schedules:
            await self._check_task(scheduler)
            command.output.say("no schedule matches")
        if schedules and not self.yes and not self.dry_run:
            table = Output("table", command.output.zone, out=sys.stderr)
            table.write_list(SCHEDULE, schedules[:MAX_SHOWN])
            above = f", {MAX_SHOWN} of them above" if len(schedules) > MAX_SHOWN else ""
            confirm(f"{action} {counted(len(schedules), 'schedule')}{above}?", yes=False)
        return schedules

    async def _check_task(self, scheduler: Scheduler) -> None:
        """Raise CommandError (NOT_FOUND) if the task has no schedule, whether paused or not."""
        if self.task is None or await scheduler.schedules.list(task=self.task, limit=1):
            return
        tasks = {schedule.task async for schedule in _every_schedule(scheduler)}
        hint = hint_at(self.task, sorted(tasks), LISTED)
        raise NotFoundError(f"no schedule of the task {self.task!r}{hint}")


async def _every_schedule(scheduler: Scheduler, **filters: Any) -> AsyncIterator[Schedule]:
    """Yield all schedules that pass the filters of ``schedules.list()``, page by page."""
    after: str | None = None
    while True:
        page = await scheduler.schedules.list(**filters, after=after, limit=PAGE_LENGTH)
        for schedule in page:
            yield schedule
        # The position behind the page; None after the last one.
        after = page.next
        if after is None:
            return


async def pause(
    command: Command,
    selection: ScheduleSelection,
    until: PauseUntil = None,
    start: Annotated[
        Literal["now", "pause"],
        typer.Option("--from", help="At --until: now drops the fire times of the pause, pause keeps them."),
    ] = "now",
    note: PauseNote = None,
) -> None:
    """Pause schedules: no fire time becomes a job until they are resumed, or until a time."""
    ends_at = None if until is None else read_time("--until", until, command.output.zone)
    async with command.scheduler() as scheduler:
        schedules = await selection.read(command, scheduler, "Pause", paused=False)
        act = partial(scheduler.schedules.pause, note=note, until=ends_at, resume_from=start)
        await _change_each(command, selection, "paused", schedules, act)


async def resume(
    command: Command,
    selection: ScheduleSelection,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHEN", help="now drops the fire times of the pause, pause keeps them."
        ),
    ] = "now",
) -> None:
    """Resume paused schedules."""
    since = _read_start(start, command.output.zone)
    async with command.scheduler() as scheduler:
        schedules = await selection.read(command, scheduler, "Resume", paused=True)
        # All of them are checked before the first one is resumed. Only ids can name one that is not paused.
        for schedule in schedules:
            if schedule.paused_at is None:
                raise RefusedError(f"schedule {schedule.schedule_id!r} is not paused")
        act = partial(scheduler.schedules.resume, resume_from=since)
        await _change_each(command, selection, "resumed", schedules, act)


async def trigger(command: Command, selection: ScheduleSelection, *, jobs: CodeModules = None) -> None:
    """Enqueue one job of each schedule now. Their fire times do not change.

    It has the options of the task, as a live worker reports them or as the code of --jobs declares them.
    """
    import_code(jobs)
    async with command.scheduler() as scheduler:
        schedules = await selection.read(command, scheduler, "Trigger")
        await _change_each(command, selection, "triggered", schedules, scheduler.schedules.trigger)


async def _change_each(
    command: Command,
    selection: ScheduleSelection,
    result: ActionResult,
    schedules: Sequence[Schedule],
    act: Callable[[str], Awaitable[bool | str | None]],
) -> None:
    """Change one schedule after the other, and write what was done, with the ids of jobs.

    Args:
        command: The command.
        selection: Its options.
        result: What becomes of a schedule, for the output.
        schedules: The schedules.
        act: Changes the schedule of an id. It returns the id of a new job, or whether the schedule still
            exists.
    """
    if selection.dry_run:
        planned = [Action(schedule.schedule_id, _WOULD_BE[result], None) for schedule in schedules]
        command.output.write_list(ACTION, planned)
        return
    actions: list[Action] = []
    # The schedules that were changed or did not exist any more.
    count = 0
    try:
        for schedule in schedules:
            # The outcome is False or None if the schedule was removed since it was read.
            outcome = await act(schedule.schedule_id)
            if outcome:
                job_id = outcome if isinstance(outcome, str) else None
                actions.append(Action(schedule.schedule_id, result, job_id))
            count += 1
    finally:
        # A command that stops halfway writes what it has done, too.
        command.output.write_list(ACTION, actions)
        if count < len(schedules):
            remainder = counted(len(schedules) - count, "schedule")
            command.output.say(f"stopped at {schedules[count].schedule_id!r}; {remainder} not {result}")


def _read_start(text: str, zone: tzinfo) -> Literal["now", "pause"] | datetime:
    """Return the value of ``--from`` of ``resume``: one of two words, or a time."""
    if text == "now":
        return "now"
    if text == "pause":
        return "pause"
    return read_since("--from", text, zone)
