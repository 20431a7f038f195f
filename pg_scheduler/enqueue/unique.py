"""Make jobs unique: resolve the rule, derive the key or the id, without I/O."""

from __future__ import annotations

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.jobs.rows import ExtendedJob, Extras, NewJob, Span
from pg_scheduler.jobs.task import Task
from pg_scheduler.jobs.unique import Unique, Uniqueness, check_unique, check_unique_names, unique_text
from pg_scheduler.jobs.unset import Unset


def rule_of(unique: Unique | str | Unset | None, task: Task | None) -> Uniqueness | None:
    """Return the rule of a job, which defaults to that of its task.

    Raises:
        TypeError: It is neither a text nor a rule.
        ValueError: It is no key, or names an argument that the function lacks.
    """
    if isinstance(unique, Unset):
        return None if task is None else task.unique
    rule = check_unique(unique)
    if task is not None:
        check_unique_names(rule, task.arity.signature, task.func.__qualname__)
    return rule


def made_unique(job: NewJob, rule: Uniqueness, task: Task | None, *, has_id: bool) -> ExtendedJob:
    """Return the job with its unique key, or with the id of its time span.

    Args:
        job: The job.
        rule: Which jobs exclude one another.
        task: Its task; None if it is not registered here.
        has_id: Whether the caller gave the job its id.

    Raises:
        ValueError: The id would be derived, and one was given; or the signature is unknown.
    """
    if isinstance(rule, Unique) and rule.per is not None and has_id:
        raise ConfigurationError(
            f"job_id {job.job_id!r} and unique with per= exclude each other: the id is derived from the time "
            "span; omit job_id=, or pass unique=None or a Unique() without per="
        )
    extras = job.extras if isinstance(job, ExtendedJob) else Extras()
    if isinstance(rule, str):
        return ExtendedJob.of(job, extras._replace(unique_key=rule))
    if task is None:
        raise ConfigurationError(
            f"task {job.job_name!r} is not registered in this process, so the arguments of Unique() have no "
            "names; register the function, or pass a key such as unique='import:7'"
        )
    text = unique_text(rule, task.name, task.arity.signature, job.task_data)
    if rule.per is None:
        return ExtendedJob.of(job, extras._replace(unique_key=text))
    return ExtendedJob.of(job, extras, span=Span(text, rule.per))


def key_of(job: NewJob) -> str | None:
    """Return the unique key of a job; None if it has none."""
    return job.extras.unique_key if isinstance(job, ExtendedJob) else None
