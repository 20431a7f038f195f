"""``jobs show``: a job, what happened to it, its result, and the jobs that it belongs to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from pg_scheduler import Job, JobResult, JobStatus
from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.inspect import Inspector
from pg_scheduler.inspect.schedule_history import PastFire, last_results
from pg_scheduler.inspect.timeline import Event, timeline_of
from pg_scheduler.text.values import copy_fields

from .commands import Command
from .job_rows import ARGUMENTS, JOB, JobId, JobRow, job_row, progress_text
from .job_run import RESULT
from .output import Shape
from .schedule_rows import FiredJob

_DETAILS: Final = (
    "job_id", "job_name", "status", "execution_time", "priority", "args", "kwargs", "metadata", "tags",
    "attempt", "retry_count", "max_retries", "crash_count", "created_at", "started_at", "finished_at",
    "expires_at", "timeout", "worker_id", "blocked_on", "parents", "unique_key", "schedule_id",
    "fire_time", "progress", "error_message", "result",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ParentJob:
    """A job for which another one waits."""

    job_id: str
    status: JobStatus | None
    """Its status; None if it is missing."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """A point in the life of a job."""

    at: datetime | None
    title: str
    worker: str | None
    error: str | None
    is_ahead: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob(JobRow):
    """A job with its result, the jobs that it waits for, what happened to it, and its schedule."""

    result: Mapping[str, Any] | None
    """How it ended, in the shape result; null before, and with --no-arguments."""
    parents: Sequence[ParentJob]
    """The jobs that it waits for."""
    timeline: Sequence[TimelineEvent]
    """Its creation, due time, attempts and end, and what is ahead."""
    schedule_jobs: Sequence[FiredJob]
    """The newest other jobs of its schedule."""


SHOWN_JOB: Final = Shape("shown_job", ShownJob, "job_id", ())


async def show(
    command: Command,
    job_id: JobId,
    no_arguments: Annotated[
        bool, typer.Option("--no-arguments", help="Omit arguments, metadata, progress, result and logs.")
    ] = False,
) -> None:
    """Print a job: its row, result and timeline, the jobs that it waits for, and those of its schedule."""
    async with command.scheduler() as scheduler:
        inspector = Inspector(scheduler)
        job = await scheduler.get_job(job_id)
        if job is None:
            raise JobNotFoundError(job_id)
        found = await _result(inspector, job) if job.status.is_finished and not no_arguments else None
        parents = await inspector.parents(job_id) if job.blocked_on is not None else {}
        others = await _others(command, inspector, job)
    events = list(timeline_of(job, datetime.now(UTC)))
    row = job_row(job, no_arguments=no_arguments)
    if not command.output.is_table:
        shown = copy_fields(
            ShownJob,
            row,
            result=None if found is None else RESULT.row(found),
            parents=[ParentJob(each, status) for each, status in parents.items()],
            timeline=[copy_fields(TimelineEvent, each) for each in events],
            schedule_jobs=[copy_fields(FiredJob, each) for each in others],
        )
        command.output.write_one(SHOWN_JOB, shown)
        return
    hidden = {*ARGUMENTS, "result"} if no_arguments else set()
    texts = {
        "tags": ", ".join(row.tags or ()) or None,
        "progress": None if row.progress is None else progress_text(row.progress),
        "parents": ", ".join(f"{each} ({status or 'missing'})" for each, status in parents.items()) or None,
        "result": None if found is None else _result_text(found),
    }
    keys = [key for key in _DETAILS if key not in hidden]
    command.output.write_one(JOB, JOB.row(row) | texts, keys=keys)
    _write_parts(command, events, others, no_arguments=no_arguments)


async def _result(inspector: Inspector, job: Job) -> JobResult | None:
    try:
        return await inspector.get_result(job.job_id)
    except JobNotFoundError:  # deleted since
        return None


async def _others(command: Command, inspector: Inspector, job: Job) -> list[PastFire]:
    """Return the newest other jobs of the schedule."""
    schedule = None if job.schedule_id is None else await inspector.get_schedule(job.schedule_id)
    if schedule is None:
        return []
    try:
        fires = await last_results(inspector, schedule)
    except Exception as error:  # noqa: BLE001 - a kind of trigger of the user
        command.output.say(f"no other jobs: the trigger cannot compute its fire times: {error}")
        return []
    return [each for each in fires if each.status is not None and each.job_id != job.job_id]


def _result_text(found: JobResult) -> Any:
    if found.status is not JobStatus.COMPLETED:
        return None  # the row has its error
    return found.value if found.no_value_reason is None else f"none: {found.no_value_reason}"


def _write_parts(
    command: Command, events: list[Event], others: list[PastFire], *, no_arguments: bool
) -> None:
    """Write the facts that are not values of the row, for people."""
    output = command.output
    output.write_paragraph("\n".join(["\ntimeline:", *(_event_line(command, each) for each in events)]))
    if others:
        lines = (f"{output.when(each.at)}  {each.status:9}  {each.job_id}" for each in others)
        output.write_paragraph("\n".join(["\nother jobs of the schedule:", *lines]))
    for each in events:
        if details := list(_details(each, no_arguments=no_arguments)):
            output.write_paragraph("\n".join([f"\n{each.title}:", *details]))


def _event_line(command: Command, event: Event) -> str:
    unknown = "ahead" if event.is_ahead else ""
    at = unknown if event.at is None else command.output.when(event.at)
    worker = f" on worker {event.worker}" if event.worker else ""
    error = f": {event.error}" if event.error else ""
    return f"{at:25}  {event.title}{worker}{error}"


def _details(event: Event, *, no_arguments: bool) -> Iterator[str]:
    if event.traceback is not None:
        yield event.traceback
    yield from () if no_arguments else event.log
