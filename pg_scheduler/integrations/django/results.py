"""The results of tasks, made of jobs."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any, Final, Self
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from pg_scheduler.base.status import JobStatus
from pg_scheduler.errors import JobCancelledError, JobExpiredError, JobFailedError, JobResult
from pg_scheduler.facts.outcomes import FAILED_ENTRIES
from pg_scheduler.integrations.django.compat import Task, TaskError, TaskResult, TaskResultStatus
from pg_scheduler.integrations.django.task import PRIORITY, copy_with, queue_in
from pg_scheduler.jobs.history import AttemptError
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.retry import naming_leaf_of

STATUSES: Final[Mapping[JobStatus, Any]] = {
    JobStatus.PENDING: TaskResultStatus.READY,
    JobStatus.RUNNING: TaskResultStatus.RUNNING,
    JobStatus.COMPLETED: TaskResultStatus.SUCCESSFUL,
}
"""The status of a task for each status of a job; FAILED for the other ones."""

ENDS: Final[Mapping[JobStatus, type[Exception]]] = {
    JobStatus.CANCELLED: JobCancelledError,
    JobStatus.EXPIRED: JobExpiredError,
}
"""The class of the last error of a result, for a job that has ended in one of these statuses."""

UNCHANGED_FIELDS: Final = frozenset({"args", "backend", "id", "kwargs", "task"})
"""The fields that ``refresh()`` leaves as they are."""

UUID_VERSION: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTaskResult(TaskResult):
    """The result of a task.

    Attributes:
        claims: The number of attempts.
        no_value_reason: Why a successful task has no return value; None if it has one.
    """

    claims: int = 0
    no_value_reason: str | None = None

    @property
    def attempts(self) -> int:
        """The number of attempts. There may be fewer workers, since not each attempt has a known one."""
        return self.claims

    @property
    def return_value(self) -> Any:
        """The return value of a successful task.

        Raises:
            ValueError: The task has not succeeded, or its value was not kept.
        """
        # In a class with slots, super() fails, so the property of the base class is called.
        value = TaskResult.return_value.fget(self)
        if self.no_value_reason is not None:
            raise ValueError(f"the return value is not available: {self.no_value_reason}")
        return value

    def refresh(self) -> None:
        """Read the result again."""
        self._copy_fields(self.task.get_backend().get_result(self.id))

    async def arefresh(self) -> None:
        """Read the result again."""
        self._copy_fields(await self.task.get_backend().aget_result(self.id))

    def _copy_fields(self, other: Self) -> None:
        """Take over the fields of another result that ``refresh()`` changes."""
        names = [field.name for field in fields(self) if field.name not in UNCHANGED_FIELDS]
        self.change(**{name: getattr(other, name) for name in names})

    def change(self, **values: Any) -> None:
        """Set fields, although the dataclass is frozen."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


def new_result(task: Task, args: Any, kwargs: Any, **values: Any) -> JobTaskResult:
    """Return the result of a task that was not enqueued yet, with its arguments as JSON carries them.

    ``values`` are fields that differ from those of such a task.

    Raises:
        TypeError: JSON cannot represent an argument.
    """
    return JobTaskResult(
        **{
            "task": task,
            "id": "",
            "status": TaskResultStatus.READY,
            "enqueued_at": None,
            "started_at": None,
            "last_attempted_at": None,
            "finished_at": None,
            "args": args,
            "kwargs": kwargs,
            "backend": task.backend,
            "errors": [],
            "worker_ids": [],
            **values,
        }
    )


