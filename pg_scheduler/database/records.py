"""Convert rows to the values of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pg_scheduler.base.lazy_imports import LazyModule
from pg_scheduler.base.status import JobStatus
from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.codec import PayloadCodec
from pg_scheduler.jobs.deadlines import instant_of
from pg_scheduler.jobs.history import errors_from, instant_from
from pg_scheduler.jobs.metadata import metadata_of
from pg_scheduler.jobs.model import Job, JobPriority, Worker
from pg_scheduler.jobs.payload import decode, object_from
from pg_scheduler.jobs.progress import progress_from
from pg_scheduler.jobs.validation import duration_from

if TYPE_CHECKING:
    from pg_scheduler.jobs import worker_report
else:
    worker_report = LazyModule("pg_scheduler.jobs.worker_report")


def job_from(row: Any, codec: PayloadCodec | None) -> Job:
    """Convert a row of get_job or list_jobs. Arguments and other JSON that cannot be read are omitted."""
    values = dict(row)
    task_data = values.pop("task_data")
    no_args_reason = None
    # The codec may lack a key, or the text may be written by hand. The job is shown without arguments then.
    try:
        args, kwargs = decode(task_data, codec, values["job_name"])
    except PayloadError as error:
        args, kwargs, no_args_reason = (), {}, str(error)
    seconds = values.pop("timeout_seconds")
    values["status"] = JobStatus(values["status"])
    values["metadata"] = metadata_of(task_data)
    values["errors"] = errors_from(values["errors"])
    values["progress"] = progress_from(values["progress"], codec, values["job_name"])
    values["deadline"] = instant_of(values["deadline"])
    values["fire_time"] = instant_from(values["fire_time"])
    values["priority"] = JobPriority.from_db_value(values["priority"])
    return Job(
        args=args,
        kwargs=kwargs,
        no_args_reason=no_args_reason,
        timeout=None if seconds is None else duration_from(seconds),
        **values,
    )


def worker_from(row: Any) -> Worker:
    """Convert a row of list_workers, in which some columns are texts of JSON."""
    values = dict(row)
    for column in ("metadata", "settings", "health"):
        values[column] = object_from(values[column])
    return Worker(names=worker_report.reported_names(values.pop("names")), **values)
