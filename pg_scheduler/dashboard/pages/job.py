"""The page of one job: why it is where it is, its attempts, its values, and the jobs around it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.gantt import Gantt, gantt_of
from pg_scheduler.dashboard.job_rows import share_done
from pg_scheduler.dashboard.json_tree import JsonTree, json_tree
from pg_scheduler.dashboard.pages import job_form
from pg_scheduler.dashboard.pages.cause import Cause, cause_of
from pg_scheduler.dashboard.pages.job_context import (
    LastRuns,
    Siblings,
    last_runs_of,
    limits_of,
    siblings_of,
)
from pg_scheduler.dashboard.pages.job_values import missing, read_job, read_result, values_of
from pg_scheduler.dashboard.pages.limits import LimitRow
from pg_scheduler.dashboard.pages.schedule_history import results_of
from pg_scheduler.dashboard.visible import sees_all
from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.inspect import AuditRecord, Explanation, Reason, ReasonCode
from pg_scheduler.inspect.bulk import ALLOWED
from pg_scheduler.inspect.dependencies import Dependencies, read_dependencies
from pg_scheduler.inspect.schedule_history import PastFire
from pg_scheduler.inspect.store.bulk import BulkAction
from pg_scheduler.inspect.texts import command as shell_command
from pg_scheduler.inspect.texts import later
from pg_scheduler.inspect.timeline import Attempt, Event, attempts_of, timeline_of
from pg_scheduler.jobs import metadata
from pg_scheduler.jobs.limits import limit_of
from pg_scheduler.jobs.model import Job
from pg_scheduler.status import JobStatus

MAX_COMMAND_LENGTH: Final = 4000
MAX_LINKS: Final = 20
MAX_CHANGES: Final = 10
MAX_TAGS: Final = 20

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

CHANGED: Final = {
    "add_job": "added it",
    "cancel_jobs": "cancelled it",
    "move_jobs": "moved it to another time",
    "retry_jobs": "retried it",
    "run_job": "ran it",
}
"""What the actions of the audit did."""

WAYS: Final = {
    "api": "in a program",
    "cli": "on the command line",
    "code": "in the code",
    "dashboard": "in the dashboard",
    "inspector": "in a program",
}
"""How changes were made."""

WITH_STATEMENTS: Final = frozenset({ReasonCode.LOCK_HELD, ReasonCode.ROW_LOCKED})
"""Reasons whose texts contain the statement of another session, which may contain arguments."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """A job and what surrounds it. What the request may not see is empty."""

    job: Job
    """The job, as far as it is visible."""
    sees_arguments: bool
    explanation: Explanation
    timeline: Sequence[Event]
    has_result: bool
    """Whether a value was kept and may be seen."""
    result: Any
    arguments: str | None
    """The arguments as ``format_arguments`` shows them; None without that function."""
    links: Mapping[str, str]
    command: str | None
    """Adds such a job in a shell; None if a value is hidden."""
    limits: Sequence[LimitRow]
    """The limits that live workers declare for the name of the job."""
    limit: str
    """The limit that it waits for; empty for none, or if it may not be seen."""
    dependencies: Dependencies
    last_runs: LastRuns
    schedule_results: Sequence[PastFire]
    """The last 20 fire times of its schedule, the newest first; empty without a schedule."""
    siblings: Siblings | None
    """The group of its error; None without an error."""
    changes: Sequence[AuditRecord]
    """The last 10 changes of the job with their actors, the newest first, without details."""
    workers: Mapping[str, str]
    """The names of its workers that have one, by their ids."""
    actions: Sequence[str]
    """Those that the request may make and that can succeed: ``cancel``, ``retry``, ``add`` (a job like
    it), ``run``, ``move``, ``delete``."""
    _trees: Mapping[str, JsonTree]

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts that its row keeps, the newest first."""
        return attempts_of(self.job)[::-1]

    @property
    def cause(self) -> Cause | None:
        """Why the job is where it is."""
        return cause_of(self.job, self.explanation, attempts_of(self.job), self.limit)

    @property
    def state(self) -> str:
        """Its status, or what kind of failed or pending job it is."""
        code = self.explanation.reasons[0].code if self.explanation.reasons else None
        if code is ReasonCode.QUARANTINED:
            return "quarantined"
        if self.job.status is not JobStatus.PENDING:
            return self.job.status.value
        if self.job.blocked_on is not None:
            return "blocked"
        if code is ReasonCode.BACKOFF:
            return "retrying"
        return "scheduled" if code is ReasonCode.NOT_DUE else "due"

    @property
    def ahead(self) -> list[Event]:
        """What is expected."""
        return [each for each in self.timeline if each.is_ahead]

    @property
    def share_done(self) -> float | None:
        """The share of its work that is done; None if it is unknown."""
        return share_done(self.job)

    @property
    def limit_key(self) -> str:
        """The key of the limit that it waits for; empty for none."""
        return limit_of(self.job.blocked_on)[1]

    @property
    def values(self) -> Mapping[str, JsonTree]:
        """The values that may be seen, as trees: ``result``, ``arguments``, ``metadata``."""
        return self._trees

    @property
    def change_texts(self) -> list[tuple[str, AuditRecord]]:
        """The changes as sentences."""
        return [
            (f"{CHANGED.get(each.action, each.action)} {WAYS.get(each.via, each.via)}", each)
            for each in self.changes
        ]

    @property
    def trace_id(self) -> str | None:
        """The trace in which the job was created."""
        return metadata.trace_id_of(self.job.metadata)

    @property
    def tags(self) -> Sequence[str]:
        """Its tags."""
        return metadata.tags_of(self.job.metadata)[:MAX_TAGS]

    def gantt(self, now: datetime) -> Gantt | None:
        """Return its attempts to scale."""
        return gantt_of(self.job, attempts_of(self.job), now)

    def end_at(self, now: datetime) -> datetime | None:
        """Return when it will end at its rate, to the minute; None if that is unknown."""
        share, since = self.share_done, self.job.started_at
        if self.job.status is not JobStatus.RUNNING or since is None or not share:
            return None
        left_s = (now - since).total_seconds() * (1 - share) / share
        end = later(now, max(left_s, 0.0))
        return None if end is None else end.replace(second=0, microsecond=0) + timedelta(minutes=1)

    def worker(self, worker_id: str | None) -> str:
        """Return the name of a worker."""
        return self.workers.get(worker_id or "", worker_id or "")


