"""The JSON schema of a dataclass: the types of its fields, with the docstrings below them as descriptions."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

NUMBERS: Final = frozenset({int, float, timedelta})

_PLAIN: Final[Mapping[Any, Mapping[str, Any]]] = {
    Any: {},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    timedelta: {"type": "number"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
}


def object_schema(kind: type, keys: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the schema of an object that has the fields ``keys`` of a dataclass; None for all fields."""
    types = field_types(kind)
    descriptions = dict(_field_docstrings(kind))
    names = [field.name for field in fields(kind)] if keys is None else list(keys)
    properties: dict[str, dict[str, Any]] = {}
    for name in names:
        properties[name] = schema_of(types[name])
        if name in descriptions:
            properties[name]["description"] = descriptions[name]
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the schema of a type that the objects of commands use. None becomes null."""
    value_type = without_none(kind)
    schema = dict(_schema(value_type))
    # The type does not allow None, or allows everything already.
    if value_type is kind or value_type is Any:
        return schema
    if "enum" in schema:
        return {"enum": [*schema["enum"], None]}
    return schema | {"type": [schema["type"], "null"]}


def field_types(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass, by name.

    They are evaluated in the module that defines the class. ``__module__`` may name another one, where the
    class is public.
    """
    types: dict[str, Any] = {}
    for base in _bases(kind):
        types |= inspect.get_annotations(base, globals=_globals(base), eval_str=True)
    return types


def without_none(kind: Any) -> Any:
    """Return the type of the values other than None: ``int`` for ``int | None``."""
    if get_origin(kind) not in {Union, UnionType}:
        return kind
    # A union of several other types does not occur in the objects of commands.
    (value_type,) = (argument for argument in get_args(kind) if argument is not NoneType)
    return value_type


def _schema(kind: Any) -> Mapping[str, Any]:
    """Return the schema of a type that is not a union with None."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    # The origin of list[int] is list, and its argument is int.
    origin = get_origin(kind) or kind
    arguments = get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if issubclass(origin, Enum):
        return {"enum": [member.value for member in origin]}
    if is_dataclass(origin):
        return object_schema(origin)  # type: ignore[arg-type] # mypy takes it for a value
    if issubclass(origin, Mapping):
        return {"type": "object"}
    items = schema_of(arguments[0])  # of a list, a sequence or a tuple of any length
    # The empty schema allows everything, as an array without a schema of its items does.
    return {"type": "array", "items": items} if items else {"type": "array"}


def _bases(kind: type) -> Iterator[type]:
    """Return the dataclasses from which a class derives and the class itself, the most general one first."""
    return (base for base in reversed(kind.__mro__) if is_dataclass(base))


def _globals(kind: type) -> dict[str, Any]:
    """Return the names of the module that defines a dataclass, to which its ``__init__()`` refers."""
    names: dict[str, Any] = vars(kind)["__init__"].__globals__
    return names


def source_of(kind: type) -> str | None:
    """Return the source of the module that defines a dataclass; None if only its byte code is installed."""
    try:
        return inspect.getsource(sys.modules[_globals(kind)["__name__"]])
    except OSError:
        return None


def _field_docstrings(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of each field that has a docstring below it."""
    for base in _bases(kind):
        # Without the source, an empty class stands for this one, so it has no docstrings.
        module = ast.parse(source_of(base) or f"class {base.__name__}: ...")
        body = next(
            node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == base.__name__
        )
        # A field that has a docstring is followed by a statement that consists of a text.
        for pair in pairwise(body):
            match pair:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    # The description is one line, in the words of JSON.
                    description = text.replace("``", "`").replace("None", "null")
                    yield name, " ".join(description.split())
