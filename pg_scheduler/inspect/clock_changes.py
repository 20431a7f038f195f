"""The effects of clock changes on schedules: fire times that are skipped or repeated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from pg_scheduler.base.text.numbers import counted
from pg_scheduler.inspect.texts import listed
from pg_scheduler.schedules.row import read_trigger
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.search import INSTANT
from pg_scheduler.triggers.zones import first_change, offset_at, parse_timezone

STEP: Final = timedelta(days=7)
"""The length of a step of the search for changes of a zone.

Two changes within one step that cancel each other are not found."""

MAX_STEPS: Final = 110
"""Steps of a search for changes: two years."""

DAY: Final = timedelta(days=1)
HOUR: Final = timedelta(hours=1)
MAX_FIRES: Final = 2
"""A schedule with more fire times than this in the hours of a change is left out: none of them matters
alone."""


@dataclass(frozen=True, slots=True)
class ClockEffect:
    """The effect of a clock change on a schedule."""

    at: datetime
    """The start of the hours that are skipped or repeated, as an instant."""
    zone: str
    """The time zone whose clock changes."""
    text: str
    """The effect in words, with the fire times by the clock of the zone."""
    fires_at: datetime | None = None
    """The fire time that stands for those that are skipped; None for hours that are repeated, or for none."""


def zone_of(schedule: Schedule) -> str:
    """Return the time zone of the trigger of a schedule; UTC if it has several or none."""
    zones = set() if schedule.trigger is None else zones_of(schedule.trigger.to_json())
    return zones.pop() if len(zones) == 1 else "UTC"


def clock_effects(
    definition: object, anchor: datetime, since: datetime, until: datetime
) -> list[ClockEffect]:
    """Return what clock changes do to a schedule in a period. At most two years of the period are searched.

    ``definition`` is the trigger as JSON. Intervals in it are counted from ``anchor``.

    Raises:
        ValueError: The trigger or a time zone is invalid.
    """
    effects: list[ClockEffect] = []
    for name in sorted(zones_of(definition)):
        for change in _changes(name, since, until):
            effect = _effect(definition, anchor, name, change)
            if effect is not None:
                effects.append(effect)
    return sorted(effects, key=lambda effect: effect.at)


def mark_fires(trigger: Trigger, anchor: datetime, fires: Sequence[datetime]) -> dict[datetime, str]:
    """Return what clock changes do to successive fire times.

    Each text belongs to the first fire time at or after its clock change.

    Raises:
        ValueError: A kind of the trigger is not registered.
    """
    marks: dict[datetime, str] = {}
    if fires:
        # A clock change shortly before or after the fire times can move or repeat one of them too.
        for effect in clock_effects(trigger.to_json(), anchor, fires[0] - DAY, fires[-1] + DAY):
            at = next((fire for fire in fires if fire >= effect.at), None)
            if at is not None:
                marks[at] = effect.text
    return marks


def zones_of(definition: object) -> set[str]:
    """Return the time zones that the JSON of a trigger names, at any depth: triggers can contain others."""
    zones: set[str] = set()
    if isinstance(definition, dict):
        zone = definition.get("timezone")
        if isinstance(zone, str):
            zones.add(zone)
        for member in definition.values():
            zones |= zones_of(member)
    elif isinstance(definition, list):
        for item in definition:
            zones |= zones_of(item)
    return zones


@lru_cache(maxsize=256)
def _changes(name: str, since: datetime, until: datetime) -> Sequence[datetime]:
    """Return the clock changes of a zone in a period, at most one for each step of seven days."""
    zone = parse_timezone(name)
    changes = []
    for step in range(MAX_STEPS):
        start = since + step * STEP
        if start >= until:
            break
        change = first_change(start, min(start + STEP, until), zone)
        if change is not None:
            changes.append(change)
    return changes


def _effect(definition: object, anchor: datetime, name: str, change: datetime) -> ClockEffect | None:
    """Return what a clock change of a zone does to a schedule; None if it does nothing.

    The fire times are computed as if the clock did not change. Those in the hours that are skipped or
    repeated are the fire times that the change affects.

    Args:
        definition: The trigger as JSON.
        anchor: The instant from which intervals of the trigger are counted.
        name: The time zone.
        change: The instant of the clock change.
    """
    zone = parse_timezone(name)
    offset_before = offset_at(change - timedelta(seconds=1), zone)
    gap = offset_at(change, zone) - offset_before
    # The fixed zone below, which has no clock changes, exists for whole hours only.
    if offset_before % HOUR or not gap:
        return None
    # The clock is set forward over the hours after the change, or back over those before it.
    start, end = (change, change + gap) if gap > timedelta(0) else (change + gap, change)
    # The names of fixed zones have the opposite sign: Etc/GMT-1 is an hour ahead of UTC.
    fixed_zone = f"Etc/GMT{-(offset_before // HOUR):+d}"
    fixed_trigger = read_trigger(json.dumps(_replaced(definition, name, fixed_zone)))
    upcoming = fixed_trigger.upcoming(MAX_FIRES + 1, after=start - INSTANT, anchor=anchor)
    moved_fires = [fire for fire in upcoming if fire < end]
    # For a schedule that fires often, a single fire time does not matter.
    if not 0 < len(moved_fires) <= MAX_FIRES:
        return None
    wall_times = listed([f"{fire + offset_before:%H:%M}" for fire in moved_fires])
    day = f"{change.astimezone(zone):%Y-%m-%d}"
    trigger = read_trigger(json.dumps(definition))
    if gap > timedelta(0):
        next_fires = trigger.upcoming(1, after=change - INSTANT, anchor=anchor)
        then = "it does not fire again"
        if next_fires:
            then = f"it fires at {next_fires[0].astimezone(zone):%Y-%m-%d %H:%M}"
        text = f"{wall_times} does not exist on {day} in {name}; {then}"
        return ClockEffect(start, name, text, next(iter(next_fires), None))
    # The clock is set back, so the hours from ``start`` to ``end`` follow once more: they last until
    # ``end - gap``, because the gap is negative.
    fires = trigger.upcoming(2 * MAX_FIRES + 1, after=start - INSTANT, anchor=anchor)
    second_end = end - gap
    fire_count = sum(fire < second_end for fire in fires)
    times = counted(fire_count, "time")
    text = f"{wall_times} occurs twice on {day} in {name}; it fires {times} in these hours"
    return ClockEffect(start, name, text)


def _replaced(value: Any, zone: str, new_zone: str) -> Any:
    """Return the JSON of a trigger with ``new_zone`` wherever it names the time zone ``zone``."""
    if isinstance(value, list):
        return [_replaced(item, zone, new_zone) for item in value]
    if not isinstance(value, dict):
        return value
    members = {key: _replaced(member, zone, new_zone) for key, member in value.items()}
    if members.get("timezone") == zone:
        members["timezone"] = new_zone
    return members
