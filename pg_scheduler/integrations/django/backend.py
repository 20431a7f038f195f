"""The backend of ``django.tasks``: jobs in the transactions of Django's connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar, Final

from django.apps import apps
from django.core import checks
from django.db import connections
from django.utils import timezone

from pg_scheduler.base.status import JobStatus
from pg_scheduler.errors import JobConflictError, JobNotFoundError
from pg_scheduler.integrations.django.compat import (
    BaseTaskBackend,
    InvalidTaskBackend,
    Task,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
)
from pg_scheduler.integrations.django.extensions import codec_of, middleware_of
from pg_scheduler.integrations.django.options import Options
from pg_scheduler.integrations.django.results import (
    JobTaskResult,
    enqueued_at,
    new_result,
    result_of,
)
from pg_scheduler.integrations.django.runner import declare, task_named
from pg_scheduler.integrations.django.task import PRIORITY, JobTask, name_of, priority_of
from pg_scheduler.jobs.call_errors import Subject, message_for
from pg_scheduler.jobs.codec import Codec
from pg_scheduler.jobs.metadata import check_metadata
from pg_scheduler.jobs.middleware import Middleware
from pg_scheduler.jobs.model import UNSET
from pg_scheduler.jobs.validation import check_job_id
from pg_scheduler.sync import SyncScheduler

TAKEN_ID: Final = "pass another job_id= to using(), or none"
TAKEN_KEY: Final = "wait until that job has ended, or catch this error if the job that exists suffices"
"""The remedies where a job with this id exists, or where one has this unique key."""

TASK_REMEDIES: Final[Mapping[Subject, str]] = {
    "arguments": "pass arguments that fit the signature of the function",
    "due time": "omit run_after, or pass unique=None to using()",
    "id": "omit job_id, or pass unique=None to using()",
    "key of metadata": "choose another key",
    "named argument": "pass it by its name",
    "size": "store them elsewhere and pass an id or a path",
    "value": "pass another value, or encode it as a text",
}
"""What a person who calls ``enqueue()`` of a task can do about an error; tasks have no other subjects."""

APP: Final = "pg_scheduler.integrations.django"


class Backend(BaseTaskBackend):
    """Enqueues tasks as jobs, in the transaction of the caller.

    A task is enqueued if and only if the transaction commits; outside of ``atomic()``, at once. The worker of
    ``manage.py pg_scheduler worker`` runs it. ``OPTIONS`` may have ``DATABASE``, ``SCHEMA``, ``MAX_RETRIES``,
    ``TIMEOUT``, ``KEEP_RESULT``, ``DSN``, ``MIDDLEWARE``, ``EXECUTORS`` and ``CODEC``.

    Raises:
        ImproperlyConfigured: An option is unknown or invalid.

    Example::

        TASKS = {"default": {"BACKEND": "pg_scheduler.integrations.django.Backend"}}
    """

    task_class = JobTask

    supports_defer: ClassVar[bool] = True
    supports_async_task: ClassVar[bool] = True
    supports_get_result: ClassVar[bool] = True
    supports_priority: ClassVar[bool] = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.settings: Final = Options.read(alias, self.options)

    @cached_property
    def middleware(self) -> tuple[Middleware, ...]:
        """The middleware of ``OPTIONS``.

        Raises:
            ImproperlyConfigured: A middleware cannot be imported, or the object is no middleware.
        """
        return middleware_of(self.alias, self.settings)

    @cached_property
    def codec(self) -> Codec | None:
        """The codec of ``OPTIONS``; None if they name none.

        Raises:
            ImproperlyConfigured: The codec cannot be imported, or the object is no codec.
        """
        return codec_of(self.alias, self.settings)

    @cached_property
    def client(self) -> SyncScheduler:
        """The Scheduler that enqueues, for calls with ``connection=``.

        Raises:
            ImproperlyConfigured: The middleware or the codec is invalid.
        """
        return _client(self.settings.database, self.settings.schema, self.middleware, self.codec)

    def validate_task(self, task: Task) -> None:
        """Check a task, and register its function.

        Raises:
            InvalidTask: The task is invalid; ``InvalidTaskError`` of django-tasks 0.12.
            TypeError: An option of jobs has the wrong type.
            ValueError: An option of jobs is out of range, or its name belongs to another function.
        """
        super().validate_task(task)
        declare(task, self.queues, self._options_of(task))

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> JobTaskResult:
        """Enqueue a task in the transaction of the connection, and send ``task_enqueued``.

        Raises:
            InvalidTask: The task is invalid.
            TypeError: JSON cannot represent an argument, or the function does not accept the arguments.
            JobConflictError: A job with the id exists, or its unique key is taken; a ValueError.
            DatabaseUnavailableError: The database is unavailable.
        """
        self.validate_task(task)
        result = new_result(task, args, kwargs, backend=self.alias)
        try:
            job_id = self._enqueue(task, result)
        # The errors of the Scheduler have remedies for its own calls, which have other parameters than tasks.
        except JobConflictError as conflict:
            remedy = TAKEN_ID if conflict.unique_key is None else TAKEN_KEY
            raise JobConflictError(
                conflict.job_id, conflict.status, conflict.unique_key, remedy=remedy
            ) from None
        except (TypeError, ValueError) as error:
            message = message_for(error, TASK_REMEDIES)
            if message == str(error):
                raise
            raise type(error)(message) from error.__cause__
        result.change(id=job_id, enqueued_at=enqueued_at(job_id, datetime.now(UTC)))
        task_enqueued.send(type(self), task_result=result)
        return result

    def _enqueue(self, task: Task, result: JobTaskResult) -> str:
        """Enqueue the job of a task with the arguments of a result, and return its id."""
        metadata = check_metadata(getattr(task, "metadata", None) or {})
        # A result of Django has the priority as a number, of which jobs know only four.
        if task.priority:
            metadata[PRIORITY] = int(task.priority)
        options = {
            **self._options_of(task),
            "priority": priority_of(task.priority),
            "metadata": metadata or None,
            "job_id": getattr(task, "job_id", None),
            "unique": getattr(task, "unique", UNSET),
            "connection": connections[self.settings.database],
        }
        # The arguments as JSON carries them.
        name, arguments = name_of(task), {"args": result.args, "kwargs": result.kwargs}
        if task.run_after is None:
            return self.client.enqueue(name, **arguments, **options)
        # Without USE_TZ, the times of Django are naive.
        due = task.run_after if timezone.is_aware(task.run_after) else timezone.make_aware(task.run_after)
        return self.client.schedule_job(name, due, arguments, **options)

    def get_result(self, result_id: str) -> JobTaskResult:
        """Return the result of a task, as the transaction of the connection sees it.

        Raises:
            TaskResultDoesNotExist: There is no job with this id, or its function is not a task.
            DatabaseUnavailableError: The database is unavailable.
        """
        connection = connections[self.settings.database]
        try:
            job_id = check_job_id(str(result_id))
        except ValueError:  # no job can have this id
            raise TaskResultDoesNotExist(result_id) from None
        job = self.client.get_job(job_id, connection=connection)
        # A job of a function that is no task has no result of Django.
        task = None if job is None else task_named(job.job_name)
        if job is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        kept_result = None
        if job.status is JobStatus.COMPLETED:
            try:
                kept_result = self.client.get_job_result(job_id, wait=False, connection=connection)
            except JobNotFoundError:  # the job was deleted meanwhile
                raise TaskResultDoesNotExist(result_id) from None
        return result_of(job, task, self.alias, kept_result)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Check that the application is installed; its own checks examine the settings."""
        if apps.is_installed(APP):
            return list(super().check(**kwargs))
        return [
            checks.Error(
                f"TASKS[{self.alias!r}] uses {APP}.Backend, and the application is not installed",
                hint=f"add {APP!r} to INSTALLED_APPS",
                id="pg_scheduler.E001",
            )
        ]

    def _options_of(self, task: Task) -> dict[str, Any]:
        """Return the options of the jobs of a task, with the defaults of the backend for those not set."""
        defaults = {
            "keep_result": self.settings.keep_result,
            "max_retries": self.settings.max_retries,
            "misfire_grace_time": None,
            "timeout": self.settings.timeout,
        }
        options: dict[str, Any] = {}
        for name, default in defaults.items():
            # A task of Django's own class lacks the options.
            value = getattr(task, name, UNSET)
            options[name] = default if value is UNSET else value
        return options


