"""Bind the arguments of typed tasks with pydantic, when they are scheduled and when they run.

A row holds the arguments as JSON in the shape in which they were given. Before they are stored, this JSON is
validated by the same code as later in the attempt. So stored arguments fit the function as the caller has it.
The objects that the function would get are then compared with those that the caller passed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, Final, TypeAlias, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ArgsKwargs

from pg_scheduler.base.annotations import (
    UNDECLARED,
    UnusableAnnotationError,
    class_hints,
    return_annotation,
    type_hints,
    unwrapped,
)
from pg_scheduler.base.foreign import guarded
from pg_scheduler.base.validators import new_adapter
from pg_scheduler.errors import ConfigurationError, PayloadError
from pg_scheduler.jobs.call_errors import call_error
from pg_scheduler.jobs.injected import accepts_anything, own_signature, wrapped_signature
from pg_scheduler.jobs.model import JobFunction
from pg_scheduler.jobs.payload import decode, encode
from pg_scheduler.jobs.result import NoValue
from pg_scheduler.jobs.values import (
    LARGE,
    MAX_EXACT_INT,
    ValueType,
    as_returned,
    encode_by_class,
    first_difference,
    path_of,
)

Bound: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional arguments of a call, and the keyword arguments by their names."""

ANY_TYPE: Final = ValueType(Any)

MAX_SHOWN: Final = 5
"""Invalid values that a message names."""

MARKERS: Final = frozenset({"NotRequired", "Required", "ReadOnly"})
"""What a TypedDict writes around the types of its keys."""


