"""Compute the row changes that bring the database to the schedules declared in code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pg_scheduler.schedules.model import PeriodicJobConfig, PeriodicRow
from pg_scheduler.triggers.combine import first_fire_time

__all__ = ["NO_CHANGES", "SyncPlan", "plan_sync"]


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Rows to write, and keys of rows to delete because their schedule has a new key."""

    write: tuple[PeriodicRow, ...]
    delete: tuple[str, ...]


NO_CHANGES: Final = SyncPlan((), ())


def plan_sync(
    configs: Mapping[str, PeriodicJobConfig],
    rows: Mapping[str, PeriodicRow],
    *,
    now: datetime,
    chained: Mapping[str, datetime],
) -> SyncPlan:
    """Return the changes that bring the rows to the schedules declared in code.

    A new schedule is anchored at ``now``. An edited schedule fires next at its first new fire time after both
    ``now`` and its last fire time, so no fire time is enqueued twice. An edit changes a derived dedup key;
    the row that moves to the new key is the function's only row whose key no code declares. ``enabled``
    follows the latest change, in the code or by a call.

    Args:
        configs: The periodic functions of this process, by dedup key.
        rows: The rows of the database, by dedup key.
        now: The time of the database.
        chained: For new keys, the due time of the last pending job that pg-scheduler 0.2.x enqueued. That
            job is the first fire time.
    """
    write: list[PeriodicRow] = []
    delete: list[str] = []
    for key, config in configs.items():
        old = rows.get(key) or _moved_from(config, configs, rows, delete)
        new = _row(config, old, now, chained.get(key))
        if old and old.dedup_key != key:
            delete.append(old.dedup_key)
        if new != old:
            write.append(new)
    return SyncPlan(tuple(write), tuple(delete))


def _moved_from(
    config: PeriodicJobConfig,
    configs: Mapping[str, PeriodicJobConfig],
    rows: Mapping[str, PeriodicRow],
    taken: list[str],
) -> PeriodicRow | None:
    if not config.derived_key:
        return None
    abandoned = [
        row
        for row in rows.values()
        if row.function == config.function
        and row.derived_key
        and row.dedup_key not in configs
        and row.dedup_key not in taken
    ]
    return abandoned[0] if len(abandoned) == 1 else None


def _row(
    config: PeriodicJobConfig, old: PeriodicRow | None, now: datetime, chained: datetime | None
) -> PeriodicRow:
    every, cron, timezone = config.schedule
    anchor = old.anchor if old else chained or now
    row = PeriodicRow(
        dedup_key=config.dedup_key,
        derived_key=config.derived_key,
        job_name=config.job_name,
        function=config.function,
        every=every,
        cron=cron,
        timezone=timezone,
        use_advisory_lock=config.use_advisory_lock,
        priority=config.priority.db_value,
        max_retries=config.max_retries,
        enabled=old.enabled if old and old.enabled_in_code == config.enabled else config.enabled,
        enabled_in_code=config.enabled,
        anchor=anchor,
        last_fire_at=old.last_fire_at if old else chained,
        next_fire_at=old.next_fire_at if old else None,
    )
    if old and old.schedule == row.schedule:
        return row
    after = max(now, row.last_fire_at or now)
    return replace(row, next_fire_at=first_fire_time(config.trigger, after=after, anchor=anchor))