def all_backends() -> list[Backend]:
    """Return the backends of the project that store jobs."""
    backends: list[Backend] = []
    for alias in task_backends:
        # Django's own check reports a backend that cannot be imported. It must not stop the others.
        with suppress(InvalidTaskBackend):
            backend = task_backends[alias]
            if isinstance(backend, Backend):
                backends.append(backend)
    return backends


def neighbours_of(backend: Backend) -> list[Backend]:
    """Return the other backends of the project that store jobs in the same tables."""
    tables = (backend.settings.database, backend.settings.schema)
    return [
        other
        for other in all_backends()
        if other.alias != backend.alias and (other.settings.database, other.settings.schema) == tables
    ]


_clients: Final[dict[tuple[object, ...], SyncScheduler]] = {}
"""The Schedulers of all backends, by database, schema and the ids of the objects that they keep."""


def _client(
    database: str, schema: str | None, middleware: Sequence[Middleware], codec: Codec | None
) -> SyncScheduler:
    """Return the Scheduler that all backends with these settings share: it looks up the schema once."""
    key = (database, schema, id(codec), *map(id, middleware))
    client = _clients.get(key)
    if client is not None:
        return client
    # Another thread may have stored one meanwhile. Then that one is shared.
    new_client = SyncScheduler(schema=schema, middleware=middleware, codec=codec)
    return _clients.setdefault(key, new_client)
