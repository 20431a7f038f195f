"""The first page: a sentence about the state, numbers, charts, the next fire times and the newest errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from pg_scheduler.dashboard.charts import Chart, Mark
from pg_scheduler.dashboard.context import PageRequest, time_of
from pg_scheduler.dashboard.pages.doctor import ABOUT_NAMES, FindingRow, row_of
from pg_scheduler.dashboard.pages.history import HISTORY_AGE_S, RANGES, read_period
from pg_scheduler.inspect import ErrorGroup, Finding, Totals
from pg_scheduler.inspect.status import STATUS_CODES, all_is_well, problems_of
from pg_scheduler.inspect.texts import counted
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.status import JobStatus

MAX_GROUPS: Final = 1000
SHOWN_GROUPS: Final = 5
SHOWN_FIRES: Final = 10
MAX_SCHEDULES: Final = 500
MAX_PROBLEMS: Final = 10


@dataclass(frozen=True, slots=True)
class NextFire:
    """The next fire time of a schedule."""

    at: datetime
    schedule_id: str
    task: str


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """The state of the jobs that the request may see."""

    sentence: str
    problems: Sequence[FindingRow]
    """The findings of the doctor for which `pg-scheduler status` does not say that all is well either."""
    paused: Mapping[str, str | None]
    """The notes of paused tasks by name."""
    workers: int
    dead_workers: int
    slots_busy: int
    slots: int
    due: int
    is_due_capped: bool
    running: int
    blocked: int | None
    """Blocked jobs; None if only some names are visible."""
    totals: Totals | None
    """About how many jobs there are; None if only some names are visible."""
    range: str
    charts: Sequence[Chart]
    releases: Sequence[Mark]
    """When releases first started within the range, the newest first."""
    is_history_complete: bool
    """Whether the charts contain all statistics of their range."""
    uncounted: str | None
    """Which live workers count nothing, so that the charts lack their attempts, without their names if only
    some job names are visible; None if all count."""
    next_fires: Sequence[NextFire]
    errors: Sequence[ErrorGroup]

    @property
    def ranges(self) -> Sequence[str]:
        """The values of ``range`` to choose from."""
        return list(RANGES)


class _History(NamedTuple):
    """The facts that change slowly."""

    schedules: Sequence[Schedule]
    groups: Sequence[ErrorGroup]
    pauses: Mapping[str, str | None]
    """The notes of paused tasks."""


async def build(request: PageRequest) -> OverviewPage:
    """Read the state; the statistics are shared among all requests for some seconds."""
    period = await read_period(request)
    since = RANGES[period.range][0]
    history = await request.cache.get(("history", period.range), HISTORY_AGE_S, lambda: _read(request, since))
    workers = await request.inspector.workers()
    backlog = await request.inspector.backlog()
    sees, is_open = request.access.sees_name, request.access.visible_names is None
    names = [each for each in backlog.names if sees(each.name)]
    oldest = min((each.oldest_due_at for each in names if each.oldest_due_at), default=None)
    alive = [worker for worker in workers if worker.is_alive]
    diagnosis = await request.cache.get(
        "status", HISTORY_AGE_S, lambda: request.inspector.doctor(only=STATUS_CODES)
    )
    problems = _problems(diagnosis.findings, request)
    busy, slots = sum(each.running_jobs for each in alive), sum(each.max_concurrent_jobs for each in alive)
    return OverviewPage(
        sentence=_sentence(problems, len(alive), busy, slots),
        problems=problems[:MAX_PROBLEMS],
        paused={name: note for name, note in history.pauses.items() if sees(name)},
        workers=len(alive),
        dead_workers=len(workers) - len(alive),
        slots_busy=busy,
        slots=slots,
        due=sum(each.due for each in names),
        is_due_capped=backlog.is_capped,
        running=sum(each.running for each in names),
        blocked=sum(backlog.blocked.values()) if is_open else None,
        totals=await request.inspector.totals() if is_open else None,
        range=period.range,
        charts=period.charts(oldest),
        releases=period.releases,
        is_history_complete=period.is_complete,
        uncounted=request.uncounted(period.uncounted),
        next_fires=[
            NextFire(each.next_fire_at, each.schedule_id, each.task)
            for each in history.schedules
            if each.next_fire_at is not None and sees(each.task)
        ][:SHOWN_FIRES],
        errors=[group for group in history.groups if sees(group.job_name)][:SHOWN_GROUPS],
    )


async def _read(request: PageRequest, since: timedelta) -> _History:
    inspector, now = request.inspector, time_of(request.inspector)
    schedules = await inspector.schedules(limit=MAX_SCHEDULES, due_before=now + timedelta(days=1))
    active = [each for each in schedules if each.paused_at is None and each.next_fire_at is not None]
    active.sort(key=lambda each: (each.next_fire_at or now, each.schedule_id))
    found = await inspector.error_groups(since=now - since, limit=MAX_GROUPS)
    groups = [group for group in found.items if group.status is not JobStatus.CANCELLED]
    pauses = {task.name: task.note for task in (await inspector.tasks()).items if task.paused_at is not None}
    return _History(active, groups, pauses)


def _problems(findings: Sequence[Finding], request: PageRequest) -> list[FindingRow]:
    """Return what needs attention, the worst first, without findings about names that are hidden."""
    shown = [
        row_of(each, request)
        for each in problems_of(findings)
        if each.code not in ABOUT_NAMES or request.access.sees_name(each.subject)
    ]
    return list(dict.fromkeys(shown))


def _sentence(problems: Sequence[FindingRow], workers: int, busy: int, slots: int) -> str:
    if not problems:
        return all_is_well(workers, busy, slots)
    worst, others = problems[0], len(problems) - 1
    remedy = f"; {worst.remedy}" if worst.remedy else ""
    more = f". There {'is' if others == 1 else 'are'} {counted(others, 'other problem')}" if others else ""
    return f"{worst.code}: {worst.evidence or worst.meaning}{remedy}{more}."
