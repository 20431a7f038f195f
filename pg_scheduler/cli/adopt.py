"""``adopt``: run the jobs of a copied database here, or hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from pg_scheduler.database.author import Author, acting_as
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
    async with command.scheduler() as scheduler:
        identity = identity_of(scheduler)
        database, recorded = await identity.read()
        copy_of = None if recorded is None or database.is_same(recorded) else recorded.name
        with acting_as(Author(Inspector(scheduler).actor, "cli")):
            if resume:
                tasks, schedules = await identity.held()
                for name in tasks:
                    await scheduler.tasks.resume(name)
                for schedule_id in schedules:
                    await scheduler.schedules.resume(schedule_id)
                adopted = Adopted(database.name, copy_of, len(tasks), len(schedules))
            else:
                adopted = Adopted(database.name, copy_of, *await identity.adopt(hold=hold))
    command.output.write_list(ADOPTED, [adopted])
    changed = f"{counted(adopted.tasks, 'task')} and {counted(adopted.schedules, 'schedule')}"
    if resume:
        command.output.say(f"resumed {changed}")
    elif hold:
        command.output.say(
            f"adopted {database.name}, and paused {changed}; resume them by pg-scheduler adopt --resume"
        )
    else:
        command.output.say(f"adopted {database.name}: workers start here")
