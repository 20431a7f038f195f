"""Read one schedule, lists of schedules by state, and the fire times of paused schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pg_scheduler.facts.schedule_state import ScheduleState
from pg_scheduler.inspect.base import InspectorBase, tables_of
from pg_scheduler.inspect.fire_searches import search_each
from pg_scheduler.inspect.search.parser import names_term
from pg_scheduler.inspect.store.audit import AuditRecord
from pg_scheduler.inspect.store.schedules import ScheduleFilters, ScheduleTab
from pg_scheduler.jobs.validation import check_count, check_execution_time, check_text
from pg_scheduler.schedules.schedule import Schedule, schedule_from_row
from pg_scheduler.triggers.search import INSTANT

MAX_ROWS: Final = 500
"""Schedules that a call returns."""

MAX_PAGE_LENGTH: Final = 100

MAX_SEARCH_S: Final = 0.5
"""Seconds for which the fire times of paused schedules are searched."""


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
            limit: The maximum number of schedules, 1 to 500.
            after: The id after which the list starts; None for the beginning.
            due_before: Only schedules whose next fire time is before this time; None for all.

        Raises:
            ValueError: ``limit`` is out of range, or ``due_before`` is naive.
        """
        check_count("limit", limit, least=1, most=MAX_ROWS)
        rows = await self._reads.schedules.list_page(
            after=None if after is None else check_text("after", after),
            owner=None,
            paused=None,
            tasks=None,
            metadata=None,
            due_before=None if due_before is None else check_execution_time(due_before, name="due_before"),
            limit=limit,
        )
        return [schedule_from_row(row, self._reads.statements.codec) for row in rows]


@dataclass(frozen=True, slots=True)
class ScheduleList:
    """A page of schedules, and the numbers of all schedules by state."""

    items: Sequence[Schedule]
    paused_by: Mapping[str, str]
    """The actor who paused each paused schedule of the page, by its id. Unknown actors are missing."""
    next: str | None
    """The id after which the following page starts; None for the last page."""
    states: Mapping[str, ScheduleState]
    """The states of the schedules of the page, by their ids."""
    counts: Mapping[ScheduleTab, int]
    """The numbers of schedules by state, and of all as ``all``."""
    is_capped: bool
    """Whether schedules beyond the first 10,000 are not counted."""


async def list_schedules(
    inspector: InspectorBase,
    *,
    state: ScheduleTab = "all",
    names: Iterable[str] | None = None,
    task: str | None = None,
    text: str | None = None,
    limit: int = 50,
    after: str | None = None,
) -> ScheduleList:
    """Return a page of schedules, in the order of their ids.

    Args:
        inspector: Reads the schedules.
        state: Only schedules in this state; ``all`` for every state.
        names: Only schedules of tasks with these names, in which ``*`` stands for any text; None for all.
        task: Only schedules of this task; None for all.
        text: Only schedules whose id or task contains this text, in upper or lower case; None for all.
        limit: Schedules of the page, 1 to 100.
        after: The id after which the page starts; None for the first page.

    Raises:
        ValueError: ``limit`` is out of range, or a text contains a NUL character.
    """
    check_count("limit", limit, least=1, most=MAX_PAGE_LENGTH)
    filters = ScheduleFilters(
        None if names is None else [pattern.like for pattern in names_term(names).patterns],
        None if task is None else check_text("task", task),
        None if text is None else check_text("text", text),
    )
    after = None if after is None else check_text("after", after)
    tables = tables_of(inspector).reads
    reads, codec = tables.schedule_lists, tables.statements.codec
    counts, is_capped = await reads.count(filters)
    page = await reads.find(filters, state, after, limit + 1)
    items = page.rows[:limit]
    # The search may have stopped after its maximum of rows, and then it continues behind the last of them.
    next_after = page.last_id
    # One row more than the page has was asked for. If it came, another page follows, after the last item.
    if len(page.rows) > limit:
        next_after = items[-1].row.schedule_id
    return ScheduleList(
        items=[schedule_from_row(item.row, codec) for item in items],
        paused_by={item.row.schedule_id: item.paused_by for item in items if item.paused_by is not None},
        next=next_after,
        states={item.row.schedule_id: item.state for item in items},
        counts=counts,
        is_capped=is_capped,
    )


async def read_state(inspector: InspectorBase, schedule_id: str) -> ScheduleState | None:
    """Return the state of a schedule; None if it does not exist."""
    return await tables_of(inspector).reads.schedule_lists.state(schedule_id)


def is_firing(schedule: Schedule) -> bool:
    """Return whether a schedule fires, now or after a pause that ends by itself."""
    is_paused_without_end = schedule.paused_at is not None and schedule.paused_until is None
    return not is_paused_without_end and schedule.finished_at is None and schedule.retired_at is None


def pauser_of(schedule: Schedule, records: Sequence[AuditRecord]) -> str | None:
    """Return who paused a schedule, by its newest records; None if unknown, or if it is not paused."""
    for record in records:
        # The record of the present pause has the time of that pause.
        if record.action == "pause_schedule" and record.at == schedule.paused_at:
            return record.actor
    return None


def upcoming_after_pause(schedule: Schedule, n: int, now: datetime) -> list[datetime]:
    """Return the next fire times of a schedule. If it is paused, these are the fire times after the pause.

    A pause without an end is treated as if it ended now.

    Raises:
        ValueError: This process cannot interpret the trigger.
    """
    next_at, until = schedule.next_fire_at, schedule.paused_until
    if until is not None and next_at is not None and next_at < until:
        # A fire time at the end of the pause counts, and those at the instant of after= do not.
        return schedule.upcoming(n, after=until - INSTANT)
    # The next fire time has passed during a pause without an end, so those from now on are the next ones.
    has_passed = schedule.paused_at is not None and next_at is not None and next_at <= now
    return schedule.upcoming(n, after=now if has_passed else None)


async def next_after_pause(schedules: Sequence[Schedule], now: datetime) -> dict[str, datetime]:
    """Return the first fire time of each paused schedule after its pause, by its id.

    A schedule is left out if it has no such fire time, or if the search fails or takes more than half a
    second.
    """

    def search(schedule: Schedule) -> tuple[str, datetime] | None:
        """Return the id and the first fire time of a schedule; None if it has no such fire time."""
        fires = upcoming_after_pause(schedule, 1, now)
        return (schedule.schedule_id, fires[0]) if fires else None

    # A finished or retired schedule does not fire after its pause.
    paused = [
        schedule
        for schedule in schedules
        if schedule.paused_at is not None and schedule.finished_at is None and schedule.retired_at is None
    ]
    # A schedule whose search raises is left out. The page of that schedule shows the error.
    return dict(await search_each(paused, search, limit_s=MAX_SEARCH_S))
