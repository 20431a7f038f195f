"""A plugin of pytest that puts the backend of this package into Django's own tests of ``django.tasks``.

Two backends of Django have tests: one that only collects tasks, and one that runs each task at once.
`Collecting` stands in the place of the first, and reads from the tables what was enqueued. `Running` stands
in the place of the second. After each call it starts a worker, waits until the job has ended, and returns its
stored result.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import django
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.test import SimpleTestCase

APP: Final = "pg_scheduler.integrations.django"
PACKAGE: Final = "django.tasks" if find_spec("django.tasks") else "django_tasks"

CONTRIBUTED: Final = ("admin", "auth", "contenttypes", "messages", "sessions")
"""Applications of Django itself that the URLs of django-tasks' tests need."""

PATIENCE_S: Final = 30
"""How long a test waits for its job."""

IN_MEMORY: Final = "changes an object in the list that DummyBackend keeps in memory"
READS_RESULTS: Final = "expects that results cannot be read, and this backend stores them"
OTHER_BACKENDS: Final = "is about backends that the test itself defines"

IMMEDIATE: Final = "test_immediate_backend.py::ImmediateBackendTestCase"

EXCLUDED: Final = {
    "test_compat.py": "is about the backends of Django among those of django-tasks",
    "test_custom_backend.py": OTHER_BACKENDS,
    "test_utils.py": "is about functions of django-tasks, without a backend",
    "test_dummy_backend.py::DummyBackendTestCase::test_refresh_result": IN_MEMORY,
    "test_dummy_backend.py::DummyBackendTestCase::test_refresh_result_async": IN_MEMORY,
    f"{IMMEDIATE}::test_cannot_get_result": READS_RESULTS,
    f"{IMMEDIATE}::test_cannot_refresh_result": READS_RESULTS,
    f"{IMMEDIATE}::test_get_result_from_different_request": READS_RESULTS,
    f"{IMMEDIATE}::test_cannot_pass_run_after": (
        "expects that run_after is rejected, and this backend supports it"
    ),
    f"{IMMEDIATE}::test_throws_keyboard_interrupt": (
        "expects the exception of the task in the caller, and a worker stores it"
    ),
    "test_immediate_backend.py::ImmediateBackendTransactionTestCase": (
        "expects that the task runs before its transaction commits, and no worker sees it before that"
    ),
}
"""Why a test does not apply, by the end of its id, or by a part that ends before ``::``."""


def pytest_configure() -> None:
    """Set up a project with this backend, create its tables, and put the backend in the place of Django's."""
    settings.configure(
        SECRET_KEY="for tests",  # noqa: S106 - it protects nothing
        ALLOWED_HOSTS=["*"],
        USE_TZ=True,
        ROOT_URLCONF="tests.urls",
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": os.environ["PGDATABASE"],
                "USER": os.environ["PGUSER"],
                "HOST": os.environ["PGHOST"],
                "PORT": os.environ["PGPORT"],
            }
        },
        INSTALLED_APPS=[*(f"django.contrib.{name}" for name in CONTRIBUTED), APP],
        TASKS={"default": {"BACKEND": f"{APP}.Backend"}},
    )
    django.setup()
    _replace_backends()


def pytest_sessionstart() -> None:
    """Create the tables."""
    call_command("migrate", verbosity=0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that do not apply, and let the others use the database."""
    # The class is that of tests without a database, because the backends of Django keep tasks in memory.
    SimpleTestCase.databases = {"default"}
    for item in items:
        for part, reason in EXCLUDED.items():
            if f"{item.nodeid}::".partition(f"/{part}::")[1]:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_setup() -> None:
    """Delete the jobs of earlier tests: a backend in memory is new in each test."""
    _delete_jobs()


def _delete_jobs() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM scheduled_jobs")


def _replace_backends() -> None:
    """Replace the two classes in the modules of Django from which tests and settings import them."""
    # The module reads the settings.
    from pg_scheduler.integrations.django import Backend, worker  # noqa: PLC0415

    class Collecting(Backend):
        """Stores tasks, and reads the list of all of them from the tables."""

        @property
        def results(self) -> list[Any]:
            with connection.cursor() as cursor:
                cursor.execute("SELECT job_id FROM scheduled_jobs ORDER BY job_id")
                return [self.get_result(job_id) for (job_id,) in cursor.fetchall()]

        def clear(self) -> None:
            _delete_jobs()

    class Running(Backend):
        """Stores tasks, and waits until a worker has run them."""

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            # The worker has an event loop and connections of its own, as in another process.
            with ThreadPoolExecutor(1) as threads:
                threads.submit(asyncio.run, self._run(result)).result()
            result.refresh()
            return result

        async def _run(self, result: Any) -> None:
            # Without its queue, the worker would leave the task to that of another backend with this queue.
            worker.selection.backend, worker.selection.queues = self.alias, [result.task.queue_name]
            async with worker.scheduler() as scheduler, scheduler, asyncio.timeout(PATIENCE_S):
                await scheduler.get_job_result(result.id)

    backends: Any = {"dummy.DummyBackend": Collecting, "immediate.ImmediateBackend": Running}
    for path, backend in backends.items():
        module, _, name = path.partition(".")
        setattr(import_module(f"{PACKAGE}.backends.{module}"), name, backend)
