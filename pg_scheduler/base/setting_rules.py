"""Check the values of the classes of settings by the annotations of their fields.

The types are those of settings: numbers, texts, ``Literal``, enums, other settings, a tuple of texts and an
object of JSON, each with or without None. In ``Annotated``, functions follow the type, which return the value
or raise a ValueError about it. pydantic could do this as well, but a process that has no typed jobs needs it
for nothing else, and it takes 10 MiB and as much time as all other imports of a client.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    SupportsFloat,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pg_scheduler.errors import ConfigurationError

T = TypeVar("T")
Number = TypeVar("Number", int, float)

_NUMBERS: Final = {int: "a valid integer", float: "a valid number"}
_STRICT: Final = {"extra": "forbid", "strict": True, "allow_inf_nan": False}
"""The rules of pydantic for a class of settings that is part of a model."""

_CLASSES: Final = {bool: "a valid boolean", str: "a valid string"}


class _InvalidTypeError(ValueError):
    """A value has another type than its setting."""

    def __init__(self, expected: str) -> None:
        super().__init__(f"must be {expected}")


class _InvalidPartError(ValueError):
    """A part of a value is invalid."""

    def __init__(self, problem: str, part: str, value: object) -> None:
        super().__init__(problem)
        self.part = part
        self.value = value


def at_least(least: float) -> Callable[[Number], Number]:
    """Return a check that a number is not less than this."""

    def check(number: Number) -> Number:
        if number < least:
            raise ValueError(f"must be greater than or equal to {least}")
        return number

    return check


def more_than(bound: float) -> Callable[[Number], Number]:
    """Return a check that a number is greater than this."""

    def check(number: Number) -> Number:
        if number <= bound:
            raise ValueError(f"must be greater than {bound}")
        return number

    return check


def at_most(most: float) -> Callable[[Number], Number]:
    """Return a check that a number is not greater than this."""

    def check(number: Number) -> Number:
        if number > most:
            raise ValueError(f"must be less than or equal to {most}")
        return number

    return check


def not_empty(text: str) -> str:
    """Return a text that has a character."""
    if not text:
        raise ValueError("must have at least 1 character")
    return text


def validated(
    *, names: Mapping[str, str], secrets: Collection[str] = (), none_is_default: bool = False
) -> Callable[[type[T]], type[T]]:
    """Return a decorator that makes the constructor of a dataclass check its values.

    The constructor raises ConfigurationError with all faults. ``__post_init__()`` checks several values
    together, by a ValueError.

    Args:
        names: The names under which users set some fields.
        secrets: The fields whose values messages do not show.
        none_is_default: Whether None stands for the default of a field.
    """

    def decorate(cls: type[T]) -> type[T]:
        build = cls.__init__
        kinds = get_type_hints(cls, include_extras=True)
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            # The namespace in which pydantic would look for the names is that of the package.
            field.type = kinds[field.name]

        @functools.wraps(build)
        def construct(self: T, *args: Any, **kwargs: Any) -> None:
            values, faults = _assigned(cls, args, kwargs, names)
            if none_is_default:
                values = {field: value for field, value in values.items() if value is not None}
            cause: ValueError | None = None
            for field, value in values.items():
                try:
                    values[field] = _read(kinds[field], value)
                except ValueError as error:
                    cause = cause or error
                    faults.append(_fault(names.get(field, field), error, value, hides=field in secrets))
            if faults:
                raise ConfigurationError("; ".join(faults)) from cause
            try:
                build(self, **values)
            except ConfigurationError:
                raise
            except ValueError as error:
                raise ConfigurationError(str(error)) from error

        def schema(_cls: type[T], kind: Any, handler: Callable[[Any], Any]) -> Any:
            return _schema_for_pydantic(kind, handler, none_is_default=none_is_default)

        cls.__init__ = construct  # type: ignore[assignment, method-assign]
        cls.__pydantic_config__ = _STRICT  # type: ignore[attr-defined]
        cls.__get_pydantic_core_schema__ = classmethod(schema)  # type: ignore[attr-defined]
        return cls

    return decorate


def _schema_for_pydantic(kind: Any, handler: Callable[[Any], Any], *, none_is_default: bool) -> Any:
    """Return what lets a model of pydantic have a field of a class of settings: an object, or one in JSON."""
    # Who has such a model has imported pydantic.
    from pydantic_core.core_schema import (  # noqa: PLC0415
        no_info_after_validator_function,
        no_info_before_validator_function,
    )

    def without_none(value: Any) -> Any:
        is_json = isinstance(value, dict)
        return {name: part for name, part in value.items() if part is not None} if is_json else value

    def checked(settings: Any) -> Any:
        dataclasses.replace(settings)  # pydantic does not call the constructor, which checks the values
        return settings

    schema = no_info_after_validator_function(checked, handler(kind))
    return no_info_before_validator_function(without_none, schema) if none_is_default else schema


def _assigned(
    cls: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], names: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a call by field, in the order of the fields, and the faults of the call."""
    fields = dataclasses.fields(cls)
    positional = [field.name for field in fields if not field.kw_only]
    faults = [
        f"{cls.__name__} takes fewer positional settings; remove {value!r}"
        for value in args[len(positional) :]
    ]
    values = dict(zip(positional, args, strict=False))
    faults += [f"{name} has two values" for name in kwargs if name in values]
    field_names = {field.name for field in fields}
    faults += [f"{name} is not a setting of {cls.__name__}" for name in kwargs if name not in field_names]
    values |= kwargs
    faults += [
        f"{cls.__name__} requires {names.get(field.name, field.name)}="
        for field in fields
        if field.name not in values and field.default is field.default_factory is dataclasses.MISSING
    ]
    return {field.name: values[field.name] for field in fields if field.name in values}, faults


