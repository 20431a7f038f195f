"""The page that finds objects by name, and actions after ``>``. It feeds the palette of every page.

One index has tasks, groups of errors, limits, schedules and workers; another one has the actions on them. An
item is found if its text contains all words. If no item is found, each word that no text contains counts as a
typing error, and the most similar one of their words replaces it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from pg_scheduler.dashboard.context import PageRequest, View
from pg_scheduler.dashboard.navigation import NavigationData, read_navigation
from pg_scheduler.dashboard.pages.errors import error_text
from pg_scheduler.dashboard.texts import short
from pg_scheduler.inspect.errors import ErrorGroup
from pg_scheduler.inspect.names import TaskNames
from pg_scheduler.inspect.texts import count, counted

MAX_OF_KIND: Final = 8
MAX_ACTIONS: Final = 20
MAX_QUERY: Final = 200
MAX_NAME: Final = 80

MIN_SIMILARITY: Final = 0.75
MAX_LENGTH_DIFFERENCE: Final = 3
MIN_CORRECTED: Final = 4
"""The characters of the shortest word that is corrected: shorter ones are similar to too many others."""

_SEPARATORS: Final = re.compile(r"[^\w]+")


@dataclass(frozen=True, slots=True)
class FoundItem:
    """What was found.

    Attributes:
        kind: What it is.
        name: Its name.
        url: Its address; empty if it has none.
        button: The id of the button, which every page has, that the item presses; empty for none.
        action: The address of the action that the item sends by POST; empty for none.
        note: Details, such as the task of an error; empty for none.
    """

    kind: str
    name: str
    url: str = ""
    button: str = ""
    action: str = ""
    note: str = ""


class _Entry(NamedTuple):
    """An item of the index, and the text in which words are searched, without capitals."""

    item: FoundItem
    text: str


async def build(request: PageRequest) -> View:
    """Find the visible objects, or after ``>`` the actions, whose names contain the words of ``q``."""
    q = request.parameters.get("q", "").strip()[:MAX_QUERY]
    words = q.removeprefix(">").casefold().split()
    data, names = await read_navigation(request), await request.task_names()
    if q.startswith(">"):
        # Without words, there are no actions on single objects.
        on_objects = _actions_on_objects(data, names, request) if words else ()
        actions = [*_actions_of_every_page(request), *on_objects]
        entries = [_Entry(action, action.name.casefold()) for action in actions]
        items, corrected_query = _find(entries, words)
        return View(
            q=q,
            items=items[:MAX_ACTIONS],
            meant=corrected_query and f"> {corrected_query}",
            _found=_found_text(items[:MAX_ACTIONS], is_capped=len(items) > MAX_ACTIONS),
        )
    if not words:
        return View(q=q, items=[], meant="", _found="", _examples=_examples(data, names, request))
    # A text that is the whole id of a job needs no correction.
    job = await _job(q, request)
    items, corrected_query = _find([*_objects(data, names, request)], words, is_exact=job is not None)
    shown_items = [] if job is None else [job]
    is_capped = data.are_errors_capped or data.are_limits_capped or data.are_tasks_capped
    # Items of the same kind follow one another. At most MAX_OF_KIND of each kind are shown.
    for _, group in groupby(items, lambda item: item.kind):
        items_of_kind = list(group)
        shown_items += items_of_kind[:MAX_OF_KIND]
        is_capped = is_capped or len(items_of_kind) > MAX_OF_KIND
    found = _found_text(shown_items, is_capped=is_capped)
    return View(q=q, items=shown_items, meant=corrected_query, _found=found)


def _found_text(items: Sequence[FoundItem], *, is_capped: bool) -> str:
    """Return how many items the page lists, in words; empty for none."""
    # The list has no buttons of the page itself, which only the palette can press.
    number = sum(not item.button for item in items)
    return f"{count(number, is_capped=is_capped)} found" if number else ""


def _examples(data: NavigationData, names: TaskNames, request: PageRequest) -> list[str]:
    """Return searches that find something: a part of the name of the first object of some kinds."""
    first_items = {entry.item.kind: entry.item for entry in reversed([*_objects(data, names, request)])}
    return [first_items[kind].name for kind in ("task", "schedule", "worker") if kind in first_items]


def _find(
    entries: Sequence[_Entry], words: Sequence[str], *, is_exact: bool = False
) -> tuple[list[FoundItem], str]:
    """Return the items that have all words, and the corrected words as one text if there were typing errors.

    The order of the kinds of items is that of the entries. Of each kind, names that begin with the first word
    come first. ``is_exact`` is whether the words are right as they are, so that they are not corrected.
    """

    def items_with(words: Sequence[str]) -> list[FoundItem]:
        """Return the items that have all of these words, sorted."""
        items = [entry.item for entry in entries if all(word in entry.text for word in words)]
        kinds = list(dict.fromkeys(item.kind for item in items))
        first_word = words[0] if words else ""

        def position(item: FoundItem) -> tuple[int, bool]:
            """Return the sort key of an item."""
            return kinds.index(item.kind), not item.name.casefold().startswith(first_word)

        return sorted(items, key=position)

    items = items_with(words)
    if items or is_exact:
        return items, ""
    texts = [entry.text for entry in entries]
    # Names have parts such as "mail.send", so both the whole names and their parts can be meant.
    vocabulary = {part for text in texts for part in (*text.split(), *_SEPARATORS.split(text))}
    # Only a word that no text contains is a typing error.
    corrected_words = [
        word if any(word in text for text in texts) else _similar(word, vocabulary) for word in words
    ]
    # An empty text stands for a word without a similar one.
    if "" in corrected_words:
        return [], ""
    return items_with(corrected_words), " ".join(corrected_words)


def _similar(word: str, vocabulary: set[str]) -> str:
    """Return the word that was probably meant; an empty text if none is similar."""
    if len(word) < MIN_CORRECTED:
        return ""
    candidates = [
        known_word for known_word in vocabulary if abs(len(known_word) - len(word)) <= MAX_LENGTH_DIFFERENCE
    ]
    # The order of a set differs between processes. The words are sorted, so that each process chooses the
    # same one of several equally similar words.
    best_matches = difflib.get_close_matches(word, sorted(candidates), 1, MIN_SIMILARITY)
    return next(iter(best_matches), "")


async def _job(job_id: str, request: PageRequest) -> FoundItem | None:
    """Return the visible job that has a text as its id; None if there is none."""
    try:
        job = await request.inspector.get_job(job_id)
    except ValueError:
        # No job can have this id.
        return None
    if job is None or not request.access.sees_name(job.job_name):
        return None
    return FoundItem("job", job_id, request.url("/job", id=job_id), note=job.job_name)


def _objects(data: NavigationData, names: TaskNames, request: PageRequest) -> Iterator[_Entry]:
    """Yield an entry for each object that the request sees."""
    sees, url = request.access.sees_name, request.url

    def entry(item: FoundItem, *other_texts: str) -> _Entry:
        """Return the entry of an item that is found by its name and by these other texts."""
        return _Entry(item, " ".join((item.name, *other_texts)).casefold())

    for name in _tasks(data, names, request):
        yield entry(FoundItem("task", name, url("/task", id=name)), *names.all_of(name))
    for group in request.visible_groups(data.errors):
        note = f"{group.job_name}, {counted(group.count, f'{group.state} job', is_capped=group.is_capped)}"
        page = url("/error", id=group.fingerprint)
        yield entry(FoundItem("error", _title(group), page, note=note), group.job_name)
    for name, tasks in data.limits.items():
        if any(map(sees, tasks)):
            yield entry(FoundItem("limit", name, url("/limit", name=name)))
    for schedule_id, task in data.schedules.items():
        if sees(task):
            yield entry(FoundItem("schedule", schedule_id, url("/schedule", id=schedule_id)))
    for worker_id, name in data.workers.items():
        yield entry(FoundItem("worker", name, url("/worker", id=worker_id)), worker_id)


def _title(group: ErrorGroup) -> str:
    """Return the class of an error and its message in one line."""
    return short(": ".join(filter(None, error_text(group.text, group.status))), MAX_NAME)


def _tasks(data: NavigationData, names: TaskNames, request: PageRequest) -> dict[str, None]:
    """Return the main names of the visible tasks, as the keys of a dict, which keeps their order."""
    visible_names = filter(request.access.sees_name, data.tasks)
    return dict.fromkeys(map(names.task_of, visible_names))


def _actions_on_objects(data: NavigationData, names: TaskNames, request: PageRequest) -> Iterator[FoundItem]:
    """Yield the actions on visible tasks, errors, schedules and workers that the request may make.

    A name that ends with an ellipsis leads to a form or a question.
    """
    sees, url, may = request.access.sees_name, request.url, request.may
    paused_tasks = set(map(names.task_of, data.paused_tasks))
    for name in _tasks(data, names, request) if may("task_pause") else ():
        if name in paused_tasks:
            action = url("/actions/tasks/resume", id=name)
            yield FoundItem("action", f"Resume task {name}", action=action)
        else:
            yield FoundItem("action", f"Pause task {name}…", url=f"{url('/task', id=name)}#menu-pause")
    for group in request.visible_groups(data.errors) if may("retry") else ():
        number = count(group.count, is_capped=group.is_capped)
        name = f"Retry {_title(group)} of {group.job_name} ({number})…"
        fingerprint = group.fingerprint
        yield FoundItem("action", name, url=f"{url('/error', id=fingerprint)}#retry-{fingerprint}")
    visible_schedule_ids = [schedule_id for schedule_id, task in data.schedules.items() if sees(task)]
    for schedule_id in visible_schedule_ids:
        if may("schedule_trigger"):
            action = url("/actions/schedules/trigger", id=schedule_id)
            yield FoundItem("action", f"Run schedule {schedule_id}", action=action)
        if may("schedule_pause"):
            verb = "Resume" if schedule_id in data.paused_schedules else "Pause"
            page = url("/schedule-pause", id=schedule_id)
            yield FoundItem("action", f"{verb} schedule {schedule_id}…", url=page)
    # A worker runs jobs of all names, so only a request that sees all names may drain it.
    is_for_all = request.access.visible_names is None
    for worker_id, name in data.workers.items() if may("drain") and is_for_all else ():
        yield FoundItem("action", f"Drain worker {name}…", action=url("/actions/workers/drain", id=worker_id))


def _actions_of_every_page(request: PageRequest) -> list[FoundItem]:
    """Return what a user can do on every page: links to other pages, and buttons of the page itself."""
    forms: list[FoundItem] = []
    if request.may("add"):
        forms.append(FoundItem("action", "Add a job", url=request.url("/job-form")))
    if request.may("schedule_add"):
        forms.append(FoundItem("action", "Add a schedule", url=request.url("/schedule-form")))
    return [
        *forms,
        FoundItem("action", "Show failed jobs", url=request.search_url(status="failed")),
        FoundItem("action", "Show running jobs", url=request.search_url(status="running")),
        FoundItem("action", "Show bulk runs", url=request.url("/runs")),
        FoundItem("action", "Change the theme", button="theme"),
        FoundItem("action", "Pause or resume updates", button="pause"),
    ]
