"""The forms about a job: one adds a job like it, one changes it while it waits, one sends it a signal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.dashboard.arguments import fields_of, json_of
from pg_scheduler.dashboard.context import PageRequest, RejectedError
from pg_scheduler.dashboard.job_rows import row_of
from pg_scheduler.dashboard.pages.job_new import NewJobPage, build_new
from pg_scheduler.dashboard.pages.job_values import read_job, read_steps, waiting_signals
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.jobs.metadata import TRACE
from pg_scheduler.jobs.model import UNSET, Job
from pg_scheduler.jobs.sequences import BLOCKED_BY_SEQUENCE
from pg_scheduler.jobs.shares import BLOCKED_BY_SHARE
from pg_scheduler.jobs.unique import UNIQUE_PREFIX
from pg_scheduler.jobs.worker_report import Parameter

MAX_LENGTH: Final = 100_000


@dataclass(frozen=True, slots=True)
class JobFormPage:
    """The form of a new job, with what was entered."""

    template: ClassVar[str] = "job_form"

    job: Job
    """The job whose task and options the new one has."""
    values: Mapping[str, str]
    """``args`` and ``kwargs`` as JSON."""
    _options: Mapping[str, Any]
    """The options of the new job, with metadata that may be hidden."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """What is wrong, by field. The empty name stands for the whole form."""
    parameters: Sequence[Parameter] = ()
    """The parameters of the task, if a live worker reports them, also for positional arguments."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """The texts of the fields of the parameters."""
    version: str | None = None
    """The version of the job, if the form changes it; None if it adds another one."""
    remark: str | None = None
    """Which options the new job has from its task; None if it has all of them."""
    is_reported: bool = True
    """Whether the options of the task are known. Otherwise ``remark`` has no options of it."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the new job, as ``enqueue()`` takes them."""
        return self._options


