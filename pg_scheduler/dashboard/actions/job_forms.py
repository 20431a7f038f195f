"""Add a job with the task and the options of another one, and send a signal to a job."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pg_scheduler.dashboard.actions.request import ActionRequest, PageAnswer, Redirect
from pg_scheduler.dashboard.arguments import FIELD, FieldError, read_fields
from pg_scheduler.dashboard.context import NotFoundError
from pg_scheduler.dashboard.pages import job_forms
from pg_scheduler.dashboard.pages.job_forms import MAX_LENGTH, JobFormPage, SignalFormPage
from pg_scheduler.errors import JobConflictError, JobNotFoundError, PayloadError


async def add(request: ActionRequest) -> Redirect | PageAnswer:
    """Add a job with the task and the options of another job, due now. The other job is not changed."""
    inspector = request.operations.inspector
    form = await job_forms.build_add(replace(request.page, inspector=inspector))
    arguments = {name: request.text(name) for name in request.form if name.startswith(FIELD)}
    form = replace(form, values={name: request.text(name) for name in form.values}, arguments=arguments)
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, kind, hint in (
        ("args", list, "a JSON list, such as [113]"),
        ("kwargs", dict, 'a JSON object, such as {"account": 113}'),
    ):
        try:
            values[name] = _json(form.values[name], hint, kind())
            if not isinstance(values[name], kind):
                errors[name] = f"enter {hint}"
        except ValueError as error:
            errors[name] = str(error)
    if errors:
        return _form_again(form, errors)
    try:
        values["kwargs"] |= read_fields(arguments, form.parameters, values["kwargs"])
    except FieldError as error:
        return _form_again(form, {error.field: str(error)})
    job = form.job
    try:
        job_id = await request.operations.scheduler.enqueue(job.job_name, **values, **form.options)
    except JobConflictError as error:
        return _form_again(form, {"": request.page.visible_conflict(error)}, 409)
    except (TypeError, ValueError) as error:
        return _form_again(form, {"": str(error)})
    await inspector.record_action("add_job", job_id, name=job.job_name, like=job.job_id)
    return Redirect("/job", "job_added", {"id": job_id})


async def signal(request: ActionRequest) -> Redirect | PageAnswer:
    """Send a signal. The audit records the name of the signal, and not its value."""
    form = await job_forms.build_signal(request.page)
    form = replace(form, values={name: request.text(name) for name in form.values})
    job_id, name = form.job.job_id, form.values["name"]
    try:
        value = _json(form.values["value"], 'JSON, such as {"by": "ann"}, "yes" with its quotes, or 7', None)
    except ValueError as error:
        return _form_again(form, {"value": str(error)})
    try:
        is_sent = await request.operations.scheduler.signal(job_id, name, value)
    except JobNotFoundError as error:  # deleted since
        raise NotFoundError.of("job", job_id) from error
    except PayloadError as error:
        return _form_again(form, {"value": str(error)})
    except ValueError as error:
        return _form_again(form, {"name": str(error)})
    if not is_sent:
        text = f"nothing was sent: the job has a value for {name!r}, its wait has timed out, or it has ended"
        return _form_again(form, {"": text}, 409)
    await request.operations.inspector.record_action("signal_job", job_id, name=name)
    return Redirect("/job", "signal_sent", {"id": job_id})


def _json(text: str, hint: str, empty: Any) -> Any:
    """Return the value of a field, which is JSON; ``empty`` for an empty field.

    Raises:
        ValueError: The text is too long, or no JSON.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"this has {len(text):,} characters; the limit is {MAX_LENGTH:,}")
    try:
        return json.loads(text) if text else empty
    except (ValueError, RecursionError) as error:
        raise ValueError(f"enter {hint}: {error}") from error


def _form_again(form: JobFormPage | SignalFormPage, errors: dict[str, str], status: int = 400) -> PageAnswer:
    return PageAnswer(replace(form, errors=errors), form.template, status)
