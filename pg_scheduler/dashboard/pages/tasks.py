"""The pages of tasks, and of one task: what waits and runs by name, by whom it is claimed, what is paused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pg_scheduler.dashboard.context import NotFoundError, PageRequest
from pg_scheduler.inspect import TaskState

__all__ = ["TaskPage", "TasksPage", "build", "build_one"]


@dataclass(frozen=True, slots=True)
class TasksPage:
    """The names that workers claim, that have due or running jobs, or that are paused."""

    items: Sequence[TaskState]
    summary: str


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A task."""

    task: TaskState


async def build_one(request: PageRequest) -> TaskPage:
    """Read a task."""
    name = request.required("id")
    task = next((each for each in await request.inspector.tasks() if each.name == name), None)
    if task is None or not request.access.sees_name(name):
        raise NotFoundError(f"there is no task {name[:200]!r}, or you may not see it")
    return TaskPage(task)


async def build(request: PageRequest) -> TasksPage:
    """Read the tasks."""
    items = [task for task in await request.inspector.tasks() if request.access.sees_name(task.name)]
    paused = sum(task.paused_at is not None for task in items)
    due, running = sum(task.due for task in items), sum(task.running for task in items)
    return TasksPage(items, f"{len(items)} tasks, {paused} paused, {due:,} due jobs, {running:,} running")
