"""``jobs add``: schedule a job by the name of its task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer

from pg_scheduler import UNSET, ConflictResolution, JobPriority, Worker
from pg_scheduler.inspect import Inspector

from .commands import Command
from .completion import TaskName
from .errors import CommandError, ExitCode, hint_at
from .job_rows import JOB, job_row
from .values import read_duration, read_json, read_time


async def add(
    command: Command,
    name: TaskName,
    *,
    args: Annotated[str | None, typer.Option(metavar="JSON", help="A list of arguments.")] = None,
    kwargs: Annotated[str | None, typer.Option(metavar="JSON", help="Arguments by name.")] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="When it is due [now].")] = None,
    delay: Annotated[str | None, typer.Option("--in", metavar="5m", help="Or in how long.")] = None,
    job_id: Annotated[str | None, typer.Option("--id", help="The id of the job [generated].")] = None,
    priority: Annotated[JobPriority | None, typer.Option(help="Higher ones start first.")] = None,
    retries: Annotated[int | None, typer.Option(help="Retries after a failed attempt.")] = None,
    on_conflict: Annotated[
        ConflictResolution, typer.Option(help="If a job has the id.")
    ] = ConflictResolution.RAISE,
    metadata: Annotated[str | None, typer.Option(metavar="JSON", help="An object for filters.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; may be repeated.")] = None,
    keep_result: Annotated[
        str | None, typer.Option(metavar="1h", help="How long the result is kept for jobs result.")
    ] = None,
) -> None:
    """Schedule a job by the name of its task, and print it."""
    if at is not None and delay is not None:
        raise CommandError(ExitCode.USAGE, "pass either --at or --in")
    due = None if at is None else read_time("--at", at, command.output.zone)
    delay_s = None if delay is None else read_duration("--in", delay)
    keep_s = None if keep_result is None else read_duration("--keep-result", keep_result)
    arguments = read_json("--args", args, list) or [], read_json("--kwargs", kwargs, dict) or {}
    options: dict[str, Any] = {
        "job_id": job_id,
        "priority": UNSET if priority is None else priority,
        "max_retries": UNSET if retries is None else retries,
        "conflict_resolution": on_conflict,
        "keep_result": UNSET if keep_s is None else timedelta(seconds=keep_s),
        "metadata": _metadata(read_json("--metadata", metadata, dict), tag or ()),
    }
    async with command.scheduler() as scheduler:
        if due is None:
            found = await scheduler.enqueue(
                name, args=arguments[0], kwargs=arguments[1], delay=delay_s, **options
            )
        else:
            data = {"args": arguments[0], "kwargs": arguments[1]}
            found = await scheduler.schedule_job(name, due, data, **options)
        inspector = Inspector(scheduler)
        await inspector.record_action("add_job", found, name=name)
        warning = warning_about(name, await inspector.workers())
        job = await scheduler.get_job(found)
    if warning is not None:
        command.output.say(warning)
    if job is None:
        command.output.say(f"job {found!r} was added, and deleted since")
        return
    command.output.write_list(JOB, [job_row(job)])


def _metadata(metadata: dict[str, Any] | None, tags: Sequence[str]) -> dict[str, Any] | None:
    if not tags:
        return metadata
    present = (metadata or {}).get("tags", [])
    if not isinstance(present, list):
        raise CommandError(ExitCode.USAGE, f"tags of --metadata must be a list, not {present!r}")
    return {**(metadata or {}), "tags": [*present, *tags]}


def warning_about(name: str, workers: Sequence[Worker]) -> str | None:
    """Return why the job will wait although it is due; None if a live worker may claim it."""
    alive = [worker for worker in workers if worker.is_alive]
    if not alive:
        return "no worker is alive; jobs wait for one"
    if any(worker.names is None for worker in alive):
        return None
    names = sorted({each for worker in alive for each in worker.names or ()})
    if name in names:
        return None
    return f"no live worker claims {name!r}{hint_at(name, names)}"
