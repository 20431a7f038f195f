"""The kinds of triggers of this process, and the decorator that adds one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

from pg_scheduler.triggers.part import Part

T = TypeVar("T", bound=type[Part])

_KIND: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


class Kind(NamedTuple):
    """A registered class, and the types of its fields by name."""

    cls: type[Part]
    types: dict[str, Any]


_KINDS: Final[dict[str, Kind]] = {}


def trigger_kind(kind: str) -> Callable[[T], T]:
    """Register a trigger class of your own under the name that its JSON has as ``kind``.

    The class derives from `Trigger`, is a frozen dataclass and has ``next_after()``, which must return an
    instant after the given one, or None. Its fields are the JSON, so their types must be ones that pydantic
    can convert. A node without the kind leaves schedules with it to the nodes that have it.

    Args:
        kind: Lower-case letters, digits, ``_``, ``.`` and ``-``, up to 64 characters.

    Returns:
        A decorator that returns the class.

    Raises:
        ValueError: The kind is invalid or belongs to another class, or the class is unsuitable.

    Example:
        >>> from dataclasses import dataclass
        >>> from datetime import UTC, datetime, timedelta
        >>> from pg_scheduler.triggers import Trigger, trigger_kind
        >>> @trigger_kind("lunar")
        ... @dataclass(frozen=True)
        ... class FullMoon(Trigger):
        ...     days_late: int = 0
        ...
        ...     def next_after(self, instant: datetime, *, anchor: datetime) -> datetime:
        ...         month = timedelta(days=29, hours=12, minutes=44, seconds=3)
        ...         full = datetime(2000, 1, 21, 4, 41, tzinfo=UTC) + timedelta(days=self.days_late)
        ...         return full + ((instant - full) // month + 1) * month
        >>> FullMoon(days_late=1).to_json()
        {'kind': 'lunar', 'days_late': 1}
    """
    given: object = kind
    if not isinstance(given, str) or not _KIND.fullmatch(given):
        raise ValueError(
            f"kind {kind!r} is invalid; write 1 to 64 lower-case letters, digits, '_', '.' or '-', "
            "beginning with a letter"
        )

    def register(cls: T) -> T:
        name = _name(cls)
        if unsuitable := _unsuitable(cls):
            raise ValueError(f"{name} {unsuitable}")
        known = _KINDS.get(kind)
        if known is not None and _name(known.cls) != name:
            raise ValueError(
                f"kind {kind!r} already belongs to {_name(known.cls)}; choose another for {name}"
            )
        try:
            types = get_type_hints(cls)
        except (NameError, TypeError) as error:
            raise ValueError(
                f"{name} has a field of an unknown type: {error}; import it at module level"
            ) from error
        cls.kind = kind
        _KINDS[kind] = Kind(cls, types)
        return cls

    return register


def _unsuitable(cls: Any) -> str | None:
    """Return why a class cannot be a trigger, with the remedy; None if it can."""
    if not isinstance(cls, type) or Part not in cls.__mro__:
        return "is not a trigger; derive it from pg_scheduler.triggers.Trigger"
    parameters = getattr(cls, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen or "__dataclass_params__" not in vars(cls):
        return "is not a frozen dataclass; put @dataclass(frozen=True) below the decorator"
    if inspect.isabstract(cls):
        return f"is abstract; define {', '.join(sorted(getattr(cls, '__abstractmethods__', ())))}()"
    if any(each.name == "kind" for each in fields(cls)):
        return "has a field 'kind', which is a key of the JSON; rename it"
    return None


def kind_named(name: str) -> Kind | None:
    """Return the kind with a name; None if this process has not registered it."""
    return _KINDS.get(name)


def registered_kinds() -> frozenset[str]:
    """Return the names of the kinds of this process."""
    return frozenset(_KINDS)


def _name(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
