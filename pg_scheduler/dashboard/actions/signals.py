"""Send a signal to a job."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pg_scheduler.dashboard.actions.request import ActionRequest, Done, Shown
from pg_scheduler.dashboard.context import NotFoundError
from pg_scheduler.dashboard.pages import signal_form
from pg_scheduler.dashboard.pages.job_form import MAX_LENGTH
from pg_scheduler.dashboard.pages.signal_form import SignalFormPage
from pg_scheduler.errors import JobNotFoundError, PayloadError


async def send(request: ActionRequest) -> Done | Shown:
    """Send a signal. The audit has its name, and not its value."""
    form = await signal_form.build(request.page)
    form = replace(form, values={name: request.text(name) for name in form.values})
    job_id, name = form.job.job_id, form.values["name"]
    try:
        value = _value(form.values["value"])
    except ValueError as error:
        return _again(form, {"value": str(error)})
    try:
        is_sent = await request.operations.scheduler.signal(job_id, name, value)
    except JobNotFoundError as error:  # deleted since
        raise NotFoundError.of("job", job_id) from error
    except PayloadError as error:
        return _again(form, {"value": str(error)})
    except ValueError as error:
        return _again(form, {"name": str(error)})
    if not is_sent:
        text = f"nothing was sent: the job has a value for {name!r}, its wait has timed out, or it has ended"
        return _again(form, {"": text}, 409)
    await request.operations.inspector.record_action("signal_job", job_id, name=name)
    return Done("/job", "signal_sent", {"id": job_id})


def _value(text: str) -> Any:
    """Return the value of the field; None if it is empty.

    Raises:
        ValueError: It is too long, or no JSON.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"this has {len(text):,} characters; the limit is {MAX_LENGTH:,}")
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f'enter JSON, such as {{"by": "ann"}}, "yes" with its quotes, or 7: {error}'
        ) from error


def _again(form: SignalFormPage, errors: dict[str, str], status: int = 400) -> Shown:
    return Shown(replace(form, errors=errors), "signal_form", status)
