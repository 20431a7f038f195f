"""The page of a task: its state, charts and errors, what enqueues, limits and claims its jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.base.threads import run_in_thread
from pg_scheduler.dashboard.context import NotFoundError, PageRequest, View
from pg_scheduler.dashboard.job_rows import row_of as job_row
from pg_scheduler.dashboard.pages import history, job_forms
from pg_scheduler.dashboard.pages.audit import visible
from pg_scheduler.dashboard.pages.errors import frequent_values, read_groups
from pg_scheduler.dashboard.pages.tasks import (
    FIGURES_AGE_S,
    NameFigures,
    row_of,
    visible_limits,
    visible_tasks,
)
from pg_scheduler.dashboard.pauses import PauseForm
from pg_scheduler.facts.outcomes import count_failed
from pg_scheduler.inspect import AuditRecord, TaskState
from pg_scheduler.inspect.texts import quoted
from pg_scheduler.jobs.model import Job
from pg_scheduler.schedules.schedule import Schedule

MAX_WORKERS: Final = 20
MAX_CHANGED: Final = 5
MAX_SCHEDULES: Final = 500
SHOWN: Final = 10
SAMPLE: Final = 50
"""The newest ended jobs of a task that are read: each with its arguments."""

SETTINGS: Final = ("max_retries", "timeout", "misfire_grace_time", "priority", "executor", "keep_result")


async def build(request: PageRequest) -> View:
    """Read a task under any of its names."""
    asked, names = request.required("id"), await request.task_names()
    own = names.all_of(asked)[: history.MAX_NAMES]
    name = own[0]
    counted = set(await request.cache.get("job names", FIGURES_AGE_S, request.inspector.job_names))
    states = {each.name: each for each in visible_tasks(await request.inspector.tasks(), names, request)}
    scheduled = {schedule.task for schedule in await _all_schedules(request)}
    if name in counted or name in scheduled:  # its workers may have ended
        states.setdefault(name, TaskState(name, 0, 0, None, 0))
    if name not in states or not all(map(request.access.sees_name, (asked, name))):
        raise NotFoundError.of("task", asked)
    period = await history.read_period(request, own)
    limits = [each for each in await visible_limits(request) if not set(own).isdisjoint(each.tasks)]
    figures = NameFigures(
        period.total,
        [each.started for each in period.figures],
        [count_failed(each) for each in period.figures],
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
    return View(
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
        values=[(each.label, each.jobs) for each in frequent_values(ended, request)],
        settings=await _settings(own, request),
        changes=await _changes(own[:MAX_CHANGED], request),
        charts=await run_in_thread(period.charts, task.oldest_due_at),
        _pause=PauseForm(),
    )


async def _schedules(names: Sequence[str], request: PageRequest) -> list[dict[str, object]]:
    """Return schedules of a task among the first 500, without arguments, those that fire next first."""
    schedules = [schedule for schedule in await _all_schedules(request) if schedule.task in names]
    far = datetime.max.replace(tzinfo=request.now.tzinfo)
    schedules.sort(key=lambda each: (each.paused_at is not None, each.next_fire_at or far, each.schedule_id))
    return [
        {name: getattr(each, name) for name in ("schedule_id", "described", "next_fire_at", "paused_at")}
        for each in schedules[:SHOWN]
    ]


async def _all_schedules(request: PageRequest) -> list[Schedule]:
    """Return the first 500 schedules."""

    async def read() -> list[Schedule]:
        return await request.inspector.schedules(limit=MAX_SCHEDULES)

    return await request.cache.get("schedules of tasks", FIGURES_AGE_S, read)


async def _ended(where: str, request: PageRequest) -> list[Job]:
    """Return the last ended jobs of a task that started, the oldest first."""
    jobs = await request.sample_jobs(f"{where} status:completed,failed", SAMPLE, FIGURES_AGE_S)
    ended = [job for job in jobs if job.finished_at is not None and job.started_at is not None]
    ended.sort(key=lambda job: job.finished_at or request.now)
    return ended


def _like(jobs: Sequence[Job], request: PageRequest) -> str | None:
    """Return the id of the last job if the form can show all its arguments to the request."""
    return jobs[-1].job_id if jobs and job_forms.can_add_like(jobs[-1], request) else None


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