class TypedArguments:
    """Validates the arguments of one function by its annotations, and converts what it returns.

    The validators are built by the first use, when every module has been imported.

    Args:
        func: The function.
        returns_result: Whether the result of a job is what the function returns, and not a value that the
            function gives to one of many jobs.
    """

    def __init__(self, func: JobFunction, *, returns_result: bool = True) -> None:
        self._func = func
        self._returns_result = returns_result
        self._adapter: TypeAdapter[Bound] | None = None
        # Validates calls whose arguments all have names, those of ``*args`` together; see _validate_named().
        self._named_adapter: TypeAdapter[Bound] | None = None
        self._hints: dict[str, Any] = {}
        self._types: dict[str, ValueType] = {}
        # The types of what ``*args`` and ``**kwargs`` of the function collect.
        self._var_positional_type = self._var_keyword_type = ANY_TYPE
        # The type of the result, once it was read; None for a result of any type.
        self._result_type: ValueType | None = None
        self._has_result_type = False
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
        # The parameters that no keyword argument can give: the positional-only ones and ``*args``.
        self._variadic = next(
            (parameter.name for parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL), None
        )
        self._unnamed = frozenset(self._positional).difference(self._names)
        if self._variadic is not None:
            self._unnamed |= {self._variadic}

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

    def form_of_default(self, name: str, default: Any) -> Any:
        """Return the default of a parameter in the form in which an equal argument is stored.

        Raises:
            PayloadError: JSON cannot represent it, or it would not arrive equal.
            ConfigurationError: pydantic does not support an annotation.
        """
        if self._adapter is None:
            self._build()
        return _faithful_form(self._type_named(name), default, name)

    def form_of_result(self, value: Any) -> Any:
        """Return what the function returned, in the form in which it is stored.

        It is a ``NoValue`` if the value would not arrive equal, or cannot be read. A value that does not fit
        the return annotation stays as it is, as if there were no annotation.
        """
        # Most functions return such a value. JSON carries it unchanged, whatever the annotation is.
        if value is None or type(value) is bool:
            return value
        # A larger int would lose digits where the annotation is float.
        if type(value) is int and abs(value) <= MAX_EXACT_INT:
            return value
        remedy = "return a value that the return annotation can carry through JSON"
        return guarded(
            lambda: self._form_of_result(value),
            lambda kind: NoValue(f"reading the value raised {kind}; {remedy}"),
        )

    def _form_of_result(self, value: Any) -> Any:
        """Return what ``form_of_result()`` returns, or raise what the code of a value's class raises."""
        try:
            if not self._returns_result:
                return encode_by_class(value, "the value")
            result_type = self._type_of_result()
            return value if result_type is None else result_type.encode(value, "the value")
        except PayloadError as error:
            return NoValue(str(error))
        except ValidationError:  # the value does not fit the annotation
            return value

    def result_from(self, plain: Any) -> Any:
        """Return the result of a job as the function has returned it, from its form as JSON.

        If the function has no usable return annotation, or the form does not fit it, that is the form itself.
        """
        result_type = self._type_of_result()
        if result_type is None:
            return plain
        try:
            return result_type.read(plain)
        except ValidationError:
            return plain

    def _type_of_result(self) -> ValueType | None:
        """Return the type of the result; None if the function has no usable return annotation."""
        if self._returns_result and not self._has_result_type:
            try:
                annotation = return_annotation(unwrapped(self._func))
                self._result_type = None if annotation is UNDECLARED else ValueType(annotation)
            except UnusableAnnotationError:
                # It may be usable later, when the module that it names has been imported.
                return None
            self._has_result_type = True
        return self._result_type

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
            raise call_error(
                PayloadError,
                "; ".join(messages[:MAX_SHOWN] + suffix),
                "arguments",
                f"pass arguments that fit the annotations of {self._func.__qualname__}()",
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
        all_have_names = len(names) == len(args) and names == self._positional[: len(args)]
        # If an argument is given twice, the validator has to see both values, to raise the error.
        if all_have_names and kwargs.keys().isdisjoint(names):
            args_by_name = dict(zip(names, args, strict=True))
            return adapter.validate_json(json.dumps({**args_by_name, **kwargs}))
        if not kwargs:
            return adapter.validate_json(json.dumps(args))
        has_room = len(args) <= len(self._positional) or self._variadic is not None
        if has_room and kwargs.keys().isdisjoint({*self._unnamed, *self._positional[: len(args)]}):
            return self._validate_named(args, kwargs)
        # The call is wrong, or ``**kwargs`` of the function collects an argument with such a name.
        return adapter.validate_python(ArgsKwargs(tuple(args), dict(kwargs)))

    def _validate_named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        """Return the objects of a call with keyword arguments, and with others that a call cannot name.

        One text of JSON has all arguments by name or none. So this validates a call of a function with the
        same parameters, each of which has a name in the call, and ``*args`` as a list.

        Raises:
            ValidationError: They do not fit.
        """
        positional, variadic = self._positional, self._variadic
        if self._named_adapter is None:
            self._named_adapter = self._named_call()
        arguments = {**dict(zip(positional, args, strict=False)), **kwargs}
        if variadic is not None:
            arguments[variadic] = args[len(positional) :]
        _, values = self._named_adapter.validate_json(json.dumps(arguments))
        # What pydantic returns has all parameters of the function, those with defaults too.
        arrived = [values.pop(name) for name in positional]
        if variadic is not None:
            arrived += values.pop(variadic)
        return tuple(arrived), values

    def _named_call(self) -> TypeAdapter[Bound]:
        """Return what validates a call of a function with the same parameters, each of which has a name."""
        parameters, hints = [], dict(self._hints)
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                hints[name] = list[self._hints.get(name, Any)]  # type: ignore[misc]
            is_collector = parameter.kind is parameter.VAR_KEYWORD
            parameters.append(parameter if is_collector else parameter.replace(kind=Parameter.KEYWORD_ONLY))
        return self._adapter_of(Signature(parameters), hints)

    def _build(self) -> TypeAdapter[Bound]:
        """Build the validators: the types of single values, and the adapter for all arguments of a call."""
        parameters = self._signature.parameters
        # The annotations of injected parameters, and that of the return value, may have undefined names.
        annotations = {
            name: parameter.annotation
            for name, parameter in parameters.items()
            if parameter.annotation is not parameter.empty
        }
        try:
            hints = type_hints(self._func, annotations)
            adapter = self._adapter_of(self._signature, hints)
            for name, parameter in parameters.items():
                if parameter.kind is parameter.VAR_KEYWORD:
                    self._types |= _unpacked_types(hints.get(name))
        except UnusableAnnotationError as error:
            remedy = "define the types at the top level of a module, or omit typed="
            if error.code == "typed-dict-version":
                remedy = "import TypedDict from typing_extensions"
            raise ConfigurationError(
                f"typed=True cannot use the annotations of {self._func.__qualname__}: {error}; {remedy}"
            ) from error
        for name, parameter in parameters.items():
            if _has_alias(hints.get(name), parameter.default):
                function = self._func.__qualname__
                raise ConfigurationError(
                    f"typed=True cannot use the alias of the parameter {name!r} of {function}: "
                    "callers and rows give an argument by the name of its parameter; remove the alias, or "
                    "make the argument a field of a model, whose fields may have aliases"
                )
            kind = _value_type(hints.get(name, Any))
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._var_positional_type = kind
            elif parameter.kind is parameter.VAR_KEYWORD:
                self._var_keyword_type = kind
            else:
                self._types[name] = kind
        self._adapter, self._hints = adapter, hints
        return adapter

    def _adapter_of(self, signature: Signature, hints: Mapping[str, Any]) -> TypeAdapter[Bound]:
        """Return what validates calls of a function with this signature and these annotations.

        It returns the arguments with which such a function would be called.

        Raises:
            UnusableAnnotationError: pydantic does not support an annotation.
        """

        @functools.wraps(self._func)
        def capture(*args: Any, **kwargs: Any) -> Bound:
            return args, kwargs

        capture.__annotations__ = dict(hints)
        capture.__signature__ = signature.replace(return_annotation=Any)  # type: ignore[attr-defined]
        return cast("TypeAdapter[Bound]", new_adapter(capture))


def _has_alias(annotation: Any, default: object) -> bool:
    """Return whether the annotation of a parameter, or its default, is a ``Field()`` with an alias."""
    fields = [part for part in (*get_args(annotation), default) if isinstance(part, FieldInfo)]
    return any(field.alias is not None or field.validation_alias is not None for field in fields)


def _value_type(annotation: Any) -> ValueType:
    """Return the type of the values of a parameter with this annotation."""
    try:
        return ValueType(annotation)
    except UnusableAnnotationError:  # valid for a parameter only, such as Unpack
        return ANY_TYPE


def _unpacked_types(annotation: Any) -> dict[str, ValueType]:
    """Return the types of keyword arguments that are declared as ``**kwargs: Unpack[...]``."""
    # Unpack is compared by its name, because typing and typing_extensions each have one.
    if getattr(get_origin(annotation), "__name__", "") != "Unpack":
        return {}
    (kind,) = get_args(annotation)
    hints = class_hints(kind, include_extras=True)
    return {name: _value_type(_unmarked(hint)) for name, hint in hints.items()}


def _unmarked(hint: Any) -> Any:
    """Return the type of a key of a TypedDict, without what states whether the key is required."""
    while getattr(get_origin(hint), "__name__", getattr(get_origin(hint), "_name", "")) in MARKERS:
        (hint,) = get_args(hint)
    return hint


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
