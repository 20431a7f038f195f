"""The page that finds jobs, tasks, schedules and workers by a part of their name, and actions after ``>``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pg_scheduler.dashboard.context import PageRequest, View
from pg_scheduler.dashboard.navigation import NavigationData, read_navigation

MAX_OF_KIND: Final = 8
MAX_ACTIONS: Final = 20
MAX_QUERY: Final = 200


@dataclass(frozen=True, slots=True)
class FoundItem:
    """What was found.

    Attributes:
        kind: What it is.
        name: Its name.
        url: Its address; empty if it has none.
        button: The id of the button, which every page has, that the item presses; empty for none.
        action: The address of the action that the item sends by POST; empty for none.
    """

    kind: str
    name: str
    url: str = ""
    button: str = ""
    action: str = ""


async def build(request: PageRequest) -> View:
    """Find what the request sees."""
    q = request.parameters.get("q", "").strip()[:MAX_QUERY]
    if q.startswith(">"):
        return View(q=q, items=await _actions(q.removeprefix(">").casefold().split(), request))
    return View(q=q, items=await _objects(q, request) if q else [])


async def _objects(q: str, request: PageRequest) -> list[FoundItem]:
    """Return the job with this id, and the other objects whose names contain the text."""
    sees, url, text = request.access.sees_name, request.url, q.casefold()
    data, names = await read_navigation(request), await request.task_names()
    tasks = dict.fromkeys(map(names.task_of, filter(sees, data.tasks)))
    try:
        job = await request.inspector.get_job(q)
    except ValueError:  # no id of a job
        job = None

    def has(*names: str) -> bool:
        return any(text in name.casefold() for name in names)

    kinds: list[Iterable[FoundItem]] = [
        [FoundItem("job", q, url("/job", id=q))] if job is not None and sees(job.job_name) else [],
        [FoundItem("task", name, url("/task", id=name)) for name in tasks if has(*names.all_of(name))],
        [
            FoundItem("schedule", schedule_id, url("/schedule", id=schedule_id))
            for schedule_id, task in data.schedules.items()
            if sees(task) and has(schedule_id)
        ],
        [
            FoundItem("worker", name, url("/worker", id=worker_id))
            for worker_id, name in data.workers.items()
            if has(worker_id, name)
        ],
    ]
    return [item for kind in kinds for item in list(kind)[:MAX_OF_KIND]]


async def _actions(words: Sequence[str], request: PageRequest) -> list[FoundItem]:
    """Return the actions that the request may make and that have all words in their names.

    Those that begin with the first word come first. Without words, there are no actions on single objects.
    """
    objects = _to_objects(await read_navigation(request), request) if words else ()
    named_actions = (
        (action.name.casefold(), action) for action in (*_actions_of_every_page(request), *objects)
    )
    matches = [(name, action) for name, action in named_actions if all(word in name for word in words)]
    first_word = words[0] if words else ""
    matches.sort(key=lambda match: not match[0].startswith(first_word))
    return [action for _, action in matches[:MAX_ACTIONS]]


def _to_objects(data: NavigationData, request: PageRequest) -> Iterator[FoundItem]:
    """Yield the actions on visible tasks, schedules and workers that the request may make."""
    sees, url, may = request.access.sees_name, request.url, request.may
    for name in filter(sees, data.tasks) if may("task_pause") else ():
        verb = "resume" if name in data.paused_tasks else "pause"
        action = url(f"/actions/tasks/{verb}", id=name)
        yield FoundItem("action", f"{verb.capitalize()} task {name}", action=action)
    for schedule_id in [schedule_id for schedule_id, task in data.schedules.items() if sees(task)]:
        if may("schedule_trigger"):
            action = url("/actions/schedules/trigger", id=schedule_id)
            yield FoundItem("action", f"Run schedule {schedule_id}", action=action)
        if may("schedule_pause"):  # its page asks for a note, or what becomes of the fire times
            verb = "Resume" if schedule_id in data.paused_schedules else "Pause"
            yield FoundItem(
                "action", f"{verb} schedule {schedule_id}…", url=url("/schedule-pause", id=schedule_id)
            )
    is_for_all = request.access.visible_names is None
    for worker_id, name in data.workers.items() if may("drain") and is_for_all else ():
        yield FoundItem("action", f"Drain worker {name}…", action=url("/actions/workers/drain", id=worker_id))


def _actions_of_every_page(request: PageRequest) -> list[FoundItem]:
    """Return what a user can do on every page: links to other pages, and buttons of the page itself."""
    adding = [FoundItem("action", "Add a schedule", url=request.url("/schedule-form"))]
    return [
        *(adding if request.may("schedule_add") else []),
        FoundItem("action", "Show failed jobs", url=request.search_url(status="failed")),
        FoundItem("action", "Show running jobs", url=request.search_url(status="running")),
        FoundItem("action", "Show bulk runs", url=request.url("/runs")),
        FoundItem("action", "Change the theme", button="theme"),
        FoundItem("action", "Pause or resume updates", button="pause"),
    ]
