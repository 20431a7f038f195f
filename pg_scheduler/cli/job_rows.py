"""Jobs as rows of output."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from pg_scheduler import Job

from .output import SHAPE_VERSION, Column, Shape

__all__ = ["ARGUMENTS", "JOB", "job_row"]

JOB: Final = Shape(
    "job",
    "job_id",
    (
        Column("job_id", "ID", is_id=True),
        Column("job_name", "NAME"),
        Column("status", "STATUS"),
        Column("execution_time", "DUE"),
        Column("attempt", "ATTEMPT", is_number=True),
        Column("error_message", "ERROR", is_long=True),
        Column("priority", "PRIORITY", is_wide=True),
        Column("created_at", "CREATED", is_wide=True),
        Column("started_at", "STARTED", is_wide=True),
        Column("finished_at", "FINISHED", is_wide=True),
        Column("worker_id", "WORKER", is_wide=True),
    ),
)


ARGUMENTS: Final = ("args", "kwargs", "metadata", "progress")
"""The keys that may hold personal data."""


def job_row(job: Job, *, no_arguments: bool = False) -> dict[str, Any]:
    """Return the keys and values of a job; without arguments, these are None."""
    row = {"v": SHAPE_VERSION} | asdict(job)
    row |= {"status": job.status.value, "priority": job.priority.value}
    return row | dict.fromkeys(ARGUMENTS) if no_arguments else row
