"""The page that finds jobs, tasks, schedules and workers by a part of their name, and actions after ``>``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.facts import read_facts

MAX_OF_KIND: Final = 8
MAX_QUERY: Final = 200


@dataclass(frozen=True, slots=True)
class Found:
    """What was found.

    Attributes:
        kind: What it is.
        name: Its name.
        url: Its address; empty for a button.
        button: The id of a button of every page; empty for an address.
    """

    kind: str
    name: str
    url: str
    button: str = ""


@dataclass(frozen=True, slots=True)
class FindPage:
    """What has a text in its name."""

    q: str
    items: Sequence[Found]


async def build(request: PageRequest) -> FindPage:
    """Find what the request sees."""
    q = request.parameters.get("q", "").strip()[:MAX_QUERY]
    if q.startswith(">"):
        text = q.removeprefix(">").strip().casefold()
        return FindPage(q, [each for each in _actions(request) if text in each.name.casefold()])
    return FindPage(q, await _objects(q, request) if q else [])


async def _objects(q: str, request: PageRequest) -> list[Found]:
    sees, url, text = request.access.sees_name, request.url, q.casefold()
    facts = await read_facts(request)
    try:
        job = await request.inspector.get_job(q)
    except ValueError:  # no id of a job
        job = None

    def has(*names: str) -> bool:
        return any(text in name.casefold() for name in names)

    found: list[Iterable[Found]] = [
        [Found("job", q, url("/job", id=q))] if job is not None and sees(job.job_name) else [],
        [Found("task", name, url("/task", id=name)) for name in facts.tasks if sees(name) and has(name)],
        [
            Found("schedule", schedule_id, url("/schedule", id=schedule_id))
            for schedule_id, task in facts.schedules.items()
            if sees(task) and has(schedule_id)
        ],
        [
            Found("worker", name, url("/worker", id=worker_id))
            for worker_id, name in facts.workers.items()
            if has(worker_id, name)
        ],
    ]
    return [each for kind in found for each in list(kind)[:MAX_OF_KIND]]


def _actions(request: PageRequest) -> list[Found]:
    """Return what a user can do on every page."""
    adding = [Found("action", "Add a schedule", request.url("/schedule-form"))]
    return [
        *(adding if request.may("schedule_add") else []),
        Found("action", "Show failed jobs", request.search_url(status="failed")),
        Found("action", "Show running jobs", request.search_url(status="running")),
        Found("action", "Show bulk runs", request.url("/runs")),
        Found("action", "Change the theme", "", "theme"),
        Found("action", "Pause or resume updates", "", "pause"),
    ]
