"""Validate ids, texts, times, counts and timeouts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, TypeVar

from pg_scheduler.errors import ConfigurationError

T = TypeVar("T")


MAX_ID_BYTES: Final = 2000
"""A row of a PostgreSQL index has at most 2,704 bytes, and the claim index contains more than the id."""


MAX_INTEGER: Final = 2**31 - 1


SHOWN_TYPES: Final = (str, int, float, timedelta, Enum, type(None))
"""Types whose rejected values a message may show: they are not the arguments of a job."""


TIME_REMEDIES: Final = {
    timedelta: "pass datetime.now(UTC) + the timedelta",
    str: "pass datetime.fromisoformat() of it, with a UTC offset",
    int: "pass datetime.fromtimestamp(seconds, UTC)",
    float: "pass datetime.fromtimestamp(seconds, UTC)",
}

DEFAULT_TIME_REMEDY: Final = "pass datetime.now(UTC) + timedelta(...)"


MAX_DELAY_S: Final = 3_153_600_000
"""A hundred years."""


MAX_KEEP_S: Final = 10 * 366 * 86_400.0
"""The longest lifetime of a result in seconds: ten years."""


LONGEST_S: Final = 86_400_000_000_000.0
"""The longest timedelta in seconds, as a float holds it: a microsecond more, so timedelta() overflows."""


INFINITIES: Final = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
"""The datetimes that asyncpg stores as infinities."""


def check_job_id(job_id: object) -> str:
    """Return the id if the table can store it."""
    if not isinstance(job_id, str):
        raise TypeError(f"job_id must be a str, not {type(job_id).__name__}: {job_id!r}; pass str() of it")
    if not job_id:
        raise ValueError("job_id must not be empty; omit it or pass None to generate one")
    return check_text("job_id", job_id, max_bytes=MAX_ID_BYTES)


class TextError(ValueError):
    """A text has a character that PostgreSQL cannot store, or it is too long.

    What receives texts from outside, such as the dashboard, distinguishes it from other mistakes.
    """


def check_text(name: str, value: object, *, max_bytes: int | None = None) -> str:
    """Return the text if PostgreSQL can store it; raise TextError if not."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}: {value!r}")
    if "\x00" in value:
        raise TextError(f"{name} {value!r} contains a NUL character, which PostgreSQL cannot store")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise TextError(
            f"{name} {value!r} contains a lone surrogate, which PostgreSQL cannot store: {error}"
        ) from error
    if max_bytes is not None and size > max_bytes:
        raise TextError(f"{name} must have at most {max_bytes} bytes of UTF-8, not {size}")
    return value


def check_execution_time(execution_time: object, *, name: str = "execution_time") -> datetime:
    """Return the time in UTC; reject a naive one, whose time zone is unknown."""
    if not isinstance(execution_time, datetime):
        raise TypeError(
            f"{name} must be a datetime, not {type(execution_time).__name__}{_shown(execution_time)}; "
            f"{TIME_REMEDIES.get(type(execution_time), DEFAULT_TIME_REMEDY)}"
        )
    # Most times are in UTC, for which the call of utcoffset() is saved.
    if execution_time.tzinfo is not UTC and execution_time.utcoffset() is None:
        raise ValueError(
            f"{name} {execution_time.isoformat()} has no time zone; "
            "use datetime.now(UTC) + timedelta(...), or datetime(..., tzinfo=ZoneInfo('Europe/Berlin'))"
        )
    try:
        instant = execution_time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{name} {execution_time.isoformat()} is out of range in UTC") from error
    if instant in INFINITIES:
        raise ValueError(
            f"{name} {execution_time.isoformat()} is out of range: PostgreSQL would store it as infinity"
        )
    return instant


