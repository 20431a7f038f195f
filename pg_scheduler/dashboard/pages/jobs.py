"""The page of jobs: a search, one page of its result, and how far the search got."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pg_scheduler.dashboard.context import PageRequest, RejectedError, View
from pg_scheduler.dashboard.job_rows import SORTS, rows_of, sorted_rows
from pg_scheduler.dashboard.navigation import read_navigation
from pg_scheduler.dashboard.pages.completion import Sample, arguments_with, paths_with
from pg_scheduler.dashboard.positions import read_after, write_next
from pg_scheduler.dashboard.search_bar import (
    ANY_FIELD,
    STATUS_FIELD,
    Term,
    are_all_pending,
    everywhere,
    meant_by,
    state_of,
    tabs_of,
    terms_of,
    text_of,
    words_of,
)
from pg_scheduler.dashboard.search_runs import FoundJobs
from pg_scheduler.inspect import SearchError, SearchPage
from pg_scheduler.inspect.bulk import ALLOWED
from pg_scheduler.inspect.jobs import StateCount, count_states
from pg_scheduler.inspect.paths import BY_ID
from pg_scheduler.inspect.texts import counted, extent_of
from pg_scheduler.jobs.model import Job, Worker


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
        Column("error", "Error, retries", sort="error"),
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
    "pending": ("state", "blocked", "due"),
    "retrying": ("state", "error", "due"),
    "failed": _OF_ENDED,
    "expired": _OF_ENDED,
    "cancelled": _OF_ENDED,
    "completed": ("state", "tags", "retries", "ran", "ended"),
}
_LABELS: Final[Mapping[tuple[str, str], str]] = {
    ("running", "ran"): "Runs for",
    ("pending", "blocked"): "Waits for",
    ("retrying", "error"): "Last error",
    ("retrying", "due"): "Next attempt",
    ("sleeping", "due"): "Sleeps until",
    ("awaiting", "due"): "At the latest",
}


def columns_of(state: str | None, chosen: str) -> list[Column]:
    """Return the columns of the table of jobs, in the order of the table.

    Args:
        state: The state of its jobs; ``pending`` for several states of pending jobs, None for others.
        chosen: The names of columns, separated by blanks; empty for those of the state.

    Raises:
        RejectedError: There is no such column.
    """
    names = chosen.split() or _BY_STATE.get(state or "", ("state", "error", "ran", "when"))
    if unknown_names := [name for name in names if name not in COLUMNS]:
        raise RejectedError(f"cols must be of {', '.join(COLUMNS)}, not {unknown_names[0][:50]!r}")
    columns = [column for name, column in COLUMNS.items() if name in names]
    # In a list of jobs of one state, some columns have a more exact label.
    return [
        column._replace(label=_LABELS.get((state or "", column.name), column.label)) for column in columns
    ]


PAGE_LENGTH: Final = 50

MAX_PLACES: Final = 8
"""The maximum number of fields that the page offers for a word."""

_INDEXED_STATUSES: Final = "status:pending,running,failed,expired,cancelled"
_INDEXED_FIELDS: Final = frozenset({STATUS_FIELD, "limit", "step", "signal", "child"})
"""Fields whose terms let a search read the indexes only."""

COUNTS_AGE_S: Final = 2.0

QUARANTINED_STATE: Final = "quarantined"
"""A state of failed jobs, so their tab counts it."""

ACTIONS: Final = tuple(ALLOWED)
"""The actions on a list whose jobs may have any state."""

NOTHING: Final[Mapping[str, object]] = {
    "q": "",
    "error": None,
    "terms": (),
    "state": None,
    "tabs": (),
    "items": (),
    "early": (),
    "_rows": (),
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
    "places": (),
    "is_searching": False,
    "is_full": False,
    "searched": 0,
    "total_estimate": None,
    "extent": "",
    "order": "",
    "is_unfiltered": False,
    "_head": "",
}
"""The page of a search that is invalid."""


async def build(request: PageRequest) -> View:
    """Search jobs, and return a page of those that were found."""
    # ``typed_query`` is the search as the user typed it. In ``q``, words may get the field ``any`` below, so
    # that they are searched in arguments too.
    typed_query = q = request.parameters.get("q", "").strip()
    sort, cols = request.parameters.get("sort", ""), request.parameters.get("cols", "")
    if sort and sort.removeprefix("-") not in SORTS:
        raise RejectedError(f"sort must be one of {', '.join(SORTS)}, not {sort[:50]!r}")
    counts = await state_counts(request)
    try:
        typed_terms = terms_of(q)
        request.check_search(q)
        q = _searched_text(typed_terms, q, request)
        terms = terms_of(q)
        page, early_jobs = await _read_page(request, q, terms)
    # This is a SearchError, or the address has a position that belongs to another search.
    except ValueError as error:
        suggestions = await _arguments_meant(q, ("arg",), request)
        fields = {"q": q, "error": str(error), "tabs": tabs_of([], counts), "meant": suggestions}
        return View(**{**NOTHING, **fields}, _status=400)
    state = state_of(terms)
    counts = _corrected(counts, page, state, terms)
    # A search that found nothing may contain the name of a worker, so such a search is offered. The names of
    # workers are for those who see all jobs.
    workers: Sequence[Worker] = ()
    if request.access.visible_names is None and not page.items:
        workers = await request.workers()
    rows, early_rows = await rows_of(page.items, request), await rows_of(early_jobs, request)
    shown_rows = [*rows, *early_rows]
    if page.order == BY_ID:
        shown_rows.sort(key=lambda row: row.job_id, reverse=True)
    order = "" if sort else page.order
    is_unfiltered = page.searched == page.found and request.access.visible_names is None
    summary = summary_of(page, request)
    shown_page = replace(page, found=page.found + len(early_rows))
    # If every job that was examined was found, and there are more, the numbers state only the length of the
    # page.
    are_numbers_useful = not is_unfiltered or page.is_complete
    shown_order = order if shown_rows else ""
    is_whole_list = page.is_complete and len(shown_rows) == shown_page.found
    head = _head(
        shown_page,
        shown_order,
        request,
        has_numbers=are_numbers_useful,
        # Jobs of another page may be quarantined too, so the number is shown only on a page that has all.
        quarantined=sum(row.state == QUARANTINED_STATE for row in shown_rows) if is_whole_list else 0,
    )
    is_searching = await _is_searching(request, q)
    suggestions = {} if shown_rows else meant_by(typed_terms, workers)
    # If some values are hidden (redact=), words are not searched in arguments. So terms are offered for those
    # arguments of a sample of jobs in which the words may occur.
    if not shown_rows or not request.settings.redaction.shows_all_values(request.access):
        suggestions |= await _arguments_meant(typed_query, ("", ANY_FIELD), request)
    has_more = not page.is_complete or bool(request.parameters.get("after"))
    sample = await Sample.of([*page.items, *early_jobs], request, is_capped=has_more)
    return View(
        q=q,
        error=None,
        terms=terms,
        state=state,
        tabs=tabs_of(terms, counts),
        items=sorted_rows(rows, sort),
        early=early_rows,
        _rows=sorted_rows(shown_rows, sort),
        summary=summary,
        is_complete=page.is_complete,
        first=page.found - len(page.items) + 1,
        found=page.found,
        total=_total(page, state, terms, counts),
        next=await write_next(request, page.next),
        completions=sample.listed(),
        after=request.parameters.get("after") or None,
        sort=sort,
        cols=cols,
        columns=columns_of("pending" if are_all_pending(terms) else state, cols),
        meant=suggestions,
        places=_places(terms, [*page.items, *early_jobs], request),
        is_searching=is_searching,
        is_full=len(rows) >= PAGE_LENGTH,
        searched=page.searched if request.access.visible_names is None else None,
        total_estimate=page.total_estimate if request.access.visible_names is None else None,
        extent=extent_in(page, request),
        order=order,
        is_unfiltered=is_unfiltered,
        _head=head,
        _actions=sorted({action for row in shown_rows for action in row.actions}) if state else ACTIONS,
    )


def _searched_text(terms: Sequence[Term], q: str, request: PageRequest) -> str:
    """Return a search that finds its words in arguments and metadata too, if the request sees them all."""
    if not request.settings.redaction.shows_all_values(request.access):
        return q
    text = everywhere(terms)
    try:
        request.check_search(text)
    except SearchError:  # With the additional fields, the text has become too long for a search.
        return q
    return text


def _run_key(request: PageRequest, q: str) -> Hashable:
    """Return the key of the run of a search, which requests for the same list with the same rights share.

    A run is a search that continues in the background while viewers look at its list.
    """
    access = request.access
    return q, request.parameters.get("after"), access.visible_names, access.sees_arguments


async def _read_page(request: PageRequest, q: str, terms: Sequence[Term]) -> FoundJobs:
    """Return the page with the jobs that its search has found so far.

    One statement examines a bounded number of jobs, so the first page of a search may lack jobs. Such a
    search gets a run, which the event streams of its viewers continue in parts. While they do, the jobs of
    the run have just been read, so they are shown as they are. Afterwards the first page is read again, and
    so are the other jobs of the run, as far as they still match.
    """
    key, after = _run_key(request, q), await read_after(request)
    run = request.searches.look(key)
    if run is not None and run.is_active:
        return run.shown((), {job.job_id: job for job in (*run.found_jobs, *run.early_jobs)})
    page = await request.search_jobs(q, PAGE_LENGTH, after)
    # Such a page lacks nothing: all jobs were examined, or there is no room for more.
    if page.is_complete or len(page.items) >= PAGE_LENGTH:
        return FoundJobs(page)
    if run is None or run.is_old:
        # Jobs that an index finds early are shown on the first page of a list only.
        early_jobs = [] if after else await _find_early(request, q, terms)
        run = request.searches.begin(key, page, early_jobs, PAGE_LENGTH)
        return run.shown((), {job.job_id: job for job in (*run.found_jobs, *run.early_jobs)})
    return run.shown(page.items, await request.jobs_that_match(q, [*run.found_jobs, *run.early_jobs]))


async def _find_early(request: PageRequest, q: str, terms: Sequence[Term]) -> Sequence[Job]:
    """Return those jobs of a search that are unfinished or unsuccessful, which indexes find soon.

    A search that examines one job after the other may come to these jobs late. There are none for a search
    without terms, or one that reads only indexes anyway.
    """
    if not terms or any(term.field in _INDEXED_FIELDS for term in terms):
        return ()
    try:
        return (await request.search_jobs(f"{q} {_INDEXED_STATUSES}", PAGE_LENGTH)).items
    except SearchError:  # With the additional term, the text has become too long for a search.
        return ()


async def advance(request: PageRequest) -> Hashable:
    """Continue the search of a list for a moment, and return how far it has come; None if it has ended.

    The event stream of the page calls this repeatedly, and sends the page again if the result has changed.
    """
    q = request.parameters.get("q", "").strip()
    # The user has stopped the search.
    if request.parameters.get("stop"):
        return None
    try:
        q = _searched_text(terms_of(q), q, request)
    except SearchError:
        return None

    async def read_part(limit: int, after: str | None) -> SearchPage:
        """Read the jobs of the search that follow a position."""
        return await request.continue_search(q, limit, after)

    # A run exists only for a search that a page has checked.
    return await request.searches.advance(_run_key(request, q), read_part)


async def _is_searching(request: PageRequest, q: str) -> bool:
    """Return whether streams of this page continue its search."""
    run = request.searches.look(_run_key(request, q))
    return run is not None and not run.is_over and not request.parameters.get("stop")


@dataclass(frozen=True, slots=True)
class Place:
    """A field in which a searched word occurs.

    Attributes:
        field: The field.
        value: The word, as the value of a term.
        jobs: The number of jobs of the page that have the word in this field.
        q: The search for these jobs.
    """

    field: str
    value: str
    jobs: int
    q: str


def _places(terms: Sequence[Term], jobs: Sequence[Job], request: PageRequest) -> list[Place]:
    """Return the fields in which the words of a search occur, those of the most jobs of the page first."""
    places: list[Place] = []
    for term in terms:
        if term.field not in {"", ANY_FIELD} or term.is_negated:
            continue
        # The value is taken as it was typed, with its quotes. A word without a field is searched as a part of
        # a value, for which "~" stands.
        value = term.text.partition(":")[2] if term.field else f"~{term.text.lstrip('~')}"
        for field, number in paths_with(term.value, jobs, request).most_common():
            q = f"{term.rest} {field}:{value}".strip()
            try:
                request.check_search(q)
            except SearchError:  # If some values are hidden (redact=), parts of values may not be searched.
                continue
            places.append(Place(field, value, number, q))
    return sorted(places, key=lambda place: (-place.jobs, place.field))[:MAX_PLACES]


async def _arguments_meant(q: str, fields: Collection[str], request: PageRequest) -> dict[str, str]:
    """Return terms about arguments that a user may mean by the words of a search.

    Each term, such as ``arg.user.id:42``, leads to the whole search with this term in the place of the words.
    The words are the terms of the search that have one of these fields; a word without a field has the empty
    one. The result is empty without such words, or if the search is invalid.
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
    """Return the counts by state; that of the listed state is at least the number of jobs that were found.

    The counts are read before the list, and requests share them for some seconds. Without this, the head of
    the list and its tab would disagree about jobs that started or ended in between.
    """
    # Only a list of all jobs, or of all jobs of a state, can be compared with a count.
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
    # The counts are those of all jobs (the empty state), and of all jobs of each state. A search for a state
    # has one term, and a search for all jobs has none.
    has_other_terms = len(terms) != (1 if state else 0)
    count = None if state is None or has_other_terms else counts.get(state)
    # A count that is lower than what was found is out of date.
    if count is None or count.number < page.found:
        return ""
    return text_of(count)


