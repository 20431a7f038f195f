"""Find the jobs of a search, page by page. Each page is bounded in rows and time, whatever the search is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from time import monotonic
from typing import Final

from pg_scheduler.database.session import Connection
from pg_scheduler.inspect.other_jobs import OWN_ERRORS
from pg_scheduler.inspect.paths import Key, Path, Plan, Segment, Sort, plan_search
from pg_scheduler.inspect.positions import START, Position, read_now, read_position, write_position
from pg_scheduler.inspect.search.conditions import conditions_of
from pg_scheduler.inspect.search.parser import parse_search
from pg_scheduler.inspect.search.terms import Search, StatusTerm, Term, TextField, TextTerm
from pg_scheduler.inspect.store.searches import Condition, Examined, Scan, SearchRepository, Sizes
from pg_scheduler.inspect.store.store import InspectionStore
from pg_scheduler.inspect.texts import extent_of
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.validation import check_count

MAX_ROWS: Final = 1_000_000
MAX_MILLISECONDS: Final = 60_000

FIRST_ROWS: Final = 250
"""Rows of the first statement of a page. Each following one examines twice as many, so that rows with large
arguments, or pages that are not in memory, do not exceed the time by much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The maximum that a page of a search, or a call of `error_groups()`, examines.

    A result that reaches a bound states its extent. The next page of a search continues there.

    Raises:
        TypeError: A value is not an int.
        ValueError: A value is out of range.

    Example::

        from pg_scheduler.inspect import Bounds

        page = await Inspector(scheduler, bounds=Bounds(rows=1000)).search_jobs("arg.user:42")
    """

    rows: int = 20_000
    """Jobs that are examined, 1 to 1,000,000."""
    milliseconds: int = 250
    """Milliseconds after which no further statement examines jobs, 1 to 60,000."""

    def __post_init__(self) -> None:
        """Raise an error if a value is no int, or out of range."""
        check_count("rows", self.rows, least=1, most=MAX_ROWS)
        check_count("milliseconds", self.milliseconds, least=1, most=MAX_MILLISECONDS)


DEFAULT_BOUNDS: Final = Bounds()


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A part of the result of a search, and the extent of the search so far.

    A page can be short, or empty, although others follow: it reads a bounded number of rows. Only
    ``is_complete`` shows whether the search has ended.
    """

    items: Sequence[Job]
    """The jobs of the page."""
    searched: int
    """Jobs that were examined, on this page and the pages before it."""
    found: int
    """Jobs that were found, on this page and the pages before it."""
    total_estimate: int | None
    """About how many jobs the whole search examines; None if the table was never analyzed."""
    is_complete: bool
    """Whether every job that can match was examined."""
    next: str | None
    """The ``after=`` of the following page; None if the search is complete."""
    missing_index: str | None = None
    """The index that would shorten this search and does not exist, see `build_indexes()`; None if none is
    missing."""
    order: str = ""
    """The order of the jobs in words, such as ``the newest end first``."""

    @property
    def summary(self) -> str:
        """The numbers of jobs searched and found, in one line, as every front end shows them."""
        extent = extent_of(self.searched, self.total_estimate, is_complete=self.is_complete)
        missing = f"; the index {self.missing_index} is missing" if self.missing_index else ""
        return f"searched {extent}, {self.found:,} found{missing}"


