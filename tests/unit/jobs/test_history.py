"""Entries of the history of a job's attempts, as they are written and read."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from pg_scheduler import AttemptError, JobProgress
from pg_scheduler.jobs.history import (
    MAX_TRACEBACK_BYTES,
    entry_in_ascii,
    errors_from,
    exception_entry,
    history_entry,
)
from pg_scheduler.jobs.progress import progress_from
from tests.support.cases import each_case


def raised(action: Callable[[], object]) -> BaseException:
    try:
        action()
    except BaseException as error:  # noqa: BLE001 - the subject
        return error
    raise AssertionError("nothing was raised")


def fail(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def entry_of(error: BaseException) -> dict[str, str]:
    entry: dict[str, str] = json.loads(exception_entry("error", error))
    return entry


def test_entry_of_an_exception_has_its_type_message_and_traceback() -> None:
    entry = entry_of(raised(fail(ValueError("no"))))
    assert (entry["outcome"], entry["error_type"], entry["message"]) == ("error", "ValueError", "no")
    assert entry["traceback"].startswith("Traceback (most recent call last):")
    assert entry["traceback"].endswith("ValueError: no\n")


class OutOfStockError(Exception):
    """An error of an application."""


def test_entry_has_the_path_of_a_class_that_is_not_one_of_python() -> None:
    entry = entry_of(OutOfStockError("no"))
    assert entry["error_type"] == f"{__name__}.OutOfStockError"
    disguised = type("Disguised", (Exception,), {"__module__": 7})
    assert entry_of(disguised())["error_type"] == "Disguised"


def test_entry_of_an_exception_that_was_not_raised_has_no_traceback() -> None:
    assert json.loads(exception_entry("timeout", TimeoutError("late"))) == {
        "outcome": "timeout",
        "error_type": "TimeoutError",
        "message": "late",
    }


def test_entry_has_no_key_without_a_value() -> None:
    assert history_entry("released") == '{"outcome":"released"}'


def test_traceback_ends_with_the_innermost_frame_when_it_is_long() -> None:
    def recurse(depth: int) -> None:
        if depth == 0:
            raise ValueError("é" * 100_000)
        recurse(depth - 1)

    entry = entry_of(raised(lambda: recurse(900)))
    text = entry["traceback"]
    assert len(text.encode()) <= MAX_TRACEBACK_BYTES
    assert text.endswith("é ...\n")
    assert 'raise ValueError("é" * 100_000)' in text
    assert len(entry["message"]) == 10_000


def test_traceback_is_cut_to_its_last_bytes() -> None:
    error = raised(fail(ValueError("last")))
    error.__cause__ = raised(fail(ValueError("é" * 900)))
    error.__cause__.__cause__ = raised(fail(ValueError("ü" * 900)))
    error.__cause__.__cause__.__cause__ = raised(fail(ValueError("ä" * 900)))
    text = entry_of(error)["traceback"]
    assert MAX_TRACEBACK_BYTES - 4 <= len(text.encode()) <= MAX_TRACEBACK_BYTES == 4000
    assert text.endswith("ValueError: last\n")


def test_traceback_of_another_process_keeps_its_innermost_frame() -> None:
    error = ValueError("no")
    error.__cause__ = Exception("Traceback:\n" + "  an outer frame\n" * 1000 + "  the inner frame\n")
    text = entry_of(error)["traceback"]
    assert text.count("the inner frame") == 1
    assert text.endswith("ValueError: no\n")
    assert len(text) <= MAX_TRACEBACK_BYTES


class HostileError(Exception):
    """An exception whose methods do not return texts."""

    def __str__(self) -> str:
        raise SystemExit(3)

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise KeyboardInterrupt


def test_entry_of_an_exception_whose_methods_raise_names_what_they_raised() -> None:
    entry = entry_of(raised(fail(HostileError())))
    assert entry["message"] == "(str() of it raised SystemExit)"
    assert entry["traceback"] == "(formatting it raised KeyboardInterrupt)"


def test_entry_escapes_what_postgresql_cannot_store() -> None:
    entry = entry_of(raised(fail(ValueError("a\x00b\ud800c"))))
    assert entry["message"] == "a\\x00b\\ud800c"
    assert entry["traceback"].endswith("ValueError: a\\x00b\\ud800c\n")


def test_entry_in_ascii_escapes_other_characters_and_keeps_the_limit() -> None:
    before = history_entry("error", message='é "quoted"', traceback="é" * 2000)
    after = entry_in_ascii(before)
    assert after.isascii()
    assert json.loads(after)["message"] == '\\xe9 "quoted"'
    assert json.loads(after)["traceback"] == "\\xe9" * 1000


FULL = {
    "attempt": 2,
    "outcome": "error",
    "worker_id": "w1",
    "started_at": "2030-01-01T01:00:00.5+01:00",
    "ended_at": "2030-01-01T00:00:01+00:00",
    "error_type": "ValueError",
    "message": "no",
    "traceback": "...",
}
START = datetime(2030, 1, 1, 0, 0, 0, 500_000, UTC)
END = datetime(2030, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_errors_are_read_with_their_instants_in_utc() -> None:
    assert errors_from(json.dumps([FULL])) == (
        AttemptError(2, START, END, "w1", "error", "ValueError", "no", "..."),
    )
    assert errors_from(None) == ()


@each_case(
    "column",
    ["null", "5", '"text"', "{}", "[]", "[1, null, [], {}]", "[" + "1" * 5000 + "]", "[" * 5000 + "]" * 5000],
    ids=range(8),
)
def test_errors_are_empty_when_the_column_holds_something_else(column: str) -> None:
    assert errors_from(column) == ()


@pytest.mark.parametrize(
    "invalid",
    [{"attempt": "2"}, {"attempt": True}, {"attempt": None}, {"outcome": 5}, {"outcome": None}],
    ids=str,
)
def test_errors_omit_entries_without_an_attempt_or_an_outcome(invalid: dict[str, Any]) -> None:
    assert [error.attempt for error in errors_from(json.dumps([{**FULL, **invalid}, FULL]))] == [2]


@pytest.mark.parametrize("instant", ["infinity", "2030-01-01T00:00:00", "0001-01-01T00:00:00+14:00", 5, None])
def test_errors_have_no_instant_when_the_value_is_none(instant: object) -> None:
    (error,) = errors_from(json.dumps([{**FULL, "started_at": instant}]))
    assert (error.started_at, error.ended_at) == (None, END)


@pytest.mark.parametrize("name", ["worker_id", "error_type", "message", "traceback"])
def test_errors_have_no_text_when_the_value_is_none(name: str) -> None:
    (error,) = errors_from(json.dumps([{**FULL, name: [1]}]))
    assert getattr(error, name) is None


@each_case(
    ("column", "expected"),
    [
        (None, None),
        ('{"done": 3, "total": 10.5, "note": "rows"}', JobProgress(3, 10.5, "rows")),
        ('{"done": 3}', JobProgress(3)),
        ('{"done": 3, "total": "10", "note": 5}', JobProgress(3)),
        ('{"done": 3, "total": ' + "1" * 400 + "}", JobProgress(3)),
        ('{"done": true}', None),
        ('{"total": 3}', None),
        ('{"done": ' + "1" * 5000 + "}", None),
        ("[]", None),
        ("null", None),
    ],
)
def test_progress_is_read_as_far_as_it_is_valid(column: str | None, expected: JobProgress | None) -> None:
    assert progress_from(column) == expected
