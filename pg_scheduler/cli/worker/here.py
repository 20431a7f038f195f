"""Run one job in this process: by a worker that claims no other job, through the pipeline of all attempts."""

from __future__ import annotations

import asyncio
import pdb
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pg_scheduler import Job, JobCall, JobStatus, Scheduler
from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.cli.commands import Command
from pg_scheduler.cli.errors import CommandError, ExitCode, RefusedError, UsageError, hint_at
from pg_scheduler.cli.job_show import pause_of
from pg_scheduler.database.author import Author, acting_as
from pg_scheduler.inspect import Inspector
from pg_scheduler.jobs.retry import snooze_of
from pg_scheduler.tools import (
    add_middleware,
    configure,
    execute_one,
    hurry,
    registered_names,
    task_of,
    verify_tables,
)

from .options import WorkerOptions
from .process import open_scheduler
from .stop import sigterm_as_ctrl_c
from .target import Source

Check = Callable[[Scheduler, str], Awaitable[Job]]
"""Returns a job, or raises if it may not run."""

CHECK_INTERVAL_S: Final = 0.1
"""Seconds between two reads of the job that runs here."""


async def run_here(
    command: Command,
    source: Source | None,
    job_id: str,
    check: Check,
    *,
    use_pdb: bool,
) -> Job:
    """Run a job in this process, and return it as it is after the attempt.

    Args:
        command: The command.
        source: The Scheduler; None for one with the functions of the modules that were imported.
        job_id: The job. A finished one runs once more.
        check: Returns the job, or raises if it may not run.
        use_pdb: Whether to debug the exception that ends the attempt.

    Raises:
        CommandError: The function is not registered here, the job cannot run again yet, or another worker has
            claimed it.
    """
    with sigterm_as_ctrl_c():
        return await _run_here(command, source, job_id, check, use_pdb=use_pdb)


async def _run_here(
    command: Command, source: Source | None, job_id: str, check: Check, *, use_pdb: bool
) -> Job:
    """Do what ``run_here()`` does, which only adds the handling of SIGTERM."""
    async with open_scheduler(command, source, WorkerOptions()) as scheduler:
        # A Scheduler that runs would claim other jobs too.
        if scheduler.is_running:
            raise UsageError("the target starts its Scheduler; pass one that returns it before its start")
        await verify_tables(scheduler)
        job = await check(scheduler, job_id)
        # The name of a job may differ from that of its function.
        name = await task_of(scheduler, job_id) or job.job_name
        names = registered_names(scheduler)
        if name not in names:
            raise UsageError(f"no function is registered as {name!r} here{hint_at(name, names)}")
        configure(scheduler, role="observer", vacuum_enabled=False)  # it claims and plans nothing by itself
        if use_pdb:
            add_middleware(scheduler, _debug)
        async with scheduler:
            # A finished job becomes pending again, so that it can be claimed.
            if job.status is not JobStatus.PENDING and not await scheduler.retry_job(job_id):
                raise RefusedError(
                    f"job {job_id!r} cannot run again: it has changed, or its cancelled attempt still runs; "
                    "try it again later"
                )
            # A task is paused for its fault, which is then looked for here.
            pause = await pause_of(Inspector(scheduler), job_id)
            if pause is not None:
                command.output.say(f"{pause}; this job runs here nevertheless")
            try:
                return await _run(scheduler, job_id, check)
            except asyncio.CancelledError:  # by Ctrl-C or SIGTERM: the shutdown releases the job at once
                hurry(scheduler)
                raise


async def _run(scheduler: Scheduler, job_id: str, check: Check) -> Job:
    """Make an attempt of the job, and return the job when the attempt has ended."""
    # The number of the attempt; None if the job could not be claimed.
    attempt = await execute_one(scheduler, job_id)
    if attempt is None:
        # Another worker may have claimed the job. Then this raises an error that names the worker.
        changed_job = await check(scheduler, job_id)
        raise RefusedError(f"job {job_id!r} has just changed: it is {changed_job.status.value}; try it again")
    inspector = Inspector(scheduler)
    with acting_as(Author(inspector.actor, "cli")):
        await inspector.record_action("run_job", job_id, attempt=attempt)
    while (job := await scheduler.get_job(job_id)) is not None:
        # A job with another attempt has been retried since, so this attempt has ended.
        if job.status is not JobStatus.RUNNING or job.attempt != attempt:
            return job
        await asyncio.sleep(CHECK_INTERVAL_S)
    raise CommandError(ExitCode.NEGATIVE, f"job {job_id!r} was deleted after its end")


async def _debug(call: JobCall, call_next: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ARG001 - a middleware
    """Debug the exception that ends the attempt. An exception by which a job is snoozed is no failure."""
    try:
        return await call_next()
    except Exception as error:  # user code: the job
        if snooze_of(error) is not None:
            raise
        await run_in_thread(_post_mortem, error)  # the event loop keeps the lease meanwhile
        raise


def _post_mortem(error: Exception) -> None:
    """Open the debugger where an error was raised."""
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    debugger = pdb.Pdb(stdout=sys.stderr, nosigint=True)
    debugger.reset()
    debugger.interaction(None, error.__traceback__)
