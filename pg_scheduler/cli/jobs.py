"""The group ``jobs``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from pg_scheduler.inspect import Inspector, Reason, Verdict
from pg_scheduler.inspect.paths import Sort

from . import bulk, job_add, job_ends, job_errors, job_export, job_run, job_show
from .commands import Command, add_command
from .job_rows import JOB, JobId, JobRow, column_row, job_row, read_columns
from .output import Column, Shape
from .runs import runs

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


EXPLANATION: Final = Shape("explanation", ExplainedJob, "job_id", ())
_REASON: Final = Shape(
    "reason", Reason, "code", (Column("code", "REASON"), Column("text", "TEXT"), Column("remedy", "REMEDY"))
)


def add_to(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Find, explain and change jobs.")
    app.add_typer(group, name="jobs")
    add_command(group, "list", is_watched=True)(list_jobs)
    add_command(group, "show")(job_show.show)
    add_command(group, "explain")(explain)
    add_command(group, "add")(job_add.add)
    add_command(group, "run")(job_run.run)
    add_command(group, "wait")(job_ends.wait)
    add_command(group, "result")(job_ends.result)
    add_command(group, "export")(job_export.export)
    add_command(group, "errors", is_watched=True)(job_errors.errors)
    add_command(group, "cancel")(bulk.cancel)
    add_command(group, "retry")(bulk.retry)
    add_command(group, "delete")(bulk.delete)
    add_command(group, "move")(bulk.move)
    add_command(group, "runs", is_watched=True)(runs)


async def list_jobs(
    command: Command,
    where: Annotated[
        list[str] | None, typer.Argument(metavar="[WHERE]...", help="A search, such as status:failed.")
    ] = None,
    *,
    limit: Annotated[int, typer.Option(help="Jobs of the page, up to 1000.")] = 50,
    after: Annotated[str | None, typer.Option(help="Continue after the page before.")] = None,
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
    chosen = None if columns is None else read_columns(columns)
    async with command.scheduler() as scheduler:
        page = await Inspector(scheduler).search_jobs(
            " ".join(where or ()),
            limit=limit,
            after=after,
            tz=command.output.zone,
            exhaustive=exhaustive,
            sort=sort,
        )
    shape = JOB
    rows: Sequence[JobRow | Mapping[str, Any]] = [job_row(job) for job in page.items]
    if chosen is not None and (command.output.is_table or command.output.format == "csv"):
        shape, rows = replace(JOB, columns=chosen), [column_row(job, chosen) for job in page.items]
    command.output.write_list(shape, rows, next=page.next, summary=page.summary)
    command.output.say(page.summary)
    if sort in SORTED_JOBS:
        command.output.say(f"--sort {sort} lists {SORTED_JOBS[sort]} only")
    statuses = [each for each in " ".join(where or ()).split() if each.startswith("status:")]
    if not page.items and len(statuses) > 1:
        values = ",".join(each.removeprefix("status:") for each in statuses)
        command.output.say(f"no job has several statuses; for a job with any of them write status:{values}")
    if page.next is not None:
        command.output.say(f"continue with --after '{page.next}'")


async def explain(command: Command, job_id: JobId) -> None:
    """Print why a job runs, waits or has ended, and what to do."""
    async with command.scheduler() as scheduler:
        found = await Inspector(scheduler).explain_job(job_id)
    if not command.output.is_table:
        explained = ExplainedJob(job_id, found.verdict, found.eta, found.reasons)
        command.output.write_one(EXPLANATION, explained)
        return
    verb = "ends" if found.verdict is Verdict.RUNNING else "starts"
    about = "" if found.eta is None else f", {verb} about {command.output.when(found.eta)}"
    command.output.write_line(f"{job_id}: {found.verdict.value}{about}")
    reasons = [replace(each, remedy=each.command or each.remedy) for each in found.reasons]
    command.output.write_list(_REASON, reasons)
