"""Searches that continue after their first page, in short parts, while the list has viewers.

A page of a search examines a bounded number of jobs, so it may be short, or empty, although jobs match. The
streams of such a page continue its search until the page is full or every job was examined. All viewers with
the same rights share one run. A process reads one part at a time, for all runs and viewers, and pauses after
each. So all searches together use at most one connection of the dashboard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Final, NamedTuple, TypeAlias

from pg_scheduler.inspect import SearchPage
from pg_scheduler.inspect.paths import BY_ID
from pg_scheduler.jobs.model import Job

ReadPart: TypeAlias = Callable[[int, str | None], Awaitable[SearchPage]]
"""A function that returns a part of a search: at most a number of jobs, from a position on."""

MAX_RUNS: Final = 50
"""The maximum number of runs. The run that has had no viewers for the longest time is dropped first."""

REST_S: Final = 0.02
"""Seconds between two parts."""

MOMENT_S: Final = 0.5
"""Seconds for which a stream continues a run before it shows the result."""

IDLE_S: Final = 60.0
"""Seconds after which a run without viewers is dropped."""

RESULT_AGE_S: Final = 60.0
SLOWDOWN: Final = 10
"""A search is repeated when ``RESULT_AGE_S`` have passed since its end, and this many times its own duration.
Until then, its first page and the jobs that it has found are read again."""


class FoundJobs(NamedTuple):
    """What a list shows of a search.

    Attributes:
        page: The page with the jobs that the search has found so far.
        early: Jobs that an index has found before the search has come to them.
    """

    page: SearchPage
    early: Sequence[Job] = ()


@dataclass(slots=True)
class SearchRun:
    """A search that continues.

    Attributes:
        page: The last part that was read; the search continues after it.
        found_jobs: The jobs that were found from the start of the page on, in the order of the search.
        early_jobs: Jobs that an index has found before the search has come to them.
        length: The maximum number of jobs of the page.
        earlier_count: How many jobs were found on the pages before.
    """

    page: SearchPage
    found_jobs: list[Job]
    early_jobs: Sequence[Job]
    length: int
    earlier_count: int
    clock: Callable[[], float] = monotonic
    started_at: float = field(init=False)
    looked_at: float = field(init=False)
    continued_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.started_at = self.looked_at = self.continued_at = self.clock()

    @property
    def room(self) -> int:
        """How many more jobs the page has room for; 0 if every job was examined, so that none can follow."""
        return 0 if self.page.is_complete else self.length - len(self.found_jobs)

    @property
    def is_over(self) -> bool:
        """Whether the page is full, or every job was examined."""
        return self.room <= 0

    @property
    def is_active(self) -> bool:
        """Whether streams continue the search at present, so that the jobs that it has found are new.

        A stream continues it about every ``MOMENT_S``. After four times as long, no stream does any more.
        """
        return not self.is_over and self.clock() < self.continued_at + 4 * MOMENT_S

    @property
    def is_old(self) -> bool:
        """Whether the search has been over for so long that it should be repeated."""
        duration_s = self.continued_at - self.started_at
        return self.is_over and self.clock() >= self.continued_at + max(RESULT_AGE_S, SLOWDOWN * duration_s)

    def add(self, part: SearchPage) -> None:
        """Add the jobs of the next part of the search, which continues after this part."""
        # A job that was found may have moved to a later position of the search since, and be found again.
        known_ids = {job.job_id for job in self.found_jobs}
        self.found_jobs += [job for job in part.items if job.job_id not in known_ids]
        self.page = part
        self.continued_at = self.clock()

    def shown(self, first_jobs: Iterable[Job], current_jobs: Mapping[str, Job]) -> FoundJobs:
        """Return what the page shows: the jobs of the run that still match, and jobs that match newly.

        Args:
            first_jobs: The jobs that the first part of the search finds now.
            current_jobs: Those jobs of the run that match now, as they are now, by their ids.
        """
        found_jobs = [current_jobs[job.job_id] for job in self.found_jobs if job.job_id in current_jobs]
        new_jobs = [job for job in first_jobs if job.job_id not in current_jobs]
        # If there is no room for all jobs, new ones are left out, and not those of the run: the next page
        # continues after the jobs of this run, so no page would show a job of the run that is left out here.
        room_for_new_jobs = self.length - len(found_jobs)
        found_jobs = [*new_jobs[:room_for_new_jobs], *found_jobs]
        if self.page.order == BY_ID:
            found_jobs.sort(key=lambda job: job.job_id, reverse=True)
        ids = {job.job_id for job in found_jobs}
        early_jobs = [
            current_jobs[job.job_id]
            for job in self.early_jobs
            if job.job_id in current_jobs and job.job_id not in ids
        ]
        page = replace(self.page, items=found_jobs, found=self.earlier_count + len(found_jobs))
        # When the search is over, the page needs no early jobs: either every job was examined, or the page is
        # full, and the pages after it have the jobs to which the search has not come yet.
        shown_early_jobs = [] if self.is_over else early_jobs[: self.length - len(found_jobs)]
        return FoundJobs(page, shown_early_jobs)


class SearchRuns:
    """The runs of one source, by what they search for whom."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._runs: dict[Hashable, SearchRun] = {}
        self._turn = asyncio.Lock()

    def look(self, key: Hashable) -> SearchRun | None:
        """Return the run of a list that a viewer looks at, and note this, so that the run is kept.

        None if there is no run, or if it has had no viewers for a minute: then it is dropped.
        """
        # The run goes to the end, so that the first one has had no viewers for the longest time.
        run = self._runs.pop(key, None)
        now = self._clock()
        if run is None or now >= run.looked_at + IDLE_S:
            return None
        run.looked_at = now
        self._runs[key] = run
        return run

    def begin(self, key: Hashable, page: SearchPage, early_jobs: Sequence[Job], length: int) -> SearchRun:
        """Return a new run, which continues a search after this first page.

        ``early_jobs`` are jobs that an index has found before the search has come to them. ``length`` is the
        maximum number of jobs of the page.
        """
        self._runs.pop(key, None)
        while len(self._runs) >= MAX_RUNS:
            longest_unseen_key = next(iter(self._runs))
            del self._runs[longest_unseen_key]
        # ``page.found`` also counts the jobs of the pages before this one.
        earlier_count = page.found - len(page.items)
        run = SearchRun(page, list(page.items), early_jobs, length, earlier_count, self._clock)
        self._runs[key] = run
        return run

    async def advance(self, key: Hashable, read_part: ReadPart) -> Hashable:
        """Continue a run for half a second, and return how far it has come.

        The result is None if the run has ended or is missing. Otherwise it can only be compared with an
        earlier result, to find whether the page has changed.
        """
        run = self.look(key)
        if run is None or run.is_over:
            return None
        ends_at = self._clock() + MOMENT_S
        while self._clock() < ends_at:
            # The lock lets one stream at a time read a part, and pause after it, for all runs of this
            # process.
            async with self._turn:
                # While this stream waited for the lock, another one may have ended the run.
                room = run.room
                if room <= 0:
                    break
                run.add(await read_part(room, run.page.next))
                await asyncio.sleep(REST_S)
        return run.started_at, run.page.searched, len(run.found_jobs), run.is_over
