"""Read lists of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, cast

from pg_scheduler.database.statements import Repository
from pg_scheduler.facts.lateness import OVERDUE_S
from pg_scheduler.facts.schedule_state import SCHEDULE_STATES, ScheduleState
from pg_scheduler.schedules.row import ScheduleRow
from pg_scheduler.schedules.statements import schedule_from

ScheduleTab: TypeAlias = Literal["all"] | ScheduleState

TABS: Final[tuple[ScheduleTab, ...]] = ("all", *SCHEDULE_STATES)
"""All schedules, and the schedules in each state. Each schedule has one state."""

MAX_EXAMINED: Final = 10_000
"""Schedules that a statement examines."""


class ScheduleFilters(NamedTuple):
    """The schedules of a list.

    Attributes:
        names: Patterns of ``LIKE`` for the names of tasks that are visible; None for all.
        task: Only schedules of this task; None for all.
        text: Only schedules whose id or task contains this text; None for all.
    """

    names: Sequence[str] | None = None
    task: str | None = None
    text: str | None = None


class FoundSchedule(NamedTuple):
    """A schedule of a list, and its state.

    ``paused_by`` is the actor who paused it; None if it is not paused, or if the actor is unknown.
    """

    row: ScheduleRow
    state: ScheduleState
    paused_by: str | None


class FoundSchedules(NamedTuple):
    """Schedules of a list.

    Attributes:
        rows: The schedules.
        last_id: The id of the last schedule that was examined; None if all schedules were examined.
    """

    rows: Sequence[FoundSchedule]
    last_id: str | None


class ScheduleListRepository(Repository):
    """The statements that read lists of schedules."""

    async def count(self, filters: ScheduleFilters) -> tuple[dict[ScheduleTab, int], bool]:
        """Return the numbers of schedules by state, and whether further schedules were not examined."""
        (row,) = await self._statements.fetch(
            "inspect_schedule_counts", MAX_EXAMINED, *filters, OVERDUE_S, self._statements.now
        )
        return {tab: row[tab] for tab in TABS}, bool(row["is_capped"])

    async def find(
        self, filters: ScheduleFilters, tab: ScheduleTab, after: str | None, limit: int
    ) -> FoundSchedules:
        """Return the schedules of a tab whose ids follow ``after``, in the order of their ids."""
        rows = await self._statements.fetch(
            "inspect_schedule_list",
            MAX_EXAMINED,
            *filters,
            OVERDUE_S,
            self._statements.now,
            tab,
            after,
            limit,
        )
        schedules, last_id = list[FoundSchedule](), None
        for row in rows:
            values = dict(row)
            # All columns but these three are those of the schedule. Each row has the same last id.
            last_id = values.pop("last_id")
            paused_by = values.pop("paused_by")
            state = values.pop("state")
            # A row without a schedule only carries the last id that was examined.
            if values["schedule_id"] is not None:
                schedules.append(FoundSchedule(schedule_from(values), state, paused_by))
        return FoundSchedules(schedules, last_id)

    async def state(self, schedule_id: str) -> ScheduleState | None:
        """Return the state of a schedule; None if it does not exist."""
        args = schedule_id, OVERDUE_S, self._statements.now
        rows = await self._statements.fetch("inspect_schedule_state", *args)
        return cast("ScheduleState", rows[0]["state"]) if rows else None
