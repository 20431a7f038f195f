"""``adopt``: run the jobs of a copied database here, or hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from pg_scheduler import Scheduler
from pg_scheduler.database.author import Author, acting_as
from pg_scheduler.database.identity import Released
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.texts import counted
from pg_scheduler.tools import identity_of

from .commands import Command
from .errors import UsageError
from .output import Shape, columns


@dataclass(frozen=True, slots=True)
class Adopted:
    """A database that was adopted, or whose tasks and schedules were resumed."""

    database: str
    copy_of: str | None
    """The database whose workers wrote the rows; None if it is this one."""
    tasks: int
    """Tasks that were paused or resumed."""
    schedules: int
    """Schedules that were paused or resumed."""


ADOPTED: Final = Shape("adopted", Adopted, columns("database", "copy_of", "tasks", "schedules"))


async def adopt(
    command: Command,
    hold: Annotated[bool, typer.Option("--hold", help="Pause all tasks and schedules first.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume what --hold paused, and no more.")] = False,
) -> None:
    """Let workers start in a copy of a database, such as a restored dump."""
    if hold and resume:
        raise UsageError("--hold and --resume exclude one another; pass one of them")
    restored = ""
    async with command.scheduler() as scheduler:
        identity = identity_of(scheduler)
        # This database, and the one that the last worker recorded; None if no worker has started yet.
        database, recorded = await identity.read()
        copy_of = None
        if recorded is not None and not database.is_same(recorded):
            copy_of = recorded.name
        with acting_as(Author(Inspector(scheduler).actor, "cli")):
            if resume:
                released = await release(scheduler)
                restored = _restored(released)
                adopted = Adopted(database.name, copy_of, len(released.tasks), len(released.schedules))
            else:
                held = await identity.adopt(hold=hold)
                adopted = Adopted(database.name, copy_of, held.tasks, held.schedules)
    command.output.write_list(ADOPTED, [adopted])
    changed = f"{counted(adopted.tasks, 'task')} and {counted(adopted.schedules, 'schedule')}"
    if resume:
        command.output.say(f"resumed {changed}{restored}")
    elif hold:
        command.output.say(
            f"adopted {database.name}, and paused {changed}; resume them by pg-scheduler adopt --resume"
        )
    else:
        command.output.say(f"adopted {database.name}: workers start here")


async def release(scheduler: Scheduler) -> Released:
    """Resume the tasks and schedules that ``--hold`` has paused, and return them.

    A task or schedule that was paused until a time before the hold has this pause again, unless the time has
    passed.
    """
    released = await identity_of(scheduler).release()
    for schedule in released.schedules:
        # An earlier pause, which has ended during the hold, may have kept the fire times for its end.
        keeps_fire_times = schedule.former("keeps_fire_times")
        await scheduler.schedules.resume(schedule.name, resume_from="pause" if keeps_fire_times else "now")
    return released


def _restored(released: Released) -> str:
    """Return the end of a message: how many tasks and schedules are paused again as before the hold.

    It is empty if there are none.
    """
    numbers = ((released.paused_tasks, "task"), (released.paused_schedules, "schedule"))
    parts = [counted(number, noun) for number, noun in numbers if number]
    return f"; paused again as before the hold: {' and '.join(parts)}" if parts else ""
