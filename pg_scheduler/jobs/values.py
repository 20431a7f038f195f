"""Carry values through JSON, so that they arrive as they were sent.

A value is dumped by its declared type. What a reader would get from that JSON is compared with the value, at
the call: a value that would not arrive equal is refused, with its path and a remedy. Nothing is lost in
silence, whichever way a value takes: as an argument, a result, the value of a step, or a signal.

JSON has several forms for some values. The usual form of a model has its aliases as keys, and leaves out the
fields that were not set. If that would not arrive equal, other forms are tried: with the names of the fields
as keys, or with the unset fields that differ from their defaults. Members of sets are sorted, since the order
of a set differs between processes.

"Equal" is ``==``, with differences where that compares too little or too much: which fields of a model are
set counts, and the comparison does not distinguish NaN from NaN, a time zone from its offset at that time, or
objects whose class defines no equality.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from numbers import Number
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_origin
from uuid import UUID

from pg_scheduler.base.annotations import UnusableAnnotationError
from pg_scheduler.base.foreign import is_ctrl_c
from pg_scheduler.base.lazy_imports import LazyModule
from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.payload import MAX_DEPTH as MAX_JSON_DEPTH
from pg_scheduler.jobs.payload import check_json

if TYPE_CHECKING:
    import pydantic

    from pg_scheduler.base import validators
else:
    pydantic = LazyModule("pydantic")
    validators = LazyModule("pg_scheduler.base.validators")


PLAIN: Final = frozenset({type(None), bool, int, float, str})
"""The classes of values that are JSON as they are."""

COMPARABLE: Final = PLAIN | {bytes, Decimal, UUID, date, timedelta}
"""The classes of values without parts, which ``==`` compares completely."""

CONTAINERS: Final = (list, tuple, dict, set, frozenset)

LARGE: Final = "e+"
"""Occurs in the JSON of a float from 1e16 on. The database returns its digits, which are read as an int."""

NEGATIVE_ZERO: Final = "-0.0"
"""The JSON of a float that the database returns as ``0.0``."""

MAX_EXACT_INT: Final = 2**53
"""The largest int up to which each int has a float of the same value."""

DECLARE: Final = (
    "declare the type of the value instead of Any, or pass None, bool, int, float, str, list or dict"
)


_MISSING: Final = object()


class Difference(NamedTuple):
    """Why a value does not arrive as it was sent."""

    reason: str
    remedy: str
    path: str = ""

    def within(self, part: str) -> Difference:
        """Return the difference of a part as a difference of the value that contains the part."""
        return self._replace(path=part + self.path)

    def error(self, root: str) -> PayloadError:
        """Return the error for the value whose path is ``root``."""
        return PayloadError(f"{root}{self.path} {self.reason}; {self.remedy}")


class ValueType:
    """Converts values of one declared type to JSON and back.

    Raises:
        UnusableAnnotationError: pydantic does not support the type, or a name in it is not defined.
    """

    def __init__(self, annotation: Any) -> None:
        self._adapter = validators.adapter_of(annotation) or validators.ANY
        self._may_have_sets = _may_have_sets(self._adapter.core_schema)

    def dump(self, value: Any, path: str) -> Any:
        """Return a value in its usual form of JSON, from which the reader need not get an equal value.

        Raises:
            PayloadError: JSON cannot represent the value.
        """
        kind = type(value)
        # Such a value is JSON as it is. About NaN and infinities, the settings of the type decide.
        if kind in PLAIN and (kind is not float or math.isfinite(value)):
            return value
        return self._dump(value, path)

    def read(self, plain: Any) -> Any:
        """Return the value of the type that pydantic makes of a value of JSON.

        Raises:
            ValidationError: It does not fit the type.
        """
        # It is passed as a text, because a strict type accepts some values, such as a date, only as JSON.
        return self._adapter.validate_json(json.dumps(plain))

    def encode(self, value: Any, path: str, *, in_union: bool = False) -> Any:
        """Return the form of JSON of a value from which the reader gets an equal value.

        Args:
            value: A value of the type, or one that pydantic converts to it, such as its form as JSON.
            path: The path of the value, for errors.
            in_union: Whether the reader may declare a union of types. The form then has the fields that
                distinguish these types, even if they were not set.

        Raises:
            PayloadError: JSON cannot represent the value, or it would not arrive equal.
            ValidationError: It does not fit the type.
        """
        # An iterator can be read once only, but the value is dumped and then compared.
        if isinstance(value, Iterator):
            value = list(value)
        # What the type makes of the value, or the error if it does not fit; computed only if it is needed.
        converted: Any = _MISSING
        # The first difference of a form that pydantic can read, and the first error of a form that it cannot.
        difference: Difference | None = None
        misfit: pydantic.ValidationError | None = None
        # Often several forms of a value are the same. Each text is examined once.
        examined_texts = set[str]()
        for form in self._forms(value, path, in_union=in_union):
            text = _text_of(form, path)
            if text in examined_texts:
                continue
            examined_texts.add(text)
            try:
                arrived = self._adapter.validate_json(as_returned(text))
            except pydantic.ValidationError as error:
                misfit = misfit or error
                continue
            form_difference = first_difference(value, arrived)
            loss = None if form_difference is None else _lost_number(value, arrived)
            if loss is not None:
                form_difference = loss
            elif form_difference is not None:
                if converted is _MISSING:
                    converted = self._converted(value)
                # The value may be of another type than the declared one, such as a text instead of a number.
                # Then the form is right if the value to which pydantic converts it arrives.
                if not isinstance(converted, pydantic.ValidationError):
                    form_difference = first_difference(converted, arrived)
                # A strict type accepts some values from JSON only, such as the text of a date. Such a value
                # is sent as it is, and whatever pydantic reads from it is right.
                elif is_json(value) and form == value:
                    form_difference = None
            if form_difference is None:
                return form
            difference = difference or form_difference
        problem = difference or _unrepresentable(value)
        if problem is not None:
            raise problem.error(path)
        # pydantic could read none of the forms. Its error is about the value if the value itself does not
        # fit the type. Otherwise the value fits, and only its JSON does not.
        assert misfit is not None  # noqa: S101 - each form arrived, differed or did not fit
        if is_json(value) or isinstance(self._converted(value), pydantic.ValidationError):
            raise misfit
        raise _unread(misfit).error(path) from misfit

    def _converted(self, value: Any) -> Any:
        """Return what the type makes of a value without JSON, or the error if it does not fit.

        An error is no proof that the value is wrong: a strict type accepts some texts from JSON only, such
        as a date.
        """
        try:
            return self._adapter.validate_python(value)
        except pydantic.ValidationError as error:
            return error

    def _forms(self, value: Any, path: str, *, in_union: bool) -> Iterator[Any]:
        """Yield the forms of JSON in which a value may be sent, the usual one first.

        If the reader may declare a union of types (``in_union``), these are only the forms that have the
        fields by which the types are distinguished, even if the fields were not set.
        """
        if not in_union:
            # The fields of models that were not set are left out. The keys are first the aliases of the
            # fields, and then their names.
            yield self.dump(value, path)
            yield self._dump(value, path, by_alias=False)
            # The last form of plain JSON is the value itself. It contains no models, so the forms with unset
            # fields below do not concern it.
            if is_json(value):
                yield value
                return
        # These forms leave out only the unset fields that have their default. Unset fields with another value
        # remain, as do those that distinguish the types of a union.
        excluded = _unset_fields(value)
        for by_alias in (True, False):
            yield self._dump(value, path, by_alias=by_alias, exclude_unset=False, exclude=excluded)

    def _dump(self, value: Any, path: str, **options: Any) -> Any:
        """Return the form of a value that pydantic dumps with these options; by default the usual form.

        Raises:
            PayloadError: JSON cannot represent the value.
        """
        options = {"by_alias": True, "exclude_unset": True, **options}
        try:
            text = self._adapter.dump_json(value, round_trip=True, warnings=False, **options)
            form = json.loads(text)
        except (ValueError, RecursionError) as error:
            # The message of pydantic does not have the path of the invalid part.
            difference = _unrepresentable(value)
            if difference is not None:
                raise difference.error(path) from error
            raise PayloadError(
                f"{path} cannot be serialized by pydantic: {error}; declare a serializer for its type, or "
                "pass None, bool, int, float, str, list or dict"
            ) from error
        return _with_sorted_sets(value, form) if self._may_have_sets else form


def encode_by_class(value: Any, path: str) -> Any:
    """Return the form as JSON of a value whose reader may have any type.

    Its objects arrive as they were sent if the reader has their class.

    Raises:
        PayloadError: JSON cannot represent the value, or an object would not arrive equal.
    """
    try:
        return _by_class(value, path)
    except RecursionError as error:
        raise PayloadError(
            f"{path} is nested deeper than {MAX_JSON_DEPTH} levels (or contains itself); flatten it"
        ) from error


def _by_class(value: Any, path: str) -> Any:
    """Return the form of a value as JSON, by the classes of its objects.

    Raises:
        RecursionError: The value is nested too deep; otherwise the errors of ``encode_by_class()``.
    """
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind in {list, tuple} or isinstance(value, Iterator):
        return [_by_class(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if kind in {set, frozenset}:
        # The members are sorted, since the order of a set differs between processes.
        return sorted((_by_class(item, f"{path}[...]") for item in value), key=_order)
    if kind is dict:
        return {_key(key, path): _by_class(item, f"{path}[{key!r}]") for key, item in value.items()}
    try:
        return ValueType(kind).encode(value, path, in_union=True)
    # pydantic does not support the class as a type, but may be able to serialize the object.
    except UnusableAnnotationError:
        return ValueType(Any).dump(value, path)
    except pydantic.ValidationError as error:
        raise _unread(error).error(path) from error


def _text_of(form: Any, path: str) -> str:
    """Return the form of a value as a text of JSON; ``path`` is that of the value, for errors."""
    try:
        return json.dumps(form)
    except (ValueError, RecursionError) as error:
        # If check_json() finds the invalid part, it raises an error with the path of that part.
        check_json(form, path)
        raise PayloadError(f"{path} cannot be serialized: {error}") from error


def is_json(value: Any, depth: int = MAX_JSON_DEPTH) -> bool:
    """Return whether a value has nothing but None, bool, int, float, str, list and dict with str keys.

    Parts below ``depth`` levels are not examined, because a value that is nested so deep is refused anyway.
    """
    kind = type(value)
    if kind in PLAIN or depth == 0:
        return True
    if kind is list:
        return all(is_json(item, depth - 1) for item in value)
    if kind is not dict:
        return False
    return all(type(key) is str and is_json(item, depth - 1) for key, item in value.items())


def as_returned(text: str) -> str:
    """Return a text of JSON as the database returns it after it has stored the text.

    The database writes a float from 1e16 on as digits without a point, so Python reads it as an int. It has
    no negative zero.
    """
    if LARGE not in text and NEGATIVE_ZERO not in text:
        return text
    return json.dumps(json.loads(text, parse_float=_returned_number))


def _returned_number(digits: str) -> float:
    """Return the number that Python reads for a float with these digits after the database has stored it."""
    # The sum of a negative zero and zero is zero.
    return int(Decimal(digits)) if LARGE in digits.lower() else float(digits) + 0.0


def _key(key: Any, path: str) -> str:
    """Return the text of a key of an object."""
    if isinstance(key, str):
        # A subclass of str may override any method. So str() of a member of a str Enum is not its value.
        return str.__str__(key)
    # The text of any other key is the one that pydantic writes for it, in a dict of which it is the only key.
    (text,) = ValueType(dict[type(key), None]).encode({key: None}, path)  # type: ignore[misc]
    return str(text)


# -- comparison ----------------------------------------------------------------------------------------


def first_difference(original: Any, arrived: Any) -> Difference | None:  # noqa: PLR0911 - one for each kind
    """Return the first part of a value that does not arrive as it was sent; None if all of it does."""
    kind, arrived_kind = type(original), type(arrived)
    if kind is arrived_kind:
        if kind in COMPARABLE:
            # NaN is the only value that differs from itself. It arrives as NaN, since the classes are equal.
            is_nan = original != original  # noqa: PLR0124
            return None if original == arrived or is_nan else _changed(original, arrived)
        if kind is list or kind is tuple:
            return _in_items(original, arrived)
        if kind is dict:
            return _in_dicts(original, arrived)
    if isinstance(original, pydantic.BaseModel):
        return _in_models(original, arrived)
    if is_dataclass(kind):
        return _in_dataclasses(original, arrived)
    if isinstance(original, datetime) and isinstance(arrived, datetime):
        return None if _is_same_time(original, arrived) else _changed(original, arrived)
    return _in_others(original, arrived)


def _in_others(original: Any, arrived: Any) -> Difference | None:
    """Return the first difference of values whose classes differ, or have no comparison of their own here."""
    kind, arrived_kind = type(original), type(arrived)
    # What is declared as an Iterable arrives as an iterator.
    if isinstance(arrived, Iterator):
        items = _items(original)
        arrived_items = list(arrived)
        return _changed(original, arrived_items) if items is None else _in_items(items, arrived_items)
    if isinstance(original, Iterator):
        return Difference("is an iterator, which can be read only once", "pass a list")
    # A tuple may arrive as a list, but a NamedTuple has to arrive as an object of its class.
    is_list_of_tuple = kind is tuple and arrived_kind is list
    is_same_named_tuple = isinstance(original, tuple) and kind is arrived_kind
    if is_list_of_tuple or is_same_named_tuple:
        return _in_items(original, arrived)
    if isinstance(original, Mapping) and isinstance(arrived, dict):
        # Two objects of OrderedDict are equal only if their keys have the same order.
        have_order = isinstance(original, OrderedDict) and isinstance(arrived, OrderedDict)
        if have_order and not _has_kept_order(original):
            return Difference(
                "is an OrderedDict, whose order the database does not keep", "pass a list of pairs"
            )
        return _in_dicts(original, arrived)
    # An equal object of a base class is accepted. So is an equal number of another class of numbers, and an
    # equal set of another class of sets.
    is_alike = issubclass(kind, arrived_kind) or any(
        isinstance(original, family) and isinstance(arrived, family) for family in (Number, Set)
    )
    is_accepted = is_alike and _is_equal(original, arrived)
    return None if is_accepted else _changed(original, arrived)


def _lost_number(original: Any, arrived: Any) -> Difference | None:
    """Return the first number of a value that arrives as a float of another value; None if there is none.

    pydantic converts a larger int, or a Decimal with more digits, to the nearest float, or to infinity.
    """
    if isinstance(arrived, float):
        is_number = isinstance(original, int) or (isinstance(original, Decimal) and not original.is_nan())
        # The digits of a Decimal arrive if the float is written with the same digits.
        if not is_number or original == arrived or original == Decimal(repr(arrived)):
            return None
        name = type(original).__qualname__
        return Difference(
            f"is a number that would arrive as {arrived!r}", f"declare {name} where float is declared"
        )
    arrived_parts = {_key_of(part): item for part, item in _parts(arrived)}
    for part, item in _parts(original):
        if _key_of(part) in arrived_parts:
            difference = _lost_number(item, arrived_parts[_key_of(part)])
            if difference is not None:
                return difference.within(part)
    return None


def _key_of(part: str) -> str:
    """Return the name of a part, whether it is a key of a dict or a field of the object made of the dict."""
    return part.strip("[].'\"")


def _in_items(original: Sequence[Any], arrived: Sequence[Any]) -> Difference | None:
    """Return the first difference between two sequences."""
    if len(original) != len(arrived):
        return _changed(original, arrived)
    # Comparing all items at once is faster than one after the other. It suffices if both have the same
    # classes of items, and ``==`` compares these completely.
    kinds = [*map(type, original)]
    are_comparable = set(kinds) <= COMPARABLE and kinds == [*map(type, arrived)]
    if are_comparable and [*original] == [*arrived]:
        return None
    for index, (item, arrived_item) in enumerate(zip(original, arrived, strict=True)):
        difference = first_difference(item, arrived_item)
        if difference is not None:
            return difference.within(f"[{index}]")
    return None


def _in_dicts(original: Mapping[Any, Any], arrived: Mapping[Any, Any]) -> Difference | None:
    """Return the first difference between two mappings. The order of their keys does not count."""
    if original.keys() != arrived.keys():
        return Difference(
            "is a dict with keys that JSON changes: there they are texts",
            "use keys of type str, or pass a list of pairs",
        )
    for key, item in original.items():
        if (difference := first_difference(item, arrived[key])) is not None:
            return difference.within(f"[{key!r}]")
    return None


def _in_models(original: pydantic.BaseModel, arrived: Any) -> Difference | None:
    """Return the first difference between a model and the object as which it arrives."""
    kind, arrived_kind = type(original), type(arrived)
    # A generic model may arrive with other type arguments.
    if kind is not arrived_kind and _origin(kind) is not _origin(arrived_kind):
        return _changed(original, arrived)
    values, arrived_values = original.__dict__, arrived.__dict__
    for name, field in kind.model_fields.items():
        # A model that was made without validation may lack a field.
        value, arrived_value = values.get(name, _MISSING), arrived_values.get(name, _MISSING)
        if value is arrived_value:
            continue
        difference = first_difference(value, arrived_value)
        if difference is not None:
            # The JSON of a RootModel is that of its only field, so this field has no part in the path.
            part = "" if isinstance(original, pydantic.RootModel) else f".{name}"
            return _of_field(field, difference).within(part)
    # A model with extra="allow" has values of further names.
    difference = _in_dicts(original.__pydantic_extra__ or {}, arrived.__pydantic_extra__ or {})
    if difference is not None:
        return difference
    for name, value in (original.__pydantic_private__ or {}).items():
        # Only plain values and containers are compared. Other private attributes, such as clients and locks,
        # are made anew where the model arrives.
        if type(value) in COMPARABLE or isinstance(value, CONTAINERS):
            arrived_value = (arrived.__pydantic_private__ or {}).get(name, _MISSING)
            if first_difference(value, arrived_value) is not None:
                return Difference(
                    "is a private attribute, which JSON leaves out", "make it a field", path=f".{name}"
                )
    return _in_fields_set(original, arrived)


def _in_fields_set(original: pydantic.BaseModel, arrived: pydantic.BaseModel) -> Difference | None:
    """Return the first field that is set in only one of two models; None if there is none."""
    set_names, arrived_set_names = original.model_fields_set, arrived.model_fields_set
    if set_names == arrived_set_names:
        return None
    for name in type(original).model_fields:
        if name in set_names and name not in arrived_set_names:
            return Difference("is set, and would arrive as not set", REMEDY_OF_SET, path=f".{name}")
        # A field with another value than its default has to be dumped, so it is set where it arrives.
        becomes_set = name in arrived_set_names and name not in set_names
        if becomes_set and _is_default(original, name):
            return Difference("is not set, and would arrive as set", REMEDY_OF_SET, path=f".{name}")
    return None


REMEDY_OF_SET: Final = "let the serializer of the model dump the fields that are set, and no others"


def _in_dataclasses(original: Any, arrived: Any) -> Difference | None:
    """Return the first difference between an object of a dataclass and the object as which it arrives."""
    if type(original) is not type(arrived):
        return _changed(original, arrived)
    # Fields with ``compare=False`` do not count for ``==`` either.
    for field in fields(original):
        if field.compare:
            value = getattr(original, field.name, _MISSING)
            arrived_value = getattr(arrived, field.name, _MISSING)
            difference = first_difference(value, arrived_value)
            if difference is not None:
                return difference.within(f".{field.name}")
    return None


def _is_same_time(original: datetime, arrived: datetime) -> bool:
    """Return whether two times are the same instant, or, without a zone, the same text."""
    offset, arrived_offset = original.utcoffset(), arrived.utcoffset()
    if offset is None or arrived_offset is None:
        have_no_zone = offset is None and arrived_offset is None
        # ``fold`` distinguishes the two times that one text has where a clock is set back.
        return have_no_zone and original == arrived and original.fold == arrived.fold
    # Between two zones, ``==`` is False for times that a change of the clock makes ambiguous, although they
    # are the same instant. Their difference is zero.
    return original - arrived == timedelta(0)


def _is_equal(original: Any, arrived: Any) -> bool:
    """Return whether two values are ``==``.

    Values whose class defines no equality count as equal if they have the same class. If the comparison
    raises an exception, or returns no bool, the values count as equal, because it shows no difference.
    """
    has_equality: bool = getattr(type(original), "__eq__", None) is not object.__eq__
    if not has_equality:
        return type(original) is type(arrived)
    try:
        equal: Any = original == arrived
        if not isinstance(equal, bool):
            return True
        # A value that differs from itself is NaN, which arrives as NaN.
        return equal or bool(original != original)  # noqa: PLR0124
    except BaseException as error:  # user code
        if is_ctrl_c(error):
            raise
        return True


def _has_kept_order(original: Mapping[Any, Any]) -> bool:
    """Return whether keys have the order in which a jsonb column returns them: by length, then by bytes."""
    keys = [str(key).encode() for key in original]
    return keys == sorted(keys, key=lambda key: (len(key), key))


def _origin(kind: type[pydantic.BaseModel]) -> type:
    """Return a model without its type arguments."""
    generic: Mapping[str, Any] = getattr(kind, "__pydantic_generic_metadata__", {})
    return generic.get("origin") or kind


def _is_default(model: pydantic.BaseModel, name: str) -> bool:
    """Return whether a field that was not set has its default, so that the JSON need not have the field.

    It is False for a default factory, which may return another value where the model arrives, and for a
    ``Literal``, which may distinguish the types of a union.
    """
    field = type(model).model_fields[name]
    if field.default_factory is not None or get_origin(field.annotation) is Literal:
        return False
    return first_difference(getattr(model, name, _MISSING), field.default) is None


def _items(value: Any) -> list[Any] | None:
    """Return the items of a collection; None for an iterator, a text, bytes, and what has no items."""
    is_collection = isinstance(value, Iterable) and not isinstance(value, Iterator | str | bytes)
    return [*value] if is_collection else None


# -- the words for a difference ------------------------------------------------------------------------


def _changed(original: Any, arrived: Any) -> Difference:
    """Return the difference of a value that arrives as another one, or not at all (``_MISSING``)."""
    class_name, arrived_class_name = type(original).__qualname__, type(arrived).__qualname__
    if hasattr(original, "get_secret_value"):
        return Difference(
            f"is a {class_name}, which JSON shows as asterisks",
            "pass a reference to the secret, or its get_secret_value() where a codec encrypts the values",
        )
    difference = _unrepresentable(original)
    if difference is not None:
        return difference
    if arrived is _MISSING:
        return Difference(f"is a {class_name}, and would be missing", "declare a serializer that dumps it")
    if type(original) is not type(arrived):
        if isinstance(original, type(arrived)):
            remedy = (
                f"declare {class_name} where {arrived_class_name} is declared, or a union with a "
                "discriminator"
            )
        else:
            remedy = DECLARE if type(arrived) in PLAIN else f"pass a {arrived_class_name}"
        return Difference(f"is a {class_name}, and would arrive as a {arrived_class_name}", remedy)
    return Difference(
        f"is a {class_name} that its JSON does not hold completely",
        "declare a serializer and a validator that fit each other",
    )


def _of_field(field: Any, difference: Difference) -> Difference:
    """Return the difference of a field's value, in words about the field if its declaration is the cause."""
    # A difference with a path concerns a part of the field's value, so the field is not the cause. The
    # difference of a secret is caused by the class of its value.
    if difference.path or _is_secret(difference):
        return difference
    if field.exclude:
        return difference._replace(
            reason="is excluded from JSON by its field",
            remedy="remove exclude=True, or pass it as an argument",
        )
    if field.serialization_alias != field.validation_alias:
        return difference._replace(
            reason="is lost: its alias for serialization is none for validation",
            remedy="add populate_by_name=True to the model_config, or use one alias for both",
        )
    return difference


