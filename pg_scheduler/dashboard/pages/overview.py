"""The first page: what needs attention, how the jobs of a period ended, what runs, waits and comes next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from pg_scheduler.dashboard.charts import Chart, Mark
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.findings import ABOUT_NAMES, FindingRow
from pg_scheduler.dashboard.findings import rows_of as finding_rows
from pg_scheduler.dashboard.job_rows import JobRow, rows_of
from pg_scheduler.dashboard.pages.errors import ErrorText, error_text
from pg_scheduler.dashboard.pages.history import HISTORY_AGE_S, RANGES, read_period
from pg_scheduler.dashboard.pages.jobs import state_counts
from pg_scheduler.dashboard.pages.overview_lists import (
    LOAD_PERIOD,
    TaskLoad,
    by_load,
    load_of,
    usual_s,
    worker_rows,
)
from pg_scheduler.dashboard.pages.overview_tiles import Tile, later, rates, slots_in_use, waiting
from pg_scheduler.dashboard.pages.workers import RUNNING_AGE_S, WorkerRow
from pg_scheduler.inspect import ErrorGroup, Finding, TaskState, Totals
from pg_scheduler.inspect.attempts import running_attempts
from pg_scheduler.inspect.mutes import is_muted, read_mutes
from pg_scheduler.inspect.status import STATUS_CODES, problems_of
from pg_scheduler.inspect.store.schedules import OVERDUE_S
from pg_scheduler.inspect.store.statistics import StatisticsRow
from pg_scheduler.inspect.texts import counted
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.status import JobStatus

MAX_GROUPS: Final = 1000
SHOWN_GROUPS: Final = 5
SHOWN_FIRES: Final = 6
SHOWN_JOBS: Final = 5
MAX_SCHEDULES: Final = 500
MAX_PROBLEMS: Final = 10


@dataclass(frozen=True, slots=True)
class NextFire:
    """The next fire time of a schedule."""

    at: datetime
    is_overdue: bool
    """Whether it had passed by a minute when it was read."""
    schedule_id: str
    task: str
    described: str


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """The state of the jobs that the request may see."""

    sentence: str
    """The worst problem, or that all is well."""
    is_well: bool
    """Whether there is no problem, none is muted, and no job waits late."""
    problems: Sequence[FindingRow]
    """The findings of the doctor for which `pg-scheduler status` does not say that all is well either."""
    is_new: bool
    """Whether nothing was ever scheduled, as far as the request sees, and no worker has started."""
    workers: int
    dead_workers: int
    slots_busy: int
    """The number of running jobs of all names, as their rows say, which heartbeats say later."""
    slots: int
    due: int
    is_due_capped: bool
    running: int
    blocked: int | None
    """Blocked jobs; None if only some names are visible."""
    totals: Totals | None
    """About how many jobs there are; None if only some names are visible."""
    range: str
    tiles: Sequence[Tile]
    charts: Sequence[Chart]
    releases: Sequence[Mark]
    """When releases first started within the range, the newest first."""
    is_history_complete: bool
    """Whether the charts contain all statistics of their range."""
    uncounted: str | None
    """Which live workers count nothing, so that the charts lack their attempts, without their names if only
    some job names are visible; None if all count."""
    errors: Sequence[ErrorGroup]
    tasks: Sequence[TaskLoad]
    paused: Mapping[str, str | None]
    """The notes of paused tasks by name."""
    next_fires: Sequence[NextFire]
    running_jobs: Sequence[JobRow]
    usual_s: Mapping[str, float | None]
    """The duration that half of the attempts of the last hour did not exceed, by the names of these jobs."""
    worker_list: Sequence[WorkerRow]
    """The first workers; none if only some names are visible."""
    worker_jobs: Mapping[str, int]
    """The running jobs of workers by their ids, as the rows of the jobs say."""

    @property
    def ranges(self) -> Sequence[str]:
        """The values of ``range`` to choose from."""
        return list(RANGES)

    @property
    def severities(self) -> str:
        """How many problems there are of each severity."""
        found = Counter(each.severity for each in self.problems)
        return ", ".join(counted(number, severity.value) for severity, number in found.items())

    def text(self, group: ErrorGroup) -> ErrorText:
        """Return the class and the message of the newest error of a group."""
        return error_text((group.example.splitlines() or [""])[0], group.status)

    def began_in(self, group: ErrorGroup) -> str | None:
        """Return the release of the range that had started last when the first error of a group was found."""
        return next((each.label for each in self.releases if each.at <= group.first_at), None)


class _Slow(NamedTuple):
    """The facts that change slowly."""

    schedules: Sequence[Schedule]
    groups: Sequence[ErrorGroup]
    tasks: Sequence[TaskState]
    load: Mapping[str, Sequence[StatisticsRow]]
    """The statistics of the last hour by job name."""
    load_until: datetime
    read_at: datetime


async def build(request: PageRequest) -> OverviewPage:
    """Read the state; the statistics are shared among all requests for some seconds."""
    inspector, access = request.inspector, request.access
    period = await read_period(request)
    since = RANGES[period.range][0]
    slow = await request.cache.get(("overview", period.range), HISTORY_AGE_S, lambda: _read(request, since))
    workers = await inspector.workers()
    backlog = await inspector.backlog()
    attempts = await request.cache.get("running attempts", RUNNING_AGE_S, lambda: running_attempts(inspector))
    running = await inspector.search_jobs("status:running", limit=SHOWN_JOBS, names=access.visible_names)
    diagnosis = await request.cache.get("status", HISTORY_AGE_S, lambda: inspector.doctor(only=STATUS_CODES))
    is_open = access.visible_names is None
    totals = await inspector.totals() if is_open else None
    names = [each for each in backlog.names if access.sees_name(each.name)]
    oldest = min((each.oldest_due_at for each in names if each.oldest_due_at), default=None)
    alive = [worker for worker in workers if worker.is_alive]
    found = await _problems(diagnosis.findings, request)
    problems = [row for row in found if not row.is_muted]
    due, busy = sum(each.due for each in names), sum(each.running for each in backlog.names)
    slots, blocked = sum(each.max_concurrent_jobs for each in alive), sum(backlog.blocked.values())
    wait = waiting(period, due, oldest, request.now, is_capped=backlog.is_capped)
    return OverviewPage(
        sentence=_sentence(
            problems, len(alive), muted=len(found) - len(problems), is_late=wait.mood == "warn"
        ),
        is_well=not found and wait.mood != "warn",
        problems=problems[:MAX_PROBLEMS],
        is_new=not (workers or names or blocked or slow.schedules or slow.groups or any(period.total.ended))
        and not (totals is not None and totals.jobs),
        workers=len(alive),
        dead_workers=len(workers) - len(alive),
        slots_busy=busy,
        slots=slots,
        due=due,
        is_due_capped=backlog.is_capped,
        running=sum(each.running for each in names),
        blocked=blocked if is_open else None,
        totals=totals,
        range=period.range,
        tiles=[
            *rates(period),
            wait,
            slots_in_use(period, busy, slots),
            *([later(await state_counts(request))] if is_open else []),
        ],
        charts=period.charts(oldest),
        releases=period.releases,
        is_history_complete=period.is_complete,
        uncounted=request.uncounted(period.uncounted),
        errors=[group for group in slow.groups if access.sees_name(group.job_name)][:SHOWN_GROUPS],
        tasks=by_load(
            [
                load_of(task, slow.load.get(task.name, ()), slow.load_until)
                for task in slow.tasks
                if access.sees_name(task.name)
            ]
        ),
        paused={
            task.name: task.note
            for task in slow.tasks
            if task.paused_at is not None and access.sees_name(task.name)
        },
        next_fires=[
            NextFire(
                each.next_fire_at,
                (slow.read_at - each.next_fire_at).total_seconds() > OVERDUE_S,
                each.schedule_id,
                each.task,
                each.described,
            )
            for each in slow.schedules
            if each.next_fire_at is not None and access.sees_name(each.task)
        ][:SHOWN_FIRES],
        running_jobs=await rows_of(running.items, request),
        usual_s={job.job_name: usual_s(slow.load.get(job.job_name, ())) for job in running.items},
        worker_list=worker_rows(workers, request) if is_open else [],
        worker_jobs={each: len(jobs) for each, jobs in attempts.items()} if is_open else {},
    )


async def _read(request: PageRequest, since: timedelta) -> _Slow:
    inspector, now = request.inspector, request.operations.now
    schedules = await inspector.schedules(limit=MAX_SCHEDULES, due_before=now + timedelta(days=1))
    active = [each for each in schedules if each.paused_at is None and each.next_fire_at is not None]
    active.sort(key=lambda each: (each.next_fire_at or now, each.schedule_id))
    found = await inspector.error_groups(since=now - since, limit=MAX_GROUPS)
    groups = [group for group in found.items if group.status is not JobStatus.CANCELLED]
    muted = await read_mutes(inspector, "error", (group.fingerprint for group in groups))
    groups = [group for group in groups if not is_muted(muted.get(group.fingerprint, ()), now)]
    statistics = await inspector.statistics(LOAD_PERIOD)
    load: dict[str, list[StatisticsRow]] = {}
    for row in statistics.rows:
        load.setdefault(row.job_name, []).append(row)
    return _Slow(active, groups, (await inspector.tasks()).items, load, statistics.until, now)


async def _problems(findings: Sequence[Finding], request: PageRequest) -> list[FindingRow]:
    """Return what needs attention, the worst first, without what is about names that are hidden."""
    sees = request.access.sees_name
    seen = [each for each in problems_of(findings) if each.code not in ABOUT_NAMES or sees(each.subject)]
    return await finding_rows(seen, request)


def _sentence(problems: Sequence[FindingRow], workers: int, *, muted: int, is_late: bool) -> str:
    if not problems:
        if muted:
            return f"No unmuted finding, {muted} muted{'; jobs wait late' if is_late else ''}."
        start, end = ("No finding", "; jobs wait late") if is_late else ("All is well", ", nothing late")
        return f"{start}: {counted(workers, 'worker')}{end}."
    worst, others = problems[0], len(problems) - 1
    remedy = f"; {worst.remedy}" if worst.remedy else ""
    more = f". There {'is' if others == 1 else 'are'} {counted(others, 'other problem')}" if others else ""
    return f"{worst.code}: {worst.evidence or worst.meaning}{remedy}{more}."
