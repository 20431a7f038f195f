"""The items of the side bar: the lists in groups, with their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.facts import MAX_READ, read_facts
from pg_scheduler.dashboard.findings import ABOUT_NAMES
from pg_scheduler.dashboard.pages import PAGES
from pg_scheduler.errors import SchedulerError
from pg_scheduler.inspect import Severity
from pg_scheduler.inspect.texts import rounded

GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Work": ("/", "/jobs", "/errors", "/schedules", "/calendar"),
    "Capacity": ("/tasks", "/workers", "/limits"),
    "System": ("/doctor", "/audit", "/about"),
}


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


async def read_counts(request: PageRequest) -> Mapping[str, Count]:
    """Return the numbers by the paths of their items; none while the database is unavailable."""
    try:
        facts, names = await read_facts(request), await request.task_names()
    except SchedulerError:
        return {}
    sees = request.access.sees_name

    def number(names: Iterable[str]) -> str:
        count = sum(map(sees, names))
        return f"{count}+" if count >= MAX_READ else str(count)

    errors = number(facts.error_names)
    findings = [each for each in facts.findings if each.code not in ABOUT_NAMES or sees(each.subject)]
    is_error = any(each.severity is Severity.ERROR for each in findings)
    limits = sum(any(map(sees, tasks)) for tasks in facts.limit_tasks)
    counts = {
        "/errors": Count(errors, "groups of errors in the last 24 hours", "bad"),
        "/schedules": Count(number(facts.schedules.values()), "schedules"),
        "/tasks": Count(number(set(map(names.task_of, filter(sees, facts.tasks)))), "tasks"),
        "/workers": Count(str(len(facts.workers)), "live workers", "" if facts.workers else "bad"),
        "/limits": Count(str(limits), "limits"),
        "/doctor": Count(str(len(findings)), "findings", "bad" if is_error else "warn"),
    }
    if request.access.visible_names is None and facts.jobs is not None:
        counts["/jobs"] = Count(rounded(facts.jobs), "jobs, about")
    return {path: count for path, count in counts.items() if count.text != "0" or path == "/workers"}


def item_of(path: str) -> str:
    """Return the path of the item to which a page belongs."""
    page = PAGES.get(path)
    return path if page is None or page.label else page.parent
