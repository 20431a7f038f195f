"""The pages of tasks, and of one task: what waits and runs by name, how its attempts end, what is paused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from pg_scheduler.dashboard.charts import Chart
from pg_scheduler.dashboard.context import NotFoundError, PageRequest, RejectedError
from pg_scheduler.dashboard.job_rows import JobRow, row_of
from pg_scheduler.dashboard.pages import history
from pg_scheduler.dashboard.pages.errors import ErrorText, error_text, read_groups
from pg_scheduler.dashboard.pages.names import MAX_NAMES, WORKERS_AGE_S, task_names
from pg_scheduler.inspect import AuditRecord, ErrorGroup, LimitState, SearchError, TaskState
from pg_scheduler.inspect.limits import LimitList
from pg_scheduler.inspect.names import TaskNames
from pg_scheduler.inspect.statistics import Statistics
from pg_scheduler.inspect.tasks import TaskList, fold_tasks
from pg_scheduler.inspect.texts import quoted
from pg_scheduler.jobs.model import Job
from pg_scheduler.measure.figures import OUTCOMES, JobFigures
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.status import JobStatus

RANGES: Final[Mapping[str, timedelta]] = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
}
"""The length of the period of the figures, by the parameter ``range``."""

PARTS: Final = 24
"""Parts of the period, of which each has the number of starts."""

FIGURES_AGE_S: Final = 10.0
"""Seconds for which statistics, and lists that change slowly, are kept: workers add to them as often."""

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

FAILURES: Final = ("failed", "retried")
STATES: Final = (
    "due",
    "running",
    "scheduled",
    "blocked",
    "retrying",
    "completed",
    "failed",
    "expired",
    "cancelled",
)
"""The searches for jobs of a task by their states."""


class NameFigures(NamedTuple):
    """What the attempts of a name did within a period.

    Attributes:
        total: The figures of the whole period.
        starts: The starts in each of its parts.
        failures: The failures in each of them.
    """

    total: JobFigures = JobFigures()
    starts: tuple[int, ...] = (0,) * PARTS
    failures: tuple[int, ...] = (0,) * PARTS

    @classmethod
    def added(cls, figures: Sequence[NameFigures]) -> NameFigures:
        """Return the sum of all of these."""
        if len(figures) < 2:
            return figures[0] if figures else cls()
        return cls(
            JobFigures.added(*(each.total for each in figures)),
            tuple(map(sum, zip(*(each.starts for each in figures), strict=True))),
            tuple(map(sum, zip(*(each.failures for each in figures), strict=True))),
        )


class Figures(NamedTuple):
    """The figures of a period by job name.

    Attributes:
        names: The figures.
        is_complete: Whether no statistics were left out; else the oldest ones are missing.
        uncounted: Which live workers count none.
    """

    names: Mapping[str, NameFigures]
    is_complete: bool
    uncounted: str | None


@dataclass(frozen=True, slots=True)
class TaskRow(TaskState):
    """A task, with what its attempts of a period did."""

    other_names: Sequence[str] = ()
    """Its visible other names, whose jobs and attempts count too."""
    started: int = 0
    """Attempts that started."""
    per_minute: float = 0.0
    """Attempts that started, per minute."""
    failed: int = 0
    """Attempts that failed, those that are retried included."""
    failed_share: float | None = None
    """Their share of the attempts that completed or failed; None without any."""
    run_p50_s: float | None = None
    """The duration that half of the attempts did not exceed, in seconds; None without attempts."""
    run_p95_s: float | None = None
    """The duration that 95 % of them did not exceed, in seconds; None without attempts."""
    slowest_s: float | None = None
    """A duration that no attempt exceeded, in seconds; None without attempts."""
    lateness_p95_s: float | None = None
    """The lateness that 95 % of the starts did not exceed, in seconds; None without starts."""
    starts: Sequence[int] = ()
    """The starts in each part of the period, the oldest first."""
    failures: Sequence[int] = ()
    """The failures in each of them."""
    limits: Sequence[str] = ()
    """The limits that live workers declare for it."""
    state: str | None = None
    """``paused``, ``no worker`` or ``limit full``; None if it starts jobs."""


SORTS: Final[Mapping[str, Callable[[TaskRow], float | str]]] = {
    "name": lambda task: task.name,
    "starts": lambda task: task.started,
    "failed": lambda task: -1.0 if task.failed_share is None else task.failed_share,
    "p50": lambda task: task.run_p50_s or 0.0,
    "p95": lambda task: task.run_p95_s or 0.0,
    "slowest": lambda task: task.slowest_s or 0.0,
    "waiting": lambda task: task.due,
    "oldest": lambda task: -task.oldest_due_at.timestamp() if task.oldest_due_at else float("-inf"),
    "workers": lambda task: -1 if task.workers is None else task.workers,
}
"""The orders of tasks by the parameter ``sort``, in which ``-`` precedes a descending one."""


@dataclass(frozen=True, slots=True)
class TasksPage:
    """The names that workers claim, that have due or running jobs, or that are paused."""

    range: str
    sort: str
    items: Sequence[TaskRow]
    summary: str
    is_capped: bool
    """Whether counting the jobs stopped, so that there may be more."""
    uncounted: str | None
    """Which live workers count nothing, as in the overview; None if all count."""
    is_complete: bool
    """Whether the figures contain all statistics of the period."""

    @property
    def ranges(self) -> Sequence[str]:
        """The values of ``range`` to choose from."""
        return list(RANGES)

    def next_sort(self, name: str) -> str:
        """Return the order that the head of a column leads to."""
        first = name if name == "name" else f"-{name}"
        return first if self.sort != first else first.removeprefix("-") if first[0] == "-" else f"-{name}"

    def direction(self, name: str) -> str:
        """Return the direction of a column: ``asc``, ``desc``, or nothing."""
        return {name: "asc", f"-{name}": "desc"}.get(self.sort, "")


@dataclass(frozen=True, slots=True)
class TaskSchedule:
    """A schedule of a task, without its arguments."""

    schedule_id: str
    described: str
    next_fire_at: datetime | None
    paused_at: datetime | None


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a task by a person, with the note of a pause."""

    at: datetime
    actor: str
    action: str
    note: str | None


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
    settings: Mapping[str, object] | None
    """Its defaults; None if this process has not registered it."""
    changes: Sequence[Change] | None
    """The last changes; None if the request may not read the audit."""
    charts: Sequence[Chart]
    """Outcomes, lateness and duration."""

    @property
    def ranges(self) -> Sequence[str]:
        """The values of ``range`` to choose from."""
        return list(history.RANGES)

    @property
    def durations(self) -> Sequence[float]:
        """The durations of the last runs."""
        return [run.ran_s or 0.0 for run in self.runs]

    @property
    def failed_durations(self) -> Sequence[float]:
        """The durations of those that failed; 0 for others."""
        return [(run.ran_s or 0.0) if run.status == "failed" else 0.0 for run in self.runs]

    @property
    def states(self) -> Sequence[str]:
        """The states by which its jobs can be searched."""
        return STATES

    def text(self, group: ErrorGroup) -> ErrorText:
        """Return the class and the message of a group of errors."""
        return error_text(group.text)


