"""The list of workflows: jobs with steps that run, wait or have failed, by task and by step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.base.sqltext import is_storable
from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.dashboard.context import PageRequest, RejectedError, View
from pg_scheduler.dashboard.job_rows import row_of
from pg_scheduler.dashboard.pages.jobs import extent_in
from pg_scheduler.dashboard.positions import read_after, write_next
from pg_scheduler.facts.job_state import state_of
from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.positions import MAX_LENGTH
from pg_scheduler.inspect.store.workflows import (
    FIRST_OPEN,
    MAX_COUNTED,
    MAX_OPEN,
    OpenCount,
    StepProgress,
)
from pg_scheduler.inspect.texts import count, term
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.step_values import CHILD, SIGNAL, SLEEP

KINDS_OF_TABS: Final[Mapping[str, str]] = {"awaiting": SIGNAL, "sleeping": SLEEP, "children": CHILD}
"""The kinds of the steps that suspend the jobs of a tab. A search finds those of the other tabs."""

TABS: Final[Mapping[str, str]] = {
    "": "All",
    "running": "Running",
    "awaiting": "Awaiting",
    "sleeping": "Sleeping",
    "children": "Blocked",
    "retrying": "Retrying",
    "failed": "Failed",
}
"""The labels of the tabs: the words of the states that the rows have."""

SEARCHED_TABS: Final = tuple(tab for tab in TABS if tab and tab not in KINDS_OF_TABS)

PAGE_LENGTH: Final = 50
MAX_EXAMINED: Final = 200
"""The maximum number of open steps that are read for one page."""

COUNTS_AGE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class WorkflowRow:
    """A job with steps."""

    job_id: str
    name: str
    arguments: str | None
    """Its arguments in one line; None if the request may not see them."""
    state: str
    step: str | None
    """The step in which it waits or has failed; None for none."""
    kind: str | None
    """The kind of that step; ``failed`` for one whose function raised the error of the last attempt."""
    until: datetime | None
    """When that step ends at the latest, or when the job is retried."""
    steps: str
    """The number of its steps."""
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a list, and the position of the following one; None at its end."""

    rows: Sequence[WorkflowRow]
    next: str | None
    number: str = ""
    """The number of the jobs of the whole list; empty if it is unknown."""
    extent: str = ""
    """How many jobs were examined; empty if these are all, or if the request may not see that."""


class Further(NamedTuple):
    """A tab whose list continues behind the page."""

    label: str
    state: str
    extent: str
    next: str | None


async def build(request: PageRequest) -> View:
    """Return a page of the workflows (jobs with steps) in a state, or of all of them."""
    state = request.choice("state", TABS)
    task, name = request.parameters.get("task", ""), request.parameters.get("name", "")
    counts = await _counts(request)
    # The list of all workflows has one page only, so it has no position.
    after = await read_after(request) if state else None
    # The list of all workflows consists of those of the other tabs.
    shown_tabs = [state] if state else [tab for tab in TABS if tab]
    parts = {tab: await _part(tab, task, name, after, request) for tab in shown_tabs}
    rows = [row for part in parts.values() for row in part.rows]
    if not state:
        rows = sorted(rows, key=lambda row: row.created_at, reverse=True)[:PAGE_LENGTH]
    # Without rows of counts, no job is suspended. Without the right to see them, the numbers are unknown.
    numbers = {tab: "" if counts is None else _number(counts, tab) for tab in KINDS_OF_TABS}
    for tab in SEARCHED_TABS:
        # The number of a whole list is known from its first page, unless the page is restricted to some jobs.
        is_whole_list = tab in parts and not (task or name or after)
        numbers[tab] = parts[tab].number if is_whole_list else await _searched_number(tab, request)
    kind = KINDS_OF_TABS.get(state)
    return View(
        state=state,
        task=task,
        name=name,
        tabs=[(label, numbers.get(tab, ""), tab, tab == state) for tab, label in TABS.items()],
        steps=[
            (step.name, count(step.jobs, is_capped=step.examined >= MAX_OPEN), _tab_of(step.kind))
            for step in counts or ()
            # The count of all steps of a kind has no name.
            if step.name is not None and (kind is None or step.kind == kind)
        ],
        items=rows,
        next=await write_next(request, parts[state].next if state else None),
        further=[
            Further(TABS[tab], tab, part.extent, await write_next(request, part.next))
            for tab, part in parts.items()
            if part.next is not None
        ],
        is_full=len(rows) >= PAGE_LENGTH,
        after=request.parameters.get("after") or None,
    )


async def _counts(request: PageRequest) -> Sequence[OpenCount] | None:
    """Return the numbers of suspended jobs; None if the request may not see all names."""
    if request.access.visible_names is not None:
        return None
    return await request.read_shared(_read_counts, age_s=COUNTS_AGE_S)


async def _read_counts(request: PageRequest) -> Sequence[OpenCount]:
    """Count the jobs that steps have suspended; requests share the result."""
    return await tables_of(request.inspector).reads.workflows.count_open()


def _tab_of(kind: str) -> str:
    """Return the tab of the jobs that a step of this kind has suspended."""
    return next(tab for tab, step_kind in KINDS_OF_TABS.items() if step_kind == kind)


