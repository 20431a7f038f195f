"""Jobs as rows of output, and ``jobs show`` and ``jobs steps``: a job, what happened to it, its steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from pg_scheduler import Job, JobProgress, JobResult, JobStatus
from pg_scheduler.base.text.numbers import counted, exact
from pg_scheduler.base.text.values import copy_fields, plain
from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.inspect import Inspector, StepState
from pg_scheduler.inspect.reasons import ReasonCode
from pg_scheduler.inspect.schedule_history import PastFire, last_results
from pg_scheduler.inspect.steps import STORED
from pg_scheduler.inspect.texts import short
from pg_scheduler.inspect.timeline import Event, timeline_of
from pg_scheduler.jobs.metadata import tags_of

from .commands import Command, reject_empty
from .errors import NotFoundError, UsageError, hint_at
from .output import Column, Output, Shape, columns
from .schedule_options import FiredJob


@dataclass(frozen=True, slots=True)
class JobRow(Job):
    """A job; args, kwargs, metadata, tags and progress are null with --no-arguments."""

    args: tuple[Any, ...] | None  # type: ignore[assignment]
    kwargs: Mapping[str, Any] | None  # type: ignore[assignment]
    metadata: Mapping[str, Any] | None = field(default_factory=dict)  # type: ignore[assignment]
    tags: Sequence[str] | None = ()
    """The list tags of the metadata."""


JOB: Final = Shape(
    "job",
    JobRow,
    (
        Column("job_id", "ID", is_id=True),
        Column("job_name", "NAME"),
        Column("status"),
        Column("execution_time", "DUE"),
        Column("attempt"),
        Column("error_message", "ERROR", is_long=True),
        *columns("priority", "created_at", "started_at", "finished_at", is_wide=True),
        Column("worker_id", "WORKER", is_wide=True),
    ),
)

RESULT: Final = Shape(
    "result",
    JobResult,
    (
        Column("job_id", "ID"),
        *columns("status", "value", "error"),
        Column("no_value_reason", "WITHOUT VALUE BECAUSE"),
        *columns("attempts", "started_at", "finished_at", is_wide=True),
        Column("expires_at", "KEPT UNTIL", is_wide=True),
    ),
    keys=(
        "job_id", "value", "no_value_reason", "attempts", "started_at", "finished_at", "expires_at", "status",
        "error",
    ),
)  # fmt: skip

ARGUMENTS: Final = ("args", "kwargs", "metadata", "tags", "progress")
"""The keys that may hold personal data."""

JobId = Annotated[str, typer.Argument(metavar="ID", help="The id of a job.", callback=reject_empty)]

_KEYS: Final = tuple(field.name for field in fields(JobRow))


def job_row(job: Job, *, no_arguments: bool = False) -> JobRow:
    """Return a job as commands write it.

    With ``no_arguments``, the row has no logs, and None for each key that may hold personal data.
    """
    if not no_arguments:
        return copy_fields(JobRow, job, tags=tags_of(job.metadata))
    errors_without_logs = tuple(replace(error, log=()) for error in job.errors)
    nothing: dict[str, None] = dict.fromkeys(ARGUMENTS)
    return copy_fields(JobRow, job, errors=errors_without_logs, **nothing)


def read_columns(text: str) -> list[Column]:
    """Return the columns that a text such as ``job_id,tags,progress`` names.

    Raises:
        CommandError: A name is unknown.
    """
    # A column that is asked for is shown, also if a table usually omits it.
    default_columns = {column.key: replace(column, is_wide=False) for column in JOB.columns}
    choice = []
    names = [part.strip() for part in text.split(",")]
    # A name that occurs twice counts once, and empty ones are ignored.
    for name in dict.fromkeys(names):
        if not name:
            continue
        if name not in _KEYS:
            raise UsageError(f"unknown column {name!r}{hint_at(name, _KEYS, title='columns')}")
        choice.append(default_columns.get(name) or Column(name, name.replace("_", " ").upper()))
    if not choice:
        raise UsageError(f"--columns names no column; columns: {', '.join(_KEYS)}")
    return choice


def column_row(job: Job, columns: Iterable[Column]) -> dict[str, Any]:
    """Return the keys and values of a job in some columns, with tags and progress as texts for people."""
    row = JOB.row(job_row(job))
    row["tags"] = ", ".join(row["tags"])
    row["progress"] = None if job.progress is None else progress_text(job.progress)
    return {column.key: row[column.key] for column in columns}


async def pause_of(inspector: Inspector, job_id: str) -> str | None:
    """Return the sentence that no worker starts a job, because its task is paused.

    Return None if the task is not paused, or the job does not exist.
    """
    try:
        explanation = await inspector.explain_job(job_id)
    except JobNotFoundError:
        return None
    for reason in explanation.reasons:
        if reason.code is ReasonCode.TASK_PAUSED:
            return reason.text
    return None


def progress_text(progress: JobProgress) -> str:
    """Return progress as people read it: ``3 of 10: rows``."""
    total = "" if progress.total is None else f" of {exact(progress.total)}"
    note = "" if progress.note is None else f": {progress.note}"
    return f"{exact(progress.done)}{total}{note}"


_DETAILS: Final = (
    "job_id", "job_name", "status", "execution_time", "priority", "args", "kwargs", "metadata", "tags",
    "attempt", "retry_count", "max_retries", "crash_count", "created_at", "started_at", "finished_at",
    "expires_at", "timeout", "deadline", "worker_id", "blocked_on", "parents", "unique_key", "schedule_id",
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
    """A job with its result, its steps, the jobs that it waits for, what happened to it, and its schedule."""

    result: Mapping[str, Any] | None
    """How it ended, in the shape result; null before, and with --no-arguments."""
    steps: Sequence[StepState]
    """Its durable steps and signals, without values with --no-arguments."""
    parents: Sequence[ParentJob]
    """The jobs that it waits for."""
    timeline: Sequence[TimelineEvent]
    """Its creation, due time, attempts and end, and what is ahead."""
    schedule_jobs: Sequence[FiredJob]
    """The newest other jobs of its schedule."""


SHOWN_JOB: Final = Shape("shown_job", ShownJob, identity="job_id")


async def show(
    command: Command,
    job_id: JobId,
    no_arguments: Annotated[
        bool,
        typer.Option(
            "--no-arguments", help="Omit arguments, metadata, progress, result, values of steps and logs."
        ),
    ] = False,
) -> None:
    """Print a job: its row, result, steps and timeline, jobs that it waits for, and those of its schedule."""
    async with command.scheduler() as scheduler:
        inspector = Inspector(scheduler)
        job = await scheduler.get_job(job_id)
        if job is None:
            raise JobNotFoundError(job_id)
        # A job has a result once it is finished. The result may hold personal data.
        has_result = job.status.is_finished and not no_arguments
        result = await _result(inspector, job) if has_result else None
        steps = (await inspector.steps(job_id)).items
        # Without a reason in blocked_on, the job waits for nothing but its due time, so for no other job.
        parents = await inspector.parents(job_id) if job.blocked_on is not None else {}
        fires = await _other_fires(command, inspector, job)
    events = list(timeline_of(job, datetime.now(UTC), steps))
    steps = without_values(steps) if no_arguments else steps
    row = job_row(job, no_arguments=no_arguments)
    if not command.output.is_table:
        document = copy_fields(
            ShownJob,
            row,
            result=None if result is None else RESULT.row(result),
            steps=steps,
            parents=[ParentJob(parent, status) for parent, status in parents.items()],
            timeline=[copy_fields(TimelineEvent, event) for event in events],
            schedule_jobs=[copy_fields(FiredJob, fire) for fire in fires],
        )
        command.output.write_one(SHOWN_JOB, document)
        return
    hidden_keys = {*ARGUMENTS, "result"} if no_arguments else set()
    # The status of a parent is None if the parent was deleted.
    parent_texts = [f"{parent} ({status or 'missing'})" for parent, status in parents.items()]
    # These texts replace the values of the row.
    texts = {
        "tags": ", ".join(row.tags or ()) or None,
        "progress": None if row.progress is None else progress_text(row.progress),
        "parents": ", ".join(parent_texts) or None,
        "result": None if result is None else _result_text(result),
    }
    # Arguments that cannot be read are shown as the reason for this.
    if row.no_args_reason is not None:
        texts["args"] = row.no_args_reason
    keys = [key for key in _DETAILS if key not in hidden_keys]
    command.output.write_one(JOB, JOB.row(row) | texts, keys=keys)
    if steps:
        command.output.write_paragraph("\n".join(["\nsteps:", *step_lines(command.output, steps)]))
    _write_history(command, events, fires, no_arguments=no_arguments)


async def _result(inspector: Inspector, job: Job) -> JobResult | None:
    """Return the result of a finished job; None if the job was deleted since it was read."""
    try:
        return await inspector.get_result(job.job_id)
    except JobNotFoundError:
        return None


async def _other_fires(command: Command, inspector: Inspector, job: Job) -> list[PastFire]:
    """Return the newest fire times of the job's schedule that have another job; none without a schedule."""
    schedule = None if job.schedule_id is None else await inspector.get_schedule(job.schedule_id)
    if schedule is None:
        return []
    try:
        fires = await last_results(inspector, schedule)
    except Exception as error:  # noqa: BLE001 - a kind of trigger of the user
        command.output.say(f"no other jobs: the trigger cannot compute its fire times: {error}")
        return []
    # A fire time has no status if no job was enqueued for it, or if that job was deleted.
    return [fire for fire in fires if fire.status is not None and fire.job_id != job.job_id]


