"""The one place that hides parts of jobs: pages show the `Job` that it returns."""

from __future__ import annotations

from dataclasses import replace

from pg_scheduler.dashboard.access import Access
from pg_scheduler.dashboard.redaction import HIDDEN, Redaction
from pg_scheduler.jobs.history import PARENT
from pg_scheduler.jobs.limits import BLOCKED_BY_LIMIT
from pg_scheduler.jobs.model import Job


def visible_job(job: Job, access: Access, redaction: Redaction) -> Job:
    """Return a job as far as a request may see it.

    Without arguments, there are no metadata, progress notes and log lines either, and the keys of limits and
    of unique jobs are hidden; the latter also with any value, because it may be a digest of the arguments.
    With ``names=``, the history has no entry that names another job.
    """
    errors = job.errors
    if access.visible_names is not None:
        errors = tuple(each for each in errors if each.outcome != PARENT)
    if access.sees_arguments:
        return replace(
            job,
            args=tuple(redaction.values(job.args)),
            kwargs=redaction.values(job.kwargs),
            metadata=redaction.values(job.metadata),
            errors=errors,
            unique_key=job.unique_key if sees_all(job, access, redaction) else job.unique_key and HIDDEN,
        )
    return replace(
        job,
        args=(),
        kwargs={},
        metadata={},
        errors=tuple(replace(each, log=()) for each in errors),
        progress=None if job.progress is None else replace(job.progress, note=None),
        unique_key=job.unique_key and HIDDEN,
        blocked_on=without_key(job.blocked_on),
    )


def sees_all(job: Job, access: Access, redaction: Redaction) -> bool:
    """Return whether a request may see every argument and all metadata of a job."""
    values = {"args": list(job.args), "kwargs": job.kwargs, "metadata": job.metadata}
    if not access.sees_arguments:
        return False
    return redaction.is_empty or bool(redaction.values(values) == values)  # what is too deep is unequal


def without_key(blocked_on: str | None) -> str | None:
    """Return what blocks a job, without the key of a limit."""
    name, _, key = (blocked_on or "").removeprefix(BLOCKED_BY_LIMIT).partition(":")
    return f"{BLOCKED_BY_LIMIT}{name}:{HIDDEN}" if key else blocked_on
