"""The base class of triggers, and the bounds of a search for a fire time."""

from __future__ import annotations

import time
from abc import abstractmethod
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pg_scheduler.triggers.part import Part

if TYPE_CHECKING:
    from pg_scheduler.triggers.sets import DuringSet


INSTANT: Final = timedelta(microseconds=1)
"""The smallest difference between two instants."""

HORIZON: Final = timedelta(days=3653)
"""How far combinations are searched: 10 years."""

MAX_STEPS: Final = 50_000
"""Steps of one search. A step takes 5 to 20 microseconds."""

FIRST: Final = datetime(1, 1, 3, tzinfo=UTC)
"""Earlier instants count as this one: their wall times may precede the year 1."""

LAST: Final = datetime.max.replace(tzinfo=UTC)


class Trigger(Part):
    """Computes the fire times of a schedule.

    A trigger is an immutable value without state, clock or I/O, and one value serves any number of
    schedules. Two triggers are equal if their definitions are equal; ``a | b`` equals ``b | a``. Triggers
    combine with operators:

    * ``a | b`` fires when either fires, once if both fire at the same instant.
    * ``a & b`` fires when both fire at the same instant.
    * ``trigger & During(...)`` keeps the fire times within the set, ``trigger - During(...)`` those outside.

    ``str(trigger)`` describes it. A field of type Trigger in a pydantic model accepts and produces its JSON.

    Example:
        >>> from datetime import UTC, datetime, time
        >>> from pg_scheduler.triggers import During, Every
        >>> trigger = Every(hours=1) & During(weekdays="mon-fri", start=time(9), end=time(17))
        >>> print(trigger)
        every hour, mon-fri 09:00-17:00 UTC
        >>> [f"{fire:%a %H:%M}" for fire in trigger.upcoming(3, after=datetime(2024, 3, 1, 15, tzinfo=UTC))]
        ['Fri 16:00', 'Mon 09:00', 'Mon 10:00']
    """

    __slots__ = ()

    @abstractmethod
    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``; None if there is no further one.

        Args:
            instant: A timezone-aware datetime.
            anchor: The timezone-aware instant from which the schedule is counted.

        Raises:
            ValueError: A datetime is naive, or the search of a combination took too many steps.
        """

    def upcoming(self, n: int = 10, *, after: datetime, anchor: datetime | None = None) -> list[datetime]:
        """Return the next fire times in order, fewer than ``n`` if no more are found.

        Args:
            n: How many.
            after: A timezone-aware datetime. The first fire time is strictly after it.
            anchor: The instant from which the schedule is counted; ``after`` when None.

        Raises:
            ValueError: A datetime is naive, or the search took too many steps to find any.
        """
        fire = to_utc(after)
        origin = fire if anchor is None else to_utc(anchor)
        search = Search(MAX_STEPS + 100 * n)
        found: list[datetime] = []
        while len(found) < n:
            try:
                following = next_fire_time(self, fire, origin, search)
            except SearchLimitError:
                if not found:
                    raise
                break
            if following is None:
                break
            found.append(fire := following)
        return found

    def _find(self, instant: datetime, anchor: datetime, search: Search) -> datetime | None:
        """Return the first fire time after an instant in UTC, checked, within the steps that are left."""
        search.spend()
        try:
            fire: object = self.next_after(instant, anchor=anchor)
        except StopIteration as error:  # of next(); a thread cannot pass it on to the event loop
            raise ValueError(f"{self!r} raised StopIteration; return None after its last fire") from error
        if fire is None:
            return None
        if not isinstance(fire, datetime):
            raise ValueError(f"{self!r} returned {fire!r} as fire time; return a datetime or None")  # noqa: TRY004
        utc = to_utc(fire)
        if utc <= instant:
            raise ValueError(f"{self!r} returned {utc} as fire time, which is not after {instant}")
        return utc

    def __or__(self, other: Trigger) -> Trigger:
        from pg_scheduler.triggers.combine import either  # noqa: PLC0415 - it imports this module

        return either(self, other)

    def __and__(self, other: Trigger | DuringSet) -> Trigger:
        from pg_scheduler.triggers.combine import both  # noqa: PLC0415 - it imports this module

        return both(self, other)

    def __sub__(self, other: DuringSet) -> Trigger:
        from pg_scheduler.triggers.combine import outside  # noqa: PLC0415 - it imports this module

        return outside(self, other)


class SearchLimitError(ValueError):
    """A search for a fire time took more steps than allowed."""


class Search:
    """The remaining steps of a search, shared by all parts of a combination.

    Args:
        steps: How many.
        cpu_s: Seconds of CPU of this thread that it may take, for slow triggers; None for no limit.
    """

    __slots__ = ("ends_at", "left")

    def __init__(self, steps: int = MAX_STEPS, *, cpu_s: float | None = None) -> None:
        self.left = steps
        self.ends_at = None if cpu_s is None else time.thread_time() + cpu_s

    def spend(self, steps: int = 1) -> None:
        """Count steps.

        Raises:
            SearchLimitError: None is left, or the time limit has passed.
        """
        self.left -= steps
        if self.left < 0 or (self.ends_at is not None and time.thread_time() > self.ends_at):
            raise SearchLimitError(
                "the search for a fire time took too many steps: the triggers fire often and hardly ever "
                "coincide; to restrict a trigger to a time of day, use During"
            )


def next_fire_time(trigger: Trigger, instant: datetime, anchor: datetime, search: Search) -> datetime | None:
    """Return the first fire time after an instant in UTC, within the steps that are left.

    Raises:
        SearchLimitError: No step is left.
        ValueError: The trigger returned something else than a later instant.
    """
    return trigger._find(instant, anchor, search)  # noqa: SLF001 - private for users only


def end_of_search(start: datetime) -> datetime:
    """Return the last instant that a search covers."""
    return start + HORIZON if start < LAST - HORIZON else LAST


def to_utc(instant: datetime) -> datetime:
    """Return the instant in UTC, within the calendar of Python.

    Raises:
        ValueError: It is naive.
    """
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone; use datetime.now(UTC) or pass tzinfo=")
    try:
        return max(instant.astimezone(UTC), FIRST)
    except OverflowError:
        return FIRST if instant.year == 1 else LAST


def is_in_range(instant: datetime) -> bool:
    """Return whether ``to_utc()`` keeps the instant.

    The instants are not compared: a wall time that is skipped or repeated equals none of another time zone.

    Raises:
        ValueError: It is naive.
    """
    utc = to_utc(instant)
    try:
        return utc == instant.astimezone(UTC)
    except OverflowError:
        return False
