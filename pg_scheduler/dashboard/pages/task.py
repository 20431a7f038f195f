"""The page of a task: its state, charts and errors, what enqueues, limits and claims its jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar, Final

from pg_scheduler.dashboard.charts import Chart
from pg_scheduler.dashboard.context import NotFoundError, PageRequest
from pg_scheduler.dashboard.job_rows import JobRow
from pg_scheduler.dashboard.job_rows import row_of as job_row
from pg_scheduler.dashboard.pages import history, job_form
from pg_scheduler.dashboard.pages.audit import VERBS, visible
from pg_scheduler.dashboard.pages.errors import SHOWN_VALUES, ErrorText, error_text, read_groups, values_of
from pg_scheduler.dashboard.pages.names import MAX_NAMES, task_names
from pg_scheduler.dashboard.pages.tasks import (
    BADGES,
    FIGURES_AGE_S,
    NameFigures,
    TaskRow,
    row_of,
    visible_limits,
    visible_tasks,
)
from pg_scheduler.dashboard.search_bar import STATES
from pg_scheduler.inspect import AuditRecord, ErrorGroup, LimitState, SearchError, TaskState
from pg_scheduler.inspect.texts import quoted
from pg_scheduler.jobs.model import Job
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.status import JobStatus

MAX_WORKERS: Final = 20
"""Workers of a task that are listed."""
MAX_CHANGED: Final = 5
"""Names of a task of which changes are read."""
MAX_SCHEDULES: Final = 500
SHOWN: Final = 10
"""Errors, schedules and changes of a task that are shown."""
SAMPLE: Final = 50
"""The newest ended jobs of a task that are read: each with its arguments."""

SETTINGS: Final = ("max_retries", "timeout", "misfire_grace_time", "priority", "executor", "keep_result")
"""The defaults of a task that are shown."""


@dataclass(frozen=True, slots=True)
class TaskSchedule:
    """A schedule of a task, without its arguments."""

    schedule_id: str
    described: str
    next_fire_at: datetime | None
    paused_at: datetime | None


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A task. What the request may not see is None or empty."""

    task: TaskRow
    range: str
    uncounted: str | None
    is_complete: bool
    where: str
    """The search for its jobs."""
    workers: Mapping[str, str]
    """At most 20 live workers that report that they claim it: their names by their ids."""
    limits: Sequence[LimitState]
    """The limits that live workers declare for it; without numbers if tasks share one that are hidden."""
    schedules: Sequence[TaskSchedule]
    groups: Sequence[ErrorGroup]
    """The groups of errors of the last day, those of most jobs first."""
    runs: Sequence[JobRow]
    """The last ended jobs, the oldest first."""
    slowest: Sequence[JobRow]
    """The slowest of them."""
    like: str | None
    """The last of them if the request may add such a job with other arguments."""
    values: Sequence[tuple[str, int]]
    """The arguments that several of them have, and how many; none if they are hidden."""
    settings: Mapping[str, object] | None
    """Its defaults; None if this process has not registered it."""
    changes: Sequence[AuditRecord] | None
    """The last changes; None if the request may not read the audit."""
    charts: Sequence[Chart]
    """Outcomes, lateness and duration."""

    ranges: ClassVar[Sequence[str]] = tuple(history.RANGES)
    states: ClassVar[Sequence[str]] = STATES[1:]
    badges: ClassVar[Mapping[str, tuple[str, str]]] = BADGES

    def points(self, chart: str, series: int) -> Sequence[float]:
        """Return the values of a series of a chart, without those of the slot that is not complete."""
        values = next(each for each in self.charts if each.id == chart).series[series].values[:-1]
        return [each or 0.0 for each in values] if any(values) else []

    @property
    def durations(self) -> Sequence[float]:
        """The durations of the last runs."""
        return [run.ran_s or 0.0 for run in self.runs]

    @property
    def failed_durations(self) -> Sequence[float]:
        """The durations of those that failed; 0 for others."""
        return [(run.ran_s or 0.0) if run.status == "failed" else 0.0 for run in self.runs]

    def verb(self, record: AuditRecord) -> str:
        """Return what a change did."""
        verb, _ = VERBS.get(record.action, (record.action.replace("_", " "), ""))
        return verb

    def text(self, group: ErrorGroup) -> ErrorText:
        """Return the class and the message of a group of errors."""
        return error_text(group.text, group.status)