def check_count(name: str, value: object, *, least: int = 0, most: int = MAX_INTEGER) -> int:
    """Return the number if it is an int within the limits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}: {value!r}")
    if not least <= value <= most:
        # Python refuses to write an int of thousands of digits.
        text = value if value.bit_length() <= 64 else f"an int of {value.bit_length()} bits"
        raise ConfigurationError(f"{name} must be between {least} and {most}, not {text}")
    return value


def check_seconds(name: str, value: object, expected: str, *, is_discreet: bool = False) -> float:
    """Return a length of time in seconds.

    Args:
        name: The name of the parameter.
        value: The length, in seconds or as a timedelta.
        expected: What it must be, for the message.
        is_discreet: Whether the message hides a value that may be an argument of a job.
    """
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = _shown(value) if is_discreet else f": {value!r}"
        raise TypeError(f"{name} must be {expected}, not {type(value).__name__}{text}")
    return value


def check_delay(name: str, value: object) -> float:
    """Return a delay in seconds; None is no delay."""
    if value is None:
        return 0.0
    seconds = check_seconds(name, value, "seconds, a timedelta or None", is_discreet=True)
    if not 0 <= seconds <= MAX_DELAY_S:
        raise ValueError(f"{name} must be between 0 and {MAX_DELAY_S} seconds, not {seconds}")
    return float(seconds)


def check_grace(value: object) -> int | None:
    """Return a misfire grace time in seconds, or None for no limit."""
    return None if value is None else check_count("misfire_grace_time", value)


def check_keep_result(value: object) -> float | None:
    """Return the seconds for which a result is kept; None if it is not kept.

    Raises:
        TypeError: The value is neither a timedelta nor None.
        ConfigurationError: It is not positive, or longer than ten years.
    """
    if value is None:
        return None
    if not isinstance(value, timedelta):
        raise TypeError(f"keep_result must be a timedelta or None, not {value!r}; pass timedelta(minutes=15)")
    seconds = value.total_seconds()
    if not 0 < seconds <= MAX_KEEP_S:
        raise ConfigurationError(f"keep_result must be positive and at most ten years, not {value!r}")
    return seconds


def check_timeout(value: object) -> float | None:
    """Return the time limit of an attempt in seconds, or None for no limit.

    A limit that is longer than any timedelta is as long as the longest one, as which it is read.
    """
    if value is None:
        return None
    try:
        seconds = float(check_seconds("timeout", value, "seconds, a timedelta or None"))
    except OverflowError:  # an int that is too large for a float
        seconds = float("inf")
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(
            f"timeout must be more than 0 seconds and finite, not {seconds}; pass None for no limit"
        )
    return min(seconds, LONGEST_S)


def duration_from(seconds: float) -> timedelta:
    """Return the duration that a row stores as seconds. Another program may have written more than fits."""
    # Any comparison with NaN is false.
    return timedelta(seconds=seconds) if seconds < LONGEST_S else timedelta.max


def check_list(name: str, values: object, kind: str = "list") -> list[Any]:
    """Return the values as a list. A str is rejected: it would count as its characters.

    Args:
        name: The name of the parameter.
        values: The values.
        kind: What it must be, such as "list of names".
    """
    if isinstance(values, str):
        raise TypeError(f"{name} must be a {kind}, not the str {values!r}; pass [{values!r}]")
    if isinstance(values, bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a {kind}, not {type(values).__name__}{_shown(values)}")
    return list(values)


def check_kind(name: str, value: object, kind: type[T]) -> T:
    """Return the value if it has this class. The error hides values that may be arguments of a job."""
    if not isinstance(value, kind):
        description = f"{type(value).__name__}{_shown(value)}"
        raise TypeError(f"{name} must be a {kind.__name__}, not {description}{_members(kind, value)}")
    return value


def check_instance(name: str, value: object, kind: type, expected: str, remedy: str) -> None:
    """Raise TypeError with the remedy unless the value has this class.

    The error hides the value, since it may be a DSN with a password.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {expected}, not {type(value).__name__}; {remedy}")


def _shown(value: object) -> str:
    """Return a rejected value for a message; empty for one that may be an argument of a job."""
    return f": {value!r}" if isinstance(value, SHOWN_TYPES) else ""


def _members(kind: type, value: object) -> str:
    """Return the remedy for a value that should be a member of an enum; empty if ``kind`` is no enum."""
    if not issubclass(kind, Enum):
        return ""
    text = value.lower() if isinstance(value, str) else value
    # The value may be that of a member, as "failed" is. Then only this member is proposed.
    meant_members = [member for member in kind if member.value == text]
    members = meant_members or list(kind)
    return "; pass " + " or ".join(f"{kind.__name__}.{member.name}" for member in members)
