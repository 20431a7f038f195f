"""The pages by their paths. Each is built from a request and shown by a template, or as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pg_scheduler.dashboard.access import Access
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.pages import (
    about,
    audit,
    calendar,
    doctor,
    errors,
    find,
    history,
    job,
    job_forms,
    jobs,
    limits,
    overview,
    release,
    run,
    schedule_form,
    schedules,
    task,
    tasks,
    worker,
    workers,
    workflows,
)

LIVE_PARAMETERS: Final = (
    "range", "id", "q", "after", "sort", "cols", "since", "state", "task", "name", "group", "step",
    "stop", "look", "before",
)  # fmt: skip
"""The parameters on which the parts of live pages depend."""


class Page(NamedTuple):
    """A page.

    Attributes:
        build: Reads its data.
        template: The name of its template.
        label: Its name in the navigation; empty if it is not there.
        is_live: Whether parts of it are updated: the blocks ``live_<part>`` of its template.
        parent: The path of the item of the navigation to which it belongs, if it has no label.
        is_for_all_names: Whether it shows what belongs to jobs of all names. Requests with ``names=`` may not
            open it.
        advance: Continues for a moment what the page shows, and returns how far that has come. Streams of the
            page call it. None for a page that has nothing to continue.
    """

    build: Callable[[PageRequest], Awaitable[Any]]
    template: str
    label: str = ""
    is_live: bool = False
    parent: str = ""
    is_for_all_names: bool = False
    advance: Callable[[PageRequest], Awaitable[Hashable]] | None = None


PAGES: Final[dict[str, Page]] = {
    "/": Page(overview.build, "overview", "Overview", is_live=True),
    "/chart": Page(history.build, "chart", parent="/"),
    "/jobs": Page(jobs.build, "jobs", "Jobs", is_live=True, advance=jobs.advance),
    "/job": Page(job.build, "job", is_live=True, parent="/jobs"),
    "/job-form": Page(job_forms.build_form, "job_form", parent="/jobs"),
    "/signal-form": Page(job_forms.build_signal, "signal_form", parent="/jobs"),
    "/workflows": Page(workflows.build, "workflows", "Workflows", is_live=True),
    "/errors": Page(errors.build, "errors", "Errors", is_live=True),
    "/error": Page(errors.build_one, "error_group", is_live=True, parent="/errors"),
    "/release": Page(release.build, "release", is_live=True, parent="/tasks"),
    "/runs": Page(run.build, "runs", parent="/jobs"),
    "/run": Page(run.build_one, "run", is_live=True, parent="/jobs"),
    "/schedules": Page(schedules.build, "schedules", "Schedules", is_live=True),
    "/schedule-form": Page(schedule_form.build, "schedule_form", parent="/schedules"),
    "/schedule": Page(schedules.build_one, "schedule", is_live=True, parent="/schedules"),
    "/schedule-pause": Page(schedules.build_pause, "schedule_pause", parent="/schedules"),
    "/calendar": Page(calendar.build, "calendar", "Calendar"),
    "/tasks": Page(tasks.build, "tasks", "Tasks", is_live=True),
    "/task": Page(task.build, "task", is_live=True, parent="/tasks"),
    "/limits": Page(limits.build, "limits", "Limits", is_live=True),
    "/limit": Page(limits.build_one, "limit", is_live=True, parent="/limits"),
    "/workers": Page(workers.build, "workers", "Workers", is_live=True),
    "/worker": Page(worker.build, "worker", is_live=True, parent="/workers"),
    "/doctor": Page(doctor.build, "doctor", "Doctor"),
    "/find": Page(find.build, "find"),
    "/audit": Page(audit.build, "audit", "Audit", is_for_all_names=True),
    "/about": Page(about.build, "about", "About"),
}

GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Work": ("/", "/jobs", "/workflows", "/errors", "/schedules", "/calendar"),
    "Capacity": ("/tasks", "/workers", "/limits"),
    "System": ("/doctor", "/audit", "/about"),
}
"""The items of the side bar in groups."""


def may_open(path: str, access: Access) -> bool:
    """Return whether a request with these rights may open a page."""
    return access.visible_names is None or not PAGES[path].is_for_all_names


def groups_of(access: Access) -> dict[str, list[str]]:
    """Return the groups of the side bar with the items that a request with these rights may open."""
    return {group: [path for path in paths if may_open(path, access)] for group, paths in GROUPS.items()}


def item_of(path: str) -> str:
    """Return the path of the item of the side bar to which a page belongs.

    A path that is no page, and a page with a label, are returned as they are.
    """
    page = PAGES.get(path)
    return path if page is None or page.label else page.parent