async def build(request: PageRequest) -> TasksPage:
    """Read the tasks."""
    chosen, sort = request.parameters.get("range") or "1h", request.parameters.get("sort") or "name"
    if chosen not in RANGES:
        raise RejectedError(f"range must be one of {', '.join(RANGES)}, not {chosen[:50]!r}")
    if sort.removeprefix("-") not in SORTS:
        known = ", ".join(SORTS)
        raise RejectedError(f"sort must be one of {known}, with '-' for descending, not {sort[:50]!r}")
    names, limits = await task_names(request), await _visible_limits(request)
    found = await request.inspector.tasks()
    figures = await _figures(request, chosen)
    rows = []
    for state in _visible(found, names, request):
        own = names.all_of(state.name)
        counted = [figures.names[each] for each in own if each in figures.names]
        rows.append(_row(state, own, NameFigures.added(counted), limits, RANGES[chosen]))
    rows.sort(key=SORTS[sort.removeprefix("-")], reverse=sort.startswith("-"))
    return TasksPage(
        chosen,
        sort,
        rows,
        replace(found, items=rows).summary,
        found.is_capped,
        request.uncounted(figures.uncounted),
        figures.is_complete,
    )


async def build_one(request: PageRequest) -> TaskPage:
    """Read a task under any of its names."""
    asked, names = request.required("id"), await task_names(request)
    own = names.all_of(asked)[:MAX_NAMES]
    name = own[0]
    counted = set(await request.cache.get("job names", FIGURES_AGE_S, request.inspector.job_names))
    states = {each.name: each for each in _visible(await request.inspector.tasks(), names, request)}
    if name in counted:  # its workers may have ended
        states.setdefault(name, TaskState(name, 0, 0, None, 0))
    if name not in states or not all(map(request.access.sees_name, (asked, name))):
        raise NotFoundError(f"there is no task {asked[:200]!r}, or you may not see it")
    period = await history.read_period(request, own)
    limits = [each for each in await _visible_limits(request) if not set(own).isdisjoint(each.tasks)]
    task = _row(states[name], own, _figures_of(period), limits, history.RANGES[period.range][0])
    # Names under which no job has run would only make the search longer.
    ran = [each for each in own if each == name or each in counted or counted.isdisjoint(own)]
    where = f"name:{','.join(map(quoted, ran))}"
    workers = await request.cache.get("workers", WORKERS_AGE_S, request.inspector.workers)
    claiming = [each for each in workers if each.is_alive and name in (each.names or ())]
    groups = (await read_groups(replace(request, parameters={})))[2]
    runs = await _runs(where, request)
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
        settings=await _settings(own, request),
        changes=await _changes(own[:MAX_CHANGED], request),
        charts=await asyncio.to_thread(period.charts, task.oldest_due_at),
    )


def _visible(found: TaskList, names: TaskNames, request: PageRequest) -> list[TaskState]:
    """Return the visible tasks under their main names."""
    return fold_tasks((each for each in found.items if request.access.sees_name(each.name)), names)


