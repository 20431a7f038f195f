"""Compute the row changes that bring the database to the schedules declared in code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from pg_scheduler.schedules.model import PeriodicJobConfig
from pg_scheduler.schedules.row import PeriodicRow

__all__ = ["SyncPlan", "merge"]


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Rows to write, and keys of rows that have moved to another key."""

    write: tuple[PeriodicRow, ...]
    delete: tuple[str, ...]


def merge(
    configs: Mapping[str, PeriodicJobConfig],
    rows: Mapping[str, PeriodicRow],
    *,
    now: datetime,
    chained: Mapping[str, datetime],
) -> SyncPlan:
    """Bring the rows to what the code says.

    A new schedule is anchored at ``now``. One whose schedule was edited moves on: it fires next at its
    first new time after ``now`` and after its last fire, so that no window fires twice. With a derived
    dedup key an edit changes the key; then the row of the same function that no code has a key for any
    more is the one that moves. Enabled is what was said last: in the code or by a call.

    Args:
        configs: All periodic functions here, by dedup key.
        rows: All rows of the database, by dedup key.
        now: The database's clock.
        chained: For new keys, when the last waiting job of a chain of pg-scheduler 0.2.x is due: that
            job is the first window.
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
    return replace(row, next_fire_at=config.trigger.next_after(after, anchor=anchor))
