"""The base class of everything that is a JSON object within a trigger."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema


MAX_PARTS: Final = 100
"""Triggers and sets that one trigger may combine, itself included."""

MAX_DEPTH: Final = 16
"""Levels of nesting. Chains such as ``a | b | c`` are one level."""


class Part(ABC):  # noqa: B024 - its subclasses have abstract methods
    """A trigger or a set of instants: an immutable value with a JSON form."""

    __slots__ = ()

    kind: ClassVar[str] = ""
    """The name of the class in JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the value as a JSON object with the key ``kind``.

        Raises:
            ValueError: The class is not registered.
        """
        from pg_scheduler.triggers.serialization import to_json  # noqa: PLC0415 - it imports this module

        return to_json(self)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Return the value of a JSON object, given as `to_json` returns it or as text.

        Nothing is imported. Size and nesting are bounded, so the text may come from a request.

        Raises:
            UnknownKindError: This process has no class of a ``kind``. A ValueError.
            ValueError: The object does not describe a value of this class; the message contains the path.
        """
        from pg_scheduler.triggers.serialization import from_json  # noqa: PLC0415 - it imports this module

        return from_json(value, cls)

    @classmethod
    def _from_fields(cls, **fields: Any) -> Self:
        """Return the value with the fields of its JSON."""
        return cls(**fields)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pg_scheduler.triggers.serialization import field_schema  # noqa: PLC0415 - it imports this module

        return field_schema(cls)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}


class Unordered(Part):
    """A combination whose parts, each contained once, have no order; its JSON keeps the given one."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        parts, others = parts_of(self), parts_of(other)
        # Not as sets: a trigger of a user may have fields that are not hashable.
        return parts == others or (len(parts) == len(others) and all(part in others for part in parts))

    def __hash__(self) -> int:
        return hash((type(self), frozenset(parts_of(self))))


def parts_of(part: Part) -> list[Part]:
    """Return the triggers and sets in the fields of a part."""
    found: list[Part] = []
    for name in getattr(part, "__dataclass_fields__", ()):
        value = getattr(part, name)
        members = value if isinstance(value, tuple | list) else (value,)
        found += (member for member in members if isinstance(member, Part))
    return found


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
    level: list[Part] = [whole]
    count = depth = 0
    while level:
        count += len(level)
        depth += 1
        check_count(count)
        if depth > MAX_DEPTH:
            raise ValueError(f"the combination is nested deeper than {MAX_DEPTH} levels; flatten it")
        level = [part for each in level for part in parts_of(each)]
