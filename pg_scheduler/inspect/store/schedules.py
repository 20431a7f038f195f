"""Read lists of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from pg_scheduler.database.statements import Repository
from pg_scheduler.facts.lateness import OVERDUE_S
from pg_scheduler.schedules.row import ScheduleRow
from pg_scheduler.schedules.statements import schedule_from

ScheduleState: TypeAlias = Literal["all", "active", "paused", "failing", "overdue"]
"""``failing``: its last job, or as many as it counts in a row, failed or expired. ``overdue``: it should have
fired a minute ago."""

STATES: Final[tuple[ScheduleState, ...]] = ("all", "active", "paused", "failing", "overdue")
MAX_EXAMINED: Final = 10_000
"""Schedules that a statement examines."""


class ScheduleFilters(NamedTuple):
    """The schedules of a list.

    Attributes:
        names: Patterns of ``LIKE`` for the names of tasks that are visible; None for all.
        task: Only those of this task; None for all.
        text: Only those whose id or task contains this text; None for all.
    """

    names: Sequence[str] | None = None
    task: str | None = None
    text: str | None = None


class FoundSchedules(NamedTuple):
    """Schedules of a list.

    Attributes:
        rows: The schedules, each with the actor who paused it; None if it is not paused, or that is unknown.
        last_id: The id after which others were not examined; None if all were.
    """

    rows: Sequence[tuple[ScheduleRow, str | None]]
    last_id: str | None


class ScheduleListRepository(Repository):
    """The statements that read lists of schedules."""

    async def count(self, filters: ScheduleFilters) -> tuple[dict[ScheduleState, int], bool]:
        """Return the numbers of schedules by state, and whether others were not examined."""
        (row,) = await self._statements.fetch(
            "inspect_schedule_counts", MAX_EXAMINED, *filters, OVERDUE_S, self._statements.now
        )
        return {state: row[state] for state in STATES}, bool(row["is_capped"])

    async def find(
        self, filters: ScheduleFilters, state: ScheduleState, after: str | None, limit: int
    ) -> FoundSchedules:
        """Return schedules by their ids, those after ``after``."""
        rows = await self._statements.fetch(
            "inspect_schedule_list",
            MAX_EXAMINED,
            *filters,
            OVERDUE_S,
            self._statements.now,
            state,
            after,
            limit,
        )
        found, last_id = list[tuple[ScheduleRow, str | None]](), None
        for row in rows:
            values = dict(row)
            last_id, paused_by = values.pop("last_id"), values.pop("paused_by")
            if values["schedule_id"] is not None:
                found.append((schedule_from(values), paused_by))
        return FoundSchedules(found, last_id)
