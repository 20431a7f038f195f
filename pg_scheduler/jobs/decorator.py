"""The decorator ``@job`` registers a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from pg_scheduler.base.public import public
from pg_scheduler.jobs.keys import KeyFunction
from pg_scheduler.jobs.limits import Limit, check_limits
from pg_scheduler.jobs.model import UNSET, JobFunction, JobPriority, Unset
from pg_scheduler.jobs.naming import check_aliases
from pg_scheduler.jobs.registry import catalogue
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.sequences import Sequence
from pg_scheduler.jobs.shares import Share
from pg_scheduler.jobs.task import TaskOptions
from pg_scheduler.jobs.unique import Unique

F = TypeVar("F", bound=JobFunction)


def job(
    name: str | None = None,
    aliases: Iterable[str] = (),
    *,
    timeout: float | timedelta | Unset | None = UNSET,
    misfire_grace_time: int | Unset | None = UNSET,
    max_retries: int | Unset = UNSET,
    retry: RetryPolicy | None = None,
    priority: JobPriority | Unset = UNSET,
    executor: str | Unset = UNSET,
    keep_result: timedelta | Unset | None = UNSET,
    deadline: float | timedelta | Unset | None = UNSET,
    typed: bool | Unset = UNSET,
    metadata: Mapping[str, Any] | None = None,
    limits: Iterable[Limit] = (),
    share: Share | None = None,
    sequence: Sequence | KeyFunction | None = None,
    unique: Unique | str | Unset | None = UNSET,
    on_failure: str | None = None,
    on_cancel: str | None = None,
    version: int | Unset = UNSET,
    chunk: int | None = None,
    chunk_wait: float | timedelta | Unset = UNSET,
    chunk_by: KeyFunction | None = None,
) -> Callable[[F], F]:
    """Declare a function as a job of every Scheduler of the process.

    Args:
        name: The name of its jobs in the table; ``module.qualname`` when None. With a given name, you can
            move the function to another module without losing its pending jobs.
        aliases: Former names whose pending jobs run too.
        timeout: Default time limit of one attempt, in seconds or as a timedelta; None for no limit. One hour
            if omitted.
        misfire_grace_time: Default misfire grace time in seconds; None for no limit. The Scheduler's if
            omitted.
        max_retries: Default number of retries after a failed first attempt. 0 if omitted.
        retry: The delays before its retries; None for the ``retry_policy`` of the Scheduler.
        priority: Default priority. NORMAL if omitted.
        executor: Where its jobs run: "async" is the event loop, "thread" a thread, "process" a process
            that imports the function; other names are those of the Scheduler's ``executors=``. If omitted, an
            ``async def`` runs in the event loop, and a plain function in a thread.
        keep_result: How long results are kept after the end of each job, for ``get_job_result()``; None if
            they are not. Not kept if omitted.
        deadline: Default time from the due time of a job within which it must have ended, over all attempts,
            sleeps and children, in seconds or as a timedelta; None for no deadline. None if omitted.
        typed: Whether pydantic validates the arguments by the annotations of the function, when a job is
            scheduled and when it runs. The function then receives models, datetimes and other objects, equal
            to those that were passed: a call with another value raises ``PayloadError``. False if omitted.
        metadata: A JSON object for people and filters, merged into the metadata of its jobs.
        limits: How many attempts may run or start at once, per key or in total; see ``Limit``. Unlimited if
            omitted.
        share: The share whose tenants take turns, so that a tenant with many jobs does not delay the jobs of
            the others; see ``Share``. None for no tenants.
        sequence: The key by which its jobs run one after the other, in their order: a function that is called
            with the arguments of the job, or a ``Sequence``. None for no order.
        unique: Which of its jobs exclude one another: a ``Unique()``, or one key for all. It applies to the
            fire times of schedules too. Not unique if omitted.
        on_failure: The name of a task to enqueue when a job has failed finally or expired, in the same
            transaction. It is called with ``job_id=``, ``job_name=``, ``error=`` and ``attempts=``, the
            number of its failed attempts. None for no such task.
        on_cancel: The name of a task to enqueue when a job that has begun is cancelled, for example while it
            is suspended. It is called with ``job_id=``, ``job_name=``, ``reason=`` and ``steps=``, a list
            of what the job has done: objects with the ``name``, the ``kind`` and the ``value`` of a step, and
            with ``is_omitted``, whether the value is left out. None for no such task.
        version: The version of the code, from 1, which a job stores with its first durable step; see
            ``current_job().steps.version``. 1 if omitted.
        chunk: How many jobs one call of the function may get, from 1 to 10,000. The function then has one
            parameter, a `Chunk`, and each job one argument. None for a call for each job.
        chunk_wait: How long the first job of a chunk waits for others, in seconds or as a timedelta, up to an
            hour; 0 for those that are claimed together with it. A job with a deadline waits for at most half
            of the time that it has left. One second if omitted.
        chunk_by: A plain function that is called with the argument of a job, in the worker, and returns its
            key, a str or an int of at most 200 bytes: each chunk has jobs of one key. The number 1 and the
            text "1" are two keys. None for any jobs.

    Returns:
        A decorator that returns the unchanged function.

    Raises:
        TypeError: The decorated object is not a function, or the executor cannot run it.
        ConfigurationError: An option is out of range, excludes another one, or does not fit the function; a
            ValueError.
        NameConflictError: Another function has one of the names, or the same ``module.qualname`` with
            another name; a ValueError.

    Example:
        >>> from pg_scheduler import job
        >>> @job(name="mail.welcome", aliases=["send_welcome"], max_retries=5, timeout=30)
        ... async def send_welcome_mail(to: str) -> None: ...
        >>> @job()  # a plain function, which runs in a thread
        ... def resize(path: str) -> None: ...
    """
    if callable(name):
        raise TypeError("@job must be called; write @job() above the function")
    old_names = check_aliases(aliases)
    options = TaskOptions(
        timeout=timeout,
        misfire_grace_time=misfire_grace_time,
        max_retries=max_retries,
        retry=retry,
        priority=priority,
        executor=executor,
        keep_result=keep_result,
        deadline=deadline,
        typed=typed,
        metadata=metadata,
        limits=check_limits(limits),
        share=share,
        sequence=sequence,
        unique=unique,
        on_failure=on_failure,
        on_cancel=on_cancel,
        version=version,
        chunk=chunk,
        chunk_wait=chunk_wait,
        chunk_by=chunk_by,
    )

    def decorate(func: F) -> F:
        catalogue.register(func, name=name, aliases=old_names, options=options)
        return func

    return decorate


public(job)
