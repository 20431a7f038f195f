"""Triggers, and their combinations with one another and with sets of instants.

A search never goes through fire times one by one where it can jump: an intersection continues at the latest
of its members' fire times, and a restriction at the next instant within the set. A search covers
10 years and ends after a fixed number of steps, so no combination can occupy the CPU.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import lcm
from typing import Final

from pg_scheduler.triggers.search import (
    INSTANT,
    LAST,
    MAX_STEPS,
    Finder,
    Search,
    SearchLimitError,
    end_of_search,
    first_agreed,
    to_utc,
)
from pg_scheduler.triggers.serialization import Part, is_built_in, parts_of, trigger_kind
from pg_scheduler.triggers.sets import (
    Complement,
    DuringSet,
    Unordered,
    check_count,
    check_parts,
    find_inside,
    find_outside,
)

MAX_SPANS: Final = 1000
"""Spans without a fire time that a combination remembers."""

NO_SPAN: Final = LAST, LAST
"""A span that contains no instant."""


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

    _follows_ends = False
    """Whether the fire times follow the ends of jobs."""

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
        previous_fire = to_utc(after)
        origin = previous_fire if anchor is None else to_utc(anchor)
        # Many fire times may need more steps than a single one.
        search = Search(MAX_STEPS + 100 * n)
        fires: list[datetime] = []
        while len(fires) < n:
            try:
                fire = next_fire_time(self, previous_fire, origin, search)
            except SearchLimitError:
                # Fewer fire times are no error, but none is.
                if not fires:
                    raise
                break
            if fire is None:
                break
            fires.append(fire)
            previous_fire = fire
        return fires

    def _anchor_from(self, start: datetime) -> datetime:
        """Return the anchor of a schedule with a start: the instant from which intervals are counted."""
        return start

    def _anchored_interval(self) -> timedelta | None:
        """Return the interval if the trigger fires at ``anchor + k * interval`` only; None for any other."""
        return None

    def __or__(self, other: Trigger) -> Trigger:
        """Return a trigger that fires when either trigger fires."""
        if isinstance(other, Trigger):
            return AnyOf((self, other))
        return NotImplemented

    def __and__(self, other: Trigger | DuringSet) -> Trigger:
        """Return a trigger that fires when both triggers fire, or when this one fires within the set."""
        if isinstance(other, DuringSet):
            return Within(self, other)
        if isinstance(other, Trigger):
            return AllOf((self, other))
        return NotImplemented

    def __sub__(self, other: DuringSet) -> Trigger:
        """Return a trigger that fires when this one fires outside of the set."""
        if isinstance(other, DuringSet):
            return Except(self, other)
        return NotImplemented


def next_fire_time(
    trigger: Trigger, instant: datetime, anchor: datetime, search: Search | None = None
) -> datetime | None:
    """Return the first fire time of a trigger after an instant, in UTC; None if there is no further one.

    What the trigger returns is checked, since it may be one of an application.

    Args:
        trigger: The trigger.
        instant: An instant in UTC.
        anchor: The anchor of the schedule, in UTC.
        search: The search whose remaining steps are used up; None to begin a search of its own.

    Raises:
        SearchLimitError: No step is left.
        ValueError: The trigger returned something else than a later instant.
    """
    if isinstance(trigger, Combination):
        return trigger.first_fire(instant, anchor, search or Search())
    if search is not None:
        search.spend()
    try:
        fire: object = trigger.next_after(instant, anchor=anchor)
    except StopIteration as error:
        # A trigger of the application may call next() without a default. A thread cannot pass a StopIteration
        # on to the event loop.
        raise ValueError(f"{trigger!r} raised StopIteration; return None after its last fire") from error
    if fire is None:
        return None
    if not isinstance(fire, datetime):
        raise ValueError(f"{trigger!r} returned {fire!r} as fire time; return a datetime or None")  # noqa: TRY004
    utc = to_utc(fire)
    if utc <= instant:
        raise ValueError(f"{trigger!r} returned {utc} as fire time, which is not after {instant}")
    return utc


class Combination(Trigger):
    """A trigger made of others."""

    __slots__ = ()

    @abstractmethod
    def first_fire(self, instant: datetime, anchor: datetime, search: Search) -> datetime | None:
        """Return the first fire time after an instant in UTC; None if there is none.

        The steps of the members count in ``search``, which raises SearchLimitError after too many.
        """

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        """Return the first fire time strictly after ``instant``, in UTC; None if there is no further one."""
        return self.first_fire(to_utc(instant), to_utc(anchor), Search())


@trigger_kind("or")
@dataclass(frozen=True, slots=True, eq=False)
class AnyOf(Combination, Unordered):
    """A trigger that fires when any of several triggers fires, once if several fire at the same instant."""

    triggers: tuple[Trigger, ...]
    _silent_spans: dict[tuple[int, datetime], tuple[datetime, datetime]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    """Spans of 10 years in which a trigger does not fire, by its place in ``triggers`` and the anchor. A
    search through such a span takes many steps, so its result is remembered."""

    def __post_init__(self) -> None:
        """Replace nested combinations by their triggers, and check the number of parts."""
        object.__setattr__(self, "triggers", _flat(AnyOf, self.triggers))
        check_parts(self)

    def first_fire(self, instant: datetime, anchor: datetime, search: Search) -> datetime | None:
        """Return the earliest fire time of the triggers, or None."""
        earliest: datetime | None = None
        # A first round asks the triggers that may fire soon. It leaves out those for which an earlier search
        # found no fire time in a span that contains the instant. Here is the end of that span, by the place
        # of the trigger.
        no_fire_until: dict[int, datetime] = {}
        for place in range(len(self.triggers)):
            start, end = self._silent_spans.get((place, anchor), NO_SPAN)
            if start <= instant < end:
                no_fire_until[place] = end
            else:
                earliest = _earlier(earliest, self._fire_of(place, instant, anchor, search))
        # A trigger that was left out fires after its span at the earliest. So it is asked only if no other
        # trigger fires by the end of the span.
        for place, end in no_fire_until.items():
            if earliest is None or earliest > end:
                earliest = _earlier(earliest, self._fire_of(place, instant, anchor, search))
        return earliest

    def _fire_of(self, place: int, instant: datetime, anchor: datetime, search: Search) -> datetime | None:
        """Return the next fire time of the trigger at a place.

        If there is none, the span that was searched is remembered, so that it is not searched again.
        """
        fire = next_fire_time(self.triggers[place], instant, anchor, search)
        if fire is None:
            if len(self._silent_spans) >= MAX_SPANS:
                self._silent_spans.clear()
            self._silent_spans[place, anchor] = instant, end_of_search(instant)
        return fire

    def __str__(self) -> str:
        return " or ".join(map(_group, self.triggers))


@trigger_kind("and")
@dataclass(frozen=True, slots=True, eq=False)
class AllOf(Combination, Unordered):
    """A trigger that fires when all of several triggers fire, searched over 10 years."""

    triggers: tuple[Trigger, ...]

    def __post_init__(self) -> None:
        """Replace nested combinations by their triggers, and check the number of parts."""
        object.__setattr__(self, "triggers", _flat(AllOf, self.triggers))
        check_parts(self)

    def first_fire(self, instant: datetime, anchor: datetime, search: Search) -> datetime | None:
        """Return the first instant at which all triggers fire, or None.

        The latest fire time found is the candidate. Each member in turn searches from there.
        """
        members = self._members()
        end = end_of_search(instant)
        # How many members in a row fire at the candidate. The first candidate is the instant itself, which is
        # no result: fire times are after it.
        agreeing_count = 0
        candidate, index = instant, 0
        while agreeing_count < len(members):
            # A search finds later instants only. So it begins just before a candidate that is a fire time.
            after = candidate - INSTANT if agreeing_count else candidate
            fire = next_fire_time(members[index], after, anchor, search)
            if fire is None or fire > end:
                return None
            if agreeing_count and fire == candidate:
                agreeing_count += 1
            else:
                # A later fire time is the new candidate, at which only this member is known to fire.
                agreeing_count = 1
            candidate = fire
            index = (index + 1) % len(members)
        return candidate

    def _members(self) -> list[Trigger]:
        """Return the triggers to search, with a single `_Grid` in place of all those with a fixed interval.

        All intervals count from the same anchor. So their common fire times are the multiples of the least
        common multiple, which are computed instead of searched.
        """
        members: list[Trigger] = []
        intervals: list[int] = []
        for trigger in self.triggers:
            interval = trigger._anchored_interval()  # noqa: SLF001 - private for users only
            if interval is None:
                members.append(trigger)
            else:
                intervals.append(interval // INSTANT)
        return [*members, _Grid(lcm(*intervals))] if intervals else members

    def __str__(self) -> str:
        return " and ".join(map(_group, self.triggers))


@dataclass(frozen=True, slots=True)
class Restriction(Combination):
    """A trigger that fires at some of the fire times of another one, searched over 10 years."""

    trigger: Trigger
    during: DuringSet

    def __post_init__(self) -> None:
        """Check the number and the nesting of parts."""
        check_parts(self)

    @abstractmethod
    def first_allowed(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant, not before ``instant``, at which the set allows a fire time; or None."""

    def first_fire(self, instant: datetime, anchor: datetime, search: Search) -> datetime | None:
        """Return the first fire time that is allowed, or None.

        From a fire time that is not allowed, the search jumps to the next allowed instant. A fixed delay is
        postponed to that instant instead.
        """
        if is_fixed_delay(self):
            return self._postponed(instant, anchor, search)
        after, end = instant, end_of_search(instant)
        while True:
            fire = next_fire_time(self.trigger, after, anchor, search)
            if fire is None or fire > end:
                return None
            allowed = self.first_allowed(fire, search)
            if allowed is None or allowed > end:
                return None
            if allowed == fire:
                return fire
            # The trigger may fire at that instant itself, so the search continues just before it.
            after = allowed - INSTANT

    def _postponed(self, instant: datetime, anchor: datetime, search: Search) -> datetime | None:
        """Return the end of a fixed delay, or the first later instant that all restrictions allow.

        Restrictions may be nested, such as ``(delay & a) - b``. All of them are applied to the same instant.
        """
        trigger: Trigger = self
        finders: list[Finder] = []
        while isinstance(trigger, Restriction):
            finders.append(trigger.first_allowed)
            trigger = trigger.trigger
        fire = next_fire_time(trigger, instant, anchor, search)
        return None if fire is None else first_agreed(finders, fire, search)


