"""Arguments as JSON: encoding, decoding, and the path of an unsupported value."""

from __future__ import annotations

import json
import math
import re
from collections import OrderedDict, namedtuple
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pg_scheduler.errors import PayloadError
from pg_scheduler.jobs import payload
from pg_scheduler.jobs.payload import MAX_DEPTH, MAX_INT_BITS, decode, encode, split_task_data
from tests.support.cases import each_case

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
integers = st.integers(-(2**MAX_INT_BITS) + 1, 2**MAX_INT_BITS - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | integers | floats | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=20,
)


def nested(levels: int) -> Any:
    """A value nested in this number of lists."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.slow
@given(st.lists(values), st.dictionaries(texts, values))
def test_arguments_are_restored_unchanged_from_json(args: list[Any], kwargs: dict[str, Any]) -> None:
    assert decode(encode(tuple(args), kwargs)) == (tuple(args), kwargs)


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Mixed(str, Enum):  # noqa: UP042 - the older spelling, which people still have
    A = "a"


Point = namedtuple("Point", "x y")


@each_case(
    ("value", "back"),
    [
        ((1, (2, [3])), [1, [2, [3]]]),
        (Point(1, 2), [1, 2]),
        (Colour.RED, "red"),
        (Mixed.A, "a"),
        (Level.HIGH, 3),
        (OrderedDict(a=1), {"a": 1}),
        ({Colour.RED: 1}, {"red": 1}),
        ("🦉\u2028", "🦉\u2028"),
        (-0.0, 0.0),
    ],
)
def test_tuples_enums_and_large_floats_are_restored_as_plain_values(value: object, back: object) -> None:
    (arg,), kwargs = decode(encode((value,), {"k": value}))
    assert (arg, kwargs) == (back, {"k": back})
    assert type(arg) is type(back)


def test_encode_returns_empty_arguments_when_there_are_none() -> None:
    assert encode((), None) == encode([], {}) == '{"args":[],"kwargs":{}}'
    assert decode(encode((), None)) == ((), {})


LOOP: list[Any] = []
LOOP.append(LOOP)


@each_case(
    ("args", "kwargs", "path", "why"),
    [
        ((1, math.nan), {}, "args[1]", "is nan, which JSON cannot represent"),
        ((), {"x": [0, {"y": math.inf}]}, "kwargs['x'][1]['y']", "is inf"),
        ((-math.inf,), {}, "args[0]", "is -inf"),
        (("a\x00",), {}, "args[0]", "contains a NUL character"),
        (("é\x00",), {}, "args[0]", "contains a NUL character"),
        (("ab\udc80",), {}, "args[0]", "contains a lone surrogate at position 2"),
        ((), {"a\x00": 1}, "kwargs key 'a\\x00'", "contains a NUL character"),
        (({"\ud800": 1},), {}, "args[0] key '\\ud800'", "contains a lone surrogate"),
        (({1: 2},), {}, "args[0]", "has the key 1, but JSON keys are str"),
        (([{None: 2}],), {}, "args[0][0]", "has the key None"),
        ((), {1: 2}, "kwargs", "has the key 1"),
        (({1, 2},), {}, "args[0]", "is a builtins.set"),
        ((b"x",), {}, "args[0]", "is a builtins.bytes"),
        ((datetime(2030, 1, 1, tzinfo=UTC),), {}, "args[0]", "is a datetime.datetime"),
        ((Decimal(1),), {}, "args[0]", "is a decimal.Decimal"),
        ((object(),), {}, "args[0]", "is a builtins.object"),
        ((1j,), {}, "args[0]", "is a builtins.complex"),
        ((range(3),), {}, "args[0]", "is a builtins.range"),
        ((MappingProxyType({}),), {}, "args[0]", "is a builtins.mappingproxy"),
        ((2**MAX_INT_BITS,), {}, "args[0]", f"is an int of {MAX_INT_BITS + 1} bits"),
        ((-(10**5000),), {}, "args[0]", "is an int of"),
        ((nested(MAX_DEPTH),), {}, "args[0]", "is nested deeper than"),
        ((), {"x": nested(MAX_DEPTH)}, "kwargs['x']", "is nested deeper than"),
        ((LOOP,), {}, "args[0]", "is nested deeper than"),
    ],
)
def test_encode_raises_with_the_path_when_json_cannot_represent_a_value(
    args: tuple[Any, ...], kwargs: dict[str, Any], path: str, why: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        encode(args, kwargs)
    message = str(caught.value)
    assert message.startswith(path)
    assert why in message
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    message.encode()  # can be logged


@each_case(
    ("value", "remedy"),
    [
        ("a\x00", "; remove it, or encode the text, such as with base64"),
        ({"a\x00": 1}, "; remove it, or encode the text, such as with base64"),
        ("\udc80", "; remove it, or decode the text with errors='replace'"),
        ({1: 2}, "; convert the keys with str()"),
        (math.nan, "; pass None or a str instead"),
        (2**MAX_INT_BITS, "; pass str(...) of it"),
        (LOOP, "; flatten it"),
        (Decimal(1), "; pass str(...) of it, or None, bool, int, float, str, list or dict"),
    ],
)
def test_remedy_of_a_value_that_cannot_be_stored_is_not_its_own_type(value: object, remedy: str) -> None:
    with pytest.raises(PayloadError) as caught:
        encode((value,), None)
    assert str(caught.value).endswith(remedy)


def test_encode_accepts_a_value_of_the_maximum_depth() -> None:
    args = (nested(MAX_DEPTH - 1),)
    assert decode(encode(args, None))[0] == args


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**MAX_INT_BITS - 1, 2**MAX_INT_BITS, -(2**MAX_INT_BITS)])
    | st.floats()
    | st.text(st.characters())
    | st.sampled_from(["{}", "\x00", "\\u0000", "\ud800", "\\ud800", "🦉", b"", object(), {1}, Colour.RED]),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner)
        | st.dictionaries(st.text(st.characters()) | st.integers() | st.none() | st.booleans(), inner)
    ),
    max_leaves=5,
)


@pytest.mark.slow
@given(st.lists(anything, max_size=3), st.dictionaries(st.text(st.characters()) | st.integers(), anything))
def test_encode_fast_path_accepts_only_values_that_the_full_check_accepts(
    args: list[Any], kwargs: dict[Any, Any]
) -> None:
    """The fast path must never accept a value that the full check rejects."""

    def outcome() -> str:
        try:
            return encode(args, kwargs)
        except PayloadError as refusal:
            return str(refusal)

    quick = outcome()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(payload, "_is_plain", lambda _text: False)
        assert outcome() == quick


@pytest.mark.parametrize("args", ["abc", {"a": 1}, None, 5, iter([1])])
def test_encode_raises_when_args_is_not_a_tuple_or_list(args: Any) -> None:
    with pytest.raises(PayloadError, match="args must be a tuple or a list, not"):
        encode(args, {})


@pytest.mark.parametrize("kwargs", [[("a", 1)], "abc", 5])
def test_encode_raises_when_kwargs_is_not_a_mapping(kwargs: Any) -> None:
    with pytest.raises(PayloadError, match="kwargs must be a dict, not"):
        encode((), kwargs)


def test_encode_accepts_any_mapping_as_kwargs() -> None:
    assert decode(encode((), MappingProxyType({"a": 1}))) == ((), {"a": 1})


def test_split_task_data_accepts_missing_keys() -> None:
    assert decode(encode(*split_task_data({"args": [1], "kwargs": {"a": 2}}))) == ((1,), {"a": 2})
    assert decode(encode(*split_task_data({}))) == ((), {})
    assert decode(encode(*split_task_data({"kwargs": None}))) == ((), {})


@pytest.mark.parametrize(
    ("task_data", "why"),
    [
        ([], "task_data must be a dict, not list"),
        (None, "task_data must be a dict, not NoneType"),
        ({"arg": []}, r"unknown keys \[\"'arg'\"\]; pass 'args' and 'kwargs' only"),
        ({1: [], "kwargs": {}}, "unknown keys"),
        ({"args": None}, "args must be a tuple or a list"),
        ({"args": [{1: 1}]}, re.escape("args[0] has the key 1")),
    ],
)
def test_split_task_data_raises_when_the_mapping_is_invalid(task_data: Any, why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        encode(*split_task_data(task_data))


@pytest.mark.parametrize(
    ("task_data", "why"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "must be a JSON object, not list"),
        ('{"args": {}}', "must have a list under 'args'"),
        ('{"kwargs": []}', "an object under 'kwargs'"),
    ],
)
def test_decode_raises_when_the_column_has_another_format(task_data: str, why: str) -> None:
    with pytest.raises(PayloadError, match=why):
        decode(task_data)


def test_decode_ignores_the_keys_of_metadata_and_of_later_releases() -> None:
    task_data = '{"args": [1], "kwargs": {"a": 2}, "metadata": {"tenant": "ada"}, "later": {"args": [3]}}'
    assert decode(task_data) == ((1,), {"a": 2})


def test_decode_accepts_missing_keys() -> None:
    assert decode("{}") == ((), {})
    assert decode(json.dumps({"args": [1], "more": True})) == ((1,), {})
