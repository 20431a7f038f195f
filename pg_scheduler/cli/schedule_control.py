"""``schedules pause``, ``resume`` and ``trigger``: schedules by ids, those of a task, or all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import partial
from typing import Annotated, Final, Literal

import typer

from pg_scheduler import Schedule, ScheduleNotFoundError, Scheduler
from pg_scheduler.inspect.texts import counted

from .commands import Command, confirm
from .complete import complete_schedules
from .errors import CommandError, ExitCode
from .schedule_rows import write_actions
from .times import read_since

__all__ = ["pause", "resume", "trigger"]

PAGE_LENGTH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The schedules that a command is about."""

    schedule_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID]...", help="The ids of schedules.", autocompletion=complete_schedules),
    ] = None
    task: Annotated[str | None, typer.Option(metavar="NAME", help="Every schedule of a task instead.")] = None
    every: Annotated[bool, typer.Option("--all", help="Every schedule instead.")] = False
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False

    async def read(self, scheduler: Scheduler, action: str, *, paused: bool | None = None) -> list[Schedule]:
        """Return the schedules, after a question unless ids name them.

        Args:
            scheduler: Where they are.
            action: What is done to them, for the question.
            paused: Leave out those that are not paused, or those that are; an id of one is kept.

        Raises:
            CommandError: They are named in several ways or not at all, or the answer is no.
            ScheduleNotFoundError: An id is unknown.
        """
        if sum(map(bool, (self.schedule_ids, self.task, self.every))) != 1:
            raise CommandError(ExitCode.USAGE, "pass the ids of schedules, --task or --all")
        found: list[Schedule] = []
        if self.schedule_ids:
            for schedule_id in dict.fromkeys(self.schedule_ids):
                schedule = await scheduler.schedules.get(schedule_id)
                if schedule is None:
                    raise ScheduleNotFoundError(schedule_id)
                found.append(schedule)
            return found
        after: str | None = None
        while True:
            page = await scheduler.schedules.list(
                task=self.task, paused=paused, after=after, limit=PAGE_LENGTH
            )
            found += page
            if (after := page.next) is None:
                break
        if found:
            confirm(f"{action} {counted(len(found), 'schedule')}?", yes=self.yes)
        return found


async def pause(
    command: Command,
    chosen: Chosen,
    note: Annotated[str | None, typer.Option(help="Why, for people.")] = None,
) -> None:
    """Pause schedules: no fire time becomes a job until they are resumed."""
    async with command.scheduler() as scheduler:
        schedules = await chosen.read(scheduler, "Pause", paused=False)
        await _follow(command, "paused", schedules, partial(scheduler.schedules.pause, note=note))


async def resume(
    command: Command,
    chosen: Chosen,
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
        schedules = await chosen.read(scheduler, "Resume", paused=True)
        for schedule in schedules:
            if schedule.paused_at is None:
                raise CommandError(ExitCode.REFUSED, f"schedule {schedule.schedule_id!r} is not paused")
        await _follow(command, "resumed", schedules, partial(scheduler.schedules.resume, resume_from=since))


async def trigger(command: Command, chosen: Chosen) -> None:
    """Enqueue one job of each schedule now. Their fire times do not change."""
    async with command.scheduler() as scheduler:
        schedules = await chosen.read(scheduler, "Trigger")
        await _follow(command, "triggered", schedules, scheduler.schedules.trigger)


async def _follow(
    command: Command,
    result: str,
    schedules: Sequence[Schedule],
    act: Callable[[str], Awaitable[bool | str | None]],
) -> None:
    """Change one schedule after the other, and write what was done, with the ids of jobs."""
    done: list[tuple[str, str | None]] = []
    count = 0
    try:
        for each in schedules:
            if changed := await act(each.schedule_id):  # else it was removed since it was read
                done.append((each.schedule_id, changed if isinstance(changed, str) else None))
            count += 1
    finally:  # also what a command has done that stops halfway
        write_actions(command, result, done)
        if count < len(schedules):
            rest = counted(len(schedules) - count, "schedule")
            command.output.say(f"stopped at {schedules[count].schedule_id!r}; {rest} not {result}")


def _read_start(text: str, zone: tzinfo) -> Literal["now", "pause"] | datetime:
    if text == "now":
        return "now"
    if text == "pause":
        return "pause"
    return read_since("--from", text, zone)
