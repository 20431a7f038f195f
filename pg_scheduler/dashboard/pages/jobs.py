"""The page of jobs: a search, one page of its result, and how far the search got."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pg_scheduler.dashboard.context import PageRequest, RejectedError
from pg_scheduler.dashboard.pages.names import task_names
from pg_scheduler.dashboard.positions import read_after, write_next
from pg_scheduler.dashboard.texts import short
from pg_scheduler.inspect import SearchPage, parse_search
from pg_scheduler.inspect.search.parser import FIELDS
from pg_scheduler.inspect.texts import term
from pg_scheduler.inspect.timeline import last_attempt
from pg_scheduler.jobs import metadata
from pg_scheduler.jobs.model import Job

PAGE_LENGTH: Final = 50

MAX_ERROR_LENGTH: Final = 300
"""Characters of an error in a list."""

MAX_SUGGESTIONS: Final = 200
SUGGESTIONS_AGE_S: Final = 10.0

MAX_TAGS: Final = 20

CHIPS: Final = ("", "status:due", "status:running", "status:failed", "status:expired", "status:blocked")
"""Searches that the page offers; the first one finds all jobs."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in a list."""

    job_id: str
    name: str
    status: str
    due: datetime
    priority: str
    attempt: int
    max_attempts: int
    """The number of the last attempt that it can have."""
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    tags: Sequence[str]
    progress: float | None
    """The share of its work that is done, from 0 to 1; None if it is unknown."""


@dataclass(frozen=True, slots=True)
class JobsPage:
    """A page of a search."""

    q: str
    """The search."""
    error: str | None
    """Why the search is invalid; None if it is not."""
    items: Sequence[JobRow] = ()
    summary: str = ""
    """The numbers of jobs searched and found."""
    is_complete: bool = False
    next: str | None = None
    """The position of the following page; None if the search is complete."""
    suggestions: Sequence[str] = ()
    """Searches for the names that live workers claim, or have run jobs of."""
    after: str | None = None
    """The position of this page; None for the first one."""
    sort: str = ""
    """The column by which the jobs of this page are sorted; empty for the order of the search."""

    @property
    def sorts(self) -> Sequence[str]:
        """The columns to sort by."""
        return list(SORTS)

    @property
    def http_status(self) -> int:
        """The status of the answer."""
        return 200 if self.error is None else 400

    @property
    def chips(self) -> Sequence[str]:
        """Searches to choose from."""
        return CHIPS

    @property
    def fields(self) -> Sequence[str]:
        """The terms of a search, as examples."""
        return [f"{field}:{value}" for field, value in FIELDS.items()]


SORTS: Final[Mapping[str, Callable[[JobRow], Any]]] = {
    "job": lambda row: row.job_id,
    "name": lambda row: (row.name, row.due),
    "status": lambda row: (row.status, row.due),
    "due": lambda row: row.due,
    "attempt": lambda row: -row.attempt,
    "ended": lambda row: (row.finished_at is None, row.finished_at or row.due),
    "tags": lambda row: (not row.tags, row.tags),
    "progress": lambda row: (row.progress is None, -(row.progress or 0)),
    "error": lambda row: (row.error is None, row.error or ""),
}
"""How the jobs of a page are sorted, by the parameter ``sort``."""


async def build(request: PageRequest) -> JobsPage:
    """Search jobs."""
    q = request.parameters.get("q", "").strip()
    sort = request.parameters.get("sort", "")
    if sort and sort not in SORTS:
        raise RejectedError(f"sort must be one of {', '.join(SORTS)}, not {sort[:50]!r}")
    try:
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
        return JobsPage(q, str(error))
    items = [row_of(job, request) for job in page.items]
    return JobsPage(
        q,
        None,
        sorted(items, key=SORTS[sort]) if sort else items,
        summary_of(page, request),
        page.is_complete,
        await write_next(request, page.next),
        await _suggestions(request),
        request.parameters.get("after") or None,
        sort,
    )


async def _suggestions(request: PageRequest) -> list[str]:
    """Return searches for visible names, without a query about jobs."""
    read = request.inspector.job_names
    counted = await request.cache.get("job names", SUGGESTIONS_AGE_S, read, is_data=False)
    names = {*filter(request.access.sees_name, counted), *(await task_names(request)).main}
    visible = sorted(names)[:MAX_SUGGESTIONS]
    return [*CHIPS[1:], *(term("name", name) for name in visible)]


def summary_of(page: SearchPage, request: PageRequest) -> str:
    """Return what was found; what was searched only if the request may see the number of all jobs."""
    if request.access.visible_names is None:
        return page.summary
    return f"{page.found:,} found" + ("" if page.is_complete else "; the search is not complete")


def tags_of(job: Job, request: PageRequest) -> list[str]:
    """Return the tags of a job that the request may see."""
    if not request.access.sees_arguments or request.settings.redaction.is_hidden("tags"):
        return []
    return metadata.tags_of(job.metadata)[:MAX_TAGS]


def share_done(job: Job) -> float | None:
    """Return the share of a job's work that is done."""
    if job.progress is None or not job.progress.total or job.progress.total <= 0:
        return None
    return min(max(job.progress.done / job.progress.total, 0.0), 1.0)


def row_of(job: Job, request: PageRequest) -> JobRow:
    """Return a job as lists show it."""
    return JobRow(
        job_id=job.job_id,
        name=job.job_name,
        status=job.status.value,
        due=job.execution_time,
        priority=job.priority.value,
        attempt=job.attempt,
        max_attempts=last_attempt(job),
        started_at=job.started_at,
        finished_at=job.finished_at,
        error=None if job.error_message is None else short(job.error_message, MAX_ERROR_LENGTH),
        tags=[short(tag) for tag in tags_of(job, request)],
        progress=share_done(job),
    )
