"""The parts of the overview: tiles with the change since the period before, tasks by load, workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.base.figures import JobFigures
from pg_scheduler.base.text.numbers import two_digits
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.pages.history import Period
from pg_scheduler.dashboard.pages.task import PERIODS
from pg_scheduler.dashboard.pages.tasks import PARTS, has_trouble, is_failing, part_of
from pg_scheduler.dashboard.pages.workers import WorkerRow, listed_row
from pg_scheduler.dashboard.search_bar import text_of
from pg_scheduler.facts.lateness import is_late
from pg_scheduler.facts.outcomes import count_completed, count_decided, count_failed, failure_rate
from pg_scheduler.inspect import TaskState
from pg_scheduler.inspect.jobs import StateCount
from pg_scheduler.inspect.store.statistics import StatisticsRow
from pg_scheduler.inspect.texts import count, estimated
from pg_scheduler.jobs.model import Worker

POINTS: Final = 20
"""Points of the line of a tile."""

UNREAD: Final = "no answer in time"
"""The note of a tile whose number the server did not return in time."""


MAX_RISE: Final = 9.0
"""From this rise on, as a share of the previous value, the text is ">10x". A rise from 4 ms to 9 s would be
224,900 %, a number without use."""

LOAD_PERIOD: Final = timedelta(hours=1)
"""The period of the tasks by load."""

NOW_WIDTH: Final = timedelta(minutes=10)
"""The longest interval of a chart whose last complete value is called that of now."""

SHOWN_TASKS: Final = 8
SHOWN_WORKERS: Final = 6


@dataclass(frozen=True, slots=True)
class Tile:
    """A number with its change since the period before, and a small line."""

    label: str
    value: str
    unit: str
    note: str
    """The change, or another number that belongs to it."""
    mood: str
    """How the note is meant: ``ok``, ``bad``, ``warn``; empty for neither."""
    path: str
    terms: str
    """The search to which it leads; empty for none."""
    values: Sequence[float | None]
    tone: str
    since: datetime | None = None
    """Since when the oldest of what it counts has been there."""
    detail: str = ""
    """What is written after the unit: the present value."""


def rates(period: Period) -> Iterator[Tile]:
    """Yield the tiles of completed jobs, failed attempts and lateness, each with its change."""
    total, before = period.total, period.before
    # If the period before had no attempts, there is nothing to compare with.
    earlier = None if before is None or not count_decided(before) else before

    rate, unit = count_completed(total) / period.minutes, "/min"
    note, mood = "", ""
    if earlier:
        note, mood = change_since(rate, count_completed(earlier) / period.minutes)
    # A rate of less than one per minute is shown per hour.
    if 0 < rate < 1:
        rate, unit = rate * 60, "/h"
    value = f"{rate:,.3g}" if rate < 100 else f"{rate:,.0f}"
    points = _points(period, count_completed)
    yield Tile(
        label="Completed",
        value=value,
        unit=unit,
        note=note,
        mood=mood,
        path="/jobs",
        terms="status:completed",
        values=points,
        tone="ok",
    )
    share = failure_rate(total)
    note, mood = "", ""
    earlier_share = None if earlier is None else failure_rate(earlier)
    if share is not None and earlier_share is not None:
        rise = 100 * (share - earlier_share)  # in percentage points
        # A change that would be shown as 0.0 is left out.
        if abs(rise) >= 0.05:
            note = f"{'▲' if rise > 0 else '▼'} {abs(rise):.1f} pt"
            mood = "bad" if rise > 0 else "ok"
    value, unit = ("-", "") if share is None else (two_digits(100 * share), "% of attempts")
    tone = "bad" if share else ""
    points = _points(period, failure_rate)
    yield Tile(
        label="Failed attempts",
        value=value,
        unit=unit,
        note=note,
        mood=mood,
        path="/errors",
        terms="",
        values=points,
        tone=tone,
    )

    lateness_s = total.lateness.quantile(0.95)
    earlier_lateness_s = earlier.lateness.quantile(0.95) if earlier else None
    note, mood = "", ""
    if lateness_s is not None and earlier_lateness_s:
        note, mood = change_since(lateness_s, earlier_lateness_s, is_bad_up=True)
    # The text is such as "~30 s".
    lateness_text = "-" if lateness_s is None else estimated(lateness_s)
    value, _, unit = lateness_text.partition(" ")
    points = _points(period, lambda figures: figures.lateness.quantile(0.95))
    yield Tile(
        label="Lateness p95",
        value=value,
        unit=unit,
        detail=_present_lateness(period, lateness_text),
        note=note,
        mood=mood,
        path="/chart",
        terms="",
        values=points,
        tone="run",
    )


def compared_with(period: Period) -> str:
    """Return what the changes of the tiles compare with, or why they have none, as a sentence."""
    span = f"{PERIODS[period.range]} before"
    if period.before is None:
        return f"No changes: the statistics of the {span} are not kept."
    if not count_decided(period.before):
        return f"No changes: nothing ran in the {span}."
    return f"▲ ▼ compared with the {span}"


def _present_lateness(period: Period, mean_text: str) -> str:
    """Return the lateness of the last complete slot; empty if unknown, long ago or the same as the mean."""
    if len(period.figures) < 2 or period.width > NOW_WIDTH:
        return ""
    lateness_s = period.figures[-2].lateness.quantile(0.95)
    text = "" if lateness_s is None else estimated(lateness_s)
    return f"now {text}" if text and text != mean_text else ""


def waiting(period: Period, text: str | None, oldest_at: datetime | None, now: datetime) -> Tile:
    """Return the tile of due and blocked jobs; its line shows how many due ones waited on average.

    ``text`` is that of `describe_waiting()`; None if the jobs were not counted in time.
    """
    slot_length_s = period.width.total_seconds()
    # The sum of the waiting times in a slot, divided by its length, is the mean number of waiting jobs.
    waiting_means = _points(period, lambda figures: figures.lateness.total / slot_length_s)
    mood = "warn" if is_late(oldest_at, now) else ""
    # The text is such as "waiting 21: due 0, blocked 21". Next to the sum, each part begins with its number.
    numbers, _, parts = (text or "waiting -").partition(": ")
    turned_parts = [" ".join(part.split(" ")[::-1]) for part in parts.split(", ")]
    return Tile(
        label="Waiting",
        value=numbers.removeprefix("waiting "),
        unit=", ".join(turned_parts),
        note=UNREAD if text is None else "",
        mood=mood,
        path="/jobs",
        terms="status:due,blocked",
        values=waiting_means,
        tone=mood,
        since=oldest_at,
    )


def slots_in_use(period: Period, busy_count: int | None, slots: int, *, is_capped: bool) -> Tile:
    """Return the tile of slots, in which workers run jobs; its line shows how many were in use on average.

    Args:
        period: The period of the line.
        busy_count: The number of slots in use now; None if they were not counted in time.
        slots: The slots of all live workers.
        is_capped: Whether counting stopped, so that more slots may be in use.
    """
    slot_length_s = period.width.total_seconds()
    # The sum of the running times in a slot, divided by its length, is the mean number of running jobs.
    busy_means = _points(period, lambda figures: figures.durations.total / slot_length_s)
    value, note, mood = "-", UNREAD, ""
    if busy_count is not None:
        value = count(busy_count, is_capped=is_capped)
        note = f"{100 * busy_count / slots:.0f} %" if slots and not is_capped else ""
        mood = "warn" if slots and busy_count >= slots else ""
    return Tile(
        label="Slots in use",
        value=value,
        unit=f"of {slots:,}",
        note=note,
        mood=mood,
        path="/workers",
        terms="",
        values=busy_means,
        tone="run",
    )


def later(counts: Mapping[str, StateCount] | None) -> Tile:
    """Return the tile of jobs that are due later, with those that wait for another attempt."""
    value, note = "-", UNREAD
    if counts is not None:
        value = text_of(counts["scheduled"])
        note = f"{text_of(counts['retrying'])} retrying" if counts["retrying"].number else ""
    return Tile(
        label="Scheduled",
        value=value,
        unit="",
        note=note,
        mood="",
        path="/jobs",
        terms="status:scheduled",
        values=(),
        tone="",
    )


def _points(period: Period, value_of: Callable[[JobFigures], float | None]) -> list[float | None]:
    """Return the points of the small line of a tile, each the mean of the values of some slots.

    There are few points with few digits, since each update of the page sends them. A point is None if it has
    no value, such as the lateness of a time without starts. ``value_of`` returns the value of a slot.
    """
    # The last slot is not complete, so its value would be too low.
    values = [value_of(figures) for figures in period.figures[:-1]]
    slots_of_point = max(math.ceil(len(values) / POINTS), 1)
    return [_mean(values[first : first + slots_of_point]) for first in range(0, len(values), slots_of_point)]


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are known, with three digits; None if none is."""
    known_values = [value for value in values if value is not None]
    if not known_values:
        return None
    mean = sum(known_values) / len(known_values)
    return float(f"{mean:.3g}")


