"""Preview, add and edit a schedule. The task of a schedule cannot be edited."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.dashboard.actions.request import FIELD_REMEDIES, ActionRequest, PageAnswer, Redirect
from pg_scheduler.dashboard.actions.schedules import find_schedule
from pg_scheduler.dashboard.arguments import FIELD, FieldError, read_fields
from pg_scheduler.dashboard.context import RejectedError
from pg_scheduler.dashboard.pages import schedule_form
from pg_scheduler.dashboard.pages.schedule_form import (
    DEFAULTS,
    MAX_ARGUMENTS,
    TRIGGER_FIELDS,
    FormPage,
    edit_form,
    trigger_of,
    values_of,
)
from pg_scheduler.errors import ScheduleConflictError, ScheduleOwnedByCodeError
from pg_scheduler.inspect.names import TaskNames
from pg_scheduler.jobs.call_errors import message_for
from pg_scheduler.schedules.definition import check_schedule_id


async def preview(request: ActionRequest) -> PageAnswer:
    """Show the next fire times of what was entered, or what is wrong with it, and change nothing."""
    page = await _entered_form(request)
    values, errors = await _read_values(request, page)
    # A field of an argument that is empty may still be filled in, so it is no error of a preview.
    errors = {name: text for name, text in errors.items() if not name.startswith(FIELD)}
    if "trigger" in values and "start" in values:
        start, trigger = values["start"], values["trigger"]
        after = request.page.now if start is None else max(start, request.page.now)
        try:
            fires = await schedule_form.preview(trigger, after)
        except ValueError as error:
            errors[page.values["kind"]] = str(error)
        else:
            page = replace(page, described=str(trigger), fire_times=fires)
    return _form_again(page, errors, 200)


async def add(request: ActionRequest) -> Redirect | PageAnswer:
    """Add a schedule of a task that a live worker claims."""
    page = await _entered_form(request)
    values, errors = await _read_values(request, page)
    if errors:
        return _form_again(page, errors)
    try:
        schedule = await request.operations.scheduler.schedules.add(
            page.values["task"],
            values["trigger"],
            schedule_id=values["schedule_id"],
            kwargs=values["kwargs"],
            start=values["start"],
            end=values["end"],
            max_runs=values["max_runs"],
        )
    except ScheduleConflictError:
        return _form_again(page, {"schedule_id": "a schedule with this id exists; choose another one"}, 409)
    except TypeError as error:
        return _form_again(page, {"kwargs": message_for(error, FIELD_REMEDIES)})
    except ValueError as error:
        return _form_again(page, {"": message_for(error, FIELD_REMEDIES)})
    return Redirect("/schedule", "schedule_added", {"id": schedule.schedule_id})


async def update(request: ActionRequest) -> Redirect | PageAnswer:
    """Change trigger, bounds and arguments of a schedule, unless it was changed meanwhile.

    A schedule that code defines is refused.
    """
    page = await _entered_form(request)
    schedule = await find_schedule(request)
    # If the form that was sent has fields for parameters that no live worker reports any more, these fields
    # cannot be interpreted.
    if page.arguments.keys() - {FIELD + parameter.name for parameter in page.parameters}:
        text = "its parameters were reported by a worker that has ended; the arguments are as before"
        return _form_again(await edit_form(request.page, schedule, page.values), {"kwargs": text}, 409)
    values, errors = await _read_values(request, page)
    stored_values = values_of(schedule)

    def is_changed(*names: str) -> bool:
        """Return whether one of these fields differs from what is stored."""
        return any(page.values[name] != stored_values[name] for name in names)

    bounds = ("start", "end", "max_runs")
    changes: dict[str, Any] = {name: values[name] for name in bounds if name in values and is_changed(name)}
    if not is_changed(*TRIGGER_FIELDS):
        # An unchanged trigger stays as it is, even if this process cannot interpret it.
        errors = {name: text for name, text in errors.items() if name not in TRIGGER_FIELDS}
    elif "trigger" in values:
        changes["trigger"] = values["trigger"]
    if "kwargs" in values and _as_json(values["kwargs"]) != _as_json(schedule.kwargs):
        changes["kwargs"] = values["kwargs"]
    if errors:
        return _form_again(page, errors)
    # With None, update() would not check whether the schedule was changed meanwhile. A form without a version
    # counts as one of the first version, which a schedule has until its first edit.
    form_version = values["version"] or 1
    try:
        await request.operations.scheduler.schedules.update(
            schedule.schedule_id, if_version=form_version, **changes
        )
    except ScheduleOwnedByCodeError as error:
        return _form_again(page, {"": str(error)}, 409)
    except ScheduleConflictError:
        text = "this schedule was changed meanwhile; reload it and edit it again"
        return _form_again(page, {"": text}, 409)
    except (TypeError, ValueError) as error:
        # A TypeError states that the task cannot be called with the arguments.
        field = "kwargs" if isinstance(error, TypeError) else ""
        return _form_again(page, {field: message_for(error, FIELD_REMEDIES)})
    return Redirect("/schedule", "schedule_updated", {"id": schedule.schedule_id})


async def _entered_form(request: ActionRequest) -> FormPage:
    """Return the form with what was entered, and with defaults for fields that were not sent."""
    values = dict(DEFAULTS)
    for name in DEFAULTS:
        if name in request.form:
            values[name] = request.text(name)
    arguments = {name: request.text(name) for name in request.form if name.startswith(FIELD)}
    if request.is_one:
        # A form that did not show the arguments has no field ``kwargs``.
        form_arguments = arguments if "kwargs" in request.form else None
        return await edit_form(request.page, await find_schedule(request), values, form_arguments)
    return await schedule_form.new_form(request.page, values, arguments)


async def _read_values(request: ActionRequest, page: FormPage) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the entered values by field, and what is wrong by field.

    The fields of the trigger together are one value, ``trigger``. A value with an error is left out.
    """
    # By the name of a value, the function that reads it from the form. A function raises an error if what was
    # entered is wrong, so that the form can show all errors at once.
    readers: dict[str, Callable[[], Any]] = {
        "trigger": lambda: trigger_of(page.values),
        "start": lambda: request.instant("start"),
        "end": lambda: request.instant("end"),
        "max_runs": lambda: request.number("max_runs"),
    }
    if page.schedule_id is None:
        tasks = await request.page.task_names()
        readers |= {
            "task": lambda: _task(page.values["task"], tasks),
            "schedule_id": lambda: _schedule_id(page.values["schedule_id"]),
        }
    else:
        readers["version"] = lambda: request.number("version")
    # A form that did not show the arguments of a schedule has no field ``kwargs``, and does not change them.
    if page.has_arguments and (page.schedule_id is None or "kwargs" in request.form):
        readers["kwargs"] = lambda: _arguments(page)
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, reader in readers.items():
        try:
            values[name] = reader()
        except FieldError as error:
            # The error states its field, such as one of the several fields of the trigger.
            errors[error.field] = str(error)
        except (ValueError, RejectedError) as error:
            errors[name] = str(error)
    return values, errors


