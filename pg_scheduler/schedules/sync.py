"""Compute the row changes that bring the database to the schedules declared in code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pg_scheduler.jobs.stored_json import is_equal_json
from pg_scheduler.schedules.advance import first_allowed, not_before
from pg_scheduler.schedules.definition import anchor_for, described
from pg_scheduler.schedules.model import PeriodicJobConfig
from pg_scheduler.schedules.row import NO_ARGUMENTS, ScheduleRow, next_version, read_trigger
from pg_scheduler.triggers.base import is_quick


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """Rows to write, and keys of rows to delete because their schedule has a new key."""

    write: tuple[ScheduleRow, ...]
    delete: tuple[str, ...]


NO_CHANGES: Final = SyncPlan((), ())


def plan_sync(
    configs: Mapping[str, PeriodicJobConfig],
    rows: Mapping[str, ScheduleRow],
    *,
    now: datetime,
    chained: Mapping[str, datetime],
) -> SyncPlan:
    """Return the changes that bring the rows to the schedules declared in code.

    A new schedule is anchored at its start or at ``now``. An edited schedule fires next at its first new
    fire time after both ``now`` and its last fire time, so no fire time is enqueued twice. An edit changes a
    derived dedup key; the row that moves to the new key is the function's only row whose key no code
    declares. Whether it is paused follows the latest change, in the code or by a call.

    Args:
        configs: The periodic functions of this process, by dedup key.
        rows: The rows of the database, by dedup key.
        now: The time of the database.
        chained: For new keys, the due time of the last pending job that pg-scheduler 0.2.x enqueued. That
            job is the first fire time.
    """
    write: list[ScheduleRow] = []
    delete: list[str] = []
    for key, config in configs.items():
        old = rows.get(key) or _moved_from(config, configs, rows, delete)
        new = _row(config, old, now, chained.get(key))
        if old and old.schedule_id != key:
            delete.append(old.schedule_id)
        if new != old:
            write.append(replace(new, updated_at=now))
    return SyncPlan(tuple(write), tuple(delete))


def _moved_from(
    config: PeriodicJobConfig,
    configs: Mapping[str, PeriodicJobConfig],
    rows: Mapping[str, ScheduleRow],
    taken: list[str],
) -> ScheduleRow | None:
    if not config.derived_key:
        return None
    abandoned = [
        row
        for row in rows.values()
        if row.is_declared
        and row.task == config.function
        and row.derived_key
        and row.schedule_id not in configs
        and row.schedule_id not in taken
    ]
    return abandoned[0] if len(abandoned) == 1 else None


def _row(
    config: PeriodicJobConfig, old: ScheduleRow | None, now: datetime, chained: datetime | None
) -> ScheduleRow:
    within = config.catch_up.within
    definition: dict[str, Any] = {
        "schedule_id": config.dedup_key,
        "owner": "code",
        "task": config.function,
        "job_name": config.job_name,
        "derived_key": config.derived_key,
        "enabled_in_code": config.enabled,
        "use_advisory_lock": config.use_advisory_lock,
        "trigger": json.dumps(config.trigger.to_json()),
        "described": described(config.trigger),
        "task_data": NO_ARGUMENTS,
        "options": json.dumps({"priority": config.priority.db_value, "max_retries": config.max_retries}),
        "metadata": "{}",
        "start_at": config.start,
        "end_at": config.end,
        "max_runs": None,
        "jitter_seconds": config.jitter_seconds,
        "overlap": config.overlap.value,
        "catch_up": config.catch_up.selection,
        "catch_up_limit": config.catch_up.limit,
        "catch_up_seconds": None if within is None else within.total_seconds(),
        "pause_after_failures": config.pause_after_failures,
    }
    if old is None:
        anchor = anchor_for(config.trigger, start=config.start, now=chained or now)
        new = ScheduleRow(
            **definition,
            anchor=anchor,
            last_fire_at=chained,
            paused_at=None if config.enabled else now,
            created_at=now,
            updated_at=now,
        )
        if config.start is None:
            return _timed(new, config, after=max(now, chained or now), now=now)
        start = not_before(config.trigger, config.start)
        return _timed(new, config, after=max(start, chained or start), now=now)
    # JSON is compared as values: the database writes it in its own way.
    same = {name for name, value in definition.items() if _is_same(name, getattr(old, name), value)}
    if len(same) == len(definition):
        return old
    changes = {name: value for name, value in definition.items() if name not in same}
    new = replace(old, **changes, version=next_version(old))
    if old.enabled_in_code != config.enabled:
        new = replace(new, paused_at=None if config.enabled else now, note=None, is_broken=False)
    elif old.is_broken:
        new = replace(new, paused_at=None, note=None, is_broken=False)
    if old.paused_at is not None and new.paused_at is None and new.next_fire_at and new.next_fire_at <= now:
        new = replace(new, resume_from=now)
    if {"trigger", "start_at"} <= same and (_is_within(old, config.end) or "end_at" in same):
        return new
    anchor = old.anchor if config.start is None else anchor_for(config.trigger, start=config.start, now=now)
    after = max(now, new.last_fire_at or now)
    if config.start is not None:
        after = max(after, not_before(config.trigger, config.start))
    return _timed(replace(new, anchor=anchor, resume_from=None), config, after=after, now=now)


def _timed(row: ScheduleRow, config: PeriodicJobConfig, *, after: datetime, now: datetime) -> ScheduleRow:
    """Return the row with its first fire time after an instant; finished without one.

    The planner searches for that of a trigger that may take long or raise, and pauses the schedule then.
    """
    if not is_quick(config.trigger):
        return replace(row, next_fire_at=now, resume_from=after, finished_at=None)
    first = first_allowed(config.trigger, after=after, anchor=row.anchor, end=config.end)
    return replace(row, next_fire_at=first, finished_at=now if first is None else None)


def _is_within(row: ScheduleRow, end: datetime | None) -> bool:
    return row.next_fire_at is not None and (end is None or row.next_fire_at <= end)


def _is_same(name: str, stored: Any, declared: Any) -> bool:
    if name == "trigger":
        try:
            return read_trigger(stored) == read_trigger(declared)
        except ValueError:
            return False
    if name in {"options", "metadata", "task_data"}:
        return is_equal_json(stored, declared)
    return bool(stored == declared)
