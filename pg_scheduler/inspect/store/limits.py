"""Read the jobs that hold limits and those that wait for them, a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pg_scheduler.inspect.store.inspections import MAX_STARTS
from pg_scheduler.store.statements import Repository


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


class LimitReadRepository(Repository):
    """The statements that read the jobs of limits."""

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
