"""Run functions in processes that have the Django project."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import django
from django.conf import settings
from django.db import connections

from pg_scheduler.integrations.django.connections import fresh_connections, own_thread
from pg_scheduler.jobs.model import JobFunction
from pg_scheduler.worker.runners.call import invoke
from pg_scheduler.worker.runners.process import ProcessExecutor


class DjangoProcesses(ProcessExecutor):
    """Runs functions in processes of its own, which import models and close stale connections.

    Each process sets up the project that ``DJANGO_SETTINGS_MODULE`` names before its first job, and uses the
    databases of this one, also in a test run.

    Args:
        processes: Jobs that run at once in each Scheduler.
        jobs_per_process: Jobs after which a process is replaced, which returns its memory; None for no limit.

    Raises:
        ConfigurationError: A number is not a positive int.

    Example::

        OPTIONS = {"EXECUTORS": {"process": DjangoProcesses(processes=2)}}  # for @job(executor="process")
    """

    preparation: ClassVar[str | None] = f"{__name__}:prepare"

    def parameters(self) -> dict[str, str]:
        """Return the names of the databases by alias. Those of a test run are not in the settings."""
        return {alias: str(each["NAME"]) for alias, each in connections.settings.items() if each["NAME"]}


def prepare(names: Mapping[str, str]) -> Callable[..., Any]:
    """Set up the project in this process with these databases; return what calls its functions."""
    settings.LOGGING_CONFIG = None  # log records go to the handlers of the worker
    django.setup()
    for alias, name in names.items():
        connections.settings[alias]["NAME"] = name
    return _invoke


def _invoke(func: JobFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    async def call_in_thread() -> Any:
        async with own_thread():
            return await func(*args, **kwargs)

    if inspect.iscoroutinefunction(func):
        return invoke(call_in_thread, (), {})
    with fresh_connections():
        return invoke(func, args, kwargs)
