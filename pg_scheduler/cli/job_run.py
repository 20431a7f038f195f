"""Start jobs, send signals and messages to them, and see how they end: ``jobs add`` to ``jobs result``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from pg_scheduler import UNSET, ConflictResolution, Job, JobResult, JobStatus, Scheduler, Worker
from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.names import with_reported_options
from pg_scheduler.inspect.texts import counted, term
from pg_scheduler.tools import find_task, server_now

from .commands import Command, confirm, reject_empty
from .completion import TaskName
from .errors import CommandError, ExitCode, RefusedError, UsageError, hint_at
from .job_show import JOB, RESULT, JobId, job_row, pause_of, progress_text
from .output import Column, Shape
from .progress import ProgressStyle, Reporter, read_style
from .values import (
    Args,
    CodeModules,
    Kwargs,
    Metadata,
    Priority,
    Retries,
    Yes,
    read_deadline,
    read_duration,
    read_json,
    read_time,
)


async def add(
    command: Command,
    name: TaskName,
    *,
    args: Args = None,
    kwargs: Kwargs = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="When it is due [now].")] = None,
    delay: Annotated[str | None, typer.Option("--in", metavar="5m", help="Or in how long.")] = None,
    job_id: Annotated[
        str | None, typer.Option("--id", help="The id of the job [generated].", callback=reject_empty)
    ] = None,
    priority: Priority = None,
    retries: Retries = None,
    on_conflict: Annotated[
        ConflictResolution, typer.Option(help="If a job has the id.")
    ] = ConflictResolution.RAISE,
    metadata: Metadata = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; may be repeated.")] = None,
    keep_result: Annotated[
        str | None, typer.Option(metavar="1h", help="How long the result is kept for jobs result.")
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(metavar="TIME|1h", help="When it must have ended, or how long after its due time."),
    ] = None,
    jobs: CodeModules = None,
) -> None:
    """Schedule a job by the name of its task, and print it.

    It has the options of the task, as a live worker reports them or as the code of --jobs declares them.
    """
    if at is not None and delay is not None:
        raise UsageError("pass either --at or --in")
    due = None if at is None else read_time("--at", at, command.output.zone)
    delay_s = None if delay is None else read_duration("--in", delay)
    keep_s = None if keep_result is None else read_duration("--keep-result", keep_result)
    args_list = read_json("--args", args, list) or []
    kwargs_dict = read_json("--kwargs", kwargs, dict) or {}
    options: dict[str, Any] = {
        "job_id": job_id,
        "priority": UNSET if priority is None else priority,
        "max_retries": UNSET if retries is None else retries,
        "conflict_resolution": on_conflict,
        "keep_result": UNSET if keep_s is None else timedelta(seconds=keep_s),
        "deadline": UNSET if deadline is None else read_deadline("--deadline", deadline, command.output.zone),
        "metadata": _with_tags(read_json("--metadata", metadata, dict), tag or ()),
    }
    import_code(jobs)
    async with command.scheduler() as scheduler:
        inspector = Inspector(scheduler)
        workers = await inspector.workers()
        # If the code of --jobs has registered the task, its options apply without those of workers.
        if find_task(scheduler, name) is None:
            options, remark = with_reported_options(name, options, workers, remedy="pass --jobs MODULE")
            command.output.say(remark)
        # Without a time, the job is due now, or after the delay.
        if due is None:
            new_id = await scheduler.enqueue(
                name, args=args_list, kwargs=kwargs_dict, delay=delay_s, **options
            )
        else:
            arguments = {"args": args_list, "kwargs": kwargs_dict}
            new_id = await scheduler.schedule_job(name, due, arguments, **options)
        await inspector.record_action("add_job", new_id, name=name)
        warning = warning_about(name, workers)
        job = await scheduler.get_job(new_id)
    if warning is not None:
        command.output.say(warning)
    if job is None:
        command.output.say(f"job {new_id!r} was added, and deleted since")
        return
    command.output.write_list(JOB, [job_row(job)])


def _with_tags(metadata: dict[str, Any] | None, tags: Sequence[str]) -> dict[str, Any] | None:
    """Return the metadata with these tags after those that it has already."""
    if not tags:
        return metadata
    tagged_metadata = dict(metadata or {})
    previous_tags = tagged_metadata.get("tags", [])
    if not isinstance(previous_tags, list):
        raise UsageError(f"tags of --metadata must be a list, not {previous_tags!r}")
    tagged_metadata["tags"] = [*previous_tags, *tags]
    return tagged_metadata


def import_code(modules: Sequence[str] | None) -> None:
    """Import the modules of ``--jobs``, so that their tasks are registered in this process.

    Raises:
        CommandError: A module cannot be imported, or names a Scheduler.
    """
    if not modules:
        return
    from .worker.target import load_targets  # noqa: PLC0415 - only this needs the code

    # The result is None if modules were imported, and a Scheduler otherwise.
    if load_targets(modules) is not None:
        raise UsageError("--jobs takes modules, not a Scheduler")


def warning_about(name: str, workers: Sequence[Worker]) -> str | None:
    """Return why the job will wait although it is due; None if a live worker may claim it."""
    live_workers = [worker for worker in workers if worker.is_alive]
    if not live_workers:
        return "no worker is alive; jobs wait for one"
    # A worker that does not report its names may claim this one.
    if any(worker.names is None for worker in live_workers):
        return None
    names = sorted({task for worker in live_workers for task in worker.names or ()})
    if name in names:
        return None
    return f"no live worker claims {name!r}{hint_at(name, names)}"


async def run(
    command: Command,
    job_id: JobId,
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
        raise UsageError("--pdb needs --here TARGET")
    if here:
        from .worker.here import run_here  # noqa: PLC0415 - only this needs a worker
        from .worker.logs import configure_logging  # noqa: PLC0415
        from .worker.target import load_targets  # noqa: PLC0415

        source = load_targets(here)
        configure_logging(None)
        job = await run_here(command, source, job_id, _runnable_job, use_pdb=pdb)
        command.output.write_list(JOB, [job_row(job)])
        return ExitCode.DONE if job.status is JobStatus.COMPLETED else ExitCode.NEGATIVE
    async with command.scheduler() as scheduler:
        inspector = Inspector(scheduler)
        job = await _runnable_job(scheduler, job_id)
        if job.status is JobStatus.PENDING:
            now = await server_now(scheduler)
            steps = inspector.move_jobs(ids=[job_id], to=now)
        else:
            steps = inspector.retry_jobs(ids=[job_id])
        # The action is for one job. If neither it is done nor the application refuses it, another session has
        # changed the job since it was read.
        async for step in steps:
            for change in step.changes:
                if change.refusal is not None:
                    raise change.refusal
            if not step.done:
                raise RefusedError(f"job {job_id!r} changed in the meantime; try it again")
        warning = warning_about(job.job_name, await inspector.workers())
        pause = await pause_of(inspector, job_id)
        # The job may have been deleted meanwhile. Then the output is what was read before.
        job = await scheduler.get_job(job_id) or job
    for message in (warning, pause):
        if message is not None:
            command.output.say(message)
    command.output.write_list(JOB, [job_row(job)])
    return ExitCode.DONE


async def _runnable_job(scheduler: Scheduler, job_id: str) -> Job:
    """Return a job that may run now.

    Raises:
        JobNotFoundError: It does not exist.
        CommandError: It runs, or waits for a limit or for other jobs.
    """
    job = await scheduler.get_job(job_id)
    if job is None:
        raise JobNotFoundError(job_id)
    if job.status is JobStatus.RUNNING:
        raise RefusedError(f"job {job_id!r} runs on worker {job.worker_id}")
    if job.blocked_on is not None:
        raise RefusedError(
            f"job {job_id!r} waits for {job.blocked_on}; see pg-scheduler jobs explain {job_id}"
        )
    return job


async def signal(
    command: Command,
    job_id: JobId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name for which the job waits.")],
    value: Annotated[
        str | None, typer.Argument(metavar="JSON", help="The value, such as '\"yes\"' [null].")
    ] = None,
) -> None:
    """Send a signal to a job. Refused if the job has ended, or has a value of that name."""
    signal_value = read_json("the value", value)
    async with command.scheduler() as scheduler:
        if not await scheduler.signal(job_id, name, signal_value):
            raise RefusedError(
                f"job {job_id!r} has ended, or has a value for {name!r}, or its wait for that has timed out"
            )
        await Inspector(scheduler).record_action("signal_job", job_id, name=name)
        # The job may have been deleted meanwhile.
        job = await scheduler.get_job(job_id)
    command.output.write_list(JOB, [] if job is None else [job_row(job)])


async def send(
    command: Command,
    job_id: JobId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The mailbox that the job receives from.")],
    value: Annotated[
        str | None, typer.Argument(metavar="JSON", help='The message, such as \'{"sku": "A-1"}\' [null].')
    ] = None,
) -> None:
    """Send a message to a mailbox of a job. Refused if the job has ended."""
    message = read_json("the value", value)
    async with command.scheduler() as scheduler:
        if not await scheduler.send(job_id, name, message):
            raise RefusedError(f"job {job_id!r} has ended")
        await Inspector(scheduler).record_action("signal_job", job_id, name=name)
        # The job may have been deleted meanwhile.
        job = await scheduler.get_job(job_id)
    command.output.write_list(JOB, [] if job is None else [job_row(job)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """What became of a broadcast."""

    name: str
    """The signal or the mailbox."""
    jobs: int
    """The number of jobs that waited for it, and have got the value."""


BROADCAST: Final = Shape("broadcast", Broadcast, (Column("name", "name"), Column("jobs", "jobs")))


async def broadcast(
    command: Command,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The signal or mailbox.")],
    value: Annotated[
        str | None, typer.Argument(metavar="JSON", help="The value, such as '\"yes\"' [null].")
    ] = None,
    *,
    where: Annotated[
        str | None, typer.Option(metavar="SEARCH", help="Only jobs of a search [all that wait for NAME].")
    ] = None,
    yes: Yes = False,
) -> None:
    """Send a value to all jobs that wait for a signal or a message of this name now, in one transaction."""
    signal_value = read_json("the value", value)
    wanted = " ".join(filter(None, [term("signal", name), where]))
    async with command.scheduler() as scheduler:
        inspector = Inspector(scheduler)
        pages = inspector.search_pages(wanted, tz=command.output.zone)
        job_ids = [job.job_id async for page in pages for job in page.items]
        if job_ids:
            confirm(f"Send the value to {counted(len(job_ids), 'job')}?", yes=yes)
        reached = await scheduler.broadcast(name, signal_value, job_ids=job_ids)
        await inspector.record_action("broadcast", name, where=where, count=reached)
    command.output.write_one(BROADCAST, Broadcast(name=name, jobs=reached))


PROGRESS_INTERVAL_S: Final = 1.0
"""Seconds between two reads of the progress of a job."""


async def wait(
    command: Command,
    job_ids: Annotated[
        list[str], typer.Argument(metavar="ID", help="The ids of jobs.", callback=reject_empty)
    ],
    *,
    timeout: Annotated[
        str | None, typer.Option(metavar="5m", help="Exit with 7 if they have not ended by then.")
    ] = None,
    progress: ProgressStyle = None,
) -> ExitCode:
    """Wait until jobs have ended, and print how. Exits with 0 if all completed, else with 1."""
    timeout_s = None if timeout is None else read_duration("--timeout", timeout)
    style = read_style(progress)
    results: list[JobResult] = []
    async with command.scheduler() as scheduler:
        try:
            with Reporter(style, command.output) as reporter:
                async with asyncio.timeout(timeout_s):
                    for job_id in dict.fromkeys(job_ids):
                        # A timeout or Ctrl-C leaves the results so far in the list.
                        results.append(await _wait_for(scheduler, job_id, reporter))  # noqa: PERF401
        except TimeoutError:
            # An id that occurs twice counts once.
            unfinished_count = len(set(job_ids)) - len(results)
            raise CommandError(
                ExitCode.TIMEOUT, f"not ended within {timeout}: {counted(unfinished_count, 'job')}"
            ) from None
        finally:
            command.output.write_list(RESULT, results)
    is_done = all(result.status is JobStatus.COMPLETED for result in results)
    return ExitCode.DONE if is_done else ExitCode.NEGATIVE


async def result(command: Command, job_id: JobId) -> ExitCode:
    """Print the value of a job, its error, or why there is none. Exits with 0 if the job completed."""
    async with command.scheduler() as scheduler:
        # Without wait, the result is None if the job has not ended, and also if there is no such job.
        result = await scheduler.get_job_result(job_id, wait=False)
        job = None if result is not None else await scheduler.get_job(job_id)
    if result is None:
        if job is None:
            raise JobNotFoundError(job_id)
        reason = f"the job has not ended: it is {job.status.value}"
        result = JobResult(
            job_id, job.status, no_value_reason=reason, attempts=job.attempt, started_at=job.started_at
        )
    command.output.write_one(RESULT, result, keys=[column.key for column in RESULT.columns])
    return ExitCode.DONE if result.status is JobStatus.COMPLETED else ExitCode.NEGATIVE


async def _wait_for(scheduler: Scheduler, job_id: str, reporter: Reporter) -> JobResult:
    """Return the result of a job when it has ended, and show its progress until then."""
    result_task = asyncio.ensure_future(scheduler.get_job_result(job_id))
    try:
        while True:
            await asyncio.wait({result_task}, timeout=PROGRESS_INTERVAL_S)
            if result_task.done():
                break
            # The job has not ended within the interval, so its progress is read.
            job = await scheduler.get_job(job_id)
            if job is None:
                continue
            text = f"{job_id} {job.status.value}"
            progress = job.progress
            if progress is None:
                reporter.show(text, 0, None)
            else:
                reporter.show(f"{text}, {progress_text(progress)}", progress.done, progress.total)
        result = await result_task
    finally:
        # The wait may have been interrupted. A task that is done is not affected.
        result_task.cancel()
    if result is None:
        raise JobNotFoundError(job_id)
    return result