def change_since(value: float, previous_value: float, *, is_bad_up: bool = False) -> tuple[str, str]:
    """Return the change of a value as a text, and its mood.

    With ``is_bad_up``, the mood is ``bad`` for a rise and ``ok`` for a fall. Without it, the mood is empty.
    Both are empty if the previous value was 0, or the change is too small to be shown.
    """
    if not previous_value:
        return "", ""
    growth = value / previous_value - 1  # as a share of the previous value
    # A smaller change would be shown as 0 %.
    if abs(growth) < 0.005:
        return "", ""
    percent = f"{'▲' if growth > 0 else '▼'} {100 * abs(growth):.0f} %"
    text = percent if growth < MAX_RISE else "▲ >10x"
    if not is_bad_up:
        return text, ""
    mood = "bad" if growth > 0 else "ok"
    return text, mood


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """A task with what its attempts of the last hour did."""

    name: str
    due: int
    blocked: int
    running: int
    workers: int | None
    is_paused: bool
    has_trouble: bool
    """Whether due jobs cannot start: the task is paused, or no worker claims it."""
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
    def waiting(self) -> int:
        """Its due and its blocked jobs."""
        return self.due + self.blocked

    @property
    def is_failing(self) -> bool:
        """Whether so many of its attempts failed that the number is red."""
        return is_failing(self.failed)