async def build(request: PageRequest) -> JobPage:
    """Read a job, its explanation and its result."""
    raw, job = await read_job(request)
    try:
        explanation = await request.inspector.explain_job(job.job_id)
    except JobNotFoundError as error:  # deleted since
        raise missing(job.job_id) from error
    result = await read_result(job, request)
    dependencies = await read_dependencies(request.inspector, raw, request.access.sees_name)
    results = await results_of(job.schedule_id, request)
    used = {job.worker_id, *(each.worker_id for each in job.errors)}
    return JobPage(
        job=job,
        sees_arguments=request.access.sees_arguments,
        explanation=_visible(explanation, raw, job, request),
        timeline=list(timeline_of(job, request.now)),
        has_result=bool(result),
        result=result[0] if result else None,
        arguments=_arguments(job, request),
        links=_links(job, request),
        command=_command(raw, request),
        limits=await limits_of(job, request),
        limit="" if request.access.visible_names is not None else limit_of(job.blocked_on)[0],
        dependencies=dependencies,
        last_runs=await last_runs_of(job, results, request),
        schedule_results=results,
        siblings=await siblings_of(job, request),
        changes=await _changes(job.job_id, request),
        workers={id_: name for id_, name in (await request.worker_names()).items() if id_ in used},
        actions=list(_actions(raw, dependencies, request)),
        _trees={part: json_tree(value) for part, value in values_of(job, result, request).items()},
    )


def _actions(job: Job, dependencies: Dependencies, request: PageRequest) -> Iterator[str]:
    """Yield the actions that the request may make and that can succeed."""
    if job.status in ALLOWED[BulkAction.CANCEL] and request.may("cancel"):
        yield "cancel"
    if job.status in ALLOWED[BulkAction.RETRY] and request.may("retry"):
        yield "retry"
    if job.finished_at is not None and request.may("add") and job_form.values_of(job, request) is not None:
        yield "add"
    if job.status in ALLOWED[BulkAction.MOVE] and request.may("move"):
        yield "move"
        if job.execution_time > request.now:
            yield "run"
    has_children = dependencies.children or dependencies.has_more_children  # they keep it from being deleted
    if job.status in ALLOWED[BulkAction.DELETE] and request.may("delete") and not has_children:
        yield "delete"


async def _changes(job_id: str, request: PageRequest) -> list[AuditRecord]:
    if request.access.visible_names is not None:
        return []
    page = await request.inspector.audit(subject=job_id, limit=MAX_CHANGES)
    return [replace(each, details={}) for each in page.items]


def _visible(explanation: Explanation, raw: Job, job: Job, request: PageRequest) -> Explanation:
    """Return the explanation without what belongs to jobs or arguments that the request may not see."""
    hidden: Collection[ReasonCode] = () if request.access.sees_arguments else WITH_STATEMENTS
    if raw.blocked_on != job.blocked_on:
        hidden = {*hidden, ReasonCode.LIMIT}
    if request.access.visible_names is not None:
        hidden = OTHERS
    reasons = [_without_others(each) if each.code in hidden else each for each in explanation.reasons]
    return replace(explanation, reasons=tuple(reasons))


def _without_others(reason: Reason) -> Reason:
    if reason.code in {ReasonCode.CANCELLED, ReasonCode.EXPIRED}:  # their remedies concern the job itself
        return replace(reason, text=OTHERS[reason.code])
    return replace(reason, text=OTHERS[reason.code], remedy=None, command=None)


def _arguments(job: Job, request: PageRequest) -> str | None:
    if request.settings.format_arguments is None or not request.access.sees_arguments:
        return None
    return str(request.settings.format_arguments(job))


def _command(raw: Job, request: PageRequest) -> str | None:
    """Return the command that adds such a job; None if the request may not see all that it contains."""
    if not sees_all(raw, request.access, request.settings.redaction):
        return None
    values = {"args": list(raw.args), "kwargs": raw.kwargs, "metadata": raw.metadata}
    try:
        options = [
            f"--{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items() if value
        ]
    except (TypeError, ValueError):  # decoded by the Scheduler to values that JSON does not have
        return None
    found = shell_command("jobs", "add", raw.job_name, *options, f"--priority={raw.priority.value}")
    return found if len(found) <= MAX_COMMAND_LENGTH else None


def _links(job: Job, request: PageRequest) -> dict[str, str]:
    """Return the links of the host that lead to a page, and not to a script."""
    if request.settings.links is None:
        return {}
    found = list(request.settings.links(job).items())[:MAX_LINKS]
    return {str(label): str(url) for label, url in found if _is_page(str(url))}


def _is_page(url: str) -> bool:
    is_local = url.startswith("/") and url[1:2] not in {"/", "\\"}
    return is_local or url.lower().startswith(("https://", "http://"))
