"""Read, write and advance schedules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from pg_scheduler.schedules.model import PeriodicRow
from pg_scheduler.schedules.sync import SyncPlan
from pg_scheduler.store.connections.session import Connection
from pg_scheduler.store.records import periodic_from
from pg_scheduler.store.statements import Statements

__all__ = ["ScheduleRepository"]


class ScheduleRepository:
    """The statements that read and write schedules.

    Args:
        statements: Runs the statements.
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    async def now(self, *, on: Connection | None = None) -> datetime:
        """Return the time by the scheduler's clock, which is the database's outside of tests."""
        now: datetime = await self._statements.value("now", self._statements.now, on=on)
        return now

    async def periodic_rows(self, *, on: Connection | None = None) -> dict[str, PeriodicRow]:
        """Return every schedule by dedup key."""
        return (await self.periodic_rows_and_now(on=on))[0]

    async def periodic_rows_and_now(
        self, *, on: Connection | None = None
    ) -> tuple[dict[str, PeriodicRow], datetime | None]:
        """Return every schedule by dedup key, and the current time, which is None if there is no schedule."""
        rows = await self._statements.fetch("periodic_rows", self._statements.now, on=on)
        schedules = map(periodic_from, rows)
        return {each.dedup_key: each for each in schedules}, rows[0]["now"] if rows else None

    @asynccontextmanager
    async def periodic_locked(self) -> AsyncIterator[Connection]:
        """Yield a transaction in which no other process writes schedules."""
        async with self._statements.transaction() as connection:
            await self._statements.execute("lock_periodic", on=connection)
            yield connection

    async def chained_runs(self, dedup_keys: Sequence[str], *, on: Connection) -> dict[str, datetime]:
        """Return the times of the last pending jobs that pg_scheduler 0.2 planned, by dedup key."""
        found = {}
        for key in dedup_keys:
            instant = await self._statements.value("last_chained_run", key, on=on)
            if instant is not None:
                found[key] = instant
        return found

    async def write_periodic(self, plan: SyncPlan, *, on: Connection) -> None:
        """Delete and write the schedules of a plan."""
        for key in plan.delete:
            await self._statements.fetch("delete_periodic", key, on=on)
        for row in plan.write:
            await self._statements.fetch(
                "upsert_periodic",
                row.dedup_key,
                row.derived_key,
                row.job_name,
                row.function,
                row.every,
                row.cron,
                row.timezone,
                row.use_advisory_lock,
                row.priority,
                row.max_retries,
                row.enabled,
                row.enabled_in_code,
                row.anchor,
                row.last_fire_at,
                row.next_fire_at,
                self._statements.now,
                on=on,
            )

    async def due_periodic(self, dedup_keys: Sequence[str], *, on: Connection) -> list[PeriodicRow]:
        """Lock and return the due schedules that no other process has locked."""
        rows = await self._statements.fetch("due_periodic", dedup_keys, self._statements.now, on=on)
        return [periodic_from(row) for row in rows]

    async def move_periodic(
        self, dedup_key: str, fired_at: datetime | None, next_fire_at: datetime, *, on: Connection
    ) -> None:
        """Advance a schedule. ``fired_at`` is the fire time that was enqueued, if there was one."""
        now = self._statements.now
        await self._statements.fetch("move_periodic", dedup_key, fired_at, next_fire_at, now, on=on)

    async def enable_periodic(self, dedup_key: str, enabled: bool) -> bool:
        """Enable or disable a schedule; return False if it has no row."""
        now = self._statements.now
        return bool(await self._statements.fetch("enable_periodic", dedup_key, enabled, now))
