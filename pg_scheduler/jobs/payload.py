"""A job's arguments as JSON, in and out.

What is carried: None, bool, int, finite float, str, and lists, tuples and dicts with str keys of these.
It comes back as it went, but for tuples, which come back as lists, members of str and int enums, which
come back as plain values, and floats from 1e16 on, which come back as int: jsonb knows one kind of
number. Everything else is refused where the job is scheduled, with the path of
the bad value: NaN and infinities (no JSON), NUL characters and lone surrogates (PostgreSQL stores
neither), keys that are not str, sets, datetimes, models and other objects. Pass ``when.isoformat()``,
``model.model_dump(mode="json")`` and the like.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from pg_scheduler.errors import PayloadError

__all__ = ["check_size", "decode", "encode", "encode_task_data"]

_read = json.JSONDecoder().raw_decode

MAX_DEPTH = 200
"""Nesting beyond this is refused; PostgreSQL's and Python's JSON readers have limits of their own."""

MAX_INT_BITS = 4096
"""Python refuses to write or read integers of more than 4,300 digits."""

SHORT = 1000
"""Characters of JSON that hold no larger int than that."""

_to_json: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode
_to_text: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def encode(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> str:
    """The arguments as the text of the ``task_data`` column.

    Args:
        args: Positional arguments, a tuple or list.
        kwargs: Keyword arguments by name, or None.

    Raises:
        PayloadError: A value JSON cannot carry; a TypeError and a ValueError.

    Example:
        >>> encode((1, ("a", "b")), {"key": None})
        '{"args":[1,["a","b"]],"kwargs":{"key":null}}'
    """
    if not isinstance(args, list | tuple):
        raise PayloadError(f"args must be a tuple or a list, not {type(args).__name__}.")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise PayloadError(f"kwargs must be a dict, not {type(kwargs).__name__}.")
    if not args and not kwargs:
        return '{"args":[],"kwargs":{}}'
    try:
        text = _to_json({"args": args, "kwargs": dict(**kwargs) if kwargs else {}})
    except (TypeError, ValueError, RecursionError):
        text = ""
    if text and _is_plain(text):
        return text
    for index, value in enumerate(args):
        _check(value, f"args[{index}]", 1)
    named = dict(kwargs or {})
    _check(named, "kwargs", 0)
    return text or _to_json({"args": args, "kwargs": named})


def encode_task_data(task_data: object) -> str:
    """The same for a ``{"args": [...], "kwargs": {...}}`` mapping; both keys may be missing."""
    if not isinstance(task_data, Mapping):
        raise PayloadError(f"task_data must be a dict, not {type(task_data).__name__}.")
    if unknown := set(task_data) - {"args", "kwargs"}:
        raise PayloadError(
            f"task_data has unknown keys {sorted(map(repr, unknown))}; it holds 'args' and 'kwargs' only."
        )
    return encode(task_data.get("args", ()), task_data.get("kwargs"))


def check_size(task_data: str, limit: int | None) -> str:
    """The text of a ``task_data`` column, if it is not too large.

    The text is ASCII, with escapes for all else, so it has at least as many characters as its characters
    have bytes in UTF-8.

    Args:
        task_data: As ``encode()`` gives it.
        limit: Bytes in UTF-8; None for any size.

    Raises:
        PayloadError: It is larger.
    """
    if limit is not None and len(task_data) > limit:
        size = len(_to_text(json.loads(task_data)).encode()) if "\\u" in task_data else len(task_data)
        if size > limit:
            raise PayloadError(
                f"the arguments have {size} bytes of JSON, and max_payload_bytes is {limit}. "
                "Store them elsewhere and pass an id or a path, "
                "or give the Scheduler a larger max_payload_bytes."
            )
    return task_data


def decode(task_data: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments from the text of a ``task_data`` column.

    Raises:
        PayloadError: The column was not written by this library.
    """
    try:
        data, _ = _read(task_data)  # loads() looks for white space around it, which jsonb does not write
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"task_data cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise PayloadError(f"task_data must be an object, not {type(data).__name__}")
    args, kwargs = data.get("args", []), data.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise PayloadError("task_data must hold a list under 'args' and an object under 'kwargs'")
    return tuple(args), kwargs


def _is_plain(text: str) -> bool:
    """Whether the JSON shows that there was nothing to refuse, so that nobody has to walk the values.

    The encoder has refused NaN and unknown objects by then, and ``**`` the keys of ``kwargs`` that are not
    str. What is left is too large an int, too deep a nesting, an inner dict, whose keys the encoder would
    have made str, and a NUL or a surrogate, which it would have escaped.
    """
    return (
        len(text) <= SHORT
        and text.count("{") == 2
        and text.count("[") <= MAX_DEPTH
        and "\\u0000" not in text
        and "\\ud" not in text
    )


def _check(value: Any, path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        _refuse(path, f"is nested deeper than {MAX_DEPTH} levels (or holds itself)")
    match value:
        case None | bool():
            pass
        case str():
            _check_text(value, path)
        case int():
            if value.bit_length() > MAX_INT_BITS:
                _refuse(path, f"is an int of {value.bit_length()} bits; at most {MAX_INT_BITS} are carried")
        case float():
            if not math.isfinite(value):
                _refuse(path, f"is {value}, which JSON cannot carry")
        case list() | tuple():
            for index, item in enumerate(value):
                _check(item, f"{path}[{index}]", depth + 1)
        case dict():
            for key, item in value.items():
                _check_key(key, path)
                _check(item, f"{path}[{key!r}]", depth + 1)
        case _:
            _refuse(
                path, f"is a {type(value).__module__}.{type(value).__qualname__}, which JSON cannot carry"
            )


def _check_key(key: object, path: str) -> None:
    if not isinstance(key, str):
        _refuse(path, f"has the key {key!r}; JSON keys are str")
    _check_text(key, f"{path} key {key!r}")


def _check_text(value: str, path: str) -> None:
    if value.isascii():
        if "\x00" in value:
            _refuse(path, "holds a NUL character, which PostgreSQL cannot store")
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        _refuse(path, f"holds a lone surrogate at position {error.start}, which is no text")
    if "\x00" in value:
        _refuse(path, "holds a NUL character, which PostgreSQL cannot store")


def _refuse(path: str, why: str) -> NoReturn:
    raise PayloadError(f"{path} {why}. Pass plain values: None, bool, int, float, str, list, dict.")
