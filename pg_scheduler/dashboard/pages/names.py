"""The names of tasks as every page offers and lists them: the main ones."""

from __future__ import annotations

from typing import Final

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.inspect.names import TaskNames

MAX_NAMES: Final = 20
"""Names of a task whose jobs and statistics are read."""

WORKERS_AGE_S: Final = 10.0
"""Seconds for which the names of workers are kept."""


async def task_names(request: PageRequest) -> TaskNames:
    """Return the visible tasks that live workers claim; all requests share the read for some seconds."""
    workers = await request.cache.get("workers", WORKERS_AGE_S, request.inspector.workers, is_data=False)
    return TaskNames.of((each for each in workers if each.is_alive), request.access.sees_name)
