"""Triggers as JSON: `Part`, the kinds of this process, and one pydantic model per kind, selected by ``kind``.

The fields of a model are those of the dataclass, so a class is written down once. A value is made by calling
the class, so whatever the constructor rejects is rejected here too.
"""

from __future__ import annotations

import inspect
import json
import re
from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    create_model,
)
from pydantic import Field as ModelField
from pydantic_core import CoreSchema, core_schema

from pg_scheduler.base.annotations import UnusableAnnotationError, class_hints, using_annotations
from pg_scheduler.base.foreign import class_name, is_a, is_ctrl_c, message_of
from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.triggers.zones import UnknownZoneError

MAX_PARTS: Final = 100
"""Triggers and sets that one trigger may combine, itself included."""

MAX_DEPTH: Final = 16
"""Levels of nesting. Chains such as ``a | b | c`` are one level."""

MAX_LENGTH: Final = 262_144
"""Characters of a trigger in JSON."""

MAX_JSON_DEPTH: Final = 2 * MAX_DEPTH + 8
"""Levels of objects and lists: each combination adds an object and perhaps a list."""

MAX_VALUES: Final = 20_000
"""Objects, lists, texts and numbers in a trigger."""

_KIND: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


class UnknownKindError(ValueError):
    """A trigger in JSON has a kind that this process has not registered.

    Attributes:
        kind: The kind.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"unknown trigger kind {kind[:64]!r}; import the module that registers it with @trigger_kind"
        )
        self.kind = kind


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
        cls = type(self)
        registration = _KINDS.get(cls.kind)
        # A subclass inherits the attribute ``kind``, but is not registered by that.
        if registration is None or registration.cls is not cls:
            raise ValueError(f"{cls.__qualname__} has no kind; register it with @trigger_kind")
        values = {field.name: getattr(self, field.name) for field in registration.fields}
        model = registration.model.model_construct(kind=cls.kind, **values)
        dumped = model.model_dump(mode="json", by_alias=True)
        # A field whose default is None is left out while its value is None.
        omitted_names = {
            field.name
            for field in registration.fields
            if field.default is None and values[field.name] is None
        }
        return {name: value for name, value in dumped.items() if name not in omitted_names}

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Return the value of a JSON object, given as `to_json` returns it or as text.

        Nothing is imported. Size and nesting are bounded, so the text may come from a request.

        Raises:
            UnknownKindError: This process has no class of a ``kind``. A ValueError.
            ValueError: The object does not describe a value of this class; the message contains the path.
        """
        document = _parse(value)
        _check_size(document)
        part = _part(document)
        if not isinstance(part, cls):
            raise ValueError(f"kind {part.kind!r} is a {type(part).__name__}, not a {cls.__name__}")  # noqa: TRY004
        return part

    @classmethod
    def _from_fields(cls, **fields: Any) -> Self:
        """Return the value with the fields of its JSON. A class with another constructor overrides this."""
        return cls(**fields)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let a field of this type in a pydantic model accept a value or its JSON, and produce its JSON."""

        def validate(value: object) -> Part:
            """Return the value of a field, which may be given as JSON."""
            return value if isinstance(value, cls) else cls.from_json(value)

        return core_schema.no_info_plain_validator_function(
            validate, serialization=core_schema.plain_serializer_function_ser_schema(Part.to_json)
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the JSON schema of such a field: an object with a ``kind``, and further keys by the kind."""
        return {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}


T = TypeVar("T", bound=type[Part])