def _fault(name: str, error: ValueError, value: object, *, hides: bool) -> str:
    """Return the message about an invalid value of a setting."""
    if isinstance(error, _InvalidPartError):
        name, value = f"{name}.{error.part}", error.value
    return f"{name} {error}, not {'***' if hides else repr(value)}"


def _read(kind: Any, value: Any) -> Any:
    """Return a value as its type has it.

    Raises:
        ValueError: It has another type, or breaks a rule of it.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        value = _read(args[0], value)
        for check in args[1:]:
            value = check(value)
        return value
    if origin in {Union, UnionType}:
        (inner,) = (arg for arg in args if arg is not NoneType)
        return None if value is None else _read(inner, value)
    if origin is Literal:
        return _choice(args, value)
    if origin is tuple:
        return tuple(_items(args[0], value))
    if origin is dict:
        return _object(value)
    return _number(kind, value) if kind in _NUMBERS else _instance(kind, value)


def _choice(choices: tuple[str, ...], value: Any) -> str:
    if not isinstance(value, str) or value not in choices:
        *others, last = map(repr, choices)
        raise _InvalidTypeError(f"{', '.join(others)} or {last}")
    return choices[choices.index(value)]


def _items(kind: Any, value: Any) -> Iterator[Any]:
    if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise _InvalidTypeError("a valid tuple")
    for index, item in enumerate(value):
        try:
            yield _read(kind, item)
        except ValueError as error:
            raise _InvalidPartError(str(error), str(index), item) from error


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _InvalidTypeError("a valid dictionary")
    for key in value:
        if not isinstance(key, str):
            raise _InvalidPartError("must be a valid string", f"{key}.[key]", key)
    return {str.__str__(key): part for key, part in value.items()}


def _number(kind: Any, value: Any) -> int | float:
    # A float may be written as an int or a Decimal, but True is no number.
    if isinstance(value, bool) or not isinstance(value, int if kind is int else SupportsFloat):
        raise _InvalidTypeError(_NUMBERS[kind])
    try:
        number: int | float = kind(value)
    except OverflowError as error:
        raise ValueError("must be a finite number") from error
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def _instance(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise _InvalidTypeError(_CLASSES.get(kind, f"an instance of {kind.__name__}"))
    # An enum of texts is formatted as the name of its member, not as the text.
    return str.__str__(value) if kind is str else value
