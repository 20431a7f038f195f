"""The form that sends a signal to a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pg_scheduler.dashboard.context import PageRequest, RejectedError
from pg_scheduler.dashboard.pages.job_steps import read_steps, waiting_signals
from pg_scheduler.dashboard.pages.job_values import read_job
from pg_scheduler.jobs.model import Job


@dataclass(frozen=True, slots=True)
class SignalFormPage:
    """A form, with what was entered."""

    job: Job
    """The job, as far as the request may see it."""
    waiting: Sequence[str]
    """The names of the signals that it waits for."""
    values: Mapping[str, str]
    """``name``, and ``value`` as JSON."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """What is wrong, by field; that of the empty name concerns the whole."""


async def build(request: PageRequest) -> SignalFormPage:
    """Return the form, with the name of the first signal that the job waits for.

    Raises:
        NotFoundError: The job does not exist, or is hidden.
        RejectedError: The request may not send signals, or the job has ended.
    """
    _, job = await read_job(request)
    if not request.may("signal"):
        raise RejectedError("you may not do this: it needs the right signal", 403)
    if job.finished_at is not None:
        raise RejectedError(f"the job is {job.status.value}, so it accepts no signal any more", 409)
    waiting = waiting_signals(await read_steps(job.job_id, request))
    return SignalFormPage(job, waiting, {"name": waiting[0] if waiting else "", "value": ""})
