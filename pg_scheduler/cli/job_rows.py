"""Jobs as rows of output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Final

import typer

from pg_scheduler import Job, JobProgress
from pg_scheduler.jobs.metadata import tags_of
from pg_scheduler.text.values import copy_fields

from .errors import UsageError, hint_at
from .output import Column, Shape, columns


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
    "job_id",
    (
        Column("job_id", "ID", is_id=True),
        Column("job_name", "NAME"),
        Column("status", "STATUS"),
        Column("execution_time", "DUE"),
        Column("attempt", "ATTEMPT"),
        Column("error_message", "ERROR", is_long=True),
        *columns("priority", "created_at", "started_at", "finished_at", is_wide=True),
        Column("worker_id", "WORKER", is_wide=True),
    ),
)

ARGUMENTS: Final = ("args", "kwargs", "metadata", "tags", "progress")
"""The keys that may hold personal data."""

JobId = Annotated[str, typer.Argument(metavar="ID", help="The id of a job.")]

_KEYS: Final = tuple(each.name for each in fields(JobRow))


def job_row(job: Job, *, no_arguments: bool = False) -> JobRow:
    """Return a job as it is written; without arguments, these are None, and no attempt has a log."""
    if not no_arguments:
        return copy_fields(JobRow, job, tags=tags_of(job.metadata))
    errors = tuple(replace(error, log=()) for error in job.errors)
    return copy_fields(JobRow, job, errors=errors, **dict.fromkeys(ARGUMENTS))


def read_columns(text: str) -> list[Column]:
    """Return the columns of the names in a text such as ``job_id,tags,progress``.

    Raises:
        CommandError: A name is unknown.
    """
    known = {column.key: replace(column, is_wide=False) for column in JOB.columns}
    found = []
    for name in dict.fromkeys(filter(None, map(str.strip, text.split(",")))):
        if name not in _KEYS:
            hint = hint_at(name, _KEYS, f"columns: {', '.join(_KEYS)}")
            raise UsageError(f"unknown column {name!r}{hint}")
        found.append(known.get(name) or Column(name, name.replace("_", " ").upper()))
    if not found:
        raise UsageError(f"--columns names no column; columns: {', '.join(_KEYS)}")
    return found


def column_row(job: Job, columns: Iterable[Column]) -> dict[str, Any]:
    """Return the keys and values of some columns, as people read them."""
    row = JOB.row(job_row(job))
    row["tags"] = ", ".join(row["tags"])
    row["progress"] = None if job.progress is None else progress_text(job.progress)
    return {column.key: row[column.key] for column in columns}


def progress_text(progress: JobProgress) -> str:
    """Return progress as people read it: ``3 of 10: rows``."""
    total = "" if progress.total is None else f" of {progress.total:g}"
    return f"{progress.done:g}{total}" + ("" if progress.note is None else f": {progress.note}")