def _result_text(result: JobResult) -> Any:
    """Return the value of a completed job, or why there is none; None for other jobs."""
    if result.status is not JobStatus.COMPLETED:
        return None  # the row has its error
    if result.no_value_reason is not None:
        return f"none: {result.no_value_reason}"
    return result.value


def _write_history(
    command: Command, events: list[Event], fires: list[PastFire], *, no_arguments: bool
) -> None:
    """Write for people what the row does not have: timeline, jobs of the schedule, tracebacks and logs."""
    output = command.output
    output.write_paragraph("\n".join(["\ntimeline:", *(_event_line(command, event) for event in events)]))
    if fires:
        lines = (f"{output.when(fire.at)}  {fire.status:9}  {fire.job_id}" for fire in fires)
        output.write_paragraph("\n".join(["\nother jobs of the schedule:", *lines]))
    # The traceback and the log of an attempt follow under the title of its event.
    for event in events:
        details = [] if event.traceback is None else [event.traceback]
        if not no_arguments:
            details += event.log
        if details:
            output.write_paragraph("\n".join([f"\n{event.title}:", *details]))


def _event_line(command: Command, event: Event) -> str:
    """Return an event in the life of a job as a line: its time, what happened, on which worker, the error."""
    unknown_time = "ahead" if event.is_ahead else ""
    at = unknown_time if event.at is None else command.output.when(event.at)
    worker = f" on worker {event.worker}" if event.worker else ""
    error = f": {event.error}" if event.error else ""
    return f"{at:25}  {event.title}{worker}{error}"


