"""``jobs wait`` and ``jobs result``: how jobs ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated, Final

import typer

from pg_scheduler import Job, JobResult, JobStatus, Scheduler
from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.inspect.texts import counted

from .commands import Command
from .errors import CommandError, ExitCode
from .job_rows import progress_text
from .output import Column, Shape
from .progress import ProgressStyle, Reporter, read_style
from .values import read_duration

RESULT: Final = Shape(
    "result",
    JobResult,
    "job_id",
    (
        Column("job_id", "ID"),
        Column("status", "STATUS"),
        Column("value", "VALUE"),
        Column("error", "ERROR"),
        Column("no_value_reason", "WITHOUT VALUE BECAUSE"),
        Column("attempts", "ATTEMPTS", is_wide=True),
        Column("started_at", "STARTED", is_wide=True),
        Column("finished_at", "FINISHED", is_wide=True),
        Column("expires_at", "KEPT UNTIL", is_wide=True),
    ),
    keys=(
        "job_id", "value", "no_value_reason", "attempts", "started_at", "finished_at", "expires_at", "status",
        "error",
    ),
)  # fmt: skip

LOOK_INTERVAL_S: Final = 1.0
"""Seconds between two looks at the progress of a job."""


async def wait(
    command: Command,
    job_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The ids of jobs.")],
    *,
    timeout: Annotated[
        str | None, typer.Option(metavar="5m", help="Exit with 7 if they have not ended by then.")
    ] = None,
    progress: ProgressStyle = None,
) -> ExitCode:
    """Wait until jobs have ended, and print how. Exits with 0 if all completed, else with 1."""
    timeout_s = None if timeout is None else read_duration("--timeout", timeout)
    style, results = read_style(progress), list[JobResult]()
    async with command.scheduler() as scheduler:
        try:
            with Reporter(style, command.output) as reporter:
                async with asyncio.timeout(timeout_s):
                    for job_id in dict.fromkeys(job_ids):
                        results.append(await _wait_for(scheduler, job_id, reporter))
        except TimeoutError:
            left = len(set(job_ids)) - len(results)
            raise CommandError(
                ExitCode.TIMEOUT, f"not ended within {timeout}: {counted(left, 'job')}"
            ) from None
        finally:
            command.output.write_list(RESULT, results)
    is_done = all(each.status is JobStatus.COMPLETED for each in results)
    return ExitCode.DONE if is_done else ExitCode.NEGATIVE


async def result(
    command: Command, job_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a job.")]
) -> ExitCode:
    """Print the value of a job, its error, or why there is none. Exits with 0 if the job completed."""
    async with command.scheduler() as scheduler:
        found = await scheduler.get_job_result(job_id, wait=False)
        job = None if found is not None else await scheduler.get_job(job_id)
    if found is None:
        if job is None:
            raise JobNotFoundError(job_id)
        found = _unfinished(job)
    columns = [Column(column.key, column.key) for column in RESULT.columns]
    command.output.write_one(replace(RESULT, columns=columns), found)
    return ExitCode.DONE if found.status is JobStatus.COMPLETED else ExitCode.NEGATIVE


async def _wait_for(scheduler: Scheduler, job_id: str, reporter: Reporter) -> JobResult:
    waiting = asyncio.ensure_future(scheduler.get_job_result(job_id))
    try:
        while not (await asyncio.wait({waiting}, timeout=LOOK_INTERVAL_S))[0]:
            if (job := await scheduler.get_job(job_id)) is not None:
                _show(job, reporter)
        found = await waiting
    finally:
        waiting.cancel()
    if found is None:
        raise JobNotFoundError(job_id)
    return found


def _show(job: Job, reporter: Reporter) -> None:
    text, progress = f"{job.job_id} {job.status.value}", job.progress
    if progress is None:
        reporter.show(text, 0, None)
    else:
        reporter.show(f"{text}, {progress_text(progress)}", progress.done, progress.total)


def _unfinished(job: Job) -> JobResult:
    reason = f"the job has not ended: it is {job.status.value}"
    return JobResult(
        job.job_id, job.status, no_value_reason=reason, attempts=job.attempt, started_at=job.started_at
    )
