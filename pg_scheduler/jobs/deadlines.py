"""The deadline of a job: the option, how a row stores it, and the error of a job that has passed it.

A caller gives an instant, or a time from the due time of the job. The row has the instant, as text of a fixed
width in UTC, so that statements compare it with other instants as text: a row may be written by hand, and a
cast of its text could fail. Until the due time is known, an option is the number of its seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pg_scheduler.base.text.times import read_timestamp
from pg_scheduler.errors import ConfigurationError, DeadlineExceededError
from pg_scheduler.jobs.call_errors import call_error
from pg_scheduler.jobs.payload import object_from
from pg_scheduler.jobs.validation import MAX_DELAY_S, check_execution_time, check_seconds

DEADLINE: Final = "deadline"
"""The key of the options of a job that has its deadline."""

EXPECTED: Final = "a timezone-aware datetime, seconds or a timedelta from the due time, or None"
EXPECTED_OF_MANY: Final = "seconds or a timedelta from the due time of each job, or None"


def deadline_text(deadline: datetime) -> str:
    """Return a deadline as rows store it.

    Example:
        >>> deadline_text(datetime(2030, 1, 1, 12, tzinfo=UTC))
        '2030-01-01T12:00:00.000000+00:00'
    """
    return deadline.astimezone(UTC).isoformat(timespec="microseconds")


def instant_of(value: object) -> datetime | None:
    """Return the deadline that a row stores as this value; None if it is no text that this module writes."""
    if not isinstance(value, str):
        return None
    try:
        deadline = read_timestamp(value)
    except ValueError:
        return None
    return deadline if deadline_text(deadline) == value else None


def deadline_of(options: str | None) -> datetime | None:
    """Return the deadline of a job from the JSON of its options; None if it has none."""
    # Most jobs have no options. The text is searched first, since few of the others have a deadline.
    if options is None or DEADLINE not in options:
        return None
    return instant_of(object_from(options).get(DEADLINE))


def check_deadline(value: object) -> float | str | None:
    """Return a deadline as the options of a job have it: an instant as text, or seconds from the due time.

    Raises:
        TypeError: The value is no deadline.
        ValueError: An instant is naive or out of range.
        ConfigurationError: A time is not positive, or longer than a century.
    """
    if isinstance(value, datetime):
        return deadline_text(check_execution_time(value, name=DEADLINE))
    return _check_time(value, EXPECTED)


def check_common_deadline(value: object) -> float | None:
    """Return the deadline that many jobs share, as those of a task or a schedule: seconds from the due time.

    Raises:
        TypeError: The value is no such time. An instant would have passed for all later jobs.
        ConfigurationError: It is not positive, or longer than a century.
    """
    if isinstance(value, datetime):
        raise TypeError(
            f"the deadline of a task or a schedule must be {EXPECTED_OF_MANY}, not the instant "
            f"{value.isoformat()}; pass the instant where a job is scheduled, or a timedelta here"
        )
    return _check_time(value, EXPECTED_OF_MANY)


def _check_time(value: Any, expected: str) -> float | None:
    """Return a time from the due time in seconds; ``expected`` is what the value must be, for the message."""
    if value is None:
        return None
    seconds = check_seconds(DEADLINE, value, expected)
    if not 0 < seconds <= MAX_DELAY_S:
        raise ConfigurationError(
            f"{DEADLINE} must be more than 0 and at most {MAX_DELAY_S} seconds from the due time, not "
            f"{seconds}; pass None for no deadline"
        )
    return float(seconds)


def deadline_after(due: datetime, seconds: float) -> datetime:
    """Return the deadline of a job that is due at a time. It is in Python's calendar, as all instants are."""
    try:
        return due + timedelta(seconds=seconds)
    except OverflowError:
        return LAST


def check_order(deadline: datetime, due: datetime) -> None:
    """Raise ValueError unless a deadline is after the due time of its job."""
    if deadline <= due:
        raise call_error(
            ValueError,
            f"deadline {deadline.isoformat()} is not after the due time {due.isoformat()}, so the job would "
            "never start",
            "deadline",
            "pass a later deadline=, or a timedelta from the due time",
        )


def error_at(deadline: datetime) -> DeadlineExceededError:
    """Return the error of a job that has passed its deadline. ``end_past_deadlines`` writes the same text."""
    instant = deadline.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "seconds")
    return DeadlineExceededError(f"the job passed its deadline of {instant} UTC", deadline)


LAST: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""The deadline of a job whose deadline would be after the calendar."""