async def state_counts(request: PageRequest) -> Mapping[str, StateCount]:
    """Return the numbers of all jobs by state; none if the request may not see them."""
    if request.access.visible_names is not None:
        return {}
    counts = await request.read_shared(_read_counts, age_s=COUNTS_AGE_S)
    # The side bar shows the number of all jobs too, from a read that all pages share. It is used here, so
    # that both numbers agree. The empty state stands for all jobs.
    job_count = (await read_navigation(request)).jobs
    if job_count is None:
        return counts
    return {**counts, "": StateCount(job_count, is_estimated=True)}


async def _read_counts(request: PageRequest) -> Mapping[str, StateCount]:
    """Count all jobs by state; requests share the result."""
    return await count_states(request.inspector)


def extent_in(page: SearchPage, request: PageRequest) -> str:
    """Return how many jobs were searched; empty if the request may not see the number of all jobs."""
    if request.access.visible_names is not None:
        return ""
    return extent_of(page.searched, page.total_estimate, is_complete=page.is_complete)


def _head(page: SearchPage, order: str, request: PageRequest, *, has_numbers: bool, quarantined: int) -> str:
    """Return the text at the head of the list: the number of its jobs, and their order.

    How many jobs were searched is stated only while some are left to be searched.

    Args:
        page: What was found.
        order: The order of the jobs in words; empty for none.
        request: The request.
        has_numbers: Whether the numbers state more than the length of the page.
        quarantined: How many of the failed jobs are quarantined; 0 if that is unknown.
    """
    sees_all = request.access.visible_names is None
    missing = f"the index {page.missing_index} is missing" if page.missing_index and sees_all else ""
    if page.is_complete:
        parts = f"{quarantined:,} of them quarantined" if quarantined else ""
        list_text = ", ".join(filter(None, (counted(page.found, "job"), parts, order)))
        return "; ".join(filter(None, (list_text, missing)))
    if not has_numbers:
        return order
    numbers = summary_of(page, request)
    if sees_all:
        extent = extent_of(page.searched, page.total_estimate, is_complete=False)
        numbers = f"{page.found:,} found, {extent} searched"
    return "; ".join(filter(None, (numbers, missing, order)))


def summary_of(page: SearchPage, request: PageRequest) -> str:
    """Return what was found; what was searched only if the request may see the number of all jobs."""
    if request.access.visible_names is None:
        return page.summary
    incompleteness = "" if page.is_complete else "; the search is not complete"
    return f"{page.found:,} found{incompleteness}"
