"""Read schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pg_scheduler.inspect.base import InspectorBase
from pg_scheduler.jobs.validation import check_count, check_execution_time, check_text
from pg_scheduler.schedules.schedule import Schedule, schedule_from_row

MAX_ROWS: Final = 500
"""Schedules that a call returns."""


class ScheduleReads(InspectorBase):
    """The methods of `Inspector` that read schedules."""

    async def get_schedule(self, schedule_id: str) -> Schedule | None:
        """Return the schedule, or None if it does not exist."""
        row = await self._reads.schedules.get(check_text("schedule_id", schedule_id))
        return None if row is None else schedule_from_row(row, self._reads.statements.codec)

    async def schedules(
        self, *, limit: int = 100, after: str | None = None, due_before: datetime | None = None
    ) -> list[Schedule]:
        """Return schedules in the order of their ids.

        Args:
            limit: Their number at most, 1 to 500.
            after: The id after which the list starts; None for the beginning.
            due_before: Only those whose next fire time precedes this time; None for all.

        Raises:
            ValueError: ``limit`` is out of range, or ``due_before`` is naive.
        """
        check_count("limit", limit, least=1, most=MAX_ROWS)
        rows = await self._reads.schedules.list_page(
            after=None if after is None else check_text("after", after),
            owner=None,
            paused=None,
            task=None,
            metadata=None,
            due_before=None if due_before is None else check_execution_time(due_before, name="due_before"),
            limit=limit,
        )
        return [schedule_from_row(row, self._reads.statements.codec) for row in rows]
