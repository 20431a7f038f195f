"""The pages of tasks, and of one task: what waits and runs by name, by whom it is claimed, what is paused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pg_scheduler.dashboard.context import NotFoundError, PageRequest
from pg_scheduler.inspect import TaskState

__all__ = ["TaskPage", "TasksPage", "build", "build_one"]


@dataclass(frozen=True, slots=True)
class TasksPage:
    """The names that workers claim, that have due or running jobs, or that are paused."""

    items: Sequence[TaskState]
    summary: str
    is_capped: bool
    """Whether counting the jobs stopped, so that there may be more."""


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A task."""

    task: TaskState


async def build_one(request: PageRequest) -> TaskPage:
    """Read a task."""
    name = request.required("id")
    task = next((each for each in (await request.inspector.tasks()).items if each.name == name), None)
    if task is None or not request.access.sees_name(name):
        raise NotFoundError(f"there is no task {name[:200]!r}, or you may not see it")
    return TaskPage(task)


async def build(request: PageRequest) -> TasksPage:
    """Read the tasks."""
    found = await request.inspector.tasks()
    visible = replace(found, items=[each for each in found.items if request.access.sees_name(each.name)])
    return TasksPage(visible.items, visible.summary, visible.is_capped)
