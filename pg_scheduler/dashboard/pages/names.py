"""The names of tasks as every page offers and lists them: the main ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.inspect.names import TaskNames
from pg_scheduler.inspect.parameters import Parameter, parameters_of

MAX_NAMES: Final = 20
"""Names of a task whose jobs and statistics are read."""


async def task_names(request: PageRequest) -> TaskNames:
    """Return the visible tasks that live workers claim; all requests share the read for some seconds."""
    workers = await request.workers()
    return TaskNames.of((each for each in workers if each.is_alive), request.access.sees_name)


async def task_parameters(request: PageRequest, task: str | None) -> Sequence[Parameter]:
    """Return the parameters of a visible task that live workers report; none if arguments are hidden."""
    if task is None or not request.access.sees_arguments or not request.access.sees_name(task):
        return ()
    main = (await task_names(request)).task_of(task)
    return parameters_of(await request.workers(), main) or ()