@dataclass(slots=True)
class PageReader:
    """Reads pages of one search.

    Attributes:
        searches: The statements that examine jobs.
        plan: The segments that the search reads: ranges of indexes, one after the other.
        conditions: The conditions that the jobs of a page fulfil.
        sizes: The estimated numbers of rows, and the time to which relative times of the search refer.
        bounds: The maximum that a page examines.
        clock: Returns seconds, by which the time of a page is measured.
    """

    searches: SearchRepository
    plan: Plan
    conditions: Sequence[Condition]
    sizes: Sizes
    bounds: Bounds = DEFAULT_BOUNDS
    clock: Callable[[], float] = field(default=monotonic)

    async def read(self, position: Position, limit: int, connection: Connection) -> SearchPage:
        """Return the page from a position on, with at most ``limit`` jobs.

        Statements examine more and more rows of the segments, until the page is full, a bound is reached, or
        the last segment has no more rows.
        """
        ends_at_s = self.clock() + self.bounds.milliseconds / 1000
        items: list[Job] = []
        # How many rows the page may still examine, and how many its next statement examines.
        rows_left = self.bounds.rows
        rows = max(FIRST_ROWS, limit + 1)
        while position.segment < len(self.plan.segments):
            segment = self.plan.segments[position.segment]
            # A statement examines this number of rows in each range of the segment.
            rows = max(min(rows, rows_left // segment.ranges), 1)
            # One job more than the page has room for shows whether the search continues.
            scan = Scan(self.conditions, limit=limit - len(items) + 1, rows=rows)
            examined = await self._examine(segment, position.key, scan, connection)
            # A segment of ids is examined as a whole. Later segments leave its jobs out, which were found
            # already.
            is_probe = segment.path is Path.IDS
            # Each job comes with the number of rows that were examined up to it.
            matches = [
                (job, number)
                for job, number in examined.jobs
                if is_probe or job.job_id not in self.plan.probed
            ]
            # If there are more jobs than the page has room for, the next page begins behind the last job of
            # this one, and not behind the last examined row.
            if len(items) + len(matches) > limit:
                matches = matches[: limit - len(items)]
                last_job, count = matches[-1]
                items += [job for job, _ in matches]
                position = self._advanced(position, segment, last_job, count, len(matches))
                break
            items += [job for job, _ in matches]
            position = self._advanced(position, segment, examined.last, examined.count, len(matches))
            # If the statement reached neither its maximum of rows nor that of jobs, the segment has no more
            # rows.
            has_no_more = examined.count < scan.rows and len(examined.jobs) < scan.limit
            if is_probe or has_no_more:
                position = position._replace(segment=position.segment + 1, key=())
            rows_left -= examined.count * segment.ranges
            rows *= 2
            if len(items) == limit or rows_left <= 0 or self.clock() >= ends_at_s:
                break
        return self._page(items, position)

    @staticmethod
    def _advanced(
        position: Position, segment: Segment, last: Job | None, count: int, matches: int
    ) -> Position:
        """Return the position after the last examined job; ``last`` is None if no job was examined.

        ``count`` and ``matches`` are the numbers of jobs that were examined and found since ``position``.
        """
        key = position.key if last is None else segment.path.key_of(last)
        return Position(position.segment, key, position.searched + count, position.found + matches)

    def _page(self, items: Sequence[Job], position: Position) -> SearchPage:
        """Return a page with these jobs, after which the search continues at the position."""
        is_complete = position.segment >= len(self.plan.segments)
        return SearchPage(
            items=items,
            searched=position.searched,
            found=position.found,
            total_estimate=position.searched if is_complete else self._total(position.searched),
            is_complete=is_complete,
            next=None if is_complete else write_position(position, self.sizes.now),
            missing_index=self.plan.missing,
            order=self.plan.order,
        )

    def _total(self, searched: int) -> int | None:
        """Return about how many rows the plan has, more than were examined; None if that is unknown."""
        estimates = [self.sizes.estimates.get(name) for name in self.plan.relations]
        total = 0
        for estimate in estimates:
            if estimate is None:
                return None
            total += estimate
        return max(total, searched + 1)

    async def _examine(self, segment: Segment, key: Key, scan: Scan, connection: Connection) -> Examined:
        """Examine jobs of a segment behind a key, or from its start on if the key is empty."""
        start = key or segment.start
        searches = self.searches
        match segment.path:
            case Path.IDS:
                return await self._examine_ids(segment, key, scan, connection)
            case Path.WAITING:
                return await searches.waiting(segment.priority, start, segment.end, scan, on=connection)
            case Path.DUE:
                return await searches.due(segment.priorities, start, segment.end, scan, on=connection)
            case Path.BLOCKED:
                return await searches.blocked(start, scan, on=connection)
            case Path.UNSUCCESSFUL:
                return await searches.unsuccessful(start, segment.end, scan, on=connection)
            case Path.NEWEST:
                before = start[0] if start else None
                return await searches.newest(before, scan, since=segment.first_id, on=connection)

    async def _examine_ids(self, segment: Segment, key: Key, scan: Scan, connection: Connection) -> Examined:
        """Examine all ids of a segment that follow a key; all of its ids without a key."""
        ids = list(segment.ids)
        if key:
            # The key of this path is only an id.
            (previous_id,) = key
            if segment.is_descending:
                ids = [job_id for job_id in segment.ids if job_id < previous_id]
            else:
                ids = [job_id for job_id in segment.ids if job_id > previous_id]
        # All of these ids are examined, and all of them may match.
        scan = scan._replace(limit=len(ids), rows=len(ids))
        examined = await self.searches.ids(ids, scan, on=connection)
        if not segment.is_descending:
            return examined
        # The statement examines ids in ascending order, so each number of examined rows is counted from the
        # end.
        jobs = [(job, examined.count + 1 - number) for job, number in reversed(examined.jobs)]
        return replace(examined, jobs=jobs)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The jobs that are searched.

    Attributes:
        where: The search text.
        tz: The time zone of days, and of times without one; None rejects such times.
        terms: Further terms that hold for the jobs.
        visible: The term of the names that may be seen; None for all names. With it, terms about errors find
            no error that contains the id or the error of another job.
        sort: The order in which the jobs are read; None for the order of the indexes. An id never changes, so
            the order by ``id`` stays the same while jobs change.
        blocked_first: Whether blocked jobs are read before the others and again after them, so that no job is
            missed. The first reading has the jobs that are unblocked meanwhile, and the second one has those
            that become blocked.
    """

    where: str = ""
    tz: tzinfo | None = None
    terms: Sequence[Term] = ()
    visible: TextTerm | None = None
    sort: Sort | None = None
    blocked_first: bool = False

    def search(self, now: datetime) -> tuple[Search, bool]:
        """Return the search with all terms, and whether the terms of its text are all about the status.

        ``now`` is the instant to which relative times refer.
        """
        parsed = parse_search(self.where, now=now, tz=self.tz)
        terms = [*parsed.terms, *self.terms]
        if self.visible is not None:
            terms.append(self.visible)
            # An error may contain the id or the error of another job, whose name the person may not see.
            searches_errors = any(
                isinstance(term, TextTerm) and term.field is TextField.ERROR for term in parsed.terms
            )
            if searches_errors:
                terms.append(OWN_ERRORS)
        is_by_status_alone = all(isinstance(term, StatusTerm) for term in parsed.terms)
        return Search(tuple(terms), parsed.now), is_by_status_alone


async def find_page(
    store: InspectionStore, query: Wanted, *, limit: int, after: str | None, bounds: Bounds = DEFAULT_BOUNDS
) -> tuple[SearchPage, Sequence[Condition]]:
    """Return a page of the jobs that are searched, and the conditions that these jobs fulfil.

    On every page, relative times refer to the time at which the first page was read.

    Raises:
        SearchError: The search is invalid.
        ConfigurationError: The order needs the index of unsuccessful jobs, and that index is missing.
        ValueError: ``after`` is not a position of this search.
    """
    async with store.searches.transaction() as connection:
        sizes = await store.searches.sizes(on=connection)
        # All pages of a search have the time of the first page, so that times such as "-1h" mean the same.
        if after is not None:
            sizes = sizes._replace(now=read_now(after))
        # A search by status alone is a list that a person looks through, which may have another order.
        search, is_list = query.search(sizes.now)
        plan = plan_search(
            search, sizes.estimates, sort=query.sort, is_list=is_list, blocked_first=query.blocked_first
        )
        position = START if after is None else read_position(after, plan)
        conditions = conditions_of(search)
        reader = PageReader(store.searches, plan, conditions, sizes, bounds)
        return await reader.read(position, limit, connection), conditions