STEP: Final = Shape(
    "step",
    StepState,
    (
        *columns("name", "kind", "state", "until"),
        Column("value", is_long=True),
        *columns("attempt", "started_at", "ended_at", "failures", is_wide=True),
    ),
)


async def steps(
    command: Command,
    job_id: JobId,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only this step, with a large value too.")
    ] = None,
    *,
    no_arguments: Annotated[
        bool, typer.Option("--no-arguments", help="Omit the values of steps and signals.")
    ] = False,
) -> None:
    """Print the durable steps and signals of a job, the oldest first."""
    async with command.inspector() as inspector:
        steps = await inspector.steps(job_id, name=name)
        if name is not None and not steps.items:
            # The error hints at a step with a similar name.
            names = [step.name for step in (await inspector.steps(job_id)).items]
            raise NotFoundError(f"job {job_id!r} has no step {name!r}{hint_at(name, names)}")
    items = without_values(steps.items) if no_arguments else steps.items
    command.output.write_list(STEP, items, is_capped=steps.is_capped, summary=steps.summary)
    command.output.say(steps.summary)


def without_values(steps: Iterable[StepState]) -> Sequence[StepState]:
    """Return steps without their values, which may hold personal data."""
    return [replace(step, value=None, no_value_reason=None) for step in steps]


def step_lines(output: Output, steps: Iterable[StepState]) -> Iterator[str]:
    """Yield a line for each step, as people read it."""
    for step in steps:
        until = "" if step.ended_at is not None else f" until {output.when(step.until)}"
        value = ""
        if step.value is not None:
            value_text = json.dumps(plain(step.value), ensure_ascii=False)
            value = f": {short(value_text)}"
        failures = f", {counted(step.failures, 'failure')}" if step.failures else ""
        # The errors of a step that has a value are history, which "jobs steps" has.
        if step.errors and step.state != STORED:
            value = f": {short(step.errors[-1].error)}"
        line = f"{output.when(step.started_at)}  {step.name} ({step.kind}) {step.state}"
        yield f"{line}{until}{failures}{value}"
