"""The values that the Inspector returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pg_scheduler.inspect.texts import counted
from pg_scheduler.jobs.model import Job
from pg_scheduler.status import JobStatus


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A part of the result of a search, and how far the search got.

    A page can be short, or empty, although others follow: it reads a bounded number of rows. Only
    ``is_complete`` shows whether the search has ended.
    """

    items: Sequence[Job]
    """The jobs of the page."""
    searched: int
    """Jobs that were examined, on this page and those before."""
    found: int
    """Jobs that were found, on this page and those before."""
    total_estimate: int | None
    """About how many jobs the whole search examines; None if the table was never analyzed."""
    is_complete: bool
    """Whether every job was examined that can match."""
    next: str | None
    """The ``after=`` of the following page; None if the search is complete."""
    missing_index: str | None = None
    """The index that would shorten this search and does not exist; see `build_indexes()`. None for none."""

    @property
    def summary(self) -> str:
        """What was searched and found, in one line, as every front end shows it."""
        extent = extent_of(self.searched, self.total_estimate, is_complete=self.is_complete)
        missing = f"; the index {self.missing_index} is missing" if self.missing_index else ""
        return f"searched {extent} jobs, {self.found:,} found{missing}"


@dataclass(frozen=True, slots=True)
class Totals:
    """About how many jobs there are, as the database estimates it; None if it was never analyzed."""

    jobs: int | None
    """All jobs."""
    unfinished: int | None
    """Pending and running jobs that are not blocked."""
    blocked: int | None
    """Pending jobs that wait for a limit or for other jobs."""
    unsuccessful: int | None
    """Failed, expired and cancelled jobs. None also if the index of unsuccessful jobs is missing."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Unsuccessful jobs of a name with the same error, apart from numbers and ids in its text."""

    fingerprint: str
    """Identifies the group, also in later calls."""
    job_name: str
    """The name of the jobs."""
    text: str
    """The first line of the error, with ``#`` for each number and id."""
    count: int
    """The number of jobs."""
    first_at: datetime
    """When the oldest of them ended, of those that were examined."""
    last_at: datetime
    """When the newest of them ended."""
    last_job_id: str
    """The id of the newest one."""
    example: str
    """The start of its error."""
    status: JobStatus = JobStatus.FAILED
    """The status of the newest one: ``failed``, ``expired`` or ``cancelled``."""
    history: Sequence[int] = ()
    """How many of them ended in each of 24 equal parts of the period that was examined, the oldest first."""


@dataclass(frozen=True, slots=True)
class ErrorGroups:
    """The errors of the newest unsuccessful jobs, grouped."""

    items: Sequence[ErrorGroup]
    """The groups, that of the newest error first."""
    searched: int
    """Unsuccessful jobs that were examined, the newest ones. Jobs of any status if their index is missing."""
    since: datetime | None
    """Until when the search went back; None if it examined every unsuccessful job, or jobs by id."""
    is_complete: bool
    """Whether every job was examined that was asked for."""
    missing_index: str | None = None
    """The index of unsuccessful jobs if it does not exist, so that jobs were examined by id, the highest id
    first; see `build_indexes()`. None if it exists."""
    total_estimate: int | None = None
    """About how many jobs there are, if jobs were examined by id; None if the table was never analyzed."""

    @property
    def summary(self) -> str:
        """What was searched and found, in one line, as every front end shows it."""
        groups = counted(len(self.items), "group")
        if self.missing_index is not None:
            extent = extent_of(self.searched, self.total_estimate, is_complete=self.is_complete)
            return f"searched {extent} jobs by id, {groups} found; the index {self.missing_index} is missing"
        extent = "all of" if self.is_complete else "the newest"
        return f"searched {extent} {self.searched:,} unsuccessful jobs, {groups} found"


def extent_of(searched: int, total: int | None, *, is_complete: bool) -> str:
    """Return how far a search of jobs got."""
    if is_complete:
        return f"all of {searched:,}"
    return f"{searched:,} of {'an unknown number of' if total is None else f'about {rounded(total)}'}"


def rounded(number: int) -> str:
    """Return a number as people read it: ``9.8 M``, ``45 k``, ``9,500``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            amount = number / (1e3 if unit == "k" else size)
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    return f"{number:,}"
