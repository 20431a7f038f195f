"""Bind the arguments of typed tasks with pydantic, when they are scheduled and when they run.

A row holds the arguments as JSON in the shape in which they were given. Before they are stored, the same code
validates that JSON as later in the attempt, so arguments that are stored fit the function of the caller.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import ArgsKwargs, to_jsonable_python

from pg_scheduler.errors import ConfigurationError, PayloadError
from pg_scheduler.jobs.injected import own_signature
from pg_scheduler.jobs.model import JobFunction
from pg_scheduler.jobs.payload import encode

Bound: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

MAX_SHOWN: Final = 5
"""Invalid values that a message names."""


class TypedArguments:
    """Validates the arguments of one function by its annotations.

    The validator is built by the first use, when every module has been imported.
    """

    def __init__(self, func: JobFunction) -> None:
        self._func = func
        self._adapter: TypeAdapter[Bound] | None = None
        self._signature = own_signature(func)
        parameters = self._signature.parameters.values()
        # JSON has objects with names, or arrays: strict types accept texts as dates in these only.
        self._names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        self._has_positional_only = any(each.kind is each.POSITIONAL_ONLY for each in parameters)

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> str:
        """Return the arguments of a job as the text of the ``task_data`` column.

        Raises:
            PayloadError: They do not fit the annotations, or JSON cannot represent a value.
            ConfigurationError: pydantic does not support an annotation.
        """
        if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping | None):
            return encode(args, kwargs)  # raises the error
        plain = [_to_json(value, f"args[{index}]") for index, value in enumerate(args)]
        named = {name: _to_json(value, f"kwargs[{name!r}]") for name, value in (kwargs or {}).items()}
        task_data = encode(plain, named)
        self.check(plain, named)
        return task_data

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise unless arguments as a row has them fit the annotations.

        Raises:
            PayloadError: They do not fit; its cause is the ValidationError, which ``problems()`` describes.
            ConfigurationError: pydantic does not support an annotation.
        """
        try:
            self._validate(args, kwargs)
        except ValidationError as error:
            found = problems(error)
            more = [f"{len(found) - MAX_SHOWN} more"] if len(found) > MAX_SHOWN else []
            raise PayloadError(
                f"{'; '.join(found[:MAX_SHOWN] + more)}; pass arguments that fit the annotations of "
                f"{self._func.__qualname__}()"
            ) from error

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        """Return the objects with which to call the function.

        Raises:
            PayloadError: The arguments do not fit the annotations; with the message of pydantic.
            ConfigurationError: pydantic does not support an annotation.
        """
        try:
            return self._validate(args, kwargs)
        except ValidationError as error:
            raise PayloadError(str(error)) from error

    def _validate(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        adapter = self._adapter or self._build()
        names = self._names[: len(args)]
        if len(names) == len(args) and not self._has_positional_only and kwargs.keys().isdisjoint(names):
            return adapter.validate_json(json.dumps({**dict(zip(names, args, strict=True)), **kwargs}))
        if not kwargs:
            return adapter.validate_json(json.dumps(args))
        return adapter.validate_python(ArgsKwargs(tuple(args), dict(kwargs)))

    def _build(self) -> TypeAdapter[Bound]:
        @functools.wraps(self._func)
        def capture(*args: Any, **kwargs: Any) -> Bound:
            return args, kwargs

        config = ConfigDict(hide_input_in_errors=True)
        capture.__annotations__ = {  # those of injected parameters may be unknown here
            name: annotation
            for name, annotation in capture.__annotations__.items()
            if name in self._signature.parameters or name == "return"
        }
        try:
            capture.__annotations__ = get_type_hints(capture, include_extras=True)
            capture.__signature__ = self._signature  # type: ignore[attr-defined]
            self._adapter = TypeAdapter(cast("Any", capture), config=config)
        except (PydanticUserError, NameError, TypeError) as error:
            raise ConfigurationError(
                f"typed=True cannot use the annotations of {self._func.__qualname__}: {error}; "
                "define the types at the top level of a module, or omit typed="
            ) from error
        return self._adapter


def _to_json(value: Any, path: str) -> Any:
    try:
        return to_jsonable_python(value, by_alias=True)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{path} cannot be serialized by pydantic: {error}") from error


def problems(error: ValidationError, *, root: str | None = None) -> list[str]:
    """Return the paths of the invalid values, each with its reason.

    Args:
        error: The error.
        root: What was validated; None for arguments.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [
        f"{_path(each['loc']) if root is None else root + _below(each['loc'])}: {each['msg']}"
        for each in found
    ]


def _path(place: tuple[int | str, ...]) -> str:
    """Return the path of a value such as ``order.lines[0].price``."""
    first, *rest = place or ("arguments",)
    start = f"args[{first}]" if isinstance(first, int) else first
    return start + _below(rest)


def _below(place: Sequence[int | str]) -> str:
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in place)
