"""What the side bar counts and the field of the top bar finds: one read that all requests share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

from pg_scheduler.dashboard.cache import in_time
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.findings import DIAGNOSIS_AGE_S, read_diagnosis, visible_problems
from pg_scheduler.errors import SchedulerError
from pg_scheduler.inspect import Severity
from pg_scheduler.inspect.audit import finding_id, read_muted
from pg_scheduler.inspect.errors import ErrorGroup
from pg_scheduler.inspect.texts import count, rounded

AGE_S: Final = 30.0
ERRORS_SINCE: Final = timedelta(days=1)

MAX_READ: Final = 500
"""Schedules and groups of errors that are counted; more are shown with a plus."""


class NavigationData(NamedTuple):
    """What all requests share. Each of them shows only what belongs to the names that it may see.

    Attributes:
        jobs: About how many jobs there are; None if it is unknown.
        errors: The groups of errors that are not muted.
        schedules: The task of each schedule by its id.
        tasks: The names of tasks; none if they were not read in time.
        workers: The names of live workers by their ids.
        limits: The tasks of each limit by its name.
        paused_schedules: The ids of paused schedules.
        paused_tasks: The names of paused tasks.
        are_errors_capped: Whether a bound has cut the groups of errors, so that there may be more.
        are_limits_capped: Whether a bound has cut the limits.
        are_tasks_capped: Whether a bound has cut the tasks.
        is_new: Whether there is nothing yet: no job, task, schedule, worker or error.
    """

    jobs: int | None
    errors: Sequence[ErrorGroup]
    schedules: dict[str, str]
    tasks: Sequence[str]
    workers: dict[str, str]
    limits: dict[str, list[str]]
    paused_schedules: frozenset[str]
    paused_tasks: frozenset[str]
    are_errors_capped: bool
    are_limits_capped: bool
    are_tasks_capped: bool
    is_new: bool


async def read_navigation(request: PageRequest) -> NavigationData:
    """Return what the side bar counts, at most 30 seconds old. It is about all names, also hidden ones.

    Raises:
        SchedulerError: The database is unavailable.
    """
    return await request.read_shared(_read, age_s=AGE_S, is_age_shown=False)


async def _read(request: PageRequest) -> NavigationData:
    """Read the data of all names, whichever the request may see."""
    inspector = request.inspector
    now = request.now
    groups = (await inspector.error_groups(since=now - ERRORS_SINCE, limit=MAX_READ)).items
    muted_ids = await read_muted(inspector, "error", (group.fingerprint for group in groups), now)
    # A limit has several items if workers declare different numbers of it, so its tasks are joined by name.
    limits: dict[str, list[str]] = {}
    limit_list = await inspector.limits()
    for limit in limit_list.items:
        limits.setdefault(limit.name, []).extend(limit.tasks)
    schedules = await inspector.schedules(limit=MAX_READ)
    task_list = await in_time(inspector.tasks())
    tasks = () if task_list is None else task_list.items
    workers = await inspector.workers()
    jobs = (await inspector.totals()).jobs
    return NavigationData(
        jobs=jobs,
        errors=[group for group in groups if group.fingerprint not in muted_ids],
        schedules={schedule.schedule_id: schedule.task for schedule in schedules},
        tasks=[task.name for task in tasks],
        workers={
            worker.worker_id: worker.identity or worker.worker_id for worker in workers if worker.is_alive
        },
        limits=limits,
        paused_schedules=frozenset(
            schedule.schedule_id for schedule in schedules if schedule.paused_at is not None
        ),
        paused_tasks=frozenset(task.name for task in tasks if task.paused_at is not None),
        are_errors_capped=len(groups) >= MAX_READ,
        are_limits_capped=limit_list.is_capped,
        are_tasks_capped=task_list is not None and (task_list.is_capped or task_list.is_blocked_capped),
        # Tasks that were not read in time may exist.
        is_new=not (jobs or workers or groups or schedules or tasks) and task_list is not None,
    )


async def _read_muted(request: PageRequest, ids: tuple[str, ...]) -> Collection[str]:
    """Return which of these findings are muted now; requests share the result."""
    return await read_muted(request.inspector, "finding", ids, request.operations.now)


@dataclass(frozen=True, slots=True)
class Count:
    """The number that an item of the side bar shows.

    Attributes:
        text: The number.
        note: What it counts.
        tone: ``"bad"`` or ``"warn"`` if it calls for attention.
    """

    text: str
    note: str
    tone: str = ""


async def read_counts(request: PageRequest) -> Mapping[str, Count]:
    """Return the numbers by the paths of their items; none while the database is unavailable."""
    try:
        data, names = await read_navigation(request), await request.task_names()
        problems = visible_problems((await read_diagnosis(request, is_age_shown=False)).findings, request)
        muted_ids = await request.read_shared(
            _read_muted, tuple(map(finding_id, problems)), age_s=DIAGNOSIS_AGE_S, is_age_shown=False
        )
    except SchedulerError:
        return {}
    sees = request.access.sees_name

    def number(names: Iterable[str], *, is_capped: bool) -> str:
        """Return how many of these names are visible, as a text."""
        return count(sum(map(sees, names)), is_capped=is_capped)

    errors = number((group.job_name for group in data.errors), is_capped=data.are_errors_capped)
    findings = [finding for finding in problems if finding_id(finding) not in muted_ids]
    has_error = any(finding.severity is Severity.ERROR for finding in findings)
    findings_tone = "bad" if has_error else "warn"
    # A limit is visible if one of its tasks is. Each True counts as 1.
    limit_count = sum(any(map(sees, tasks)) for tasks in data.limits.values())
    limits = count(limit_count, is_capped=data.are_limits_capped)
    # A task with several names counts once, by its main name.
    tasks = set(map(names.task_of, filter(sees, data.tasks)))
    # Nothing calls for attention in a new installation, in which there are no workers yet.
    workers_tone = "" if data.workers or data.is_new else "bad"
    counts = {
        "/errors": Count(errors, "groups of errors in the last 24 hours", "bad"),
        "/schedules": Count(
            number(data.schedules.values(), is_capped=len(data.schedules) >= MAX_READ), "schedules"
        ),
        "/tasks": Count(count(len(tasks), is_capped=data.are_tasks_capped), "tasks"),
        "/workers": Count(str(len(data.workers)), "live workers", workers_tone),
        "/limits": Count(limits, "limits"),
        "/doctor": Count(str(len(findings)), "findings", "" if data.is_new else findings_tone),
    }
    if request.access.visible_names is None and data.jobs:
        counts["/jobs"] = Count(f"~{rounded(data.jobs)}", "jobs, about")
    # A count of 0 is not shown, except that of workers: without live workers, no job runs.
    return {path: entry for path, entry in counts.items() if entry.text != "0" or path == "/workers"}
