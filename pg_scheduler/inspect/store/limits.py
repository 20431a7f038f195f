"""Read what jobs wait for, limits and the turns of tenants, a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from pg_scheduler.database.statements import Repository

MAX_BLOCKED_ROWS: Final = 20_000
"""Blocked jobs that are counted."""

MAX_BLOCKED_KEYS: Final = 500
"""Texts of what blocked jobs wait for that are returned."""

MAX_STARTS: Final = 10_000
MAX_LIMIT_KEYS: Final = 1000
MAX_WAITING_ROWS: Final = 20_000
"""Waiting jobs that are counted."""

MAX_MOVED_ROWS: Final = 10_000
"""Jobs in flight that are counted; there are about as many as slots."""


class BlockedJobs(NamedTuple):
    """The number of blocked jobs by what they wait for.

    Attributes:
        jobs: At most 500 entries, the greatest number first.
        is_capped: Whether counting stopped after 20,000 jobs or 500 entries.
    """

    jobs: dict[str, int]
    is_capped: bool


@dataclass(frozen=True, slots=True)
class LimitJobRow:
    """A job that runs within a limit, or waits for it.

    Attributes:
        key: The text of the limit.
        at: When its attempt was admitted; when it was due, if it waits.
    """

    key: str
    job_id: str
    job_name: str
    at: datetime


class TenantRow(NamedTuple):
    """The queue of a tenant.

    Attributes:
        key: The text of the share and the tenant.
        jobs: The jobs that wait for its turn, as far as they were counted.
        last_turn_at: When a worker last moved a job of it, within about an hour; None for none.
    """

    key: str
    jobs: int
    last_turn_at: datetime | None


class LimitReadRepository(Repository):
    """The statements that read what blocks jobs: limits, tenants of shares, other jobs."""

    async def blocked(self) -> BlockedJobs:
        """Count the first 20,000 blocked jobs by what they wait for."""
        rows = await self._statements.fetch("inspect_blocked", MAX_BLOCKED_ROWS, MAX_BLOCKED_KEYS)
        is_capped = bool(rows) and rows[0]["examined"] >= MAX_BLOCKED_ROWS
        jobs = {row["blocked_on"]: row["jobs"] for row in rows}
        return BlockedJobs(jobs, is_capped or len(rows) == MAX_BLOCKED_KEYS)

    async def use(self, blocked_on: str) -> tuple[int, int]:
        """Return the attempts of a limit that run, and its starts that still count."""
        rows = await self._statements.fetch("inspect_limit", blocked_on, self._statements.now, MAX_STARTS)
        return rows[0]["running"], rows[0]["starts"]

    async def keys(self, prefix: str) -> tuple[list[str], bool]:
        """Return limits that begin with a text and have admitted attempts, and whether others may follow.

        At most 1,000 limits are read.
        """
        rows = await self._statements.fetch("inspect_limit_keys", prefix, MAX_LIMIT_KEYS)
        keys = [row[0] for row in rows]
        is_capped = len(keys) == MAX_LIMIT_KEYS and keys[-1].startswith(prefix)
        return [key for key in keys if key.startswith(prefix)], is_capped

    async def next_starts(self, limits: Sequence[tuple[str, int, float]]) -> dict[str, datetime]:
        """Return when full limits admit their next start, by their texts; of several numbers, the latest.

        Args:
            limits: The text of each, and how many starts it admits within how many seconds.
        """
        columns = [list(column) for column in zip(*limits, strict=True)]
        rows = await self._statements.fetch("inspect_next_starts", *columns, MAX_STARTS)
        return {row["key"]: row["at"] for row in sorted(rows, key=lambda row: row["at"])}

    async def holders(self, keys: Sequence[str], most: int) -> list[LimitJobRow]:
        """Return jobs that run within each limit, at most so many, those that run longest first."""
        values = list(keys), most, MAX_STARTS, self._statements.now
        return await self._rows(LimitJobRow, "inspect_limit_holders", *values)

    async def queue(self, keys: Sequence[str], most: int) -> list[LimitJobRow]:
        """Return the jobs that start next within each limit, at most so many."""
        return await self._rows(LimitJobRow, "inspect_limit_queue", list(keys), most)

    async def tenants(self, keys: Sequence[str]) -> tuple[list[TenantRow], bool]:
        """Return the queues of tenants, and whether counting some of them stopped.

        Each tenant has the same part of 20,000 rows.
        """
        most = max(MAX_WAITING_ROWS // max(len(keys), 1), 1)
        rows = await self._rows(TenantRow, "inspect_tenants", list(keys), most)
        return rows, any(row.jobs >= most for row in rows)

    async def in_flight(self) -> dict[str, int]:
        """Return the number of jobs in flight by the text of the share and the tenant."""
        rows = await self._statements.fetch("inspect_in_flight", MAX_MOVED_ROWS, self._statements.now)
        return {row["key"]: row["jobs"] for row in rows}
