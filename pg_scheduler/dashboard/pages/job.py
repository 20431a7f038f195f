"""The page of one job: a sentence, why it is where it is, its attempts, and what it was called with."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pg_scheduler.dashboard.context import NotFoundError, PageRequest
from pg_scheduler.dashboard.job_rows import share_done, tags_of
from pg_scheduler.dashboard.pages.limits import limit_names_of
from pg_scheduler.dashboard.pages.schedule_history import results_of
from pg_scheduler.dashboard.redaction import HIDDEN
from pg_scheduler.dashboard.texts import json_text, plain, utc
from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.inspect import AuditRecord, Explanation, Reason, ReasonCode
from pg_scheduler.inspect.bulk import ALLOWED
from pg_scheduler.inspect.schedule_history import PastFire
from pg_scheduler.inspect.texts import command as shell_command
from pg_scheduler.inspect.texts import length
from pg_scheduler.inspect.timeline import Event, last_attempt, timeline_of
from pg_scheduler.jobs.history import PARENT
from pg_scheduler.jobs.limits import BLOCKED_BY_LIMIT
from pg_scheduler.jobs.metadata import trace_id_of
from pg_scheduler.jobs.model import Job
from pg_scheduler.status import JobStatus

MAX_LINKS: Final = 20
MAX_CHANGES: Final = 10

OTHERS: Final[Mapping[ReasonCode, str]] = {
    ReasonCode.AFTER: "waits for other jobs",
    ReasonCode.CANCELLED: "by a caller, by itself, or because of another job",
    ReasonCode.EXPIRED: "did not start before it expired",
    ReasonCode.LOOP_BLOCKED: "the event loop of its worker, or of every worker that claims it, is blocked",
    ReasonCode.LIMIT: "waits for a limit",
    ReasonCode.LOCK_HELD: "another attempt holds its advisory lock",
    ReasonCode.NAME_UNKNOWN: "no live worker claims its name",
    ReasonCode.ROW_LOCKED: "a transaction has locked its row",
}
"""Reasons whose texts mention other jobs, names or sessions, without those."""

WITH_STATEMENTS: Final = frozenset({ReasonCode.LOCK_HELD, ReasonCode.ROW_LOCKED})
"""Reasons whose texts contain the statement of another session, which may contain arguments."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """A job. What the request may not see is None or empty."""

    job_id: str
    name: str
    status: str
    sentence: str
    verdict: str
    eta: datetime | None
    reasons: Sequence[Reason]
    timeline: Sequence[Event]
    priority: str
    attempt: int
    crash_count: int
    max_attempts: int
    """The number of the last attempt that it can have."""
    timeout_s: float | None
    misfire_grace_s: int | None
    worker: str | None
    blocked_on: str | None
    unique_key: str | None
    """Hidden with any of its arguments: a key may contain a digest of them, which can be guessed."""
    schedule: str | None
    fire_time: datetime | None
    schedule_results: Sequence[PastFire]
    """The last 20 fire times of its schedule, the newest first; empty without a schedule."""
    error: str | None
    sees_arguments: bool
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    arguments: str | None
    """The arguments as a text."""
    metadata: Mapping[str, Any] | None
    trace_id: str | None
    """The trace in which the job was created."""
    tags: Sequence[str]
    progress: float | None
    progress_note: str | None
    result: str | None
    """The returned value as JSON; None if no value was kept, or if the job has not completed."""
    links: Mapping[str, str]
    limits: Sequence[str]
    """The names of the limits that live workers declare for the name of the job."""
    changes: Sequence[AuditRecord]
    """The last 10 changes of the job with their actors, the newest first, without details."""
    command: str | None
    """Adds such a job in a shell; None if a value is hidden."""
    actions: Sequence[str]
    """The actions that its status allows: ``cancel``, ``retry``, ``delete``, ``move``."""


async def build(request: PageRequest) -> JobPage:
    """Read a job, its explanation and its result."""
    job_id = request.required("id")
    missing = NotFoundError(f"there is no job {job_id[:200]!r}, or you may not see it")
    try:
        job = await request.inspector.get_job(job_id)
    except ValueError as error:  # no id that a row can have
        raise missing from error
    if job is None or not request.access.sees_name(job.job_name):
        raise missing
    if request.access.visible_names is not None:
        job = replace(job, errors=tuple(each for each in job.errors if each.outcome != PARENT))
    try:
        explanation = await request.inspector.explain_job(job_id)
    except JobNotFoundError as error:  # deleted since
        raise missing from error
    page = _page(job, _visible(explanation, job, request), await _result(job, request), request)
    changes = await _changes(job_id, request)
    return replace(
        page,
        limits=await limit_names_of(job.job_name, request),
        changes=changes,
        schedule_results=await results_of(job.schedule_id, request),
    )


async def _changes(job_id: str, request: PageRequest) -> list[AuditRecord]:
    if request.access.visible_names is not None:
        return []
    page = await request.inspector.audit(subject=job_id, limit=MAX_CHANGES)
    return [replace(each, details={}) for each in page.items]


def _visible(explanation: Explanation, job: Job, request: PageRequest) -> Explanation:
    """Return the explanation without what belongs to jobs or arguments that the request may not see."""
    hidden: Collection[ReasonCode] = () if request.access.sees_arguments else WITH_STATEMENTS
    if _blocked_on(job, request) != job.blocked_on:
        hidden = {*hidden, ReasonCode.LIMIT}
    if request.access.visible_names is not None:
        hidden = OTHERS
    reasons = [_without_others(each) if each.code in hidden else each for each in explanation.reasons]
    return replace(explanation, reasons=tuple(reasons))


def _without_others(reason: Reason) -> Reason:
    if reason.code in {ReasonCode.CANCELLED, ReasonCode.EXPIRED}:  # their remedies concern the job itself
        return replace(reason, text=OTHERS[reason.code])
    return replace(reason, text=OTHERS[reason.code], remedy=None, command=None)


def _blocked_on(job: Job, request: PageRequest) -> str | None:
    """Return what blocks a job, without the key of a limit if the request may not see arguments."""
    if job.blocked_on is None or request.access.sees_arguments:
        return job.blocked_on
    name, _, key = job.blocked_on.removeprefix(BLOCKED_BY_LIMIT).partition(":")
    return f"{BLOCKED_BY_LIMIT}{name}:{HIDDEN}" if key else job.blocked_on


async def _result(job: Job, request: PageRequest) -> str | None:
    if job.status is not JobStatus.COMPLETED or not request.access.sees_arguments:
        return None
    try:
        found = await request.inspector.get_result(job.job_id)
    except JobNotFoundError:  # deleted since
        return None
    if found is None or found.no_value_reason is not None:
        return None
    return json_text(request.settings.redaction.value(found.value))


def _page(job: Job, explanation: Explanation, result: str | None, request: PageRequest) -> JobPage:
    sees, settings = request.access.sees_arguments, request.settings
    if sees:
        hide = settings.redaction.values
        shown = replace(job, args=tuple(hide(job.args)), kwargs=hide(job.kwargs), metadata=hide(job.metadata))
    else:
        shown = replace(job, args=(), kwargs={}, metadata={}, progress=None)
    return JobPage(
        job_id=job.job_id,
        name=job.job_name,
        status=job.status.value,
        sentence=_sentence(job, explanation),
        verdict=explanation.verdict.value,
        eta=explanation.eta,
        reasons=explanation.reasons,
        timeline=[event if sees else replace(event, log=()) for event in timeline_of(job, request.now)],
        priority=job.priority.value,
        attempt=job.attempt,
        crash_count=job.crash_count,
        max_attempts=last_attempt(job),
        timeout_s=None if job.timeout is None else job.timeout.total_seconds(),
        misfire_grace_s=job.misfire_grace_time,
        worker=job.worker_id,
        blocked_on=_blocked_on(job, request),
        unique_key=HIDDEN if job.unique_key and not _sees_all(job, request) else job.unique_key,
        schedule=job.schedule_id,
        fire_time=job.fire_time,
        schedule_results=(),
        error=job.error_message,
        sees_arguments=sees,
        args=list(shown.args) if sees else None,
        kwargs=shown.kwargs if sees else None,
        arguments=_arguments(shown, request) if sees else None,
        metadata=shown.metadata if sees else None,
        trace_id=trace_id_of(shown.metadata),
        tags=tags_of(job, request),
        progress=share_done(job),
        progress_note=shown.progress.note if shown.progress else None,
        result=result,
        links=_links(shown, request),
        limits=(),
        changes=(),
        command=_command(job, request),
        actions=[
            action.removesuffix("_jobs") for action, statuses in ALLOWED.items() if job.status in statuses
        ],
    )


def _arguments(job: Job, request: PageRequest) -> str:
    if request.settings.format_arguments is not None:
        return str(request.settings.format_arguments(job))
    return json_text({"args": job.args, "kwargs": job.kwargs})


def _sees_all(job: Job, request: PageRequest) -> bool:
    """Return whether the request may see all that the job contains."""
    values = _values(job)
    hidden = request.settings.redaction.values(values)
    return request.access.sees_arguments and bool(plain(hidden) == plain(values))


def _values(job: Job) -> dict[str, Any]:
    return {"args": list(job.args), "kwargs": job.kwargs, "metadata": job.metadata}


def _command(job: Job, request: PageRequest) -> str | None:
    """Return the command that adds such a job; None if the request may not see all that it contains."""
    if not _sees_all(job, request):
        return None
    values = _values(job)
    try:
        options = [
            f"--{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items() if value
        ]
    except (TypeError, ValueError):  # decoded by the Scheduler to values that JSON does not have
        return None
    return shell_command("jobs", "add", job.job_name, *options, f"--priority={job.priority.value}")


def _links(job: Job, request: PageRequest) -> dict[str, str]:
    """Return the links of the host that lead to a page, and not to a script."""
    if request.settings.links is None:
        return {}
    found = list(request.settings.links(job).items())[:MAX_LINKS]
    return {str(label): str(url) for label, url in found if _is_page(str(url))}


def _is_page(url: str) -> bool:
    is_local = url.startswith("/") and url[1:2] not in {"/", "\\"}
    return is_local or url.lower().startswith(("https://", "http://"))


def _sentence(job: Job, explanation: Explanation) -> str:
    """Return what the job does, in one sentence."""
    if job.status is JobStatus.COMPLETED:
        took = ""
        if job.started_at is not None and job.finished_at is not None:
            took = f" after {length(job.finished_at - job.started_at)}"
        return f"It completed{took}, on attempt {job.attempt}."
    said = f"It is {job.status.value}"
    first = f": {explanation.reasons[0].text.rstrip('.')}" if explanation.reasons else ""
    if explanation.reasons and explanation.reasons[0].code is ReasonCode.FAILED:
        said, first = "It", f" {explanation.reasons[0].text}"
    eta = f". It is expected at {utc(explanation.eta)}" if explanation.eta and job.started_at is None else ""
    return f"{said}{first}{eta}."
