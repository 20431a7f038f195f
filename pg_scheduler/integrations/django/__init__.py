"""Run the tasks of a Django project: the backend of ``django.tasks``, the worker and the application.

Add ``"pg_scheduler.integrations.django"`` to ``INSTALLED_APPS``, and name
``"pg_scheduler.integrations.django.Backend"`` in ``TASKS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pg_scheduler.integrations.django.backend import Backend
    from pg_scheduler.integrations.django.connections import DjangoThreads
    from pg_scheduler.integrations.django.processes import DjangoProcesses

__all__ = ["Backend", "DjangoProcesses", "DjangoThreads"]


def __getattr__(name: str) -> Any:
    """Import the backend when it is first used: models need no ``django.tasks``."""
    if name == "Backend":
        from pg_scheduler.integrations.django.backend import Backend  # noqa: PLC0415

        return Backend
    if name == "DjangoThreads":
        from pg_scheduler.integrations.django.connections import DjangoThreads  # noqa: PLC0415 - the same

        return DjangoThreads
    if name == "DjangoProcesses":
        from pg_scheduler.integrations.django.processes import DjangoProcesses  # noqa: PLC0415 - the same

        return DjangoProcesses
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
