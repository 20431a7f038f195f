"""The group ``jobs``, with its commands that search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from shlex import quote
from typing import Annotated, Any, Final

import typer

from pg_scheduler.base.text.values import copy_fields
from pg_scheduler.inspect import ErrorGroup, Reason, Verdict
from pg_scheduler.inspect.paths import Sort

from . import bulk, job_run, job_show
from .commands import Command, Group, watched
from .errors import UsageError
from .job_show import JOB, JobId, JobRow, column_row, job_row, read_columns
from .output import Column, Output, Shape, columns
from .progress import ProgressStyle, Reporter, read_style
from .runs import runs
from .values import After, read_since

SORTED_JOBS: Final = {
    "due": "pending and running jobs that are not blocked",
    "finished": "failed, expired and cancelled jobs",
}


@dataclass(frozen=True, slots=True)
class ExplainedJob:
    """Why a job runs, waits or has ended."""

    job_id: str
    verdict: Verdict
    eta: datetime | None
    """When it will probably start, or end if it runs; None if that cannot be estimated."""
    reasons: Sequence[Reason]
    """The reasons, the most decisive first."""


EXPLANATION: Final = Shape("explanation", ExplainedJob, identity="job_id")
_REASON: Final = Shape("reason", Reason, (Column("code", "REASON"), *columns("text", "remedy")))


Where = Annotated[list[str] | None, typer.Argument(metavar="WHERE", help="A search, such as status:failed.")]


async def list_jobs(
    command: Command,
    where: Where = None,
    *,
    limit: Annotated[int, typer.Option(help="Jobs of the page, up to 1000.")] = 50,
    after: After = None,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Search until the page is full, however long that takes.")
    ] = False,
    sort: Annotated[Sort | None, typer.Option(help="The order, which selects the jobs too.")] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="The columns of tables and csv, such as tags.")
    ] = None,
) -> None:
    """Print the jobs that match a search, and how far it got.

    --sort due lists unfinished jobs that are not blocked, --sort finished failed, expired and cancelled jobs,
    the newest end first, --sort id all jobs, the greatest id first.
    """
    chosen_columns = None if columns is None else read_columns(columns)
    async with command.inspector() as inspector:
        page = await inspector.search_jobs(
            " ".join(where or ()),
            limit=limit,
            after=after,
            tz=command.output.zone,
            exhaustive=exhaustive,
            sort=sort,
        )
    # Documents of JSON always have the whole jobs.
    shape = JOB
    rows: Sequence[JobRow | Mapping[str, Any]] = [job_row(job) for job in page.items]
    if chosen_columns is not None and (command.output.is_table or command.output.format == "csv"):
        shape = replace(JOB, columns=chosen_columns)
        rows = [column_row(job, chosen_columns) for job in page.items]
    command.output.write_list(shape, rows, next=page.next, summary=page.summary)
    command.output.say(page.summary)
    if sort in SORTED_JOBS:
        command.output.say(f"--sort {sort} lists {SORTED_JOBS[sort]} only")
    # All terms of a search must match, so a search for several statuses finds no job.
    statuses = [word for word in " ".join(where or ()).split() if word.startswith("status:")]
    if not page.items and len(statuses) > 1:
        values = ",".join(status.removeprefix("status:") for status in statuses)
        command.output.say(f"no job has several statuses; for a job with any of them write status:{values}")
    command.output.say_next(page.next)


async def explain(command: Command, job_id: JobId) -> None:
    """Print why a job runs, waits or has ended, and what to do."""
    async with command.inspector() as inspector:
        explanation = await inspector.explain_job(job_id)
    if not command.output.is_table:
        command.output.write_one(EXPLANATION, copy_fields(ExplainedJob, explanation, job_id=job_id))
        return
    verb = "ends" if explanation.verdict is Verdict.RUNNING else "starts"
    eta = "" if explanation.eta is None else f", {verb} about {command.output.when(explanation.eta)}"
    command.output.write_line(f"{job_id}: {explanation.verdict.value}{eta}")
    # A command that repairs the reason is shown in place of the sentence.
    reasons = [replace(reason, remedy=reason.command or reason.remedy) for reason in explanation.reasons]
    command.output.write_list(_REASON, reasons)


GROUP: Final = Shape(
    "error_group",
    ErrorGroup,
    (
        Column("fingerprint", "GROUP"),
        Column("count", "JOBS"),
        Column("job_name", "NAME"),
        Column("text", "ERROR"),
        Column("last_at", "LATEST", is_wide=True),
        Column("first_at", "FIRST", is_wide=True),
        Column("first_release", "FIRST IN", is_wide=True),
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
    """Print the errors of failed and expired jobs, grouped apart from numbers and ids."""
    start = None if since is None else read_since("--since", since, command.output.zone)
    async with command.inspector() as inspector:
        groups = await inspector.error_groups(since=start, limit=limit)
    command.output.write_list(GROUP, groups.items, summary=groups.summary)
    command.output.say(groups.summary)
    if groups.items and command.output.is_table:
        since_option = "" if since is None else f" --since {quote(since)}"
        command.output.say(
            f"run the jobs of a group again: pg-scheduler jobs retry --group GROUP{since_option}"
        )


PAGE_LENGTH: Final = 500
ONE_BY_ONE: Final = "jobs are written one by one; pass -o jsonl, csv or ids"


async def export(
    command: Command,
    where: Where = None,
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
        raise UsageError(ONE_BY_ONE)
    # A table that a variable, the file or a terminal selects becomes jsonl. Only --output asks for one here.
    if command.output.is_table and command.settings.origin("output") == "--output":
        raise UsageError(ONE_BY_ONE)
    output_format = "jsonl" if command.output.is_table else command.output.format
    output = Output(output_format, command.output.zone)
    style = read_style(progress)
    search = " ".join(where or ())
    written_count = 0
    # The last page that was written.
    page = None
    async with command.inspector() as inspector:
        try:
            with Reporter(style, command.output) as reporter:
                # Without a limit, written_count never equals it, and the last page ends the loop.
                while written_count != limit and (page is None or page.next is not None):
                    size = PAGE_LENGTH if limit is None else min(PAGE_LENGTH, limit - written_count)
                    next_page = await inspector.search_jobs(
                        search, limit=size, after=after, tz=command.output.zone
                    )
                    rows = [job_row(job, no_arguments=no_arguments) for job in next_page.items]
                    output.write_list(JOB, rows, is_continued=written_count > 0)
                    # Only now the page is written. An interruption before names the end of the previous one.
                    page = next_page
                    after = next_page.next
                    written_count += len(rows)
                    reporter.show(page.summary, page.searched, page.total_estimate)
        finally:
            # An interrupted command writes how to continue, too.
            if page is not None:
                command.output.say(page.summary)
                command.output.say_next(page.next)


COMMANDS: Final = Group(
    "Find, explain and change jobs.",
    {
        "list": watched(list_jobs),
        "show": job_show.show,
        "explain": explain,
        "steps": watched(job_show.steps),
        "add": job_run.add,
        "run": job_run.run,
        "signal": job_run.signal,
        "send": job_run.send,
        "broadcast": job_run.broadcast,
        "wait": job_run.wait,
        "result": job_run.result,
        "export": export,
        "errors": watched(errors),
        "cancel": bulk.cancel,
        "retry": bulk.retry,
        "delete": bulk.delete,
        "move": bulk.move,
        "runs": watched(runs),
    },
)