@dataclass(frozen=True, slots=True)
class SignalFormPage:
    """The form of a signal, with what was entered."""

    template: ClassVar[str] = "signal_form"

    job: Job
    """The job, as far as the request may see it."""
    state: str
    """The state of the job."""
    arguments: str | None
    """Its arguments in one line; None if the request may not see them."""
    waiting: Sequence[str]
    """The names of the signals and the mailboxes that it waits for."""
    values: Mapping[str, str]
    """``name``, ``value`` as JSON, and ``mailbox``, which is empty for a signal."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """What is wrong, by field. The empty name stands for the whole form."""


async def build_form(request: PageRequest) -> JobFormPage | NewJobPage:
    """Return the form about the job whose id is in the URL; without an id, the form of a new job."""
    if "id" not in request.parameters:
        return await build_new(request)
    if "change" in request.parameters:
        return await build_change(request)
    return await build_add(request)


async def build_add(request: PageRequest) -> JobFormPage:
    """Return the form that adds a job with the task and the options of another one, and with its arguments.

    Raises:
        NotFoundError: The job does not exist, or is hidden.
        RejectedError: The request may not add jobs, or the form cannot show the arguments.
    """
    raw, job = await read_job(request)
    if not request.may("add"):
        raise RejectedError("you may not do this: it needs the right add", 403)
    values = _arguments_of(raw, request)
    if values is None:
        raise RejectedError(
            "arguments or metadata of this job are hidden, no JSON, or too long for a form", 403
        )
    options, remark = await request.reported_options(job.job_name, _options_like(raw))
    is_reported = remark is None or await request.reports_options(job.job_name)
    form = JobFormPage(job, values, options, remark=remark, is_reported=is_reported)
    parameters = await request.task_parameters(job.job_name)
    names = await request.argument_names(job.job_name, raw.args)
    named_arguments = dict(zip(names, raw.args, strict=False))
    # There are fields if all positional arguments can be passed by name. Otherwise, and without parameters,
    # the form has the arguments as JSON only.
    has_name_for_each = len(named_arguments) == len(raw.args)
    can_pass_by_name = has_name_for_each and named_arguments.keys().isdisjoint(raw.kwargs)
    if not parameters or not can_pass_by_name:
        return form
    arguments, other_arguments = fields_of({**named_arguments, **raw.kwargs}, parameters)
    values = {"args": "[]", "kwargs": other_arguments}
    return replace(form, values=values, parameters=parameters, arguments=arguments)


def _options_like(raw: Job) -> dict[str, Any]:
    """Return the options of ``enqueue()`` for a job like this one, which does not belong to its trace."""
    return {
        "priority": raw.priority,
        "max_retries": raw.max_retries,
        "misfire_grace_time": raw.misfire_grace_time,
        "timeout": raw.timeout,
        "metadata": {key: value for key, value in raw.metadata.items() if key != TRACE},
        "unique": raw.unique_key or UNSET,
    }


async def build_change(request: PageRequest) -> JobFormPage:
    """Return the form with the arguments and the priority of a pending job.

    Raises:
        NotFoundError: The job does not exist, or is hidden.
        RejectedError: The request may not add jobs, the form cannot show the arguments, or the job cannot be
            changed any more.
    """
    # The version is read first: if the job changes before it is read too, the change is refused.
    version = await tables_of(request.inspector).writes.jobs.version(request.required("id"))
    form = await build_add(request)
    if version is None:
        raise RejectedError(
            "this job cannot be changed: it is not pending, or has a unique key, share, sequence or steps",
            409,
        )
    values = {**form.values, "priority": form.job.priority.value, "version": version}
    return replace(form, values=values, version=version)


async def build_signal(request: PageRequest) -> SignalFormPage:
    """Return the form that sends a signal to a job, with the name of the first signal that it waits for.

    Raises:
        NotFoundError: The job does not exist, or is hidden.
        RejectedError: The request may not send signals, or the job has ended.
    """
    _, job = await read_job(request)
    if not request.may("signal"):
        raise RejectedError("you may not do this: it needs the right signal", 403)
    if job.finished_at is not None:
        raise RejectedError(f"the job is {job.status.value}, so it accepts no signal any more", 409)
    waits = waiting_signals(await read_steps(job.job_id, request))
    # The rows of messages have their numbers, and people send to the mailbox.
    names = list(dict.fromkeys(wait.mailbox or wait.name for wait in waits))
    awaits_message = bool(waits) and waits[0].mailbox is not None
    row = row_of(job, request)
    values = {"name": names[0] if names else "", "value": "", "mailbox": "on" if awaits_message else ""}
    return SignalFormPage(job, row.state, row.arguments, names, values)


def can_change(raw: Job, request: PageRequest) -> bool:
    """Return whether the request may change the arguments and the priority of a job.

    A job with steps cannot be changed either. Steps are in another table, so the caller checks this.
    """
    if raw.status is not JobStatus.PENDING or not can_add_like(raw, request):
        return False
    # The unique key of a job follows from its arguments. So do the id of a job that is unique within a time
    # span, the tenant of a share, and the key of a sequence.
    is_unique = raw.unique_key is not None or raw.job_id.startswith(UNIQUE_PREFIX)
    return not is_unique and not (raw.blocked_on or "").startswith((BLOCKED_BY_SHARE, BLOCKED_BY_SEQUENCE))


def can_add_like(raw: Job, request: PageRequest) -> bool:
    """Return whether the request may add jobs, and the form can show all arguments of this one."""
    return request.may("add") and _arguments_of(raw, request) is not None


def _arguments_of(raw: Job, request: PageRequest) -> dict[str, str] | None:
    """Return the arguments of a job as the form has them; None if it cannot show all of them."""
    if not request.sees_all(raw):
        return None
    try:
        values = {"args": json_of(list(raw.args), 2), "kwargs": json_of(raw.kwargs, 2)}
    except (TypeError, ValueError):
        # The Scheduler has decoded the arguments to objects that JSON does not have.
        return None
    return values if sum(map(len, values.values())) <= MAX_LENGTH else None
