"""``django.tasks`` of Django 6.0 and later, or the package ``django-tasks`` for Django 5.2."""

from __future__ import annotations

from importlib.util import find_spec

from django.core.exceptions import ImproperlyConfigured

if find_spec("django.tasks"):
    from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, Task, TaskContext, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import DEFAULT_TASK_PRIORITY, TaskError, TaskResult
    from django.tasks.exceptions import InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
elif find_spec("django_tasks"):
    from django_tasks import (
        DEFAULT_TASK_BACKEND_ALIAS,
        TaskContext,
        TaskResultStatus,
        exceptions,
        task_backends,
    )
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import DEFAULT_TASK_PRIORITY, Task, TaskError, TaskResult
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

    # Its version 0.12 has another name, and later ones have that of Django 6.0.
    InvalidTaskBackend = getattr(exceptions, "InvalidTaskBackend", None) or exceptions.InvalidTaskBackendError
else:
    raise ImproperlyConfigured(
        "pg_scheduler.integrations.django.Backend needs Django 6.0, or the package django-tasks for Django "
        "5.2: pip install django-tasks"
    )

__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "DEFAULT_TASK_PRIORITY",
    "BaseTaskBackend",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
