"""Instants in UTC, and bounded searches among them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

INSTANT: Final = timedelta(microseconds=1)
"""The smallest difference between two instants."""

HORIZON: Final = timedelta(days=3653)
"""The period in which combinations are searched: 10 years."""

MAX_STEPS: Final = 50_000
"""Steps of one search. A step takes 5 to 20 microseconds."""

FIRST: Final = datetime(1, 1, 3, tzinfo=UTC)
"""Earlier instants count as this one: their wall times may precede the year 1."""

LAST: Final = datetime.max.replace(tzinfo=UTC)


class SearchLimitError(ValueError):
    """A search for a fire time took more steps than allowed."""


class Search:
    """The remaining steps of a search for a fire time, shared by all parts of a combination of triggers.

    Each question to a part counts as a step. The number bounds how long a search may occupy the CPU.

    Args:
        steps: How many.
        cpu_s: Seconds of CPU of this thread that it may take, for slow triggers; None for no limit.
    """

    __slots__ = ("ends_at", "left")

    def __init__(self, steps: int = MAX_STEPS, *, cpu_s: float | None = None) -> None:
        self.left = steps
        # By the clock that counts the CPU time of this thread.
        self.ends_at = None if cpu_s is None else time.thread_time() + cpu_s

    def spend(self, steps: int = 1) -> None:
        """Count steps of this search.

        Raises:
            SearchLimitError: Fewer steps are left than are to be counted, or the time limit has passed.
        """
        self.left -= steps
        if self.left < 0 or (self.ends_at is not None and time.thread_time() > self.ends_at):
            raise SearchLimitError(
                "the search for a fire time took too many steps: the triggers fire often and hardly ever "
                "coincide; to restrict a trigger to a time of day, use During"
            )


Finder: TypeAlias = Callable[[datetime, Search], datetime | None]
"""Returns the first suitable instant that is not before the given one; None if there is none."""


def first_agreed(finders: Sequence[Finder], instant: datetime, search: Search) -> datetime | None:
    """Return the first instant that suits all finders, not before the given one; None if not in 10 years.

    The finders are asked in turn. Each returns the candidate unchanged if it is suitable, or else a later
    instant, which is the next candidate.
    """
    # How many finders in a row have agreed to the candidate.
    agreeing_count = 0
    candidate, index, end = instant, 0, end_of_search(instant)
    while agreeing_count < len(finders):
        suitable = finders[index](candidate, search)
        if suitable is None or suitable > end:
            return None
        agreeing_count = agreeing_count + 1 if suitable == candidate else 1
        candidate = suitable
        index = (index + 1) % len(finders)
    return candidate


def end_of_search(start: datetime) -> datetime:
    """Return the last instant that a search covers: 10 years after its start, at most in the year 9999."""
    return start + HORIZON if start < LAST - HORIZON else LAST


def to_utc(instant: datetime) -> datetime:
    """Return the instant in UTC.

    An instant before `FIRST` becomes `FIRST`, and an instant after the year 9999 becomes `LAST`.

    Raises:
        ValueError: The instant is naive.
    """
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone; use datetime.now(UTC) or pass tzinfo=")
    try:
        return max(instant.astimezone(UTC), FIRST)
    # In UTC, the date is outside of the years 1 to 9999.
    except OverflowError:
        return FIRST if instant.year == 1 else LAST


def is_in_range(instant: datetime) -> bool:
    """Return whether ``to_utc()`` returns the same instant, and not one of the bounds in its place.

    It compares two datetimes in UTC, because a wall time that is skipped or repeated equals no datetime of
    another time zone.

    Raises:
        ValueError: The instant is naive.
    """
    utc = to_utc(instant)
    try:
        return utc == instant.astimezone(UTC)
    except OverflowError:
        return False
