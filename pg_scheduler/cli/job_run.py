"""``jobs run``: start a job now, in a worker or in this process."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from pg_scheduler import Job, JobStatus, Scheduler
from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.inspect import Inspector

from .commands import Command
from .errors import CommandError, ExitCode
from .job_add import warning_about
from .job_rows import JOB, job_row


async def run(
    command: Command,
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a job.")],
    *,
    here: Annotated[
        list[str] | None,
        typer.Option(
            "--here",
            metavar="TARGET",
            help="Run it in this process: a Scheduler as package.module:attribute, or modules; repeatable.",
        ),
    ] = None,
    pdb: Annotated[
        bool, typer.Option("--pdb", help="With --here: debug the exception that ends the attempt.")
    ] = False,
) -> ExitCode:
    """Make a pending job due now, or run a finished one once more. Running jobs are refused.

    With --here it exits with 0 if the job completed, else with 1.
    """
    if pdb and not here:
        raise CommandError(ExitCode.USAGE, "--pdb needs --here TARGET")
    if here:
        from .worker.here import run_here  # noqa: PLC0415 - only this needs a worker
        from .worker.logs import configure_logging  # noqa: PLC0415
        from .worker.target import load_targets  # noqa: PLC0415

        source = load_targets(here)
        configure_logging(None)
        job = await run_here(command, source, job_id, _check, use_pdb=pdb)
        command.output.write_list(JOB, [job_row(job)])
        return ExitCode.DONE if job.status is JobStatus.COMPLETED else ExitCode.NEGATIVE
    async with command.scheduler() as scheduler:
        inspector = Inspector(scheduler)
        job = await _check(scheduler, job_id)
        if job.status is JobStatus.PENDING:
            steps = inspector.move_jobs(ids=[job_id], to=datetime.now(UTC))
        else:
            steps = inspector.retry_jobs(ids=[job_id])
        async for step in steps:
            if not step.done:
                raise CommandError(ExitCode.REFUSED, f"job {job_id!r} changed in the meantime; try it again")
        warning = warning_about(job.job_name, await inspector.workers())
        job = await scheduler.get_job(job_id) or job
    if warning is not None:
        command.output.say(warning)
    command.output.write_list(JOB, [job_row(job)])
    return ExitCode.DONE


async def _check(scheduler: Scheduler, job_id: str) -> Job:
    """Return the job.

    Raises:
        JobNotFoundError: It does not exist.
        CommandError: It runs, or waits for a limit or for other jobs.
    """
    job = await scheduler.get_job(job_id)
    if job is None:
        raise JobNotFoundError(job_id)
    if job.status is JobStatus.RUNNING:
        raise CommandError(ExitCode.REFUSED, f"job {job_id!r} runs on worker {job.worker_id}")
    if job.blocked_on is not None:
        raise CommandError(
            ExitCode.REFUSED,
            f"job {job_id!r} waits for {job.blocked_on}; see pg-scheduler jobs explain {job_id}",
        )
    return job
