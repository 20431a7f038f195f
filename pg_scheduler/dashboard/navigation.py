"""The items of the side bar: the lists in groups, with numbers that many requests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.findings import ABOUT_NAMES
from pg_scheduler.dashboard.pages import PAGES
from pg_scheduler.errors import SchedulerError
from pg_scheduler.inspect import Finding, Severity
from pg_scheduler.inspect.status import STATUS_CODES, problems_of
from pg_scheduler.inspect.texts import rounded
from pg_scheduler.status import JobStatus

GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Work": ("/", "/jobs", "/errors", "/schedules", "/calendar"),
    "Capacity": ("/tasks", "/workers", "/limits"),
    "System": ("/doctor", "/audit", "/about"),
}
"""The paths of the items."""

COUNTS_AGE_S: Final = 30.0
"""Seconds for which the numbers are kept."""

ERRORS_SINCE: Final = timedelta(days=1)
MAX_COUNTED: Final = 500


@dataclass(frozen=True, slots=True)
class Count:
    """The number of an item.

    Attributes:
        text: The number.
        note: What it counts.
        tone: ``"bad"`` or ``"warn"`` if it calls for attention.
    """

    text: str
    note: str
    tone: str = ""


class _Facts(NamedTuple):
    """What is counted, by the names that decide who sees it."""

    jobs: int | None
    error_names: Sequence[str]
    schedule_tasks: Sequence[str]
    task_names: Sequence[str]
    workers: int
    limit_tasks: Sequence[Sequence[str]]
    findings: Sequence[Finding]


async def read_counts(request: PageRequest) -> Mapping[str, Count]:
    """Return the numbers by the paths of their items; none while the database is unavailable."""
    try:
        facts = await request.cache.get("counts", COUNTS_AGE_S, lambda: _read(request), is_data=False)
    except SchedulerError:
        return {}
    sees, is_open = request.access.sees_name, request.access.visible_names is None
    errors = sum(map(sees, facts.error_names))
    findings = [each for each in facts.findings if each.code not in ABOUT_NAMES or sees(each.subject)]
    is_error = any(each.severity is Severity.ERROR for each in findings)
    limits = sum(any(map(sees, tasks)) for tasks in facts.limit_tasks)
    counts = {
        "/errors": Count(_number(errors), "groups of errors in the last 24 hours", "bad" if errors else ""),
        "/schedules": Count(_number(sum(map(sees, facts.schedule_tasks))), "schedules"),
        "/tasks": Count(_number(sum(map(sees, facts.task_names))), "tasks"),
        "/workers": Count(_number(facts.workers), "live workers", "" if facts.workers else "bad"),
        "/limits": Count(_number(limits), "limits"),
        "/doctor": Count(_number(len(findings)), "findings", "bad" if is_error else "warn"),
    }
    if is_open and facts.jobs is not None:
        counts["/jobs"] = Count(rounded(facts.jobs), "jobs, about")
    return {path: count for path, count in counts.items() if count.text != "0" or path == "/workers"}


async def _read(request: PageRequest) -> _Facts:
    """Read what is counted, each within the bounds of its page."""
    inspector = request.inspector
    totals = await inspector.totals()
    groups = await inspector.error_groups(since=request.now - ERRORS_SINCE, limit=MAX_COUNTED)
    schedules = await inspector.schedules(limit=MAX_COUNTED)
    limit_tasks: dict[str, list[str]] = {}  # by name: workers may declare several numbers
    for limit in (await inspector.limits()).items:
        limit_tasks.setdefault(limit.name, []).extend(limit.tasks)
    return _Facts(
        jobs=totals.jobs,
        error_names=[each.job_name for each in groups.items if each.status is not JobStatus.CANCELLED],
        schedule_tasks=[each.task for each in schedules],
        task_names=[each.name for each in (await inspector.tasks()).items],
        workers=sum(each.is_alive for each in await inspector.workers()),
        limit_tasks=list(limit_tasks.values()),
        findings=problems_of((await inspector.doctor(only=STATUS_CODES)).findings),
    )


def _number(count: int) -> str:
    return f"{count}+" if count >= MAX_COUNTED else str(count)


def item_of(path: str) -> str:
    """Return the path of the item to which a page belongs."""
    page = PAGES.get(path)
    return path if page is None or page.label else page.parent
