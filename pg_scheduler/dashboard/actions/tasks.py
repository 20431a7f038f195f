"""Pause and resume tasks."""

from __future__ import annotations

from pg_scheduler.dashboard.actions.request import ActionRequest, Done
from pg_scheduler.dashboard.context import NotFoundError
from pg_scheduler.dashboard.messages import code_of
from pg_scheduler.errors import SchedulerError


async def pause(request: ActionRequest) -> Done:
    """Pause a task, until a time or until it is resumed."""
    name = await _name(request)
    until, note = request.instant("until"), request.text("note") or None
    await request.operations.scheduler.tasks.pause(name, until=until, note=note)
    try:
        expiring = await request.page.inspector.count_expiring(name, until)
    except SchedulerError:  # the task is paused nevertheless
        return Done("/task", "task_paused_uncounted", {"id": name})
    did = "task_paused_capped" if expiring.is_capped else "task_paused"
    return Done("/task", code_of(did, expiring.jobs), {"id": name})


async def resume(request: ActionRequest) -> Done:
    """Resume a task."""
    name = await _name(request)
    resumed = await request.operations.scheduler.tasks.resume(name)
    return Done("/task", "task_resumed" if resumed else "task_not_paused", {"id": name})


async def _name(request: ActionRequest) -> str:
    """Return the name of a task that exists and that the request sees, under its main name too."""
    name = request.page.required("id")
    names = request.operations.names_of(name)
    known = {task.name for task in (await request.page.inspector.tasks()).items}
    if not names & known or not all(map(request.access.sees_name, names)):
        raise NotFoundError(f"there is no task {name[:200]!r}, or you may not see it")
    return name
