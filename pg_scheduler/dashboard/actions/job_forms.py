"""Add a job with the task and the options of another one, change a job that waits, and send it a signal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.dashboard.actions.request import FIELD_REMEDIES, ActionRequest, PageAnswer, Redirect
from pg_scheduler.dashboard.arguments import FIELD, FieldError, read_fields
from pg_scheduler.dashboard.context import NotFoundError, RejectedError, entered_instant
from pg_scheduler.dashboard.pages import job_forms, job_new
from pg_scheduler.dashboard.pages.job_forms import MAX_LENGTH, JobFormPage, SignalFormPage
from pg_scheduler.dashboard.pages.job_new import NewJobPage
from pg_scheduler.errors import JobConflictError, JobNotFoundError, PayloadError
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.texts import command
from pg_scheduler.jobs.call_errors import message_for
from pg_scheduler.jobs.model import JobFunction, JobPriority
from pg_scheduler.jobs.task import JobSpec
from pg_scheduler.scheduler.parts import parts_of


async def add(request: ActionRequest) -> Redirect | PageAnswer:
    """Add a job with the task and the options of another job, due now. The other job is not changed."""
    inspector = request.operations.inspector
    form = await job_forms.build_add(replace(request.page, inspector=inspector))
    form, values, errors = _read_arguments(form, request)
    if errors:
        return _form_again(form, errors)
    job = form.job
    try:
        job_id = await request.operations.scheduler.enqueue(job.job_name, **values, **form.options)
    except JobConflictError as error:
        return _form_again(form, {"": request.page.visible_conflict(error)}, 409)
    except (TypeError, ValueError) as error:
        return _form_again(form, {"": message_for(error, FIELD_REMEDIES)})
    await inspector.record_action("add_job", job_id, name=job.job_name, like=job.job_id)
    return Redirect("/job", "job_added", {"id": job_id})


async def change(request: ActionRequest) -> Redirect | PageAnswer:
    """Replace the arguments and the priority of a pending job, unless they have changed meanwhile."""
    operations = request.operations
    form = await job_forms.build_change(replace(request.page, inspector=operations.inspector))
    form, values, errors = _read_arguments(form, request)
    if errors:
        return _form_again(form, errors)
    try:
        priority = JobPriority(form.values["priority"])
    except ValueError as error:
        return _form_again(form, {"priority": str(error)})
    # The new arguments are checked and encoded as those of a new job would be. Of this job, only the encoded
    # arguments are used, and it is not added.
    spec = JobSpec(cast("JobFunction", form.job.job_name), None, **values, unique=None)
    parts = parts_of(operations.scheduler)
    try:
        (row,) = parts.preparer.prepare([spec], allows_names=True, allows_now=True)
    except (TypeError, ValueError) as error:
        return _form_again(form, {"": message_for(error, FIELD_REMEDIES)})
    jobs, job_id = tables_of(operations.inspector).writes.jobs, form.job.job_id
    due_at = await jobs.change(job_id, form.values["version"], row.task_data, priority.db_value)
    # The job was changed only if it still had the version that the form has.
    if due_at is None:
        text = "nothing was changed: the job has changed since the form was opened; these are its values now"
        new_form = await job_forms.build_change(replace(request.page, inspector=operations.inspector))
        return _form_again(new_form, {"": text}, 409)
    # With another priority, the job may have to start earlier than workers expect.
    await parts.outbox.notify_due(due_at)
    await operations.inspector.record_action("change_job", job_id)
    return Redirect("/job", "job_changed", {"id": job_id})


def _read_arguments(
    form: JobFormPage, request: ActionRequest
) -> tuple[JobFormPage, dict[str, Any], dict[str, str]]:
    """Return the form with what was entered, the arguments that it means, and what is wrong, by field.

    A form has a field for each parameter of the task that workers report, and fields for other arguments as
    JSON.
    """
    arguments = {name: request.text(name) for name in request.form if name.startswith(FIELD)}
    form = replace(form, values={name: request.text(name) for name in form.values}, arguments=arguments)
    values, errors = _json_arguments(form.values)
    if not errors:
        try:
            values["kwargs"] |= read_fields(arguments, form.parameters, values["kwargs"])
        except FieldError as error:
            errors[error.field] = str(error)
    return form, values, errors


class EnteredJob(NamedTuple):
    """A new job as its form describes it.

    Attributes:
        values: Its arguments, as ``enqueue()`` takes them.
        options: The other options of ``enqueue()``.
        due_at: When it is due; None for now.
    """

    values: Mapping[str, Any]
    options: Mapping[str, Any]
    due_at: datetime | None


async def add_new(request: ActionRequest) -> Redirect | PageAnswer:
    """Add a job of a task, or show the form again with the code that adds it."""
    field_texts = {name: request.text(name) for name in job_new.FIELDS}
    form = await job_new.build_new(request.page, field_texts)
    arguments = {name: request.text(name) for name in request.form if name.startswith(FIELD)}
    form = replace(form, arguments=arguments)
    task = form.values["task"]
    job, errors = await _read_new(form, request)
    if errors:
        return _form_again(form, errors)
    if request.text("show") == "code":
        return PageAnswer(replace(form, code=code_of_job(task, *job)), form.template)
    # If this process has not registered the task, the options that workers report for it are added.
    reported_options, _remark = await request.page.reported_options(task, job.options)
    options = dict(reported_options)
    if job.due_at is not None:
        options["delay"] = max(job.due_at - request.page.now, timedelta(0))
    try:
        job_id = await request.operations.scheduler.enqueue(task, **job.values, **options)
    except JobConflictError as error:
        return _form_again(form, {"": request.page.visible_conflict(error)}, 409)
    except (TypeError, ValueError) as error:
        return _form_again(form, {"": message_for(error, FIELD_REMEDIES)})
    await request.operations.inspector.record_action("add_job", job_id, name=task)
    return Redirect("/job", "job_new", {"id": job_id})


def _due_text(field_texts: Mapping[str, str]) -> str:
    """Return when a new job is due, as it was entered.

    Raises:
        RejectedError: A time was chosen and not entered, or entered and not chosen.
    """
    is_at_a_time = field_texts["when"] == job_new.AT_A_TIME
    if is_at_a_time and not field_texts["at"]:
        raise RejectedError("enter the time, or choose when the job is due")
    if field_texts["at"] and not is_at_a_time:
        raise RejectedError("choose “at a time…” above, or leave this field empty")
    return field_texts["at"] or field_texts["when"]


async def _read_new(form: NewJobPage, request: ActionRequest) -> tuple[EnteredJob, dict[str, str]]:
    """Return the job that a form describes, and what is wrong, by field."""
    field_texts, page = form.values, request.page
    values, errors = _json_arguments(field_texts)
    problem = await job_new.wrong_task(field_texts["task"], form.tasks, page)
    if problem is not None:
        errors["task"] = problem
    due_at, options = None, dict[str, Any]()
    try:
        due_at = entered_instant("at", _due_text(field_texts), page.now, field_texts["zone"])
    except RejectedError as error:
        errors["at"] = str(error)
    try:
        if field_texts["priority"]:
            options["priority"] = JobPriority(field_texts["priority"])
    except ValueError as error:
        errors["priority"] = str(error)
    try:
        if (retries := request.number("max_retries")) is not None:
            options["max_retries"] = retries
    except RejectedError as error:
        errors["max_retries"] = str(error)
    if not errors:
        try:
            values["kwargs"] |= read_fields(form.arguments, form.parameters, values["kwargs"])
        except FieldError as error:
            errors[error.field] = str(error)
    return EnteredJob(values, options, due_at), errors


def code_of_job(
    task: str, values: Mapping[str, Any], options: Mapping[str, Any], due_at: datetime | None
) -> str:
    """Return Python code that adds a job, and below it the shell command that adds the same job.

    Args:
        task: The name of the task.
        values: The arguments of the job, as ``enqueue()`` takes them: ``args`` and ``kwargs``.
        options: The other options of ``enqueue()``.
        due_at: When the job is due; None for now.
    """
    call = [repr(task)]
    call += [f"{name}={value!r}" for name, value in values.items() if value]
    for name, option in options.items():
        # The repr of a member of an enumeration is no code.
        code = f"JobPriority.{option.name}" if isinstance(option, JobPriority) else repr(option)
        call.append(f"{name}={code}")
    flags = [f"--{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items() if value]
    if "priority" in options:
        flags.append(f"--priority={options['priority'].value}")
    if "max_retries" in options:
        flags.append(f"--retries={options['max_retries']}")
    if due_at is not None:
        due_text = due_at.isoformat(timespec="seconds")
        call.append(f"delay=datetime.fromisoformat({due_text!r}) - datetime.now(UTC)")
        flags.append(f"--at={due_text}")
    return f"await scheduler.enqueue({', '.join(call)})\n\n{command('jobs', 'add', task, *flags)}"


async def signal(request: ActionRequest) -> Redirect | PageAnswer:
    """Send a signal, or a message to a mailbox. The audit records the name, and not the value."""
    form = await job_forms.build_signal(request.page)
    form = replace(form, values={name: request.text(name) for name in form.values})
    job_id, name = form.job.job_id, form.values["name"]
    try:
        value = _json(form.values["value"], 'JSON, such as {"by": "ann"}, "yes" with its quotes, or 7', None)
    except ValueError as error:
        return _form_again(form, {"value": str(error)})
    scheduler = request.operations.scheduler
    send = scheduler.send if form.values["mailbox"] else scheduler.signal
    try:
        is_sent = await send(job_id, name, value)
    except JobNotFoundError as error:  # The job was deleted after the form had read it.
        raise NotFoundError.of("job", job_id) from error
    except PayloadError as error:
        return _form_again(form, {"value": message_for(error, FIELD_REMEDIES)})
    except ValueError as error:
        return _form_again(form, {"name": str(error)})
    if not is_sent:
        text = f"nothing was sent: the job has a value for {name!r}, its wait has timed out, or it has ended"
        return _form_again(form, {"": text}, 409)
    await request.operations.inspector.record_action("signal_job", job_id, name=name)
    return Redirect("/job", "signal_sent", {"id": job_id})


def _json_arguments(texts: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments that were entered as JSON, and what is wrong, by field."""
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, kind, hint in (
        ("args", list, "a JSON list, such as [113]"),
        ("kwargs", dict, 'a JSON object, such as {"account": 113}'),
    ):
        try:
            values[name] = _json(texts[name], hint, kind())
            if not isinstance(values[name], kind):
                errors[name] = f"enter {hint}"
        except ValueError as error:
            errors[name] = str(error)
    return values, errors


def _json(text: str, hint: str, empty: Any) -> Any:
    """Return the value of a field, which is JSON; ``empty`` for an empty field.

    Raises:
        ValueError: The text is too long, or no JSON.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"this has {len(text):,} characters; the limit is {MAX_LENGTH:,}")
    try:
        return load_json(text) if text else empty
    except ValueError as error:
        raise ValueError(f"enter {hint}: {error}") from error


def _form_again(
    form: JobFormPage | NewJobPage | SignalFormPage, errors: dict[str, str], status: int = 400
) -> PageAnswer:
    """Return the form as it was entered, with what is wrong, by field; the empty field is the whole form."""
    return PageAnswer(replace(form, errors=errors), form.template, status)
