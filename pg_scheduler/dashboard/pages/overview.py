"""The first page: what needs attention, how the jobs of a period ended, what runs, waits and comes next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from pg_scheduler.base.settings import JOB_ROLES
from pg_scheduler.dashboard.cache import in_time
from pg_scheduler.dashboard.context import PageRequest, View
from pg_scheduler.dashboard.findings import FindingRow, folded, read_diagnosis, visible_problems
from pg_scheduler.dashboard.findings import rows_of as finding_rows
from pg_scheduler.dashboard.job_rows import rows_of
from pg_scheduler.dashboard.pages.errors import MAX_GROUPS, new_releases
from pg_scheduler.dashboard.pages.history import HISTORY_AGE_S, RANGES, Period, read_period
from pg_scheduler.dashboard.pages.jobs import state_counts
from pg_scheduler.dashboard.pages.limit_wait import LONG
from pg_scheduler.dashboard.pages.overview_parts import (
    LOAD_PERIOD,
    TaskLoad,
    Tile,
    by_load,
    compared_with,
    later,
    load_of,
    rates,
    slots_in_use,
    usual_s,
    waiting,
    worker_rows,
)
from pg_scheduler.dashboard.pages.release import recent
from pg_scheduler.dashboard.pages.task import PERIODS
from pg_scheduler.dashboard.pages.tasks import visible_tasks
from pg_scheduler.dashboard.pages.workers import attempts_by_worker, slots_of
from pg_scheduler.facts.lateness import (
    count_held,
    describe_nothing_late,
    is_late,
    is_overdue,
    oldest_due,
)
from pg_scheduler.inspect import ErrorGroups, TaskList, TaskState
from pg_scheduler.inspect.audit import read_muted
from pg_scheduler.inspect.names import TaskNames
from pg_scheduler.inspect.schedules import is_firing
from pg_scheduler.inspect.status import STATUS_CODES
from pg_scheduler.inspect.store.statistics import StatisticsRow
from pg_scheduler.inspect.tasks import describe_waiting
from pg_scheduler.inspect.texts import counted
from pg_scheduler.inspect.workers import Attempt
from pg_scheduler.jobs.model import Worker
from pg_scheduler.schedules.schedule import Schedule

SHOWN_GROUPS: Final = 5
SHOWN_FIRES: Final = 6
SHOWN_JOBS: Final = 5
MAX_SCHEDULES: Final = 500
MAX_PROBLEMS: Final = 10


class _SlowFacts(NamedTuple):
    """The facts that change slowly; None for what was not read in time."""

    schedules: Sequence[Schedule] | None
    groups: ErrorGroups | None
    tasks: TaskList | None
    load: Mapping[str, Sequence[StatisticsRow]]
    """The statistics of the last hour by job name; empty if they were not read in time."""
    load_until: datetime | None
    """The end of that hour; None if the statistics were not read in time."""
    read_at: datetime


async def build(request: PageRequest) -> View:
    """Read what the overview shows: findings, statistics of a period, and what runs, waits and comes next.

    Each part of the page is read by itself. One that is not read in time is missing, and ``unread`` names it;
    the other parts are shown. Statistics are shared among all requests for some seconds. Busy slots and
    running jobs are counted from the rows of jobs, because heartbeats report them later.
    """
    inspector, access = request.inspector, request.access
    range_name = request.choice("range", RANGES, "1h")
    # This is the only read without which there is no page: if it fails, the page is an error.
    workers = await inspector.workers()
    period = await in_time(read_period(request))
    slow_facts = await request.read_shared(_read_slow, RANGES[range_name].length, age_s=HISTORY_AGE_S)
    backlog = await in_time(inspector.backlog())
    attempts = await in_time(attempts_by_worker(request))
    running = await in_time(request.search_jobs("status:running", SHOWN_JOBS))
    states = await in_time(state_counts(request))
    diagnosis = await in_time(read_diagnosis(request))
    release = await in_time(recent(request))
    # Numbers of workers and of all jobs are for a request that sees all names.
    is_open = access.visible_names is None
    totals = await inspector.totals() if is_open else None
    # What was read of each part of the page; None if it was not read in time.
    parts = {
        "backlog": backlog,
        "charts": period,
        "errors": slow_facts.groups,
        "findings": diagnosis,
        "fires": slow_facts.schedules,
        "running": running,
        "states": states,
        "tasks": slow_facts.tasks if slow_facts.load_until else None,
    }
    task_names = await request.task_names()
    tasks = visible_tasks(slow_facts.tasks, task_names, request) if slow_facts.tasks else []
    # The backlog has the numbers of due, blocked and running jobs by name.
    name_backlogs = []
    held = frozenset[str]()
    if backlog:
        name_backlogs = [
            name_backlog for name_backlog in backlog.names if access.sees_name(name_backlog.name)
        ]
        # The names whose due jobs are held because their task is paused.
        held = backlog.held
    oldest_due_at = oldest_due(name_backlogs, held)
    live_workers = [worker for worker in workers if worker.is_alive]
    findings = diagnosis.findings if diagnosis else ()
    all_problems = await finding_rows(visible_problems(findings, request), request)
    problems = [row for row in all_problems if not row.is_muted]
    # Without a diagnosis, none of its checks was made.
    unmade_checks = len(diagnosis.not_made) if diagnosis else len(STATUS_CODES)
    missing_parts = [part for part, value in parts.items() if value is None]
    waits_late = is_late(oldest_due_at, request.now)
    error_groups = slow_facts.groups.items if slow_facts.groups else ()
    # As on the page of errors, the largest groups come first.
    visible_groups = sorted(request.visible_groups(error_groups), key=lambda group: -group.count)
    errors = visible_groups[:SHOWN_GROUPS]
    # None stands for what is unknown because the backlog was not read in time.
    due_count = blocked_count = running_count = busy_slots = waiting_text = None
    if backlog:
        due_count = sum(name_backlog.due for name_backlog in name_backlogs)
        blocked_count = sum(name_backlog.blocked for name_backlog in name_backlogs)
        running_count = sum(name_backlog.running for name_backlog in name_backlogs)
        # Jobs of all names, hidden ones too, use the slots.
        busy_slots = sum(name_backlog.running for name_backlog in backlog.names)
        waiting_text = describe_waiting(
            due_count,
            blocked_count,
            is_due_capped=backlog.is_capped,
            is_blocked_capped=backlog.is_blocked_capped,
        )
    is_due_capped = backlog is not None and backlog.is_capped
    slots = sum(map(slots_of, live_workers))
    tiles: list[Tile] = []
    if period is not None:
        tiles = [
            *rates(period),
            waiting(period, waiting_text, oldest_due_at, request.now),
            slots_in_use(period, busy_slots, slots, is_capped=is_due_capped),
        ]
        if is_open:
            tiles.append(later(states))
    # A backlog that was not read in time may contain jobs.
    has_jobs = backlog is None or bool(name_backlogs) or (totals is not None and bool(totals.jobs))
    severities = Counter(problem.severity for problem in problems)
    folded_problems = folded(problems)
    return View(
        sentence=_sentence(
            problems,
            sum(worker.role in JOB_ROLES for worker in live_workers),
            muted=len(all_problems) - len(problems),
            unmade_checks=unmade_checks,
            is_late=waits_late,
            held=count_held(name_backlogs, held),
            has_missing_parts=bool(missing_parts),
        ),
        is_well=not (all_problems or unmade_checks or missing_parts or waits_late),
        problems=problems[:MAX_PROBLEMS],
        number_of_problems=len(problems),
        unread=missing_parts,
        release=release,
        is_new=not (has_jobs or workers or slow_facts.schedules or error_groups or _has_ended(period)),
        workers=len(live_workers),
        dead_workers=len(workers) - len(live_workers),
        slots_busy=busy_slots,
        slots=slots,
        due=due_count,
        is_due_capped=is_due_capped,
        running=running_count,
        blocked=blocked_count,
        is_blocked_capped=backlog is not None and backlog.is_blocked_capped,
        totals=totals,
        range=range_name,
        tiles=tiles,
        charts=[] if period is None else period.charts(oldest_due_at),
        releases=[] if period is None else period.releases,
        is_history_complete=period is None or period.is_complete,
        uncounted=None if period is None else request.uncounted(period.uncounted),
        errors=errors,
        new_in={}
        if slow_facts.groups is None
        else (await new_releases(request, slow_facts.groups)).by_group(errors),
        tasks=by_load(_loads(tasks, task_names, slow_facts)),
        _number_of_errors=len(visible_groups),
        _are_errors_capped=slow_facts.groups is not None and slow_facts.groups.is_capped,
        _number_of_tasks=len(tasks),
        _period=PERIODS[range_name],
        _compared="" if period is None else compared_with(period),
        _are_tasks_capped=slow_facts.tasks is not None and slow_facts.tasks.is_capped,
        _is_task_blocked_capped=slow_facts.tasks is not None and slow_facts.tasks.is_blocked_capped,
        paused={task.name: task.note for task in tasks if task.paused_at is not None},
        next_fires=[
            {
                "at": schedule.next_fire_at,
                "is_overdue": is_overdue(schedule.next_fire_at, slow_facts.read_at),
                "schedule_id": schedule.schedule_id,
                "task": schedule.task,
                "described": schedule.described,
            }
            for schedule in slow_facts.schedules or ()
            if schedule.next_fire_at is not None and access.sees_name(schedule.task)
        ][:SHOWN_FIRES],
        running_jobs=await rows_of(running.items, request) if running else [],
        usual_s={job.job_name: usual_s(slow_facts.load.get(job.job_name, ())) for job in running.items}
        if running
        else {},
        _long=LONG,
        worker_list=worker_rows(workers, request) if is_open else [],
        worker_jobs=_worker_jobs(workers, attempts) if is_open else {},
        _findings=folded_problems[:MAX_PROBLEMS],
        _are_findings_capped=len(folded_problems) > MAX_PROBLEMS,
        _severities=", ".join(counted(number, severity.value) for severity, number in severities.items()),
    )


def _loads(tasks: Sequence[TaskState], task_names: TaskNames, slow_facts: _SlowFacts) -> list[TaskLoad]:
    """Return tasks with their statistics of the last hour; none if these were not read in time."""
    if slow_facts.load_until is None:
        return []
    loads = []
    for task in tasks:
        # A task can have former names, whose statistics count too.
        rows = [row for name in task_names.all_of(task.name) for row in slow_facts.load.get(name, ())]
        loads.append(load_of(task, rows, slow_facts.load_until))
    return loads


def _has_ended(period: Period | None) -> bool:
    """Return whether attempts may have ended in a period; they may if it was not read in time."""
    return period is None or any(period.total.ended)


def _worker_jobs(
    workers: Sequence[Worker], attempts: Mapping[str, Sequence[Attempt]] | None
) -> Mapping[str, int]:
    """Return how many jobs each worker runs.

    If the running jobs were not read in time, the numbers are those of the last heartbeats.
    """
    if attempts is None:
        return {worker.worker_id: worker.running_jobs for worker in workers}
    return {worker_id: len(jobs) for worker_id, jobs in attempts.items()}


async def _read_slow(request: PageRequest, span: timedelta) -> _SlowFacts:
    """Read the facts that change slowly: schedules, the errors of this time span, tasks and their load."""
    inspector, now = request.inspector, request.operations.now
    schedules = await in_time(inspector.schedules(limit=MAX_SCHEDULES, due_before=now + timedelta(days=1)))
    active_schedules = None
    if schedules is not None:
        # is_firing() is also true for a pause that ends by itself, so paused schedules are left out.
        active_schedules = [
            schedule
            for schedule in schedules
            if is_firing(schedule) and schedule.paused_at is None and schedule.next_fire_at is not None
        ]
        # No schedule without a fire time is left: "or now" is for the type checker.
        active_schedules.sort(key=lambda schedule: (schedule.next_fire_at or now, schedule.schedule_id))
    error_groups = await in_time(inspector.error_groups(since=now - span, limit=MAX_GROUPS))
    groups = None
    if error_groups is not None:
        fingerprints = [group.fingerprint for group in error_groups.items]
        muted_ids = await read_muted(inspector, "error", fingerprints, now)
        unmuted_groups = [group for group in error_groups.items if group.fingerprint not in muted_ids]
        groups = replace(error_groups, items=unmuted_groups)
    statistics = await in_time(inspector.statistics(LOAD_PERIOD))
    load: dict[str, list[StatisticsRow]] = {}
    for row in statistics.rows if statistics else ():
        load.setdefault(row.job_name, []).append(row)
    tasks = await in_time(inspector.tasks())
    return _SlowFacts(
        schedules=active_schedules,
        groups=groups,
        tasks=tasks,
        load=load,
        load_until=statistics.until if statistics else None,
        read_at=now,
    )


def _sentence(
    problems: Sequence[FindingRow],
    workers: int,
    *,
    muted: int,
    unmade_checks: int,
    is_late: bool,
    held: int,
    has_missing_parts: bool,
) -> str:
    """Return the headline of the page: the worst problem with its remedy, or that there is none.

    ``unmade_checks`` is the number of checks that could not be made. ``has_missing_parts`` is whether a part
    of the page could not be read.
    """
    if not problems:
        if unmade_checks:
            return f"No problem was found, but {counted(unmade_checks, 'check')} could not be made."
        if muted:
            return f"No unmuted finding, {muted} muted{'; jobs wait late' if is_late else ''}."
        workers_text = counted(workers, "worker")
        if is_late:
            return f"No finding: {workers_text}; jobs wait late."
        # What is missing may be bad, so all is not known to be well.
        if has_missing_parts:
            return f"No finding: {workers_text}."
        return f"All is well: {workers_text}, {describe_nothing_late(held)}."
    worst_problem, other_count = problems[0], len(problems) - 1
    remedy = f"; {worst_problem.remedy}" if worst_problem.remedy else ""
    others_text = ""
    if other_count:
        verb = "is" if other_count == 1 else "are"
        others_text = f". There {verb} {counted(other_count, 'other problem')}"
    return f"{worst_problem.code}: {worst_problem.evidence or worst_problem.meaning}{remedy}{others_text}."
