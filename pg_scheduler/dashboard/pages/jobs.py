"""The page of jobs: a search, one page of its result, and how far the search got."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from functools import partial
from typing import Final

from pg_scheduler.dashboard.columns import COLUMNS, Column, columns_of
from pg_scheduler.dashboard.context import PageRequest, RejectedError
from pg_scheduler.dashboard.job_rows import SORTS, JobRow, rows_of, sorted_rows
from pg_scheduler.dashboard.pages.completion import Completion, Sample, arguments_with
from pg_scheduler.dashboard.positions import read_after, write_next
from pg_scheduler.dashboard.search_bar import (
    ORDERS,
    Tab,
    Term,
    meant_by,
    state_of,
    tabs_of,
    terms_of,
    text_of,
    words_of,
)
from pg_scheduler.inspect import SearchError, SearchPage, parse_search
from pg_scheduler.inspect.bulk import ALLOWED
from pg_scheduler.inspect.search.parser import FIELDS
from pg_scheduler.inspect.states import StateCount, count_states

PAGE_LENGTH: Final = 50

COUNTS_AGE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class JobsPage:
    """A page of a search."""

    q: str
    """The search."""
    error: str | None
    """Why the search is invalid; None if it is not."""
    terms: Sequence[Term] = ()
    """Its terms."""
    state: str | None = None
    """The state that it names; empty for all, None for several."""
    tabs: Sequence[Tab] = ()
    items: Sequence[JobRow] = ()
    summary: str = ""
    """The numbers of jobs searched and found."""
    is_complete: bool = False
    first: int = 0
    """The number of the first job of this page among those that were found."""
    found: int = 0
    """The jobs that were found, on this page and those before."""
    total: str = ""
    """The number of jobs that the whole search finds; empty if it is unknown."""
    next: str | None = None
    """The position of the following page; None if the search is complete."""
    completions: Sequence[Completion] = ()
    """Terms to choose from."""
    after: str | None = None
    """The position of this page; None for the first one."""
    sort: str = ""
    """The column by which the jobs of this page are sorted; empty for the order of the search."""
    cols: str = ""
    """The names of the columns that the address chooses; empty for those of the state."""
    columns: Sequence[Column] = ()
    meant: Mapping[str, str] = field(default_factory=dict)
    """Terms that may be meant by those that find nothing, with their searches."""
    order: str = ""
    """The order in which the search reads the jobs; empty if the terms or the page have another one."""
    is_unfiltered: bool = False
    """Whether all jobs that were searched so far were found; not stated to those who see only some names."""

    @property
    def http_status(self) -> int:
        """The status of the answer."""
        return 200 if self.error is None else 400

    @property
    def head(self) -> str:
        """What was found, unless that is all that was searched so far, and the order."""
        found = "" if self.is_unfiltered and not self.is_complete else self.summary
        return "; ".join(filter(None, (found, self.order if self.items else "")))

    @property
    def actions(self) -> Sequence[str]:
        """The actions that some job allows; all of them for jobs of several states."""
        if not self.state:
            return [action.removesuffix("_jobs") for action in ALLOWED]
        return sorted({each for row in self.items for each in row.actions})

    @property
    def fields(self) -> Sequence[str]:
        """The terms of a search, as examples."""
        return [f"{field}:{value}" for field, value in FIELDS.items()]

    @property
    def all_columns(self) -> Sequence[Column]:
        """The columns to choose from."""
        return list(COLUMNS.values())

    def direction_of(self, sort: str) -> str:
        """Return how the jobs are sorted by a column: ``asc``, ``desc``, or not."""
        if not sort or self.sort.removeprefix("-") != sort:
            return ""
        return "desc" if self.sort.startswith("-") else "asc"


async def build(request: PageRequest) -> JobsPage:
    """Search jobs."""
    q = request.parameters.get("q", "").strip()
    sort, cols = request.parameters.get("sort", ""), request.parameters.get("cols", "")
    if sort.removeprefix("-") not in {"", *SORTS}:
        raise RejectedError(f"sort must be one of {', '.join(SORTS)}, not {sort[:50]!r}")
    counts = await state_counts(request)
    try:
        terms = terms_of(q)
        search = parse_search(q, now=request.now, tz=UTC)
        request.settings.redaction.check_search(search, request.access)
        page = await request.inspector.search_jobs(
            q,
            limit=PAGE_LENGTH,
            after=await read_after(request),
            tz=UTC,
            names=request.access.visible_names,
        )
    except ValueError as error:  # a SearchError, or an address with a position of another search
        meant = await _arguments_meant(q, ("arg",), request)
        return JobsPage(q, str(error), state=None, tabs=tabs_of([], counts), meant=meant)
    state = state_of(terms)
    workers = await request.workers() if request.access.visible_names is None and not page.items else ()
    return JobsPage(
        q,
        None,
        terms,
        state,
        tabs_of(terms, counts),
        sorted_rows(await rows_of(page.items, request), sort),
        summary_of(page, request),
        page.is_complete,
        page.found - len(page.items) + 1,
        page.found,
        _total(page, state, terms, counts),
        await write_next(request, page.next),
        (await Sample.of(page.items, request)).listed(),
        request.parameters.get("after") or None,
        sort,
        cols,
        columns_of(state, cols),
        {} if page.items else meant_by(terms, workers) | await _arguments_meant(q, ("",), request),
        "" if sort or state is None or len(terms) > 1 else ORDERS[state],
        page.searched == page.found and request.access.visible_names is None,
    )


async def _arguments_meant(q: str, fields: Collection[str], request: PageRequest) -> dict[str, str]:
    """Return terms of arguments that may be meant by words with these fields, with their searches."""
    try:
        words = words_of(terms_of(q), fields)
    except SearchError:
        return {}
    if words is None:
        return {}
    found = await arguments_with(words.value, words.others, request)
    return {text: f"{words.others} {text}".strip() for text in found}


def _total(
    page: SearchPage, state: str | None, terms: Sequence[Term], counts: Mapping[str, StateCount]
) -> str:
    """Return how many jobs a search finds, if it is complete, or only names a state that was counted."""
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
    return await request.cache.get("states", COUNTS_AGE_S, partial(count_states, request.inspector))


def summary_of(page: SearchPage, request: PageRequest) -> str:
    """Return what was found; what was searched only if the request may see the number of all jobs."""
    if request.access.visible_names is None:
        return page.summary
    return f"{page.found:,} found" + ("" if page.is_complete else "; the search is not complete")
