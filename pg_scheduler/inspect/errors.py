"""Group the errors of jobs by their texts, whatever numbers and ids the texts contain."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import md5
from itertools import islice
from time import monotonic
from typing import Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.database.session import Connection
from pg_scheduler.facts.job_state import ended_state
from pg_scheduler.inspect.pages import DEFAULT_BOUNDS, Bounds
from pg_scheduler.inspect.paths import LAST_DAY, UNSUCCESSFUL_INDEX, UNSUCCESSFUL_STATUSES
from pg_scheduler.inspect.search.conditions import conditions_of
from pg_scheduler.inspect.search.terms import (
    Pattern,
    Search,
    StatusTerm,
    Term,
    TextField,
    TextTerm,
    TimeField,
    TimeSpan,
    TimeTerm,
    escape_like,
)
from pg_scheduler.inspect.store.inspections import ErrorRow, InspectionRepository
from pg_scheduler.inspect.store.searches import TABLE, Scan, SearchRepository, Sizes
from pg_scheduler.inspect.texts import counted, extent_of
from pg_scheduler.jobs.model import Job
from pg_scheduler.triggers.search import INSTANT

MAX_LENGTH: Final = 200
"""Characters of an error that tell groups apart."""

MAX_ERROR_LENGTH: Final = 300
"""Characters of an error that ``inspect_errors`` reads."""

HISTORY_PARTS: Final = 24
"""The number of equal parts of the examined period. The errors of a group are counted in each part."""

CHUNK_ROWS: Final = 1000
"""Rows of one statement; the event loop is free between two."""

_VARIABLE: Final = re.compile(
    r"(?P<code>(?i:\b(?:HTTP(?:/[0-9](?:\.[0-9])?)?|status)(?:[ _](?:error|code))?[\s:='\"(]{1,3})"
    r"[1-5][0-9]{2}\b"
    r"|\b[45][0-9]{2}(?= (?:Bad|Client|Conflict|Content|Forbidden|Gateway|Gone|Insufficient|Internal|Length"
    r"|Locked|Method|Not|Payload|Payment|Precondition|Proxy|Request|Server|Service|Too|Unauthorized"
    r"|Unprocessable|Unsupported)\b))"  # status codes, which stay
    r"|\b0[xX][0-9a-fA-F]+\b"  # addresses
    r"|\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"  # UUIDs
    r"|\b(?=[a-fA-F]{0,7}[0-9])[0-9a-fA-F]{8,}\b"  # hashes
    r"|[0-9]+(?:[.,:][0-9]+)*"
)


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Unsuccessful jobs of a name with the same error, apart from numbers and ids in its text."""

    fingerprint: str
    """Identifies the group, also in later calls."""
    job_name: str
    """The name of the jobs."""
    text: str
    """The first line of the error, with ``#`` for each number and id except status codes of HTTP."""
    count: int
    """The number of jobs."""
    first_at: datetime
    """When the oldest examined job of the group ended."""
    last_at: datetime
    """When the newest job of the group ended."""
    last_job_id: str
    """The id of the newest job."""
    example: str
    """The start of the error of the newest job."""
    status: JobStatus = JobStatus.FAILED
    """The status of the newest job: ``failed``, ``expired`` or ``cancelled``."""
    history: Sequence[int] = ()
    """How many jobs ended in each of 24 equal parts of the examined period, the oldest part first. The period
    ends now."""

    @property
    def state(self) -> str:
        """The status of the newest job; ``quarantined`` if it failed because workers died."""
        return ended_state(self.status, self.text)


