"""Encode a job's arguments as JSON, decode them, and read JSON from columns.

Supported values are None, bool, int, finite float, str, and lists, tuples and dicts with str keys of these.
They are restored unchanged, except that tuples become lists, members of str and int enums become plain
values, and the keys of a dict come in another order. Since jsonb has one kind of number, ``-0.0`` becomes
``0.0``, and floats from 1e16 on become int: ``float()`` of such an int is the same float.

Everything else is rejected when the job is scheduled, with the path of the value: NaN and infinities, which
are not JSON; NUL characters and lone surrogates, which PostgreSQL cannot store; keys that are not str; sets,
datetimes, models and other objects. Pass ``when.isoformat()`` or ``model.model_dump(mode="json")`` instead.
For common types, the error names the conversion.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]
from pathlib import PurePath
from typing import Any, Final, NoReturn
from uuid import UUID

from pg_scheduler.base.text.json_text import load_json
from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs.call_errors import call_error
from pg_scheduler.jobs.codec import NO_ARGUMENTS, PayloadCodec, decode_value, is_encoded

_read = json.JSONDecoder().raw_decode

MAX_DEPTH = 200
"""Levels of nesting; the JSON parsers of PostgreSQL and Python have limits of their own."""

MAX_INT_BITS = 4096
"""Python rejects integers of more than 4,300 digits."""

MAX_PLAIN_LENGTH = 1000
"""Characters of a text of JSON that is too short for an int of more than ``MAX_INT_BITS``."""

CONVERSIONS: Final[Mapping[type, str]] = {
    UUID: "str(...)",
    Decimal: "str(...)",
    PurePath: "str(...)",
    date: ".isoformat()",
    time: ".isoformat()",
    timedelta: ".total_seconds()",
    Enum: ".value",
    Set: "sorted(...)",
    bytes: ".hex()",
}
"""Conversions that error messages name. A datetime is a date."""

MAX_JSON_BYTES: Final = 2**28 - 1
"""The bytes that a string, a list or an object has at most in a jsonb.

