"""Comparing JSON as the database and Python write it."""

from __future__ import annotations

from pg_scheduler.jobs.payload import is_equal_json
from tests.support.cases import each_case


@each_case(
    ("one", "other", "expected"),
    [
        ('{"a": 1, "b": [2.0]}', '{"b":[2.0],"a":1}', True),
        ("[2.0]", "[2]", False),
        ("[1e+20]", "[100000000000000000000]", True),
        ('{"a": true}', '{"a": true}', True),
        ('{"a": true}', '{"a": 1}', False),
        ("[0]", "[false]", False),
        ("[1]", "[2]", False),
        ("[" * 100_000, "[" * 100_000, False),
    ],
)
def test_is_equal_json_compares_values_and_keeps_types_apart(one: str, other: str, expected: bool) -> None:
    assert is_equal_json(one, other) is expected
