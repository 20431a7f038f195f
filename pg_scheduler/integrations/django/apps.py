"""The application of a Django project."""

from __future__ import annotations

from importlib.util import find_spec

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import pre_migrate
from django.utils.module_loading import autodiscover_modules

from pg_scheduler.integrations.django.operations import create_unmigrated


class SchedulerConfig(AppConfig):
    """Registers the tasks of all applications, the checks, and what projects without migrations need."""

    name = "pg_scheduler.integrations.django"
    label = "pg_scheduler"
    verbose_name = "Jobs"

    def ready(self) -> None:
        """Import the module ``tasks`` of each application, whose functions register themselves.

        The checks need ``django.tasks`` or its backport, the package ``django_tasks``. Without both they are
        left out.
        """
        from pg_scheduler.integrations.django.address import remember_names  # noqa: PLC0415 - needs the apps

        # A test runner changes the names of the databases later.
        remember_names()
        # A project whose migrations are switched off gets the tables by this handler.
        pre_migrate.connect(create_unmigrated, sender=self)
        if find_spec("django.tasks") or find_spec("django_tasks"):
            from pg_scheduler.integrations.django.checks import check_backends  # noqa: PLC0415

            checks.register(check_backends)
        autodiscover_modules("tasks")