@dataclass(frozen=True)
class Kind:
    """A registered class, and the types of its fields by name."""

    cls: type[Part]
    types: dict[str, Any]

    @property
    def fields(self) -> list[Field[Any]]:
        """The fields of the dataclass that its JSON has: those that the constructor takes."""
        return [field for field in fields(self.cls) if field.init]  # type: ignore[arg-type]

    @cached_property
    def model(self) -> type[BaseModel]:
        """The pydantic model by which the JSON of the class is validated and made.

        The fields of the class are called ``field_<name>`` in it, with the name as their alias. So any name
        is possible, also one that a field of a model must not have.

        Raises:
            ValueError: A field has a type that JSON cannot carry.
        """
        try:
            # By the name in the model: the type, and the options of the field.
            definitions: dict[str, Any] = {"kind": (Literal[self.cls.kind], ...)}
            for field in self.fields:
                is_required = field.default is MISSING and field.default_factory is MISSING
                # JSON may lack a field with a default. The model has None for it then, which is not used: the
                # constructor of the class gets only the fields that the JSON has.
                options = ModelField(alias=field.name)
                if not is_required:
                    options = ModelField(default=None, alias=field.name)
                definitions[f"field_{field.name}"] = (self.types[field.name], options)
            with using_annotations():
                return create_model(
                    self.cls.__name__,
                    __config__=ConfigDict(extra="forbid"),
                    **definitions,
                )
        except UnusableAnnotationError as error:
            raise ValueError(
                f"{self.cls.__qualname__} has a field that JSON cannot carry: {str(error).splitlines()[0]}; "
                "use types that pydantic can convert"
            ) from error


_KINDS: Final[dict[str, Kind]] = {}

registered_kinds: Final = _KINDS.keys()
"""The names of the kinds of this process."""


def trigger_kind(kind: str) -> Callable[[T], T]:
    """Register a trigger class of your own under the name that its JSON has as ``kind``.

    The class derives from `Trigger`, is a frozen dataclass and has ``next_after()``, which must return an
    instant after the given one, or None. Its fields are the JSON, so their types must be ones that pydantic
    can convert. A node without the kind leaves schedules with it to the nodes that have it.

    A field with the IANA name of a time zone must be called ``timezone``. By that name the planner finds the
    schedules of a zone: it computes their next fire times again when a node has newer time zone data. The
    dashboard and ``pg-scheduler`` find by it the clock changes that move fire times.

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
    value: object = kind
    if not isinstance(value, str) or not _KIND.fullmatch(value):
        raise ValueError(
            f"kind {kind!r} is invalid; write 1 to 64 lower-case letters, digits, '_', '.' or '-', "
            "beginning with a letter"
        )

    def register(cls: T) -> T:
        """Register the class, and return it."""
        name = _name(cls)
        problem = _problem_of(cls)
        if problem:
            raise ValueError(f"{name} {problem}")
        registration = _KINDS.get(kind)
        # A module that is loaded again defines another class of the same name, which replaces the first one.
        if registration is not None and _name(registration.cls) != name:
            raise ValueError(
                f"kind {kind!r} already belongs to {_name(registration.cls)}; choose another for {name}"
            )
        try:
            types = class_hints(cls, include_extras=False)
        except UnusableAnnotationError as error:
            raise ValueError(
                f"{name} has a field of an unknown type: {error}; import it at module level"
            ) from error
        cls.kind = kind
        _KINDS[kind] = Kind(cls, types)
        return cls

    return register


def parts_of(part: Part) -> list[Part]:
    """Return the triggers and sets that the fields of a trigger or set contain directly."""
    parts: list[Part] = []
    for name in getattr(part, "__dataclass_fields__", ()):
        value = getattr(part, name)
        members = value if isinstance(value, tuple | list) else (value,)
        parts += (member for member in members if isinstance(member, Part))
    return parts


def kinds_of(part: Part) -> frozenset[str]:
    """Return the kinds of a trigger and of all parts in it, which a node needs to interpret it."""
    return frozenset((part.kind,)).union(*map(kinds_of, parts_of(part)))


def is_built_in(part: Part) -> bool:
    """Return whether all parts of a trigger are those of this package."""
    return type(part).__module__.startswith("pg_scheduler.") and all(map(is_built_in, parts_of(part)))


def _problem_of(cls: Any) -> str | None:
    """Return why a class cannot be a trigger, with the remedy; None if it can."""
    if not isinstance(cls, type) or Part not in cls.__mro__:
        return "is not a trigger; derive it from pg_scheduler.triggers.Trigger"
    # A class inherits this attribute from a dataclass, but is no dataclass by that.
    parameters = vars(cls).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        return "is not a frozen dataclass; put @dataclass(frozen=True) below the decorator"
    if inspect.isabstract(cls):
        return f"is abstract; define {', '.join(sorted(getattr(cls, '__abstractmethods__', ())))}()"
    if any(field.name == "kind" for field in fields(cls)):
        return "has a field 'kind', which is a key of the JSON; rename it"
    return None


def _name(cls: Any) -> str:
    """Return the name of a class with its module, for messages."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _parse(value: object) -> object:
    """Return the document in a text of JSON; any other value is the document itself."""
    if isinstance(value, str | bytes | bytearray):
        if len(value) > MAX_LENGTH:
            raise ValueError(f"the trigger has {len(value)} characters; the limit is {MAX_LENGTH}")
        try:
            return load_json(value)
        except ValueError as error:
            raise ValueError(f"the trigger is not JSON: {error}") from error
    return value


