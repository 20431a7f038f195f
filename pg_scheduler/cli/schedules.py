"""The group ``schedules``."""

from __future__ import annotations

from typing import Annotated

import typer

from . import schedule_calendar, schedule_control, schedule_edit, schedule_show, schedule_times
from .commands import Command, add_command
from .schedule_rows import SCHEDULE


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Find, add and change schedules.")
    app.add_typer(group, name="schedules")
    add_command(group, "list", is_watched=True)(list_schedules)
    add_command(group, "show")(schedule_show.show)
    add_command(group, "pause")(schedule_control.pause)
    add_command(group, "resume")(schedule_control.resume)
    add_command(group, "trigger")(schedule_control.trigger)
    add_command(group, "preview")(schedule_times.preview)
    add_command(group, "calendar")(schedule_calendar.calendar)
    add_command(group, "backfill")(schedule_times.backfill)
    add_command(group, "add")(schedule_edit.add)
    add_command(group, "update")(schedule_edit.update)
    add_command(group, "remove")(schedule_edit.remove)


async def list_schedules(
    command: Command,
    limit: Annotated[int, typer.Option(help="Schedules of the page, up to 10,000.")] = 100,
    after: Annotated[str | None, typer.Option(help="Continue after the page before.")] = None,
) -> None:
    """Print a page of schedules, by id."""
    async with command.scheduler() as scheduler:
        page = await scheduler.schedules.list(limit=limit, after=after)
    command.output.write_list(SCHEDULE, page, next=page.next)
    if page.next is not None:
        command.output.say(f"continue with --after '{page.next}'")
