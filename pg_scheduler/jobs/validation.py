"""Validate what callers pass: ids, names, times, counts and timeouts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, TypeVar

from pg_scheduler.errors import ConfigurationError

__all__ = [
    "INFINITIES",
    "MAX_ID_BYTES",
    "MAX_INTEGER",
    "PLAIN",
    "check_count",
    "check_execution_time",
    "check_grace",
    "check_job_id",
    "check_kind",
    "check_text",
    "check_timeout",
]

T = TypeVar("T")


MAX_ID_BYTES: Final = 2000
"""A row of a PostgreSQL index holds at most 2,704 bytes, and the claim index holds more than the id."""


MAX_INTEGER: Final = 2**31 - 1


PLAIN: Final = (str, int, float, Enum, type(None))


INFINITIES: Final = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
"""What asyncpg takes for them."""


def check_job_id(job_id: object) -> str:
    """The id, if the table can hold it."""
    if not isinstance(job_id, str):
        raise TypeError(f"job_id must be a str, not {type(job_id).__name__}: {job_id!r}")
    if not job_id:
        raise ValueError("job_id must not be empty. Leave it out (or pass None) to have one made.")
    size = len(check_text("job_id", job_id).encode())
    if size > MAX_ID_BYTES:
        raise ValueError(f"job_id has {size} bytes of UTF-8; at most {MAX_ID_BYTES} fit into the index.")
    return job_id


def check_text(name: str, value: object) -> str:
    """A text that PostgreSQL can store."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}: {value!r}")
    if "\x00" in value:
        raise ValueError(f"{name} {value!r} holds a NUL character, which PostgreSQL cannot store.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} {value!r} holds a lone surrogate, which is no text: {error}") from error
    return value


def check_execution_time(execution_time: object, *, name: str = "execution_time") -> datetime:
    """The time in UTC; a naive one is refused, since its zone could only be guessed."""
    if not isinstance(execution_time, datetime):
        raise TypeError(f"{name} must be a datetime, not {type(execution_time).__name__}")
    if execution_time.tzinfo is not UTC and execution_time.utcoffset() is None:
        raise ValueError(
            f"{name} {execution_time.isoformat()} has no time zone. "
            "Use datetime.now(UTC) + timedelta(...), or datetime(..., tzinfo=ZoneInfo('Europe/Berlin'))."
        )
    try:
        instant = execution_time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{name} {execution_time.isoformat()} is out of range in UTC.") from error
    if instant in INFINITIES:
        raise ValueError(f"{name} {execution_time.isoformat()} is out of range: it means no instant.")
    return instant


def check_count(name: str, value: object, *, least: int = 0, most: int = MAX_INTEGER) -> int:
    """A whole number that the integer column can hold."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}: {value!r}")
    if not least <= value <= most:
        shown = value if value.bit_length() <= 64 else f"an int of {value.bit_length()} bits"
        raise ConfigurationError(f"{name} must be between {least} and {most}, not {shown}.")
    return value


def check_grace(value: object) -> int | None:
    """Seconds of grace, or None for ever."""
    return None if value is None else check_count("misfire_grace_time", value)


def check_timeout(value: object) -> float | None:
    """A try's time limit in seconds, or None for ever."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"timeout must be seconds, a timedelta or None, not {type(value).__name__}: {value!r}"
        )
    try:
        seconds = float(value)
    except OverflowError:  # an int
        seconds = float("inf")
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(
            f"timeout must be more than 0 seconds and finite, not {seconds}. None means for ever."
        )
    return seconds


def check_kind(name: str, value: object, kind: type[T]) -> T:
    """The value, if it is of this class. What is refused is not shown if it could hold a job's arguments."""
    if not isinstance(value, kind):
        shown = f": {value!r}" if isinstance(value, PLAIN) else ""
        raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}{shown}")
    return value