async def build(request: PageRequest) -> TaskPage:
    """Read a task under any of its names."""
    asked, names = request.required("id"), await task_names(request)
    own = names.all_of(asked)[:MAX_NAMES]
    name = own[0]
    counted = set(await request.cache.get("job names", FIGURES_AGE_S, request.inspector.job_names))
    states = {each.name: each for each in visible_tasks(await request.inspector.tasks(), names, request)}
    if name in counted:  # its workers may have ended
        states.setdefault(name, TaskState(name, 0, 0, None, 0))
    if name not in states or not all(map(request.access.sees_name, (asked, name))):
        raise NotFoundError(f"there is no task {asked[:200]!r}, or you may not see it")
    period = await history.read_period(request, own)
    limits = [each for each in await visible_limits(request) if not set(own).isdisjoint(each.tasks)]
    figures = NameFigures(
        period.total,
        [each.started for each in period.figures],
        [history.failures(each) for each in period.figures],
    )
    task = row_of(states[name], own, figures, limits, history.RANGES[period.range][0])
    # Names under which no job has run would only make the search longer.
    ran = [each for each in own if each == name or each in counted or counted.isdisjoint(own)]
    where = f"name:{','.join(map(quoted, ran))}"
    workers = await request.workers(is_data=True)
    claiming = [each for each in workers if each.is_alive and name in (each.names or ())]
    groups = (await read_groups(replace(request, parameters={})))[2]
    ended = await _ended(where, request)
    runs = [job_row(job, request) for job in ended]
    return TaskPage(
        task=task,
        range=period.range,
        uncounted=request.uncounted(period.uncounted),
        is_complete=period.is_complete,
        where=where,
        workers={each.worker_id: each.identity or each.worker_id for each in claiming[:MAX_WORKERS]},
        limits=limits,
        schedules=await _schedules(own, request),
        groups=sorted(
            (each for each in groups if each.job_name in own and each.status is not JobStatus.CANCELLED),
            key=lambda group: -group.count,
        )[:SHOWN],
        runs=runs,
        slowest=sorted(runs, key=lambda run: -(run.ran_s or 0.0))[:SHOWN],
        like=_like(ended, request),
        values=_frequent(ended, request),
        settings=await _settings(own, request),
        changes=await _changes(own[:MAX_CHANGED], request),
        charts=await asyncio.to_thread(period.charts, task.oldest_due_at),
    )


async def _schedules(names: Sequence[str], request: PageRequest) -> list[TaskSchedule]:
    """Return schedules of a task among the first 500, those that fire next first."""

    async def read() -> list[Schedule]:
        return await request.inspector.schedules(limit=MAX_SCHEDULES)

    found = await request.cache.get("schedules of tasks", FIGURES_AGE_S, read)
    own = [each for each in found if each.task in names]
    far = datetime.max.replace(tzinfo=request.now.tzinfo)
    own.sort(key=lambda each: (each.paused_at is not None, each.next_fire_at or far, each.schedule_id))
    return [
        TaskSchedule(each.schedule_id, each.described, each.next_fire_at, each.paused_at)
        for each in own[:SHOWN]
    ]


async def _ended(where: str, request: PageRequest) -> list[Job]:
    """Return the last ended jobs of a task that started, the oldest first."""

    async def read() -> Sequence[Job]:
        try:
            page = await request.inspector.search_jobs(search, limit=SAMPLE, names=names)
        except SearchError:  # a name of a row written by hand, for which no search can be written
            return ()
        return page.items

    search, names = f"{where} status:completed,failed", request.access.visible_names
    jobs = await request.cache.get(("runs", where, names), FIGURES_AGE_S, read)
    ended = [job for job in jobs if job.finished_at is not None and job.started_at is not None]
    ended.sort(key=lambda job: job.finished_at or request.now)
    return ended


def _like(jobs: Sequence[Job], request: PageRequest) -> str | None:
    """Return the id of the last job if the form can show all its arguments to the request."""
    if not jobs or not request.may("add") or job_form.values_of(jobs[-1], request) is None:
        return None
    return jobs[-1].job_id


def _frequent(jobs: Sequence[Job], request: PageRequest) -> list[tuple[str, int]]:
    """Return the visible arguments that several jobs have, the most frequent ones first."""
    if not request.access.sees_arguments:
        return []
    found = Counter(value for job in jobs for value in set(values_of(job, request)))
    return [each for each in found.most_common(SHOWN_VALUES) if each[1] > 1]


async def _settings(names: Sequence[str], request: PageRequest) -> Mapping[str, object] | None:
    """Return the defaults of a task if this process has registered it."""
    found = await request.cache.get("settings", FIGURES_AGE_S, request.operations.scheduler.tasks.list)
    info = next((each for each in found if each.is_registered and each.name in names), None)
    return None if info is None else {name: getattr(info, name) for name in SETTINGS}


async def _changes(names: Sequence[str], request: PageRequest) -> list[AuditRecord] | None:
    """Return the last changes of a task; None if the request sees only some names."""
    if request.access.visible_names is not None:
        return None
    records = [
        record
        for name in names
        for record in (await request.inspector.audit(subject=name, limit=SHOWN)).items
    ]
    records.sort(key=lambda record: record.at, reverse=True)
    return [visible(record, request) for record in records[:SHOWN]]
