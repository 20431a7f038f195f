"""The plugin that Alembic 1.18 and newer imports by the entry point ``alembic.plugins``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alembic.operations import Operations


class _SchedulerMigrate:
    """Stands for `SchedulerMigrateOp`, which takes its place when it is imported."""

    @classmethod
    def scheduler_migrate(
        cls, operations: Operations, target: int, *, start: int = 0, schema: str | None = None
    ) -> None:
        from pg_scheduler.integrations.alembic import SchedulerMigrateOp  # noqa: PLC0415 - it imports pg_scheduler

        SchedulerMigrateOp.scheduler_migrate(operations, target, start=start, schema=schema)


def setup(_plugin: Any) -> None:
    """Register ``op.scheduler_migrate()``."""
    from alembic.operations import Operations  # noqa: PLC0415 - to be importable before alembic

    Operations.register_operation("scheduler_migrate")(_SchedulerMigrate)


class _PluginModule(ModuleType):
    """Alembic before 1.20.1 iterates over what the entry point refers to."""

    def __iter__(self) -> Iterator[ModuleType]:
        yield self


sys.modules[__name__].__class__ = _PluginModule
