"""Sets of instants that restrict a trigger, and their algebra."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from pg_scheduler.triggers.search import Search, first_agreed, to_utc
from pg_scheduler.triggers.serialization import MAX_DEPTH, MAX_PARTS, Part, parts_of, trigger_kind


class Unordered(Part):
    """A combination whose parts have no order, and of which each is contained once.

    Its JSON keeps the order in which the parts were given.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Return whether the other value is a combination of the same kind with equal parts, in any order."""
        if type(other) is not type(self):
            return NotImplemented
        parts, other_parts = parts_of(self), parts_of(other)
        # Usually the order is the same, which is compared fastest.
        if parts == other_parts:
            return True
        # Each part is contained once, so the numbers suffice. The parts are not compared as sets, since a
        # trigger of a user may have fields that are not hashable.
        return len(parts) == len(other_parts) and all(part in other_parts for part in parts)

    def __hash__(self) -> int:
        return hash((type(self), frozenset(parts_of(self))))


class DuringSet(Part):
    """A set of instants: `During`, or a combination ``~d``, ``d | e`` and ``d & e`` of such sets.

    Restrict a trigger with ``trigger & d`` and ``trigger - d``.
    """

    __slots__ = ()

    def __contains__(self, instant: datetime) -> bool:
        """Return whether the set contains a timezone-aware datetime."""
        utc = to_utc(instant)
        # If it does, the first instant of the set from there on is this one.
        return self._find_inside(utc, Search()) == utc

    @abstractmethod
    def _find_inside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant in the set that is not before ``instant``, or None."""

    @abstractmethod
    def _find_outside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant not in the set that is not before ``instant``, or None."""

    def __invert__(self) -> DuringSet:
        """Return the set of all other instants."""
        return Complement(self)

    def __or__(self, other: DuringSet) -> DuringSet:
        return Union((self, other))

    def __and__(self, other: DuringSet) -> DuringSet:
        return Intersection((self, other))


def find_inside(during_set: DuringSet, instant: datetime, search: Search) -> datetime | None:
    """Return the first instant in a set that is not before ``instant`` (in UTC), or None."""
    return during_set._find_inside(instant, search)  # noqa: SLF001 - private for users only


def find_outside(during_set: DuringSet, instant: datetime, search: Search) -> datetime | None:
    """Return the first instant not in a set that is not before ``instant`` (in UTC), or None."""
    return during_set._find_outside(instant, search)  # noqa: SLF001 - private for users only


@trigger_kind("not")
@dataclass(frozen=True, slots=True)
class Complement(DuringSet):
    """The instants that are not in a set."""

    during: DuringSet

    def __post_init__(self) -> None:
        check_parts(self)

    def _find_inside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant that is not in the other set."""
        return find_outside(self.during, instant, search)

    def _find_outside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant that is in the other set."""
        return find_inside(self.during, instant, search)

    def __invert__(self) -> DuringSet:
        """Return the set whose complement this is, in place of a complement of a complement."""
        return self.during

    def __str__(self) -> str:
        return f"not {_group(self.during)}"


@trigger_kind("union")
@dataclass(frozen=True, slots=True, eq=False)
class Union(DuringSet, Unordered):
    """The instants that are in at least one of several sets."""

    sets: tuple[DuringSet, ...]

    def __post_init__(self) -> None:
        """Replace nested unions by their sets, and check the number of parts."""
        object.__setattr__(self, "sets", _flat(Union, self.sets))
        check_parts(self)

    def _find_inside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant that is in one of the sets."""
        candidates = (find_inside(member, instant, search) for member in self.sets)
        return min((candidate for candidate in candidates if candidate is not None), default=None)

    def _find_outside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant that is in none of the sets."""
        return first_agreed([partial(find_outside, member) for member in self.sets], instant, search)

    def __str__(self) -> str:
        return " or ".join(map(_group, self.sets))


@trigger_kind("intersection")
@dataclass(frozen=True, slots=True, eq=False)
class Intersection(DuringSet, Unordered):
    """The instants that are in each of several sets."""

    sets: tuple[DuringSet, ...]

    def __post_init__(self) -> None:
        """Replace nested intersections by their sets, and check the number of parts."""
        object.__setattr__(self, "sets", _flat(Intersection, self.sets))
        check_parts(self)

    def _find_inside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant that is in each of the sets."""
        return first_agreed([partial(find_inside, member) for member in self.sets], instant, search)

    def _find_outside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant that is missing in one of the sets."""
        candidates = (find_outside(member, instant, search) for member in self.sets)
        return min((candidate for candidate in candidates if candidate is not None), default=None)

    def __str__(self) -> str:
        return " and ".join(map(_group, self.sets))


def _flat(kind: type[Union] | type[Intersection], sets: Sequence[DuringSet]) -> tuple[DuringSet, ...]:
    """Return the sets, each once. A combination of the same kind is replaced by its sets.

    So ``a | b | a``, which Python makes of nested pairs, becomes one combination of ``a`` and ``b``.
    """
    # The keys of a dict keep their order, unlike a set.
    members: dict[DuringSet, None] = {}
    for during_set in sets:
        if not isinstance(during_set, DuringSet):
            raise ValueError(f"{kind.__name__} takes sets of instants, such as During, not {during_set!r}")  # noqa: TRY004
        new_members = during_set.sets if isinstance(during_set, kind) else [during_set]
        members.update(dict.fromkeys(new_members))
    if not members:
        raise ValueError(f"{kind.__name__} has no sets; pass at least one")
    return tuple(members)


def check_count(parts: int) -> None:
    """Check the number of parts of a combination.

    Raises:
        ValueError: There are too many.
    """
    if parts > MAX_PARTS:
        raise ValueError(
            f"the combination has more than {MAX_PARTS} parts; pass several dates or instants to one "
            "During or At"
        )


def check_parts(whole: Part) -> None:
    """Check the number and the nesting of the parts of a combination.

    Raises:
        ValueError: There are too many, or they are nested too deep.
    """
    # Level by level: the combination itself, its parts, their parts, and so on.
    level: list[Part] = [whole]
    count = depth = 0
    while level:
        count += len(level)
        depth += 1
        check_count(count)
        if depth > MAX_DEPTH:
            raise ValueError(f"the combination is nested deeper than {MAX_DEPTH} levels; flatten it")
        level = [part for parent in level for part in parts_of(parent)]


def _group(member: DuringSet) -> str:
    """Return a set of a combination in words, in parentheses if it is itself a combination."""
    return f"({member})" if isinstance(member, Unordered) else str(member)