def load_of(task: TaskState, rows: Sequence[StatisticsRow], until: datetime) -> TaskLoad:
    """Return a task with its statistics of the hour that ends at ``until``.

    ``rows`` has the statistics of all names of the task, each row those of a short time.
    """
    figures = JobFigures.added(*(row.figures for row in rows)) if rows else JobFigures()
    # The numbers of each part of the hour, which are the bars of the task.
    starts, failures = [0] * PARTS, [0] * PARTS
    for row in rows:
        part = part_of(row.at, until - LOAD_PERIOD, LOAD_PERIOD)
        if part is None:
            continue
        starts[part] += count_decided(row.figures)
        failures[part] += count_failed(row.figures)
    return TaskLoad(
        name=task.name,
        due=task.due,
        blocked=task.blocked,
        running=task.running,
        workers=task.workers,
        is_paused=task.paused_at is not None,
        has_trouble=has_trouble(task),
        per_minute=figures.started / (LOAD_PERIOD / timedelta(minutes=1)),
        failed=failure_rate(figures),
        p50_s=figures.durations.quantile(0.5),
        p95_s=figures.durations.quantile(0.95),
        starts=starts,
        failures=failures,
    )


def by_load(tasks: Sequence[TaskLoad]) -> list[TaskLoad]:
    """Return at most eight tasks: those with the most attempts, then those whose due jobs cannot start.

    Tasks whose due jobs cannot start have at most half of the places, unless the others leave places free.
    """
    sorted_tasks = sorted(tasks, key=lambda task: (-task.per_minute, -task.waiting, task.name))
    troubled_tasks = [task for task in sorted_tasks if task.has_trouble][:SHOWN_TASKS]
    # Idle tasks, which neither had attempts nor have waiting jobs, are left out.
    other_tasks = [
        task for task in sorted_tasks if task not in troubled_tasks and (task.per_minute or task.waiting)
    ]
    reserved_places = min(len(troubled_tasks), SHOWN_TASKS // 2)
    busiest_tasks = other_tasks[: SHOWN_TASKS - reserved_places]
    return [*busiest_tasks, *troubled_tasks][:SHOWN_TASKS]


def usual_s(rows: Sequence[StatisticsRow]) -> float | None:
    """Return the median duration of attempts in seconds; None if it is unknown."""
    if not rows:
        return None
    return JobFigures.added(*(row.figures for row in rows)).durations.quantile(0.5)


def worker_rows(workers: Sequence[Worker], request: PageRequest) -> list[WorkerRow]:
    """Return at most six workers as lists show them, dead ones first."""
    sorted_workers = sorted(
        workers, key=lambda worker: (worker.is_alive, worker.identity or worker.worker_id)
    )
    return [listed_row(worker, request) for worker in sorted_workers[:SHOWN_WORKERS]]