def _task(name: str, tasks: TaskNames) -> str:
    """Return the name of the task that was chosen.

    Raises:
        RejectedError: No live worker claims the task.
    """
    if tasks.task_of(name) not in tasks.main:
        raise RejectedError("choose a task that a live worker claims")
    return name


def _schedule_id(text: str) -> str | None:
    """Return the id that was entered for a new schedule; None for an id that the Scheduler makes."""
    return check_schedule_id(text) if text else None


def _as_json(arguments: Mapping[str, Any]) -> str:
    """Return arguments as JSON, which is equal for equal arguments in any order."""
    return json.dumps(arguments, sort_keys=True)


def _arguments(page: FormPage) -> dict[str, Any]:
    """Return the arguments that were entered, both in fields of their own and as a JSON object.

    Raises:
        FieldError: A field is wrong.
        RejectedError: The other arguments are too long, or no JSON object.
    """
    text = page.values["kwargs"]
    if len(text) > MAX_ARGUMENTS:
        raise RejectedError(f"the arguments have {len(text):,} characters; the limit is {MAX_ARGUMENTS:,}")
    try:
        arguments = load_json(text or "{}")
    except ValueError as error:
        raise RejectedError(f"the arguments must be a JSON object: {error}") from error
    if not isinstance(arguments, dict):
        raise RejectedError('the arguments must be a JSON object, such as {"tenant": 7}')
    return {**read_fields(page.arguments, page.parameters, arguments), **arguments}


def _form_again(page: FormPage, errors: dict[str, str], status: int = 400) -> PageAnswer:
    """Return the form as it was entered, with what is wrong, by field."""
    return PageAnswer(replace(page, errors=errors), "schedule_form", status)
