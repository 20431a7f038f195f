"""Tasks with the options of jobs, and their names as jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import lru_cache
from glob import escape
from typing import Any, Final

from pg_scheduler.errors import ConfigurationError
from pg_scheduler.integrations.django.compat import Task
from pg_scheduler.jobs.limits import Limit
from pg_scheduler.jobs.model import UNSET, JobPriority, StandIn, TaskName, Unset
from pg_scheduler.jobs.registry import catalogue
from pg_scheduler.jobs.retry import RetryPolicy
from pg_scheduler.jobs.unique import Unique

PER_JOB: Final = (
    "job_id",
    "keep_result",
    "max_retries",
    "metadata",
    "misfire_grace_time",
    "timeout",
    "unique",
)
"""The options that ``using()`` can change."""

PRIORITY: Final = "django_priority"
"""The key of the metadata with the priority of the task as a number, unless that is 0."""

HIGH: Final = 1
CRITICAL: Final = 50
"""The least numbers of these priorities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTask(Task):
    """A task, with the options of ``@job`` as further arguments of ``@task`` (Django 6.1 and django-tasks).

    Attributes:
        job_id: The id of the job, for ``using()``; None to generate one.
        max_retries: Retries after a failed first attempt. Default: ``MAX_RETRIES`` in ``OPTIONS``.
        timeout: The time limit of one attempt, in seconds or as a timedelta; None for no limit. Default:
            ``TIMEOUT``.
        keep_result: How long the return value is kept; None for not at all. Default: ``KEEP_RESULT``.
        misfire_grace_time: Seconds after which a job that has not started expires. Default: never.
        retry: The delays before retries; None for those of the Scheduler.
        limits: How many attempts may run or start at once.
        unique: Which jobs exclude one another.
        metadata: A JSON object for people and filters.
        on_failure: The name of the task that is enqueued when a job has failed finally, with its queue:
            ``"shop.tasks.alert@default"``.
        executor: Where it runs, a name in ``EXECUTORS``; None for the event loop or a thread.
        aliases: Former paths whose pending jobs it runs, such as ``"shop.old.send"``.
    """

    job_id: str | None = None
    max_retries: int | Unset = UNSET
    timeout: float | timedelta | Unset | None = UNSET
    keep_result: timedelta | Unset | None = UNSET
    misfire_grace_time: int | Unset | None = UNSET
    retry: RetryPolicy | None = field(default=None, hash=False)
    limits: Iterable[Limit] = field(default=(), hash=False)
    unique: Unique | str | Unset | None = field(default=UNSET, hash=False)
    metadata: Mapping[str, Any] | None = field(default=None, hash=False)
    on_failure: str | None = None
    executor: str | None = None
    aliases: Iterable[str] = field(default=(), hash=False)

    def __job_stand_in__(self) -> StandIn:
        """Return what a Scheduler enqueues for this task, which it accepts in place of a function.

        This is the name of the task with its queue, the registered function, and the options that ``using()``
        has changed.

        Raises:
            ConfigurationError: It has a ``run_after``, which only its own ``enqueue()`` reads.
        """
        if self.run_after is not None:
            raise ConfigurationError(
                f"the task {self.module_path} has a run_after, which only its own enqueue() reads; "
                "pass delay= or a time to the Scheduler"
            )
        name = name_of(self)
        task = catalogue.find_exact(name)
        # The validation of every task of Django registers its function.
        assert task is not None  # noqa: S101
        declared_task = vars(task.func)["django_task"]
        # The options that using() has changed differ from those of the declared task.
        options: dict[str, Any] = {}
        for option in PER_JOB:
            value = getattr(self, option)
            # A declared task of Django's own class lacks the options of jobs.
            if value != getattr(declared_task, option, value):
                options[option] = value
        if self.priority != declared_task.priority:
            options["priority"] = priority_of(self.priority)
        if self.priority:
            # A result of Django has the priority as a number, of which jobs know only four.
            options["metadata"] = {**(options.get("metadata") or {}), PRIORITY: int(self.priority)}
        return StandIn(TaskName(name), task.func, options)

    def using(self, **changes: Any) -> JobTask:
        """Return the task with other values of Django's options, or of those that belong to one job."""
        job_options = {name: changes.pop(name) for name in PER_JOB if name in changes}
        copy: JobTask = Task.using(self, **changes)  # super() fails in a class with slots
        return replace(copy, **job_options) if job_options else copy


def copy_with(task: Task, **values: Any) -> Task:
    """Return a copy of a task with other values, which are not validated."""
    # A task is frozen, and its constructor would validate the values.
    copy: Task = object.__new__(type(task))
    for option in fields(task):
        object.__setattr__(copy, option.name, values.get(option.name, getattr(task, option.name)))
    return copy


def name_of(task: Task) -> str:
    """Return the name of the jobs of a task: its path and its queue."""
    return job_name(task.module_path, task.queue_name)


@lru_cache(maxsize=1000)
def job_name(path: str, queue: str) -> str:
    """Return the name of the jobs of the task with this path in a queue.

    The name is the same object at each call, so what is derived from the name and the options is derived
    once.
    """
    return f"{path}@{queue}"


def pattern_of(queue: str) -> str:
    """Return the pattern of the names of the jobs in a queue."""
    return job_name("*", escape(queue))


def queue_in(name: str) -> str | None:
    """Return the queue in the name of a job; None if it has none."""
    return name.partition("@")[2] or None


def priority_of(number: int) -> JobPriority:
    """Return the priority of jobs for the priority of a task, a number from -100 to 100."""
    if number < 0:
        return JobPriority.LOW
    if number < HIGH:
        return JobPriority.NORMAL
    return JobPriority.HIGH if number < CRITICAL else JobPriority.CRITICAL
