"""The tasks that are registered in a Scheduler, as rows of output."""

from __future__ import annotations

from typing import Any, Final

from pg_scheduler import Scheduler
from pg_scheduler.cli.output import SHAPE_VERSION, Column, Shape

REGISTERED: Final = Shape(
    "registered_task",
    "name",
    (
        Column("name", "NAME"),
        Column("executor", "EXECUTOR"),
        Column("timeout", "TIMEOUT", is_number=True),
        Column("max_retries", "RETRIES", is_number=True),
        Column("aliases", "ALIASES", is_wide=True),
        Column("priority", "PRIORITY", is_wide=True),
        Column("misfire_grace_time", "MISFIRE GRACE", is_number=True, is_wide=True),
    ),
)


async def registered_rows(scheduler: Scheduler) -> list[dict[str, Any]]:
    """Return a row for each task with its aliases and defaults."""
    return [
        {
            "v": SHAPE_VERSION,
            "name": info.name,
            "aliases": list(info.aliases),
            "executor": info.executor,
            "timeout": info.timeout,
            "max_retries": info.max_retries,
            "priority": info.priority.value,
            "misfire_grace_time": info.misfire_grace_time,
        }
        for info in await scheduler.tasks.list()
        if info.is_registered
    ]
