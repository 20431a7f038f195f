"""The page of tasks: what waits and runs by name, by whom it is claimed, what is paused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.inspect import TaskState

__all__ = ["TasksPage", "build"]


@dataclass(frozen=True, slots=True)
class TasksPage:
    """The names that workers claim, that have due or running jobs, or that are paused."""

    items: Sequence[TaskState]
    summary: str


async def build(request: PageRequest) -> TasksPage:
    """Read the tasks."""
    items = [task for task in await request.inspector.tasks() if request.access.sees_name(task.name)]
    paused = sum(task.paused_at is not None for task in items)
    due, running = sum(task.due for task in items), sum(task.running for task in items)
    return TasksPage(items, f"{len(items)} tasks, {paused} paused, {due:,} due jobs, {running:,} running")
