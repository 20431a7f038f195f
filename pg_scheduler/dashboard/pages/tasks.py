"""The page of tasks: what waits and runs by name, how its attempts end, what is paused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from pg_scheduler.base.figures import JobFigures
from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.dashboard.context import PageRequest, RejectedError, View
from pg_scheduler.dashboard.pages import history
from pg_scheduler.dashboard.pages.limits import without_hidden
from pg_scheduler.facts.outcomes import count_failed, failure_rate
from pg_scheduler.inspect import LimitState, TaskState
from pg_scheduler.inspect.limits import LimitList, limit_counts
from pg_scheduler.inspect.names import TaskNames
from pg_scheduler.inspect.statistics import Statistics
from pg_scheduler.inspect.tasks import TaskList, fold_tasks

RANGES: Final = {name: history.RANGES[name].length for name in ("1h", "6h", "1d", "7d")}
"""The length of the period of the figures, by the parameter ``range``."""

PARTS: Final = 12
"""Parts of the period, each a bar of a task. Each part of an hour has as many whole minutes."""

MANY_FAILURES: Final = 0.05
"""The share of failed attempts from which on it is red."""

MAX_QUERY: Final = 200

FIGURES_AGE_S: Final = 10.0
"""Seconds for which statistics, and lists that change slowly, are kept: workers add to them as often."""


class NameFigures(NamedTuple):
    """What the attempts of a name did within a period.

    Attributes:
        total: The figures of the whole period.
        starts: The starts in each of its parts.
        failures: The failures in each of them.
    """

    total: JobFigures = JobFigures()
    starts: Sequence[int] = (0,) * PARTS
    failures: Sequence[int] = (0,) * PARTS

    @classmethod
    def added(cls, figures: Sequence[NameFigures]) -> NameFigures:
        """Return the sum of these figures; zeros without any."""
        if not figures:
            return cls()
        return cls(
            total=JobFigures.added(*(item.total for item in figures)),
            starts=[sum(starts) for starts in zip(*(item.starts for item in figures), strict=True)],
            failures=[sum(failures) for failures in zip(*(item.failures for item in figures), strict=True)],
        )


class Figures(NamedTuple):
    """The figures of a period by job name, whether none are missing, and which live workers count none."""

    names: Mapping[str, NameFigures]
    is_complete: bool
    uncounted: str | None


@dataclass(frozen=True, slots=True)
class TaskRow(TaskState):
    """A task, with what its attempts of a period did."""

    other_names: Sequence[str] = ()
    """Its visible other names, whose jobs and attempts count too."""
    started: int = 0
    per_minute: float = 0.0
    failed: int = 0
    """Attempts that failed, those that are retried included."""
    failed_share: float | None = None
    """Their share of the attempts that count for the failure rate; None without any."""
    run_p50_s: float | None = None
    """The duration that half of the attempts did not exceed, in seconds; None without attempts."""
    run_p95_s: float | None = None
    """The duration that 95 % of them did not exceed, in seconds; None without attempts."""
    slowest_s: float | None = None
    """A duration that no attempt exceeded, in seconds; None without attempts."""
    lateness_p95_s: float | None = None
    """The lateness that 95 % of the starts did not exceed, in seconds; None without starts."""
    starts: Sequence[int] = ()
    failures: Sequence[int] = ()
    limits: Sequence[str] = ()
    state: str | None = None
    """``paused``, ``no worker`` or ``limit full``; None if it starts jobs."""

    @property
    def is_failing(self) -> bool:
        """Whether so many of its attempts failed that the number is red."""
        return is_failing(self.failed_share)

    @property
    def has_trouble(self) -> bool:
        """Whether due jobs cannot start."""
        return has_trouble(self)


BADGES: Final = {
    "paused": ("paused", "Paused"),
    "no worker": ("overdue", "No worker"),
    "limit full": ("blocked", "Limit full"),
}

SORTS: Final[Mapping[str, Callable[[TaskRow], float | str | tuple[int, int]]]] = {
    "name": lambda task: task.name,
    "starts": lambda task: (task.started, task.waiting),
    "failed": lambda task: -1.0 if task.failed_share is None else task.failed_share,
    "p50": lambda task: task.run_p50_s or 0.0,
    "p95": lambda task: task.run_p95_s or 0.0,
    "slowest": lambda task: task.slowest_s or 0.0,
    "waiting": lambda task: task.waiting,
    "oldest": lambda task: -task.oldest_due_at.timestamp() if task.oldest_due_at else float("-inf"),
    "workers": lambda task: -1 if task.workers is None else task.workers,
}
"""The orders of tasks, by the parameter ``sort``. A ``-`` before the parameter reverses the order."""


DEFAULT_SORT: Final = "-starts"
"""Tasks at work first, then idle ones, of which those with waiting jobs come first."""


async def build(request: PageRequest) -> View:
    """Read the names that workers claim, that have jobs to do, or that are paused."""
    range_name = request.choice("range", RANGES, "1h")
    sort = request.parameters.get("sort") or DEFAULT_SORT
    if sort.removeprefix("-") not in SORTS:
        choices = ", ".join(SORTS)
        raise RejectedError(f"sort must be one of {choices}, with '-' for descending, not {sort[:50]!r}")
    names, limits = await request.task_names(), await visible_limits(request)
    task_list = await request.inspector.tasks()
    figures = await _figures(request, range_name)
    q = request.parameters.get("q", "").strip()[:MAX_QUERY]
    rows: list[TaskRow] = []
    for state in visible_tasks(task_list, names, request):
        # A task can have former names besides its main name. Their jobs and attempts count too.
        all_names = names.all_of(state.name)
        if not any(q.casefold() in name.casefold() for name in all_names):
            continue
        figures_of_names = [figures.names[name] for name in all_names if name in figures.names]
        total = NameFigures.added(figures_of_names)
        rows.append(row_of(state, all_names, total, limits, RANGES[range_name]))
    rows.sort(key=SORTS[sort.removeprefix("-")], reverse=sort.startswith("-"))
    return View(
        range=range_name,
        sort=sort,
        q=q,
        items=rows,
        summary=replace(task_list, items=rows).summary,
        is_capped=task_list.is_capped,
        is_blocked_capped=task_list.is_blocked_capped,
        are_workers_capped=task_list.are_workers_capped,
        uncounted=request.uncounted(figures.uncounted),
        is_complete=figures.is_complete,
    )


def visible_tasks(task_list: TaskList, names: TaskNames, request: PageRequest) -> list[TaskState]:
    """Return the visible tasks under their main names, those with several names as one.

    A task may be paused under another of its names. If the request may not see that name, the name, the note
    and the actor of the pause are left out.
    """
    states = []
    for state in task_list.items:
        if not request.access.sees_name(state.name):
            continue
        is_pause_hidden = state.paused_name is not None and not request.access.sees_name(state.paused_name)
        if is_pause_hidden:
            states.append(replace(state, paused_name=None, note=None, actor=None))
        else:
            states.append(state)
    return fold_tasks(states, names)


def row_of(
    state: TaskState,
    names: Sequence[str],
    figures: NameFigures,
    limits: Sequence[LimitState],
    length: timedelta,
) -> TaskRow:
    """Return a task with its figures of a period of this length.

    ``names`` has all of its names, the main name first. The limits of other tasks are left out.
    """
    limits_of_task = [limit for limit in limits if not set(names).isdisjoint(limit.tasks)]
    total = figures.total
    return TaskRow(
        **asdict(state),
        other_names=names[1:],
        started=total.started,
        per_minute=total.started / (length / timedelta(minutes=1)),
        failed=count_failed(total),
        failed_share=failure_rate(total),
        run_p50_s=total.durations.quantile(0.5),
        run_p95_s=total.durations.quantile(0.95),
        slowest_s=total.durations.ceiling,
        lateness_p95_s=total.lateness.quantile(0.95),
        starts=figures.starts,
        failures=figures.failures,
        limits=sorted({limit.name for limit in limits_of_task}),
        state=_state(state, limits_of_task),
    )


def _state(task: TaskState, limits: Iterable[LimitState]) -> str | None:
    """Return why a task starts no jobs; None if it does."""
    if task.paused_at is not None:
        return "paused"
    if task.workers == 0:
        return "no worker"
    return "limit full" if any(map(_is_full, limits)) else None


def _is_full(limit: LimitState) -> bool:
    """Return whether jobs wait for a limit because the limit, or one of its keys, is full.

    A limit with keys has no numbers of them here, but if jobs wait, one of the keys is full.
    """
    return limit.waiting > 0 and (limit.by_key or any(count.is_full for count in limit_counts(limit)))


async def _figures(request: PageRequest, range_name: str) -> Figures:
    """Return the figures of a period; all requests share them for some seconds."""
    return await request.read_shared(_read_figures, RANGES[range_name], age_s=FIGURES_AGE_S)


async def _read_figures(request: PageRequest, length: timedelta) -> Figures:
    """Read the figures of a period of this length by job name; requests share the result."""
    statistics = await request.inspector.statistics(length)
    # Adding many histograms takes time, so other requests continue meanwhile.
    return Figures(await run_in_thread(_by_name, statistics), statistics.is_complete, statistics.uncounted)


def _by_name(statistics: Statistics) -> dict[str, NameFigures]:
    """Return the figures of each name, with its starts and failures in each part of the period."""
    totals = statistics.by_name()
    starts = {name: [0] * PARTS for name in totals}
    failures = {name: [0] * PARTS for name in totals}
    for row in statistics.rows:
        part = part_of(row.at, statistics.since, statistics.duration)
        if part is None:
            continue
        starts[row.job_name][part] += row.figures.started
        failures[row.job_name][part] += count_failed(row.figures)
    return {name: NameFigures(total, starts[name], failures[name]) for name, total in totals.items()}


def part_of(at: datetime, since: datetime, length: timedelta) -> int | None:
    """Return the part of a period that has the row of statistics of this instant; None for no part.

    A row that began before the period is in no part: with it, the first part would be longer than the others.
    """
    if at < since:
        return None
    # A row may be later than the end by the difference of two clocks.
    return min(int(PARTS * ((at - since) / length)), PARTS - 1)


def is_failing(failed_share: float | None) -> bool:
    """Return whether so many attempts failed that the number is red on each page."""
    return failed_share is not None and failed_share >= MANY_FAILURES


def has_trouble(task: TaskState) -> bool:
    """Return whether due jobs of a task cannot start: it is paused, or no worker claims it."""
    return task.due > 0 and (task.paused_at is not None or task.workers == 0)


async def visible_limits(request: PageRequest) -> list[LimitState]:
    """Return the limits of visible tasks; the numbers of one that a hidden task shares are hidden."""
    limit_list = await request.read_shared(_read_limits, age_s=FIGURES_AGE_S)
    limits = [without_hidden(limit, request) for limit in limit_list.items]
    # A limit whose tasks are all hidden is not visible.
    return [limit for limit in limits if limit.tasks]


async def _read_limits(request: PageRequest) -> LimitList:
    """Read the limits that live workers declare; requests share the result."""
    return await request.inspector.limits()
