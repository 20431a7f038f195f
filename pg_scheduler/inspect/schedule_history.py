"""The history of a schedule: its last fire times and jobs, and the differences between its definitions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from pg_scheduler.inspect.base import tables_of
from pg_scheduler.inspect.fire_searches import search_each, search_one
from pg_scheduler.inspect.inspector import Inspector
from pg_scheduler.inspect.jobs import MAX_IDS
from pg_scheduler.inspect.store.audit import AuditRecord
from pg_scheduler.jobs.model import Job
from pg_scheduler.jobs.validation import check_job_id
from pg_scheduler.schedules.row import read_trigger
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.schedules.timing import fire_time_job_id
from pg_scheduler.triggers.base import Trigger, is_fixed_delay, next_fire_time
from pg_scheduler.triggers.missed import newest_fire_times
from pg_scheduler.triggers.search import INSTANT

RESULTS: Final = 20
"""Fire times and jobs that are shown."""

MAX_SCHEDULES: Final = 100
"""Schedules of a list whose fire times are computed."""

MAX_SEARCH_S: Final = 0.5
"""Seconds for computing these fire times."""

RECORDS: Final = 50
"""Records of the audit that are read."""

UNSHOWN: Final = frozenset({"version", "trigger"})
"""Parts of a definition that are not shown, because other parts describe them."""


@dataclass(frozen=True, slots=True)
class PastFire:
    """A fire time, or the request of a person for a job without a fire time."""

    at: datetime
    job_id: str
    is_manual: bool = False
    is_sure: bool = True
    """Whether this was a fire time for sure. If not, it is shown only if its job exists."""
    status: str | None = None
    """The status of its job; None if the job was not enqueued, or was deleted since."""
    started_at: datetime | None = None
    """When the last attempt of its job started; None if none has."""
    finished_at: datetime | None = None
    """When its job ended; None if it has not."""

    @property
    def duration_s(self) -> float | None:
        """How long the last attempt of a job that has ended took, in seconds; None if that is unknown."""
        if self.started_at is None or self.finished_at is None:
            return None
        return max((self.finished_at - self.started_at).total_seconds(), 0.0)


@dataclass(frozen=True, slots=True)
class ChangedPart:
    """A part of a schedule before and after a change."""

    key: str
    before: Any
    after: Any


def past_fire_times(schedule: Schedule, records: Sequence[AuditRecord]) -> list[PastFire]:
    """Return the newest fire times and requested jobs, the newest first.

    Since the present trigger was set, the fire times are those of this trigger. Older fire times are computed
    from the earlier triggers, which the audit has. These are not sure: if an earlier trigger was an interval,
    it is unknown from which instant it was counted, so the instant of the present trigger is taken.
    """
    requested = [
        PastFire(record.at, job_id, is_manual=True)
        for record in records
        if record.action == "trigger_schedule" and isinstance(job_id := record.details.get("job_id"), str)
    ]
    fires: list[PastFire] = []
    # From the present trigger back to the first one: each applied from ``since`` until the next one was set.
    until = schedule.last_fire_at
    trigger = schedule.trigger
    is_sure = True
    for since, earlier_trigger in _definitions(schedule, records):
        # A schedule that has never fired has no fire times.
        if until is None or len(fires) >= 2 * RESULTS:
            break
        times = [] if trigger is None else _between(trigger, since, until, schedule)
        for at in times:
            job_id = fire_time_job_id(schedule.schedule_id, at, owner=schedule.owner)
            fires.append(PastFire(at, job_id, is_sure=is_sure))
        # The earlier trigger applied until this one was set.
        until = min(until, since)
        trigger = earlier_trigger
        is_sure = False
    # These are twice as many as are shown, because some without a visible job are left out later.
    newest_first = sorted([*requested, *fires], key=lambda fire: fire.at, reverse=True)
    return newest_first[: 2 * RESULTS]


def _definitions(
    schedule: Schedule, records: Sequence[AuditRecord]
) -> Iterator[tuple[datetime, Trigger | None]]:
    """Yield when each trigger was set, the newest first, with the trigger before it.

    The trigger before is None for the first one, and if this process does not know its kind.
    """
    for record in records:
        before = _part(record, "before").get("trigger")
        after = _part(record, "after").get("trigger")
        if record.action == "update_schedule" and before != after:
            try:
                yield record.at, read_trigger(json.dumps(before))
            except ValueError:  # a kind that this process does not know
                yield record.at, None
    yield schedule.created_at, None


def _between(trigger: Trigger, since: datetime, last: datetime, schedule: Schedule) -> list[datetime]:
    """Return the newest fire times of a trigger from ``since`` until ``last``, with both."""
    # Fire times that follow the ends of jobs cannot be computed, except the last one, which is stored.
    if is_fixed_delay(trigger):
        return [last] if since <= last else []
    begin = since if schedule.start is None else max(since, schedule.start)
    # The next fire time is later than the given instant, so the search begins just before ``begin``.
    first = next_fire_time(trigger, begin - INSTANT, schedule.anchor)
    if first is None or first > last:
        return []
    return newest_fire_times(trigger, first=first, now=last, anchor=schedule.anchor, limit=RESULTS)


async def newest_results(
    inspector: Inspector, schedules: Sequence[Schedule], sees_name: Callable[[str], bool]
) -> dict[str, list[PastFire]]:
    """Return the newest fire times of up to 100 schedules with the status of their jobs, by schedule.

    At most 500 jobs are read, so each of 100 schedules has five fire times, and each of 25 schedules or fewer
    has 20. Schedules whose fire times cannot be computed, or not within half a second, are left out. Fire
    times before the last change of the trigger are left out if they have no job, because the earlier trigger
    may have had others. Jobs whose names ``sees_name`` rejects are left out too.
    """
    examined = schedules[:MAX_SCHEDULES]
    # A schedule of the first version still has its first trigger.
    edited = [schedule.schedule_id for schedule in examined if schedule.version > 1]
    reads = tables_of(inspector).reads.audit_records
    changes = await reads.trigger_changes(edited, RECORDS) if edited else {}
    fires_per_schedule = min(RESULTS, MAX_IDS // max(len(examined), 1))

    def search(schedule: Schedule) -> tuple[str, list[PastFire]]:
        """Return the id of a schedule, and its newest fire times by its present trigger."""
        changed_at = changes.get(schedule.schedule_id, schedule.created_at)
        newest = past_fire_times(schedule, ())[:fires_per_schedule]
        return schedule.schedule_id, [replace(fire, is_sure=fire.at >= changed_at) for fire in newest]

    # A schedule whose search raises is left out. The page of that schedule shows the error.
    fires = dict(await search_each(examined, search, limit_s=MAX_SEARCH_S))
    jobs = await inspector.get_jobs(
        {fire.job_id for schedule_fires in fires.values() for fire in schedule_fires}
    )
    return {
        schedule_id: _matched(schedule_fires, jobs, sees_name)
        for schedule_id, schedule_fires in fires.items()
    }


async def search_past_fire_times(schedule: Schedule, records: Sequence[AuditRecord]) -> list[PastFire]:
    """Compute ``past_fire_times()`` in a thread of its own, so that the event loop continues.

    A trigger of the user can take long, and it can raise any exception.
    """
    return await search_one(schedule.trigger, partial(past_fire_times, schedule, records))


async def last_results(inspector: Inspector, schedule: Schedule) -> list[PastFire]:
    """Return the newest 20 fire times and requested jobs of a schedule with the status of their jobs.

    A trigger of the user can raise any exception.
    """
    records = (await inspector.audit(subject=schedule.schedule_id, limit=RECORDS)).items
    return await with_statuses(inspector, await search_past_fire_times(schedule, records))


async def with_statuses(
    inspector: Inspector, fires: Sequence[PastFire], sees_name: Callable[[str], bool] = lambda _: True
) -> list[PastFire]:
    """Return the newest 20 fire times with the status of their jobs, without jobs of hidden names."""
    jobs = await inspector.get_jobs({fire.job_id for fire in fires if _is_id(fire.job_id)})
    return _matched(fires, jobs, sees_name)[:RESULTS]


def _matched(
    fires: Sequence[PastFire], jobs: Mapping[str, Job], sees_name: Callable[[str], bool]
) -> list[PastFire]:
    """Return the fire times with the status of their jobs, without hidden jobs and unsure fire times."""
    results = []
    for fire in fires:
        job = jobs.get(fire.job_id)
        if job is not None and not sees_name(job.job_name):
            continue
        if job is not None:
            results.append(
                replace(fire, status=job.status.value, started_at=job.started_at, finished_at=job.finished_at)
            )
        elif fire.is_sure:
            results.append(fire)
    return results


def differences(record: AuditRecord) -> Iterator[ChangedPart]:
    """Yield each part that a change gave another value; nothing for a new or removed schedule."""
    before, after = _part(record, "before"), _part(record, "after")
    if not before or not after:
        return
    for key in sorted({*before, *after} - UNSHOWN):
        if before.get(key) != after.get(key):
            yield ChangedPart(key, before.get(key), after.get(key))


def _is_id(text: str) -> bool:
    """Return whether a row can have the id; the audit can contain any text."""
    try:
        check_job_id(text)
    except ValueError:
        return False
    return True


def _part(record: AuditRecord, name: str) -> Mapping[str, Any]:
    """Return the definition ``before`` or ``after`` the change of a record; empty if the record has none."""
    part = record.details.get(name)
    return part if isinstance(part, Mapping) else {}