def _number(counts: Sequence[OpenCount], tab: str) -> str:
    """Return the number of the suspended jobs of a tab as a text."""
    for row in counts:
        # The row without a name has the count of all steps of a kind.
        if row.name is None and row.kind == KINDS_OF_TABS.get(tab):
            return count(row.jobs, is_capped=row.examined >= MAX_OPEN)
    # A kind without any open step has no row.
    return "0"


async def _searched_number(tab: str, request: PageRequest) -> str:
    """Return the number of the jobs of a tab that a search finds; requests share the read."""
    return await request.read_shared(
        _read_number, tab, age_s=COUNTS_AGE_S, depends_on=request.access.visible_names
    )


async def _read_number(request: PageRequest, tab: str) -> str:
    """Search the jobs of a tab, and return their number; requests share the result."""
    return (await _part(tab, "", "", None, request)).number


async def _part(tab: str, task: str, name: str, after: str | None, request: PageRequest) -> Part:
    """Return a part of the list of a tab, from a position on.

    If ``task`` is not empty, only jobs of this task are listed. If ``name`` is not empty, only jobs that wait
    in a step of this name.
    """
    if tab in KINDS_OF_TABS:
        return await _suspended(KINDS_OF_TABS[tab], task, name, after, request)
    # Jobs of the other tabs do not wait in a step.
    if name:
        return Part((), None)
    where = f"status:{tab}"
    if task:
        where = f"{where} {term('name', task)}"
    page = await request.search_workflows(where, PAGE_LENGTH, after)
    is_last = page.next is None
    # The number of a search that has found nothing so far would be "0+".
    is_number_known = is_last or page.found > 0
    return Part(
        rows=await _rows(page.items, request),
        next=page.next,
        number=count(page.found, is_capped=not is_last) if is_number_known else "",
        extent="" if is_last else extent_in(page, request),
    )


async def _suspended(kind: str, task: str, name: str, after: str | None, request: PageRequest) -> Part:
    """Return jobs that steps of a kind have suspended, in the order of the names of the steps."""
    position = _position(after)
    reads = tables_of(request.inspector).reads.workflows
    steps = await reads.open_steps(kind, MAX_EXAMINED, name or None, position)
    jobs = await request.inspector.get_jobs(list(dict.fromkeys(step.job_id for step in steps)))
    selected_jobs: dict[str, Job] = {}
    for step in steps:
        # The next page begins behind this step, whether its job is shown or not.
        position = step.position
        job = jobs.get(step.job_id)
        # The job may have continued since the steps were read.
        if job is None or job.suspended_by != kind or not request.access.sees_name(job.job_name):
            continue
        # An alternative of first() that has lost stays open, but the job does not wait for it.
        if not step.is_awaited:
            continue
        if not task or job.job_name == task:
            selected_jobs[job.job_id] = job
        if len(selected_jobs) == PAGE_LENGTH:
            break
    has_read_all = len(steps) < MAX_EXAMINED
    # The page may have become full before the last step that was read.
    has_examined_all = not steps or position == steps[-1].position
    is_last = has_read_all and has_examined_all
    return Part(await _rows(list(selected_jobs.values()), request), None if is_last else json.dumps(position))


def _position(after: str | None) -> tuple[str, str]:
    """Return the position in a URL.

    Raises:
        RejectedError: It is a position of another list.
    """
    if after is None:
        return FIRST_OPEN
    try:
        position = load_json(after) if len(after) <= MAX_LENGTH else None
    except ValueError:
        position = None
    match position:
        case [str() as name, str() as job_id] if is_storable(name) and is_storable(job_id):
            return name, job_id
    raise RejectedError("the position is that of another list; begin again")


async def _rows(jobs: Sequence[Job], request: PageRequest) -> list[WorkflowRow]:
    """Return the rows of those of these jobs that have steps, at most one page of them."""
    reads = tables_of(request.inspector).reads.workflows
    progress = await reads.progress([job.job_id for job in jobs]) if jobs else {}
    return [
        _row(job, progress[job.job_id], request)
        for job in jobs
        if job.job_id in progress and progress[job.job_id].steps
    ][:PAGE_LENGTH]


def _row(job: Job, progress: StepProgress, request: PageRequest) -> WorkflowRow:
    """Return the row of a job; ``progress`` has its open step and the number of its steps."""
    step: str | None = None
    kind: str | None = None
    until: datetime | None = None
    # An ended job does not wait in a step any more.
    if job.finished_at is None:
        step, kind, until = progress.name, progress.kind, progress.until
    state = state_of(job, request.now)
    # A step whose function raised an error is not stored, but the error names it.
    if step is None and state in {"failed", "retrying"} and job.errors:
        step = job.errors[-1].step
        kind = None if step is None else "failed"
    if state == "retrying":
        until = job.execution_time
    return WorkflowRow(
        job_id=job.job_id,
        name=job.job_name,
        arguments=row_of(job, request).arguments,
        state=state,
        step=step,
        kind=kind,
        until=until,
        steps=count(progress.steps, is_capped=progress.steps >= MAX_COUNTED),
        created_at=job.created_at,
        ended_at=job.finished_at,
    )
