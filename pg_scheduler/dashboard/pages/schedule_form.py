"""The page on which a schedule is added or edited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.pages.names import task_names
from pg_scheduler.dashboard.pages.schedules import visible_schedule
from pg_scheduler.inspect.fire_searches import search_one
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.triggers import parse_trigger
from pg_scheduler.triggers.phrases import EXAMPLES, write_trigger
from pg_scheduler.triggers.zones import named_zone

FIELDS: Final = (
    "trigger",
    "timezone",
    "start",
    "end",
    "max_runs",
    "version",
    "schedule_id",
    "task",
    "kwargs",
)
FIRE_TIMES: Final = 20

Texts = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FormPage:
    """A form, with what was entered."""

    schedule_id: str | None
    """The schedule to edit; None for a new one."""
    task: str | None
    names: Sequence[str]
    """The tasks that a new schedule may have: those that live workers claim."""
    values: Texts
    problem: str | None = None
    described: str | None = None
    """The trigger in words, of a preview."""
    fire_times: Sequence[tuple[datetime, str]] = ()
    """The next fire times, with their texts in the zone of the trigger."""

    @property
    def http_status(self) -> int:
        """The status of the answer."""
        return 200 if self.problem is None else 400

    @property
    def examples(self) -> Sequence[str]:
        """Triggers as they can be written."""
        return EXAMPLES


async def build(request: PageRequest) -> FormPage:
    """Return the form for the schedule that the address names, or for a new one."""
    schedule_id = request.parameters.get("id")
    if schedule_id is None:
        values = {**dict.fromkeys(FIELDS, ""), "timezone": "UTC", "kwargs": "{}"}
        return FormPage(None, None, (await task_names(request)).main, values)
    schedule = await visible_schedule(request, schedule_id)
    return FormPage(schedule.schedule_id, schedule.task, (), values_of(schedule))


def values_of(schedule: Schedule) -> Texts:
    """Return what the form of a schedule shows."""
    text, zone = ("", "UTC") if schedule.trigger is None else write_trigger(schedule.trigger)
    return {
        "trigger": text,
        "timezone": zone,
        "start": _text(schedule.start),
        "end": _text(schedule.end),
        "max_runs": "" if schedule.max_runs is None else str(schedule.max_runs),
        "version": str(schedule.version),
    }


def _text(at: datetime | None) -> str:
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


async def preview(values: Texts, after: datetime) -> tuple[str, list[tuple[datetime, str]]]:
    """Return a trigger in words, and its next fire times.

    Raises:
        ValueError: The trigger is invalid, or its search for fire times takes too many steps.
    """
    trigger = parse_trigger(values.get("trigger", ""), values.get("timezone") or "UTC")
    found = await search_one(trigger, partial(trigger.upcoming, FIRE_TIMES, after=after))
    _, zone = named_zone(getattr(trigger, "timezone", "UTC"))
    return str(trigger), [(fire, f"{fire.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}") for fire in found]