def _row(
    state: TaskState,
    names: Sequence[str],
    figures: NameFigures,
    limits: Sequence[LimitState],
    length: timedelta,
) -> TaskRow:
    """Return a task with its figures of a period of this length; names has all of its names."""
    limits = [limit for limit in limits if not set(names).isdisjoint(limit.tasks)]
    total = figures.total
    ended = dict(zip(OUTCOMES, total.ended, strict=True))
    failed = sum(ended[outcome] for outcome in FAILURES)
    done = ended["completed"] + failed
    return TaskRow(
        **asdict(state),
        other_names=names[1:],
        started=total.started,
        per_minute=total.started / (length / timedelta(minutes=1)),
        failed=failed,
        failed_share=failed / done if done else None,
        run_p50_s=total.durations.quantile(0.5),
        run_p95_s=total.durations.quantile(0.95),
        slowest_s=total.durations.quantile(1),
        lateness_p95_s=total.lateness.quantile(0.95),
        starts=figures.starts,
        failures=figures.failures,
        limits=sorted({limit.name for limit in limits}),
        state=_state(state, limits),
    )


def _figures_of(period: history.Period) -> NameFigures:
    """Return the figures of a task in a period, with those of its slots."""
    places = [OUTCOMES.index(outcome) for outcome in FAILURES]
    return NameFigures(
        period.total,
        tuple(each.started for each in period.figures),
        tuple(sum(each.ended[place] for place in places) for each in period.figures),
    )


def _state(task: TaskState, limits: Iterable[LimitState]) -> str | None:
    """Return why a task starts no jobs; None if it does."""
    if task.paused_at is not None:
        return "paused"
    if task.workers == 0:
        return "no worker"
    return "limit full" if any(map(_is_full, limits)) else None


def _is_full(limit: LimitState) -> bool:
    """Return whether jobs wait because all attempts of a limit, or of some of its keys, have started."""
    pairs = ((limit.running, limit.max_running), (limit.starts, limit.max_starts))
    is_used_up = any(used is not None and most is not None and used >= most for used, most in pairs)
    return limit.waiting > 0 and (limit.by_key or is_used_up)


async def _figures(request: PageRequest, chosen: str) -> Figures:
    """Return the figures of a period; all requests share them for some seconds."""

    async def read() -> Figures:
        found = await request.inspector.statistics(RANGES[chosen])
        # Adding many histograms takes time, so other requests continue meanwhile.
        return Figures(await asyncio.to_thread(_by_name, found), found.is_complete, found.uncounted)

    return await request.cache.get(("figures", chosen), FIGURES_AGE_S, read)


def _by_name(statistics: Statistics) -> dict[str, NameFigures]:
    """Return the figures of each name, with its starts and failures by time."""
    starts: dict[str, list[int]] = {}
    failures: dict[str, list[int]] = {}
    places = [OUTCOMES.index(outcome) for outcome in FAILURES]
    for row in statistics.rows:
        share = (row.at - statistics.since) / statistics.duration
        place = max(min(int(share * PARTS), PARTS - 1), 0)
        starts.setdefault(row.job_name, [0] * PARTS)[place] += row.figures.started
        failed = sum(row.figures.ended[each] for each in places)
        failures.setdefault(row.job_name, [0] * PARTS)[place] += failed
    return {
        name: NameFigures(total, tuple(starts[name]), tuple(failures[name]))
        for name, total in statistics.by_name().items()
    }


async def _visible_limits(request: PageRequest) -> list[LimitState]:
    """Return the limits of visible tasks; the numbers of one that a hidden task shares are hidden."""

    async def read() -> LimitList:
        return await request.inspector.limits()

    found = await request.cache.get("limits of tasks", FIGURES_AGE_S, read)
    limits = []
    for limit in found.items:
        tasks = tuple(task for task in limit.tasks if request.access.sees_name(task))
        if len(tasks) == len(limit.tasks):
            limits.append(limit)
        elif tasks:
            limits.append(replace(limit, tasks=tasks, running=None, starts=None, waiting=0))
    return limits


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


async def _runs(where: str, request: PageRequest) -> list[JobRow]:
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
    return [row_of(job, request) for job in ended]


async def _settings(names: Sequence[str], request: PageRequest) -> Mapping[str, object] | None:
    """Return the defaults of a task if this process has registered it."""
    found = await request.cache.get("settings", FIGURES_AGE_S, request.operations.scheduler.tasks.list)
    info = next((each for each in found if each.is_registered and each.name in names), None)
    return None if info is None else {name: getattr(info, name) for name in SETTINGS}


async def _changes(names: Sequence[str], request: PageRequest) -> list[Change] | None:
    """Return the last changes of a task; None if the request sees only some names."""
    if request.access.visible_names is not None:
        return None
    records: list[AuditRecord] = []
    for name in names:
        records += (await request.inspector.audit(subject=name, limit=SHOWN)).items
    records.sort(key=lambda record: record.at, reverse=True)
    return [
        Change(each.at, each.actor, each.action, None if note is None else str(note))
        for each in records[:SHOWN]
        for note in (each.details.get("note"),)
    ]
