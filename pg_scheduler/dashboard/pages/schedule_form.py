"""The page on which a schedule is added or edited."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from functools import partial
from typing import Any, Final

from pg_scheduler.dashboard.arguments import FieldError, fields_of
from pg_scheduler.dashboard.context import PageRequest
from pg_scheduler.dashboard.job_rows import arguments_line
from pg_scheduler.dashboard.pages.schedules import FIRE_TIMES, FireTime, local_fires, visible_schedule
from pg_scheduler.inspect.clock_changes import mark_fires
from pg_scheduler.inspect.fire_searches import search_one
from pg_scheduler.jobs.worker_report import Parameter
from pg_scheduler.schedules.schedule import Schedule
from pg_scheduler.triggers import At, CalendarInterval, Cron, Every, FixedDelay, Trigger, parse_trigger
from pg_scheduler.triggers.phrases import write_trigger
from pg_scheduler.triggers.zones import named_zone

KINDS: Final[Mapping[str, str]] = {
    "cron": "Cron",
    "interval": "Interval",
    "calendar": "Calendar",
    "instants": "Fixed times",
    "after": "After the last run ends",
    "json": "JSON",
}
"""The kinds of triggers with their labels. Each has a field of its name; ``calendar`` has further fields."""

MAX_ARGUMENTS: Final = 100_000
UNITS: Final = ("days", "weeks", "months", "years")
TRIGGER_FIELDS: Final = (*KINDS, "kind", "unit", "time", "first", "missing_day", "timezone")

DEFAULTS: Final[Mapping[str, str]] = {
    **dict.fromkeys((*TRIGGER_FIELDS, "start", "end", "max_runs", "version"), ""),
    **dict.fromkeys(("schedule_id", "task", "kwargs"), ""),
    "kind": "cron",
    "calendar": "1",
    "unit": "days",
    "time": "09:00",
    "missing_day": "last",
    "timezone": "UTC",
}
"""What the fields of the form of a new schedule contain."""

Texts = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FormPage:
    """A form, with what was entered."""

    schedule_id: str | None
    """The schedule to edit; None for a new one."""
    task: str | None
    """The task of the schedule to edit; None for a new one."""
    names: Sequence[str]
    """The tasks that a new schedule may have: those that live workers claim."""
    values: Texts
    parameters: Sequence[Parameter] = ()
    """The parameters of the task, if a live worker reports them."""
    arguments: Texts = field(default_factory=dict)
    positional: str = ""
    """The positional arguments of the schedule, in one line, which the form keeps; empty for none."""
    has_arguments: bool = True
    """Whether the form has the arguments. It has none if the request may not see all arguments of the
    schedule, or if they are no JSON or too long."""
    errors: Texts = field(default_factory=dict)
    """What is wrong, by field. The empty name stands for the whole form."""
    described: str | None = None
    fire_times: Sequence[FireTime] = ()


async def build(request: PageRequest) -> FormPage:
    """Return the form for the schedule that the address names, or for a new one."""
    schedule_id = request.parameters.get("id")
    if schedule_id is None:
        entered_fields = {
            name: request.parameters[name] for name in ("task", "kind") if name in request.parameters
        }
        return await new_form(request, {**DEFAULTS, **entered_fields})
    schedule = await visible_schedule(request, schedule_id)
    return await edit_form(request, schedule, values_of(schedule))


async def new_form(request: PageRequest, values: Texts, arguments: Texts | None = None) -> FormPage:
    """Return the form of a new schedule with fields for the parameters of its task."""
    names = await request.task_names()
    parameters = await request.task_parameters(values["task"] or None)
    return FormPage(
        schedule_id=None,
        task=None,
        names=names.main,
        values=values,
        parameters=parameters,
        arguments=arguments or {},
    )


async def _positional(schedule: Schedule, request: PageRequest) -> str:
    """Return the positional arguments in one line, with their names if workers report all of them."""
    if not schedule.args:
        return ""
    is_hidden = request.settings.redaction.is_hidden
    names = await request.argument_names(schedule.task, schedule.args)
    if len(names) < len(schedule.args):
        return arguments_line(schedule.args, {}, is_hidden)
    # With a name for each of them, they are written as keyword arguments are. There may be more names.
    named_arguments = dict(zip(names, schedule.args, strict=False))
    return arguments_line((), named_arguments, is_hidden)


async def edit_form(
    request: PageRequest, schedule: Schedule, values: Texts, arguments: Texts | None = None
) -> FormPage:
    """Return the form of a schedule with these values.

    ``arguments`` are the texts that were entered; None for the stored arguments of the schedule.
    """
    page = FormPage(schedule.schedule_id, schedule.task, (), values, has_arguments=False)
    stored_arguments = {"args": list(schedule.args), "kwargs": dict(schedule.kwargs)}
    # If the stored arguments could not be decoded, those of ``schedule`` are empty. The form must not show
    # these as if the schedule had no arguments.
    could_read_arguments = schedule.no_args_reason is None
    sees_all = request.access.sees_arguments and request.settings.redaction.shows(stored_arguments)
    if not could_read_arguments or not sees_all:
        return page
    parameters = () if schedule.args else await request.task_parameters(schedule.task)
    try:
        fields, other_arguments = fields_of(schedule.kwargs, parameters)
    except (TypeError, ValueError):
        # The Scheduler has decoded the arguments to objects that JSON does not have.
        return page
    # This is the number of characters that the form would have.
    if len(other_arguments) + sum(map(len, fields.values())) > MAX_ARGUMENTS:
        return page
    if arguments is None:
        values, arguments = {**values, "kwargs": other_arguments}, fields
    positional = await _positional(schedule, request)
    page = replace(page, positional=positional, has_arguments=True)
    return replace(page, values=values, parameters=parameters, arguments=arguments)


def values_of(schedule: Schedule) -> Texts:
    """Return what the fields of the form of a schedule contain, except those of its arguments."""
    trigger_values = {} if schedule.trigger is None else _values_of(schedule.trigger)
    return {
        **DEFAULTS,
        **trigger_values,
        "start": _text(schedule.start),
        "end": _text(schedule.end),
        "max_runs": "" if schedule.max_runs is None else str(schedule.max_runs),
        "version": str(schedule.version),
    }


def _values_of(trigger: Trigger) -> Texts:
    """Return the fields of a trigger, from which `trigger_of()` makes an equal one."""
    # The text is a phrase such as "every 5m", or JSON for a trigger that cannot be written as a phrase.
    text, zone = write_trigger(trigger)
    # What follows the first word, which states the kind of the trigger.
    definition = text.partition(" ")[2]
    match trigger:
        case Cron():
            return {"kind": "cron", "cron": text, "timezone": zone}
        case Every() if not text.startswith("{"):
            return {"kind": "interval", "interval": definition}
        case FixedDelay() if not text.startswith("{"):
            return {"kind": "after", "after": definition}
        case At() if not text.startswith("{"):
            return {"kind": "instants", "instants": definition.replace(", ", "\n")}
        case CalendarInterval():
            units = [unit for unit in UNITS if getattr(trigger, unit)]
            if len(units) == 1:
                return {
                    "kind": "calendar",
                    "calendar": str(getattr(trigger, units[0])),
                    "unit": units[0],
                    "time": trigger.at.isoformat().removesuffix(":00"),
                    "first": "" if trigger.first is None else trigger.first.isoformat(),
                    "missing_day": trigger.missing_day,
                    "timezone": trigger.timezone,
                }
    return {"kind": "json", "json": json.dumps(trigger.to_json(), indent=2)}


def trigger_of(values: Texts) -> Trigger:
    """Return the trigger that the fields of a form define.

    Raises:
        FieldError: A field is wrong.
    """
    kind, zone = values["kind"], values["timezone"] or "UTC"
    if kind not in KINDS:
        raise FieldError("kind", f"choose one of {', '.join(KINDS)}")
    if kind in {"cron", "calendar", "instants"}:
        try:
            named_zone(zone)
        except ValueError as error:
            raise FieldError("timezone", str(error)) from error
    text = values[kind]
    try:
        match kind:
            case "interval":
                return parse_trigger(f"every {text}")
            case "after":
                return parse_trigger(f"after {text}")
            case "instants":
                return parse_trigger("at " + ",".join(text.splitlines()), zone)
            case "calendar":
                return _calendar(values, zone)
            case "json":
                return Trigger.from_json(text)
        return parse_trigger(text, zone)
    except FieldError:
        # It is a ValueError too, and already states its field.
        raise
    except ValueError as error:
        raise FieldError(kind, str(error)) from error


def _calendar(values: Texts, zone: str) -> CalendarInterval:
    """Return the trigger that fires every some days, weeks, months or years, as the fields define it.

    Raises:
        FieldError: A field is wrong.
    """
    count, unit = values["calendar"], values["unit"]
    if unit not in UNITS:
        raise FieldError("calendar", f"choose one of {', '.join(UNITS)}")
    if not (count.isascii() and count.isdigit() and len(count) <= 5):
        raise FieldError("calendar", f"enter a whole number, not {count[:50]!r}")
    try:
        at = time.fromisoformat(values["time"])
    except ValueError as error:
        raise FieldError("time", f"enter a time such as 09:00, not {values['time'][:50]!r}") from error
    try:
        first = date.fromisoformat(values["first"]) if values["first"] else None
    except ValueError as error:
        raise FieldError("first", f"enter a day such as 2027-01-31, not {values['first'][:50]!r}") from error
    units: dict[str, Any] = {unit: int(count)}
    return CalendarInterval(
        **units,
        at=at,
        timezone=zone,
        first=first,
        missing_day="skip" if values["missing_day"] == "skip" else "last",
    )


def _text(at: datetime | None) -> str:
    """Return an instant as a field of the form has it; empty for None."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


async def preview(trigger: Trigger, after: datetime) -> list[FireTime]:
    """Return the next fire times of a trigger, by the clock of its zone.

    Raises:
        ValueError: Its search for fire times takes too many steps.
    """

    def search() -> list[FireTime]:
        """Compute the next fire times, with the effects of clock changes."""
        fire_times = trigger.upcoming(FIRE_TIMES, after=after, anchor=after)
        _, zone = named_zone(getattr(trigger, "timezone", "UTC"))
        return local_fires(fire_times, zone, mark_fires(trigger, after, fire_times))

    return await search_one(trigger, partial(search))
