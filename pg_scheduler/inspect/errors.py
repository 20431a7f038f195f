"""Groups of errors: failed and expired jobs of a name with the same error, apart from its numbers and ids.

The statement that fails a job counts it. So a group has the number of all its failures and the instant of the
first one, however many other jobs fail. See ``statistics/errors.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pg_scheduler.base.status import JobStatus
from pg_scheduler.events.types import EXPIRED
from pg_scheduler.facts.job_state import ended_state
from pg_scheduler.inspect.search.terms import (
    Pattern,
    SearchStatus,
    StatusTerm,
    Term,
    TextField,
    TextTerm,
    TimeField,
    TimeSpan,
    TimeTerm,
    escape_like,
)
from pg_scheduler.inspect.store.errors import ErrorPage, ErrorRow
from pg_scheduler.inspect.texts import counted, instant
from pg_scheduler.jobs.error_text import OTHER_ERRORS, fingerprint_of, text_of
from pg_scheduler.jobs.model import Job
from pg_scheduler.triggers.search import INSTANT

MAX_PARTS: Final = 25
"""Parts of the history of a group. Each has the same number of minutes, hours or days."""

FAILED_STATUSES: Final = frozenset({JobStatus.FAILED, JobStatus.EXPIRED})

_INTERVALS: Final = ((timedelta(hours=2), 60), (timedelta(days=2), 3600), (timedelta.max, 86_400))
"""Each entry: the longest period that is read by counts of one interval, and this interval in seconds."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Failed or expired jobs of a name with the same error, apart from numbers and ids in its text."""

    fingerprint: str
    """Identifies the group, also in later calls."""
    job_name: str
    """The name of the jobs."""
    text: str
    """The first line of the error, with ``#`` for each number and id except status codes of HTTP."""
    count: int
    """How often jobs failed with it in the period; a job that was retried and failed again counts twice."""
    first_at: datetime
    """When the first job of the group ever failed, also if that was before the period."""
    last_at: datetime
    """When the last job of the group failed."""
    last_job_id: str
    """The id of the last job."""
    example: str
    """The start of the error of the last job; ``text`` if that job is gone or runs again."""
    status: JobStatus = JobStatus.FAILED
    """The status of the last job: ``failed`` or ``expired``."""
    history: Sequence[int] = ()
    """How many jobs failed in each part of the period, the oldest part first. There are up to 25 parts of
    equally many minutes, hours or days; the last one ends now. If the period is any time, they are the last
    25 days."""
    total: int = 0
    """How often jobs ever failed with it; a job that was retried and failed again counts twice."""
    first_release: str | None = None
    """The release of the worker on which the first job failed; None if it named none."""
    last_release: str | None = None
    """The release of the worker on which the last job failed; None if it named none."""
    since: datetime | None = None
    """The start of the period of ``count``; None for any time."""
    is_capped: bool = False
    """Whether ``count``, ``total`` and ``history`` may be too low: if more than 2,000 failures of the last
    seconds are not in the groups yet, only 2,000 of them are read."""

    @property
    def state(self) -> str:
        """The status of the last job; ``quarantined`` if it failed because workers died."""
        return ended_state(self.status, self.text)

    @property
    def begins_at(self) -> datetime:
        """The start of the period, or of the group if that is later."""
        return self.first_at if self.since is None else max(self.first_at, self.since)

    @property
    def is_mixed(self) -> bool:
        """Whether it counts the errors of a name that has too many different ones."""
        return self.text == OTHER_ERRORS


@dataclass(frozen=True, slots=True)
class ErrorGroups:
    """The errors of a period, grouped."""

    items: Sequence[ErrorGroup]
    """The groups. The group of the newest error comes first."""
    since: datetime | None
    """The start of the period, a full minute, hour or day; None for any time."""
    is_capped: bool
    """Whether there may be more groups than ``limit``, or more failures in them."""
    counted_since: datetime | None
    """When counting of failures began, with the upgrade of the tables; None if that is unknown."""

    @property
    def summary(self) -> str:
        """The numbers of groups and jobs, and since when, in one line, as every front end shows them."""
        groups = counted(len(self.items), "group", is_capped=self.is_capped)
        failure_count = sum(group.count for group in self.items)
        failures = counted(failure_count, "failure", is_capped=self.is_capped)
        text = f"{groups}, {failures}"
        # Failures were counted neither before the period nor before the upgrade of the tables.
        starts = [start for start in (self.since, self.counted_since) if start is not None]
        return f"{text} since {instant(max(starts))}" if starts else text