def result_of(job: Job, task: Task, backend: str, kept_result: JobResult | None) -> JobTaskResult:
    """Return the TaskResult of Django for a job.

    Args:
        job: The job.
        task: The declared task.
        backend: The alias of the backend that reads the job.
        kept_result: Its kept result; None if it has not completed.
    """
    # The entries have the workers of earlier attempts. The last attempt may have no entry.
    workers = [error.worker_id for error in job.errors if error.worker_id is not None]
    if job.worker_id is not None and not any(error.attempt == job.attempt for error in job.errors):
        workers.append(job.worker_id)
    first_start = job.errors[0].started_at if job.errors else None
    last_start = job.started_at
    # A pending job has no start, also if it waits for a retry.
    if last_start is None and job.errors:
        last_start = job.errors[-1].started_at
    result = new_result(
        _task_of(job, task, backend),
        job.args,
        job.kwargs,
        id=job.job_id,
        status=STATUSES.get(job.status, TaskResultStatus.FAILED),
        enqueued_at=enqueued_at(job.job_id, job.created_at),
        started_at=local(first_start or last_start),
        last_attempted_at=local(last_start),
        finished_at=local(job.finished_at),
        errors=_errors_of(job),
        worker_ids=workers,
        claims=job.attempt,
        no_value_reason=None if kept_result is None else kept_result.no_value_reason,
    )
    result.change(_return_value=None if kept_result is None else kept_result.value)
    return result


def error_of(error: BaseException) -> TaskError:
    """Return the error of Django for an exception that ends an attempt.

    For a group of exceptions, the class is that of the exception that stands for the group, and the
    traceback is that of the whole group.
    """
    kind = type(naming_leaf_of(error))
    return TaskError(
        exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
        traceback="".join(format_exception(error)),
    )


def enqueued_at(job_id: str, default: datetime | None) -> datetime | None:
    """Return the time in a generated id, which is the same at each call; the default for any other id."""
    with suppress(ValueError, OverflowError):  # the caller chose an id that is no UUID
        uuid = UUID(job_id)
        # The first 48 of the 128 bits are the milliseconds since 1970.
        if uuid.version == UUID_VERSION:
            milliseconds = uuid.int >> 80
            return local(datetime.fromtimestamp(milliseconds / 1000, UTC))
    return local(default)


def local(time: datetime | None) -> datetime | None:
    """Return a time as Django has it: naive without ``USE_TZ``."""
    return time if time is None or settings.USE_TZ else timezone.make_naive(time)


def _task_of(job: Job, task: Task, backend: str) -> Task:
    """Return the task with the values of its job, not validated, since settings may exclude them today."""
    # The metadata of the job is of the user, who may have stored anything under this key.
    priority = job.metadata.get(PRIORITY, 0)
    changes: dict[str, Any] = {
        "backend": backend,
        "queue_name": queue_in(job.job_name) or task.queue_name,
        "priority": priority if isinstance(priority, int) else 0,
    }
    # A task that is not due yet has the time after which it runs.
    if job.status is JobStatus.PENDING and job.execution_time > datetime.now(UTC):
        changes["run_after"] = local(job.execution_time)
    return copy_with(task, **changes)


def _errors_of(job: Job) -> list[TaskError]:
    """Return the errors of the attempts that failed, and of an end that is not that of an attempt."""
    errors = [_error_from(error) for error in job.errors if error.outcome in FAILED_ENTRIES]
    # The other statuses have a status of Django that is no failure.
    is_failure = job.status not in STATUSES
    # A cancelled or expired job ends with an error of its own, and a failed one has at least one error.
    if is_failure and (job.status in ENDS or not errors):
        kind = ENDS.get(job.status, JobFailedError)
        errors.append(
            TaskError(
                exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
                traceback=job.error_message or "",
            )
        )
    return errors


def _error_from(error: AttemptError) -> TaskError:
    """Return the error of Django for an entry in the history of a job."""
    text = error.traceback or error.message or ""
    if error.error_type is None:
        return TaskError(
            exception_class_path=f"{JobFailedError.__module__}.{JobFailedError.__qualname__}", traceback=text
        )
    path = error.error_type
    # The entry has the name of a built-in class without its module, and Django imports a whole path.
    if hasattr(builtins, path):
        path = f"builtins.{path}"
    return TaskError(exception_class_path=path, traceback=text)
