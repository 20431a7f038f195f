"""The pages by their paths. Each is a dataclass, built from a request and shown by a template."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.pages import errors, job, jobs, schedules, tasks, workers

__all__ = ["PAGES", "Page"]


class Page(NamedTuple):
    """A page.

    Attributes:
        build: Reads its data.
        template: The name of its template.
        label: Its name in the navigation; empty if it is not there.
    """

    build: Callable[[PageRequest], Awaitable[Any]]
    template: str
    label: str = ""


PAGES: Final[dict[str, Page]] = {
    "/": Page(jobs.build, "jobs"),
    "/jobs": Page(jobs.build, "jobs", "Jobs"),
    "/job": Page(job.build, "job"),
    "/errors": Page(errors.build, "errors", "Errors"),
    "/schedules": Page(schedules.build, "schedules", "Schedules"),
    "/schedule": Page(schedules.build_one, "schedule"),
    "/tasks": Page(tasks.build, "tasks", "Tasks"),
    "/workers": Page(workers.build, "workers", "Workers"),
    "/worker": Page(workers.build_one, "worker"),
}
