"""Preview, add and edit a schedule. Nothing edits the task or the arguments of one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from pg_scheduler.dashboard.actions.request import ActionRequest, Done, Shown
from pg_scheduler.dashboard.actions.schedules import found
from pg_scheduler.dashboard.context import RejectedError
from pg_scheduler.dashboard.pages import schedule_form
from pg_scheduler.dashboard.pages.names import task_names
from pg_scheduler.dashboard.pages.schedule_form import FIELDS, FormPage, values_of
from pg_scheduler.errors import ScheduleConflictError, ScheduleOwnedByCodeError
from pg_scheduler.triggers import Trigger, parse_trigger

MAX_ARGUMENTS: Final = 100_000
"""Characters of the arguments of a new schedule."""


async def preview(request: ActionRequest) -> Shown:
    """Show the next fire times of what was entered, and change nothing."""
    page = await _entered(request)
    try:
        start = request.instant("start")
        after = request.page.now if start is None else max(start, request.page.now)
        described, fires = await schedule_form.preview(page.values, after)
    except (ValueError, RejectedError) as error:
        return _again(page, str(error))
    return Shown(replace(page, described=described, fire_times=fires), "schedule_form")


async def add(request: ActionRequest) -> Done | Shown:
    """Add a schedule of a task that a live worker claims."""
    page = await _entered(request)
    task = request.text("task")
    if (await task_names(request.page)).task_of(task) not in page.names:
        return _again(page, "choose a task that a live worker claims")
    try:
        schedule = await request.operations.scheduler.schedules.add(
            task,
            _trigger(request),
            schedule_id=request.text("schedule_id") or None,
            kwargs=_arguments(request),
            start=request.instant("start"),
            end=request.instant("end"),
            max_runs=request.number("max_runs"),
        )
    except ScheduleConflictError:
        return _again(page, "a schedule with this id exists; choose another one", 409)
    except (ValueError, TypeError, RejectedError) as error:
        return _again(page, str(error))
    return Done("/schedule", "schedule_added", {"id": schedule.schedule_id})


async def update(request: ActionRequest) -> Done | Shown:
    """Change the trigger and the bounds of a schedule of the API, unless it was changed meanwhile."""
    page = await _entered(request)
    schedule = await found(request)
    before = values_of(schedule)
    try:
        changes: dict[str, Any] = {}
        if any(page.values[name] != before[name] for name in ("trigger", "timezone")):
            changes["trigger"] = _trigger(request)
        for name, read in (
            ("start", request.instant),
            ("end", request.instant),
            ("max_runs", request.number),
        ):
            if page.values[name] != before[name]:
                changes[name] = read(name)
        await request.operations.scheduler.schedules.update(
            schedule.schedule_id, if_version=request.number("version") or 1, **changes
        )
    except ScheduleOwnedByCodeError as error:
        return _again(page, str(error), 409)
    except ScheduleConflictError:
        return _again(page, "this schedule was changed meanwhile; reload it and edit it again", 409)
    except (ValueError, RejectedError) as error:
        return _again(page, str(error))
    return Done("/schedule", "schedule_updated", {"id": schedule.schedule_id})


async def _entered(request: ActionRequest) -> FormPage:
    """Return the form with what was entered."""
    values = {name: request.text(name) for name in FIELDS}
    if "id" in request.page.parameters:
        schedule = await found(request)
        return FormPage(schedule.schedule_id, schedule.task, (), values)
    return FormPage(None, None, (await task_names(request.page)).main, values)


def _trigger(request: ActionRequest) -> Trigger:
    return parse_trigger(request.text("trigger"), request.text("timezone") or "UTC")


def _arguments(request: ActionRequest) -> dict[str, Any]:
    text = request.text("kwargs") or "{}"
    if len(text) > MAX_ARGUMENTS:
        raise RejectedError(f"the arguments have {len(text):,} characters; the limit is {MAX_ARGUMENTS:,}")
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RejectedError(f"the arguments must be a JSON object: {error}") from error
    if not isinstance(arguments, dict):
        raise RejectedError('the arguments must be a JSON object, such as {"tenant": 7}')
    return arguments


def _again(page: FormPage, problem: str, status: int = 400) -> Shown:
    return Shown(replace(page, problem=problem), "schedule_form", status)