@trigger_kind("within")
@dataclass(frozen=True, slots=True)
class Within(Restriction):
    """A trigger that fires at the fire times of a trigger that are in a set of instants."""

    def first_allowed(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant in the set."""
        return find_inside(self.during, instant, search)

    def __str__(self) -> str:
        """Return the trigger and the set in words, such as "every hour, mon-fri UTC"."""
        if isinstance(self.during, Complement):
            return f"{_group(self.trigger)}, except {_group(self.during.during)}"
        return f"{_group(self.trigger)}, {_group(self.during)}"


@trigger_kind("except")
@dataclass(frozen=True, slots=True)
class Except(Restriction):
    """A trigger that fires at the fire times of a trigger that are not in a set of instants."""

    def first_allowed(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant outside of the set."""
        return find_outside(self.during, instant, search)

    def __str__(self) -> str:
        return f"{_group(self.trigger)}, except {_group(self.during)}"


def restricted_trigger(trigger: Trigger) -> Trigger:
    """Return the trigger without the restrictions around it, such as ``& During(...)``."""
    while isinstance(trigger, Restriction):
        trigger = trigger.trigger
    return trigger


def is_fixed_delay(trigger: Trigger) -> bool:
    """Return whether a trigger is a `FixedDelay`, whose fire times follow the ends of jobs.

    It may have restrictions around it.
    """
    return restricted_trigger(trigger)._follows_ends  # noqa: SLF001 - private for users only


def is_quick(trigger: Trigger) -> bool:
    """Return whether a fire time of the trigger may be computed on the event loop.

    Built-in triggers take microseconds. Combinations may search for half a second, and triggers of the
    application may take any time.
    """
    return is_built_in(trigger) and not isinstance(trigger, Combination)


def first_fire_time(trigger: Trigger, *, after: datetime, anchor: datetime) -> datetime:
    """Return the first fire time after an instant, for a schedule that is about to be stored.

    Raises:
        ValueError: There is no fire time, or the search ended before it found one.
    """
    try:
        fire = next_fire_time(trigger, to_utc(after), to_utc(anchor))
    except ValueError as error:
        raise ValueError(f"no fire time found for '{trigger}': {error}") from error
    if fire is None:
        reason = "it has ended"
        if isinstance(trigger, Combination):
            reason = "it has no fire time within 10 years"
        if any(isinstance(part, AllOf) for part in (trigger, *parts_of(trigger))):
            reason = "the triggers never coincide; to restrict a trigger to a time of day, use During"
        raise ValueError(f"no fire time after {after} for '{trigger}': {reason}")
    return fire


@dataclass(frozen=True, slots=True)
class _Grid(Trigger):
    """The common fire times of several intervals: ``anchor + k * period``. The period is in microseconds."""

    period: int

    def next_after(self, instant: datetime, *, anchor: datetime) -> datetime | None:
        """Return the first multiple of the period after the instant; None if it is not within 10 years."""
        passed_periods = (instant - anchor) // INSTANT // self.period
        microseconds_ahead = (passed_periods + 1) * self.period
        # A common period of several intervals may be so long that a datetime would overflow.
        if microseconds_ahead > (end_of_search(instant) - anchor) // INSTANT:
            return None
        return anchor + timedelta(microseconds=microseconds_ahead)


def _flat(kind: type[AnyOf] | type[AllOf], triggers: tuple[Trigger, ...]) -> tuple[Trigger, ...]:
    """Return the triggers, each once. A combination of the same kind is replaced by its triggers.

    So ``a | b | a``, which Python makes of nested pairs, becomes one combination of ``a`` and ``b``.
    """
    # This is not a set: a trigger of a user may have fields that are not hashable.
    members: list[Trigger] = []
    for trigger in triggers:
        if not isinstance(trigger, Trigger):
            raise ValueError(f"{kind.__name__} takes triggers, not {trigger!r}")  # noqa: TRY004
        if is_fixed_delay(trigger):
            raise ValueError(
                f"'{trigger}' cannot be combined with a trigger; a FixedDelay combines with During only"
            )
        new_members = trigger.triggers if isinstance(trigger, kind) else [trigger]
        members += (member for member in new_members if member not in members)
        # The number is checked here, because each further member is compared with all earlier ones.
        check_count(len(members))
    if not members:
        raise ValueError(f"{kind.__name__} has no triggers; pass at least one")
    return tuple(members)


def _earlier(first_fire: datetime | None, second_fire: datetime | None) -> datetime | None:
    """Return the earlier of two fire times; the only one if the other is None."""
    return min((fire for fire in (first_fire, second_fire) if fire is not None), default=None)


def _group(part: Part) -> str:
    """Return a part of a combination in words, in parentheses if it is itself a combination."""
    return f"({part})" if isinstance(part, Combination | Unordered) else str(part)
