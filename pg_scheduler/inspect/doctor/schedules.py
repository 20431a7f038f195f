"""Whether schedules fire, and when clock changes move them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, Final

from pg_scheduler.inspect.collect import count_claiming
from pg_scheduler.inspect.doctor.check import Check, Found
from pg_scheduler.inspect.doctor.codes import FindingCode, Severity
from pg_scheduler.inspect.doctor.findings import Finding, UnmadeCheck
from pg_scheduler.inspect.doctor.thresholds import Thresholds
from pg_scheduler.inspect.remedies import command
from pg_scheduler.inspect.texts import counted, instant, length, listed, short
from pg_scheduler.schedules.row import read_trigger
from pg_scheduler.store.doctor import BrokenRow, HerdRow, OverdueRow, ScheduleTaskRow, ZonedRow
from pg_scheduler.store.inspections import InspectedWorker
from pg_scheduler.store.store import Store
from pg_scheduler.triggers.zones import first_change, offset_at, parse_timezone

__all__ = ["CHECKS", "judge_broken", "judge_clock_changes", "judge_herds", "judge_overdue", "judge_tasks"]

AHEAD: Final = timedelta(days=7)
HOUR: Final = timedelta(hours=1)
MOMENT: Final = timedelta(microseconds=1)
MAX_FIRES: Final = 2
"""Fire times within the hour of a change; a schedule with more of them does not depend on one."""

MAX_SECONDS: Final = 2.0
"""Seconds for computing fire times, which blocks the event loop."""


async def _check_overdue(store: Store, thresholds: Thresholds) -> Found:
    workers = await store.inspections.workers()
    return judge_overdue(await store.doctor.overdue(thresholds.overdue_s), workers)


async def _check_tasks(store: Store, _: Thresholds) -> Found:
    return judge_tasks(await store.doctor.schedule_tasks(), await store.inspections.workers())


async def _check_broken(store: Store, _: Thresholds) -> Found:
    return judge_broken(await store.doctor.broken())


async def _check_clock_changes(store: Store, _: Thresholds) -> Found:
    now, ends_at = await store.schedules.now(), monotonic() + MAX_SECONDS
    found: list[Finding | UnmadeCheck] = []
    rows = await store.doctor.zoned()
    for place, row in enumerate(rows):
        if monotonic() > ends_at:
            reason = f"computing fire times took {MAX_SECONDS:g} s, after {place} of {len(rows)}"
            return [*found, UnmadeCheck(FindingCode.SCHED_DST, reason)]
        found += judge_clock_changes([row], now)
    return found


async def _check_herds(store: Store, thresholds: Thresholds) -> Found:
    return judge_herds(await store.doctor.herds(thresholds.herd))


def judge_overdue(rows: Sequence[OverdueRow], workers: Sequence[InspectedWorker]) -> Iterator[Finding]:
    """Yield schedules that should have fired, and why they did not."""
    alive = [each for each in workers if each.is_alive]
    for row in rows:
        cause = "no node is alive"
        remedy = "start a worker"
        if alive and count_claiming(workers, row.task) == 0:
            cause = f"no live worker claims its task {row.task!r}"
            remedy = "import the module of the task in a worker, or pause the schedule"
        elif alive:
            cause = (
                f"no node plans it: a node needs its task and the trigger kinds {listed(sorted(row.kinds))}"
            )
            remedy = "read the logs of the workers; their records name schedules that cannot be planned"
        yield Finding(
            FindingCode.SCHED_OVERDUE,
            Severity.ERROR,
            row.schedule_id,
            f"the schedule {row.schedule_id!r} should have fired {length(row.overdue_s)} ago; {cause}",
            remedy,
        )


def judge_tasks(rows: Sequence[ScheduleTaskRow], workers: Sequence[InspectedWorker]) -> Iterator[Finding]:
    """Yield tasks of schedules that no live worker has registered."""
    claiming = [each for each in workers if each.is_alive and each.claims_jobs and not each.is_draining]
    if not claiming:
        return  # WORKER-NONE, or every worker drains
    known = sorted({name for each in claiming for name in each.names or ()})
    for row in rows:
        if count_claiming(workers, row.task) != 0:
            continue
        near = difflib.get_close_matches(row.task, known, 1)
        renamed = f"@job(name={near[0]!r}, aliases=[{row.task!r}]) if it was renamed, or " if near else ""
        yield Finding(
            FindingCode.SCHED_UNKNOWN,
            Severity.ERROR,
            row.task,
            f"the task {row.task!r} of {counted(row.schedules, 'schedule')}, such as {row.example!r}, is "
            f"claimed by none of {counted(len(claiming), 'live worker')}",
            f"{renamed}import its module in a worker, or {command('schedules', 'pause', row.example)}",
        )


def judge_broken(rows: Sequence[BrokenRow]) -> Iterator[Finding]:
    """Yield schedules that the planner paused because of an error."""
    for row in rows:
        yield Finding(
            FindingCode.SCHED_BROKEN,
            Severity.ERROR,
            row.schedule_id,
            f"the planner paused the schedule {row.schedule_id!r}: {short(row.note or 'no reason')}",
            f"await scheduler.schedules.update({row.schedule_id!r}, trigger=...) with a valid trigger, then "
            f"{command('schedules', 'resume', row.schedule_id)}; or remove it",
        )


def judge_herds(rows: Sequence[HerdRow]) -> Iterator[Finding]:
    """Yield seconds in which many schedules fire."""
    for row in rows:
        yield Finding(
            FindingCode.SCHED_HERD,
            Severity.INFO,
            instant(row.second),
            f"{row.schedules:,} schedules, such as {row.example!r}, fire at {instant(row.second)}",
            "jitter= for these schedules spreads their jobs",
        )


def judge_clock_changes(rows: Sequence[ZonedRow], now: datetime) -> Iterator[Finding]:
    """Yield schedules of which a clock change in the next seven days skips or repeats a fire time."""
    for row in rows:
        try:
            definition = json.loads(row.trigger)
            effects = [effect for name in sorted(_zones(definition)) if (effect := _effect(row, name, now))]
        except (ValueError, RecursionError):  # written by hand: SCHED-BROKEN once the planner has read it
            continue
        for effect in effects:
            yield Finding(
                FindingCode.SCHED_DST,
                Severity.INFO,
                row.schedule_id,
                f"the schedule {row.schedule_id!r}: {effect}",
                f"{command('schedules', 'preview', row.schedule_id)} shows when it fires; or choose UTC",
            )


def _effect(row: ZonedRow, name: str, now: datetime) -> str | None:
    """Return what the next clock change of a zone does to a schedule; None for nothing.

    The trigger is asked what it would do if the clock did not change: fire times in the hours that are
    skipped or repeated are those that move.
    """
    zone = parse_timezone(name)
    change = first_change(now, now + AHEAD, zone)
    if change is None:
        return None
    before, after = offset_at(change - timedelta(seconds=1), zone), offset_at(change, zone)
    gap = after - before
    if before % HOUR or not gap:
        return None  # no zone without clock changes has this offset
    start, end = (change, change + gap) if gap > timedelta(0) else (change + gap, change)
    unchanged = read_trigger(_replaced(row.trigger, name, f"Etc/GMT{-(before // HOUR):+d}"))
    upcoming = unchanged.upcoming(MAX_FIRES + 1, after=start - MOMENT, anchor=row.anchor)
    moved = [fire for fire in upcoming if fire < end]
    if not 0 < len(moved) <= MAX_FIRES:
        return None
    walls = listed([f"{fire + before:%H:%M}" for fire in moved])
    day = f"{change.astimezone(zone):%Y-%m-%d}"
    if gap > timedelta(0):
        (fire,) = read_trigger(row.trigger).upcoming(1, after=change - MOMENT, anchor=row.anchor) or (None,)
        then = (
            "it does not fire again"
            if fire is None
            else f"it fires at {fire.astimezone(zone):%Y-%m-%d %H:%M}"
        )
        return f"{walls} does not exist on {day} in {name}; {then}"
    real = read_trigger(row.trigger).upcoming(2 * MAX_FIRES + 1, after=start - MOMENT, anchor=row.anchor)
    fires = sum(fire < end - gap for fire in real)
    return f"{walls} occurs twice on {day} in {name}; it fires {fires} times in these hours"


def _zones(value: Any) -> set[str]:
    """Return the time zones that the JSON of a trigger names."""
    if isinstance(value, dict):
        found = {each for key, each in value.items() if key == "timezone" and isinstance(each, str)}
        return found.union(*map(_zones, value.values()))
    if isinstance(value, list):
        return set[str]().union(*map(_zones, value))
    return set()


def _replaced(trigger: str, name: str, other: str) -> str:
    def replace(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: other if key == "timezone" and each == name else replace(each)
                for key, each in value.items()
            }
        return [replace(each) for each in value] if isinstance(value, list) else value

    return json.dumps(replace(json.loads(trigger)))


CHECKS: Final = (
    Check((FindingCode.SCHED_OVERDUE,), _check_overdue),
    Check((FindingCode.SCHED_UNKNOWN,), _check_tasks),
    Check((FindingCode.SCHED_BROKEN,), _check_broken),
    Check((FindingCode.SCHED_DST,), _check_clock_changes),
    Check((FindingCode.SCHED_HERD,), _check_herds),
)
