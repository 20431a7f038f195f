"""The form of values as JSON, as far as the table of ``tests/api/test_values.py`` does not show it."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from pg_scheduler import ConfigurationError, PayloadError
from pg_scheduler.jobs.result import NoValue
from pg_scheduler.jobs.typed import TypedArguments
from pg_scheduler.jobs.values import ValueType, as_returned, encode_by_class
from tests.support.values import PYDANTIC, Aliased, Cat, Event, Patch, Strict, Tree


class Reading(BaseModel):
    at: str
    values: dict[str, float]


PROGRAM = """
from pg_scheduler.jobs.values import ValueType, encode_by_class
names = {f"name-{number}" for number in range(20)}
by_type = ValueType(dict[str, set[str]]).encode({"a": names}, "")
print(by_type["a"] == encode_by_class(names, "") == sorted(names))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2"])
def test_set_has_one_form_in_every_process(seed: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONHASHSEED": seed, "PATH": ""},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert run.stdout == "True\n"


def test_model_is_dumped_without_the_fields_that_were_not_set() -> None:
    assert ValueType(Patch).encode(Patch(name="ann"), "") == {"name": "ann"}
    assert ValueType(Aliased).encode(Aliased(displayName="ann"), "") == {"displayName": "ann"}
    assert ValueType(Tree).encode(Tree(name="a", children=[Tree(name="b")]), "") == {
        "name": "a",
        "children": [{"name": "b"}],
    }


reads_large_ints = pytest.mark.skipif(
    PYDANTIC < (2, 12),
    reason="pydantic before 2.12 reads no large int from JSON as a float, so it refuses both",
)


@reads_large_ints
@pytest.mark.parametrize(
    ("declared", "value", "path"),
    [
        (float, 10**400, ""),
        (float, -(2**53) - 1, ""),
        (float, Decimal("0.10000000000000000000000001"), ""),
        (list[float], ["1", 2, 10**400], "[2]"),
        (dict[str, float], {"a": "1", "b": 10**400}, "['b']"),
        (Reading, {"at": "noon", "values": {"kelvin": 2**60 + 1}}, "['values']['kelvin']"),
    ],
)
def test_number_that_a_float_cannot_hold_is_refused(declared: Any, value: Any, path: str) -> None:
    with pytest.raises(PayloadError) as raised:
        ValueType(declared).encode(value, "x")
    assert str(raised.value).startswith(f"x{path} is a number that would arrive as ")


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        pytest.param(float, 2**60, marks=reads_large_ints),
        (float, Decimal("0.1")),
        (float, True),
        (float, Decimal("0.10")),
        (Decimal, 9.9),
        (float, "9.9"),
        (Reading, {"at": "noon", "values": {"kelvin": 3}}),
    ],
)
def test_number_that_arrives_as_another_class_with_its_digits_is_accepted(declared: Any, value: Any) -> None:
    assert ValueType(declared).encode(value, "x") is not None


@reads_large_ints
def test_result_of_a_float_function_that_a_float_cannot_hold_is_not_kept() -> None:
    async def weigh() -> float: ...  # type: ignore[empty-body]

    form = TypedArguments(weigh).form_of_result(10**400)
    assert isinstance(form, NoValue)
    assert "would arrive as inf" in form.reason
    assert TypedArguments(weigh).form_of_result(3) == 3


def test_field_of_this_object_alone_is_dumped_and_others_are_not() -> None:
    event = Event()
    assert ValueType(Event).encode(event, "") == {"event_id": str(event.event_id)}
    assert encode_by_class(Cat(), "") == {"kind": "cat"}


def test_row_of_an_earlier_checkout_is_read() -> None:
    stored = {"name": "ann", "phone": None}
    assert ValueType(Patch).read(stored) == Patch(name="ann", phone=None)
    assert ValueType(set[str]).read(["b", "a"]) == {"a", "b"}


def test_json_that_a_strict_type_reads_is_accepted_as_it_is() -> None:
    plain = {"when": "2030-01-01T00:00:00Z", "amount": "1.1"}
    assert ValueType(Strict).encode(plain, "") == plain
    with pytest.raises(ValidationError):
        ValueType(Strict).encode({"when": "2030-01-01T00:00:00Z"}, "")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": datetime(2030, 1, 1, tzinfo=UTC)}]}, "args[0]['a'][1]['b'] is a datetime"),
        ([(1, {2})], "args[0][0][1] is a set"),
    ],
)
def test_refusal_has_the_path_of_the_part(value: Any, path: str) -> None:
    with pytest.raises(PayloadError) as raised:
        ValueType(Any).encode(value, "args[0]")
    assert str(raised.value).startswith(path)


def test_large_float_is_read_as_the_database_returns_it() -> None:
    assert json.loads(as_returned("[1e+23, 1.5, -0.0]")) == [10**23, 1.5, 0.0]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic supports it")
def test_typed_dict_of_the_standard_library_has_its_remedy() -> None:
    from typing import TypedDict

    Movie = TypedDict("Movie", {"title": str})  # noqa: UP013

    async def show(movie: Any) -> None: ...

    show.__annotations__["movie"] = Movie
    with pytest.raises(ConfigurationError, match=r"; import TypedDict from typing_extensions$"):
        TypedArguments(show).encode(({"title": "Alien"},), None)
