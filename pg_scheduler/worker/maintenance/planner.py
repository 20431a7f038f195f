"""Write the schedules declared in code to the database, and enqueue jobs at their fire times.

Every node runs a planner. One transaction locks a due row, inserts the job of its fire time and sets the next
fire time; rows that another planner has locked are skipped. The fire time is part of the job's id, so even a
row that was set back by hand cannot enqueue a fire time twice while its job exists.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Final

from pg_scheduler.enqueue.schedule_book import ScheduleBook
from pg_scheduler.events import EventBus, PeriodicJobBroken, PeriodicJobPlanned
from pg_scheduler.schedules.advance import advance
from pg_scheduler.schedules.model import PeriodicRow
from pg_scheduler.store.connections.session import Connection
from pg_scheduler.store.store import Store
from pg_scheduler.triggers.combine import first_fire_time
from pg_scheduler.worker.service import Service
from pg_scheduler.worker.signals import Signals

__all__ = ["Planner"]

POLL_INTERVAL_S: Final = 30.0
"""Seconds between two reads of the schedules while notifications arrive."""

FAST_POLL_INTERVAL_S: Final = 0.5
"""Seconds between two reads while none arrive: a schedule disabled elsewhere is disabled within a second."""

LOCKED_RETRY_S: Final = 0.05
"""Seconds until the next pass if all due rows are locked: another node is planning them."""

UNUSABLE: Final = (ValueError, TypeError, LookupError, ArithmeticError)
"""Errors of a schedule whose row was changed by hand, or by a newer version."""


class Planner(Service):
    """Enqueue the jobs of due fire times."""

    name: ClassVar[str] = "planner"

    def __init__(
        self,
        store: Store,
        events: EventBus,
        book: ScheduleBook,
        signals: Signals,
    ) -> None:
        super().__init__(events)
        self._store = store
        self.book = book
        self._signals = signals
        self._broken: dict[str, PeriodicRow] = {}

    async def prepare(self) -> None:
        """Make the first pass write the schedules declared in code."""
        self.book.forget_sync()

    async def run_once(self) -> float:
        """Write the schedules that this process changed, then enqueue the jobs of due schedules."""
        await self.book.sync()
        if await self.book.write_switches():
            self._signals.switches_written()
        rows, now = await self.book.refresh()
        if now is None:
            return POLL_INTERVAL_S
        soonest = 0.0
        if due := [row.dedup_key for row in rows.values() if self._is_due(row, now)]:
            soonest = 0.0 if await self._plan(due) else LOCKED_RETRY_S
            rows, _ = await self.book.refresh()
        poll = POLL_INTERVAL_S if self._signals.notifications_up.is_set else FAST_POLL_INTERVAL_S
        next_fire = min(
            (row.next_fire_at for row in rows.values() if row.next_fire_at and self._is_live(row)),
            default=None,
        )
        if next_fire is None:
            return poll
        return max(min((next_fire - now).total_seconds(), poll), soonest)

    async def drain(self) -> None:
        """Write the schedules that were enabled or disabled during the last pass."""
        if await self.book.write_switches():
            self._signals.switches_written()

    async def _plan(self, dedup_keys: list[str]) -> bool:
        async with self._store.connections.transaction(reserved=True) as connection:
            now = await self._store.schedules.now(on=connection)
            rows = await self._store.schedules.due_periodic(dedup_keys, on=connection)
            planned = [await self._plan_row(row, now, connection) for row in rows]
        for event in planned:
            if event is not None:
                self._events.publish(event)
        if any(isinstance(event, PeriodicJobPlanned) for event in planned):
            self._signals.jobs_planned()
        return bool(planned)

    async def _plan_row(
        self, row: PeriodicRow, now: datetime, connection: Connection
    ) -> PeriodicJobPlanned | PeriodicJobBroken | None:
        try:
            trigger = row.trigger()
            if row.next_fire_at is None:
                fire_time, following = None, first_fire_time(trigger, after=now, anchor=row.anchor)
            else:
                due = advance(trigger, anchor=row.anchor, first=row.next_fire_at, now=now)
                fire_time, following = due.fire_time, due.next_fire_at
        except UNUSABLE as error:
            self._broken[row.dedup_key] = row
            return PeriodicJobBroken(row.dedup_key, error)
        planned = None
        if fire_time is not None:
            job = self.book.fire_time_job(row, fire_time, now)
            await self._store.jobs.insert([job], connection=connection)
            planned = PeriodicJobPlanned(row.dedup_key, job.job_id, following)
        await self._store.schedules.move_periodic(row.dedup_key, fire_time, following, on=connection)
        return planned

    def _is_live(self, row: PeriodicRow) -> bool:
        return row.enabled and self._broken.get(row.dedup_key) != row  # unless its row has changed since

    def _is_due(self, row: PeriodicRow, now: datetime) -> bool:
        return self._is_live(row) and (row.next_fire_at is None or row.next_fire_at <= now)
