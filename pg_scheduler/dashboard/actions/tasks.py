"""Pause and resume tasks."""

from __future__ import annotations

from pg_scheduler.dashboard.actions.request import ActionRequest, PageAnswer, Redirect
from pg_scheduler.dashboard.context import NotFoundError, RejectedError, View
from pg_scheduler.dashboard.messages import Undo, code_of
from pg_scheduler.dashboard.pages import task
from pg_scheduler.errors import SchedulerError
from pg_scheduler.inspect.tasks import TaskState


async def pause(request: ActionRequest) -> Redirect | PageAnswer:
    """Pause a task, until a time or until it is resumed. A pause that it has already is replaced."""
    name, paused_state = await _find(request)
    form = request.pause
    try:
        until = form.ends_at(request.page.now)
        suspends_expiry = form.suspend_expiry == "yes"
        await request.operations.scheduler.tasks.pause(
            name, until=until, note=form.note or None, suspend_expiry=suspends_expiry
        )
    except (RejectedError, ValueError) as error:
        # The page of the task is shown again, with the form as it was entered, and with what is wrong.
        page = vars(await task.build(request.page))
        return PageAnswer(View(**{**page, "_pause": form._replace(wrong=str(error))}), "task", 400)
    if paused_state is None:
        undo: Undo | None = Undo("/actions/tasks/resume", {"id": name})
    else:
        undo = _pause_of(name, paused_state, request)
    if suspends_expiry:
        return Redirect("/task", "task_paused_suspending", {"id": name}, undo)
    try:
        expiring = await request.page.inspector.count_expiring(name, until)
    except SchedulerError:
        # The task is paused. Only the number of its jobs that expire is unknown.
        return Redirect("/task", "task_paused_uncounted", {"id": name}, undo)
    did = "task_paused_capped" if expiring.is_capped else "task_paused"
    return Redirect("/task", code_of(did, expiring.jobs), {"id": name}, undo)


async def resume(request: ActionRequest) -> Redirect:
    """Resume a task."""
    name, paused_state = await _find(request)
    is_resumed = await request.operations.scheduler.tasks.resume(name)
    undo = None if paused_state is None else _pause_of(name, paused_state, request)
    return Redirect("/task", "task_resumed" if is_resumed else "task_not_paused", {"id": name}, undo)


def _pause_of(name: str, paused_state: TaskState, request: ActionRequest) -> Undo | None:
    """Return the action that restores the previous pause of a task; None if it would have ended by now."""
    until = paused_state.paused_until
    if until is not None and until <= request.page.now:
        return None
    fields = {"until": [] if until is None else [until.isoformat()], "note": [paused_state.note or ""]}
    if paused_state.suspends_expiry:
        fields["suspend_expiry"] = ["yes"]
    return Undo("/actions/tasks/pause", {"id": name}, fields)


async def _find(request: ActionRequest) -> tuple[str, TaskState | None]:
    """Return the name of the task that the address names, and its state if it is paused, else None.

    Raises:
        NotFoundError: There is no such task, or the request does not see all of its names.
    """
    name = request.page.required("id")
    names = (await request.page.names_of_tasks([name]))[name]
    states = {task.name: task for task in (await request.page.inspector.tasks()).items}
    known_names = names & set(states)
    if not known_names or not all(map(request.access.sees_name, names)):
        raise NotFoundError.of("task", name)
    # The task may be paused under any of its names.
    states_of_names = (states[alias] for alias in sorted(known_names))
    return name, next((state for state in states_of_names if state.paused_at is not None), None)