@dataclass(frozen=True, slots=True)
class Period:
    """A period in which errors are counted.

    Attributes:
        since: Its start; None for any time.
        interval_s: The length of the intervals whose counts are read, in seconds: a minute, an hour or a day.
        counts_from: The start of the first interval whose count is read.
    """

    since: datetime | None
    interval_s: int
    counts_from: datetime

    @property
    def bounds(self) -> tuple[int, datetime, datetime]:
        """The first arguments of the methods of ``ErrorReadRepository``.

        They are: the length of an interval in seconds, the instant since which the last failure of a group
        must have been, and the instant from which the counts of the history are read.
        """
        # Without a start of the period, every group counts, but the history still has the last 25 days only.
        ended_since = _EPOCH if self.since is None else self.counts_from
        return self.interval_s, ended_since, self.counts_from

    @classmethod
    def of(cls, since: datetime | None, now: datetime) -> Period:
        """Return the period from the minute, hour or day that contains an instant until now.

        Without an instant it is any time, and the history has the last 25 days.
        """
        begin = now - timedelta(days=MAX_PARTS - 1) if since is None else since
        # A short period has short intervals. The first entry that is long enough decides.
        interval_s = next(seconds for longest, seconds in _INTERVALS if now - begin <= longest)
        # The intervals are counted from the epoch on, so the start is rounded down to a multiple.
        start = begin - (begin - _EPOCH) % timedelta(seconds=interval_s)
        return cls(since=None if since is None else start, interval_s=interval_s, counts_from=start)

    def group_of(self, row: ErrorRow, page: ErrorPage) -> ErrorGroup:
        """Return the group of a row. The page has what all rows share: the time, and whether it is capped."""
        return ErrorGroup(
            fingerprint=row.fingerprint,
            job_name=row.job_name,
            text=row.text,
            count=row.total if self.since is None else row.jobs,
            first_at=row.first_at,
            last_at=row.last_at,
            last_job_id=row.last_job_id,
            example=row.example,
            status=JobStatus(row.status),
            history=self._history(row.parts, page.now),
            total=row.total,
            first_release=row.first_release,
            last_release=row.last_release,
            since=self.since,
            is_capped=page.is_capped,
        )

    def _history(self, parts: Iterable[tuple[datetime, int]], now: datetime) -> tuple[int, ...]:
        """Return how many jobs failed in each of the equal parts of the period, the oldest part first.

        ``parts`` are the counts that were read: the start of an interval, and how many jobs failed in it. A
        part of the result has one or more intervals, so that there are at most ``MAX_PARTS``.
        """
        interval = timedelta(seconds=self.interval_s)
        # The interval that contains now counts too.
        interval_count = max((now - self.counts_from) // interval + 1, 1)
        # Two negations let a division round up.
        intervals_per_part = -(-interval_count // MAX_PARTS)
        part_count = -(-interval_count // intervals_per_part)
        counts = [0] * part_count
        for interval_start, jobs in parts:
            place = (interval_start - self.counts_from) // interval // intervals_per_part
            # A failure outside of the period, as by a clock that is ahead, counts in the nearest part.
            nearest_place = max(min(place, part_count - 1), 0)
            counts[nearest_place] += jobs
        return tuple(counts)


def is_in_group(job: Job, group: ErrorGroup) -> bool:
    """Return whether a job has the error of a group, and ended in its period and not after its last job."""
    if job.finished_at is None or not group.begins_at <= job.finished_at <= group.last_at:
        return False
    text = text_of(job.status, job.error_message)
    return job.status in FAILED_STATUSES and fingerprint_of(job.job_name, text) == group.fingerprint


def group_terms(group: ErrorGroup) -> tuple[Term, ...]:
    """Return terms of a search that finds the jobs of a group, and few others.

    Whether a job belongs to the group, only ``is_in_group()`` decides.
    """
    # A pattern has a text for LIKE, and the text itself if it has no wildcards.
    name_pattern = Pattern(like=escape_like(group.job_name), literal=group.job_name)
    name = TextTerm(TextField.SHOWN_NAME, (name_pattern,))
    # A span does not contain its end, so that of the last job is an instant later.
    end_term = TimeTerm(TimeField.FINISHED, (TimeSpan(group.begins_at, group.last_at + INSTANT),))
    if group.text == EXPIRED:
        return name, StatusTerm(frozenset({SearchStatus.EXPIRED})), end_term
    # In the text of a group, each "#" stands for a number or an id.
    error = escape_like(group.text).replace("#", "%")
    return name, TextTerm(TextField.ERROR, (Pattern(like=f"%{error}%", literal=None),)), end_term
