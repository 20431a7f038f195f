"""Options that several commands have, and the durations, times, rates and JSON in options.

A time is a text that `pg_scheduler.base.text.times` reads. A duration such as ``2h`` is a time too: two hours
from now, or two hours ago for options that look back.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Any, Final, Literal

import typer

from pg_scheduler import JobPriority
from pg_scheduler.base.text.durations import read_seconds
from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.base.text.times import NonexistentTimeError, TimeError, read_instant

from .errors import UsageError

After = Annotated[str | None, typer.Option(help="Continue after the page before.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

CodeModules = Annotated[
    list[str] | None,
    typer.Option("--jobs", metavar="MODULE", help="Take the options of the task from this code; repeatable."),
]

Args = Annotated[str | None, typer.Option(metavar="JSON", help="A list of arguments.")]
Kwargs = Annotated[str | None, typer.Option(metavar="JSON", help="Arguments by name.")]
Priority = Annotated[JobPriority | None, typer.Option(help="Higher ones start first.")]
Retries = Annotated[int | None, typer.Option(help="Retries after a failed attempt.")]
Metadata = Annotated[str | None, typer.Option(metavar="JSON", help="An object for filters.")]

PauseUntil = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="When the pause ends: 2h, or 2027-01-31T09:00. Without it, at resume."),
]
SuspendExpiry = Annotated[
    bool,
    typer.Option(
        "--suspend-expiry",
        help="Let no job expire during the pause; when it ends, due jobs get their misfire grace time again.",
    ),
]
PauseNote = Annotated[str | None, typer.Option(help="Why, for people.")]

Targets = Annotated[
    list[str],
    typer.Argument(metavar="TARGET", help="A Scheduler as package.module:attribute, or modules of jobs."),
]
FailOn = Annotated[
    Literal["warning", "error"], typer.Option("--fail-on", help="Exit with 1 from this severity on.")
]

MAX_DURATION: Final = timedelta(days=36_500)

_RATE: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(?:/([smh]))?")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


def read_duration(name: str, text: str) -> float:
    """Return the seconds of a duration such as 90s, 15m, 1h30m or 2d.

    Raises:
        CommandError: The text is no duration, or the duration is 0 or longer than a hundred years.
    """
    duration_s = read_seconds(text.strip())
    if duration_s is None:
        raise UsageError(f"{name} must be a duration such as 90s, 15m, 1h30m or 2d, not {text!r}")
    if not 0 < duration_s <= MAX_DURATION.total_seconds():
        raise UsageError(f"{name} must be more than 0s and at most {MAX_DURATION.days}d, not {text!r}")
    return duration_s


def read_deadline(name: str, text: str, zone: tzinfo) -> datetime | timedelta:
    """Return the deadline of a text: a time, or a duration from the due time such as 2h.

    Args:
        name: The option, for the message.
        text: The deadline.
        zone: The zone of times without a zone.

    Raises:
        CommandError: The text is neither.
    """
    if read_seconds(text.strip()) is not None:
        return timedelta(seconds=read_duration(name, text))
    return read_time(name, text, zone)


def read_time(name: str, text: str, zone: tzinfo, *, is_past: bool = False) -> datetime:
    """Return the instant of a text: a time such as 2027-01-31T09:00, or a duration from now such as 2h.

    Args:
        name: The option, for the message.
        text: The time.
        zone: The zone of days, and of times without a zone.
        is_past: Whether a duration without a sign looks back.

    Raises:
        CommandError: The text is neither.
    """
    text = text.strip()
    # The sign of a duration: whether it leads to the past.
    sign = "-" if is_past else "+"
    unsigned_text = text
    if text[:1] in {"+", "-"}:
        sign, unsigned_text = text[0], text[1:]
    now = datetime.now(UTC)
    # A text that is no duration may be a time.
    if read_seconds(unsigned_text) is not None:
        length = timedelta(seconds=read_duration(name, unsigned_text))
        return now - length if sign == "-" else now + length
    try:
        return read_instant(text, now, zone)
    except NonexistentTimeError as error:
        raise UsageError(f"{name}: {error}") from None
    except TimeError:
        raise UsageError(
            f"{name} must be a time such as 2027-01-31T09:00, now, +15m or -1h, not {text!r}"
        ) from None


def read_since(name: str, text: str, zone: tzinfo) -> datetime:
    """Return a time, or the instant a duration such as 1h ago."""
    return read_time(name, text, zone, is_past=True)


def read_move(name: str, text: str, zone: tzinfo) -> datetime | timedelta:
    """Return the time to which jobs are moved, or a duration if the text has a sign: +1h or -30m."""
    if text[:1] in {"+", "-"}:
        length = timedelta(seconds=read_duration(name, text[1:]))
        return -length if text[0] == "-" else length
    return read_time(name, text, zone)


def read_rate(text: str | None) -> float | None:
    """Return the jobs per second of a rate such as 50/s, 10/m or 500/h; None without a text.

    Raises:
        CommandError: The text is no rate, or the rate is 0.
    """
    if text is None:
        return None
    match = _RATE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"--rate must be a rate such as 50/s, 10/m or 500/h, not {text!r}")
    jobs, unit = float(match[1]), match[2] or "s"
    return jobs / _SECONDS[unit]


def read_json(name: str, text: str | None, kind: type = object) -> Any:
    """Return the value of a JSON text; None without a text.

    Args:
        name: The option, for the message.
        text: The text.
        kind: The type of the value: list, dict, or object for any.

    Raises:
        CommandError: The text is no JSON, or its value has another type.
    """
    if text is None:
        return None
    kinds_in_words: dict[type, str] = {list: "list", dict: "object"}
    expected = kinds_in_words.get(kind, "value")
    try:
        value = load_json(text)
    except ValueError as error:
        raise UsageError(f"{name} must be a JSON {expected}: {error}") from None
    if not isinstance(value, kind):
        raise UsageError(f"{name} must be a JSON {expected}, not {text[:100]!r}")
    return value
