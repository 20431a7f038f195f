"""Run the tasks of a Django project: the backend of ``django.tasks``, the worker and the application.

Add ``"pg_scheduler.integrations.django"`` to ``INSTALLED_APPS``, and name
``"pg_scheduler.integrations.django.Backend"`` in ``TASKS``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pg_scheduler.integrations.django.backend import Backend
    from pg_scheduler.integrations.django.connections import DjangoProcesses, DjangoThreads

__all__ = ["Backend", "DjangoProcesses", "DjangoThreads"]

_MODULES: Final = {"Backend": "backend", "DjangoProcesses": "connections", "DjangoThreads": "connections"}


def __getattr__(name: str) -> Any:
    """Import the module of a name at its first use. A project without ``django.tasks`` can use the models."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
