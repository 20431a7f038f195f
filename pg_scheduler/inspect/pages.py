"""Read one page of a search: bounded in rows and time, whatever the search is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final

from pg_scheduler.inspect.bounds import DEFAULT_BOUNDS, Bounds
from pg_scheduler.inspect.model import SearchPage
from pg_scheduler.inspect.paths import Key, Path, Plan, Segment
from pg_scheduler.inspect.positions import Position, write_position
from pg_scheduler.inspect.store.searches import Condition, Examined, Scan, SearchRepository, Sizes
from pg_scheduler.jobs.model import Job
from pg_scheduler.store.connections.session import Connection

FIRST_ROWS: Final = 250
"""Rows of the first statement of a page. Each following one examines twice as many, so that rows with large
arguments, or pages that are not in memory, do not exceed the time by much."""


@dataclass(slots=True)
class PageReader:
    """Reads pages of one search."""

    searches: SearchRepository
    plan: Plan
    conditions: Sequence[Condition]
    sizes: Sizes
    bounds: Bounds = DEFAULT_BOUNDS
    clock: Callable[[], float] = field(default=monotonic)

    async def read(self, position: Position, limit: int, connection: Connection) -> SearchPage:
        """Return the page from a position on, with ``limit`` jobs at most."""
        ends_at = self.clock() + self.bounds.milliseconds / 1000
        items: list[Job] = []
        rows_left, rows = self.bounds.rows, max(FIRST_ROWS, limit + 1)
        while position.segment < len(self.plan.segments):
            segment = self.plan.segments[position.segment]
            rows = max(min(rows, rows_left // segment.ranges), 1)
            # One job more than the page has room for shows whether the search continues.
            scan = Scan(self.conditions, limit - len(items) + 1, rows)
            examined = await self._examine(segment, position.key, scan, connection)
            found = [each for each in examined.jobs if self._is_new(segment, each[0])]
            if len(items) + len(found) > limit:
                found = found[: limit - len(items)]
                last, count = found[-1]
                items += [job for job, _ in found]
                position = self._advanced(position, segment, last, count, len(found))
                break
            items += [job for job, _ in found]
            position = self._advanced(position, segment, examined.last, examined.count, len(found))
            if self._has_ended(segment, examined, scan):
                position = position._replace(segment=position.segment + 1, key=())
            rows_left -= examined.count * segment.ranges
            rows *= 2
            if len(items) == limit or rows_left <= 0 or self.clock() >= ends_at:
                break
        return self._page(items, position)

    def _is_new(self, segment: Segment, job: Job) -> bool:
        return segment.path is Path.IDS or job.job_id not in self.plan.probed

    @staticmethod
    def _has_ended(segment: Segment, examined: Examined, scan: Scan) -> bool:
        return segment.path is Path.IDS or (examined.count < scan.rows and len(examined.jobs) < scan.limit)

    @staticmethod
    def _advanced(position: Position, segment: Segment, last: Job | None, count: int, found: int) -> Position:
        key = position.key if last is None else segment.path.key_of(last)
        return Position(position.segment, key, position.searched + count, position.found + found)

    def _page(self, items: Sequence[Job], position: Position) -> SearchPage:
        is_complete = position.segment >= len(self.plan.segments)
        return SearchPage(
            items=items,
            searched=position.searched,
            found=position.found,
            total_estimate=position.searched if is_complete else self._total(position.searched),
            is_complete=is_complete,
            next=None if is_complete else write_position(position, self.sizes.now),
            missing_index=self.plan.missing,
        )

    def _total(self, searched: int) -> int | None:
        """Return the estimated number of rows of the plan, which are more than those that were examined."""
        estimates = [self.sizes.estimates.get(name) for name in self.plan.relations]
        total = 0
        for estimate in estimates:
            if estimate is None:
                return None
            total += estimate
        return max(total, searched + 1)

    async def _examine(self, segment: Segment, key: Key, scan: Scan, connection: Connection) -> Examined:
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
                return await searches.newest(start[0] if start else None, scan, on=connection)

    async def _examine_ids(self, segment: Segment, key: Key, scan: Scan, connection: Connection) -> Examined:
        """Examine all of the ids that follow a key."""
        is_descending = segment.is_descending
        ids = [id_ for id_ in segment.ids if not key or (id_ < key[0] if is_descending else id_ > key[0])]
        scan = scan._replace(limit=len(ids), rows=len(ids))
        examined = await self.searches.ids(ids, scan, on=connection)
        if not is_descending:
            return examined
        jobs = [(job, examined.count + 1 - number) for job, number in reversed(examined.jobs)]
        return replace(examined, jobs=jobs)