def _is_secret(difference: Difference) -> bool:
    """Return whether a difference is the one of a secret, by the reason that ``_changed()`` gives for it."""
    return difference.reason.endswith("asterisks")


def _unread(error: pydantic.ValidationError) -> Difference:
    """Return the difference for a value whose JSON pydantic has written, but cannot read."""
    details = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place, message = details["loc"], details["msg"]
    # The place of a key in a dict ends with the key and "[key]". The path is that of the dict.
    if "[key]" in place:
        return Difference(
            "has keys of a type that cannot be read from JSON, where keys are texts",
            "use keys of type str, or pass a list of pairs",
            path=path_of(place[: place.index("[key]") - 1]),
        )
    if details["type"] in {"missing", "extra_forbidden"}:
        return Difference(
            f"cannot be read from its JSON: {message}",
            "add populate_by_name=True to the model_config, so that its aliases fit both directions",
            path=path_of(place),
        )
    return Difference(
        f"cannot be read from its JSON: {message}",
        "declare a serializer whose JSON the validator of the type accepts",
        path=path_of(place),
    )


def path_of(place: Iterable[int | str]) -> str:
    """Return the path of a part within a value, such as ``.lines[0].price``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)


def _unrepresentable(value: Any, depth: int = 0) -> Difference | None:
    """Return the first part of a value that JSON cannot represent as it is; None if there is none."""
    match value:
        case bytes():
            try:
                value.decode()
            except UnicodeDecodeError:
                return Difference(
                    "is bytes that are not UTF-8, which JSON cannot represent",
                    "declare Base64Bytes, or set ser_json_bytes and val_json_bytes of the model to 'base64'",
                )
        case str():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                return Difference(
                    f"contains a lone surrogate at position {error.start}, which PostgreSQL cannot store",
                    "remove it",
                )
        case float() if not math.isfinite(value):
            return Difference(
                f"is {value}, which JSON cannot represent",
                "pass a finite float, or declare ser_json_inf_nan='strings' in a model_config",
            )
        case _ if depth < MAX_DEPTH:
            for part, item in _parts(value):
                difference = _unrepresentable(item, depth + 1)
                if difference is not None:
                    return difference.within(part)
    return None


MAX_DEPTH: Final = 50
"""Levels of nesting in which ``_unrepresentable()`` searches."""


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value with their paths."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, Set):
        yield from (("[...]", item) for item in value)
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, pydantic.BaseModel):
        yield from ((f".{name}", item) for name, item in value.__dict__.items())
    # is_dataclass() is true for a dataclass itself, too, which has no parts.
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{field.name}", getattr(value, field.name, None)) for field in fields(value))


# -- forms ---------------------------------------------------------------------------------------------


def _unset_fields(value: Any) -> Any:
    """Return the unset fields of the models in a value that a form leaves out; None if there are none.

    The result is what pydantic takes as ``exclude=``: a dict by the name, key or index of each part. Its
    value is True for a part that is left out, and otherwise a dict of what is left out within the part.
    """
    if isinstance(value, pydantic.RootModel):
        return _unset_fields(value.root)
    parts: Iterable[tuple[Any, Any]]
    left_out: dict[Any, Any] = {}
    if isinstance(value, pydantic.BaseModel):
        names = type(value).model_fields.keys() - value.model_fields_set
        left_out = {name: True for name in names if _is_default(value, name)}
        parts = value.__dict__.items()
    elif isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    elif is_dataclass(value) and not isinstance(value, type):
        parts = ((field.name, getattr(value, field.name, None)) for field in fields(value))
    else:
        return None
    excluded = dict(left_out)
    for name, item in parts:
        if name in left_out:
            continue
        excluded_within = _unset_fields(item)
        if excluded_within:
            excluded[name] = excluded_within
    return excluded or None


def _may_have_sets(schema: Any) -> bool:
    """Return whether a value of a type may contain a set.

    ``schema`` is the core schema that pydantic has made of the type, or a part of that: a dict has its kind
    under the key "type", and the schemas of parts of the type among its values.
    """
    if isinstance(schema, Mapping):
        return schema.get("type") in {"set", "frozenset", "any"} or any(map(_may_have_sets, schema.values()))
    return isinstance(schema, list | tuple) and any(map(_may_have_sets, schema))


def _with_sorted_sets(value: Any, form: Any) -> Any:
    """Return the form of a value with the members of its sets sorted.

    pydantic dumps them in the order in which the set yields them, which differs between processes. A part
    whose shape was changed by a serializer stays as it is.
    """
    if isinstance(value, pydantic.RootModel):
        return _with_sorted_sets(value.root, form)
    if isinstance(form, list) and isinstance(value, list | tuple | Set) and len(value) == len(form):
        items = [*map(_with_sorted_sets, value, form)]
        return sorted(items, key=_order) if isinstance(value, Set) else items
    if not isinstance(form, dict):
        return form
    if isinstance(value, Mapping):
        if len(value) != len(form):
            return form
        # The form has its keys, which are texts, in the order of the keys of the value.
        items = [*map(_with_sorted_sets, value.values(), form.values())]
        return dict(zip(form, items, strict=True))
    # The value is an object, whose form has its fields.
    return {**form, **dict(_sorted_fields(value, form))}


def _sorted_fields(value: Any, form: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of an object, with sorted sets, by the keys of its form: their aliases or names."""
    aliases: dict[str, str | None] = {}
    if isinstance(value, pydantic.BaseModel):
        aliases = {name: field.serialization_alias for name, field in type(value).model_fields.items()}
    elif is_dataclass(value):
        aliases = dict.fromkeys(field.name for field in fields(value))
    for name, alias in aliases.items():
        key = name
        if alias is not None and alias in form:
            key = alias
        # The field may be left out, because it is unset or excluded.
        if key in form:
            yield key, _with_sorted_sets(getattr(value, name, None), form[key])


def _order(plain: Any) -> str:
    """Return the text by which the members of a set are sorted, which may be of several types."""
    return json.dumps(plain, sort_keys=True)