A statement with a larger value could exceed the 1 GiB at which PostgreSQL ends the connection.
"""

WITHOUT_NUL: Final = "remove it, or encode the text, such as with base64"

_encoder: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)
_to_text: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _make_to_json() -> Callable[[Any], str]:
    """Return a function that does what ``_encoder.encode()`` does, but faster.

    ``encode()`` creates the part of the encoder that is written in C anew for each value. This function
    creates it once.
    """
    if c_make_encoder is None:
        return _encoder.encode
    chunks = c_make_encoder(
        markers=None,
        default=_encoder.default,
        encoder=encode_basestring_ascii,
        indent=None,
        key_separator=":",
        item_separator=",",
        sort_keys=False,
        skipkeys=False,
        allow_nan=False,
    )
    # The 0 is the level of indentation.
    return lambda value: "".join(chunks(value, 0))


to_json: Final = _make_to_json()
"""Returns a value as JSON, without the checks of ``encode_object()``."""


def encode(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> str:
    """Return the arguments as the text of the ``task_data`` column.

    Args:
        args: Positional arguments, a tuple or list.
        kwargs: Keyword arguments by name, or None.

    Raises:
        PayloadError: JSON cannot represent a value; a TypeError and a ValueError.

    Example:
        >>> encode((1, ("a", "b")), {"key": None})
        '{"args":[1,["a","b"]],"kwargs":{"key":null}}'
    """
    # To compare a type costs less than to ask for a union or an abstract class.
    if type(args) is not tuple and not isinstance(args, list | tuple):
        raise PayloadError(
            f"args must be a tuple or a list, not {type(args).__name__}; pass one argument as args=(value,)"
        )
    if kwargs is not None and type(kwargs) is not dict and not isinstance(kwargs, Mapping):
        raise PayloadError(
            f"kwargs must be a dict, not {type(kwargs).__name__}; pass kwargs={{'name': value}}"
        )
    if not args and not kwargs:
        return NO_ARGUMENTS
    try:
        # ``**`` raises TypeError for a key that is not a str.
        text = to_json({"args": args, "kwargs": dict(**kwargs) if kwargs else {}})
    except (TypeError, ValueError, RecursionError):
        # The check below raises an error that has the path of the invalid value.
        text = ""
    if text and _is_plain(text):
        return text
    # The check visits each value.
    for index, value in enumerate(args):
        _check(value, f"args[{index}]", 1)
    named = dict(kwargs or {})
    _check(named, "kwargs", 0)
    # Without a text, the encoder has failed, but the check has found nothing. Then it is called once more.
    return text or to_json({"args": args, "kwargs": named})


def encode_object(name: str, value: object) -> str:
    """Return a mapping as JSON text; ``name`` is the name of the parameter, for errors.

    Raises:
        PayloadError: It is not a mapping, or JSON cannot represent a value.
    """
    if not isinstance(value, Mapping):
        raise PayloadError(f"{name} must be a dict, not {type(value).__name__}; pass {name}={{'key': value}}")
    _check(dict(value), name, 0)
    return to_json(dict(value))


def encode_value(value: object, verb: str = "return") -> str:
    """Return a value that a job returned, or that a caller sends, as JSON.

    Args:
        value: The value.
        verb: What to do with another value, for the remedy of an error.

    Raises:
        PayloadError: JSON cannot represent it; a TypeError and a ValueError.
    """
    _check(value, "the value", 1, verb)
    text = to_json(value)
    # A class may compute its contents at each read, so the text may contain what the check has not seen.
    if "\\u0000" in text or "\\ud" in text:
        _check(_read(text)[0], "the value", 1, verb)
    return text


def check_json(value: object, path: str) -> None:
    """Raise PayloadError unless JSON can represent a value, with the path of the part that is the reason."""
    _check(value, path, 1)


def split_task_data(task_data: object) -> tuple[Any, Any]:
    """Return the ``args`` and ``kwargs`` of a mapping in which both keys are optional.

    Raises:
        PayloadError: It has other keys.
    """
    if not isinstance(task_data, Mapping):
        raise PayloadError(f"task_data must be a dict, not {type(task_data).__name__}")
    if unknown := set(task_data) - {"args", "kwargs"}:
        raise PayloadError(
            f"task_data has unknown keys {sorted(map(repr, unknown))}; pass 'args' and 'kwargs' only"
        )
    return task_data.get("args", ()), task_data.get("kwargs")


def check_size(task_data: str, limit: int | None) -> str:
    """Return the text of a ``task_data`` column if it is not too large.

    Args:
        task_data: The result of ``encode()``.
        limit: The maximum size in bytes of UTF-8; None for no limit.

    Raises:
        PayloadError: The text is larger.
    """
    if (size := size_beyond(limit, task_data)) is not None:
        problem = f"the arguments, with metadata, have {size} bytes of JSON, more than"
        if limit is None or size > MAX_JSON_BYTES:
            raise call_error(
                PayloadError,
                f"{problem} the {MAX_JSON_BYTES} that PostgreSQL stores",
                "size",
                "pass an id or a path",
            )
        raise call_error(
            PayloadError,
            f"{problem} max_payload_bytes = {limit}",
            "size",
            "store them elsewhere and pass an id or a path, or increase max_payload_bytes=",
        )
    return task_data


def size_beyond(limit: int | None, text: str) -> int | None:
    """Return the size of JSON in bytes of UTF-8; None if that is within the limit and can be stored.

    The text is escaped ASCII, so its length is at least this size.
    """
    limit = MAX_JSON_BYTES if limit is None else min(limit, MAX_JSON_BYTES)
    if len(text) <= limit:
        return None
    # An escape such as \u00e4 is longer than its character in UTF-8, so the text is written without escapes.
    size = len(_to_text(json.loads(text)).encode()) if "\\u" in text else len(text)
    return size if size > limit else None


def decode(
    task_data: str, codec: PayloadCodec | None = None, job_name: str = ""
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments in the text of a ``task_data`` column.

    Args:
        task_data: The text.
        codec: Decodes encoded arguments; None for none.
        job_name: The name of the job, for the codec.

    Raises:
        PayloadError: Another program wrote the column, and not in the format of this library; or the codec
            is missing, or failed.
    """
    try:
        # loads() would also skip white space at both ends, which jsonb does not write.
        data, _ = _read(task_data)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"task_data is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise PayloadError(f"task_data must be a JSON object, not {type(data).__name__}")
    args, kwargs = data.get("args", []), data.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        # The decoded text has the arguments in the usual form.
        if is_encoded(args):
            return decode_value(args, codec, job_name, decode)
        raise PayloadError("task_data must have a list under 'args' and an object under 'kwargs'")
    return tuple(args), kwargs


def has_encoded_arguments(task_data: str) -> bool:
    """Return whether a codec has encoded the arguments in the text of a ``task_data`` column."""
    return is_encoded(object_from(task_data).get("args"))