def _check_size(value: object) -> None:
    """Raise ValueError if a document is too large for the functions below, which are recursive.

    This function is not recursive: it looks at one level of nesting after the other.
    """
    level, count, depth = [value], 0, 0
    while level:
        count += len(level)
        depth += 1
        if count > MAX_VALUES or depth > MAX_JSON_DEPTH:
            raise ValueError(
                f"the trigger is too large; the limits are {MAX_PARTS} parts, {MAX_DEPTH} levels of "
                f"combinations and {MAX_VALUES} values"
            )
        children: list[object] = []
        for node in level:
            if isinstance(node, Mapping):
                children += node.values()
            elif isinstance(node, list | tuple):
                children += node
        level = children


def _part(value: object) -> Part:
    """Return the trigger or set that a JSON object describes; raise ValueError if it describes none.

    The size of the object was checked before. Parts within the object are read by pydantic, which calls
    ``from_json()`` of their class.
    """
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str):
        raise ValueError(  # noqa: TRY004 - every error of a trigger is a ValueError
            f"a trigger must be an object with a 'kind', not {_shown(value)}"
        )
    registration = _KINDS.get(kind)
    if registration is None:
        raise UnknownKindError(kind)
    try:
        # Strict validation accepts text for a datetime only in JSON, not in Python objects.
        model = registration.model.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        # An error of a part within this one is wrapped by pydantic. Callers handle these two classes of
        # errors in their own ways, so the class is kept.
        for detail in error.errors(include_url=False, include_input=False):
            cause = detail.get("ctx", {}).get("error")
            if isinstance(cause, UnknownKindError):
                raise cause from error
            if isinstance(cause, UnknownZoneError):
                raise UnknownZoneError(cause.zone, _reason(kind, error)) from error
        raise ValueError(_reason(kind, error)) from error
    # The value contains objects that JSON does not have.
    except TypeError as error:
        raise ValueError(f"{kind}: {error}") from error
    # Only the fields that the JSON has, so that the others get the defaults of the class.
    field_values = {
        name.removeprefix("field_"): getattr(model, name) for name in model.model_fields_set - {"kind"}
    }
    try:
        return registration.cls._from_fields(**field_values)  # noqa: SLF001 - private for users only
    except ValueError:
        raise
    except BaseException as error:  # user code: the constructor of a trigger of the application
        if is_ctrl_c(error):
            raise
        text = message_of(error)
        if not is_a(error, TypeError) and not is_a(error, OverflowError):
            text = f"{class_name(error)}: {text}"
        raise ValueError(f"{kind}: {text}") from error


def _reason(kind: str, error: ValidationError) -> str:
    """Return the first error in one line, with the number of further ones."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, (kind, *first["loc"])))
    message = first["msg"].removeprefix("Value error, ")
    suffix = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{place}: {message}{suffix}"


def _shown(value: object) -> str:
    """Return a value as a message shows it, with at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
