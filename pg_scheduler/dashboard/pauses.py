"""The pauses of tasks, for lists of what waits until they end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.inspect.tasks import paused_tasks
from pg_scheduler.jobs.pause import Pause

PAUSES_AGE_S: Final = 2.0
"""Seconds for which the pauses are kept."""


async def pauses_of(names: Iterable[str], request: PageRequest) -> Mapping[str, Pause]:
    """Return the pauses of tasks that the request sees, by those of the names that they hold."""
    pauses = await request.cache.get("paused tasks", PAUSES_AGE_S, partial(paused_tasks, request.inspector))
    found = {}
    for name in set(names) if pauses else ():
        held = sorted(request.operations.names_of(name) & pauses.keys())
        pause = next((pauses[each] for each in held if request.access.sees_name(each)), None)
        if pause is not None:
            found[name] = pause
    return found
