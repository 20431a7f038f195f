"""The page of a task: its state, charts and errors, what enqueues, limits and claims its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.dashboard.context import NotFoundError, PageRequest, View
from pg_scheduler.dashboard.job_rows import row_of as job_row
from pg_scheduler.dashboard.pages import history
from pg_scheduler.dashboard.pages.audit import visible
from pg_scheduler.dashboard.pages.errors import GROUPS_AGE_S, MAX_GROUPS
from pg_scheduler.dashboard.pages.tasks import (
    FIGURES_AGE_S,
    NameFigures,
    row_of,
    visible_limits,
    visible_tasks,
)
from pg_scheduler.dashboard.pauses import PauseForm, price_of_pause
from pg_scheduler.facts.outcomes import count_failed
from pg_scheduler.inspect import AuditRecord, ErrorGroup, TaskState
from pg_scheduler.inspect.schedules import is_firing
from pg_scheduler.inspect.texts import quoted
from pg_scheduler.jobs.pause import TaskInfo
from pg_scheduler.schedules.schedule import Schedule

MAX_WORKERS: Final = 20
MAX_CHANGED: Final = 5
MAX_SCHEDULES: Final = 500
SHOWN: Final = 10

PERIODS: Final = {
    "1h": "hour",
    "6h": "6 hours",
    "1d": "day",
    "7d": "7 days",
    "30d": "30 days",
    "90d": "90 days",
}
"""The ranges in words, after "the last"."""

SETTINGS: Final = (
    *("max_retries", "timeout", "misfire_grace_time", "priority", "executor", "keep_result", "deadline"),
    *("chunk", "chunk_wait"),
)


async def build(request: PageRequest) -> View:
    """Read a task under any of its names: its main name, and its former names."""
    requested_name, names = request.required("id"), await request.task_names()
    own_names = names.all_of(requested_name)[: history.MAX_NAMES]
    # The main name is the first.
    name = own_names[0]
    counted_names = set(await request.job_names())
    task_list = await request.inspector.tasks()
    states = {state.name: state for state in visible_tasks(task_list, names, request)}
    scheduled_names = {schedule.task for schedule in await _all_schedules(request)}
    # The workers of a task may have ended, so a name that has run or has a schedule is a task too.
    if name in counted_names or name in scheduled_names:
        states.setdefault(name, TaskState(name, due=0, running=0, oldest_due_at=None, workers=0))
    if name not in states or not all(map(request.access.sees_name, (requested_name, name))):
        raise NotFoundError.of("task", requested_name)
    period = await history.read_period(request, own_names)
    limits = [limit for limit in await visible_limits(request) if not set(own_names).isdisjoint(limit.tasks)]
    figures = NameFigures(
        period.total,
        [figure.started for figure in period.figures],
        [count_failed(figure) for figure in period.figures],
    )
    task = row_of(states[name], own_names, figures, limits, history.RANGES[period.range].length)
    # Names under which no job has run would only make the search longer. If no job was counted under any
    # name, all names are searched.
    searched_names = own_names
    if not counted_names.isdisjoint(own_names):
        searched_names = [
            task_name for task_name in own_names if task_name == name or task_name in counted_names
        ]
    where = f"name:{','.join(map(quoted, searched_names))}"
    workers = await request.workers(is_age_shown=True)
    claiming_workers = [worker for worker in workers if worker.is_alive and name in (worker.names or ())]
    groups = await request.read_shared(_read_groups, tuple(own_names), age_s=GROUPS_AGE_S)
    failed_jobs = await request.sample_jobs(f"{where} status:failed", SHOWN, FIGURES_AGE_S)
    charts = await run_in_thread(period.charts, task.oldest_due_at)
    outcomes, _lateness, durations = charts
    ranges = list(history.RANGES)
    longer_ranges = ranges[ranges.index(period.range) + 1 :]
    return View(
        task=task,
        is_capped=task_list.is_capped,
        is_blocked_capped=task_list.is_blocked_capped,
        are_workers_capped=task_list.are_workers_capped,
        range=period.range,
        uncounted=request.uncounted(period.uncounted),
        is_complete=period.is_complete,
        where=where,
        workers={
            worker.worker_id: worker.identity or worker.worker_id for worker in claiming_workers[:MAX_WORKERS]
        },
        limits=limits,
        schedules=await _schedules(own_names, request),
        groups=sorted(request.visible_groups(groups), key=lambda group: -group.count)[:SHOWN],
        failures=[job_row(job, request) for job in failed_jobs],
        settings=await _settings(own_names, request),
        changes=await _changes(own_names[:MAX_CHANGED], request),
        charts=charts,
        # The chart of the lateness has the oldest waiting job, which is no attempt.
        _has_attempts=outcomes.has_values or durations.has_values,
        _period=PERIODS[period.range],
        _longer_range=next(iter(longer_ranges), ""),
        _pause=PauseForm(suspend_expiry="yes"),
        _price=await price_of_pause(name, request) if request.may("task_pause") else None,
    )


async def _read_groups(request: PageRequest, names: tuple[str, ...]) -> Sequence[ErrorGroup]:
    """Return the groups of the errors of a task in the last day."""
    since = request.now - timedelta(days=1)
    return (await request.inspector.error_groups(since=since, limit=MAX_GROUPS, names=names)).items


async def _schedules(names: Sequence[str], request: PageRequest) -> list[dict[str, object]]:
    """Return ten schedules of a task, those that fire next first, without their arguments.

    They are among the first 500 schedules of all tasks.
    """
    schedules = [schedule for schedule in await _all_schedules(request) if schedule.task in names]
    far_future = datetime.max.replace(tzinfo=request.now.tzinfo)

    def position(schedule: Schedule) -> tuple[bool, datetime, str]:
        """Return the sort key: schedules that fire come first, and of these the one that fires next."""
        return not is_firing(schedule), schedule.next_fire_at or far_future, schedule.schedule_id

    schedules.sort(key=position)
    fields = "schedule_id", "described", "next_fire_at", "paused_at", "retired_at"
    return [{name: getattr(schedule, name) for name in fields} for schedule in schedules[:SHOWN]]


async def _all_schedules(request: PageRequest) -> list[Schedule]:
    """Return the first 500 schedules."""
    return await request.read_shared(_read_schedules, age_s=FIGURES_AGE_S)


async def _read_schedules(request: PageRequest) -> list[Schedule]:
    """Read the first schedules of all tasks; requests share the result."""
    return await request.inspector.schedules(limit=MAX_SCHEDULES)


async def _settings(names: Sequence[str], request: PageRequest) -> Mapping[str, object] | None:
    """Return the settings of a task, which its jobs have by default; None if it is not registered here.

    Only a process that has registered the task knows its settings.
    """
    infos = await request.read_shared(_read_infos, age_s=FIGURES_AGE_S)
    info = next((info for info in infos if info.is_registered and info.name in names), None)
    return None if info is None else {name: getattr(info, name) for name in SETTINGS}


async def _read_infos(request: PageRequest) -> Sequence[TaskInfo]:
    """Read the tasks that this process has registered or that are paused; requests share the result."""
    return await request.operations.scheduler.tasks.list()


async def _changes(names: Sequence[str], request: PageRequest) -> list[AuditRecord] | None:
    """Return the last changes of a task; None if the request sees only some names."""
    if request.access.visible_names is not None:
        return None
    records: list[AuditRecord] = []
    for name in names:
        page = await request.inspector.audit(subject=name, limit=SHOWN)
        records += page.items
    records.sort(key=lambda record: record.at, reverse=True)
    return [visible(record, request) for record in records[:SHOWN]]
