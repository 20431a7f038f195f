"""``jobs errors``: failures in groups."""

from __future__ import annotations

from shlex import quote
from typing import Annotated, Final

import typer

from pg_scheduler.inspect import ErrorGroup, Inspector

from .commands import Command
from .output import Column, Shape
from .values import read_since

GROUP: Final = Shape(
    "error_group",
    ErrorGroup,
    "fingerprint",
    (
        Column("fingerprint", "GROUP"),
        Column("count", "JOBS"),
        Column("job_name", "NAME"),
        Column("text", "ERROR"),
        Column("last_at", "LATEST", is_wide=True),
        Column("first_at", "FIRST", is_wide=True),
        Column("last_job_id", "LATEST JOB", is_wide=True),
    ),
)


async def errors(
    command: Command,
    *,
    since: Annotated[
        str | None, typer.Option(metavar="TIME|1h", help="Only jobs that ended since then, or so long ago.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Groups, up to 1000.")] = 50,
) -> None:
    """Print the errors of failed, expired and cancelled jobs, grouped apart from numbers and ids."""
    start = None if since is None else read_since("--since", since, command.output.zone)
    async with command.scheduler() as scheduler:
        groups = await Inspector(scheduler).error_groups(since=start, limit=limit)
    command.output.write_list(GROUP, groups.items, summary=groups.summary, missing_index=groups.missing_index)
    command.output.say(groups.summary)
    if groups.missing_index is not None:
        command.output.say("build it while jobs run: pg-scheduler migrate indexes")
    if groups.items and command.output.is_table:
        span = "" if since is None else f" --since {quote(since)}"
        command.output.say(f"run the jobs of a group again: pg-scheduler jobs retry --group GROUP{span}")