@dataclass(frozen=True, slots=True)
class ErrorGroups:
    """The errors of the newest unsuccessful jobs, grouped."""

    items: Sequence[ErrorGroup]
    """The groups. The group of the newest error comes first."""
    searched: int
    """How many unsuccessful jobs were examined, the newest ones. If their index is missing, jobs of any
    status."""
    since: datetime | None
    """The start of the examined period; None if every unsuccessful job was examined, or if jobs were examined
    by id."""
    is_complete: bool
    """Whether every job of the requested period was examined."""
    missing_index: str | None = None
    """The index of unsuccessful jobs if it does not exist, so that jobs were examined by id, the highest id
    first; see `build_indexes()`. None if it exists."""
    total_estimate: int | None = None
    """About how many jobs there are, if jobs were examined by id; None if the table was never analyzed."""

    @property
    def summary(self) -> str:
        """The numbers of jobs searched and groups found, in one line, as every front end shows them."""
        noun = "unsuccessful job"
        if self.missing_index is not None:
            extent = extent_of(self.searched, self.total_estimate, is_complete=self.is_complete)
        elif self.is_complete:
            extent = extent_of(self.searched, None, is_complete=True, noun=noun)
        else:
            extent = f"the newest {counted(self.searched, noun)}"
        return f"searched {extent}, {counted(len(self.items), 'group')} found{index_note(self)}"


def index_note(groups: ErrorGroups) -> str:
    """Return the end of a summary if jobs were examined by id; an empty text if their index exists."""
    if groups.missing_index is None:
        return ""
    return f"; jobs were examined by id, since the index {groups.missing_index} is missing"


def normalized(error: str) -> str:
    """Return the first line of an error, with ``#`` for each number and id except status codes of HTTP.

    Example:
        >>> normalized("TimeoutError: no answer from 10.0.0.7 after 31 s")
        'TimeoutError: no answer from # after # s'
        >>> normalized("UpstreamError: 502 Bad Gateway in 31 ms")
        'UpstreamError: 502 Bad Gateway in # ms'
    """
    line = error.lstrip().partition("\n")[0][:MAX_LENGTH]
    return _VARIABLE.sub(lambda match: match["code"] or "#", line).rstrip()


def fingerprint_of(job_name: str, text: str) -> str:
    """Return the fingerprint of the group of a name and a normalized text: twelve hexadecimal digits."""
    return md5(f"{job_name}\n{text}".encode(), usedforsecurity=False).hexdigest()[:12]


def is_in_group(job: Job, group: ErrorGroup) -> bool:
    """Return whether a job has the error of a group, and ended between the group's first and last job."""
    if job.finished_at is None or not group.first_at <= job.finished_at <= group.last_at:
        return False
    text = normalized((job.error_message or "")[:MAX_ERROR_LENGTH])
    return fingerprint_of(job.job_name, text) == group.fingerprint


def group_terms(group: ErrorGroup) -> tuple[Term, ...]:
    """Return terms that hold for the jobs of a group, and for few others."""
    name = escape_like(group.job_name)
    # In the text of a group, each "#" stands for a number or an id.
    error = escape_like(group.text).replace("#", "%")
    return (
        TextTerm(TextField.SHOWN_NAME, (Pattern(name, group.job_name),)),
        TextTerm(TextField.ERROR, (Pattern(f"%{error}%", None),)),
        TimeTerm(TimeField.FINISHED, (TimeSpan(group.first_at, group.last_at + INSTANT),)),
    )


@dataclass(slots=True)
class _Group:
    newest: ErrorRow
    oldest: ErrorRow
    times: list[datetime] = field(default_factory=list)