def _is_plain(text: str) -> bool:
    """Return whether the JSON of arguments alone shows that every value is valid, so that none is visited.

    The encoder has rejected NaN and unknown objects, and ``**`` the keys of ``kwargs`` that are not str. The
    text shows the rest: a large int, deep nesting, a NUL or a surrogate (which the encoder escapes), and a
    dict within the arguments, whose keys the encoder would convert to str.
    """
    # Two braces are those of the whole object and of ``kwargs``.
    return (
        len(text) <= MAX_PLAIN_LENGTH
        and text.count("{") == 2
        and text.count("[") <= MAX_DEPTH
        and "\\u0000" not in text
        and "\\ud" not in text
    )


def _check(value: Any, path: str, depth: int, verb: str = "pass") -> None:
    """Raise PayloadError unless JSON can represent a value at this depth; ``verb`` begins the remedy."""
    if depth > MAX_DEPTH:
        _refuse(path, f"is nested deeper than {MAX_DEPTH} levels (or contains itself)", "flatten it")
    match value:
        case None | bool():
            pass
        case str():
            _check_text(value, path)
        case int():
            if value.bit_length() > MAX_INT_BITS:
                reason = f"is an int of {value.bit_length()} bits, more than {MAX_INT_BITS}"
                _refuse(path, reason, f"{verb} str(...) of it")
        case float():
            if not math.isfinite(value):
                _refuse(path, f"is {value}, which JSON cannot represent", f"{verb} None or a str instead")
        case list() | tuple():
            for index, item in enumerate(value):
                _check(item, f"{path}[{index}]", depth + 1, verb)
        case dict():
            for key, item in value.items():
                _check_key(key, path)
                _check(item, f"{path}[{key!r}]", depth + 1, verb)
        case _:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            conversion = _conversion(value)
            remedy = f"{verb} {conversion} of it, or " if conversion else f"{verb} "
            remedy += "None, bool, int, float, str, list or dict"
            _refuse(path, f"is a {kind}, which JSON cannot represent", remedy)


def _check_key(key: object, path: str) -> None:
    """Raise PayloadError unless a key of a dict is a str that PostgreSQL can store."""
    if not isinstance(key, str):
        _refuse(path, f"has the key {key!r}, but JSON keys are str", "convert the keys with str()")
    _check_text(key, f"{path} key {key!r}")


def _check_text(value: str, path: str) -> None:
    """Raise PayloadError if a text has a NUL character or a lone surrogate, which PostgreSQL cannot store."""
    # Most texts are ASCII, which has no surrogates.
    if value.isascii():
        if "\x00" in value:
            _refuse(path, "contains a NUL character, which PostgreSQL cannot store", WITHOUT_NUL)
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        reason = f"contains a lone surrogate at position {error.start}, which PostgreSQL cannot store"
        _refuse(path, reason, "remove it, or decode the text with errors='replace'")
    if "\x00" in value:
        _refuse(path, "contains a NUL character, which PostgreSQL cannot store", WITHOUT_NUL)


def _conversion(value: object) -> str:
    """Return the expression that converts a value of a common type; empty for other types."""
    # A class has the attributes of its objects, but they convert the objects only.
    if isinstance(value, type):
        return ""
    for kind, expression in CONVERSIONS.items():
        if isinstance(value, kind):
            return expression
    if callable(getattr(type(value), "model_dump", None)):  # pydantic
        return '.model_dump(mode="json")'
    return "dataclasses.asdict(...)" if is_dataclass(value) else ""


def _refuse(path: str, reason: str, remedy: str) -> NoReturn:
    """Raise PayloadError for the value with this path."""
    raise call_error(PayloadError, f"{path} {reason}", "value", remedy)


# -- columns, which may have been written by hand ------------------------------------------------------


def value_from(text: str | None) -> Any:
    """Return the value of a column.

    Raises:
        ValueError: Python cannot read it: a number of 5,000 digits, or deep nesting.
    """
    return None if text is None else load_json(text)


def object_from(text: str | None) -> dict[str, Any]:
    """Return the object in a column; an empty one for anything else."""
    try:
        value = value_from(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def is_equal_json(text: str, other_text: str) -> bool:
    """Return whether two texts of JSON have the same value; False if Python cannot read one of them.

    The texts themselves may differ, because the database writes JSON in its own way.
    """
    try:
        return bool(_marked(value_from(text)) == _marked(value_from(other_text)))
    except (ValueError, RecursionError):
        return False


def _marked(value: Any) -> Any:
    """Return a value in a form in which True, 1 and 1.0 differ.

    Floats from 1e16 on equal their ints, because the database writes them without a point.
    """
    if isinstance(value, bool) or (isinstance(value, float) and abs(value) < 1e16):
        return type(value), value
    if isinstance(value, dict):
        return {name: _marked(member) for name, member in value.items()}
    return [_marked(member) for member in value] if isinstance(value, list) else value
