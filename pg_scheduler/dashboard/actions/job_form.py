"""Add a job with the task and the options of another one, and other arguments."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pg_scheduler.dashboard.actions.request import ActionRequest, Done, Shown
from pg_scheduler.dashboard.arguments import FIELD, FieldError, read_fields
from pg_scheduler.dashboard.pages import job_form
from pg_scheduler.dashboard.pages.job_form import MAX_LENGTH, JobFormPage
from pg_scheduler.errors import JobConflictError


async def add(request: ActionRequest) -> Done | Shown:
    """Add a job that is due now. The other one stays as it is."""
    inspector = request.operations.inspector
    form = await job_form.build(replace(request.page, inspector=inspector))
    arguments = {name: request.text(name) for name in request.form if name.startswith(FIELD)}
    form = replace(form, values={name: request.text(name) for name in form.values}, arguments=arguments)
    read: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, kind in (("args", list), ("kwargs", dict)):
        try:
            read[name] = _value(form.values[name], kind)
        except (ValueError, RecursionError) as error:
            errors[name] = str(error)
    if errors:
        return _again(form, errors)
    try:
        read["kwargs"] |= read_fields(arguments, form.parameters, read["kwargs"])
    except FieldError as error:
        return _again(form, {error.field: str(error)})
    job = form.job
    try:
        job_id = await request.operations.scheduler.enqueue(job.job_name, **read, **form.options)
    except JobConflictError as error:
        return _again(form, {"": str(error)}, 409)
    except (TypeError, ValueError) as error:
        return _again(form, {"": str(error)})
    await inspector.record_action("add_job", job_id, name=job.job_name, like=job.job_id)
    return Done("/job", "job_added", {"id": job_id})


def _value(text: str, kind: type[Any]) -> Any:
    """Return the value of a field; an empty field is an empty list or object.

    Raises:
        ValueError: It is too long, no JSON, or a value of another kind.
    """
    noun = "a JSON list, such as [113]" if kind is list else 'a JSON object, such as {"account": 113}'
    if len(text) > MAX_LENGTH:
        raise ValueError(f"this has {len(text):,} characters; the limit is {MAX_LENGTH:,}")
    try:
        value = json.loads(text) if text else kind()
    except ValueError as error:
        raise ValueError(f"enter {noun}: {error}") from error
    if not isinstance(value, kind):
        raise ValueError(f"enter {noun}")  # noqa: TRY004 - the value of a field is wrong, not a type
    return value


def _again(form: JobFormPage, errors: dict[str, str], status: int = 400) -> Shown:
    return Shown(replace(form, errors=errors), "job_form", status)
