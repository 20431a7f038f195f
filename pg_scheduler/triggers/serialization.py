"""Triggers as JSON: one pydantic model per kind, selected by ``kind``.

The fields of a model are those of the dataclass, so a class is written down once. A value is made by calling
the class, so whatever the constructor rejects is rejected here too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, PydanticUserError, ValidationError, create_model
from pydantic import Field as ModelField
from pydantic_core import CoreSchema, core_schema

from pg_scheduler.foreign import class_name, is_a, is_ctrl_c, message_of
from pg_scheduler.triggers.kinds import Kind, kind_named
from pg_scheduler.triggers.part import MAX_DEPTH, MAX_PARTS, Part, parts_of

P = TypeVar("P", bound=Part)

MAX_LENGTH: Final = 262_144
"""Characters of a trigger in JSON."""

MAX_JSON_DEPTH: Final = 2 * MAX_DEPTH + 8
"""Levels of objects and lists: each combination adds an object and perhaps a list."""

MAX_VALUES: Final = 20_000
"""Objects, lists, texts and numbers in a trigger."""

_MODELS: Final[dict[type[Part], type[BaseModel]]] = {}


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


def to_json(part: Part) -> dict[str, Any]:
    """Return a trigger or a set as a JSON object.

    Raises:
        ValueError: Its class is not registered.
    """
    cls = type(part)
    known = kind_named(cls.kind)
    if known is None or known.cls is not cls:
        raise ValueError(f"{cls.__qualname__} has no kind; register it with @trigger_kind")
    values = {each.name: getattr(part, each.name) for each in _fields(cls)}
    dumped = _model(known).model_construct(kind=cls.kind, **values).model_dump(mode="json", by_alias=True)
    absent = {each.name for each in _fields(cls) if each.default is None and values[each.name] is None}
    return {name: value for name, value in dumped.items() if name not in absent}


def from_json(value: object, kind_of: type[P]) -> P:
    """Return the trigger or set of a JSON object or of its text.

    Raises:
        UnknownKindError: This process has not registered a ``kind`` in it.
        ValueError: It is invalid; the message contains the path.
    """
    found = _parse(value)
    _check_size(found)
    part = _part(found)
    if not isinstance(part, kind_of):
        raise ValueError(f"kind {part.kind!r} is a {type(part).__name__}, not a {kind_of.__name__}")  # noqa: TRY004
    return part


def kinds_of(part: Part) -> frozenset[str]:
    """Return the kinds that a node needs to interpret a trigger."""
    return frozenset((part.kind,)).union(*map(kinds_of, parts_of(part)))


def is_built_in(part: Part) -> bool:
    """Return whether all parts of a trigger are those of this package."""
    return type(part).__module__.startswith("pg_scheduler.") and all(map(is_built_in, parts_of(part)))


def _fields(cls: type[Part]) -> list[Field[Any]]:
    """Return the fields that make up the definition."""
    return [each for each in fields(cls) if each.init]  # type: ignore[arg-type]


def _model(of: Kind) -> type[BaseModel]:
    """Return the model of a kind, made once."""
    if of.cls not in _MODELS:
        _MODELS[of.cls] = _make_model(of)
    return _MODELS[of.cls]


def _make_model(of: Kind) -> type[BaseModel]:
    """Return the model of a kind. The names of its fields are aliases, so they may be any.

    Raises:
        ValueError: A field has a type that JSON cannot carry.
    """
    try:
        definitions: dict[str, Any] = {"kind": (Literal[of.cls.kind], ...)} | {
            f"field_{each.name}": (
                of.types[each.name],
                ModelField(alias=each.name)
                if each.default is MISSING and each.default_factory is MISSING
                else ModelField(default=None, alias=each.name),
            )
            for each in _fields(of.cls)
        }
        return create_model(
            of.cls.__name__,
            __config__=ConfigDict(extra="forbid"),
            **definitions,
        )
    except PydanticUserError as error:
        raise ValueError(
            f"{of.cls.__qualname__} has a field that JSON cannot carry: {str(error).splitlines()[0]}; use "
            "types that pydantic can convert"
        ) from error


def field_schema(cls: type[Part]) -> CoreSchema:
    """Return the schema of a field of a pydantic model that holds a part."""

    def validate(value: object) -> Part:
        return value if isinstance(value, cls) else from_json(value, cls)

    return core_schema.no_info_plain_validator_function(
        validate, serialization=core_schema.plain_serializer_function_ser_schema(to_json)
    )


def _parse(value: object) -> object:
    if isinstance(value, str | bytes | bytearray):
        if len(value) > MAX_LENGTH:
            raise ValueError(f"the trigger has {len(value)} characters; the limit is {MAX_LENGTH}")
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the trigger is not JSON: {error}") from error
    return value


def _check_size(value: object) -> None:
    """Bound the work of everything below, which is recursive."""
    level, count, depth = [value], 0, 0
    while level:
        count += len(level)
        depth += 1
        if count > MAX_VALUES or depth > MAX_JSON_DEPTH:
            raise ValueError(
                f"the trigger is too large; the limits are {MAX_PARTS} parts, {MAX_DEPTH} levels of "
                f"combinations and {MAX_VALUES} values"
            )
        following: list[object] = []
        for each in level:
            if isinstance(each, Mapping):
                following += each.values()
            elif isinstance(each, list | tuple):
                following += each
        level = following


def _part(value: object) -> Part:
    """Return the part of an object whose size was checked."""
    if not isinstance(value, Mapping) or not isinstance(kind := value.get("kind"), str):
        raise ValueError(  # noqa: TRY004 - every error of a trigger is a ValueError
            f"a trigger must be an object with a 'kind', not {_shown(value)}"
        )
    known = kind_named(kind)
    if known is None:
        raise UnknownKindError(kind)
    try:
        model = _model(known).model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        for each in error.errors(include_url=False, include_input=False):
            cause = each.get("ctx", {}).get("error")
            if isinstance(cause, UnknownKindError):
                raise cause from error
        raise ValueError(_reason(kind, error)) from error
    except TypeError as error:  # it holds objects that JSON does not have
        raise ValueError(f"{kind}: {error}") from error
    given = {name.removeprefix("field_"): getattr(model, name) for name in model.model_fields_set - {"kind"}}
    try:
        return known.cls._from_fields(**given)  # noqa: SLF001 - private for users only
    except ValueError:
        raise
    except BaseException as error:  # user code: the constructor of a trigger of the application
        if is_ctrl_c(error):
            raise
        text = message_of(error)
        own = is_a(error, TypeError) or is_a(error, OverflowError)
        raise ValueError(f"{kind}: {text if own else f'{class_name(error)}: {text}'}") from error


def _reason(kind: str, error: ValidationError) -> str:
    """Return the first error in one line."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, (kind, *first["loc"])))
    message = first["msg"].removeprefix("Value error, ")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{place}: {message}{more}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
