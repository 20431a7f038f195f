"""Exceptions and log records that pass from one process to another."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import pytest

from pg_scheduler.base.foreign import class_path
from pg_scheduler.jobs.outcome import describe
from pg_scheduler.jobs.rows import Claim
from pg_scheduler.worker.runners.protocol import (
    RemoteError,
    claim_from,
    claim_to,
    error_from,
    error_to,
    record_from,
    record_to,
)


class Sealed(LookupError):
    def __init_subclass__(cls) -> None:
        raise TypeError("no subclasses")


class Demanding(ValueError):
    def __new__(cls, number: int) -> Demanding:
        return super().__new__(cls, number)


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (ValueError("no"), ValueError),
        (ValueError(), ValueError),
        (ConnectionResetError(104, "reset"), OSError),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), UnicodeDecodeError),
        (Sealed("sealed"), LookupError),
        (Demanding(5), ValueError),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_error_keeps_its_description_and_a_class_that_is_loaded(
    error: Exception, base: type[Exception]
) -> None:
    found = error_from(error_to(error))
    assert isinstance(found, RemoteError)
    assert isinstance(found, base)
    assert (describe(found), class_path(found)) == (describe(error), class_path(error))
    assert type(error).__name__ in str(found.__cause__)


def test_group_keeps_its_leaves_with_their_descriptions() -> None:
    leaves = [ValueError("a"), Demanding(5)]
    group = error_from(error_to(ExceptionGroup("calls", [leaves[0], ExceptionGroup("inner", [leaves[1]])])))
    assert isinstance(group, ExceptionGroup)
    assert [describe(leaf) for leaf in group.exceptions] == [describe(leaf) for leaf in leaves]
    assert all(isinstance(leaf, RemoteError) for leaf in group.exceptions)
    assert "inner" in str(group.__cause__)


def test_error_of_a_class_that_is_not_loaded_is_one_of_its_nearest_base(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = error_to(Demanding(5))
    monkeypatch.delitem(sys.modules, __name__)
    found = error_from(values)
    assert isinstance(found, ValueError)
    assert not isinstance(found, Demanding)
    assert class_path(found) == f"{__name__}.Demanding"
    assert isinstance(error_from({**values, "classes": []}), RemoteError)


def test_claim_is_equal_after_the_way_to_another_process() -> None:
    due = datetime(2030, 1, 1, 9, tzinfo=UTC)
    claim = Claim("id", "name", "function", 3, due, "{}", 5, 0, 0, None, None)
    assert claim_from(claim_to(claim)) == claim


def test_log_record_keeps_its_message_and_traceback() -> None:
    try:
        raise ValueError("no")  # noqa: TRY301 - its traceback is the subject
    except ValueError:
        record = logging.LogRecord("app", 30, "file.py", 7, "%s, %d", ("a", 5), sys.exc_info(), "func")
    found = record_from(record_to(record))
    assert (found.name, found.getMessage(), found.lineno, found.funcName) == ("app", "a, 5", 7, "func")
    assert found.exc_text is not None
    assert found.exc_text.endswith("ValueError: no")
    assert logging.Formatter().format(found).startswith("a, 5\nTraceback")
