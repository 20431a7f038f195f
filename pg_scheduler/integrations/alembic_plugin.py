"""The plugin that Alembic 1.18 and newer imports by the entry point ``alembic.plugins``.

It may be imported while ``alembic`` or ``pg_scheduler.integrations.alembic`` is being imported, so it imports
nothing of either before ``setup()``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any


def setup(_plugin: Any) -> None:
    """Register ``op.scheduler_migrate()``."""
    from . import alembic  # noqa: F401, PLC0415 - which registers it


class _PluginModule(ModuleType):
    """Alembic before 1.20.1 iterates over what the entry point refers to."""

    def __iter__(self) -> Iterator[ModuleType]:
        yield self


sys.modules[__name__].__class__ = _PluginModule
