"""Find the jobs of a search, one bounded page after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import NamedTuple

from pg_scheduler.inspect.bounds import DEFAULT_BOUNDS, Bounds
from pg_scheduler.inspect.model import SearchPage
from pg_scheduler.inspect.pages import PageReader
from pg_scheduler.inspect.paths import Sort, plan_search
from pg_scheduler.inspect.positions import START, read_now, read_position
from pg_scheduler.inspect.search.conditions import conditions_of
from pg_scheduler.inspect.search.parser import parse_search
from pg_scheduler.inspect.search.terms import Search, Term
from pg_scheduler.inspect.store.searches import Condition
from pg_scheduler.inspect.store.store import InspectionStore


@dataclass(frozen=True, slots=True)
class Wanted:
    """The jobs that are searched.

    Attributes:
        where: The search text.
        tz: The time zone of days, and of times without one; None rejects such times.
        terms: Terms that hold besides.
        sort: The order in which the jobs are read; None for that of the indexes. No change of a job disturbs
            that by ``id``.
    """

    where: str = ""
    tz: tzinfo | None = None
    terms: Sequence[Term] = ()
    sort: Sort | None = None


class FoundPage(NamedTuple):
    """A page, and the conditions that its jobs fulfil."""

    page: SearchPage
    conditions: Sequence[Condition]


async def find_page(
    store: InspectionStore, wanted: Wanted, *, limit: int, after: str | None, bounds: Bounds = DEFAULT_BOUNDS
) -> FoundPage:
    """Return a page of the jobs that are searched. Relative times count from the first page.

    Args:
        store: The tables.
        wanted: The jobs.
        limit: Jobs of the page.
        after: The ``next`` of the page before; None for the first page.
        bounds: How much the page examines.

    Raises:
        SearchError: The search is invalid.
        ConfigurationError: The order needs the index of unsuccessful jobs, and that is missing.
        ValueError: ``after`` is no position of this search.
    """
    async with store.searches.transaction() as connection:
        sizes = await store.searches.sizes(on=connection)
        if after is not None:
            sizes = sizes._replace(now=read_now(after))
        parsed = parse_search(wanted.where, now=sizes.now, tz=wanted.tz)
        search = Search((*parsed.terms, *wanted.terms), parsed.now)
        plan = plan_search(search, sizes.estimates, sort=wanted.sort)
        position = START if after is None else read_position(after, plan)
        conditions = conditions_of(search)
        reader = PageReader(store.searches, plan, conditions, sizes, bounds)
        return FoundPage(await reader.read(position, limit, connection), conditions)
