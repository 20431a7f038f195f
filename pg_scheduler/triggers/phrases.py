"""Triggers as people write them in a form or on a command line, within bounds."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from pg_scheduler.base.text.durations import read_seconds, write_duration
from pg_scheduler.base.text.times import TimeError, read_instant
from pg_scheduler.triggers.at import At
from pg_scheduler.triggers.base import Trigger
from pg_scheduler.triggers.cron import Cron
from pg_scheduler.triggers.interval import Every, FixedDelay
from pg_scheduler.triggers.zones import named_zone

MAX_LENGTH: Final = 40_000
"""Characters of a trigger; the parsers of cron expressions and of JSON have closer bounds."""

EXAMPLES: Final = (
    "0 8 * * 1-5",
    "@hourly",
    "every 15m",
    "every 1h30m",
    "at 2027-01-31T09:00",
    "after 10m",
    '{"kind": "every", "every": "PT15M"}',
)
"""Cron expressions, intervals, instants, delays after the end of the last job, and any trigger as JSON."""


def parse_trigger(text: str, timezone: str | tzinfo = "UTC") -> Trigger:
    """Return the trigger of a text.

    Args:
        text: A cron expression such as ``0 8 * * 1-5``, an interval such as ``every 1h30m``, instants such as
            ``at 2027-01-31T09:00, +2h``, a delay after the end of the last job such as ``after 10m``, or any
            trigger as JSON. Lengths have the units ``w``, ``d``, ``h``, ``m`` and ``s``.
        timezone: The zone of cron expressions, and of instants without an offset.

    Raises:
        ValueError: The text is invalid, or the zone is unknown.

    Example:
        >>> from pg_scheduler.triggers import parse_trigger
        >>> print(parse_trigger("every 1h30m"), "|", parse_trigger("0 8 * * *", "Europe/Berlin"))
        every 1 hour 30 minutes | at 08:00 every day, Europe/Berlin
    """
    return read_phrase(text, timezone)


def read_phrase(text: str, timezone: str | tzinfo, instants_in: tzinfo | None = None) -> Trigger:
    """Return the trigger of a text, as `parse_trigger()` does.

    Args:
        text: The text.
        timezone: The zone of cron expressions.
        instants_in: The zone of instants without an offset, which may be one without a name; None for
            ``timezone``. A trigger stores instants without their zone.
    """
    value: object = text
    if not isinstance(value, str):
        raise ValueError(  # noqa: TRY004 - every error of a schedule is a ValueError
            f"a trigger must be a str, not {value!r}; enter one such as {EXAMPLES[0]!r}"
        )
    text = text.strip()
    if not text:
        raise ValueError(f"enter a trigger, such as {EXAMPLES[0]!r} or {EXAMPLES[2]!r}")
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the trigger has {len(text):,} characters; the limit is {MAX_LENGTH:,}")
    if instants_in is None:
        _, instants_in = named_zone(timezone)
    if text.startswith("{"):
        return Trigger.from_json(text)
    word, _, argument = text.partition(" ")
    match word.lower():
        case "every":
            return Every(_length(argument))
        case "after":
            return FixedDelay(_length(argument))
        case "at":
            return At(*(_instant(part, instants_in) for part in argument.split(",")))
    return Cron(text, timezone)


def write_trigger(trigger: Trigger) -> tuple[str, str]:
    """Return a text that `parse_trigger()` reads as an equal trigger, and its time zone."""
    # The text of a length has whole seconds only. A trigger with parts of a second is written as JSON.
    match trigger:
        case Cron():
            return trigger.expression, trigger.timezone
        case Every() if not trigger.every.microseconds:
            return f"every {write_duration(trigger.every)}", "UTC"
        case FixedDelay() if trigger.delay and not trigger.delay.microseconds:
            return f"after {write_duration(trigger.delay)}", "UTC"
        case At():
            instants = ", ".join(instant.astimezone(UTC).isoformat() for instant in trigger.instants)
            return f"at {instants}", "UTC"
    return json.dumps(trigger.to_json()), "UTC"


def _length(text: str) -> timedelta:
    """Return the length of time that a text such as ``1h30m`` states; raise ValueError for another text."""
    text = text.strip().lower()
    seconds = read_seconds(text)
    if seconds is None:
        raise ValueError(f"write a length such as 15m or 1h30m, not {text[:50]!r}")
    try:
        return timedelta(seconds=seconds)
    except OverflowError as error:
        raise ValueError(f"the length {text!r} is too large") from error


def _instant(text: str, zone: tzinfo) -> datetime:
    """Return the instant that a text such as ``2027-01-31T09:00`` or ``+2h`` states, in a time zone.

    Raises ValueError for another text.
    """
    text = text.strip()
    try:
        return read_instant(text, datetime.now(UTC), zone)
    except TimeError as error:
        raise ValueError(f"write a time such as 2027-01-31T09:00, not {text[:50]!r}") from error
