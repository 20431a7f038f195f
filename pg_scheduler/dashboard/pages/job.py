"""The page of one job: why it is where it is, its attempts, its values, and the jobs around it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.dashboard.context import NotFoundError, PageRequest, View
from pg_scheduler.dashboard.gantt import gantt_of
from pg_scheduler.dashboard.job_rows import row_of, seconds_left, share_done
from pg_scheduler.dashboard.json_tree import arguments_tree, json_tree
from pg_scheduler.dashboard.pages import job_forms
from pg_scheduler.dashboard.pages.cause import cause_of
from pg_scheduler.dashboard.pages.job_context import (
    LastRuns,
    last_runs_of,
    limits_of,
    results_of,
    siblings_of,
)
from pg_scheduler.dashboard.pages.job_values import (
    read_job,
    read_published,
    read_result,
    read_steps,
    values_of,
    waiting_signals,
)
from pg_scheduler.dashboard.pages.limit_wait import LONG, limit_wait_of
from pg_scheduler.dashboard.pages.limits import is_waiting_capped
from pg_scheduler.dashboard.pages.look import look_at
from pg_scheduler.dashboard.workflow import MAX_LISTED, links_of, own_steps, workflow_of
from pg_scheduler.errors import JobNotFoundError
from pg_scheduler.facts.job_state import state_of
from pg_scheduler.inspect import AuditRecord, Explanation, StepState
from pg_scheduler.inspect.bulk import ALLOWED
from pg_scheduler.inspect.dependencies import Dependencies, read_dependencies
from pg_scheduler.inspect.texts import command as shell_command
from pg_scheduler.inspect.texts import counted, later, length, listed
from pg_scheduler.inspect.timeline import SUSPENDED, attempts_of, is_retry_next, timeline_of
from pg_scheduler.inspect.workflows import RESULT, Family, read_family
from pg_scheduler.jobs import metadata
from pg_scheduler.jobs.keys import readable
from pg_scheduler.jobs.limits import limit_of
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.sequences import BLOCKED_BY_SEQUENCE
from pg_scheduler.jobs.step_values import CHILD, SLEEP
from pg_scheduler.jobs.worker_report import ReportedHealth

STOPS: Final[Mapping[str, str]] = {
    "cancelled": "Cancelled",
    "lost": "Its worker lost the job",
    "shutdown": "Its worker shuts down",
    "timeout": "Its timeout has passed",
}
"""Why an attempt was to stop."""

MAX_COMMAND_LENGTH: Final = 4000
MAX_LINKS: Final = 20
MAX_CHANGES: Final = 10
MAX_TAGS: Final = 20
SHOWN_PARENTS: Final = 5

PRECISE_S: Final = 120.0
"""If a job ends in less than this many seconds, the estimate of its end is rounded to a second."""


@dataclass(frozen=True, slots=True)
class RunningOn:
    """An attempt of the job that was to stop, and whose code runs on.

    Attributes:
        stop: Why it was to stop.
        since: When it was to stop.
        in_thread: Whether its code runs in a thread.
        has_slot: Whether it has a slot of its worker.
    """

    stop: str
    since: datetime
    in_thread: bool
    has_slot: bool
    worker_id: str
    worker_name: str


async def build(request: PageRequest) -> View:
    """Read a job and what surrounds it. What the request may not see is empty."""
    # ``raw`` is the job as its row has it, ``job`` the job as far as the request may see it.
    raw, job = await read_job(request)
    try:
        explanation = await request.inspector.explain_job(job.job_id)
    except JobNotFoundError as error:  # The job was deleted after read_job() had read it.
        raise NotFoundError.of("job", job.job_id) from error
    result = await read_result(job, request)
    dependencies = await read_dependencies(request.inspector, raw, request.access.sees_name)
    steps = await read_steps(job.job_id, request)
    family = await read_family(request.inspector, job.job_id, steps, request.access.sees_name)
    results = await results_of(job.schedule_id, request)
    worker_ids = {job.worker_id, *(error.worker_id for error in job.errors)}
    shown_explanation = await _visible(explanation, raw, request)
    attempts = attempts_of(job, steps)
    names = await request.argument_names(job.job_name, job.args)
    limit, limit_key = map(readable, limit_of(job.blocked_on))
    # Jobs of hidden names may hold the limit too. So a request that sees only some names (``names=``) has
    # neither the name of the limit nor a link to its page.
    limit = limit if request.access.visible_names is None else ""
    limit_wait = await limit_wait_of(raw, request)
    state = state_of(job, request.now)
    parents = await _parents(job, dependencies, request)
    child_title = _child_title(job, family, parents, request.now)
    arguments = await _arguments_of(dependencies, family, request)
    workflow = workflow_of(
        job,
        steps,
        family,
        attempts,
        now=request.now,
        arguments=arguments,
        expanded=request.parameters.get("step", ""),
    )
    last_runs = await last_runs_of(job, results, request)
    gantt = gantt_of(job, attempts, request.now, steps)
    # The values are shown as trees, and the arguments under the names of their parameters.
    trees = {
        part: arguments_tree(job.args, job.kwargs, names) if part == "arguments" else json_tree(value)
        for part, value in values_of(job, result, request).items()
    }
    # One bar of a running attempt shows nothing that the text above it does not state.
    if gantt is not None and job.finished_at is None and len(gantt.bars) < 2:
        gantt = None
    return View(
        job=job,
        sees_arguments=request.access.sees_arguments,
        explanation=shown_explanation,
        timeline=list(timeline_of(job, request.now, steps)),
        has_result=bool(result),
        result=result[0] if result else None,
        steps=own_steps(steps),
        children=family.children,
        owner=family.owner,
        arguments=_arguments(job, request),
        links=_links(job, request),
        command=_command(raw, request),
        limits=await limits_of(job, request),
        limit=limit,
        dependencies=dependencies,
        last_runs=last_runs,
        schedule_results=results,
        siblings=await siblings_of(raw, request),
        changes=await _changes(job.job_id, request),
        workers={id_: name for id_, name in (await request.worker_names()).items() if id_ in worker_ids},
        look=await look_at(raw, request),
        runs_on=await _runs_on(job, request),
        actions=list(_actions(raw, dependencies, steps, request)),
        _state=state,
        _cause=cause_of(
            job,
            shown_explanation,
            attempts,
            limit,
            names_holders=limit_wait is not None,
            parents_title=child_title or _parents_title(dependencies),
            waits=workflow.open_steps,
        ),
        _waits_for_children=bool(child_title),
        _is_retry_next=is_retry_next(job),
        _parent_states={parent.job_id: state_of(parent, request.now) for parent in parents},
        _attempts=[attempt for attempt in attempts[::-1] if attempt.outcome != SUSPENDED],
        _gantt=gantt,
        _family=family,
        _links=links_of(job, state, dependencies, family, arguments),
        _workflow=workflow,
        _attempt_count=attempts[-1].number if attempts else 0,
        _waiting=[step.name for step in waiting_signals(steps)],
        _end_at=_end_at(job, request.now),
        _times_out_at=_times_out_at(job),
        _is_slow=_is_slow(job, last_runs, request.now),
        _is_long=_is_long(job, last_runs, request.now),
        _is_waiting_capped=await is_waiting_capped(request),
        _limit_key=limit_key,
        _limit_wait=limit_wait,
        _values=trees,
        _published=await read_published(job.job_id, request),
        _tags=metadata.tags_of(job.metadata)[:MAX_TAGS],
        _trace_id=metadata.trace_id_of(job.metadata),
    )


async def _runs_on(job: Job, request: PageRequest) -> list[RunningOn]:
    """Return the attempts of a job whose code runs on after they were to stop, as live workers report it."""
    running_attempts = []
    for worker in await request.workers():
        if not worker.is_alive:
            continue
        for attempt in ReportedHealth.of(worker.health).abandoned:
            if attempt.job_id == job.job_id:
                running_attempt = RunningOn(
                    stop=STOPS.get(attempt.reason, "It was to stop"),
                    since=attempt.since,
                    in_thread=attempt.in_thread,
                    has_slot=attempt.has_slot,
                    worker_id=worker.worker_id,
                    worker_name=worker.identity or worker.worker_id,
                )
                running_attempts.append(running_attempt)
    return running_attempts


async def _parents(job: Job, dependencies: Dependencies, request: PageRequest) -> list[Job]:
    """Return the first jobs that a pending job waits for, read in full.

    The dependencies have only the status of these jobs, and not their retries and times.
    """
    if job.status is not JobStatus.PENDING or not dependencies.parents:
        return []
    ids = [parent.job_id for parent in dependencies.parents[:SHOWN_PARENTS]]
    return list((await request.inspector.get_jobs(ids)).values())


async def _arguments_of(dependencies: Dependencies, family: Family, request: PageRequest) -> dict[str, str]:
    """Return the arguments of linked jobs and of the first children of each step, in one line each.

    There are none if the request may not see arguments.
    """
    ids = [linked_job.job_id for linked_job in (*dependencies.parents, *dependencies.children)]
    # If a step has several children, their arguments distinguish them. The arguments of the first ones are
    # read: MAX_LISTED children of each of MAX_LISTED steps.
    groups = [children for children in family.children.values() if len(children) > 1]
    ids += [child.job_id for children in groups[:MAX_LISTED] for child in children[:MAX_LISTED]]
    if not ids or not request.access.sees_arguments:
        return {}
    jobs = await request.inspector.get_jobs(ids)
    return {job_id: row_of(job, request).arguments or "" for job_id, job in jobs.items()}


def _child_title(job: Job, family: Family, parents: Sequence[Job], now: datetime) -> str:
    """Return a heading that states for which of its children a suspended job waits; empty if for none.

    ``parents`` are the jobs for which it waits. In the dependencies of jobs, these are called parents, even
    if the job itself has added them as its children.
    """
    if job.status is not JobStatus.PENDING or job.suspended_by != CHILD:
        return ""
    open_children = family.open_children
    # Children that are hidden or were not read cannot be named or counted.
    if not open_children or family.has_more_children:
        return "Waits for its children"
    if len(open_children) > 1:
        return _children_title(family)
    (child,) = open_children
    retries = [
        f" (retry {parent.retry_count} of {parent.max_retries} in {length(parent.execution_time - now)})"
        for parent in parents
        if parent.job_id == child.job_id and state_of(parent, now) == "retrying"
    ]
    return f"Waits for its child {child.step}{''.join(retries)}"


def _children_title(family: Family) -> str:
    """Return the heading of a job that waits for several children: their steps by name, or a number."""
    open_count = len(family.open_children)
    # A dict instead of a set keeps the order of the steps.
    open_steps = list(dict.fromkeys(child.step for child in family.open_children))
    child_counts = {step: len(family.children[step]) for step in open_steps}
    first_step = open_steps[0]
    if len(open_steps) == 1 and child_counts[first_step] > open_count:
        return f"Waits for {open_count:,} of the {child_counts[first_step]:,} children of {first_step}"
    # Each of these steps has one child, so the names of the steps identify the children.
    if set(child_counts.values()) == {1}:
        return f"Waits for its {len(open_steps):,} children {listed(open_steps)}"
    return f"Waits for its {open_count:,} children"


def _parents_title(dependencies: Dependencies) -> str:
    """Return a heading that states for which other jobs a job waits; empty if they are not all known."""
    parents = dependencies.parents
    if not parents or dependencies.has_more_parents:
        return ""
    if len(parents) > 1:
        return f"Waits for {counted(len(parents), 'other job')}"
    return f"Waits for {parents[0].job_name or parents[0].job_id}"


def _end_at(job: Job, now: datetime) -> datetime | None:
    """Return when a job will end at its present rate; None if that is unknown.

    The time is rounded down to a second. If it is two minutes away or more, it is rounded down to 15 seconds,
    so that updates of the page send it less often.
    """
    left_s = seconds_left(job.started_at, share_done(job), now)
    if job.status is not JobStatus.RUNNING or left_s is None:
        return None
    end = later(now, left_s)
    if end is None:  # The end is later than the latest time that there is.
        return None
    step_s = 1 if left_s < PRECISE_S else 15
    return end.replace(microsecond=0) - timedelta(seconds=end.second % step_s)


def _times_out_at(job: Job) -> datetime | None:
    """Return when the attempt of a running job times out; None without an attempt or a timeout."""
    if job.status is not JobStatus.RUNNING or job.started_at is None or not job.timeout:
        return None
    return later(job.started_at, job.timeout.total_seconds())


def _is_slow(job: Job, last_runs: LastRuns, now: datetime) -> bool:
    """Return whether the time since the last start of a job exceeds 95 % of the attempts of its task.

    The page uses the result only for a job that runs.
    """
    if job.started_at is None or last_runs.p95_s is None:
        return False
    return (now - job.started_at).total_seconds() > last_runs.p95_s


def _is_long(job: Job, last_runs: LastRuns, now: datetime) -> bool:
    """Return whether a running job has run so much longer than usual that it probably does not end soon."""
    if job.status is not JobStatus.RUNNING or job.started_at is None or not last_runs.p50_s:
        return False
    return (now - job.started_at).total_seconds() > LONG * last_runs.p50_s


def _actions(
    job: Job,
    dependencies: Dependencies,
    steps: Sequence[StepState],
    request: PageRequest,
) -> Iterator[str]:
    """Yield the actions that the request may make and that can succeed, in the order of their buttons."""
    if job.status in ALLOWED["cancel"] and request.may("cancel"):
        yield "cancel"
    can_retry = job.status in ALLOWED["retry"] and request.may("retry")
    # "repeat" is a retry that also repeats steps of the job, so it needs a step that the job itself has run.
    if can_retry and any(step.kind != RESULT for step in steps):
        yield "repeat"
    if can_retry:
        yield "retry"
    if job.finished_at is not None and job_forms.can_add_like(job, request):
        yield "add"
    if not steps and job_forms.can_change(job, request):
        yield "change"
    if job.status in ALLOWED["move"] and request.may("move"):
        yield from _changes_of_time(job, request.now)
    if steps and job.finished_at is None and request.may("signal"):
        yield "signal"
    # A job for which other jobs wait (its children) cannot be deleted.
    has_children = dependencies.children or dependencies.has_more_children
    if job.status in ALLOWED["delete"] and request.may("delete") and not has_children:
        yield "delete"


def _changes_of_time(job: Job, now: datetime) -> Iterator[str]:
    """Yield the actions that change when a pending job starts or expires."""
    can_expire = job.expires_at is not None and job.expires_at > now
    # "keep" removes the expiry of a job that waits already, because it is blocked, or due and not yet
    # started.
    waits_already = job.blocked_on is not None or job.execution_time <= now
    if can_expire and waits_already:
        yield "keep"
    if (job.blocked_on or "").startswith(BLOCKED_BY_SEQUENCE):
        yield "front"
    # An attempt of a suspended job that was moved would come to the same step, and wait again.
    if job.suspended_by is None:
        yield "move"
        if job.execution_time > now:
            yield "run"
    if job.suspended_by == SLEEP and job.blocked_on is None:
        yield "wake"


async def _changes(job_id: str, request: PageRequest) -> list[AuditRecord]:
    """Return the newest audit records about a job, without details, which may contain arguments.

    There are none for a request that sees only some names, because it may not read the audit.
    """
    if request.access.visible_names is not None:
        return []
    page = await request.inspector.audit(subject=job_id, limit=MAX_CHANGES)
    return [replace(record, details={}) for record in page.items]


async def _visible(explanation: Explanation, job: Job, request: PageRequest) -> Explanation:
    """Return the explanation of the state of a job, as its row has it, as far as the request may see it."""
    sees_task = True
    if request.access.visible_names is not None:
        names_of_tasks = await request.names_of_tasks([job.job_name])
        # A task can have several names. A reason about the task concerns the jobs of all these names.
        sees_task = all(map(request.access.sees_name, names_of_tasks[job.job_name]))
    return request.visibility.explanation(explanation, sees_task=sees_task)


def _arguments(job: Job, request: PageRequest) -> str | None:
    """Return the arguments as the text of ``format_arguments=``, or why the arguments could not be read.

    None if the request may not see arguments, or the page shows them as JSON.
    """
    if not request.access.sees_arguments:
        return None
    if job.no_args_reason is not None:
        return job.no_args_reason
    if request.settings.format_arguments is None:
        return None
    return str(request.settings.format_arguments(job))


def _command(raw: Job, request: PageRequest) -> str | None:
    """Return the shell command that adds a job with the same values; None if some are hidden or too long."""
    if not request.sees_all(raw):
        return None
    values = {"args": list(raw.args), "kwargs": raw.kwargs, "metadata": raw.metadata}
    try:
        options = [
            f"--{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items() if value
        ]
    except (TypeError, ValueError):
        # The Scheduler has decoded the arguments to objects that JSON does not have.
        return None
    command = shell_command("jobs", "add", raw.job_name, *options, f"--priority={raw.priority.value}")
    return command if len(command) <= MAX_COMMAND_LENGTH else None


def _links(job: Job, request: PageRequest) -> dict[str, str]:
    """Return the links that ``links=`` returns, without addresses that are no pages (``javascript:``)."""
    if request.settings.links is None:
        return {}
    links = list(request.settings.links(job).items())[:MAX_LINKS]
    return {str(label): str(url) for label, url in links if _is_page(str(url))}


def _is_page(url: str) -> bool:
    """Return whether an address leads to a page: by HTTP, or by a path of this host."""
    # Browsers take an address that begins with "//" or "/\" for one of another host.
    is_local = url.startswith("/") and url[1:2] not in {"/", "\\"}
    return is_local or url.lower().startswith(("https://", "http://"))
