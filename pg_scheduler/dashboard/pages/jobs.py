"""The page of jobs: a search, one page of its result, and how far the search got."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from pg_scheduler.dashboard.context import PageRequest, RejectedError, View
from pg_scheduler.dashboard.job_rows import SORTS, rows_of, sorted_rows
from pg_scheduler.dashboard.pages.completion import Sample, arguments_with
from pg_scheduler.dashboard.positions import read_after, write_next
from pg_scheduler.dashboard.search_bar import (
    ORDERS,
    Term,
    meant_by,
    state_of,
    tabs_of,
    terms_of,
    text_of,
    words_of,
)
from pg_scheduler.inspect import SearchError, SearchPage
from pg_scheduler.inspect.bulk import ALLOWED
from pg_scheduler.inspect.jobs import StateCount, count_states
from pg_scheduler.inspect.texts import extent_of


class Column(NamedTuple):
    """A column, except that of the task."""

    name: str
    label: str
    is_number: bool = False
    sort: str = ""
    """The value of ``sort=`` that sorts by it; empty for none."""


COLUMNS: Final[Mapping[str, Column]] = {
    column.name: column
    for column in (
        Column("state", "State", sort="status"),
        Column("error", "Error", sort="error"),
        Column("blocked", "Blocked by"),
        Column("progress", "Progress", sort="progress"),
        Column("worker", "Worker", sort="worker"),
        Column("schedule", "Schedule", sort="schedule"),
        Column("tags", "Tags", sort="tags"),
        Column("retries", "Retries", is_number=True, sort="attempt"),
        Column("priority", "Priority", sort="priority"),
        Column("ran", "Ran", is_number=True, sort="ran"),
        Column("created", "Created", is_number=True, sort="created"),
        Column("due", "Due", is_number=True, sort="due"),
        Column("ended", "Ended", is_number=True, sort="ended"),
        Column("when", "Time", is_number=True, sort="when"),
    )
}
"""Every column, in the order of the table."""

_OF_ENDED: Final = ("state", "error", "ran", "ended")
_OF_WAITING: Final = ("state", "tags", "retries", "due")
_BY_STATE: Final[Mapping[str, Sequence[str]]] = {
    "due": ("state", "tags", "priority", "due"),
    "running": ("state", "progress", "worker", "ran"),
    "scheduled": _OF_WAITING,
    "sleeping": _OF_WAITING,
    "awaiting": _OF_WAITING,
    "blocked": ("state", "blocked", "tags", "due"),
    "retrying": ("state", "error", "due"),
    "failed": _OF_ENDED,
    "expired": _OF_ENDED,
    "cancelled": _OF_ENDED,
    "completed": ("state", "tags", "retries", "ran", "ended"),
}
_LABELS: Final[Mapping[tuple[str, str], str]] = {
    ("running", "ran"): "Runs for",
    ("retrying", "error"): "Last error",
    ("retrying", "due"): "Next attempt",
    ("sleeping", "due"): "Sleeps until",
    ("awaiting", "due"): "At the latest",
}


def columns_of(state: str | None, chosen: str) -> list[Column]:
    """Return the columns of a list.

    Args:
        state: The state of its jobs; None for several.
        chosen: The names of columns, separated by blanks; empty for those of the state.

    Raises:
        RejectedError: There is no such column.
    """
    names = chosen.split() or _BY_STATE.get(state or "", ("state", "error", "ran", "when"))
    if unknown := [name for name in names if name not in COLUMNS]:
        raise RejectedError(f"cols must be of {', '.join(COLUMNS)}, not {unknown[0][:50]!r}")
    columns = [column for name, column in COLUMNS.items() if name in names]
    return [
        column._replace(label=_LABELS.get((state or "", column.name), column.label)) for column in columns
    ]


PAGE_LENGTH: Final = 50

COUNTS_AGE_S: Final = 2.0

ACTIONS: Final = tuple(ALLOWED)
"""The actions on a list whose jobs may have any state."""

NOTHING: Final[Mapping[str, object]] = {
    "q": "",
    "error": None,
    "terms": (),
    "state": None,
    "tabs": (),
    "items": (),
    "summary": "",
    "is_complete": False,
    "first": 0,
    "found": 0,
    "total": "",
    "next": None,
    "completions": (),
    "after": None,
    "sort": "",
    "cols": "",
    "columns": (),
    "meant": {},
    "order": "",
    "is_unfiltered": False,
    "_head": "",
}
"""The page of a search that is invalid."""


async def build(request: PageRequest) -> View:
    """Search jobs, and return a page of those that were found."""
    q = request.parameters.get("q", "").strip()
    sort, cols = request.parameters.get("sort", ""), request.parameters.get("cols", "")
    if sort and sort.removeprefix("-") not in SORTS:
        raise RejectedError(f"sort must be one of {', '.join(SORTS)}, not {sort[:50]!r}")
    counts = await state_counts(request)
    try:
        terms = terms_of(q)
        request.check_search(q)
        page = await request.search_jobs(q, PAGE_LENGTH, await read_after(request))
    except ValueError as error:  # a SearchError, or an address with a position of another search
        meant = await _arguments_meant(q, ("arg",), request)
        fields = {"q": q, "error": str(error), "tabs": tabs_of([], counts), "meant": meant}
        return View(**{**NOTHING, **fields}, _status=400)
    state = state_of(terms)
    counts = _corrected(counts, page, state, terms)
    workers = await request.workers() if request.access.visible_names is None and not page.items else ()
    rows = await rows_of(page.items, request)
    order = "" if sort or state is None or len(terms) > 1 else ORDERS[state]
    is_unfiltered = page.searched == page.found and request.access.visible_names is None
    summary = summary_of(page, request)
    # The numbers state nothing if every job that was examined was found and there are more.
    says_nothing = is_unfiltered and not page.is_complete
    numbers = "" if says_nothing else _head(page, request)
    shown_order = order if rows else ""
    return View(
        q=q,
        error=None,
        terms=terms,
        state=state,
        tabs=tabs_of(terms, counts),
        items=sorted_rows(rows, sort),
        summary=summary,
        is_complete=page.is_complete,
        first=page.found - len(page.items) + 1,
        found=page.found,
        total=_total(page, state, terms, counts),
        next=await write_next(request, page.next),
        completions=(await Sample.of(page.items, request)).listed(),
        after=request.parameters.get("after") or None,
        sort=sort,
        cols=cols,
        columns=columns_of(state, cols),
        meant={} if rows else meant_by(terms, workers) | await _arguments_meant(q, ("",), request),
        order=order,
        is_unfiltered=is_unfiltered,
        _head="; ".join(filter(None, (numbers, shown_order))),
        _actions=sorted({action for row in rows for action in row.actions}) if state else ACTIONS,
    )


async def _arguments_meant(q: str, fields: Collection[str], request: PageRequest) -> dict[str, str]:
    """Return terms about arguments that a user may mean by words with these fields, with the whole searches.

    There are none without such words, or if the search is invalid.
    """
    try:
        words = words_of(terms_of(q), fields)
    except SearchError:
        return {}
    if words is None:
        return {}
    texts = await arguments_with(words.value, words.other_terms, request)
    return {text: f"{words.other_terms} {text}".strip() for text in texts}


def _corrected(
    counts: Mapping[str, StateCount], page: SearchPage, state: str | None, terms: Sequence[Term]
) -> Mapping[str, StateCount]:
    """Return the counts by state, of which the state that is listed has at least the number that was found.

    The counts are read before the list, and requests share them for some seconds. The head of the list and
    its tab would disagree about jobs that started or ended in between.
    """
    if state is None or state not in counts or len(terms) > 1:
        return counts
    if page.is_complete:
        return {**counts, state: StateCount(page.found)}
    if counts[state].number >= page.found:
        return counts
    return {**counts, state: StateCount(page.found, is_capped=True)}


def _total(
    page: SearchPage, state: str | None, terms: Sequence[Term], counts: Mapping[str, StateCount]
) -> str:
    """Return how many jobs a search finds; empty if that is unknown.

    A search that is not complete has a number if it has no other term than a state that was counted.
    """
    if page.is_complete:
        return f"{page.found:,}"
    count = counts.get(state) if state is not None and len(terms) <= 1 else None
    if count is None or count.number < page.found:
        return ""
    return text_of(count)


async def state_counts(request: PageRequest) -> Mapping[str, StateCount]:
    """Return the numbers of all jobs by state; none if the request may not see them."""
    if request.access.visible_names is not None:
        return {}
    return await request.read_shared(_read_counts, age_s=COUNTS_AGE_S)


async def _read_counts(request: PageRequest) -> Mapping[str, StateCount]:
    return await count_states(request.inspector)


def _head(page: SearchPage, request: PageRequest) -> str:
    """Return the summary of the head of the list: what was found, then what was searched."""
    if request.access.visible_names is not None:
        return summary_of(page, request)
    extent = extent_of(page.searched, page.total_estimate, is_complete=page.is_complete)
    missing = f"; the index {page.missing_index} is missing" if page.missing_index else ""
    return f"{page.found:,} found, {extent} searched{missing}"


def summary_of(page: SearchPage, request: PageRequest) -> str:
    """Return what was found; what was searched only if the request may see the number of all jobs."""
    if request.access.visible_names is None:
        return page.summary
    return f"{page.found:,} found" + ("" if page.is_complete else "; the search is not complete")
