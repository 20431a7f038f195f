"""Triggers as people write them in a form, within bounds, and as the form shows them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Final

from pg_scheduler.text.durations import read_seconds, write_duration
from pg_scheduler.text.times import TimeError, read_instant
from pg_scheduler.triggers import At, Cron, Every, FixedDelay, Trigger
from pg_scheduler.triggers.zones import named_zone

MAX_LENGTH: Final = 20_000
"""Characters of a trigger in a form; the parsers of cron expressions and of JSON have closer bounds."""

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


def read_trigger(text: str, timezone: str = "UTC") -> Trigger:
    """Return the trigger of a text.

    Args:
        text: One of the forms of ``EXAMPLES``.
        timezone: The zone of cron expressions, and of instants without an offset.

    Raises:
        ValueError: The text is invalid, or the zone is unknown.

    Example:
        >>> from pg_scheduler.dashboard.triggers import read_trigger
        >>> print(read_trigger("every 1h30m"), "|", read_trigger("0 8 * * *", "Europe/Berlin"))
        every 1 hour 30 minutes | at 08:00 every day, Europe/Berlin
    """
    if not text:
        raise ValueError(f"enter a trigger, such as {EXAMPLES[0]!r} or {EXAMPLES[2]!r}")
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the trigger has {len(text):,} characters; the limit is {MAX_LENGTH:,}")
    named_zone(timezone)
    if text.startswith("{"):
        return Trigger.from_json(text)
    word, _, rest = text.partition(" ")
    match word.lower():
        case "every":
            return Every(_length(rest))
        case "after":
            return FixedDelay(_length(rest))
        case "at":
            return At(*(_instant(part, timezone) for part in rest.split(",")))
    return Cron(text, timezone)


def write_trigger(trigger: Trigger) -> tuple[str, str]:
    """Return the text of a trigger, and its time zone."""
    match trigger:
        case Cron():
            return trigger.expression, trigger.timezone
        case Every() if not trigger.every.microseconds:
            return f"every {write_duration(trigger.every)}", "UTC"
    return json.dumps(trigger.to_json()), "UTC"


def _length(text: str) -> timedelta:
    text = text.strip().lower()
    seconds = read_seconds(text)
    if seconds is None:
        raise ValueError(f"write a length such as 15m or 1h30m, not {text[:50]!r}")
    try:
        return timedelta(seconds=seconds)
    except OverflowError as error:
        raise ValueError(f"the length {text!r} is too large") from error


def _instant(text: str, timezone: str) -> datetime:
    text = text.strip()
    try:
        return read_instant(text, datetime.now(UTC), named_zone(timezone)[1])
    except TimeError as error:
        raise ValueError(f"write a time such as 2027-01-31T09:00, not {text[:50]!r}") from error
