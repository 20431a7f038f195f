"""``schedules pause``, ``resume`` and ``trigger``: schedules by ids, those of a task, or all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, tzinfo
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
        done = [
            (each.schedule_id, None)
            for each in await chosen.read(scheduler, "Pause", paused=False)
            if await scheduler.schedules.pause(each.schedule_id, note=note)
        ]
    write_actions(command, "paused", done)


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
        done = [
            (each.schedule_id, None)
            for each in schedules
            if await scheduler.schedules.resume(each.schedule_id, resume_from=since)
        ]
    write_actions(command, "resumed", done)


async def trigger(command: Command, chosen: Chosen) -> None:
    """Enqueue one job of each schedule now. Their fire times do not change."""
    async with command.scheduler() as scheduler:
        done = [
            (each.schedule_id, job_id)
            for each in await chosen.read(scheduler, "Trigger")
            if (job_id := await scheduler.schedules.trigger(each.schedule_id)) is not None
        ]
    write_actions(command, "triggered", done)


def _read_start(text: str, zone: tzinfo) -> Literal["now", "pause"] | datetime:
    if text == "now":
        return "now"
    if text == "pause":
        return "pause"
    return read_since("--from", text, zone)
