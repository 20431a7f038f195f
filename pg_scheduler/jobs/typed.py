"""Bind the arguments of typed tasks with pydantic, when they are scheduled and when they run.

A row holds the arguments as JSON in the shape in which they were given. Before they are stored, this JSON is
validated by the same code as later in the attempt. So stored arguments fit the function as the caller has it.
The objects that the function would get are then compared with those that the caller passed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import ArgsKwargs

from pg_scheduler.base.annotations import UNDECLARED, return_annotation, type_hints, unwrapped
from pg_scheduler.base.foreign import guarded
from pg_scheduler.errors import ConfigurationError, PayloadError
from pg_scheduler.jobs.injected import accepts_anything, own_signature, wrapped_signature
from pg_scheduler.jobs.model import JobFunction
from pg_scheduler.jobs.payload import decode, encode
from pg_scheduler.jobs.result import NoValue
from pg_scheduler.jobs.values import LARGE, ValueType, as_returned, first_difference, path_of

Bound: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional arguments of a call, and the keyword arguments by their names."""

ANY_TYPE: Final = ValueType(Any)

MAX_SHOWN: Final = 5
"""Invalid values that a message names."""


class TypedArguments:
    """Validates the arguments of one function by its annotations, and converts what it returns.

    The validators are built by the first use, when every module has been imported.
    """

    def __init__(self, func: JobFunction) -> None:
        self._func = func
        self._adapter: TypeAdapter[Bound] | None = None
        self._types: dict[str, ValueType] = {}
        # The types of what ``*args`` and ``**kwargs`` of the function collect.
        self._var_positional_type = self._var_keyword_type = ANY_TYPE
        self._return_type: ValueType | None = None
        self._signature = own_signature(func)
        if accepts_anything(self._signature) and wrapped_signature(func, self._signature) != self._signature:
            raise ConfigurationError(
                f"typed=True cannot validate the arguments of {func.__qualname__}(): the wrapper of its "
                "decorator accepts any. Give the wrapper the signature of the function, by "
                "wrapper.__signature__ = inspect.signature(function), or use middleware instead"
            )
        parameters = self._signature.parameters.values()
        # Strict types accept a text as a date only if pydantic reads it from JSON. One text of JSON holds all
        # arguments of a call: an object has them by name, an array by position. Only an object can have both
        # kinds, so positional arguments get their names where that is possible.
        self._names = [
            parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        # All parameters that take one positional argument, also those without a usable name.
        self._positional = [
            parameter.name
            for parameter in parameters
            if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
        ]
        self._has_positional_only = any(
            parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters
        )

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> str:
        """Return the arguments of a job as the text of the ``task_data`` column.

        Raises:
            PayloadError: They do not fit the annotations, JSON cannot represent a value, or it would not
                arrive equal.
            ConfigurationError: pydantic does not support an annotation.
        """
        if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping | None):
            return encode(args, kwargs)  # raises the error
        if self._adapter is None:
            self._build()
        # An iterator can be read once only, but arguments are dumped and then compared.
        if any(isinstance(value, Iterator) for value in args):
            args = [list(value) if isinstance(value, Iterator) else value for value in args]
        values = kwargs or {}
        # Each argument is dumped to its usual form of JSON.
        types = [self._type_of(index) for index in range(len(args))]
        plain_args = [
            kind.dump(value, f"args[{index}]")
            for index, (kind, value) in enumerate(zip(types, args, strict=True))
        ]
        plain_kwargs = {
            name: self._type_named(name).dump(value, f"kwargs[{name!r}]") for name, value in values.items()
        }
        task_data = encode(plain_args, plain_kwargs)
        if self._arrives_equal(args, values, plain_args, plain_kwargs, task_data):
            return task_data
        # Try the other forms of each value. If none arrives equal, this raises PayloadError. A value that
        # does not fit its annotation keeps the usual form, and check() raises the error about it.
        plain_args = [
            _faithful_form(kind, value, f"args[{index}]")
            for index, (kind, value) in enumerate(zip(types, args, strict=True))
        ]
        plain_kwargs = {
            name: _faithful_form(self._type_named(name), value, f"kwargs[{name!r}]")
            for name, value in values.items()
        }
        task_data = encode(plain_args, plain_kwargs)
        self.check(plain_args, plain_kwargs)
        return task_data

    def form_of_result(self, value: Any) -> Any:
        """Return what the function returned, in the form in which it is stored.

        It is a ``NoValue`` if the value would not arrive equal, or cannot be read. A value that does not fit
        the return annotation stays as it is, as if there were no annotation.
        """
        # Most functions return such a value. JSON carries it unchanged, whatever the annotation is.
        if value is None or type(value) in {bool, int}:
            return value
        remedy = "return a value that the return annotation can carry through JSON"
        return guarded(
            lambda: self._form_of_result(value),
            lambda kind: NoValue(f"reading the value raised {kind}; {remedy}"),
        )

    def _form_of_result(self, value: Any) -> Any:
        """Return what ``form_of_result()`` returns, or raise what the code of a value's class raises."""
        try:
            if self._return_type is None:
                annotation = return_annotation(unwrapped(self._func))
                if annotation is UNDECLARED:
                    return value
                self._return_type = ValueType(annotation)
            return self._return_type.encode(value, "the value")
        except PayloadError as error:
            return NoValue(str(error))
        # The value does not fit the annotation, or the annotation cannot be used.
        except (PydanticUserError, ValidationError, NameError, TypeError, SyntaxError):
            return value

    def _arrives_equal(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        plain_args: Sequence[Any],
        plain_kwargs: Mapping[str, Any],
        task_data: str,
    ) -> bool:
        """Return whether the function would get arguments equal to ``args`` and ``kwargs``.

        Args:
            args: The positional arguments of the caller.
            kwargs: The keyword arguments of the caller.
            plain_args: The form of the positional arguments that would be stored.
            plain_kwargs: The form of the keyword arguments that would be stored.
            task_data: These forms as JSON.
        """
        # The database changes the digits of large floats.
        if LARGE in task_data:
            plain_args, plain_kwargs = decode(as_returned(task_data))
        try:
            positional_values, keyword_values = self._validate(plain_args, plain_kwargs)
        except ValidationError:
            return False
        # pydantic may return an argument by its name that the caller gave by its position, and vice versa.
        positional = self._positional
        for index, value in enumerate(args):
            # Arguments beyond the positional parameters are those of ``*args``, which have no names.
            if index < len(positional) and positional[index] in keyword_values:
                arrived = keyword_values[positional[index]]
            else:
                arrived = positional_values[index]
            if first_difference(value, arrived) is not None:
                return False
        for name, value in kwargs.items():
            if name in keyword_values:
                arrived = keyword_values[name]
            else:
                arrived = positional_values[positional.index(name)]
            if first_difference(value, arrived) is not None:
                return False
        return True

    def _type_of(self, index: int) -> ValueType:
        """Return the type of a positional argument."""
        if index < len(self._positional):
            return self._types[self._positional[index]]
        return self._var_positional_type

    def _type_named(self, name: str) -> ValueType:
        """Return the type of a keyword argument; that of ``**kwargs`` if no parameter has its name."""
        return self._types.get(name, self._var_keyword_type)

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise unless arguments as a row has them fit the annotations.

        Raises:
            PayloadError: They do not fit; its cause is the ValidationError, which ``problems()`` describes.
            ConfigurationError: pydantic does not support an annotation.
        """
        try:
            self._validate(args, kwargs)
        except ValidationError as error:
            messages = problems(error)
            suffix = [f"{len(messages) - MAX_SHOWN} more"] if len(messages) > MAX_SHOWN else []
            raise PayloadError(
                f"{'; '.join(messages[:MAX_SHOWN] + suffix)}; pass arguments that fit the annotations of "
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
        """Return the objects that pydantic makes of arguments, which it reads from JSON where it can.

        Raises:
            ValidationError: They do not fit.
        """
        adapter = self._adapter or self._build()
        names = self._names[: len(args)]
        all_have_names = len(names) == len(args) and not self._has_positional_only
        # If an argument is given twice, the validator has to see both values, to raise the error.
        if all_have_names and kwargs.keys().isdisjoint(names):
            args_by_name = dict(zip(names, args, strict=True))
            return adapter.validate_json(json.dumps({**args_by_name, **kwargs}))
        if not kwargs:
            return adapter.validate_json(json.dumps(args))
        # One text of JSON cannot have both arguments without names and keyword arguments.
        return adapter.validate_python(ArgsKwargs(tuple(args), dict(kwargs)))

    def _build(self) -> TypeAdapter[Bound]:
        """Build the validators: the types of single values, and the adapter for all arguments of a call.

        The adapter validates calls of ``capture()``, which has the parameters of the function, and returns
        the arguments that it is called with.
        """

        @functools.wraps(self._func)
        def capture(*args: Any, **kwargs: Any) -> Bound:
            return args, kwargs

        parameters = self._signature.parameters
        # The annotations of injected parameters, and that of the return value, may have undefined names.
        annotations = {
            name: parameter.annotation
            for name, parameter in parameters.items()
            if parameter.annotation is not parameter.empty
        }
        try:
            hints = type_hints(self._func, annotations)
            capture.__annotations__ = hints
            capture.__signature__ = self._signature.replace(return_annotation=Any)  # type: ignore[attr-defined]
            adapter = TypeAdapter(cast("Any", capture), config=ConfigDict(hide_input_in_errors=True))
        except (PydanticUserError, NameError, TypeError) as error:
            remedy = "define the types at the top level of a module, or omit typed="
            if getattr(error, "code", None) == "typed-dict-version":
                remedy = "import TypedDict from typing_extensions"
            raise ConfigurationError(
                f"typed=True cannot use the annotations of {self._func.__qualname__}: {error}; {remedy}"
            ) from error
        for name, parameter in parameters.items():
            kind = _value_type(hints.get(name, Any))
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._var_positional_type = kind
            elif parameter.kind is parameter.VAR_KEYWORD:
                self._var_keyword_type = kind
                self._types |= _unpacked_types(hints.get(name))
            else:
                self._types[name] = kind
        self._adapter = adapter
        return adapter


def _value_type(annotation: Any) -> ValueType:
    """Return the type of the values of a parameter with this annotation."""
    try:
        return ValueType(annotation)
    except PydanticUserError:  # valid for a parameter only, such as Unpack
        return ANY_TYPE


def _unpacked_types(annotation: Any) -> dict[str, ValueType]:
    """Return the types of keyword arguments that are declared as ``**kwargs: Unpack[...]``."""
    # Unpack is compared by its name, because typing and typing_extensions each have one.
    if getattr(get_origin(annotation), "__name__", "") != "Unpack":
        return {}
    (kind,) = get_args(annotation)
    return {name: _value_type(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


def _faithful_form(kind: ValueType, value: Any, path: str) -> Any:
    """Return an argument in a form of JSON from which the attempt gets an equal argument.

    An argument that does not fit its annotation has no such form, and is returned in the usual form.

    Raises:
        PayloadError: JSON cannot represent it, or no form of it arrives as it was sent.
    """
    try:
        return kind.encode(value, path)
    except ValidationError:
        return kind.dump(value, path)


def problems(error: ValidationError, *, root: str | None = None) -> list[str]:
    """Return the paths of the invalid values, each with its reason.

    Args:
        error: The error.
        root: What was validated; None for arguments.
    """
    details = error.errors(include_url=False, include_context=False, include_input=False)
    messages: list[str] = []
    for detail in details:
        place = detail["loc"]
        path = _path(place) if root is None else root + path_of(place)
        messages.append(f"{path}: {detail['msg']}")
    return messages


def _path(place: tuple[int | str, ...]) -> str:
    """Return the path of a value within arguments, such as ``order.lines[0].price`` or ``args[0].price``."""
    # An error without a place is about all arguments together.
    head, *tail = place or ("arguments",)
    start = f"args[{head}]" if isinstance(head, int) else head
    return start + path_of(tail)
