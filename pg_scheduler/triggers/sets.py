"""Sets of instants that restrict a trigger, and their algebra."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeAlias

from pg_scheduler.triggers.base import Search, end_of_search, to_utc
from pg_scheduler.triggers.kinds import trigger_kind
from pg_scheduler.triggers.part import Part, Unordered, check_parts

Finder: TypeAlias = Callable[[datetime, Search], datetime | None]
"""Returns the first suitable instant that is not before the given one, or None."""


class DuringSet(Part):
    """A set of instants: `During`, or a combination ``~d``, ``d | e`` and ``d & e`` of such sets.

    Restrict a trigger with ``trigger & d`` and ``trigger - d``.
    """

    __slots__ = ()

    def __contains__(self, instant: datetime) -> bool:
        """Return whether the set contains a timezone-aware datetime."""
        utc = to_utc(instant)
        return self._find_inside(utc, Search()) == utc

    @abstractmethod
    def _find_inside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant in the set that is not before ``instant``, or None."""

    @abstractmethod
    def _find_outside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant not in the set that is not before ``instant``, or None."""

    def __invert__(self) -> DuringSet:
        return Complement(self)

    def __or__(self, other: DuringSet) -> DuringSet:
        return Union((self, other))

    def __and__(self, other: DuringSet) -> DuringSet:
        return Intersection((self, other))


def find_inside(which: DuringSet, instant: datetime, search: Search) -> datetime | None:
    """Return the first instant in a set that is not before ``instant`` (in UTC), or None."""
    return which._find_inside(instant, search)  # noqa: SLF001 - private for users only


def find_outside(which: DuringSet, instant: datetime, search: Search) -> datetime | None:
    """Return the first instant not in a set that is not before ``instant`` (in UTC), or None."""
    return which._find_outside(instant, search)  # noqa: SLF001 - private for users only


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
        return self.during

    def __str__(self) -> str:
        return f"not {_group(self.during)}"


@trigger_kind("union")
@dataclass(frozen=True, slots=True, eq=False)
class Union(DuringSet, Unordered):
    """The instants that are in at least one of several sets."""

    sets: tuple[DuringSet, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sets", _flat(Union, self.sets))
        check_parts(self)

    def _find_inside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant that is in one of the sets."""
        found = (find_inside(each, instant, search) for each in self.sets)
        return min((each for each in found if each is not None), default=None)

    def _find_outside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant that is in none of the sets."""
        return first_agreed([partial(find_outside, each) for each in self.sets], instant, search)

    def __str__(self) -> str:
        return " or ".join(map(_group, self.sets))


@trigger_kind("intersection")
@dataclass(frozen=True, slots=True, eq=False)
class Intersection(DuringSet, Unordered):
    """The instants that are in each of several sets."""

    sets: tuple[DuringSet, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sets", _flat(Intersection, self.sets))
        check_parts(self)

    def _find_inside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant that is in each of the sets."""
        return first_agreed([partial(find_inside, each) for each in self.sets], instant, search)

    def _find_outside(self, instant: datetime, search: Search) -> datetime | None:
        """Return the first instant that is missing in one of the sets."""
        found = (find_outside(each, instant, search) for each in self.sets)
        return min((each for each in found if each is not None), default=None)

    def __str__(self) -> str:
        return " and ".join(map(_group, self.sets))


def first_agreed(finders: Sequence[Finder], instant: datetime, search: Search) -> datetime | None:
    """Return the first instant that all finders return unchanged; None if there is none in 10 years."""
    found, agreed, index, end = instant, 0, 0, end_of_search(instant)
    while agreed < len(finders):
        later = finders[index](found, search)
        if later is None or later > end:
            return None
        agreed = agreed + 1 if later == found else 1
        found = later
        index = (index + 1) % len(finders)
    return found


def _flat(kind: type[Union] | type[Intersection], sets: Sequence[DuringSet]) -> tuple[DuringSet, ...]:
    """Return the sets with those of members of the same kind in their place, each once."""
    found: dict[DuringSet, None] = {}
    for each in sets:
        if not isinstance(each, DuringSet):
            raise ValueError(f"{kind.__name__} takes sets of instants, such as During, not {each!r}")  # noqa: TRY004
        found |= dict.fromkeys(each.sets if isinstance(each, kind) else [each])
    if not found:
        raise ValueError(f"{kind.__name__} has no sets; pass at least one")
    return tuple(found)


def _group(member: DuringSet) -> str:
    return f"({member})" if isinstance(member, Union | Intersection) else str(member)
