"""Rows as the values the rest of the library works with."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.model import Job, JobPriority, JobStatus, Worker
from pg_scheduler.jobs.payload import decode
from pg_scheduler.schedules.model import PeriodicRow

__all__ = ["job_from", "periodic_from", "worker_from"]

MAX_TIMEDELTA: Final = 86_399_999_999_999.0
"""Seconds that fit into a timedelta; a column can hold more, and NaN, so it comes first in a ``min()``."""


def job_from(row: Any) -> Job:
    """A row of get_job or list_jobs. Arguments that were not written by this library are left out."""
    values = dict(row)
    try:
        args, kwargs = decode(values.pop("task_data"))
    except PayloadError:
        args, kwargs = (), {}
    seconds = values.pop("timeout_seconds")
    values["status"] = JobStatus(values["status"])
    values["priority"] = JobPriority.from_db_value(values["priority"])
    return Job(
        args=args,
        kwargs=kwargs,
        timeout=None if seconds is None else timedelta(seconds=min(MAX_TIMEDELTA, seconds)),
        **values,
    )


def worker_from(row: Any) -> Worker:
    """A row of list_workers."""
    return Worker(**dict(row))


def periodic_from(row: Any) -> PeriodicRow:
    """A row of periodic_rows or due_periodic."""
    values = dict(row)
    values.pop("now", None)
    return PeriodicRow(**values)
