"""The application of a Django project."""

from __future__ import annotations

from importlib.util import find_spec

from django.apps import AppConfig
from django.core import checks
from django.utils.module_loading import autodiscover_modules


class SchedulerConfig(AppConfig):
    """Registers the tasks of all applications, and the checks."""

    name = "pg_scheduler.integrations.django"
    label = "pg_scheduler"
    verbose_name = "Jobs"

    def ready(self) -> None:
        """Import the module ``tasks`` of each application, whose functions register themselves."""
        from pg_scheduler.integrations.django.address import remember_names  # noqa: PLC0415 - needs the apps

        remember_names()
        if find_spec("django.tasks") or find_spec("django_tasks"):
            from pg_scheduler.integrations.django.checks import check_backends  # noqa: PLC0415

            checks.register(check_backends)
        autodiscover_modules("tasks")
