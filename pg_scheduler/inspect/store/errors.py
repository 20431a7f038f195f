"""Read the groups of errors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

import asyncpg

from pg_scheduler.database.statements import Repository

MAX_FRESH_ROWS: Final = 2000
"""The maximum number of rows that are read of failures which no worker has added to the groups yet."""


class ErrorRow(NamedTuple):
    """A group of errors.

    Attributes:
        total: The number of its jobs since the first one.
        jobs: The number of its jobs in the period.
        parts: The start of each part of the period with jobs, and their number.
        example: The start of the error of its newest job.
    """

    fingerprint: str
    job_name: str
    text: str
    status: str
    total: int
    first_at: datetime
    first_release: str | None
    last_at: datetime
    last_release: str | None
    last_job_id: str
    jobs: int
    parts: Sequence[tuple[datetime, int]]
    example: str


class ErrorPage(NamedTuple):
    """Groups of errors, the time of the database, and since when it counts errors.

    Attributes:
        is_capped: Whether more failures than are read wait to be added, so that the numbers may be too low.
    """

    now: datetime
    counted_since: datetime | None
    is_capped: bool
    rows: Sequence[ErrorRow]


class ErrorReadRepository(Repository):
    """The statements that read groups of errors."""

    async def list(
        self,
        interval_s: int,
        ended_since: datetime,
        counts_from: datetime,
        limit: int,
        names: Sequence[str] | None = None,
    ) -> ErrorPage:
        """Return the groups of the newest errors.

        Args:
            interval_s: The length of the intervals by which jobs are counted, in seconds.
            ended_since: Only groups with a job that ended at or after this instant.
            counts_from: The start of the first interval whose count is read.
            limit: The maximum number of groups.
            names: Only errors of jobs of these names; None for all.
        """
        args = interval_s, ended_since, MAX_FRESH_ROWS, limit, None if names is None else [*names]
        now = self._statements.now
        return _page_of(await self._statements.fetch("inspect_error_groups", *args, now, counts_from))

    async def read(
        self, interval_s: int, ended_since: datetime, counts_from: datetime, fingerprint: str
    ) -> ErrorPage:
        """Return one group, with its counts as in ``list()``; no row if there is none."""
        args = interval_s, ended_since, MAX_FRESH_ROWS, 1, fingerprint
        now = self._statements.now
        return _page_of(await self._statements.fetch("inspect_error_group", *args, now, counts_from))


def _page_of(records: Sequence[asyncpg.Record]) -> ErrorPage:
    """Return the page of a statement from its records: one for each group of errors.

    Each record also has the values of the page: the time, since when errors are counted, and whether not all
    of them were read.
    """
    rows = []
    for record in records:
        # Without any group there is one record, which only has the values of the page.
        if record["fingerprint"] is not None:
            values = {name: record[name] for name in ErrorRow._fields if name != "parts"}
            # The parts of the period are two arrays: their starts, and the numbers of jobs in them.
            parts = tuple(zip(record["buckets"] or (), record["counts"] or (), strict=True))
            rows.append(ErrorRow(**values, parts=parts))
    return ErrorPage(records[0]["now"], records[0]["counted_since"], records[0]["is_capped"], rows)
