"""The tools that read. Each shows what the person may see, in a bounded number of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import Field

from pg_scheduler import Job, JobPriority, JobProgress, JobStatus, Worker
from pg_scheduler.base.text.values import copy_fields, json_text, plain
from pg_scheduler.dashboard.texts import short
from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.facts.worker_state import is_draining
from pg_scheduler.inspect import (
    Diagnosis,
    ErrorGroup,
    LimitState,
    Severity,
    Status,
    StepState,
    TaskState,
    UnmadeCheck,
    parse_search,
)
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.cluster import read_cluster
from pg_scheduler.inspect.status import PERIOD, STATUS_CODES, describe_status
from pg_scheduler.inspect.store.inspections import MAX_PARENTS
from pg_scheduler.inspect.timeline import timeline_of
from pg_scheduler.jobs.worker_report import ReportedHealth

from ..doctor import RUNBOOK, FoundProblem
from ..job_show import ParentJob
from ..jobs import ExplainedJob
from ..values import read_since
from .tools import Arguments, NoArguments, Session, Tool

MAX_PAGE_LENGTH: Final = 100
"""Objects of a page, so that a result stays short enough for an assistant."""

MAX_ERROR_LENGTH: Final = 300
"""Characters of an error in a list."""

MAX_STEPS: Final = 100
"""Steps of a job that are shown."""

MAX_VALUE_LENGTH: Final = 30_000
"""Characters, as JSON, of the arguments and the metadata of a job, and of its result."""

Limit = Annotated[int, Field(ge=1, le=MAX_PAGE_LENGTH, description="Objects of the page.")]
After = Annotated[str | None, Field(description="The next of the page before; null for the first page.")]
JobId = Annotated[str, Field(min_length=1, description="The id of a job.")]


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The findings of the doctor."""

    severity: Severity
    """The severity of the worst finding."""
    summary: str
    """The numbers of findings and checks."""
    findings: Sequence[FoundProblem]
    """The findings, the most severe first."""
    are_findings_capped: bool
    """Whether there are more."""
    not_made: Sequence[UnmadeCheck]
    """The checks that were not made, or only in part, and why."""
    are_not_made_capped: bool
    """Whether there are more."""


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job in a list."""

    job_id: str
    job_name: str
    status: JobStatus
    execution_time: datetime
    """When it is due."""
    attempt: int
    """The number of its claims so far."""
    retry_count: int
    max_retries: int
    blocked_on: str | None
    """What it waits for: a limit, a share or other jobs."""
    schedule_id: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker_id: str | None
    error_message: str | None
    """The beginning of its last error."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """The jobs that a search found."""

    items: Sequence[JobSummary]
    """The jobs."""
    next: str | None
    """The after of the following page; null if the search is complete."""
    summary: str
    """The numbers of jobs searched and found."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A point in the life of a job."""

    at: datetime | None
    title: str
    worker: str | None
    error: str | None
    traceback: str | None
    log: Sequence[str]
    """The last lines that the attempt logged."""
    is_ahead: bool
    """Whether it is expected, and has not happened yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetails(JobSummary):
    """A job, its steps and what happened to it."""

    priority: JobPriority
    crash_count: int
    """Workers that died while they ran it."""
    expires_at: datetime | None
    fire_time: datetime | None
    unique_key: str | None
    progress: JobProgress | None
    sees_arguments: bool
    """Whether arguments, metadata, the result, values of steps and log lines are shown; otherwise they are
    null or empty."""
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    no_args_reason: str | None
    """Why the arguments could not be read."""
    result: Any
    """The value of a completed job."""
    no_result_reason: str | None
    """Why a completed job has no value."""
    parents: Sequence[ParentJob]
    """The unfinished jobs that it waits for."""
    are_parents_capped: bool
    """Whether there may be more."""
    steps: Sequence[StepState]
    """The last 100 of its first 1,000 durable steps and signals, the oldest of them first."""
    are_steps_capped: bool
    """Whether there are others."""
    timeline: Sequence[JobEvent]
    """Its creation, due time, attempts and end, and what is ahead. Of the attempts that did not simply
    complete, the newest 10."""
    is_timeline_capped: bool
    """Whether events before these are left out."""


@dataclass(frozen=True, slots=True)
class ErrorList:
    """The errors of failed and expired jobs."""

    items: Sequence[ErrorGroup]
    """The groups, that of the newest error first."""
    is_capped: bool
    """Whether there may be more."""
    summary: str
    """The numbers of groups and jobs."""


@dataclass(frozen=True, slots=True)
class ScheduleSummary:
    """A schedule, without its arguments."""

    schedule_id: str
    owner: str
    """`code` if code declares it."""
    task: str
    described: str
    """Its trigger in words."""
    next_fire_at: datetime | None
    last_fire_at: datetime | None
    last_job_id: str | None
    paused_at: datetime | None
    paused_until: datetime | None
    note: str | None
    """Why it was paused."""
    runs: int
    skipped: int
    missed: int
    failures: int | None
    """Final failures in a row; null without pause_after_failures."""
    finished_at: datetime | None
    retired_at: datetime | None
    version: int


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """A page of schedules, by id."""

    items: Sequence[ScheduleSummary]
    """The schedules."""
    next: str | None
    """The after of the following page; null at the end."""


@dataclass(frozen=True, slots=True)
class TaskPage:
    """The names that workers claim, that have due, blocked or running jobs, or that are paused."""

    items: Sequence[TaskState]
    """The names of the page, sorted."""
    next: str | None
    """The after of the following page; null at the end."""
    is_capped: bool
    """Whether counting stopped at a bound, so that there may be names on no page, and numbers are higher."""
    summary: str
    """The numbers of names and jobs of all pages."""


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """A worker."""

    worker_id: str
    is_alive: bool
    state: str | None
    is_draining: bool
    """Whether it was requested to claim no more jobs."""
    running_jobs: int
    max_concurrent_jobs: int
    """Its slots."""
    hostname: str
    pid: int
    version: str
    """The version of pg_scheduler."""
    role: str
    identity: str | None
    started_at: datetime
    lease_until: datetime
    loop_lag_s: float | None
    """Seconds for which its event loop kept a callback waiting at the last heartbeat."""


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """The workers that have a row, the oldest first."""

    items: Sequence[WorkerSummary]
    """The workers."""
    is_capped: bool
    """Whether there are more."""


@dataclass(frozen=True, slots=True)
class LimitPage:
    """The limits that live workers declare."""

    items: Sequence[LimitState]
    """The limits, by name."""
    is_capped: bool
    """Whether there may be more, or counting stopped at a bound."""
    summary: str
    """The numbers of limits and waiting jobs."""


async def get_status(session: Session, _: NoArguments) -> Status:
    """Return in sentences whether all is well. Begin here.

    The result has the figures of jobs, workers, schedules, tasks, limits and tables.
    """
    figures = await read_cluster(tables_of(session.reads).reads)
    statistics = await session.reads.statistics_by_time(PERIOD, width=PERIOD)
    diagnosis = await session.reads.doctor(only=STATUS_CODES)
    return describe_status(figures, statistics, _visible(diagnosis, session))


def _visible(diagnosis: Diagnosis, session: Session) -> Diagnosis:
    """Return a diagnosis without evidence that the person may not see."""
    findings = tuple(
        finding
        if session.visibility.sees_evidence(finding)
        else replace(finding, evidence="the evidence is hidden, since it may contain arguments")
        for finding in diagnosis.findings
    )
    return replace(diagnosis, findings=findings)


class DoctorArguments(Arguments):
    """The arguments of `run_doctor()`."""

    only: Annotated[
        tuple[str, ...], Field(description="The codes to check, such as LATE; empty for all.")
    ] = ()


async def run_doctor(session: Session, arguments: DoctorArguments) -> DoctorReport:
    """Check the database, the tables, workers, jobs and schedules.

    The findings have their evidence and their remedies.
    """
    diagnosis = _visible(await session.reads.doctor(only=arguments.only), session)
    findings = [
        copy_fields(FoundProblem, finding, runbook=RUNBOOK + finding.anchor) for finding in diagnosis.findings
    ]
    return DoctorReport(
        diagnosis.severity,
        diagnosis.summary,
        findings,
        are_findings_capped=False,
        not_made=diagnosis.not_made,
        are_not_made_capped=False,
    )


class SearchArguments(Arguments):
    """The arguments of `search_jobs()`."""

    where: Annotated[
        str,
        Field(
            description="Terms that all must match, such as: "
            "status:failed name:mail.* error:~timeout finished:>-1d. "
            "A hyphen before a term excludes its jobs. "
            "Values of status: pending, due, running, scheduled, blocked, sleeping, awaiting, retrying, "
            "completed, failed, expired, cancelled; several with commas. "
            "Times without a zone are in UTC. Empty for all jobs."
        ),
    ] = ""
    limit: Limit = 20
    after: After = None


async def search_jobs(session: Session, arguments: SearchArguments) -> JobPage:
    """Return a page of the jobs that match a search.

    A page examines a bounded number of jobs, so it can be short or empty although next is not null.
    """
    check_search(session, arguments.where)
    page = await session.reads.search_jobs(
        arguments.where, limit=arguments.limit, after=arguments.after, tz=UTC
    )
    return JobPage([summary_of(session, job) for job in page.items], page.next, page.summary)


def check_search(session: Session, where: str) -> None:
    """Reject a search that is invalid, or whose result would show what the person may not see.

    Raises:
        SearchError: It is rejected.
    """
    search = parse_search(where, now=datetime.now(UTC), tz=UTC)
    session.visibility.redaction.check_search(search, session.access)


def summary_of(session: Session, job: Job) -> JobSummary:
    """Return a job as lists have it."""
    job = session.visibility.job(job)
    error = None if job.error_message is None else short(job.error_message, MAX_ERROR_LENGTH)
    return copy_fields(JobSummary, job, error_message=error)


class JobArguments(Arguments):
    """The arguments of a tool about one job."""

    job_id: JobId


async def get_job(session: Session, arguments: JobArguments) -> JobDetails:
    """Return a job with its steps, its attempts and their errors, and what is ahead of it."""
    job_id = arguments.job_id
    row = await session.reads.get_job(job_id)
    if row is None:
        raise JobNotFoundError(job_id)
    job, sees_arguments = session.visibility.job(row), session.access.sees_arguments
    no_args_reason = job.no_args_reason if sees_arguments else None
    excess = _excess_of([job.args, job.kwargs, job.metadata])
    if excess is not None:
        no_args_reason = excess
    shows_arguments = sees_arguments and excess is None
    result, no_result_reason = None, None
    if row.status is JobStatus.COMPLETED and sees_arguments:
        kept_result = await session.reads.get_result(job_id)
        if kept_result is not None:
            result = session.visibility.redaction.value(kept_result.value)
            no_result_reason = _excess_of(result) or kept_result.no_value_reason
            result = None if _excess_of(result) else result
    step_list = await session.reads.steps(job_id)
    steps = [session.visibility.step(step) for step in step_list.items]
    # Without a reason in blocked_on, the job waits for nothing but its due time, so for no other job.
    parents = await session.reads.parents(job_id) if row.blocked_on is not None else {}
    events = timeline_of(job, datetime.now(UTC), steps)
    return copy_fields(
        JobDetails,
        job,
        sees_arguments=sees_arguments,
        args=job.args if shows_arguments else None,
        kwargs=job.kwargs if shows_arguments else None,
        metadata=job.metadata if shows_arguments else None,
        no_args_reason=no_args_reason,
        result=result,
        no_result_reason=no_result_reason,
        parents=[ParentJob(parent, status) for parent, status in parents.items()],
        are_parents_capped=len(parents) >= MAX_PARENTS,
        steps=steps[-MAX_STEPS:],
        are_steps_capped=step_list.is_capped or len(steps) > MAX_STEPS,
        timeline=[copy_fields(JobEvent, event) for event in events],
        is_timeline_capped=False,
    )


def _excess_of(value: object) -> str | None:
    """Return why a value is not shown, if it is too long; None if it is short enough."""
    length = len(json_text(plain(value)))
    if length <= MAX_VALUE_LENGTH:
        return None
    return f"as JSON, this has {length:,} characters, and a tool shows at most {MAX_VALUE_LENGTH:,}"


async def explain_job(session: Session, arguments: JobArguments) -> ExplainedJob:
    """Return why a job runs, waits or has ended, and what people can do about it."""
    explanation = await session.reads.explain_job(arguments.job_id)
    explanation = session.visibility.explanation(explanation, sees_task=True)
    return copy_fields(ExplainedJob, explanation, job_id=arguments.job_id)


class ErrorArguments(Arguments):
    """The arguments of `list_errors()`."""

    since: Annotated[
        str | None,
        Field(description="Only jobs that failed since a time, or so long ago: 1h, 7d. Null for any time."),
    ] = None
    limit: Limit = 20


async def list_errors(session: Session, arguments: ErrorArguments) -> ErrorList:
    """Return the errors of failed and expired jobs, grouped by task and text apart from numbers and ids."""
    since = None if arguments.since is None else read_since("since", arguments.since, UTC)
    groups = await session.reads.error_groups(since=since, limit=arguments.limit)
    return ErrorList(session.visibility.groups(groups.items), groups.is_capped, groups.summary)


class PageArguments(Arguments):
    """The arguments of a tool that returns a page."""

    limit: Limit = 50
    after: After = None


async def list_schedules(session: Session, arguments: PageArguments) -> SchedulePage:
    """Return a page of schedules, by id, with their triggers, next fire times, pauses and failures."""
    limit = arguments.limit
    # One schedule more than the page has shows whether there are more.
    schedules = await session.reads.schedules(limit=limit + 1, after=arguments.after)
    items = [copy_fields(ScheduleSummary, schedule) for schedule in schedules[:limit]]
    return SchedulePage(items, items[-1].schedule_id if len(schedules) > limit else None)


async def list_tasks(session: Session, arguments: PageArguments) -> TaskPage:
    """Return a page of the names that workers claim, that have jobs to do, or that are paused.

    These jobs are due, blocked or running.
    """
    tasks = await session.reads.tasks()
    after, limit = arguments.after, arguments.limit
    following = [task for task in tasks.items if after is None or task.name > after]
    items = following[:limit]
    next_name = items[-1].name if len(following) > limit else None
    is_capped = tasks.is_capped or tasks.is_blocked_capped or tasks.are_workers_capped
    return TaskPage(items, next_name, is_capped, tasks.summary)


async def list_workers(session: Session, _: NoArguments) -> WorkerPage:
    """Return the workers: their states, slots and running jobs, and whether their leases are valid."""
    return WorkerPage([_worker_summary(worker) for worker in await session.reads.workers()], is_capped=False)


def _worker_summary(worker: Worker) -> WorkerSummary:
    """Return a worker without its settings and its health, which may mention jobs."""
    lag_s = ReportedHealth.of(worker.health).loop_lag_s
    return copy_fields(WorkerSummary, worker, is_draining=is_draining(worker), loop_lag_s=lag_s)


async def list_limits(session: Session, _: NoArguments) -> LimitPage:
    """Return the limits that live workers declare, what is in use, and how many jobs wait for them."""
    limits = await session.reads.limits()
    return LimitPage(limits.items, limits.is_capped or limits.is_waiting_capped, limits.summary)


SMALLER_PAGE: Final = "pass a smaller limit"
"""How to ask for less of a tool that returns pages."""

READS: Final = (
    Tool(get_status, "Is all well?", NoArguments, Status),
    Tool(run_doctor, "Examine everything", DoctorArguments, DoctorReport),
    Tool(search_jobs, "Search jobs", SearchArguments, JobPage, remedy=SMALLER_PAGE),
    Tool(get_job, "Show a job", JobArguments, JobDetails),
    Tool(explain_job, "Explain a job", JobArguments, ExplainedJob),
    Tool(list_errors, "List errors", ErrorArguments, ErrorList),
    Tool(list_schedules, "List schedules", PageArguments, SchedulePage, remedy=SMALLER_PAGE),
    Tool(list_tasks, "List tasks", PageArguments, TaskPage, remedy=SMALLER_PAGE),
    Tool(list_workers, "List workers", NoArguments, WorkerPage),
    Tool(list_limits, "List limits", NoArguments, LimitPage),
)
