"""The tasks that are registered in a Scheduler, as rows of output."""

from __future__ import annotations

from typing import Final

from pg_scheduler import Scheduler, TaskInfo
from pg_scheduler.cli.output import Column, Shape

REGISTERED: Final = Shape(
    "registered_task",
    TaskInfo,
    "name",
    (
        Column("name", "NAME"),
        Column("executor", "EXECUTOR"),
        Column("timeout", "TIMEOUT"),
        Column("max_retries", "RETRIES"),
        Column("aliases", "ALIASES", is_wide=True),
        Column("priority", "PRIORITY", is_wide=True),
        Column("misfire_grace_time", "MISFIRE GRACE", is_wide=True),
    ),
    keys=("name", "aliases", "executor", "timeout", "max_retries", "priority", "misfire_grace_time"),
)


async def registered_tasks(scheduler: Scheduler) -> list[TaskInfo]:
    """Return the tasks with their aliases and defaults."""
    return [info for info in await scheduler.tasks.list() if info.is_registered]
