"""Group the errors of jobs by their texts, in which numbers and ids differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import md5
from itertools import islice
from time import monotonic
from typing import Final

from pg_scheduler.inspect.model import ErrorGroup, ErrorGroups
from pg_scheduler.inspect.pages import MAX_ROWS, MAX_SECONDS
from pg_scheduler.inspect.paths import LAST_DAY
from pg_scheduler.inspect.search.terms import Pattern, TextField, TextTerm, escape_like
from pg_scheduler.jobs.model import Job, JobStatus
from pg_scheduler.store.connections.session import Connection
from pg_scheduler.store.inspections import ErrorRow, InspectionRepository

__all__ = ["fingerprint_of", "group_errors", "group_terms", "is_in_group", "normalized"]

MAX_LENGTH: Final = 200
"""Characters of an error that tell groups apart."""

MAX_ERROR_LENGTH: Final = 300
"""Characters of an error that ``inspect_errors`` reads."""

HISTORY_PARTS: Final = 24
"""Parts of the examined period, of which each has the number of errors of a group."""

CHUNK_ROWS: Final = 1000
"""Rows of one statement; the event loop is free between two."""

_VARIABLE: Final = re.compile(
    r"\b0[xX][0-9a-fA-F]+\b"  # addresses
    r"|\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"  # UUIDs
    r"|\b(?=[a-fA-F]{0,7}[0-9])[0-9a-fA-F]{8,}\b"  # hashes
    r"|[0-9]+(?:[.,:][0-9]+)*"
)


def normalized(error: str) -> str:
    """Return the first line of an error, with ``#`` for each number and id.

    Example:
        >>> normalized("TimeoutError: no answer from 10.0.0.7 after 31 s")
        'TimeoutError: no answer from # after # s'
    """
    line = error.lstrip().partition("\n")[0][:MAX_LENGTH]
    return _VARIABLE.sub("#", line).rstrip()


def fingerprint_of(job_name: str, text: str) -> str:
    """Return what identifies the group of a name and a normalized text: twelve hexadecimal digits."""
    return md5(f"{job_name}\n{text}".encode(), usedforsecurity=False).hexdigest()[:12]


def is_in_group(job: Job, group: ErrorGroup) -> bool:
    """Return whether the error of a job belongs to a group."""
    text = normalized((job.error_message or "")[:MAX_ERROR_LENGTH])
    return fingerprint_of(job.job_name, text) == group.fingerprint


def group_terms(group: ErrorGroup) -> tuple[TextTerm, ...]:
    """Return terms that hold for the jobs of a group, and for few others."""
    name = escape_like(group.job_name)
    error = escape_like(group.text).replace("#", "%")
    return (
        TextTerm(TextField.NAME, (Pattern(name, group.job_name),)),
        TextTerm(TextField.ERROR, (Pattern(f"%{error}%", None),)),
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

    def groups(self, limit: int) -> tuple[ErrorGroup, ...]:
        """Return the groups of the newest errors."""
        first = min((group.oldest.finished_at for group in self._groups.values()), default=LAST_DAY)
        last = max((group.newest.finished_at for group in self._groups.values()), default=first)
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
        counts[min(int(share * HISTORY_PARTS), HISTORY_PARTS - 1)] += 1
    return tuple(counts)


async def group_errors(
    inspections: InspectionRepository,
    since: datetime | None,
    limit: int,
    connection: Connection,
    clock: Callable[[], float] = monotonic,
) -> ErrorGroups:
    """Group the newest unsuccessful jobs, as many as the bounds of a page allow.

    Args:
        inspections: Runs the statements.
        since: Only jobs that ended at or after this time; None for any.
        limit: The number of groups.
        connection: The connection of the call.
        clock: Returns seconds; tests replace it.
    """
    ends_at = clock() + MAX_SECONDS
    counter, searched, is_complete = ErrorCounter(), 0, False
    position = (LAST_DAY, "")
    while searched < MAX_ROWS and not is_complete:
        rows = await inspections.errors(position, since, CHUNK_ROWS, on=connection)
        counter.add(rows)
        searched += len(rows)
        is_complete = len(rows) < CHUNK_ROWS
        if rows:
            position = (rows[-1].finished_at, rows[-1].job_id)
        if clock() >= ends_at:
            break
    return ErrorGroups(counter.groups(limit), searched, since if is_complete else position[0], is_complete)