class ErrorCounter:
    """Counts errors by group, from the newest to the oldest."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], _Group] = {}

    def add(self, rows: Iterable[ErrorRow]) -> None:
        """Count the next rows."""
        for row in rows:
            group = self._groups.setdefault((row.job_name, normalized(row.error)), _Group(row, row))
            group.oldest = row
            group.times.append(row.finished_at)

    def groups(
        self, limit: int, since: datetime | None = None, now: datetime | None = None
    ) -> tuple[ErrorGroup, ...]:
        """Return the groups of the newest errors.

        Args:
            limit: The maximum number of groups.
            since: The start of the period that was examined; None for the time of the oldest error.
            now: The end of that period; None for the time of the newest error.
        """
        # Errors are added from the newest to the oldest, so the first groups are those of the newest errors.
        first = since or min((group.oldest.finished_at for group in self._groups.values()), default=LAST_DAY)
        last = now or max((group.newest.finished_at for group in self._groups.values()), default=first)
        return tuple(
            ErrorGroup(
                fingerprint=fingerprint_of(job_name, text),
                job_name=job_name,
                text=text,
                count=len(group.times),
                first_at=group.oldest.finished_at,
                last_at=group.newest.finished_at,
                last_job_id=group.newest.job_id,
                example=group.newest.error,
                status=JobStatus(group.newest.status),
                history=_by_part(group.times, first, last),
            )
            for (job_name, text), group in islice(self._groups.items(), limit)
        )


def _by_part(times: Sequence[datetime], first: datetime, last: datetime) -> tuple[int, ...]:
    """Return how many of the times are in each of the equal parts of a period."""
    counts = [0] * HISTORY_PARTS
    for at in times:
        share = (at - first) / (last - first) if last > first else 1.0
        counts[max(min(int(share * HISTORY_PARTS), HISTORY_PARTS - 1), 0)] += 1
    return tuple(counts)


async def group_errors(
    inspections: InspectionRepository,
    since: datetime | None,
    limit: int,
    connection: Connection,
    *,
    bounds: Bounds = DEFAULT_BOUNDS,
    clock: Callable[[], float] = monotonic,
    now: datetime | None = None,
) -> ErrorGroups:
    """Group the newest unsuccessful jobs since an instant, as many as the bounds allow.

    ``since`` is None for jobs of any time. ``now`` is the time of the database; None for the time of the
    newest error.
    """
    ends_at = clock() + bounds.milliseconds / 1000
    counter, searched, is_complete = ErrorCounter(), 0, False
    position = LAST_DAY, ""  # the end and the id of the last job that was examined
    while searched < bounds.rows and not is_complete:
        chunk = min(CHUNK_ROWS, bounds.rows - searched)
        rows = await inspections.errors(position, since, chunk, on=connection)
        counter.add(rows)
        searched += len(rows)
        is_complete = len(rows) < chunk
        if rows:
            position = rows[-1].finished_at, rows[-1].job_id
        if clock() >= ends_at:
            break
    oldest_end, _ = position
    start = since if is_complete else oldest_end
    groups = counter.groups(limit, start, now)
    return ErrorGroups(items=groups, searched=searched, since=start, is_complete=is_complete)


async def group_errors_by_id(
    searches: SearchRepository,
    sizes: Sizes,
    since: datetime | None,
    limit: int,
    connection: Connection,
    *,
    bounds: Bounds = DEFAULT_BOUNDS,
) -> ErrorGroups:
    """Group the unsuccessful jobs among the jobs with the highest ids, since their own index is missing."""
    ends_at = monotonic() + bounds.milliseconds / 1000
    conditions = conditions_of(Search((StatusTerm(UNSUCCESSFUL_STATUSES),), sizes.now))
    rows: list[ErrorRow] = []
    searched, is_complete, position = 0, False, None
    while searched < bounds.rows and not is_complete:
        chunk = min(CHUNK_ROWS, bounds.rows - searched)
        scan = Scan(conditions, chunk, chunk)
        examined = await searches.newest(position, scan, on=connection)
        rows += [row for job, _ in examined.jobs if (row := _row(job, since)) is not None]
        searched += examined.count
        is_complete = examined.count < chunk
        position = examined.last.job_id if examined.last is not None else position
        if monotonic() >= ends_at:
            break
    # The counter needs the newest error first, and the order of the ids is another one.
    counter = ErrorCounter()
    counter.add(sorted(rows, key=lambda row: (row.finished_at, row.job_id), reverse=True))
    estimate = sizes.estimates.get(TABLE)
    total = None if estimate is None else max(estimate, searched + 1)
    groups = counter.groups(limit, since, sizes.now)
    return ErrorGroups(
        items=groups,
        searched=searched,
        since=None,
        is_complete=is_complete,
        missing_index=UNSUCCESSFUL_INDEX,
        total_estimate=total,
    )


def _row(job: Job, since: datetime | None) -> ErrorRow | None:
    """Return the error of an unsuccessful job; None if it has no error, or if it ended before ``since``."""
    if job.error_message is None or job.finished_at is None:
        return None
    if since is not None and job.finished_at < since:
        return None
    error = job.error_message[:MAX_ERROR_LENGTH]
    return ErrorRow(job.job_id, job.job_name, job.status.value, error, job.finished_at)
