"""Checks of the settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router

from pg_scheduler.integrations.django.backend import Backend, all_backends, neighbours_of
from pg_scheduler.integrations.django.extensions import codec_of, executors_of, middleware_of

TENANTS: Final = ("django_tenants.", "tenant_schemas.")
"""The starts of the names of engines that change the search path."""


def check_backends(**_kwargs: Any) -> list[checks.CheckMessage]:
    """Return the mistakes in the settings of all backends."""
    return [message for backend in all_backends() for message in _check(backend)]


def _check(backend: Backend) -> Iterator[checks.CheckMessage]:
    """Yield the mistakes in the settings of one backend."""
    alias = backend.settings.database
    place = f"TASKS[{backend.alias!r}]"
    # Each of these imports what the settings name.
    for load in (middleware_of, executors_of, codec_of):
        try:
            load(backend.alias, backend.settings)
        except ImproperlyConfigured as error:
            yield checks.Error(str(error), id="pg_scheduler.E003")
    if alias not in connections or connections[alias].vendor != "postgresql":
        yield checks.Error(
            f"{place} stores jobs in the database {alias!r}, which is not one of PostgreSQL in DATABASES",
            hint="set OPTIONS['DATABASE'] to the alias of one",
            id="pg_scheduler.E002",
        )
        return
    # The message names the first model of each other database. A dict keeps the last value of a key, so the
    # models are reversed.
    labels: dict[str, str] = {}
    for model in reversed(apps.get_models()):
        # The models of this library are read-only.
        if model._meta.managed and model._meta.app_label != "pg_scheduler":
            database = router.db_for_write(model)
            if database != alias:
                labels[database] = model._meta.label
    for other, label in labels.items():
        yield checks.Warning(
            f"models such as {label} are written to {other!r}, and the jobs of {place} to {alias!r}: "
            "enqueue() is not part of their transactions",
            hint="enqueue after their commit: "
            f"transaction.on_commit(partial(task.enqueue, ...), using={other!r})",
            id="pg_scheduler.W001",
        )
    # Such an engine puts the schema of a tenant on the search path.
    engine = connections[alias].settings_dict["ENGINE"]
    if backend.settings.schema is None and engine.startswith(TENANTS):
        yield checks.Warning(
            f"the search path of the database {alias!r} differs between tenants, and {place} names no schema",
            hint="set OPTIONS['SCHEMA'] to the schema of the tables, such as 'public'",
            id="pg_scheduler.W002",
        )
    for other in neighbours_of(backend):
        # Each pair is reported once, by the backend whose alias comes first.
        if backend.alias > other.alias:
            continue
        # A backend without queues in the settings accepts any queue.
        share_no_queue = backend.queues and other.queues and backend.queues.isdisjoint(other.queues)
        if not share_no_queue and _extensions_of(backend) != _extensions_of(other):
            yield checks.Warning(
                f"{place} and TASKS[{other.alias!r}] have the same tables and may use the same queues, and "
                "differ in CODEC or MIDDLEWARE: a worker runs the tasks of both with its own",
                hint="set QUEUES of both so that no queue is in both, or the same CODEC and MIDDLEWARE",
                id="pg_scheduler.W003",
            )


def _extensions_of(backend: Backend) -> tuple[object, list[object]]:
    """Return the codec and the middleware as the settings have them."""
    return backend.settings.codec, list(backend.settings.middleware)
