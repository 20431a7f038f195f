"""``jobs export``: every job of a search, page by page."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from pg_scheduler.inspect import Inspector, SearchPage

from .commands import Command
from .errors import CommandError, ExitCode
from .job_rows import JOB, job_row
from .output import Output
from .progress import ProgressStyle, Reporter, read_style

PAGE_LENGTH: Final = 500
ONE_BY_ONE: Final = "jobs are written one by one; pass -o jsonl, csv or ids"


async def export(
    command: Command,
    where: Annotated[
        list[str] | None, typer.Argument(metavar="[WHERE]...", help="A search, such as status:failed.")
    ] = None,
    *,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many jobs.")] = None,
    after: Annotated[str | None, typer.Option(help="Continue where a command stopped.")] = None,
    no_arguments: Annotated[
        bool, typer.Option("--no-arguments", help="Omit arguments, metadata and progress.")
    ] = False,
    progress: ProgressStyle = None,
) -> None:
    """Write every job of a search, as jsonl, or with -o csv or ids."""
    if command.output.format == "json":
        raise CommandError(ExitCode.USAGE, ONE_BY_ONE)
    if command.output.is_table and command.settings.origin("output") == "--output":
        raise CommandError(ExitCode.USAGE, ONE_BY_ONE)
    output = Output("jsonl" if command.output.is_table else command.output.format, command.output.zone)
    style, page, written = read_style(progress), None, 0
    async with command.scheduler() as scheduler:
        inspector = Inspector(scheduler)
        try:
            with Reporter(style, command.output) as reporter:
                while written != limit and (page is None or page.next is not None):
                    size = PAGE_LENGTH if limit is None else min(PAGE_LENGTH, limit - written)
                    following = await inspector.search_jobs(
                        " ".join(where or ()), limit=size, after=after, tz=command.output.zone
                    )
                    rows = [job_row(job, no_arguments=no_arguments) for job in following.items]
                    output.write_list(JOB, rows, is_continued=written > 0)
                    page, after, written = following, following.next, written + len(rows)
                    reporter.show(page.summary, page.searched, page.total_estimate)
        finally:  # also when it was interrupted
            _report(command, page)


def _report(command: Command, page: SearchPage | None) -> None:
    if page is not None:
        command.output.say(page.summary)
        if page.next is not None:
            command.output.say(f"continue with --after '{page.next}'")
