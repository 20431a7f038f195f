"""The pages of tasks, and of one task: what waits and runs by name, how its attempts end, what is paused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Final

from pg_scheduler.dashboard.context import NotFoundError, PageRequest
from pg_scheduler.dashboard.pages.names import task_names
from pg_scheduler.inspect import TaskState
from pg_scheduler.inspect.tasks import fold_tasks
from pg_scheduler.inspect.texts import quoted
from pg_scheduler.measure.figures import OUTCOMES, JobFigures

PERIOD: Final = timedelta(hours=1)
FIGURES_AGE_S: Final = 10.0
"""Seconds for which statistics are kept: workers add to them as often."""

WORKERS_AGE_S: Final = 10.0
MAX_WORKERS: Final = 20
"""Workers of a task that are listed."""

MAX_NAMES: Final = 20
"""Other names of a task by which its jobs are searched."""

FAILURES: Final = ("failed", "retried")


@dataclass(frozen=True, slots=True)
class TaskRow(TaskState):
    """A task, with what its attempts of the last hour did."""

    per_minute: float = 0.0
    """Attempts that started, per minute."""
    failed: int = 0
    """Attempts that failed, those that are retried included."""
    run_p50_s: float | None = None
    """The duration that half of the attempts did not exceed, in seconds; None without attempts."""
    run_p95_s: float | None = None
    """The duration that 95 % of them did not exceed, in seconds; None without attempts."""
    other_names: Sequence[str] = ()
    """Its visible other names, whose jobs and attempts count too."""


@dataclass(frozen=True, slots=True)
class TasksPage:
    """The names that workers claim, that have due or running jobs, or that are paused."""

    items: Sequence[TaskRow]
    summary: str
    is_capped: bool
    """Whether counting the jobs stopped, so that there may be more."""
    uncounted: str | None
    """Which live workers count nothing, as in the overview; None if all count."""


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A task."""

    task: TaskRow
    where: str
    """The search for its jobs."""
    workers: Mapping[str, str]
    """At most 20 live workers that report that they claim it: their names by their ids."""


async def build_one(request: PageRequest) -> TaskPage:
    """Read a task under any of its names."""
    asked = request.required("id")
    name = (await task_names(request)).task_of(asked)
    states = [each for each in (await request.inspector.tasks()).items if request.access.sees_name(each.name)]
    task = next((each for each in await _rows(states, request) if each.name == name), None)
    if task is None or not request.access.sees_name(asked):
        raise NotFoundError(f"there is no task {asked[:200]!r}, or you may not see it")
    found = await request.cache.get("workers", WORKERS_AGE_S, request.inspector.workers)
    claiming = [each for each in found if each.is_alive and each.names is not None and name in each.names]
    workers = {each.worker_id: each.identity or each.worker_id for each in claiming[:MAX_WORKERS]}
    return TaskPage(task, await _search_of(task, request), workers)


async def build(request: PageRequest) -> TasksPage:
    """Read the tasks."""
    found = await request.inspector.tasks()
    rows = await _rows([each for each in found.items if request.access.sees_name(each.name)], request)
    _, uncounted = await _figures(request)
    return TasksPage(rows, replace(found, items=rows).summary, found.is_capped, request.uncounted(uncounted))


async def _rows(tasks: Sequence[TaskState], request: PageRequest) -> list[TaskRow]:
    """Return tasks under their main names with their figures, those of their other names included."""
    figures, _ = await _figures(request)
    names = await task_names(request)
    rows = []
    for task in fold_tasks(tasks, names):
        known = names.all_of(task.name)
        counted = [figures[name] for name in known if name in figures]
        rows.append(_row(task, known[1:], JobFigures.added(*counted) if counted else JobFigures()))
    return rows


async def _search_of(task: TaskRow, request: PageRequest) -> str:
    """Return the search for the jobs of a task, under the names that attempts had."""
    counted = await request.cache.get("job names", FIGURES_AGE_S, request.inspector.job_names)
    others = [name for name in task.other_names[:MAX_NAMES] if name in counted]
    return f"name:{','.join(map(quoted, [task.name, *others]))}"


async def _figures(request: PageRequest) -> tuple[Mapping[str, JobFigures], str | None]:
    """Return figures, and which workers count none; all requests share them for some seconds."""

    async def read() -> tuple[Mapping[str, JobFigures], str | None]:
        found = await request.inspector.statistics(PERIOD)
        return found.by_name(), found.uncounted

    return await request.cache.get("figures of an hour", FIGURES_AGE_S, read)


def _row(task: TaskState, other_names: Sequence[str], figures: JobFigures) -> TaskRow:
    ended = dict(zip(OUTCOMES, figures.ended, strict=True))
    return TaskRow(
        **asdict(task),
        other_names=other_names,
        per_minute=figures.started / (PERIOD / timedelta(minutes=1)),
        failed=sum(ended[outcome] for outcome in FAILURES),
        run_p50_s=figures.durations.quantile(0.5),
        run_p95_s=figures.durations.quantile(0.95),
    )
