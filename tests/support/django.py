"""A Django project in this process, with the tasks of ``tests/integrations/django/shop``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from pg_scheduler import Scheduler
from tests.support.transactions import django_connection
from tests.support.worker import PATIENCE, Recorder

APP = "pg_scheduler.integrations.django"
SHOP = "tests.integrations.django.shop"
BACKEND = f"{APP}.Backend"
QUEUES = ["default", "mail"]


def has_tasks() -> bool:
    """Return whether Django is here, with ``django.tasks`` or the package for Django 5.2."""
    return bool(find_spec("django") and (find_spec("django.tasks") or find_spec("django_tasks")))


def require_tasks() -> None:
    """Skip a module of tests without ``django.tasks``."""
    if not has_tasks():
        pytest.skip("dev.py has not updated this environment", allow_module_level=True)


@contextmanager
def project(dsn: str, **settings: Any) -> Iterator[Any]:
    """Let Django use a database, and yield the module with the tasks of the shop.

    Args:
        dsn: The database.
        settings: The settings of the backend, besides its class.
    """
    connection = django_connection(dsn, "default")
    from django.test import override_settings

    from pg_scheduler.integrations.django import compat  # noqa: F401 - it observes changes of settings

    dummy = ("django.tasks" if find_spec("django.tasks") else "django_tasks") + ".backends.dummy.DummyBackend"
    tasks = {"default": {"BACKEND": BACKEND, "QUEUES": QUEUES, **settings}, "dummy": {"BACKEND": dummy}}
    with override_settings(TASKS=tasks), override_settings(INSTALLED_APPS=[APP, SHOP]):
        from tests.integrations.django.shop import tasks as shop

        for task in shop.TASKS:  # earlier tests have forgotten the names
            task.get_backend().validate_task(task)
        yield shop
    connection.close()


@asynccontextmanager
async def working() -> AsyncIterator[tuple[Scheduler, Recorder]]:
    """Start the worker of the project in this process, and record its events."""
    import asyncio

    from pg_scheduler.integrations.django import worker

    async with worker.scheduler() as scheduler:
        recorder = Recorder(scheduler)
        async with scheduler, asyncio.timeout(PATIENCE):
            yield scheduler, recorder
