"""Sequences: their checks, and the keys of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from pg_scheduler import ConfigurationError, Sequence
from pg_scheduler.jobs.keys import KeyFunctionError
from pg_scheduler.jobs.sequences import check_sequence, has_place, sequence_of, sequence_place


def first(account: Any, **_: Any) -> Any:
    return account


@pytest.mark.parametrize("name", ["", "a:b", "x" * 201])
def test_sequence_rejects_a_name_that_no_text_can_hold(name: str) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        Sequence(name, key=first)


@pytest.mark.parametrize("value", [7, "account"])
def test_sequence_rejects_what_is_no_function_with_the_remedy(value: Any) -> None:
    with pytest.raises(TypeError, match="sequence=lambda account"):
        check_sequence(value)
    with pytest.raises(TypeError, match="key=lambda account"):
        Sequence(key=value)


def test_function_alone_is_a_sequence_that_stops() -> None:
    sequence = Sequence("accounts", key=first, on_failure="skip")
    assert check_sequence(sequence) is sequence
    assert check_sequence(first) == Sequence(key=first, on_failure="stop")


def test_place_of_a_job_has_its_key_and_its_rule() -> None:
    sequence = Sequence(key=first, on_failure="skip")
    place = {"key": "zsequence:app.book:7", "on_failure": "skip"}
    assert sequence_place(sequence, "app.book", '{"args":[7]}') == place
    named = Sequence("a", key=first)
    assert sequence_place(named, "b", '{"args":["é:x"]}')["key"] == "zsequence:a:\\xe9:x"
    with pytest.raises(KeyFunctionError, match="the key function of the sequence 'a' returned a NoneType"):
        sequence_place(named, "b", '{"args":[null]}')


@pytest.mark.parametrize("blocked_on", ["limit:a:b", "share:a:b", "after", None])
def test_texts_of_other_kinds_are_of_no_sequence(blocked_on: str | None) -> None:
    assert sequence_of(blocked_on) == ("", "")
    assert sequence_of("zsequence:a:b:c") == ("a", "b:c")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ('{"steps": 1, "sequence": {"key": "zsequence:a:b", "on_failure": "stop"}}', True),
        ('{"sequence": {"key": "share:a:b"}}', False),
        ('{"metadata": "sequence"}', False),
        ("{}", False),
    ],
)
def test_text_of_options_shows_whether_a_job_is_in_a_sequence(options: str, expected: bool) -> None:
    assert has_place(options) is expected
