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
"""The maximum number of different texts in ``blocked_on`` that are returned."""

MAX_STARTS: Final = 10_000
MAX_LIMIT_KEYS: Final = 1000
MAX_WAITING_ROWS: Final = 20_000
"""Waiting jobs that are counted."""

MAX_SEQUENCES: Final = 20_000
"""Sequences among which those that have stopped are searched."""

MAX_MOVED_ROWS: Final = 10_000
"""Jobs in flight that are counted; there are about as many as slots."""


class BlockedJobs(NamedTuple):
    """The number of blocked jobs by what they wait for, or by their names.

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
        key: The text of the limit with its key, as in ``blocked_on``.
        at: When its attempt was admitted; for a job that waits, when it was due.
    """

    key: str
    job_id: str
    job_name: str
    at: datetime


class InFlightRow(NamedTuple):
    """The jobs of a tenant that had their turn.

    Attributes:
        running: Those that run.
        admitted: Those that wait for a slot or a limit.
    """

    running: int = 0
    admitted: int = 0


class TenantRow(NamedTuple):
    """The queue of a tenant.

    Attributes:
        key: The text of the share and the tenant, as in ``blocked_on``.
        jobs: The jobs that wait for the turn of the tenant, up to the maximum that is counted.
        last_turn_at: When a worker last moved a job of the tenant; None if that was more than about an hour
            ago.
    """

    key: str
    jobs: int
    last_turn_at: datetime | None


class HeadRow(NamedTuple):
    """The head of a sequence: the only job of the key that may start, or a failed one.

    Attributes:
        key: The text of the sequence, as in ``blocked_on``.
        job_id: The job.
        job_name: Its name; None if the job was deleted, as is its status.
        stopped_at: Since when the sequence stands still at this job; None if it does not.
    """

    key: str
    job_id: str
    job_name: str | None
    status: str | None
    stopped_at: datetime | None


class LimitReadRepository(Repository):
    """The statements that read what blocks jobs: limits, tenants of shares, sequences, other jobs."""

    async def blocked(self) -> BlockedJobs:
        """Count the first 20,000 blocked jobs by what they wait for."""
        rows = await self._statements.fetch("inspect_blocked", MAX_BLOCKED_ROWS, MAX_BLOCKED_KEYS)
        # Each row has the number of all jobs that the statement examined.
        is_capped = bool(rows) and rows[0]["examined"] >= MAX_BLOCKED_ROWS
        jobs = {row["blocked_on"]: row["jobs"] for row in rows}
        return BlockedJobs(jobs, is_capped or len(rows) == MAX_BLOCKED_KEYS)

    async def blocked_names(self) -> BlockedJobs:
        """Count the first 20,000 blocked jobs by the names that a worker must claim."""
        rows = await self._statements.fetch("inspect_blocked_names", MAX_BLOCKED_ROWS, MAX_BLOCKED_KEYS)
        # Each row has the number of all jobs that the statement examined.
        is_capped = bool(rows) and rows[0]["examined"] >= MAX_BLOCKED_ROWS
        jobs = {row["name"]: row["jobs"] for row in rows}
        return BlockedJobs(jobs, is_capped or len(rows) == MAX_BLOCKED_KEYS)

    async def use(self, blocked_on: str) -> tuple[int, int]:
        """Return the numbers of a limit's attempts that run, and of its starts that still count.

        ``blocked_on`` is the text of the limit and its key: ``limit:<name>:<key>``.
        """
        rows = await self._statements.fetch("inspect_limit", blocked_on, self._statements.now, MAX_STARTS)
        return rows[0]["running"], rows[0]["starts"]

    async def keys(self, prefix: str) -> tuple[list[str], bool]:
        """Return the texts of limits that begin with a prefix and have admitted attempts.

        Returns:
            The texts, and whether there may be more, because at most 1,000 are read.
        """
        rows = await self._statements.fetch("inspect_limit_keys", prefix, MAX_LIMIT_KEYS)
        keys = [row["key"] for row in rows]
        # The statement continues with texts behind those of the prefix. If its last text has the prefix, more
        # of them may follow.
        is_capped = len(keys) == MAX_LIMIT_KEYS and keys[-1].startswith(prefix)
        return [key for key in keys if key.startswith(prefix)], is_capped

    async def next_starts(self, limits: Sequence[tuple[str, int, float]]) -> dict[str, datetime]:
        """Return when full limits admit their next start, by their texts.

        If a limit is passed with several numbers, its latest time is returned.

        Args:
            limits: The text of each limit, the number of starts that it admits, and within how many seconds.
        """
        # The statement takes an array of the texts, one of the numbers, and one of the seconds.
        columns = [list(column) for column in zip(*limits, strict=True)]
        rows = await self._statements.fetch("inspect_next_starts", *columns, MAX_STARTS)
        # Of several times of a limit, the latest one comes last, so it is the one that the dict keeps.
        rows_by_time = sorted(rows, key=lambda row: row["at"])
        return {row["key"]: row["at"] for row in rows_by_time}

    async def holders(self, keys: Sequence[str], most: int) -> list[LimitJobRow]:
        """Return the jobs that run longest within each limit, at most ``most`` for each."""
        values = list(keys), most, MAX_STARTS, self._statements.now
        return await self._rows(LimitJobRow, "inspect_limit_holders", *values)

    async def queue(self, keys: Sequence[str], most: int) -> list[LimitJobRow]:
        """Return the jobs that start next within each limit, at most ``most`` for each."""
        return await self._rows(LimitJobRow, "inspect_limit_queue", list(keys), most)

    async def tenants(self, keys: Sequence[str]) -> tuple[list[TenantRow], bool]:
        """Return the queues of tenants, and whether counting some of the queues stopped.

        ``keys`` are the texts of the tenants: ``share:<name>:<key>``. At most 20,000 rows are counted,
        divided evenly among the tenants.
        """
        rows_per_tenant = max(MAX_WAITING_ROWS // max(len(keys), 1), 1)
        rows = await self._rows(TenantRow, "inspect_tenants", list(keys), rows_per_tenant)
        return rows, any(row.jobs >= rows_per_tenant for row in rows)

    async def sequences(self, limit: int) -> list[str]:
        """Return sequences that have a head, those that have stopped first."""
        rows = await self._statements.fetch("inspect_sequences", limit, MAX_SEQUENCES)
        return [row["key"] for row in rows]

    async def heads(self, keys: Sequence[str]) -> dict[str, HeadRow]:
        """Return the heads of sequences, by ``zsequence:<name>:<key>``."""
        return {row.key: row for row in await self._rows(HeadRow, "inspect_heads", list(keys))}

    async def sequence_of(self, job_id: str) -> str | None:
        """Return the sequence that a job is in, as ``zsequence:<name>:<key>``; None if it is in none."""
        key: str | None = await self._statements.value("inspect_sequence_of", job_id)
        return key

    async def in_flight(self) -> tuple[dict[str, InFlightRow], bool]:
        """Return the numbers of jobs of tenants that had their turn, by ``share:<name>:<key>``.

        Returns:
            The numbers, and whether counting stopped after 10,000 jobs.
        """
        rows = await self._statements.fetch("inspect_in_flight", MAX_MOVED_ROWS, self._statements.now)
        # Each row has the number of all jobs that the statement examined.
        is_capped = bool(rows) and rows[0]["examined"] >= MAX_MOVED_ROWS
        jobs_by_tenant = {row["key"]: InFlightRow(row["running"], row["admitted"]) for row in rows}
        return jobs_by_tenant, is_capped
