"""The lists of the overview: tasks by load, running jobs, workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.pages.history import attempts, failed_share, failures
from pg_scheduler.dashboard.pages.workers import WorkerRow, listed_row
from pg_scheduler.inspect import TaskState
from pg_scheduler.inspect.store.statistics import StatisticsRow
from pg_scheduler.jobs.model import Worker
from pg_scheduler.measure.figures import JobFigures

LOAD_PERIOD: Final = timedelta(hours=1)
"""The period of the tasks by load."""

LOAD_PARTS: Final = 12
"""Parts of that period, each a bar of a task."""

MANY_FAILURES: Final = 0.05
"""The share of failed attempts from which on it is red."""

SHOWN_TASKS: Final = 8
SHOWN_WORKERS: Final = 6


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """A task with what its attempts of the last hour did."""

    name: str
    due: int
    workers: int | None
    is_paused: bool
    per_minute: float
    failed: float | None
    """The share of its attempts that failed; None without attempts."""
    p50_s: float | None
    p95_s: float | None
    starts: Sequence[int]
    """Attempts that ended in each part of the hour."""
    failures: Sequence[int]
    """Those that failed."""

    @property
    def is_failing(self) -> bool:
        """Whether so many of its attempts failed that the number is red."""
        return self.failed is not None and self.failed >= MANY_FAILURES

    @property
    def has_trouble(self) -> bool:
        """Whether due jobs cannot start: the task is paused, or no worker claims it."""
        return self.due > 0 and (self.is_paused or self.workers == 0)


def load_of(task: TaskState, rows: Sequence[StatisticsRow], until: datetime) -> TaskLoad:
    """Return a task with its statistics of the last hour."""
    figures = JobFigures.added(*(row.figures for row in rows)) if rows else JobFigures()
    start, part = until - LOAD_PERIOD, LOAD_PERIOD / LOAD_PARTS
    starts, failed = [0] * LOAD_PARTS, [0] * LOAD_PARTS
    for row in rows:
        place = min(max(int((row.at - start) / part), 0), LOAD_PARTS - 1)
        starts[place] += attempts(row.figures)
        failed[place] += failures(row.figures)
    return TaskLoad(
        task.name,
        task.due,
        task.workers,
        task.paused_at is not None,
        figures.started / (LOAD_PERIOD / timedelta(minutes=1)),
        failed_share(figures),
        figures.durations.quantile(0.5),
        figures.durations.quantile(0.95),
        starts,
        failed,
    )


def by_load(tasks: Sequence[TaskLoad]) -> list[TaskLoad]:
    """Return the tasks with the most attempts, and those whose due jobs cannot start at the end."""
    ordered = sorted(tasks, key=lambda each: (-each.per_minute, -each.due, each.name))
    troubled = [each for each in ordered if each.has_trouble][:SHOWN_TASKS]
    others = [each for each in ordered if each not in troubled and (each.per_minute or each.due)]
    return [*others[: SHOWN_TASKS - min(len(troubled), SHOWN_TASKS // 2)], *troubled][:SHOWN_TASKS]


def usual_s(rows: Sequence[StatisticsRow]) -> float | None:
    """Return the duration that half of the attempts did not exceed; None if it is unknown."""
    return JobFigures.added(*(row.figures for row in rows)).durations.quantile(0.5) if rows else None


def worker_rows(workers: Sequence[Worker], request: PageRequest) -> list[WorkerRow]:
    """Return the first workers, those that need attention first, without what only their pages show."""
    first = sorted(workers, key=lambda each: (each.is_alive, each.identity or each.worker_id))[:SHOWN_WORKERS]
    return [listed_row(each, request) for each in first]
